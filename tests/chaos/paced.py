"""A rank that writes until it is told to finish, and keeps account of it where no fault of a chaos point reaches.

python paced.py NOTES PAUSE_MS CODE STUBBORN STRAY. NOTES is a folder of the test's own. There the rank keeps the number
of bytes that it has written (`rank-N`, see `Account`), notes its pid (`start-N`) and that of a double-forked, setsid'd
process if STRAY is 1 (`stray-N`), and looks whether it is to finish (`finish`). STUBBORN: it ignores SIGTERM.
"""

import mmap
import os
import signal
import sys
import time
from pathlib import Path

LINE = "rank {rank:02d} line {number:08d} {filler}\n"
FILLER = "." * 72
SIZE = len(LINE.format(rank=0, number=0, filler=FILLER))
#: Lines of one write: less than PIPE_BUF, so that a write is in the FIFO as a whole or not at all.
BLOCK = 20
#: From here on it writes a line now and then only: the test's disk is small.
FAST_BYTES = 3_000_000
LAST_LINES = 50
#: No test wants it for longer.
MOST_S = 240.0
#: Exit code of a rank that nobody told to finish.
FORGOTTEN = 99


def text(rank: int, first: int, last: int) -> bytes:
    return "".join(LINE.format(rank=rank, number=n, filler=FILLER) for n in range(first, last)).encode()


class Account:
    """What a rank has written: bytes before and behind the write that it is in. Outlives it however it ends."""

    def __init__(self, notes: Path, rank: int) -> None:
        fd = os.open(notes / f"rank-{rank}", os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(fd, 4096)
        self._map = memoryview(mmap.mmap(fd, 4096)).cast("Q")
        os.close(fd)

    @property
    def least(self) -> int:
        return self._map[0]

    @property
    def most(self) -> int:
        return self._map[1]

    def begin(self, size: int) -> None:
        self._map[1] += size

    def end(self, size: int) -> None:
        self._map[0] += size


def note(path: Path) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(fd, f"{os.getpid()}\n".encode())
    os.close(fd)


def leave_stray(path: Path) -> None:
    """A process that no process group and no session ties to the job."""
    pid = os.fork()
    if pid == 0:
        os.setsid()
        if os.fork() == 0:
            note(path)
            time.sleep(MOST_S)
        os._exit(0)
    os.waitpid(pid, 0)


def main() -> int:
    notes = Path(sys.argv[1])
    pause_ms, code, stubborn, stray = (int(word) for word in sys.argv[2:6])
    rank = int(os.environ["RANK"])
    account = Account(notes, rank)
    if stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    note(notes / f"start-{rank}")
    if stray:
        leave_stray(notes / f"stray-{rank}")
    finish = notes / "finish"
    number = 0

    def write(lines: int) -> None:
        nonlocal number
        data = text(rank, number, number + lines)
        account.begin(len(data))
        if os.write(1, data) != len(data):
            os._exit(98)
        account.end(len(data))
        number += lines

    until = time.monotonic() + MOST_S
    while not finish.exists():
        if time.monotonic() > until:
            return FORGOTTEN
        fast = number * SIZE < FAST_BYTES
        write(BLOCK if fast else 1)
        time.sleep(pause_ms / 1000 if fast else 0.05)
    for _ in range(LAST_LINES):
        write(1)
    return code


if __name__ == "__main__":
    sys.exit(main())
