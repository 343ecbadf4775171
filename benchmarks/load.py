"""Many ranks, many jobs, many followers: nothing fails, and a call is answered as if nothing were going on."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from benchmarks import node
from benchmarks.measure import (
    cpu_seconds,
    lag_of,
    loop_lags,
    main_thread_cpu_seconds,
    main_thread_waits_seconds,
    peak_rss_mb,
    percentile,
    pss_mb,
)
from benchmarks.node import BenchmarkFailed
from benchmarks.peers import Peers, time_command
from benchmarks.prober import Probed, Prober
from benchmarks.report import Row
from muster.v1 import event_pb2, job_pb2, log_pb2

RANKS = 256
JOBS, JOB_RANKS = 64, 8
FOLLOWERS = 200
MB_PER_S = 100
FOLLOW_S = 5.0
RESUMPTIONS = 1000
BUDGET_MS = 50.0
#: Seconds of calls to a daemon that does nothing else.
IDLE_S = 3.0
_FOLLOWERS_LIMIT_S = 120.0
#: A start of 256 ranks is over after a second, with some 50 calls beside it: of so few, the worst would be the p99.
_ROUNDS = 5

# 1 MB each 10 ms, by the clock: one that is held up writes on as fast as it can until it is in time again. Says at the
# end how much it wrote in how many seconds.
_WRITER = """
import os, sys, time
block = (b"x" * 99 + b"\\n") * 1000
begin, written = time.monotonic(), 0
while not os.path.exists(sys.argv[2]):
    for _ in range(10):
        written += os.write(1, block)
    time.sleep(max(0, begin + written / (1e6 * int(sys.argv[1])) - time.monotonic()))
with open(sys.argv[3], "w") as file:
    file.write("%d %f" % (written, time.monotonic() - begin))
"""


def run(peers: Peers) -> Iterator[Row]:
    """Rows for each load: how long it took or what rate it reached, and what a Get or List took meanwhile."""
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as folder:
        metrics = Path(folder) / "metrics.sock"
        with node.running(f'{node.CONFIG}[metrics]\nlisten = "unix:{metrics}"\n') as here:
            asked = here.start(here.spec(["true"], JOB_RANKS))
            here.wait(asked)
            under = Under(here, asked, metrics)
            with under.load():
                time.sleep(IDLE_S)
            yield under.row("nothing else")
            yield from _many_ranks(here, under, peers)
            yield from _many_jobs(here, under)
            yield from _many_followers(here, under)
            yield from _many_resumptions(here, under)


class Under:
    """What calls take, and what the daemon does, under a load."""

    def __init__(self, here: node.Node, asked: str, metrics: Path) -> None:
        """`asked`: the job that is asked for."""
        self._here, self._asked, self._metrics = here, asked, metrics
        self.cpu = 0.0
        self._probed = Probed([], [], [])
        self._said = ""

    @contextlib.contextmanager
    def load(self) -> Iterator[None]:
        """Looks at all that happens in the block."""
        pid = self._here.pid
        machine = os.getloadavg()[0]
        lags, cpu, begin = loop_lags(self._metrics), cpu_seconds(pid), time.monotonic()
        ran, waited = main_thread_cpu_seconds(pid), main_thread_waits_seconds(pid)
        with Prober(self._here.address, self._asked) as prober:
            yield
            self._probed = prober.result()
        self.cpu, seconds = cpu_seconds(pid) - cpu, time.monotonic() - begin
        ran, waited = main_thread_cpu_seconds(pid) - ran, main_thread_waits_seconds(pid) - waited
        self._said = (
            f"the loop ran {ran / seconds:.0%} of {seconds:.1f} s and waited for a core {waited / seconds:.0%}; "
            f"{lag_of(lags, loop_lags(self._metrics))}; load of the machine {machine:.1f} before"
        )

    def row(self, what: str, peer: str = "", peer_ms: float | None = None) -> Row:
        """What the calls took."""
        probed = self._probed
        met = probed.p99 < BUDGET_MS and not probed.failures
        failed = f"; {len(probed.failures)} failed: {probed.failures[0]}" if probed.failures else ""
        note = f"{probed}{failed}; {self._said}"
        return Row(f"{what}: Get and List, p99", probed.p99, "ms", peer, peer_ms, f"under {BUDGET_MS:g} ms", met, note)


def _many_ranks(here: node.Node, under: Under, peers: Peers) -> Iterator[Row]:
    took: list[float] = []
    others: list[str] = []
    with under.load():
        for _ in range(_ROUNDS):
            begin = time.perf_counter()
            job = here.wait(here.start(here.spec(["true"], RANKS)))
            others.append(job.job_id)
            took.append(time.perf_counter() - begin)
            if len(job.ranks) != RANKS or any(rank.exit_code or not rank.pid for rank in job.ranks):
                raise BenchmarkFailed(f"job {job.job_id}: not every rank ran and ended with 0")
    seconds = percentile(took, 50)
    for other in others[:-1]:  # a List is to be as long as after one round
        here.delete(other)
    cluster = peers.cluster()
    srun = time_command(cluster.srun(f"-n{RANKS}", "true"), cluster.env) if cluster is not None else None
    skipped = f"; srun skipped: {peers.no_slurm}" if cluster is None else ""
    what = f"a job of {RANKS} ranks of true"
    note = f"median of {_ROUNDS}; every code 0{skipped}"
    yield Row(f"{what}, call to result", seconds, "s", "srun", srun, "no failure", True, note)
    found = under.row(what)
    # How much of that is nothing but a machine with more processes than cores.
    with under.load():
        for _ in range(_ROUNDS):
            subprocess.run(["sh", "-c", f"for i in $(seq {RANKS}); do /bin/true & done; wait"], check=True)
    floor = under.row("a shell").muster
    yield replace(found, peer=f"muster idle, {RANKS} x true from a shell", peer_value=floor)
    yield from _many_that_stay(here, under)


def _many_that_stay(here: node.Node, under: Under) -> Iterator[Row]:
    """Started, all of their output read, and stopped."""
    with under.load():
        for number in range(1, _ROUNDS + 1):
            begin = time.perf_counter()
            job_id = here.start(here.spec(["sh", "-c", "seq 1000; exec sleep 1000"], RANKS))
            here.until_running(job_id)
            started = time.perf_counter()
            whole = sum(len(f"{number}\n") for number in range(1, 1001)) * RANKS
            read = 0
            for chunk in here.logs.ReadLogs(log_pb2.ReadLogsRequest(job_id=job_id, follow=True), timeout=node.CALL_S):
                read += len(chunk.data)
                if read >= whole:
                    break
            told = time.perf_counter()
            here.stop(job_id)
            stopped = time.perf_counter()
            here.wait(job_id, job_pb2.JOB_STATE_STOPPED)
            if number < _ROUNDS:
                here.delete(job_id)
    what = f"{RANKS} ranks that write and stay"
    yield Row(
        f"{what}: started, read, stopped", stopped - begin, "s", budget="no failure", met=read == whole,
        note=f"the last of {_ROUNDS}: all run after {started - begin:.2f} s, {read} bytes of {whole} read in "
        f"{told - started:.2f} s, all gone {stopped - told:.2f} s after Stop",
    )  # fmt: skip
    yield under.row(what)


def _many_jobs(here: node.Node, under: Under) -> Iterator[Row]:
    """All jobs at once: the first still runs when the last one is accepted."""
    starts: list[float] = []

    def one(_: int) -> str:
        begin = time.perf_counter()
        job_id = here.start(here.spec(["sleep", "5"], JOB_RANKS))
        starts.append((time.perf_counter() - begin) * 1e3)
        return job_id

    with under.load(), ThreadPoolExecutor(JOBS) as threads:
        begin = time.perf_counter()
        jobs = list(threads.map(one, range(JOBS)))
        accepted = time.perf_counter() - begin
        ended = list(threads.map(here.wait, jobs))
        seconds = time.perf_counter() - begin
    first_end = min(job.ended_at.ToNanoseconds() for job in ended)
    last_start = max(job.started_at.ToNanoseconds() for job in ended)
    ran = (last_start - min(job.accepted_at.ToNanoseconds() for job in ended)) / 1e9
    together = "all ran at the same time" if last_start < first_end else "the first had ended before the last one ran"
    what = f"{JOBS} jobs of {JOB_RANKS} at once"
    yield Row(
        f"{what}, until all run", ran, "s", budget="no failure", met=True,
        note=f"{together}; all accepted after {accepted:.1f} s (Start p50 {percentile(starts, 50):.0f} ms, "
        f"p99 {percentile(starts, 99):.0f} ms); jobs sleep 5 s, all ended well after {seconds:.1f} s",
    )  # fmt: skip
    yield under.row(what)


def _many_followers(here: node.Node, under: Under) -> Iterator[Row]:
    stop, said = here.folder / "writer-stops", here.folder / "writer-said"
    command = [sys.executable, "-I", "-S", "-c", _WRITER, str(MB_PER_S), str(stop), str(said)]
    job_id = here.start(here.spec(command, 1))
    here.until_running(job_id)
    with under.load():
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.followers", here.address, job_id, str(FOLLOWERS), str(FOLLOW_S)],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_FOLLOWERS_LIMIT_S, check=False,
        )  # fmt: skip
    cpu = under.cpu
    stop.touch()
    job = here.wait(job_id)
    if done.returncode:
        raise BenchmarkFailed(f"the followers ended with {done.returncode}: {done.stderr[-500:]}")
    found = json.loads(done.stdout)
    written, seconds = said.read_text().split()
    if Path(job.ranks[0].log_path).stat().st_size != int(written):
        raise BenchmarkFailed(f"job {job_id}: the file does not have the {written} bytes that its rank wrote")
    what = f"{FOLLOWERS} followers of {MB_PER_S} MB/s"
    failures = found["failures"]
    yield Row(
        f"{what}, delivered to all", found["bytes_per_s"] / 1e6, "MB/s", budget="no failure", met=not failures,
        note=f"{len(failures)} failures{': ' + failures[0] if failures else ''}; the rank wrote "
        f"{int(written) / 1e6 / float(seconds):.0f} MB/s; all had begun after {found['opened_s']:.1f} s; least "
        f"and most of a follower {min(found['bytes']) / 1e6:.1f} and {max(found['bytes']) / 1e6:.1f} MB; "
        f"daemon's peak RSS {peak_rss_mb(here.pid):.0f} MB, PSS behind it {pss_mb(here.pid):.0f} MB, "
        f"CPU {cpu / sum(found['bytes']) * 1e9:.1f} s per GB that it gave out",
    )  # fmt: skip
    yield under.row(what)


def _many_resumptions(here: node.Node, under: Under) -> Iterator[Row]:
    """A watcher that begins anew behind every event, while jobs make more of them; then the whole history once."""
    first = next(here.events.Watch(event_pb2.WatchRequest(), timeout=node.CALL_S)).cursor
    cursor = first
    seen: list[str] = []
    jobs: list[str] = []
    ms: list[float] = []
    with under.load():
        while len(seen) < RESUMPTIONS:
            if len(seen) >= len(jobs) * RANKS:
                jobs.append(here.start(here.spec(["true"], RANKS)))
            begin = time.perf_counter()
            call = here.events.Watch(event_pb2.WatchRequest(cursor=cursor), timeout=node.CALL_S)
            cursor = next(call).cursor
            call.cancel()
            ms.append((time.perf_counter() - begin) * 1e3)
            seen.append(cursor)
    for job in jobs:
        here.wait(job)
    history = here.events.Watch(event_pb2.WatchRequest(cursor=first, no_follow=True), timeout=node.CALL_S)
    told = [answer.cursor for answer in history if answer.HasField("event")]
    what = f"{RESUMPTIONS} resumptions of a watch"
    yield Row(
        f"{what}, each, p50", percentile(ms, 50), "ms", budget="each event once", met=seen == told[: len(seen)],
        note=f"p99 {percentile(ms, 99):.1f} ms; {len(told)} events of {len(jobs)} jobs of {RANKS} ranks meanwhile",
    )  # fmt: skip
    yield under.row(what)
