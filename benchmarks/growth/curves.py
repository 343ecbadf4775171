"""What is varied, and what is measured of it. Nothing is reached but unix sockets; every point ends by itself."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from unittest import mock

from benchmarks import ended, node
from benchmarks.growth.curve import Curve, Skipped
from benchmarks.measure import cpu_seconds, median, pss_mb
from benchmarks.node import BenchmarkFailed, Node
from benchmarks.processes import descendants
from muster.v1 import job_pb2
from tests.fakes import FakeCards, NoCompiler

#: Seconds that an idle daemon is watched: as long as the rarest of the default rates.
WATCH_S = float(os.environ.get("MUSTER_GROWTH_WATCH", "60"))
#: Seconds that followers read, and that something rests before it is looked at.
FOLLOW_S, SETTLE_S = 20.0, 2.0
#: And until a daemon has looked at all processes of the node for the first time.
LOOKED_S = 15.0
ROUNDS = 3
#: Of a sleeping process, what it costs the node and its room for pids: more are not started.
_PROCESS_BYTES, _PIDS_PART = 400_000, 0.8
_BUSY = "import os\nwhile True: os.write(1, b'x' * 65535 + b'\\n')"
#: Forks argv[1] children that sleep, says so, and ends with all of them when its stdin does.
_FORKS = """
import os, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.setpgid(0, 0)
for _ in range(int(sys.argv[1])):
    if not os.fork():
        signal.pause()
print("there", flush=True)
sys.stdin.read()
os.killpg(0, signal.SIGKILL)
"""


def _ranks(count: float) -> Mapping[str, float]:
    """Jobs of `count` ranks of `true`, one after the other, on a warm daemon."""
    seconds, spent = [], []
    with node.running() as here:
        here.wait(here.start(here.spec(["true"], 1)))
        for _ in range(ROUNDS):
            before, begin = _spent(here), time.perf_counter()
            here.wait(here.start(here.spec(["true"], int(count))))
            seconds.append(time.perf_counter() - begin)
            spent.append(_settled(here) - before)
    return {"call to result, s": median(seconds), "CPU of all, s": median(spent)}


def _jobs(count: float) -> Mapping[str, float]:
    """`count` jobs of one sleeping rank at once."""
    with node.running(f"{node.CONFIG}[jobs]\nmax_jobs = 1000\n") as here:
        empty = pss_mb(here.pid) + pss_mb(here.nursery_pid)
        begin = time.perf_counter()
        jobs = [here.start(here.spec(["sleep", "600"], 1)) for _ in range(int(count))]
        supervisors = [here.until_running(job).supervisor_pid for job in jobs]
        running = time.perf_counter() - begin
        time.sleep(SETTLE_S)
        memory = pss_mb(here.pid) + pss_mb(here.nursery_pid) + sum(map(pss_mb, supervisors)) - empty
        percent = _percent(here, min(WATCH_S, 15.0))
    return {"until all run, s": running, "memory, MB": memory, "daemon at rest, % of a core": percent}


def _followers(count: float) -> Mapping[str, float]:
    """`count` followers of a rank that writes as fast as it can, each on a connection of its own."""
    config = f"{node.CONFIG}[limits]\nmax_connections = 1000\nmax_followers = 1000\n"
    with node.running(config) as here:
        job = here.until_running(here.start(here.spec([sys.executable, "-c", _BUSY], 1)))
        before = cpu_seconds(here.pid)
        command = [
            sys.executable,
            "-m",
            "benchmarks.followers",
            here.address,
            job.job_id,
            str(int(count)),
            str(FOLLOW_S),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
        spent = cpu_seconds(here.pid) - before
        if done.returncode:
            raise BenchmarkFailed(f"followers: {done.stderr[-500:]}")
        read = sum(json.loads(done.stdout)["bytes"])
    return {"MB/s to all": read / FOLLOW_S / 1e6, "CPU of the daemon for a GB, s": spent / (read / 1e9)}


def _cards(count: float) -> Mapping[str, float]:
    """A daemon with `count` cards and eight processes on each, at the default rates."""
    with _with_cards(int(count)) as here:
        return {"daemon, % of a core": _percent(here, WATCH_S), "memory, MB": pss_mb(here.pid)}


def _interval(seconds: float) -> Mapping[str, float]:
    """A daemon with eight cards that are read each `seconds`, and its processes as often, from a second on."""
    processes = max(1.0, seconds)
    with _with_cards(8, f"[telemetry]\nreadings_s = {seconds:g}\nprocesses_s = {processes:g}\n") as here:
        return {"daemon, % of a core": _percent(here, WATCH_S)}


def _processes(count: float) -> Mapping[str, float]:
    """A daemon with a job, and `count` processes of others on the node."""
    with node.running() as here, sleepers(int(count)):
        here.until_running(here.start(here.spec(["sleep", "600"], 8)))
        time.sleep(LOOKED_S)
        return {"daemon, % of a core": _percent(here, WATCH_S)}


def _ended(count: float) -> Mapping[str, float]:
    """A daemon with `count` ended jobs of one rank: start behind kill -9, memory."""
    with tempfile.TemporaryDirectory(prefix="muster-bench-", ignore_cleanup_errors=True) as top:
        here = Node(Path(top), ended.CONFIG)
        try:
            model = here.start(here.spec(["sh", "-c", "echo output"], 1))
            here.wait(model)
        finally:
            here.close()
        ended.copies(Path(top), model, int(count))
        here = Node(Path(top), ended.CONFIG)
        try:
            starts = []
            for _ in range(ROUNDS):
                begin = time.perf_counter()
                here.kill()
                starts.append(time.perf_counter() - begin)
            here.jobs.List(job_pb2.ListRequest(page_size=1), timeout=node.CALL_S)
            indexed = cpu_seconds(here.pid)
            time.sleep(SETTLE_S)
            return {"start, s": median(starts), "CPU until listed, s": indexed, "memory, MB": pss_mb(here.pid)}
        finally:
            here.close()


CURVES = {
    curve.name: curve
    for curve in (
        Curve("ranks", "ranks of a job", (1, 4, 16, 64, 256, 1024), (1, 8, 64), _ranks),
        Curve("jobs", "jobs on the node", (1, 4, 16, 64, 256), (1, 4, 16), _jobs),
        Curve("followers", "followers of one rank", (1, 4, 16, 64, 200, 400), (1, 8, 64), _followers),
        Curve("cards", "cards", (1, 2, 4, 8, 16), (1, 8), _cards),
        Curve("processes", "processes of others", (100, 1_000, 5_000, 10_000, 20_000), (100, 2_000), _processes),
        # 0 has no place on a logarithmic axis; one job is as good.
        Curve("ended", "ended jobs", (1, 100, 1_000, 5_000, 10_000), (1, 100, 1_000), _ended),
        Curve("interval", "seconds between two readings", (0.1, 0.3, 1, 3, 15), (0.1, 1, 15), _interval),
    )
}


# --- what they have in common -----------------------------------------------------------------------------------------


@contextlib.contextmanager
def _with_cards(count: int, config: str = "") -> Iterator[Node]:
    """A daemon with fake cards, and a job with eight processes on each."""
    ranks = ["sh", "-c", "for i in 1 2 3 4 5 6 7; do sleep 600 & done; wait"]
    try:
        with tempfile.TemporaryDirectory(prefix="muster-bench-cards-") as folder:
            cards = FakeCards.make(Path(folder) / "cards", "nvidia", count)
            with cards, mock.patch.dict(os.environ, cards.env), node.running(node.CONFIG + config) as here:
                wanted = job_pb2.CardRequest(count=count)
                here.until_running(here.start(job_pb2.JobSpec(command=ranks, cards=wanted, skip_check=True)))
                time.sleep(SETTLE_S)
                yield here
    except NoCompiler as error:
        raise BenchmarkFailed(str(error)) from error


@contextlib.contextmanager
def sleepers(count: int) -> Iterator[None]:
    """So many processes that sleep, children of one program. Raises Skipped where the node has no room for them."""
    most = int(Path("/proc/sys/kernel/pid_max").read_text()) * _PIDS_PART
    if count > most:
        raise Skipped(f"{count} processes: kernel.pid_max leaves room for {most:.0f}")
    [line] = [line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable:")]
    free = int(line.split()[1]) * 1024
    if count * _PROCESS_BYTES > free:
        raise Skipped(f"{count} processes take {count * _PROCESS_BYTES / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free")
    command = [sys.executable, "-S", "-c", _FORKS, str(count)]
    parent = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert parent.stdout is not None and parent.stdin is not None
        if parent.stdout.readline() != b"there\n":
            raise BenchmarkFailed(f"{count} processes could not be started")
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(parent.pid, signal.SIGKILL)
        parent.communicate()


def _percent(here: Node, seconds: float) -> float:
    """CPU of the daemon over that time, all its threads, in percent of a core."""
    before, begin = cpu_seconds(here.pid), time.monotonic()
    time.sleep(seconds)
    return (cpu_seconds(here.pid) - before) / (time.monotonic() - begin) * 100


def _spent(here: Node) -> float:
    """CPU of daemon and nursery, with all whose end the latter has seen."""
    fields = Path(f"/proc/{here.nursery_pid}/stat").read_text().rpartition(")")[2].split()
    ticks = sum(map(int, fields[11:15]))
    return cpu_seconds(here.pid) + ticks / os.sysconf("SC_CLK_TCK")


def _settled(here: Node) -> float:
    """The same, once no supervisor is left. Raises BenchmarkFailed."""
    # But for the one that waits for the next job.
    node.until(lambda: len(descendants(here.nursery_pid)) <= 1, node.ANSWER_S, "supervisors end")
    return _spent(here)
