"""What a rank of a scenario really does: `actors.py SCENARIO FOLDER`, started as a rank. Standard library only.

What it does next it does when the file FOLDER/1 is there, then FOLDER/2 and so on; looking for one is no IO. CPU time
is taken in small bites, so that many of them fit onto one machine.
"""

import contextlib
import ctypes
import hashlib
import itertools
import mmap
import os
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

FOLDER = Path()
RANK = int(os.environ.get("RANK", "0"))
ATTEMPT = int(os.environ.get("MUSTER_ATTEMPT", "0"))
MB = 1 << 20
#: Nobody waits that long.
FOR_EVER = 1e6


# --- how it goes on ---------------------------------------------------------------------------------------------------


def reached(stage: int) -> bool:
    """Whether it is to do the next thing."""
    return (FOLDER / str(stage)).exists()


def until(stage: int, pause_s: float = 0.1) -> Iterator[int]:
    """Counts, with a pause each, until it is to do the next thing."""
    for number in itertools.count():
        if reached(stage):
            return
        yield number
        time.sleep(pause_s)


def compute(seconds: float = 0.002) -> None:
    """Takes so many seconds of CPU time, in memory."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        hashlib.sha256(bytes(4096)).digest()


def train(stage: int) -> None:
    """A bit of everything that training does on a host, without any IO."""
    for _ in until(stage):
        compute()


def daemon_thread(target: Callable[[], object]) -> None:
    """Runs it beside the main thread, for ever."""
    threading.Thread(target=target, daemon=True).start()


def child(*code: str) -> "subprocess.Popen[bytes]":
    """A child of the rank that runs these lines."""
    begin = "import os, signal, sys, time"
    return subprocess.Popen([sys.executable, "-S", "-E", "-c", "\n".join((begin, *code))])


def say(text: str) -> None:
    """A line into the log."""
    os.write(1, text.encode() + b"\n")


# --- healthy ----------------------------------------------------------------------------------------------------------


def h1() -> None:
    for number in until(1):
        compute()
        if number % 200 == 0:
            say("x" * 79)


def h2() -> None:
    for _ in until(1):
        compute()
        say("x" * 1023)


def h3() -> None:
    """Two loaders read a file over and over."""
    file = FOLDER / "data"
    file.write_bytes(bytes(MB // 2))
    reads = f"while True:\n open({str(file)!r}, 'rb').read(); time.sleep(0.2)"
    child(reads)
    child(reads)
    train(1)


def h4() -> None:
    (FOLDER / f"map-{RANK}").write_bytes(bytes(MB))
    with open(FOLDER / f"map-{RANK}", "r+b") as file, mmap.mmap(file.fileno(), MB) as memory:
        for number in until(1):
            memory[(number * 4096) % MB] = number % 256
            compute()


def h5() -> None:
    """Rank 0 saves; its peers wait for it on their cards."""
    train(1)
    with tempfile.TemporaryFile(dir=FOLDER) as file:
        for _ in until(2):
            if RANK == 0:
                file.seek(0)
                file.write(bytes(MB // 4))
                file.flush()
    train(3)


def h6() -> None:
    """A child writes a checkpoint, the parent computes."""
    train(1)
    writes = f"file = open({str(FOLDER / 'checkpoint')!r}, 'wb', 0)\nwhile True:\n"
    writer = child(writes + " file.seek(0); file.write(bytes(1 << 18)); time.sleep(0.05)")
    train(2)
    writer.kill()
    writer.wait()
    train(3)


def h7() -> None:
    """Writes what is a gibibyte in this time, cannot leave the kernel for a while, and goes on."""
    train(1)
    if RANK == 0:
        with tempfile.TemporaryFile(dir=FOLDER) as file:
            for _ in range(12):
                file.write(bytes(3 * MB))
                file.flush()
                file.seek(0)
        stuck_in_kernel(FOLDER / "fifo")
    train(3)


def h8() -> None:
    """Nothing but CPU time, for a while."""
    train(1)
    spin_on_cpu(2)
    train(3)


def h9() -> None:
    """Compiles: children that come and go, and write a little."""
    for number in until(1, 0.1):
        pid = os.fork()
        if not pid:
            compute(0.06)
            (FOLDER / f"object-{number % 8}").write_bytes(bytes(2048))
            os._exit(0)
        os.waitpid(pid, 0)
    train(2)


def h10() -> None:
    """One process computes before any card is used, the others wait for it."""
    if RANK == 0:
        spin_on_cpu(1)
    else:
        for _ in until(1):
            pass
    train(2)


def h11() -> None:
    """Rank 0 reads and computes, its peers wait for it on their cards."""
    (FOLDER / f"text-{RANK}").write_bytes(bytes(MB // 8))
    for _ in until(1):
        if RANK == 0:
            compute(0.02)
            (FOLDER / "text-0").read_bytes()
    train(2)


def h13() -> None:
    time.sleep(FOR_EVER)


def h15() -> None:
    """Works, and sleeps, and works again."""
    for stage in itertools.count(1):
        if stage % 2:
            train(stage)
        else:
            for _ in until(stage):
                pass


def h16() -> None:
    """The first attempt breaks down, the second one goes on."""
    train(1)
    if ATTEMPT == 0:
        sys.exit(1)
    train(2)


# --- not healthy ------------------------------------------------------------------------------------------------------


def in_collective() -> None:
    """The main thread waits for ever, others yield, as NCCL's do."""

    def yields() -> None:
        while True:
            for _ in range(200):
                os.sched_yield()
            time.sleep(0.02)

    daemon_thread(yields)
    daemon_thread(yields)
    deadlock()


def deadlock() -> None:
    """A lock that is taken twice; until there is a third stage, which sets it free."""
    lock = threading.Lock()
    lock.acquire()

    def frees() -> None:
        for _ in until(2):
            pass
        lock.release()

    daemon_thread(frees)
    lock.acquire()


def spin_on_cpu(stage: int) -> None:
    while not reached(stage):
        compute(0.02)
        time.sleep(0.02)


def stuck_in_kernel(fifo: Path) -> None:
    """State D, which needs no privilege: the parent of a spawn waits in the kernel, and the child for a FIFO's writer.
    It goes on as soon as somebody opens it for writing."""
    actions = [(os.POSIX_SPAWN_OPEN, 0, str(fifo), os.O_RDONLY, 0)]
    pid = os.posix_spawn("/bin/true", ["true"], {}, file_actions=actions)
    os.waitpid(pid, 0)


def u1() -> None:
    train(1)
    in_collective()


def u2() -> None:
    """With a child that does IO, as an uploader of statistics."""
    child(
        "zero, null = open('/dev/zero', 'rb', 0), open('/dev/null', 'wb', 0)",
        "while True:\n zero.read(360); null.write(bytes(17)); time.sleep(0.2)",
    )
    u1()


def u3() -> None:
    """The rank's parent serves somebody once a second."""
    if os.fork():
        ours, theirs = socket.socketpair()
        for _ in until(9, 1.0):
            os.write(ours.fileno(), bytes(500))
            os.read(theirs.fileno(), 500)
    u1()


def u4() -> None:
    """A thread inside watches the process."""

    def watches() -> None:
        while True:
            Path("/proc/self/stat").read_bytes()[:300]
            time.sleep(0.6)

    daemon_thread(watches)
    u1()


def u5() -> None:
    """Waits for a loader that sleeps."""
    child("time.sleep(1e6)")
    train(1)
    empty: queue.Queue[int] = queue.Queue()
    while True:
        with contextlib.suppress(queue.Empty):
            empty.get(timeout=0.5)


def u6() -> None:
    train(1)
    deadlock()
    train(3)


def u7() -> None:
    """Holds the interpreter's lock."""
    train(1)
    ctypes.PyDLL(None).sleep(1_000_000)


def u8() -> None:
    train(1)
    if RANK == 0:
        stuck_in_kernel(FOLDER / "fifo")
    deadlock()


def u9() -> None:
    """One rank is stopped, its peers wait on their cards."""
    train(1)
    if RANK == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    in_collective()


def u10() -> None:
    """One rank ends, its peers wait on their cards."""
    train(1)
    if RANK == 1:
        sys.exit(0)
    in_collective()


def u13() -> None:
    """Tries and tries again, and says so."""
    train(1)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        where = free.getsockname()
    for number in until(9, 0.2):
        try:
            socket.create_connection(where, timeout=1).close()
        except OSError as error:
            say(f"attempt {number}: {error}")


def u14() -> None:
    train(1)
    if RANK == 0:
        spin_on_cpu(9)
    deadlock()


def u18() -> None:
    """Under a wrapper, whose other child shows the log."""
    log = FOLDER / "train.log"
    log.touch()
    if pid := os.fork():
        subprocess.Popen(["tail", "-F", str(log)])
        os.waitpid(pid, 0)
    u1()


ACTORS: dict[str, Callable[[], None]] = {
    **{f.__name__.upper(): f for f in (h1, h2, h3, h4, h5, h6, h7, h8, h9, h10, h11, h13, h15, h16)},
    **{f.__name__.upper(): f for f in (u1, u2, u3, u4, u5, u6, u7, u8, u9, u10, u13, u14, u18)},
    # What the cards do makes the difference.
    "H14": lambda: train(9),
    "U11": u6,
    "U12": u1,
    "U15": lambda: train(9),
    "U16": u6,
    "U17": u6,
}


if __name__ == "__main__":
    FOLDER = Path(sys.argv[2])
    ACTORS[sys.argv[1]]()
    signal.pause()
