"""What may go wrong in a copy: what another try may mend, and what it may not."""

import errno
from collections.abc import Iterable

from muster.supervisors.supervision_errors import remedy

#: Of a local file system: no other try helps.
_LOCAL = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EFBIG, errno.ENAMETOOLONG}
)
#: Answers of HTTP that may be other ones in a moment.
_PASSES = frozenset({408, 425, 429})
_ROOM = (errno.ENOSPC, errno.EDQUOT)


class NotCopyable(Exception):
    """Raised when no other try can help: the text says what is wrong, and what to do about it."""


class NoRoomHere(NotCopyable):
    """Raised when a file system of this node is full, or would be."""


class TryAgain(Exception):
    """Raised when another try may help."""


class FileChanged(TryAgain):
    """Raised when a file changed while it was copied."""


def of_local(error: OSError, path: str) -> Exception:
    """What an error of this node's file system means for the copy of this file."""
    text = f"{path}: {str(error.strerror or error).lower()}"
    if error.errno in (errno.EACCES, errno.EPERM):
        text += ": the job's user may not access it"
    elif what := remedy(error):
        text += f": {what}"
    if error.errno in _ROOM:
        return NoRoomHere(text)
    if error.errno in _LOCAL or isinstance(error, (FileNotFoundError, IsADirectoryError, NotADirectoryError)):
        return NotCopyable(text)
    return TryAgain(text)


def of_remote(error: BaseException, url: str) -> Exception:
    """What an error of another place's file system means; `url` may be shown."""
    if isinstance(error, (NotCopyable, TryAgain)):
        return error
    status = getattr(error, "status", None)
    cause = error.__cause__ or error.__context__
    if isinstance(error, FileNotFoundError) and cause is not None and not isinstance(cause, FileNotFoundError):
        status = getattr(cause, "status", None)
        if status != 404 and type(cause).__module__.startswith("aiohttp"):  # fsspec calls each failed HEAD so
            error = cause
    text = f"{url}: {_said(error)}"
    if isinstance(error, FileNotFoundError):
        return NotCopyable(f"{url}: no such file or folder")
    if isinstance(error, PermissionError) or status in (401, 403):
        return NotCopyable(f"{text}: access is refused: check staging_credentials")
    if type(error).__name__ in ("NoCredentialsError", "PartialCredentialsError"):
        return NotCopyable(f"{url}: no keys for it: give a file with them as staging_credentials")
    if isinstance(status, int) and 400 <= status < 500 and status not in _PASSES:
        return NotCopyable(text)
    if isinstance(error, (OSError, TimeoutError, EOFError)) or type(error).__module__.split(".")[0] in _NETWORK:
        return TryAgain(text)
    return NotCopyable(text)


_NETWORK = frozenset({"aiohttp", "aiobotocore", "botocore", "urllib3", "requests", "paramiko", "ftplib", "ssl"})


def _said(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    name = type(error).__name__
    return f"{name}: {lines[0][:300]}" if lines and not isinstance(error, NotCopyable) else name


class SecretMask:
    """Takes secrets out of texts."""

    def __init__(self) -> None:
        self._secrets: list[str] = []

    def add(self, values: Iterable[str]) -> None:
        """Short ones are left: they would be found in every word."""
        self._secrets = sorted({*self._secrets, *(v for v in values if len(v) > 3)}, key=len, reverse=True)

    def __call__(self, text: str) -> str:
        """The text with each secret as ***."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text
