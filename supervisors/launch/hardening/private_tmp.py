"""The folders that a job has in the place of /tmp and /var/tmp.

They are on the same file systems, as its users expect of the space there:

    /tmp/muster-<job>-<token>/       root's, 0700: nobody else gets in
        tmp/                         1777, mounted at /tmp for the job's processes

The token is random and in the journal, so nobody can have made such a folder before. What the job needs of muster's own
folders is mounted at its usual place, where that is below /tmp. Where /tmp is a link, the folder that it leads to
stands for it.
"""

import contextlib
import errno
import os
import signal
import stat
import sys
from collections.abc import Iterable, Sequence

from muster.supervisors.model.hardening import TMP_PLACES, is_below
from muster.supervisors.supervision_errors import NotStartable

#: All that can be reset: a supervisor ignores some.
_SIGNALS = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})


def places() -> list[str]:
    """Those of this node: folders, without links, each once. Raises NotStartable where there is none."""
    found: dict[tuple[int, int], str] = {}
    for path in map(os.path.realpath, TMP_PLACES):
        with contextlib.suppress(OSError):
            there = os.stat(path)
            if stat.S_ISDIR(there.st_mode):
                found.setdefault((there.st_dev, there.st_ino), path)
    if not found:
        raise NotStartable("a private /tmp is not possible: neither /tmp nor /var/tmp is a folder on this node")
    return list(found.values())


def shown(workdir: str) -> list[str]:
    """What jobs have of the node's /tmp, beside muster's own folders of the job: without links. Empty: none."""
    return list(dict.fromkeys(os.path.realpath(path) for path in (workdir, sys.prefix) if path))


def place_of(path: str, among: Iterable[str]) -> str:
    """The place that a path without links is in, and is not itself; empty: none."""
    return next((place for place in among if path != place and is_below(path, place)), "")


def is_hidden(path: str, visible: Sequence[str]) -> bool:
    """Whether the job has another file there than the node, or none. `path`: without links, as `visible` is: what the
    job has of the node's /tmp."""
    in_it = any(is_below(path, place) for place in places())
    return in_it and not any(is_below(path, folder) for folder in visible)


def in_view(paths: Iterable[str], visible: Sequence[str]) -> list[str]:
    """What of these paths jobs have: the path, or where it is hidden what is visible within it."""
    found: list[str] = []
    for path in paths:
        hidden = is_hidden(path, visible)
        found += [folder for folder in visible if is_below(folder, path)] if hidden else [path]
    return list(dict.fromkeys(found))


def make(name: str, among: Sequence[str], needed: Iterable[str], named: Iterable[str]) -> list[tuple[str, str]]:
    """Makes what does not exist in the places `among`. `name`: of the job's folders; `needed`: absolute paths, without
    links, of folders that the job needs; `named`: paths by which it enters them. Returns what is to be mounted where,
    in this order. Raises OSError, NotStartable."""
    found: list[tuple[str, str]] = []
    for place in among:
        outer, inner = f"{place}/{name}", f"{place}/{name}/tmp"
        _make(outer, 0o700)
        _make(inner, 0o1777)
        for path in needed:
            if place_of(path, [place]):
                os.close(_way(inner, path[len(place) + 1 :]))
                found.append((path, inner + path[len(place) :]))
        found.append((inner, place))
    for path in named:
        _link(name, among, path)
    return found


def _link(name: str, among: Sequence[str], path: str) -> None:
    """A path in /tmp that leads elsewhere by a link does so for the job: followed by its user, and not by root."""
    head, last = os.path.split(_without_link_of_place(os.path.normpath(path)))
    place = place_of(f"{head}/{last}", among)
    target = os.path.realpath(path)
    if not place or target == f"{head}/{last}":
        return
    way = _way(f"{place}/{name}/tmp", head[len(place) + 1 :])
    try:
        with contextlib.suppress(FileExistsError):
            os.symlink(target, last, dir_fd=way)
    finally:
        os.close(way)


def _without_link_of_place(path: str) -> str:
    """Of a normal absolute path: /tmp itself resolved, and nothing else."""
    place = place_of(path, TMP_PLACES)
    return os.path.realpath(place) + path[len(place) :] if place else path


def existing(name: str) -> list[str]:
    """Those that exist."""
    return [path for path in (f"{place}/{name}" for place in TMP_PLACES) if os.path.lexists(path)]


def arguments(folders: Iterable[str]) -> tuple[str, ...]:
    """Of rm(1): it follows no link of the job's user, no folder is too deep for it, and a mount stays."""
    return ("-rf", "--one-file-system", "--", *folders)


def begin_removal(name: str) -> None:
    """Has them removed with all that the job left there, by a process of its own: that may be a million files. What it
    leaves, the daemon removes (agent/jobs/hardening/private_tmps.py). Raises OSError where it cannot be started."""
    if folders := existing(name):
        os.posix_spawn("/bin/rm", ["rm", *arguments(folders)], {"LC_ALL": "C"}, setsid=True, setsigdef=_SIGNALS)


def _make(path: str, mode: int) -> None:
    try:
        os.mkdir(path, 0o700)
        os.chmod(path, mode)  # whatever our umask is
    except FileExistsError:
        _refuse_foreign(path, os.lstat(path))


def _way(folder: str, way: str) -> int:
    """Folders of ours, nested: the job's user cannot replace one by a link, behind which root would mount. Returns a
    descriptor of the last one."""
    at = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        for part in filter(None, way.split("/")):
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, 0o755, dir_fd=at)
            inner = os.open(part, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
            os.close(at)
            at = inner
            _refuse_foreign(f"{folder}/{way}", os.fstat(at))
        return at
    except BaseException:
        os.close(at)
        raise


def _refuse_foreign(path: str, found: os.stat_result) -> None:
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
    if found.st_uid != os.geteuid():
        raise NotStartable(f"{path} belongs to user {found.st_uid}, and not to muster: move it away")
