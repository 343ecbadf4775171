"""The folders that a job has in the place of /tmp and /var/tmp.

They are on the same file systems, as its users expect of the space there:

    /tmp/muster-<job>-<token>/       root's, 0700: nobody else gets in
        tmp/                         1777, mounted at /tmp for the job's processes

The token is random and in the journal, so nobody can have made such a folder before. What the job needs of muster's own
folders is mounted at its usual place, where that is below /tmp.
"""

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Iterable

from muster.supervisors.launch.hardening import mounts
from muster.supervisors.supervision_errors import NotStartable

PLACES = ("/tmp", "/var/tmp")


def places() -> list[str]:
    """Those of this node: folders, each once."""
    found: dict[tuple[int, int], str] = {}
    for path in PLACES:
        with contextlib.suppress(OSError):
            there = os.lstat(path)
            if stat.S_ISDIR(there.st_mode):
                found.setdefault((there.st_dev, there.st_ino), path)
    return list(found.values())


def make(name: str, needed: Iterable[str]) -> list[tuple[str, str]]:
    """Makes what does not exist. `name`: of the job's folders; `needed`: absolute paths of folders that the job needs.
    Returns what is to be mounted where, in this order. Raises OSError, NotStartable."""
    found: list[tuple[str, str]] = []
    for place in places():
        outer, inner = f"{place}/{name}", f"{place}/{name}/tmp"
        _make(outer, 0o700)
        _make(inner, 0o1777)
        for path in needed:
            if mounts.is_below(path, place) and path != place:
                _make_way(inner, path[len(place) + 1 :])
                found.append((path, inner + path[len(place) :]))
        found.append((inner, place))
    return found


def remove(name: str) -> str:
    """Removes them with all that the job left there. Returns a sentence about what stays, or nothing."""
    left: list[str] = []
    for place in PLACES:
        path = f"{place}/{name}"
        shutil.rmtree(path, ignore_errors=True)
        if os.path.lexists(path):
            left.append(path)
    return f"cannot remove {' and '.join(left)} of the job: remove it by hand" if left else ""


def _make(path: str, mode: int) -> None:
    try:
        os.mkdir(path, 0o700)
        os.chmod(path, mode)  # whatever our umask is
    except FileExistsError:
        _refuse_foreign(path, os.lstat(path))


def _make_way(folder: str, way: str) -> None:
    """Folders of ours, nested: the job's user cannot replace one by a link, behind which root would mount."""
    at = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        for part in way.split("/"):
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, 0o755, dir_fd=at)
            inner = os.open(part, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
            os.close(at)
            at = inner
            _refuse_foreign(f"{folder}/{way}", os.fstat(at))
    finally:
        os.close(at)


def _refuse_foreign(path: str, found: os.stat_result) -> None:
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
    if found.st_uid != os.geteuid():
        raise NotStartable(f"{path} belongs to user {found.st_uid}, and not to muster: move it away")
