"""Which folders and files muster trusts: those that only root and its own user can change.

A user who can write to a folder can rename its content and put another tree there. So every folder and every link on
the way to a path counts: muster walks from `/`, folder by folder, opens each in the one before (openat(2)), and uses
what it has checked. A folder for logs may be less strict: see `open_logs`.
"""

import contextlib
import errno
import grp
import os
import pwd
import stat
import struct
from collections import deque
from pathlib import Path

from muster.supervisors.supervision_errors import Untrusted

#: Links on one way, as the kernel counts them.
_MAX_LINKS = 40
#: Times that a file may come and go while it is opened.
_TRIES = 10
_NO_FILE = "is not a regular file: move it away"
_SEARCH = os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW
#: What is opened may be a FIFO that somebody put there, whose open() would wait.
_CAREFUL = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_ACL = "system.posix_acl_access"
_ACL_ENTRY = struct.Struct("<HHI")
_ACL_USER, _ACL_GROUP_OBJ, _ACL_GROUP = 0x02, 0x04, 0x08
_ACL_WRITE = 0x02


def check(path: Path) -> None:
    """Raises Untrusted where another user than root and our own can change the file or folder `path`, or put another
    in its place: the message names the ancestor and the remedy. The path need not exist yet. Raises OSError."""
    fd, _ = _walk(path, strict=True)
    if fd is not None:
        os.close(fd)


def make_folder(path: Path, mode: int = 0o755) -> None:
    """Makes a folder and the missing ones above it, each with exactly `mode`; an existing folder stays as it is. Raises
    what `check` does, and OSError."""
    fd, _ = _walk(path, strict=True, make=mode)
    if fd is None:  # in /proc, say, nobody can make one
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    try:
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
    finally:
        os.close(fd)


def open_logs(folder: Path) -> int:
    """A descriptor of a folder for logs, to be used as `dir_fd`. The caller closes it.

    It may be anybody's, as the volumes of containers are, and so may be the folders above it. What others could do with
    that: rename it away, and have muster write into another folder. So a link that another user can replace is only
    followed to where that user could write without us, and files in it are opened with `open_log`. Raises Untrusted,
    OSError.
    """
    fd, links = _walk(folder, strict=False)
    if fd is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder))
    found = os.fstat(fd)
    with contextlib.ExitStack() as on_error:
        on_error.callback(os.close, fd)
        if not stat.S_ISDIR(found.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
        for link, owner in links:
            if not (found.st_mode & stat.S_IWOTH or (owner == found.st_uid and not _is_ours(owner))):
                raise Untrusted(
                    link,
                    f"is a link that {user_name(owner)} or others can replace, and leads to {folder}, where they may "
                    "not write: name the folder for logs without this link",
                )
        on_error.pop_all()
    return fd


def open_log(name: str, flags: int, mode: int = 0o640, *, folder: int) -> tuple[int, bool]:
    """Opens a file for logs in the folder with the descriptor `folder` (of `open_logs`). Returns its descriptor, and
    whether it may be given to another user (fchown(2)): in a folder of others somebody could have given a file of ours
    this name, so there only what was made just now.

    An existing path must be a file, without another name if others can write to the folder: it may be a link, a
    FIFO, another name of a file elsewhere. Raises Untrusted, OSError.
    """
    fd, made = _open(name, flags, mode, folder)
    with contextlib.ExitStack() as on_error:
        on_error.callback(os.close, fd)
        found, around = os.fstat(fd), os.fstat(folder)
        if not stat.S_ISREG(found.st_mode):
            raise Untrusted(name, _NO_FILE)
        others = not _is_ours(around.st_uid) or bool(around.st_mode & (stat.S_IWGRP | stat.S_IWOTH))
        if others:
            # By its name: another name that was taken away since does not show in what is open.
            there = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if (there.st_dev, there.st_ino, there.st_nlink) != (found.st_dev, found.st_ino, 1):
                raise Untrusted(name, "has another name, or was replaced just now: move it away")
        on_error.pop_all()
    return fd, made or not others


def open_own(path: Path, flags: int, mode: int = 0o600, *, folder: int | None = None) -> int:
    """Opens a file of muster's own, in its folder (whose descriptor `folder` may be given): both belong to us or to
    root, and it is no link and no FIFO. Raises Untrusted, OSError."""
    within = open_folder(path.parent) if folder is None else folder
    try:
        fd, _ = _open(path.name, flags, mode, within)
    except OSError as error:
        error.filename = str(path)
        raise
    finally:
        if folder is None:
            os.close(within)
    try:
        _refuse_foreign(str(path), os.fstat(fd))
    except Untrusted:
        os.close(fd)
        raise
    return fd


def open_folder(path: Path | str, *, folder: int | None = None, flags: int = os.O_PATH) -> int:
    """A descriptor of a folder that belongs to us or to root; the ways to it were looked at by `check`. Raises
    Untrusted, OSError."""
    fd = os.open(path, flags | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    found = os.fstat(fd)
    if not _is_ours(found.st_uid):
        os.close(fd)
        raise Untrusted(str(path), ": ".join(_of_another(str(path), found.st_uid)))
    return fd


def read(path: Path, most: int = -1) -> bytes:
    """Of a file of muster's own, at most so many bytes. Raises Untrusted, OSError."""
    fd = open_own(path, os.O_RDONLY)
    try:
        # Room is made for what is asked for, although little may be there.
        size = os.fstat(fd).st_size
        found = b""
        while data := os.read(fd, max(size, 512) if most < 0 else min(most - len(found), size)):
            found += data
        return found
    finally:
        os.close(fd)


def refuse_foreign(path: Path, found: os.stat_result) -> None:
    """Raises Untrusted where `path`, whose status is `found`, belongs neither to us nor to root."""
    if not _is_ours(found.st_uid):
        raise Untrusted(str(path), ": ".join(_of_another(str(path), found.st_uid)))


def is_plainly_ours(found: os.stat_result) -> bool:
    """Whether only root and we can change what has this status, without a look at access lists and groups. Where this
    is false `check` tells more."""
    writable = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return _is_ours(found.st_uid) and not writable and not stat.S_ISLNK(found.st_mode)


def user_name(uid: int) -> str:
    """With the number."""
    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"


# --- one file or folder -----------------------------------------------------------------------------------------------


def _open(name: str, flags: int, mode: int, folder: int) -> tuple[int, bool]:
    """In a sticky folder the kernel may refuse a file of another user to a caller that would also create it
    (fs.protected_regular), so it is made only where there is none. Returns whether it was made. Raises Untrusted,
    OSError."""
    try:
        if not flags & os.O_CREAT or flags & os.O_EXCL:
            return os.open(name, flags | _CAREFUL, mode, dir_fd=folder), bool(flags & os.O_EXCL)
        for _ in range(_TRIES):
            with contextlib.suppress(FileNotFoundError):
                return os.open(name, flags & ~os.O_CREAT | _CAREFUL, dir_fd=folder), False
            with contextlib.suppress(FileExistsError):
                return os.open(name, flags | os.O_EXCL | _CAREFUL, mode, dir_fd=folder), True
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise Untrusted(name, _NO_FILE) from None
        raise
    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)


def _refuse_foreign(path: str, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise Untrusted(path, _NO_FILE)
    if not _is_ours(found.st_uid):
        raise Untrusted(path, ": ".join(_of_another(path, found.st_uid)))


def _is_ours(uid: int) -> bool:
    return uid in (0, os.geteuid())


def _of_another(path: str, uid: int) -> tuple[str, str]:
    me = os.geteuid()
    trusted = "root" if me == 0 else f"root and {user_name(me)}"
    return (
        f"belongs to {user_name(uid)}, but muster trusts only {trusted} there",
        f"choose another path, or, if the content is good: chown {me} {path}",
    )


def _who_else(path: str, fd: int, found: os.stat_result) -> tuple[str, str] | None:
    """By what another than root and us can change a file, or what lies in a folder, and what to do; None: nothing."""
    if not (_is_ours(found.st_uid) or _is_unmapped(found.st_uid)):
        return _of_another(path, found.st_uid)
    if stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX:
        return None  # only the owner can replace a file there
    if not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) or os.fstatvfs(fd).f_flag & os.ST_RDONLY:
        return None
    if found.st_mode & stat.S_IWOTH:
        return f"its mode {stat.S_IMODE(found.st_mode):04o} lets everybody write", f"chmod o-w {path}"
    users, groups = _listed(fd, found.st_gid)
    for uid in users:
        if not _is_ours(uid):
            return f"its access list lets {user_name(uid)} write", f"setfacl -x u:{uid} {path}"
    for gid in groups:
        if not is_our_group(path, gid):
            remedy = f"chmod g-w {path}" if gid == found.st_gid else f"setfacl -x g:{gid} {path}"
            return f"the group {_group_name(gid)} can write there", remedy
    return None


def _listed(fd: int, gid: int) -> tuple[list[int], list[int]]:
    """Users and groups that may write beside owner and others, where the group `gid` seems to: with an access list the
    group's bits are its mask."""
    try:
        data = os.getxattr(f"/proc/self/fd/{fd}", _ACL)
    except OSError:
        return [], [gid]
    entries = [(tag, number) for tag, may, number in _ACL_ENTRY.iter_unpack(data[4:]) if may & _ACL_WRITE]
    users = [number for tag, number in entries if tag == _ACL_USER]
    own = [gid for tag, _ in entries if tag == _ACL_GROUP_OBJ]
    return users, own + [number for tag, number in entries if tag == _ACL_GROUP]


def is_our_group(path: str, gid: int) -> bool:
    """Whether only root and our own user are in the group, as far as this node knows."""
    if gid == 0:
        return True
    name = _group_name(gid)
    # Debian gives /usr/local to `staff`, and with it programs in root's $PATH: its members are as good as root already.
    # Ubuntu gives /var/log to its syslog daemon, which could make muster's logs its own and no more.
    if (gid, name) == (50, "staff") or (path, name) == ("/var/log", "syslog"):
        return True
    me = os.geteuid()
    if gid not in (os.getegid(), *os.getgroups()):
        return False
    if any(one.pw_gid == gid and one.pw_uid not in (0, me) for one in pwd.getpwall()):
        return False
    try:
        members = set(grp.getgrgid(gid).gr_mem)
    except KeyError:
        return True  # a container's number for its volumes (fsGroup), which only we were given
    with contextlib.suppress(KeyError):
        mine = pwd.getpwuid(me)
        # A directory service may keep the members to itself: then not even we are among them.
        return (mine.pw_gid == gid or mine.pw_name in members) and members <= {"root", mine.pw_name}
    return False


def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def overflow_uid() -> int:
    """The number that the kernel shows for users whom our user namespace does not have."""
    try:
        with open("/proc/sys/kernel/overflowuid", "rb") as file:
            return int(file.read())
    except (OSError, ValueError):
        return 65534


def _is_unmapped(uid: int) -> bool:
    """Whether this number stands for users outside our user namespace, whom the creator of the namespace vouches
    for."""
    if uid != overflow_uid():
        return False
    try:
        with open("/proc/self/uid_map", "rb") as file:
            spans = [tuple(map(int, line.split())) for line in file]
    except (OSError, ValueError):
        return False
    return not any(first <= uid < first + count for first, _, count in spans)


# --- the way to it ----------------------------------------------------------------------------------------------------


def _walk(path: Path, *, strict: bool, make: int | None = None) -> tuple[int | None, list[tuple[str, int]]]:
    """Opens a file or folder step by step. Returns its descriptor (O_PATH), None if it does not exist; and the links
    on the way that others can replace, with their owners, of which there are none where it is `strict`."""
    names = deque(path.absolute().parts[1:])
    # `at` is the way without links, so that `..` is what is above.
    at, fd = "/", os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    links: list[tuple[str, int]] = []
    followed = 0
    with contextlib.ExitStack() as on_error:
        on_error.callback(lambda: os.close(fd))
        while True:
            folder = os.fstat(fd)
            trouble = _who_else(at, fd, folder)
            if trouble and strict:
                what, remedy = trouble
                raise Untrusted(at, f"{what}, and {path} lies below it: {remedy}" if names else f"{what}: {remedy}")
            if not names:
                on_error.pop_all()
                return fd, links
            name = names.popleft()
            if name in ("", "."):
                continue
            try:
                below_it = _step(fd, name, make)
            except FileNotFoundError:
                os.close(fd)
                on_error.pop_all()
                return None, links
            except OSError as error:
                error.filename = os.path.join(at, name)
                raise
            found = os.fstat(below_it)
            if not stat.S_ISLNK(found.st_mode):
                at = os.path.dirname(at) if name == ".." else os.path.join(at, name)
                os.close(fd)
                fd = below_it
                continue
            link = os.path.join(at, name)
            with contextlib.closing(_Fd(below_it)):
                target = os.readlink("", dir_fd=below_it)
            # In a sticky folder it is its owner, and in any other who can write there, who can replace it.
            if trouble or (folder.st_mode & stat.S_ISVTX and not _is_ours(found.st_uid)):
                if strict:
                    raise Untrusted(link, ": ".join(_of_another(link, found.st_uid)))
                links.append((link, found.st_uid))
            followed += 1
            if followed > _MAX_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
            if target.startswith("/"):
                os.close(fd)
                at, fd = "/", os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            names.extendleft(reversed(target.split("/")))


class _Fd:
    """A descriptor to be closed."""

    def __init__(self, number: int) -> None:
        self._number = number

    def close(self) -> None:
        os.close(self._number)


def _step(folder: int, name: str, make: int | None) -> int:
    """Raises OSError."""
    try:
        return os.open(name, _SEARCH, dir_fd=folder)
    except FileNotFoundError:
        if make is None:
            raise
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, make, dir_fd=folder)
        os.chmod(name, make, dir_fd=folder)  # the umask is not asked
    return os.open(name, _SEARCH, dir_fd=folder)
