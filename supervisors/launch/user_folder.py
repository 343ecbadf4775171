"""Folders that belong to a job's user inside muster's folders: creates them, and uses them again.

muster creates such a folder under a temporary name and renames it when it belongs to the user. So a process that is
killed meanwhile leaves nothing that could be mistaken for it, and muster never gives away existing files.
"""

import contextlib
import ctypes
import errno
import os
import stat
from collections.abc import Iterable
from pathlib import Path

from muster.supervisors.launch.child import Account
from muster.supervisors.paths import Root
from muster.supervisors.supervision_errors import NotStartable
from muster.supervisors.system import trust

RENAME_NOREPLACE = 1
#: Times that a name may be taken and free again while the folder is made.
_TRIES = 10


def make(folder: Path, job_id: str, account: Account) -> None:
    """For nobody else but the user's group. One that is there (of an attempt before, or of another job of this name)
    must be the user's: what another has put into it, a link say, would be written through. Raises OSError,
    NotStartable."""
    make_all(folder.parent, [folder.name], job_id, account)


def make_all(parent: Path, names: Iterable[str], job_id: str, account: Account) -> None:
    """As `make`, of several in one folder, the way to which is looked at once."""
    around = trust.open_logs(parent)
    try:
        for name in names:
            _make(f"{parent}/{name}", job_id, account, around)
    finally:
        os.close(around)


def _make(folder: str, job_id: str, account: Account, around: int) -> None:
    """`around`: its parent's descriptor. Raises OSError, NotStartable."""
    name = os.path.basename(folder)
    try:
        for _ in range(_TRIES):
            try:
                there = os.stat(name, dir_fd=around, follow_symlinks=False)
            except FileNotFoundError:
                if _made(name, f".{job_id}.new", account, around):
                    return
                continue
            _refuse_another(Path(folder), there, account, around)
            return
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), folder)
    except OSError as error:
        error.filename = folder
        raise


def make_logs(root: Root, name: str, job_id: str, account: Account) -> str:
    """The folder for logs of launchers and of CANN, of the name that the platform gives the job. Where that folder is
    another user's, the job has one that no other job can have (`Root.own_job_logs`), from then on. Returns a sentence
    about that, or nothing. Raises OSError, NotStartable."""
    usual, own = root.job_logs(name), root.own_job_logs(job_id)
    if not os.path.lexists(own):
        try:
            make(usual, job_id, account)
            return ""
        except NotStartable:
            pass
    make(own, job_id, account)
    return (
        f"{usual} belongs to another user's job: logs of launchers and of CANN are in {own}; give the job a name "
        "(MA_VJ_NAME, job_id) of its own to have them elsewhere"
    )


def _made(name: str, temporary: str, account: Account, around: int) -> bool:
    """False where the name was taken meanwhile. Raises OSError."""
    if (account.uid, account.gid) == (os.geteuid(), os.getegid()):
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o750, dir_fd=around)
            return True
        return False
    with contextlib.suppress(FileNotFoundError):
        os.rmdir(temporary, dir_fd=around)  # of a supervisor that was killed
    os.mkdir(temporary, 0o700, dir_fd=around)
    try:
        fd = os.open(temporary, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=around)
        try:
            if os.listdir(fd):  # in a folder of others it may have been replaced
                raise FileExistsError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), temporary)
            os.fchmod(fd, 0o750)
            os.fchown(fd, account.uid, account.gid)
        finally:
            os.close(fd)
        return _rename(temporary, name, around)
    finally:
        with contextlib.suppress(OSError):
            os.rmdir(temporary, dir_fd=around)


def _rename(old: str, new: str, around: int) -> bool:
    """False where the new name is taken. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "renameat2"):
        if libc.renameat2(around, old.encode(), around, new.encode(), RENAME_NOREPLACE) == 0:
            return True
        number = ctypes.get_errno()
        if number == errno.EEXIST:
            return False
        if number not in (errno.EINVAL, errno.ENOSYS):  # a file system that does not know it (NFS)
            raise OSError(number, os.strerror(number), new)
    try:
        os.rename(old, new, src_dir_fd=around, dst_dir_fd=around)
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
            return False
        raise
    return True


def _refuse_another(folder: Path, there: os.stat_result, account: Account, around: int) -> None:
    """Raises NotStartable, OSError."""
    if not stat.S_ISDIR(there.st_mode):  # one of muster's own files, say, which must not change its owner
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(folder))
    if there.st_uid == account.uid or (account.uid == os.geteuid() and there.st_uid == _uid_of_new(folder, around)):
        return
    raise NotStartable(
        f"{folder} already exists and belongs to uid {there.st_uid}, not to the job's user {account.name} "
        f"(uid {account.uid}): move or remove it, or give the job another name"
    )


def _uid_of_new(folder: Path, around: int) -> int:
    """Whose a folder is that we make beside this one: on a network file system root may be somebody else. Raises
    OSError."""
    made = f".{folder.name}.{os.getpid()}"
    os.mkdir(made, 0o700, dir_fd=around)
    try:
        return os.stat(made, dir_fd=around, follow_symlinks=False).st_uid
    finally:
        os.rmdir(made, dir_fd=around)
