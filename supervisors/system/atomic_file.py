"""Files that are replaced as a whole: a reader, or the next process after a kill, finds the old content or the new."""

import contextlib
import os
from pathlib import Path


def replace_file(path: Path, data: bytes, mode: int = 0o600, *, synced: bool = False) -> None:
    """Replaces the file by `data`. `mode`: its permissions, whatever the umask is. `synced`: the old or the new content
    also survives a crash of the node. Blocks. Raises OSError, which names the file, and leaves nothing behind."""
    new = path.with_name(f".{path.name}.new")
    try:
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
        with open(fd, "wb") as file:
            if mode != 0o600:
                os.fchmod(fd, mode)
            file.write(data)
            if synced:
                file.flush()
                os.fsync(fd)
        new.rename(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            new.unlink()
        if error.filename is None:  # a write to a descriptor knows no name
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    if synced:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Puts names of a folder onto the disk. Raises OSError."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
