"""Eight ranks that write 100 MB each: into their files through muster, through one `tee` each, and by themselves."""

import hashlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import node
from benchmarks.measure import cpu_seconds, median
from benchmarks.node import BenchmarkFailed, until
from benchmarks.peers import Peers
from benchmarks.report import Row
from muster.v1 import job_pb2

RANKS = 8
CHUNK, CHUNKS = 62_500, 1600
ROUNDS = 7
_LOOK_S = 0.005

# No two chunks are the same: one that is missing, doubled or in another's place changes the digest.
_WRITER = f"""
import os
body = bytes(range(256)) * {CHUNK // 256 + 1}
for i in range({CHUNKS}):
    left = memoryview(b"%08d%08d" % (int(os.environ["RANK"]), i) + body[:{CHUNK - 16}])
    while left:
        left = left[os.write(1, left):]
"""
_COMMAND = (sys.executable, "-I", "-S", "-c", _WRITER)


@dataclass(frozen=True, slots=True)
class Sample:
    """One round of one side: seconds in all, CPU seconds of what moves the bytes, and of everything."""

    seconds: float
    mover_cpu: float
    all_cpu: float


def run(peers: Peers) -> Iterator[Row]:
    """Rows for the time and for the CPU time."""
    expected = [_digest(rank) for rank in range(RANKS)]
    sides: dict[str, list[Sample]] = {"muster": [], "tee": [], "straight": []}
    with node.running() as here, tempfile.TemporaryDirectory(prefix="muster-bench-") as name:
        folder = Path(name)
        order = ["muster", "tee", "straight"]
        for number in range(ROUNDS + 1):
            for side in order:
                sample = _muster(here, expected) if side == "muster" else _peer(folder, expected, tee=side == "tee")
                if number:  # the first round also finds the memory for the page cache
                    sides[side].append(sample)
            order.append(order.pop(0))  # the first measurement finds the least memory free
    megabytes = RANKS * CHUNK * CHUNKS / 1e6
    seconds = {side: median(sample.seconds for sample in samples) for side, samples in sides.items()}
    cpu = {side: median(sample.mover_cpu for sample in samples) * 1e3 for side, samples in sides.items()}
    everything = {side: median(sample.all_cpu for sample in samples) for side, samples in sides.items()}
    what = f"{RANKS} x {CHUNK * CHUNKS / 1e6:.0f} MB into rank files"
    yield Row(
        what, seconds["muster"], "s", "a tee each", seconds["tee"], "at most 0.6 of tee",
        seconds["muster"] <= 0.6 * seconds["tee"],
        f"{megabytes / seconds['muster']:.0f} MB/s; fastest of {ROUNDS} rounds: muster {_best(sides['muster']):.2f} s, "
        f"tee {_best(sides['tee']):.2f} s; bytes identical in every round",
    )  # fmt: skip
    yield Row(what, seconds["muster"], "s", "no tee, straight into files", seconds["straight"])
    yield Row(
        f"{what}: CPU of the supervisor", cpu["muster"], "ms", "CPU of the tees", cpu["tee"], "less than the tees",
        cpu["muster"] < cpu["tee"],
        f"CPU of ranks and movers together: muster {everything['muster']:.2f} s, tee {everything['tee']:.2f} s, "
        f"straight {everything['straight']:.2f} s",
    )  # fmt: skip


def _best(samples: Sequence[Sample]) -> float:
    """Seconds of the fastest round."""
    return min(sample.seconds for sample in samples)


def _muster(here: node.Node, expected: Sequence[str]) -> Sample:
    begin = time.perf_counter()
    job_id = here.start(here.spec(_COMMAND, RANKS))
    supervisor = here.until_running(job_id).supervisor_pid
    ended: list[float] = []
    waiting = here.jobs.Wait.future(job_pb2.WaitRequest(job_id=job_id), timeout=node.CALL_S)
    waiting.add_done_callback(lambda _: ended.append(time.perf_counter()))
    cpu = 0.0
    while True:  # to the last reading before it is gone
        try:
            cpu = max(cpu, cpu_seconds(supervisor))
        except (FileNotFoundError, ProcessLookupError):
            break
        time.sleep(_LOOK_S)
    job = here.wait(job_id)
    until(lambda: ended, node.ANSWER_S, f"Wait for job {job_id} returns")
    _compare([Path(rank.log_path) for rank in job.ranks], expected, "muster")
    here.delete(job_id)
    return Sample(
        ended[0] - begin, cpu, cpu + sum(r.usage.cpu_user_seconds + r.usage.cpu_system_seconds for r in job.ranks)
    )


def _peer(folder: Path, expected: Sequence[str], *, tee: bool) -> Sample:
    """The same writers, each with a pipe to a `tee` or with the file itself as its output."""
    files = [folder / f"rank-{rank}.txt" for rank in range(RANKS)]
    writers: list[subprocess.Popen[bytes]] = []
    tees: list[subprocess.Popen[bytes]] = []
    begin = time.perf_counter()
    for rank, file in enumerate(files):
        env = os.environ | {"RANK": str(rank)}
        if not tee:
            with open(file, "wb") as out:
                writers.append(subprocess.Popen(_COMMAND, env=env, stdin=subprocess.DEVNULL, stdout=out))
            continue
        writer = subprocess.Popen(_COMMAND, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        tees.append(subprocess.Popen(["tee", str(file)], stdin=writer.stdout, stdout=subprocess.DEVNULL))
        assert writer.stdout is not None
        writer.stdout.close()
        writers.append(writer)
    writer_cpu = sum(_wait_cpu(process) for process in writers)
    tee_cpu = sum(_wait_cpu(process) for process in tees)
    seconds = time.perf_counter() - begin
    _compare(files, expected, "tee" if tee else "straight")
    for file in files:
        file.unlink()
    return Sample(seconds, tee_cpu, writer_cpu + tee_cpu)


def _wait_cpu(process: "subprocess.Popen[bytes]") -> float:
    """Waits for a process, and returns its CPU seconds. Raises BenchmarkFailed where it does not end with 0."""
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise BenchmarkFailed(f"{process.args!r:.60} ended with {process.returncode}")
    return used.ru_utime + used.ru_stime


def _digest(rank: int) -> str:
    """Of what a rank writes."""
    digest = hashlib.sha256()
    body = (bytes(range(256)) * (CHUNK // 256 + 1))[: CHUNK - 16]
    for i in range(CHUNKS):
        digest.update(b"%08d%08d" % (rank, i) + body)
    return digest.hexdigest()


def _compare(files: Sequence[Path], expected: Sequence[str], side: str) -> None:
    """Raises BenchmarkFailed for a file that is not what its rank wrote."""
    for rank, (file, digest) in enumerate(zip(files, expected, strict=True)):
        with open(file, "rb") as opened:
            if hashlib.file_digest(opened, "sha256").hexdigest() != digest:
                raise BenchmarkFailed(f"{side}: the file of rank {rank} is not what the rank wrote")
