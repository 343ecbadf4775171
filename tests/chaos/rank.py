"""A rank whose every step can be checked afterwards: python rank.py LINES CODE RANK_THAT_FAILS STRAY.

It notes its start, leaves a double-forked, setsid'd process behind if STRAY is 1, writes LINES numbered lines, half of
them through a child, and exits with CODE where it is the rank that fails, else with 0.
"""

import os
import sys
import time

LINE = "rank {rank} line {number:07d} {filler}\n"
FILLER = "." * 48


def text(rank: int, first: int, last: int) -> str:
    return "".join(LINE.format(rank=rank, number=n, filler=FILLER) for n in range(first, last))


def note(name: str) -> None:
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(fd, f"{os.getpid()}\n".encode())
    os.close(fd)


def leave_stray() -> None:
    """A process that no process group and no session ties to the job."""
    pid = os.fork()
    if pid == 0:
        os.setsid()
        if os.fork() == 0:
            note("stray")
            time.sleep(3600)
        os._exit(0)
    os.waitpid(pid, 0)


def write(rank: int, first: int, last: int) -> None:
    data = text(rank, first, last).encode()
    while data:
        data = data[os.write(1, data) :]


def main() -> int:
    lines, code, failing, stray = (int(word) for word in sys.argv[1:5])
    rank = int(os.environ["RANK"])
    note("start")
    if stray:
        leave_stray()
    middle = lines // 2
    pid = os.fork()
    if pid == 0:
        write(rank, 0, middle)
        os._exit(0)
    os.waitpid(pid, 0)
    write(rank, middle, lines)
    return code if rank == failing else 0


if __name__ == "__main__":
    sys.exit(main())
