"""What a copy reports: lines in the job's log, and the file with its progress."""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable

from muster.supervisors.model.staging_progress import StagingProgress
from muster.supervisors.staging.troubles import SecretMask

#: Seconds between two lines about how far it is.
LINE_S = 30.0


def write_line(text: str) -> None:
    """A line on stdout, without its buffer: a thread would wait for the write of another one that nobody
    reads."""
    data = text.encode("utf-8", "surrogateescape") + b"\n"
    while data:
        data = data[os.write(1, data) :]


class Reporting:
    """For several threads."""

    def __init__(self, fd: int, step: str, mask: SecretMask) -> None:
        """`fd`: the file with the progress."""
        self._fd, self._mask = fd, mask
        self._told = StagingProgress(step)
        self._lock = threading.Lock()
        self._since = self._line_at = time.monotonic()

    def say(self, text: str) -> None:
        """A line in the job's log."""
        write_line(self._mask(" ".join(text.splitlines())))

    def expect(self, sizes: Iterable[int]) -> None:
        """So many files, of so many bytes, are to be copied, too."""
        with self._lock:
            for size in sizes:
                self._told.files += 1
                self._told.size += size
        self.write()

    def begin(self, what: str) -> None:
        """One entry of the order is copied now."""
        self._since = time.monotonic()
        with self._lock:
            self._told.now = self._mask(what)
        self.say(f"{what}: begins")
        self.write()

    def done(self, what: str, files: int, size: int) -> None:
        """It is copied: so many files and bytes, with those that were there already."""
        took = time.monotonic() - self._since
        self.say(f"{what}: {files} file{'s' if files != 1 else ''}, {size} bytes in {took:.1f} s")
        self.write()

    def follow(self) -> Callable[[int], None]:
        """For one file: a function that takes at which byte it is."""
        last = 0

        def at(position: int) -> None:
            nonlocal last
            with self._lock:
                self._told.size_done += position - last
            last = position

        return at

    def file_done(self) -> None:
        """Another file is copied."""
        with self._lock:
            self._told.files_done += 1

    def found(self, beside: dict[str, str]) -> None:
        """What lies beside the boot file of the code."""
        with self._lock:
            self._told.beside = beside
        self.write()

    def retried(self, why: str, pause: float) -> None:
        """A try failed, and the next one begins in `pause` seconds."""
        with self._lock:
            self._told.retries += 1
            self._told.error = self._mask(why)
        self.say(f"{why}; trying again in {pause:.0f} s")
        self.write()

    def failed(self, why: str) -> None:
        """All is over, without success."""
        with self._lock:
            self._told.error = self._mask(" ".join(why.splitlines()))
        self.write()

    def write(self) -> None:
        """Best effort: the progress is for people."""
        with contextlib.suppress(OSError), self._lock:
            os.pwrite(self._fd, self._told.encode(), 0)
        now, told = time.monotonic(), self._told
        if now - self._line_at >= LINE_S:
            self._line_at = now
            self.say(f"{told.now}: {told.files_done} of {told.files} files, {told.size_done} of {told.size} bytes")
