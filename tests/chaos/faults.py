"""The second dimension of a chaos point: what is broken while processes are killed and stopped."""

import contextlib
import errno
import fcntl
import mmap
import os
import random
import resource
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from muster.supervisors.model.states import JOB
from muster.supervisors.output.log_segments import NAME
from muster.supervisors.paths import Root
from tests.chaos import room
from tests.conftest import Daemon, eventually
from tests.fakes import build
from tests.small_disk import fill

#: Of the job.
RANKS = 3
#: Name of a log folder that was moved away.
AWAY = "log.away"
#: Size of a small disk: room for what the ranks write, and quickly full.
DISK = "24m"
_FS_IOC_GETFLAGS, _FS_IOC_SETFLAGS, _IMMUTABLE = 0x80086601, 0x40086602, 0x10


class LeftOut(Exception):
    """Raised where a fault cannot be made on this machine; the text says why."""


class Site:
    """Where a point takes place: a node's root, a folder for disks, and one for notes that no fault reaches."""

    def __init__(self, folder: Path, job_id: str) -> None:
        self.folder, self.job_id = folder, job_id
        self.node, self.notes, self.disks = (folder / name for name in ("node", "notes", "disks"))
        for path in (self.node, self.notes, self.disks):
            path.mkdir()
        self.root = Root.under(self.node)
        #: The log folder as it can be looked at while the fault lasts.
        self.log = self.root.log
        #: Logs that were moved away: rank (JOB: the job's own) -> paths.
        self.moved: dict[int, list[Path]] = {}
        #: Bytes that were in a rank's file when that was deleted.
        self.deleted: dict[int, int] = {}
        self.daemon: Daemon | None = None

    def pid(self, whose: str) -> int:
        """Of "daemon", "nursery" or "supervisor"; 0 where it does not live."""
        daemon = self.daemon
        if daemon is None:
            return 0
        if whose == "daemon":
            return daemon.process.pid if daemon.process is not None else 0
        found = daemon.nursery_pid() if whose == "nursery" else daemon.supervisor_pid(self.job_id)
        return 0 if daemon.process is not None and found == daemon.process.pid else found

    def logs_of(self, rank: int) -> list[Path]:
        """Wherever a rank's output may go by now."""
        made = [self.root.log / self.log_of(rank).name] if self.log.name == AWAY else []
        return [self.log_of(rank), *made, *self.moved.get(rank, [])]

    def log_of(self, rank: int) -> Path:
        """A rank's file, or the job's own log (JOB). By name, wherever the folder is."""
        path = self.root.job_log(self.job_id, 0) if rank == JOB else self.root.rank_log(self.job_id, rank, rank)
        return self.log / path.name


class Fault:
    """One thing that breaks, and is mended again."""

    #: Whether a room of its own namespaces is needed.
    closed = False

    def __init__(self, site: Site, rng: random.Random) -> None:
        self.site, self.rng = site, rng

    def prepare(self) -> None:
        """Before the daemon starts. Raises LeftOut."""

    def inject(self) -> str:
        """Returns what was done, for the report of a failure."""
        raise NotImplementedError

    def lift(self) -> None:
        """To be called at most once behind `inject`."""


class _Folder(Fault):
    closed = True

    def __init__(self, site: Site, rng: random.Random, name: str) -> None:
        super().__init__(site, rng)
        self.path: Path = getattr(site.root, name)


class Full(_Folder):
    """No room left in a folder."""

    def prepare(self) -> None:
        self.path.mkdir()
        room.mount("-t", "tmpfs", "-o", f"size={DISK},mode=755", "tmpfs", str(self.path))

    def inject(self) -> str:
        self.ballast = fill(self.path)
        return f"{self.path} has no room"

    def lift(self) -> None:
        self.ballast.unlink()


class ReadOnly(_Folder):
    """A folder becomes read-only for processes that open something in it from now on."""

    def inject(self) -> str:
        room.mount("-o", "bind,ro", str(self.path), str(self.path))
        return f"{self.path} is mounted read-only"

    def lift(self) -> None:
        room.unmount(self.path)


class Refusing(_Folder):
    """A disk that refuses all changes with one error, those by files that are open, too."""

    number = 0
    delay_ms = 0

    def prepare(self) -> None:
        if not os.access("/dev/fuse", os.R_OK | os.W_OK):
            raise LeftOut("needs /dev/fuse")
        self.path.mkdir()
        backing, control = self.site.disks / "backing", self.site.disks / "control"
        backing.mkdir()
        command = [sys.executable, "-m", "tests.chaos.passthrough", str(backing), str(self.path), str(control)]
        # Ends with the room.
        self.server = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self.server.stdout is not None
        if self.server.stdout.readline() != b"mounted\n":
            raise LeftOut("FUSE cannot be mounted here")
        fd = os.open(control, os.O_RDWR)
        self.control = mmap.mmap(fd, 8)
        os.close(fd)
        self.site.log = backing

    def inject(self) -> str:
        self.control[:8] = struct.pack("<II", self.number, self.delay_ms)
        return f"{self.path}: {os.strerror(self.number) if self.number else f'{self.delay_ms} ms a call'}"

    def lift(self) -> None:
        self.control[:8] = bytes(8)


class Erofs(Refusing):
    number = errno.EROFS


class Eio(Refusing):
    number = errno.EIO


class Slow(Refusing):
    def prepare(self) -> None:
        self.delay_ms = self.rng.choice((5, 20, 60))
        super().prepare()


class FolderMoved(Fault):
    """The log folder is renamed, and later gets its name back; where muster has made a new one, in half of the cases,
    and that one is moved away."""

    def inject(self) -> str:
        self.path = self.site.root.log
        self.away = self.path.with_name(AWAY)
        self.path.rename(self.away)
        self.site.log = self.away
        return f"{self.path} was moved away"

    def lift(self) -> None:
        if self.path.exists():
            aside = self.away
            if self.rng.random() < 0.5:
                aside = self.path.with_name("log.interim")
                self.path.rename(aside)
                self.away.rename(self.path)
            for rank in (*range(RANKS), JOB):
                name = self.site.log_of(rank).name
                rotated = [path for path in aside.glob(f"{name}.*") if NAME.fullmatch(path.name.removesuffix(".gz"))]
                kept = [path for path in rotated if not path.name.endswith((".removed", ".new"))]
                self.site.moved.setdefault(rank, []).extend([aside / name, *kept])
        else:
            self.away.rename(self.path)
        self.site.log = self.path


class File(Fault):
    """A log is deleted or moved away; in some cases something else is in its place."""

    def __init__(self, site: Site, rng: random.Random, job: bool, how: str) -> None:
        super().__init__(site, rng)
        self.rank = JOB if job else rng.randrange(RANKS)
        self.how = how
        self.deletes = how == "deleted" or (how != "moved" and rng.random() < 0.5)

    def inject(self) -> str:
        self.path = path = self.site.log_of(self.rank)
        with contextlib.suppress(FileNotFoundError):
            if self.deletes:
                self.site.deleted[self.rank] = path.stat().st_size
                path.unlink()
            else:
                away = self.site.folder / "moved"
                path.rename(away)
                self.site.moved.setdefault(self.rank, []).append(away)
        eventually(self._put_in_place, message=f"{path} is replaced")
        behind = {"deleted": "", "moved": ""}.get(self.how, f", and in its place is a {self.how}")
        return f"{path.name} was {'deleted' if self.deletes else 'moved away'}{behind}"

    def _put_in_place(self) -> bool:
        """False where somebody was quicker with a new file, which is deleted then; at the start of a job, say."""
        path = self.path
        try:
            if self.how == "directory":
                path.mkdir()
            elif self.how == "symlink":
                target = self.site.folder / "elsewhere"
                target.write_text("not a log\n")
                path.symlink_to(target)
            elif self.how == "unreadable":
                path.touch(0o000, exist_ok=False)
                if os.geteuid() == 0 and not _set_immutable(path, True):  # root reads everything
                    raise LeftOut("needs a file system with immutable files")
        except FileExistsError:
            path.unlink()
            return False
        return True

    def lift(self) -> None:
        if self.how == "directory":
            self.path.rmdir()
        elif self.how == "symlink":
            assert self.path.readlink().read_text() == "not a log\n", "nobody writes where a planted link leads"
            self.path.unlink()
        elif self.how == "unreadable":
            if os.geteuid() == 0:
                _set_immutable(self.path, False)
            assert not self.path.stat().st_size
            self.path.unlink()


def _set_immutable(path: Path, on: bool) -> bool:
    fd = os.open(path, os.O_RDONLY)
    try:
        flags = struct.unpack("<I", fcntl.ioctl(fd, _FS_IOC_GETFLAGS, bytes(4)))[0]
        fcntl.ioctl(fd, _FS_IOC_SETFLAGS, struct.pack("<I", flags | _IMMUTABLE if on else flags & ~_IMMUTABLE))
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


class _Limit(Fault):
    resource = 0

    def __init__(self, site: Site, rng: random.Random, whose: str) -> None:
        super().__init__(site, rng)
        self.whose = whose
        #: Whether the hard limit goes down, too: where nobody may raise that again (CAP_SYS_RESOURCE), for good.
        self.hard = self.may_stay and rng.random() < 0.5

    #: Whether the process may keep its limit for ever.
    may_stay = False

    def used(self, pid: int) -> int:
        raise NotImplementedError

    def inject(self) -> str:
        self.before: tuple[int, int] | None = None
        pid = eventually(lambda: self.site.pid(self.whose), message=f"there is a {self.whose}")
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            used = self.used(pid)
            self.before = resource.prlimit(pid, self.resource)
            resource.prlimit(pid, self.resource, (used, used if self.hard else self.before[1]))
            return f"{self.whose} {pid} has a {'hard ' if self.hard else ''}limit of {used} ({type(self).__name__})"
        return f"{self.whose} had no limit: it was gone"

    def lift(self) -> None:
        if self.before is None:
            return
        for whose in ("daemon", "nursery", "supervisor"):  # those forked meanwhile have it, too
            if pid := self.site.pid(whose):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    resource.prlimit(pid, self.resource, self.before)


class Descriptors(_Limit):
    """Not one more descriptor is to be had."""

    resource = resource.RLIMIT_NOFILE
    may_stay = True

    def used(self, pid: int) -> int:
        return max(map(int, os.listdir(f"/proc/{pid}/fd"))) + 1


class Memory(_Limit):
    """Hardly more memory is to be had."""

    resource = resource.RLIMIT_AS

    def used(self, pid: int) -> int:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
        return pages * mmap.PAGESIZE + self.rng.randrange(0, 4 << 20)


class Clock(Fault):
    """The wall clock is set, and set back again."""

    closed = True

    def __init__(self, site: Site, rng: random.Random, sign: int) -> None:
        super().__init__(site, rng)
        self.seconds = sign * rng.choice((600, 3600, 400 * 86400))

    def prepare(self) -> None:
        try:
            library = build.library("clock")
        except build.NoCompiler as error:
            raise LeftOut(str(error)) from None
        folder = self.site.disks / "clock"
        folder.mkdir()
        shutil.copy(library, folder)
        preload = folder / library.name
        self.offset = preload.with_name(preload.name + ".offset")
        self.offset.write_bytes(bytes(8))
        fd = os.open(self.offset, os.O_RDWR)
        self.map = mmap.mmap(fd, 8)
        os.close(fd)
        upper = self.site.disks / "etc"
        upper.mkdir()
        room.mount("-t", "tmpfs", "-o", "size=1m", "tmpfs", str(upper))
        for name in ("upper", "work"):
            (upper / name).mkdir()
        room.mount(
            "-t", "overlay", "overlay", "-o", f"lowerdir=/etc,upperdir={upper}/upper,workdir={upper}/work", "/etc"
        )
        # Not by the environment: the nursery is not given the daemon's.
        Path("/etc/ld.so.preload").write_text(f"{preload}\n")

    def inject(self) -> str:
        self.map[:8] = struct.pack("<q", self.seconds)
        return f"the clock was set by {self.seconds} s"

    def lift(self) -> None:
        self.map[:8] = bytes(8)


class NoCgroup(Fault):
    """muster finds no cgroup v2 of its own."""

    closed = True

    def prepare(self) -> None:
        for line in Path("/proc/self/mounts").read_text().splitlines():
            fields = line.split()
            if fields[2] == "cgroup2":
                room.unmount(Path(fields[1]))

    def inject(self) -> str:
        return "there is no cgroup"


class CgroupGone(NoCgroup):
    """The cgroup v2 tree that the job's processes are in is taken away."""

    def prepare(self) -> None:
        pass

    def inject(self) -> str:
        super().prepare()
        return "the cgroup tree was unmounted"


def _folder(kind: type[_Folder], name: str) -> Callable[[Site, random.Random], Fault]:
    return lambda site, rng: kind(site, rng, name)


def _file(job: bool, how: str) -> Callable[[Site, random.Random], Fault]:
    return lambda site, rng: File(site, rng, job, how)


def _limit(kind: type[_Limit], whose: str) -> Callable[[Site, random.Random], Fault]:
    return lambda site, rng: kind(site, rng, whose)


_HOW = ("deleted", "moved", "directory", "symlink", "unreadable")
#: By name, as a failure tells it and a plan draws it.
FAULTS: dict[str, Callable[[Site, random.Random], Fault]] = {
    "log full": _folder(Full, "log"),
    "log read-only": _folder(ReadOnly, "log"),
    "log refuses: EROFS": _folder(Erofs, "log"),
    "log refuses: EIO": _folder(Eio, "log"),
    "log slow": _folder(Slow, "log"),
    "log folder moved": FolderMoved,
    **{f"rank's log {how}": _file(False, how) for how in _HOW},
    **{f"job's log {how}": _file(True, how) for how in _HOW},
    "state full": _folder(Full, "state"),
    "state read-only": _folder(ReadOnly, "state"),
    **{f"descriptors of the {whose}": _limit(Descriptors, whose) for whose in ("daemon", "nursery", "supervisor")},
    **{f"memory of the {whose}": _limit(Memory, whose) for whose in ("daemon", "nursery", "supervisor")},
    "clock forward": lambda site, rng: Clock(site, rng, 1),
    "clock back": lambda site, rng: Clock(site, rng, -1),
    "no cgroup": NoCgroup,
    "cgroup tree gone": CgroupGone,
}


def takes_away(name: str) -> bool:
    """Whether output that is in a file may go with this fault."""
    return name.startswith("rank's log ")
