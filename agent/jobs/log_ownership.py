"""Which files in the log folder are whose, and how a job's files are removed. Everything here blocks.

Only what has a name that muster gives is looked at; a symbolic link is neither followed nor removed. What lies in a
job's own folder belongs to the job's user, who may put anything there.
"""

import contextlib
import errno
import itertools
import os
import re
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from muster.agent.host.log_folder import folder as known_folder
from muster.agent.host.operator_program import ENV
from muster.agent.jobs.entry import Entry
from muster.probes.calls.script import Script
from muster.supervisors.launch.modes import modelarts
from muster.supervisors.output import log_removals, log_segments
from muster.supervisors.output.log_layout import Layout
from muster.supervisors.paths import OWN_LOGS

#: Files in the folder of a job's user that are counted, and how deep; more take part in nothing but being removed.
MAX_COUNTED = 100_000
MAX_DEPTH = 64
#: A log's own name, then what is beside it: a time where it was set aside for a later job of that id, a segment.
_NAME = re.compile(
    r"(?P<log>(?P<job>[A-Za-z0-9][A-Za-z0-9._-]{0,127})-"
    r"(?:proc-rank-(?P<rank>\d+)-device-\d+\.(?:txt|idx)|(?P<own>muster|worker)-(?P<node>\d+)\.(?:log|idx)))"
    r"(?P<aside>\.\d{9,12}\+*)?"
    r"(?P<more>\.\d{16,}-\d{16,}(?:\.gz(?:\.part)?)?|\.removed|\.new)?"
    r"(?P<late>\.\d{9,12}\+*)?"
)


@dataclass(frozen=True, slots=True)
class Name:
    """What the name of a file says. `aside`: when it was set aside, empty for one of the present job of this id;
    `kind`: "output", "job", "worker", "index"; `rank` or else `node`: the number in it; `more`: what makes it a
    segment, or a file beside one."""

    job_id: str
    log: str
    aside: str
    kind: str
    rank: int | None
    node: int | None
    more: str

    @property
    def passing(self) -> bool:
        """Whether it is in the making, or only tells of what was removed."""
        return self.more.endswith((".part", ".new", ".removed"))


def parsed(name: str) -> Name | None:
    """None: muster gives no file this name."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    own = {"muster": "job", "worker": "worker", None: "output"}[found["own"]]
    kind = "index" if found["log"].endswith(".idx") else own
    rank, node = (int(found[key]) if found[key] else None for key in ("rank", "node"))
    return Name(
        found["job"], found["log"], found["aside"] or found["late"] or "", kind, rank, node, found["more"] or ""
    )


class Owner(Protocol):
    """What is known of a job: the index entry of one that has ended, or `KnownJob`. Another node that writes into this
    folder has other ranks, and another number. `ranks`: None where they cannot be known. `folders`: names of those of
    the job's user; it has `<id>.logs` in their place where they are another user's."""

    @property
    def job_id(self) -> str: ...
    @property
    def node_rank(self) -> int: ...
    @property
    def ranks(self) -> Collection[int] | None: ...
    @property
    def folders(self) -> tuple[str, ...]: ...


@dataclass(frozen=True, slots=True)
class KnownJob:
    """A job that is in memory; see `Owner`."""

    job_id: str
    node_rank: int
    ranks: Collection[int] | None
    folders: tuple[str, ...]


def _has(owner: Owner, name: Name) -> bool:
    """Whether a file of that name, which is of a job of this id, is this one's."""
    return owner.ranks is None or (name.node == owner.node_rank if name.rank is None else name.rank in owner.ranks)


def owner(entry: Entry) -> KnownJob:
    """Of a job that is in memory."""
    ranks = None if entry.damaged else frozenset(rank.rank for rank in entry.job.ranks)
    folders = dict.fromkeys((entry.job_id, modelarts.job_name(entry.job_id, entry.spec.env)))
    return KnownJob(entry.job_id, entry.job.node_rank, ranks, tuple(folders))


@dataclass(slots=True)
class Files:
    """Log files of one job; `aside` as in Name. `bytes`: what all have on disk; `changed` in seconds since the epoch.
    `folders`: those of the job's user that are there, with their bytes. `gone`: nothing is left but records of what was
    removed."""

    job_id: str
    aside: str = ""
    folder: Path = Path()
    #: Names, each ended by a slash: of a hundred thousand files, paths would take fifty megabytes. None: not kept.
    names: bytearray | None = None
    bytes: int = 0
    changed: float = 0.0
    folders: dict[Path, int] = field(default_factory=dict)
    #: Whether a name shows that muster made them: ModelArts' own launcher gives files of ranks the same names.
    ours: bool = False
    rotated: bool = False
    gone: bool = True

    @property
    def name(self) -> str:
        """One that no other has: a job's id may end like a time."""
        return f"{self.job_id}/{self.aside}" if self.aside else self.job_id

    @property
    def paths(self) -> list[Path]:
        """Of all files, but not of folders; of a scan that kept their names."""
        assert self.names is not None
        return [self.folder / os.fsdecode(name) for name in bytes(self.names).split(b"/")[:-1]]

    @property
    def logs(self) -> set[Path]:
        """Live files that can have segments, there or not."""
        named = [parsed(path.name) for path in self.paths]
        return {self.folder / n.log for n in named if n is not None and n.kind in ("output", "job") and not n.aside}


def scan(folder: Path, owners: Mapping[str, Owner], only: Collection[str] | None = None) -> dict[str, Files]:
    """Muster's files in the log folder, by `Files.name`: those of the jobs with the ids `only`, with their names, or
    those of all jobs, of which nothing but sums is kept. `owners`: jobs that are known, by id; a folder that several
    share (MA_VJ_NAME) goes with the first of them. Raises OSError."""
    found: dict[str, Files] = {}
    there: set[str] = set()
    begin = next(iter(only)) if only is not None and len(only) == 1 else ""
    with os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                if entry.is_dir(follow_symlinks=False):
                    there.add(entry.name)
                    continue
                name = parsed(entry.name) if entry.name.startswith(begin) else None
                if name is None or (only is not None and name.job_id not in only):
                    continue
                status = entry.stat(follow_symlinks=False)
                if not stat.S_ISREG(status.st_mode):
                    continue
                if not name.aside and name.job_id in owners and not _has(owners[name.job_id], name):
                    continue  # another node's
                _add(_files(found, name.job_id, name.aside, folder, named=only is not None), entry.name, name, status)
    whose = _folders(owners.values(), there) if there else {}
    for each in there:
        job_id = whose.get(each, each.removesuffix(OWN_LOGS))
        if only is not None and job_id not in only:
            continue
        # That of a job that is known and has given it up to a later one is not its own any more.
        if each in whose or (job_id not in owners and (orphan := found.get(job_id)) is not None and orphan.ours):
            _count(_files(found, job_id, "", folder, named=only is not None), folder / each)
    return found


def _folders(owners: Iterable[Owner], there: Collection[str]) -> dict[str, str]:
    """Of the folders of jobs' users that are there, which is of which job."""
    whose: dict[str, str] = {}
    for one in owners:
        own = f"{one.job_id}{OWN_LOGS}"
        for name in (own,) if own in there else one.folders:
            if name in there:
                whose.setdefault(name, one.job_id)
    return whose


def _files(found: dict[str, Files], job_id: str, aside: str, folder: Path, named: bool) -> Files:
    """Those that are in `found` by now, or new ones."""
    new = Files(job_id, aside, folder, bytearray() if named else None)
    return found.setdefault(new.name, new)


def _count(files: Files, folder: Path) -> None:
    """A folder of the job's user."""
    size = 0
    for status in itertools.islice(inside(folder), MAX_COUNTED):
        size += status.st_blocks * 512
        files.changed = max(files.changed, status.st_mtime)
    files.folders[folder] = size
    files.bytes += size
    files.gone = False


def _add(files: Files, file: str, name: Name, status: os.stat_result) -> None:
    if files.names is not None:
        files.names += os.fsencode(file) + b"/"
    files.gone = files.gone and file.endswith(".removed")
    files.bytes += status.st_blocks * 512
    files.changed = max(files.changed, status.st_mtime)
    files.rotated = files.rotated or (bool(name.more) and not name.passing and not name.aside)
    files.ours = files.ours or bool(name.aside or name.more) or name.kind in ("index", "job")


def inside(name: Path | str, within: int | None = None, depth: int = MAX_DEPTH) -> Iterator[os.stat_result]:
    """Of all that is in a folder, as far as it can be read. It goes from folder to folder by descriptors, so that no
    link that its owner puts in the place of one leads out of it."""
    with contextlib.suppress(OSError):
        fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=within)
        try:
            with os.scandir(fd) as entries:
                for entry in entries:
                    with contextlib.suppress(OSError):
                        status = entry.stat(follow_symlinks=False)
                        yield status
                        if stat.S_ISDIR(status.st_mode) and depth:
                            yield from inside(entry.name, fd, depth - 1)
        finally:
            os.close(fd)


def of_job(folder: Path, whose: Owner) -> Files:
    """Those of one job, with their names. Raises OSError."""
    files = Files(whose.job_id, folder=folder, names=bytearray())
    return scan(folder, {whose.job_id: whose}, [whose.job_id]).get(files.name, files)


def remove_obstacles(folder: Path, whose: Owner) -> list[str]:
    """What stands in the place of a job's logs and is no file: links and empty folders are removed. Returns a sentence
    about each thing that is left. Raises OSError."""
    left = []
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries if not entry.is_file(follow_symlinks=False)]
    for name in names:
        one = parsed(name)
        if one is None or one.aside or one.job_id != whose.job_id or not _has(whose, one):
            continue
        path = folder / name
        try:
            if path.is_symlink():
                path.unlink()
            elif path.is_dir():
                path.rmdir()
            else:
                left.append(f"{path}: stands in the place of a log, and is no file: it stays")
        except FileNotFoundError:
            pass
        except OSError as error:
            left.append(f"{path}: stands in the place of a log, and is no file: it stays: {error.strerror}")
    return left


def layouts(files: Files) -> dict[Path, Layout]:
    """What is kept of each log. Raises OSError."""
    logs = sorted(files.logs)
    return dict(zip(logs, known_folder(logs[0].parent).look(logs), strict=True)) if logs else {}


def remove_folders(folders: Iterable[Path]) -> None:
    """Those of jobs' users: rm follows no link there, however fast they change, and no folder is too deep for it.
    Of one with a mount in it, which a job of root may have left behind, nothing is removed: what is behind the mount
    is not muster's. Raises OSError."""
    for folder in folders:
        if mounts := _mounts(folder):
            raise OSError(errno.EBUSY, f"{mounts[0]} is mounted: unmount it; its data stays", str(folder))
        # The option is for a mount that came just now; it alone takes a bind mount of the same disk for a plain folder.
        argv = ("-rf", "--one-file-system", "--", str(folder))
        ended = Script("/bin/rm", ENV, argv, patient=True).run()
        if ended.returncode:
            raise OSError(0, ended.stderr.decode(errors="replace").strip()[-200:], str(folder))


def _mounts(folder: Path) -> list[str]:
    """What is mounted at or below a folder, as our mount namespace sees it. Raises OSError."""
    top = os.path.join(os.path.realpath(folder.parent), folder.name)
    found = []
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            # Blanks and the like are written as octal numbers.
            point = re.sub(r"\\([0-7]{3})", lambda number: chr(int(number[1], 8)), line.split()[4])
            if point == top or point.startswith(f"{top}/"):
                found.append(point)
    return found


def remove(files: Files, why: str, known: bool) -> None:
    """Removes them. `known`: the job can still be asked for, and records of what was removed stay behind. Killed in the
    middle of it, what is left is found again. Raises OSError."""
    remove_folders(files.folders)
    kept = layouts(files) if known else {}
    paths = set(files.paths)
    for log, layout in kept.items():
        for live in layout.pieces[-1:]:
            # A record that covers it would move where a live file begins; a segment begins where its name says.
            if live.inode and live.start < live.end:
                segment = log_segments.segment_path(log, live.start, live.end)
                log.rename(segment)
                paths.add(segment)
    spans = {log: layout for log, layout in kept.items() if layout.begin < layout.end}
    unrecorded = {}
    for log, layout in spans.items():
        try:
            log_removals.record_removal(log, layout.begin, layout.end, why)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            unrecorded[log] = layout  # there is no room, which is why they are to go
    for path in sorted(paths, key=lambda path: "-muster-" in path.name):  # what shows that they are ours is last
        if not (known and path.name.endswith(".removed")):
            path.unlink(missing_ok=True)
    for log, layout in unrecorded.items():
        log_removals.record_removal(log, layout.begin, layout.end, why)
