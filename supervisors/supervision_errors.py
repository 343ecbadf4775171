"""Errors of the per-job side. Each says what went wrong with which file, value or process, and what to do about it."""

import errno
from collections.abc import Sequence
from typing import Any


class SupervisionError(Exception):
    """Base of all errors that this package raises on purpose."""


class JournalDamaged(SupervisionError):
    """Raised when a journal has a damaged record before its end. `path` and `line` say where; nothing is guessed.

    `records`: the good ones before it, as far as they were asked for.
    """

    def __init__(self, path: str, line: int, what: str, records: Sequence[dict[str, Any]] = ()) -> None:
        super().__init__(f"{path}: line {line}: {what}")
        self.records = records
        self.path = path
        self.line = line
        self.what = what


class IllegalTransition(SupervisionError):
    """Raised when a record does not fit the state that a job is in (see `states.TRANSITIONS`)."""


class ProtocolError(SupervisionError):
    """Raised when the other end of a control socket says something that this version does not understand."""


class AlreadySupervised(SupervisionError):
    """Raised when another living process holds the lock of a job."""


class NotStartable(SupervisionError):
    """Raised when a job cannot be prepared: a folder, a FIFO, a user. The message is the job's verdict."""


class Exhausted(SupervisionError):
    """Raised when a supervisor cannot go on within its limits, and its successor can."""


class Untrusted(SupervisionError, PermissionError):
    """Raised when somebody else than root and muster's own user could have put a file or folder there, or changed it.
    An OSError, so that callers report it like any other reason."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(errno.EACCES, why, path)

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"


#: What an operator can do about an errno; the one place that says so.
_REMEDIES = {
    errno.EMFILE: "raise the limit of open files (LimitNOFILE= of the service, `ulimit -n`)",
    errno.ENFILE: "raise fs.file-max: the whole node is out of open files",
    errno.ENOSPC: "make room on the file system",
    errno.EDQUOT: "raise the quota, or make room",
    errno.EROFS: "mount the file system read-write",
    errno.EIO: "check the disk: `dmesg` shows what failed",
    errno.EAGAIN: "raise the limit of processes (TasksMax= of the slice, `ulimit -u`)",
    errno.ENOMEM: "the node is out of memory",
    errno.EPERM: "choose another folder or name (the existing one is another user's, or muster may not change it)",
    errno.EACCES: "give muster's user access, or choose another folder",
}


def explain(error: OSError) -> str:
    """An error with the file that it is about, and what to do."""
    text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error)
    remedy = _REMEDIES.get(error.errno or 0)
    return f"{text}: {remedy}" if remedy else text


def remedy(error: OSError, otherwise: str = "") -> str:
    """What to do about an error; `otherwise` where it has no usual remedy."""
    return _REMEDIES.get(error.errno or 0, otherwise)
