"""Many ranks, many jobs, many followers: nothing fails, and a call is answered as if nothing were going on."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks import node
from benchmarks.measure import peak_rss_mb, percentile, pss_mb
from benchmarks.node import BenchmarkFailed
from benchmarks.peers import Peers, time_command
from benchmarks.prober import Probed, Prober
from benchmarks.report import Row

RANKS = 256
JOBS, JOB_RANKS = 64, 8
FOLLOWERS = 200
MB_PER_S = 100
FOLLOW_S = 5.0
BUDGET_MS = 50.0
_FOLLOWERS_LIMIT_S = 120.0
_SHELL_ROUNDS = 5

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
    """Rows for each of the three loads: how long it took or what rate it reached, and what a Get took meanwhile."""
    with node.running() as here:
        asked = here.start(here.spec(["true"], JOB_RANKS))
        here.wait(asked)
        with Prober(here.address, asked) as prober:
            time.sleep(2.0)
            yield _rpc("Get, no load, p99", prober.result())
        yield from _many_ranks(here, asked, peers)
        yield from _many_jobs(here, asked)
        yield from _many_followers(here, asked)


def _many_ranks(here: node.Node, asked: str, peers: Peers) -> Iterator[Row]:
    with Prober(here.address, asked) as prober:
        begin = time.perf_counter()
        job = here.wait(here.start(here.spec(["true"], RANKS)))
        seconds = time.perf_counter() - begin
        probed = prober.result()
    if len(job.ranks) != RANKS or any(rank.exit_code or not rank.pid for rank in job.ranks):
        raise BenchmarkFailed(f"job {job.job_id}: not every rank ran and ended with 0")
    cluster = peers.cluster()
    srun = time_command(cluster.srun(f"-n{RANKS}", "true"), cluster.env) if cluster is not None else None
    skipped = f"; srun skipped: {peers.no_slurm}" if cluster is None else ""
    what = f"a job of {RANKS} ranks of true"
    yield Row(f"{what}, call to result", seconds, "s", "srun", srun, "no failure", True, f"every code 0{skipped}")
    # How much of that is nothing but a machine with more processes than cores.
    with Prober(here.address, asked) as prober:
        for _ in range(_SHELL_ROUNDS):
            subprocess.run(["sh", "-c", f"for i in $(seq {RANKS}); do /bin/true & done; wait"], check=True)
        floor = prober.result().p99
    yield _rpc(f"{what}: Get meanwhile, p99", probed, f"muster idle, {RANKS} x true from a shell", floor)


def _many_jobs(here: node.Node, asked: str) -> Iterator[Row]:
    """All jobs at once: the first still runs when the last one is accepted."""
    starts: list[float] = []

    def one(_: int) -> str:
        begin = time.perf_counter()
        job_id = here.start(here.spec(["sleep", "5"], JOB_RANKS))
        starts.append((time.perf_counter() - begin) * 1e3)
        return job_id

    with Prober(here.address, asked) as prober, ThreadPoolExecutor(JOBS) as threads:
        begin = time.perf_counter()
        jobs = list(threads.map(one, range(JOBS)))
        accepted = time.perf_counter() - begin
        ended = list(threads.map(here.wait, jobs))
        seconds = time.perf_counter() - begin
        probed = prober.result()
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
    yield _rpc(f"{what}: Get meanwhile, p99", probed)


def _many_followers(here: node.Node, asked: str) -> Iterator[Row]:
    stop, said = here.folder / "writer-stops", here.folder / "writer-said"
    command = [sys.executable, "-I", "-S", "-c", _WRITER, str(MB_PER_S), str(stop), str(said)]
    job_id = here.start(here.spec(command, 1))
    here.until_running(job_id)
    with Prober(here.address, asked) as prober:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.followers", here.address, job_id, str(FOLLOWERS), str(FOLLOW_S)],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_FOLLOWERS_LIMIT_S, check=False,
        )  # fmt: skip
        probed = prober.result()
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
        f"daemon's peak RSS {peak_rss_mb(here.pid):.0f} MB, PSS behind it {pss_mb(here.pid):.0f} MB",
    )  # fmt: skip
    yield _rpc(f"{what}: Get meanwhile, p99", probed)


def _rpc(what: str, probed: Probed, peer: str = "", peer_ms: float | None = None) -> Row:
    met = probed.p99 < BUDGET_MS and not probed.failures
    failed = f"; {len(probed.failures)} failed: {probed.failures[0]}" if probed.failures else ""
    return Row(what, probed.p99, "ms", peer, peer_ms, f"under {BUDGET_MS:g} ms", met, f"{probed}{failed}")
