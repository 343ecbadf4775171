"""Files that a command installs into the system: all of them or none. Changes made by hand are kept.

A record beside them holds their digests, so that any version of muster can tell an installed file from a changed or
foreign one.
"""

import fcntl
import hashlib
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from muster.agent.cli.exits import CommandFailed, Exit
from muster.agent.cli.printing import note
from muster.probes import typed

#: A file's content, or the target of a link.
Content = bytes | Path


class _Record(msgspec.Struct):
    """Digests by path: two of a file that is being replaced."""

    files: dict[str, list[str]]


@contextmanager
def alone(record: Path) -> Iterator["Installed"]:
    """The installed files, locked against other commands. Raises CommandFailed if another has the lock, OSError."""
    folder = record.parent
    folder.mkdir(parents=True, exist_ok=True)
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield Installed(record)
    except BlockingIOError:
        raise CommandFailed(
            f"{folder}: another `muster service` command is running: wait for its end", Exit.REFUSED
        ) from None
    finally:
        with suppress(OSError):  # it is not empty
            folder.rmdir()
        os.close(fd)


class Installed:
    """The files in the record. Each change can be undone until the command ends."""

    def __init__(self, record: Path) -> None:
        """Raises CommandFailed if the record cannot be read."""
        self._record = record
        self._before: list[tuple[Path, Content | None]] = []
        try:
            found = typed.decode(record.read_bytes(), _Record).files
            self._ours = {Path(path): digests for path, digests in found.items()}
        except FileNotFoundError:
            self._ours = {}
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            raise CommandFailed(
                f"cannot read {record}, the record of installed files: {error}: remove it; muster then leaves the "
                "installed files alone, as files of others"
            ) from None

    def __contains__(self, path: Path) -> bool:
        return path in self._ours

    def __bool__(self) -> bool:
        return bool(self._ours)

    def put(self, wanted: Mapping[Path, Content], *, force: bool) -> list[Path]:
        """Makes these the installed files, and returns the changes.

        A file that is neither as recorded nor as wanted is left as it is; with `force` it is put aside. Raises OSError.
        """
        mine = {path: content for path, content in wanted.items() if force or self._may_replace(path, content)}
        new = {path: [_digest(content)] for path, content in mine.items()}
        # Record both digests of a file during its replacement: after an interruption it has either content.
        both = self._ours | {path: [*dict.fromkeys([*self._ours.get(path, ()), *new[path]])] for path in new}
        self._save(both)
        changed = [path for path, content in mine.items() if self._replace(path, content)]
        changed += [path for path in both if path not in wanted and self._take(path)]
        self._save({path: digests for path, digests in both.items() if path in wanted} | new)
        return changed

    def add(self, path: Path, content: Content, mode: int) -> bool:
        """Writes it unless the path exists, without recording it: it belongs to the user. Raises OSError."""
        if _there(path) is not None:
            return False
        self._before.append((path, None))
        _write(path, content, mode)
        return True

    def remove(self) -> None:
        """Removes all recorded files. Raises OSError."""
        for path in [*self._ours]:
            self._take(path)
        self._ours = {}
        self._record.unlink(missing_ok=True)

    def take_back(self) -> None:
        """Undoes the changes, the last first. Raises OSError."""
        while self._before:
            path, content = self._before.pop()
            if content is None:
                path.unlink(missing_ok=True)
            else:
                _write(path, content)

    def _is_ours(self, path: Path, there: Content) -> bool:
        return _digest(there) in self._ours.get(path, ())

    def _may_replace(self, path: Path, wanted: Content) -> bool:
        there = _there(path)
        if there is None or there == wanted or self._is_ours(path, there):
            return True
        what = "was changed by hand" if path in self._ours else "existed before"
        note(f"{path} {what}: leaving it unchanged; --force replaces it and keeps a copy")
        return False

    def _replace(self, path: Path, wanted: Content) -> bool:
        there = _there(path)
        if there == wanted:
            return False
        self._before.append((path, there))
        if there is not None and not self._is_ours(path, there):
            self._put_aside(path)
        _write(path, wanted)
        return True

    def _take(self, path: Path) -> bool:
        there = _there(path)
        if there is None:
            return False
        self._before.append((path, there))
        if self._is_ours(path, there):
            path.unlink()
        else:
            self._put_aside(path)
        note(f"removed {path}")
        return True

    def _put_aside(self, path: Path) -> None:
        aside = path.with_name(f"{path.name}.by-hand-{time.strftime('%Y%m%dT%H%M%S')}")
        path.rename(aside)
        note(f"{path} was not as muster installed it: kept as {aside}")

    def _save(self, ours: dict[Path, list[str]]) -> None:
        record = msgspec.json.encode(_Record({str(path): digests for path, digests in ours.items()}))
        text = msgspec.json.format(record) + b"\n"
        there = _there(self._record)
        if there != text:
            self._before.append((self._record, there))
            _write(self._record, text)
        self._ours = ours


def _there(path: Path) -> Content | None:
    """The content; None if the path does not exist. Raises OSError if it is neither a file nor a link."""
    try:
        return path.readlink() if path.is_symlink() else path.read_bytes()
    except FileNotFoundError:
        return None


def _digest(content: Content) -> str:
    return f"-> {content}" if isinstance(content, Path) else hashlib.sha256(content).hexdigest()


def _write(path: Path, content: Content, mode: int = 0o644) -> None:
    """Replaces the file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)
    if isinstance(content, Path):
        new.symlink_to(content)
    else:
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    new.rename(path)
