"""The folders of a node: made, checked, and marked with the version of what is in them."""

import contextlib
import errno
import os
import re
import secrets
from pathlib import Path

from muster.agent.errors import StartupError
from muster.agent.host import state_file
from muster.agent.host.ownership import refuse_contents_of_others, refuse_others
from muster.supervisors.model import journal
from muster.supervisors.paths import MAX_SOCKET, Root
from muster.supervisors.supervision_errors import Untrusted, remedy
from muster.supervisors.system import trust

#: First line of `<state>/version`: the name, and the number of the format. It is raised when a musterd of before would
#: lose or spoil something of what is written now, and then only: docs/guides/upgrade.md tells the rule.
_NAME, _NUMBER = "muster-state", 1
VERSION = f"{_NAME} {_NUMBER}"
_KEY_BYTES = 32
#: Files that a job needs beside its FIFOs; and bytes over its journal's: its spec (1 MiB at most, mostly some hundred
#: bytes), folder, lock, counts.
_FILES, _JOB = 12, 32768
#: Errors of a disk, or of a limit, that pass: the daemon works with what can be read, and says what it cannot do.
DEGRADES = (
    errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM,
)  # fmt: skip
#: What to do where an error of a folder has no usual remedy.
OTHER_ROOT = "give --root a folder that you may write to"
#: The remedy for a folder that disappeared.
MOVED = "the folder no longer exists: move it back, or create it"


def prepare(root: Root) -> None:
    """Makes run (0755), state (0711) and log (0755) where they are missing, and checks that they can be worked with.

    The folders on the way to a rank's working folder can be passed through by every user, and listed by none.

    Raises StartupError: a socket path that is too long, a folder that cannot be made or written or that others can
    change, a state folder of another version. Nothing is changed in a folder that is refused. A state or log folder on
    a disk that is full or read-only now is none of these: see agent/node/degraded.py.
    """
    size = len(os.fsencode(root.socket))
    if size > MAX_SOCKET:
        raise StartupError(
            f"{root.socket}: the path of the socket has {size} bytes, and the kernel allows {MAX_SOCKET}: "
            "choose a shorter --root"
        )
    check(root)
    if root != Root.system():
        _make(root.run.parent, 0o755)
    _make(root.state, 0o711)
    _check_version(root)
    for folder, mode in ((root.run, 0o755), (root.jobs, 0o711), (root.events, 0o700)):
        _make(folder, mode)
    try:
        _make(root.log, 0o755)
    except StartupError as error:  # what jobs write is counted, not stored, until there is a folder
        if not isinstance(error.__cause__, OSError) or error.__cause__.errno not in DEGRADES:
            raise
    try:
        if os.statvfs(root.run).f_flag & os.ST_RDONLY:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
    except OSError as error:
        raise StartupError(
            f"cannot make the daemon's socket in {root.run}: {error.strerror}; {remedy(error, OTHER_ROOT)}"
        ) from error


def check(root: Root) -> None:
    """Checks that no user but root and ours can change or replace these folders, or what the daemon reads there, and
    changes nothing. Raises StartupError.

    A folder for logs that is reached by a link may be anybody's, as the volumes of containers are: see
    `trust.open_logs`."""
    try:
        for folder in (root.run, root.state, root.log.parent if root.log.is_symlink() else root.log):
            refuse_others(folder)
        for folder in (root.state, root.events):
            if folder.is_dir():
                refuse_contents_of_others(folder)
        if root.log.is_dir():
            os.close(trust.open_logs(root.log))
    except Untrusted as error:
        raise StartupError(str(error)) from None
    except OSError as error:
        raise StartupError(f"cannot inspect {error.filename}: {error.strerror}") from error


def event_epoch(events: Path) -> str:
    """The name of this history of events, 16 hexadecimal digits; a cursor of another one is refused. Raises OSError."""
    path = events / "epoch"
    try:
        epoch = trust.read(path).decode(errors="replace").strip()
        if len(epoch) == 16:
            return epoch
    except FileNotFoundError:
        pass
    epoch = new_epoch()
    state_file.write_text(path, epoch + "\n")
    return epoch


def new_epoch() -> str:
    """The name of a history of events that begins now."""
    return secrets.token_hex(8)


def writable(folder: Path, room: int = 4096) -> None:
    """Raises OSError where a file with so many bytes, and a dozen more, cannot be made in a folder. It has no name at
    any time."""
    found = os.statvfs(folder)
    if found.f_files and found.f_favail < _FILES and not found.f_flag & os.ST_RDONLY:
        raise OSError(errno.ENOSPC, "No inodes left on device")
    try:
        fd = os.open(folder, os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
            raise
        if found.f_bavail * found.f_frsize < room:  # a file system without such files
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from None
        return
    try:
        journal.set_aside(fd, room)
        if os.write(fd, bytes(4096)) < 4096:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        os.close(fd)


def writable_for_job(jobs: Path, ranks: int) -> None:
    """Raises OSError where a job with so many ranks could not be recorded: whatever `job_folder.create` needs fits."""
    writable(jobs, journal.room(ranks) + _JOB)


def digest_key(state: Path) -> bytes:
    """The key of the digests of specs, made once, so that an equal spec has an equal digest for as long as this
    folder exists. If it cannot be written: for the life of this daemon."""
    path = state / "digest.key"
    with contextlib.suppress(OSError, ValueError):
        key = bytes.fromhex(trust.read(path).decode("ascii"))
        if len(key) == _KEY_BYTES:
            return key
    key = secrets.token_bytes(_KEY_BYTES)
    with contextlib.suppress(OSError):
        state_file.write_text(path, key.hex() + "\n")
    return key


def _make(folder: Path, mode: int) -> None:
    """Raises StartupError."""
    try:
        trust.make_folder(folder.parent)
        try:
            folder.mkdir(0o700)
            folder.chmod(mode)  # the umask is not asked
        except FileExistsError:
            if not folder.is_dir():
                raise StartupError(f"{folder}: is not a folder: move it away, or choose another --root") from None
            if not folder.is_symlink():  # made since `check`, in a folder like /tmp
                trust.check(folder)
    except Untrusted as error:
        raise StartupError(str(error)) from None
    except OSError as error:
        what = f"cannot make the folder {folder}: {error.strerror}; {remedy(error, OTHER_ROOT)}"
        raise StartupError(f"{error.filename or folder}: {what}") from error
    if not os.access(folder, os.W_OK | os.X_OK) and not os.statvfs(folder).f_flag & os.ST_RDONLY:
        raise StartupError(f"{folder}: no permission to write here; give --root a folder that you may write to")


def _check_version(root: Root) -> None:
    try:
        found = trust.read(root.version).decode("utf-8", "replace").strip()
    except FileNotFoundError:
        if root.jobs.exists():
            raise StartupError(
                f"{root.version}: is missing, but {root.jobs} exists: this is not a state folder of muster, "
                f"or it is damaged: if this version made it, write the line {VERSION!r} into the file"
            ) from None
        try:
            state_file.write_text(root.version, VERSION + "\n")
        except OSError as error:
            raise StartupError(f"cannot write {root.version}: {error.strerror}; {remedy(error, OTHER_ROOT)}") from error
        return
    except OSError as error:
        raise StartupError(f"cannot read {root.version}: {error.strerror}; {remedy(error, OTHER_ROOT)}") from error
    if found == VERSION:
        return
    match = re.fullmatch(rf"{_NAME} (\d{{1,9}})", found)
    if match is not None and int(match[1]) > _NUMBER:
        raise state_file.newer(root.version, found, VERSION, "use another state folder")
    raise StartupError(
        f"{root.version}: says {found[:60]!r}, but this musterd reads {VERSION!r}: use the musterd that wrote it, or "
        "another state folder"
    )
