"""Which job owns which file in the log folder, and the removal of a job's files. Everything here blocks.

Only files with a name that muster gives count; symbolic links are neither followed nor removed. A job's own folder
belongs to the job's user, who may put anything there.
"""

import contextlib
import errno
import itertools
import os
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import field
from pathlib import Path
from typing import Protocol

from muster.agent.host.log_folder import folder as known_folder
from muster.agent.jobs.entry import Entry
from muster.probes.calls.script import ENV, Script
from muster.probes.kernel import mount_table
from muster.probes.kernel.dataclass import dataclass
from muster.supervisors.launch.modes import modelarts
from muster.supervisors.output import log_names, log_removals, log_segments
from muster.supervisors.output.log_layout import Layout
from muster.supervisors.output.log_names import LogName
from muster.supervisors.paths import OWN_LOGS

#: Limits in the folder of a job's user: counted files, depth. Further files are not counted, but are removed.
MAX_COUNTED = 100_000
MAX_DEPTH = 64


class Owner(Protocol):
    """What is known of a job: the index entry of an ended one, or `KnownJob`. Another node that writes into this folder
    has other ranks and another number. `ranks`: None if unknown. `folders`: names of folders of the job's user; if they
    belong to another user, the job has `<id>.logs` instead."""

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
    """A job in memory; see `Owner`."""

    job_id: str
    node_rank: int
    ranks: Collection[int] | None
    folders: tuple[str, ...]


def _has(owner: Owner, name: LogName) -> bool:
    """Whether a file with that name, which belongs to a job with this id, belongs to this job."""
    return owner.ranks is None or (name.node == owner.node_rank if name.rank is None else name.rank in owner.ranks)


def owner(entry: Entry) -> KnownJob:
    """The owner for a job in memory."""
    ranks = None if entry.damaged else frozenset(rank.rank for rank in entry.job.ranks)
    folders = dict.fromkeys((entry.job_id, modelarts.job_name(entry.job_id, entry.spec.env)))
    return KnownJob(entry.job_id, entry.job.node_rank, ranks, tuple(folders))


def ranks_by_name(folder: Path, job_id: str) -> list[tuple[int, int]]:
    """Rank and device of each rank whose output lies in the log folder: of a job of which nothing else is known. Raises
    OSError."""
    with os.scandir(folder) as entries:
        names = [log_names.parsed(entry.name) for entry in entries if entry.name.startswith(f"{job_id}-")]
    return sorted(
        {
            (name.rank, name.device)
            for name in names
            if name is not None and (name.job_id, name.kind, name.aside) == (job_id, "output", "")
            if name.rank is not None and name.device is not None
        }
    )


@dataclass(slots=True)
class Files:
    """Log files of one job; `aside` as in LogName. `bytes`: the disk space of all; `changed`: seconds since the epoch.
    `folders`: existing folders of the job's user, with their bytes. `gone`: only records of removed files are left."""

    job_id: str
    aside: str = ""
    folder: Path = Path()
    #: Names, each ended by a slash: the paths of a hundred thousand files would take fifty megabytes. None: not kept.
    names: bytearray | None = None
    bytes: int = 0
    changed: float = 0.0
    folders: dict[Path, int] = field(default_factory=dict)
    #: Whether a name proves that muster made them: ModelArts' own launcher gives files of ranks the same names.
    ours: bool = False
    rotated: bool = False
    gone: bool = True

    @property
    def name(self) -> str:
        """A unique name: a job's id may end like a time."""
        return f"{self.job_id}/{self.aside}" if self.aside else self.job_id

    @property
    def paths(self) -> list[Path]:
        """Paths of all files, without folders; only after a scan that kept their names."""
        assert self.names is not None
        return [self.folder / os.fsdecode(name) for name in bytes(self.names).split(b"/")[:-1]]

    @property
    def logs(self) -> set[Path]:
        """Live files that can have segments, existing or not."""
        named = [log_names.parsed(path.name) for path in self.paths]
        return {self.folder / n.log for n in named if n is not None and n.kind in ("output", "job") and not n.aside}


def scan(folder: Path, owners: Mapping[str, Owner], only: Collection[str] | None = None) -> dict[str, Files]:
    """muster's files in the log folder, by `Files.name`: those of the jobs with the ids `only`, with their names, or
    those of all jobs, with sums only. `owners`: known jobs by id; a folder that several share (MA_VJ_NAME) counts for
    the first of them. Raises OSError."""
    found: dict[str, Files] = {}
    there: set[str] = set()
    begin = next(iter(only)) if only is not None and len(only) == 1 else ""
    with os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                if entry.is_dir(follow_symlinks=False):
                    there.add(entry.name)
                    continue
                name = log_names.parsed(entry.name) if entry.name.startswith(begin) else None
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
        # A folder that a known job gave up to a later one is no longer its own.
        if each in whose or (job_id not in owners and (orphan := found.get(job_id)) is not None and orphan.ours):
            _count(_files(found, job_id, "", folder, named=only is not None), folder / each)
    return found


def _folders(owners: Iterable[Owner], there: Collection[str]) -> dict[str, str]:
    """The existing folders of jobs' users, with the job of each."""
    whose: dict[str, str] = {}
    for one in owners:
        own = f"{one.job_id}{OWN_LOGS}"
        for name in (own,) if own in there else one.folders:
            if name in there:
                whose.setdefault(name, one.job_id)
    return whose


def _files(found: dict[str, Files], job_id: str, aside: str, folder: Path, named: bool) -> Files:
    """The entry in `found`, or a new one."""
    new = Files(job_id, aside, folder, bytearray() if named else None)
    return found.setdefault(new.name, new)


def _count(files: Files, folder: Path) -> None:
    """Adds a folder of the job's user."""
    size = 0
    for status in itertools.islice(inside(folder), MAX_COUNTED):
        size += status.st_blocks * 512
        files.changed = max(files.changed, status.st_mtime)
    files.folders[folder] = size
    files.bytes += size
    files.gone = False


def _add(files: Files, file: str, name: LogName, status: os.stat_result) -> None:
    if files.names is not None:
        files.names += os.fsencode(file) + b"/"
    files.gone = files.gone and file.endswith(".removed")
    files.bytes += status.st_blocks * 512
    files.changed = max(files.changed, status.st_mtime)
    files.rotated = files.rotated or (bool(name.more) and not name.passing and not name.aside)
    files.ours = files.ours or bool(name.aside or name.more) or name.kind in ("index", "job")


def inside(name: Path | str, within: int | None = None, depth: int = MAX_DEPTH) -> Iterator[os.stat_result]:
    """The status of everything in a folder, as far as it is readable. It descends by descriptors, so a link that the
    owner puts in place of a folder cannot lead out of it."""
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
    """The files of one job, with their names. Raises OSError."""
    files = Files(whose.job_id, folder=folder, names=bytearray())
    return scan(folder, {whose.job_id: whose}, [whose.job_id]).get(files.name, files)


def remove_obstacles(folder: Path, whose: Owner) -> list[str]:
    """Links, folders and the like in place of a job's logs: removes links and empty folders. Returns a sentence about
    each thing that remains. Raises OSError."""
    left = []
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries if not entry.is_file(follow_symlinks=False)]
    for name in names:
        one = log_names.parsed(name)
        if one is None or one.aside or one.job_id != whose.job_id or not _has(whose, one):
            continue
        path = folder / name
        try:
            if path.is_symlink():
                path.unlink()
            elif path.is_dir():
                path.rmdir()
            else:
                left.append(f"{path}: is in the place of a log, and is not a file: not removed")
        except FileNotFoundError:
            pass
        except OSError as error:
            left.append(f"{path}: is in the place of a log, and is not a file: not removed: {error.strerror}")
    return left


def layouts(files: Files) -> dict[Path, Layout]:
    """The stored parts of each log. Raises OSError."""
    logs = sorted(files.logs)
    return dict(zip(logs, known_folder(logs[0].parent).look(logs), strict=True)) if logs else {}


def remove_folders(folders: Iterable[Path]) -> None:
    """Removes folders of jobs' users. rm follows no link in them, however fast they change, and no folder is too deep
    for it. A folder with a mount in it, which a job of root may have left behind, is not touched: what is behind the
    mount does not belong to muster. Raises OSError."""
    for folder in folders:
        if mounts := _mounts(folder):
            raise OSError(errno.EBUSY, f"{mounts[0]} is mounted: unmount it; its data stays", str(folder))
        # The option is for a mount made just now; alone it would miss a bind mount of the same disk.
        argv = ("-rf", "--one-file-system", "--", str(folder))
        ended = Script("/bin/rm", ENV, argv, patient=True).run()
        if ended.returncode:
            raise OSError(0, ended.stderr.decode(errors="replace").strip()[-200:], str(folder))


def _mounts(folder: Path) -> list[str]:
    """The mounts at or below a folder in our mount namespace. Raises OSError."""
    top = os.path.join(os.path.realpath(folder.parent), folder.name)
    return [mount.path for mount in mount_table.read() if mount.path == top or mount.path.startswith(f"{top}/")]


def remove(files: Files, why: str, known: bool) -> None:
    """Removes files. `known`: the job can still be queried, so records of the removal stay. If this is killed in the
    middle, a later scan finds the rest. Raises OSError."""
    remove_folders(files.folders)
    kept = layouts(files) if known else {}
    paths = set(files.paths)
    for log, layout in kept.items():
        for live in layout.pieces[-1:]:
            # A record that covers it would move the start of a live file; a segment starts where its name says.
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
            unrecorded[log] = layout  # there is no space, which is the reason for the removal
    for path in sorted(paths, key=_is_own):  # proof that they are ours comes last
        if not (known and path.name.endswith(".removed")):
            path.unlink(missing_ok=True)
    for log, layout in unrecorded.items():
        log_removals.record_removal(log, layout.begin, layout.end, why)


def _is_own(path: Path) -> bool:
    """Whether it is of the job's own log, or beside it."""
    name = log_names.parsed(path.name)
    return name is not None and name.rank is None
