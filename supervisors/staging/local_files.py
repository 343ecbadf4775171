"""Files of this node: what is copied from here, and what is copied to here."""

import contextlib
import fcntl
import hashlib
import os
import stat
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from muster.supervisors.staging.staged_file import StagedFile
from muster.supervisors.staging.troubles import FileChanged, NoRoomHere, NotCopyable, TryAgain, of_local

BLOCK = 4 << 20


class Source(Protocol):
    """Where files are copied from. What fails raises NotCopyable, TryAgain."""

    shown: str
    #: What a single file is called.
    name: str
    is_folder: bool

    def items(self, say: Callable[[str], None]) -> list[StagedFile]:
        """All files; `say` gets what is left out."""

    def look(self, item: StagedFile) -> StagedFile:
        """The same file as it is now."""

    def has_ranges(self, item: StagedFile) -> bool:
        """Whether it can be read from the middle on."""

    def read(self, item: StagedFile, offset: int) -> Iterator[bytes]:
        """Its content from there on."""


class LocalSource:
    """A file or a folder of this node."""

    def __init__(self, path: str) -> None:
        """Raises NotCopyable, TryAgain."""
        self.path = self.shown = path.rstrip("/") or "/"
        self.name = os.path.basename(self.path)
        try:
            mode = os.stat(path).st_mode
        except OSError as error:
            raise of_local(error, path) from None
        self.is_folder = stat.S_ISDIR(mode)
        if not (self.is_folder or stat.S_ISREG(mode)):
            raise NotCopyable(f"{path}: is neither a file nor a folder")

    def items(self, say: Callable[[str], None]) -> list[StagedFile]:
        """See Source. Links to files are followed, and links to folders left out: they may lead anywhere."""
        if not self.is_folder:
            return [self._item("", self.path)]
        found: list[StagedFile] = []
        folders = [""]
        while folders:
            folder = folders.pop()
            try:
                entries = sorted(os.scandir(os.path.join(self.path, folder)), key=lambda entry: entry.name)
            except OSError as error:
                raise of_local(error, os.path.join(self.path, folder)) from None
            for entry in entries:
                name = os.path.join(folder, entry.name)
                if entry.is_dir(follow_symlinks=False):
                    folders.append(name)
                elif entry.is_file():
                    found.append(self._item(name, entry.path))
                else:
                    say(f"{entry.path}: is left out: it is neither a file nor a folder, but a link, say")
        return found

    def look(self, item: StagedFile) -> StagedFile:
        """See Source."""
        return self._item(item.name, item.place)

    def has_ranges(self, item: StagedFile) -> bool:
        """See Source."""
        return True

    def read(self, item: StagedFile, offset: int) -> Iterator[bytes]:
        """See Source."""
        try:
            with open(item.place, "rb", buffering=0) as file:
                file.seek(offset)
                while block := file.read(BLOCK):
                    yield block
        except OSError as error:
            raise of_local(error, item.place) from None

    def _item(self, name: str, place: str) -> StagedFile:
        try:
            found = os.stat(place)
        except OSError as error:
            raise of_local(error, place) from None
        return StagedFile(name, place, found.st_size, found.st_mtime_ns / 1e9, mode=stat.S_IMODE(found.st_mode))


class LocalSink:
    """A place on this node that files are copied to. Each appears under its name once it is whole; until then it is
    beside that as `.NAME.*.part`, from which another copy of the same content goes on."""

    def __init__(self, path: str, source: Source) -> None:
        """A single file becomes `path`, or gets into it where that is a folder, or ends with /."""
        into = source.is_folder or path.endswith("/") or os.path.isdir(path)
        folder = path.rstrip("/") or "/"
        self.shown = path
        self._folder = folder if into else os.path.dirname(folder) or "/"
        self._name = "" if source.is_folder else source.name if into else os.path.basename(folder)
        self._made: list[tuple[str, bool]] = []
        self._parts: set[str] = set()
        self._lock = threading.Lock()
        self._odd: dict[str, str] = {}

    def target(self, item: StagedFile) -> str:
        """The path that a file gets."""
        return os.path.join(self._folder, item.name or self._name)

    def prepare(self, items: Iterable[StagedFile]) -> tuple[int, int, str]:
        """Raises NotCopyable where the job's user may not write there. Returns the file system (its device number), the
        bytes that are to come, and a path of it."""
        there = self._folder
        while not os.path.lexists(there):
            there = os.path.dirname(there)
        if not os.path.isdir(there):
            raise NotCopyable(f"{there}: is not a folder: cannot make {self.shown} in it")
        if not os.access(there, os.W_OK | os.X_OK, effective_ids=True):
            name = os.environ.get("USER") or str(os.geteuid())
            raise NotCopyable(
                f"{self.shown}: user {name} may not write into {there}: give another path, or let the user write there"
            )
        wanted = 0
        for item in items:
            target = self.target(item)
            if os.path.isdir(target):
                raise NotCopyable(f"{target}: is a folder, but a file is to be copied there: give another path")
            if not self.has(item):
                wanted += max(0, (item.size or 0) - _size(self._part(item)))
        return os.stat(there).st_dev, wanted, there

    def has(self, item: StagedFile) -> bool:
        """Whether this content is there: by size and time, or by checksum where the time is not known."""
        target = self.target(item)
        try:
            found = os.stat(target)
        except OSError:
            return False
        if not stat.S_ISREG(found.st_mode) or item.size is None or found.st_size != item.size:
            return False
        if item.mtime:
            return abs(found.st_mtime - item.mtime) < 0.001
        return bool(item.md5) and md5_of(target) == item.md5

    def write(self, item: StagedFile, source: Source, at: Callable[[int], None]) -> None:
        """Copies one file; `at` gets how far it is, in bytes. Raises NotCopyable, TryAgain."""
        target, part = self.target(item), self._part(item)
        try:
            self._make_folders(os.path.dirname(target))
            if not os.path.lexists(part):
                self._parts.add(part)
            fd = os.open(part, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
            with open(fd, "r+b", buffering=0) as file:
                self._fill(file.fileno(), item, source, at)
                self._check(file.fileno(), item, source, part)
                if item.mode:
                    os.fchmod(file.fileno(), item.mode & ~_umask())
                if item.mtime:
                    os.utime(file.fileno(), (item.mtime, item.mtime))
                self._put(part, target)
        except OSError as error:
            found = of_local(error, target)
            if isinstance(found, NotCopyable):
                self._remove(part)
            raise found from None
        except (NotCopyable, FileChanged):
            self._remove(part)
            raise

    def undo(self) -> None:
        """Removes the files and folders that this copy has made, and that were not there before. Best effort."""
        self.give_up()
        for path, is_folder in reversed(self._made):
            with contextlib.suppress(OSError):
                (os.rmdir if is_folder else os.unlink)(path)

    def give_up(self, _say: Callable[[str], object] = print) -> None:
        """Nobody goes on with what this copy has begun: removes it, where it was not there before. Best effort."""
        for part in list(self._parts):
            self._remove(part)

    def _fill(self, fd: int, item: StagedFile, source: Source, at: Callable[[int], None]) -> None:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise TryAgain(f"{self.target(item)}: another process copies the same at this moment") from None
        offset = os.fstat(fd).st_size
        if not item.is_known or not source.has_ranges(item) or offset > (item.size or 0):
            os.ftruncate(fd, 0)
            offset = 0
        at(offset)
        if offset and offset == item.size:
            return
        os.lseek(fd, offset, os.SEEK_SET)
        for block in source.read(item, offset):
            rest = memoryview(block)
            while rest:
                rest = rest[os.write(fd, rest) :]
            offset += len(block)
            at(offset)
            if item.size is not None and offset > item.size:
                break

    def _check(self, fd: int, item: StagedFile, source: Source, part: str) -> None:
        """Raises FileChanged, TryAgain where what was copied is not what is there."""
        size, now = os.fstat(fd).st_size, source.look(item)
        if now.version != item.version:
            raise FileChanged(f"{source.shown}: {item.name or 'it'} changed while it was copied")
        if item.size is not None and size != item.size:
            raise TryAgain(f"{source.shown}: {item.name or 'it'} broke off after {size} of {item.size} bytes")
        if not item.md5 or (found := md5_of(part)) == item.md5:
            return
        # Some servers have tags that look like a checksum and are none: two copies that are alike are whole.
        with self._lock:
            alike = self._odd.get(part) == found
            self._odd[part] = found
        if not alike:
            os.ftruncate(fd, 0)
            raise TryAgain(f"{source.shown}: {item.name or 'it'} has the checksum {found}, not {item.md5}")

    def _part(self, item: StagedFile) -> str:
        folder, name = os.path.split(self.target(item))
        told = repr((item.place, item.version)).encode("utf-8", "surrogateescape")
        return os.path.join(folder, f".{name[:180]}.{hashlib.sha256(told).hexdigest()[:12]}.part")

    def _put(self, part: str, target: str) -> None:
        with self._lock:
            if not os.path.lexists(target):
                self._made.append((target, False))
            os.replace(part, target)

    def _make_folders(self, folder: str) -> None:
        missing = []
        while not os.path.isdir(folder):
            missing.append(folder)
            folder = os.path.dirname(folder)
        for path in reversed(missing):
            with contextlib.suppress(FileExistsError), self._lock:
                os.mkdir(path)
                self._made.append((path, True))

    def _remove(self, part: str) -> None:
        with contextlib.suppress(OSError):
            os.unlink(part)


def refuse_without_room(wanted: dict[int, int], places: dict[int, str]) -> None:
    """Raises NoRoomHere where a file system, by its number, has not so many bytes for this user."""
    for device, size in wanted.items():
        found = os.statvfs(places[device])
        free = found.f_bavail * found.f_frsize
        if size > free:
            raise NoRoomHere(
                f"no room for {size} bytes at {places[device]}, where {free} are free: make room, or give another path"
            )


def md5_of(path: str) -> str:
    """Hexadecimal. Raises OSError."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _size(path: str) -> int:
    try:
        return os.lstat(path).st_size
    except OSError:
        return 0


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
