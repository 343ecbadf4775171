"""What telemetry costs: a daemon with eight cards and 64 processes at the default rates, alone and on a full node; and
a look at processes beside psutil, which reads the same."""

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from unittest import mock

import psutil

from benchmarks import node
from benchmarks.measure import cpu_seconds, median
from benchmarks.node import BenchmarkFailed, Node
from benchmarks.peers import Peers
from benchmarks.report import Row
from muster.probes.cards.sampler import SamplerSettings
from muster.probes.kernel.procfs import FEW, FULL_EACH, Procfs
from muster.probes.kernel.trees import Forest, JobRoots, RootProcess
from muster.v1 import job_pb2
from tests.fakes import FakeCards, NoCompiler

CARDS, PER_RANK = 8, 8
PROCESSES = CARDS * PER_RANK
BUDGET_PERCENT = 0.4
#: Processes that are somebody else's, in the second part.
OTHERS_SETTING, OTHERS = "MUSTER_BENCH_PROCESSES", 2000
#: Seconds that a daemon is watched: as long as the rarest of the default rates.
WATCH_S = 60.0
_LOOKS = 15
#: Seconds after which a daemon has noticed that telemetry was turned on or off: 5, and some room.
_NOTICE_S = 7.0
#: A rank with some workers, all of which sleep.
_RANK = ["sh", "-c", f"for i in {' '.join(map(str, range(PER_RANK - 1)))}; do sleep 600 & done; wait"]


def run(peers: Peers) -> Iterator[Row]:
    """Rows for looks at processes, and for the daemon."""
    others = int(os.environ.get(OTHERS_SETTING) or OTHERS)
    with _tree() as roots:
        yield _look(f"a look at {PROCESSES} processes", roots)
        with _sleepers(others):
            yield _look(f"... among {others} others", roots)
            yield _full(others)
    try:
        with contextlib.ExitStack() as stack:
            yield from _daemon(stack, others)
    except NoCompiler as error:
        raise BenchmarkFailed(str(error)) from error


def _daemon(stack: contextlib.ExitStack, others: int) -> Iterator[Row]:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="muster-bench-cards-")))
    cards = stack.enter_context(FakeCards.make(folder / "cards", "nvidia", CARDS))
    with mock.patch.dict(os.environ, cards.env):
        here = stack.enter_context(node.running())
    wanted = job_pb2.CardRequest(count=CARDS)
    here.until_running(here.start(job_pb2.JobSpec(command=_RANK, cards=wanted, skip_check=True)))
    yield from _shares(here, f"daemon, {CARDS} cards, {PROCESSES} processes")
    with _sleepers(others):
        yield from _shares(here, f"... with {others} other processes on the node")


def _shares(here: Node, what: str) -> Iterator[Row]:
    """All that a daemon does, its checks of the node included, and what of it is telemetry."""
    _turn(here, on=False)
    without = _share(here)
    _turn(here, on=True)
    share = _share(here)
    own = max(0.0, share - without)
    per_card = f"{own / 100 / CARDS * 1e6:.0f} us of CPU a card and second, with all else that telemetry does"
    yield _budgeted(f"{what}: CPU over {WATCH_S:g} s", share)
    yield _budgeted("... of which telemetry", own, per_card)


def _budgeted(what: str, share: float, note: str = "") -> Row:
    budget = f"at most {BUDGET_PERCENT:g} %"
    return Row(what, share, "% of a core", budget=budget, met=share <= BUDGET_PERCENT, note=note)


def _turn(here: Node, *, on: bool) -> None:
    """Telemetry off, or on at its default rates."""
    config = here.folder / "musterd.toml"
    rest = config.read_text().partition("[telemetry]")[0]
    config.write_text(f"{rest}[telemetry]\nenabled = {str(on).lower()}\n")
    os.kill(here.pid, signal.SIGHUP)
    time.sleep(_NOTICE_S)


def _share(here: Node) -> float:
    """CPU of the daemon over WATCH_S, all its threads, in percent of a core."""
    before, begin = cpu_seconds(here.pid), time.monotonic()
    time.sleep(WATCH_S)
    return (cpu_seconds(here.pid) - before) / (time.monotonic() - begin) * 100


# --- one look ---------------------------------------------------------------------------------------------------------


def _look(what: str, roots: JobRoots) -> Row:
    procfs = Procfs()
    forest = Forest(procfs)
    if (found := len(forest.look([roots], {})["job"])) != PROCESSES:
        raise BenchmarkFailed(f"{found} processes were found instead of {PROCESSES}")
    ours, theirs = [], []
    for _ in range(_LOOKS):
        ours.append(_cpu(lambda: forest.look([roots], {})))
        theirs.append(_cpu(lambda: _by_psutil(roots)))
    procfs.close()
    mine = median(ours)
    period_s = SamplerSettings().processes_s
    share = mine / period_s * 100
    note = f"{mine / PROCESSES * 1e6:.0f} us a process; each {period_s:g} s, so that is {share:.3f} % of a core"
    return Row(what, mine * 1000, "ms of CPU", "psutil", median(theirs) * 1000, note=note)


def _full(others: int) -> Row:
    """A look at all processes of the node, as there is one from time to time."""
    procfs = Procfs()
    spent = median(_cpu(lambda: Forest(procfs).look([JobRoots("job", (), 0)], {})) for _ in range(5))
    procfs.close()
    each = FULL_EACH * max(1, others // FEW)
    share = spent / (each * SamplerSettings().processes_s) * 100
    note = f"{spent / others * 1e6:.0f} us a process; one look in {each}, so that is {share:.3f} % of a core"
    return Row("... at all of them", spent * 1000, "ms of CPU", note=note)


def _by_psutil(roots: JobRoots) -> list[Mapping[str, object]]:
    """The same readings of the same processes."""
    found: list[Mapping[str, object]] = []
    for root in roots.roots:
        leader = psutil.Process(root.pid)
        for process in (leader, *leader.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess), process.oneshot():
                found.append(
                    {
                        "start": process.create_time(),
                        "cpu": process.cpu_times(),
                        "io": process.io_counters(),
                        "state": process.status(),
                        "memory": process.memory_info().rss,
                    }
                )
    return found


def _cpu(work: Callable[[], object]) -> float:
    """Seconds of this thread's CPU time."""
    before = time.thread_time()
    work()
    return time.thread_time() - before


# --- processes --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _tree() -> Iterator[JobRoots]:
    """As many ranks with their workers as a job has."""
    ranks = [subprocess.Popen(_RANK, start_new_session=True, stdin=subprocess.DEVNULL) for _ in range(CARDS)]
    try:
        node.until(lambda: all(_children(rank.pid) == PER_RANK - 1 for rank in ranks), node.ANSWER_S, "the workers run")
        procfs = Procfs()
        stats = [procfs.stat(rank.pid) for rank in ranks]
        procfs.close()
        yield JobRoots("job", tuple(RootProcess(i, s.pid, s.start) for i, s in enumerate(stats) if s is not None))
    finally:
        for rank in ranks:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(rank.pid, signal.SIGKILL)
            rank.wait()


def _children(pid: int) -> int:
    return len(Path(f"/proc/{pid}/task/{pid}/children").read_text().split())


@contextlib.contextmanager
def _sleepers(count: int) -> Iterator[Sequence[int]]:
    """So many processes that do nothing."""
    pids: list[int] = []
    try:
        for _ in range(count):
            pids.append(os.posix_spawnp("sleep", ["sleep", "3600"], {}))
        yield pids
    except OSError as error:
        raise BenchmarkFailed(f"process {len(pids) + 1} of {count} cannot be started: {error}") from error
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for pid in pids:
            os.waitpid(pid, 0)
