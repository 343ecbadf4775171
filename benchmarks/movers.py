"""What moves the output of ranks, by itself: FIFOs of several sizes, one thread and two."""

import fcntl
import os
import random
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.measure import median
from benchmarks.node import BenchmarkFailed
from benchmarks.paired import interval
from benchmarks.peers import Peers
from benchmarks.report import Row
from muster.supervisors.output.splicing import Splice, Splicer

RANKS = 8
CHUNK, CHUNKS = 62_500, 400
ROUNDS = 20
#: Size of the pipes in KiB, and threads. The first is the peer of all others.
SIDES = ((128, 1), (512, 1), (1024, 1), (128, 2), (512, 2))

_WRITER = f"""
import os
body = bytes({CHUNK})
for _ in range({CHUNKS}):
    left = memoryview(body)
    while left:
        left = left[os.write(1, left):]
"""


def run(_: Peers) -> Iterator[Row]:
    """A row for the time and for the CPU time of each."""
    took: dict[tuple[int, int], list[tuple[float, float]]] = {side: [] for side in SIDES}
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as name:
        for number in range(ROUNDS + 1):
            for side in random.sample(SIDES, len(SIDES)):
                sample = _moved(Path(name), side[0] << 10, side[1])
                if number:
                    took[side].append(sample)
    what = f"{RANKS} x {CHUNK * CHUNKS / 1e6:.0f} MB by splice"
    for side in SIDES[1:]:
        for i, figure in enumerate(("time", "CPU of the mover")):
            old, new = ([sample[i] for sample in took[each]] for each in (SIDES[0], side))
            found = interval(old, new)
            note = f"of pairs {found.ratio:.2f} ({found.low:.2f}-{found.high:.2f})" if found is not None else ""
            threads = "two threads" if side[1] > 1 else "one thread"
            yield Row(
                f"{what}, {side[0]} KiB, {threads}: {figure}", median(new) * 1e3, "ms", "128 KiB, one thread",
                median(old) * 1e3, note=note,
            )  # fmt: skip


def _moved(folder: Path, size: int, threads: int) -> tuple[float, float]:
    """Seconds, and CPU seconds of what moves. Raises BenchmarkFailed where bytes are missing."""
    reads: list[int] = []
    writers: list[subprocess.Popen[bytes]] = []
    files = [os.open(folder / str(rank), os.O_WRONLY | os.O_CREAT | os.O_TRUNC) for rank in range(RANKS)]
    splicer = Splicer()
    begin, cpu = time.perf_counter(), 0.0
    try:
        for _ in range(RANKS):
            read, write = os.pipe()
            reads.append(read)
            fcntl.fcntl(read, fcntl.F_SETPIPE_SZ, size)
            writers.append(subprocess.Popen([sys.executable, "-I", "-S", "-c", _WRITER], stdout=write))
            os.close(write)
        before = time.process_time()
        _move(reads, files, size, splicer if threads > 1 else None)
        cpu = time.process_time() - before
    finally:
        splicer.end()
        for fd in [*reads, *files]:
            os.close(fd)
        for writer in writers:
            writer.wait()
    seconds = time.perf_counter() - begin
    if any((folder / str(rank)).stat().st_size != CHUNK * CHUNKS for rank in range(RANKS)):
        raise BenchmarkFailed("a file has not all that was written")
    return seconds, cpu


def _move(reads: Sequence[int], files: Sequence[int], size: int, splicer: Splicer | None) -> None:
    """To the end of all pipes."""
    epoll = select.epoll()
    targets = dict(zip(reads, files, strict=True))
    places = dict.fromkeys(reads, 0)
    for read in reads:
        epoll.register(read, select.EPOLLIN)
    while places:
        splices = [Splice(fd, targets[fd], places[fd], size, 0, due=False) for fd, _ in epoll.poll()]
        if splicer is not None:
            splicer.run(splices)
        else:
            for splice in splices:
                splice.run()
        for splice in splices:
            if splice.error is not None and not isinstance(splice.error, BlockingIOError):
                raise splice.error
            places[splice.source] += splice.moved
            if not splice.moved and splice.error is None:
                epoll.unregister(splice.source)
                del places[splice.source]
    epoll.close()
