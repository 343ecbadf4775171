"""From a rank's exit to the event at a watcher."""

import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc

from benchmarks import node
from benchmarks.measure import percentile
from benchmarks.peers import Peers
from benchmarks.report import Row
from muster.v1 import event_pb2

RANKS = 8
JOBS = 28
#: The first of them are not counted.
WARM_UP = 2
#: Between two ranks' exits, in seconds: each of them is an event of its own.
APART_S = 0.03
#: In ms: of the median, and of 99 in 100; the same for exits one by one and for all of a gang at once.
BUDGET_MS, BUDGET_P99_MS = 3.0, 10.0

# The last thing that a rank does is to note the time; it writes beside its output, so that nobody is awake for it.
_RANK = """
import os, sys, time
at = float(sys.argv[1]) + float(sys.argv[2]) * int(os.environ["RANK"])
file = os.open(os.path.join(sys.argv[3], os.environ["RANK"]), os.O_WRONLY | os.O_CREAT)
time.sleep(max(0, at - time.time()))
os.write(file, b"%d" % time.time_ns())
os._exit(0)
"""


@dataclass(frozen=True, slots=True)
class Delay:
    """Milliseconds from a rank's last instruction until its event is at the watcher, and until its supervisor has seen
    the end: between the two are the disk, the daemon and gRPC."""

    event_ms: float
    seen_ms: float


class Watcher:
    """Reads the stream of events in a thread, and notes when each came."""

    def __init__(self, here: node.Node) -> None:
        self._stream = here.events.Watch(event_pb2.WatchRequest())
        #: (job, rank) -> when the event came here, and when the supervisor had seen the end, before it recorded that;
        #: in nanoseconds since the epoch.
        self.exits: dict[tuple[str, int], tuple[int, int]] = {}
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def close(self) -> None:
        self._stream.cancel()
        self._thread.join()

    def _read(self) -> None:
        with contextlib.suppress(grpc.RpcError):  # that is how `close` looks from here
            for message in self._stream:
                now = time.time_ns()
                event = message.event
                if event.kind == "rank.exited":
                    self.exits[event.job_id, event.rank] = now, event.time.ToNanoseconds()


def run(peers: Peers) -> Iterator[Row]:
    """Rows for exits one by one, and for those of a whole gang at once."""
    with node.running() as here:
        watcher = Watcher(here)
        try:
            apart = [late for _ in range(JOBS + WARM_UP) for late in delays(here, watcher, APART_S)][WARM_UP * RANKS :]
            at_once = [late for _ in range(JOBS + WARM_UP) for late in delays(here, watcher, 0)][WARM_UP * RANKS :]
        finally:
            watcher.close()
    peer = "torchrun and the ModelArts launcher poll: each 100 ms, each 1 s"
    for what, exits in (("exit to event", apart), (f"exit to event, {RANKS} ranks at once", at_once)):
        late, seen = [one.event_ms for one in exits], [one.seen_ms for one in exits]
        p50, p99 = percentile(late, 50), percentile(late, 99)
        yield Row(
            f"{what}, p50", p50, "ms", budget=f"at most {BUDGET_MS:g} ms", met=p50 <= BUDGET_MS,
            note=f"{len(late)} exits, p90 {percentile(late, 90):.1f} ms, largest {max(late):.1f} ms; of it until the "
            f"supervisor has seen the end {percentile(seen, 50):.1f} ms; {peer}",
        )  # fmt: skip
        yield Row(
            f"{what}, p99", p99, "ms", budget=f"at most {BUDGET_P99_MS:g} ms", met=p99 <= BUDGET_P99_MS,
            note=f"until the supervisor has seen the end p99 {percentile(seen, 99):.1f} ms",
        )  # fmt: skip


def delays(here: node.Node, watcher: Watcher, apart: float) -> list[Delay]:
    """Of each rank's exit."""
    at = time.time() + 0.5  # by then all ranks wait
    folder = Path(here.folder) / f"times-{time.monotonic_ns()}"
    folder.mkdir()
    command = [sys.executable, "-I", "-S", "-c", _RANK, str(at), str(apart), str(folder)]
    job_id = here.start(here.spec(command, RANKS))
    here.wait(job_id)
    keys = [(job_id, rank) for rank in range(RANKS)]
    node.until(lambda: all(key in watcher.exits for key in keys), node.ANSWER_S, f"every exit of {job_id} is an event")
    ends = [int((folder / str(rank)).read_text()) for rank in range(RANKS)]
    return [Delay(*((at - end) / 1e6 for at in watcher.exits[key])) for key, end in zip(keys, ends, strict=True)]
