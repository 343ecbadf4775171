"""Everything at once, for an hour, and whether anything grows.

    python -m benchmarks.soak [--minutes 60] [--json FILE]

Two nodes do the same: jobs that write and are followed, run commands, are stopped, fail and are restarted, watchers
that resume, calls that look. The daemon of one is left alone, and is judged; that of the other is killed every half a
minute or so, and what outlives it is judged. Sixty times everything rests but a job that runs all the time, and what is
held then is what is compared. Exit code 0: nothing grew and nothing went wrong; 1: something did.
"""

import argparse
import json
import random
import statistics
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path

import grpc

from benchmarks import node, processes, soak_loops
from benchmarks.node import ENDED, BenchmarkFailed, Node
from muster.supervisors.system import lock
from muster.v1 import job_pb2

#: Seconds between two kills of a daemon; seconds after the last call until everything of the jobs must be gone.
KILL_S = 20.0, 40.0
GONE_S = 30.0
#: In less time everything grows, since nothing is full yet.
LEAST_MINUTES = 5.0
#: Samples of a run.
SAMPLES = 60
#: What may be more at the end than behind the first tenth: memory and files in MB, else numbers. Threads that read and
#: write come and go.
TOLERANCE = {"rss": 3.0, "descriptors": 1, "threads": 3, "children": 0, "zombies": 0, "processes": 0}
TOLERANCE |= {"state MB": 0.5, "state files": 2, "log MB": 2.0, "log files": 3}
#: Bounds that are reached within minutes, so that it shows whether they hold. Of logs: by rotation, compression and
#: removal of segments.
CONFIG = """
[daemon]
log_level = "warning"
[checks]
policy = "off"
[health]
policy = "off"
[jobs]
keep_events_bytes = 131072
[telemetry]
readings_s = 0.5
processes_s = 2.0
history_bytes = 1048576
[logs]
max_file_bytes = 262144
max_job_bytes = 2097152
"""
#: Stays for the whole time: 20 kB/s from each of two ranks, and commands run in it.
RESIDENT = ["sh", "-c", "while :; do head -c 15000 /dev/urandom | base64; sleep 1; done"]

Samples = dict[tuple[str, str], list[float]]


class Soaked:
    """A node with its loops."""

    def __init__(self, name: str, here: Node, killed: bool) -> None:
        self.name, self.here, self.killed = name, here, killed
        self.kills = 0
        self.resident = here.start(here.spec(RESIDENT, 2, job_id="resident"))
        here.until_running(self.resident)
        self.gate = soak_loops.Gate()
        self.loops = soak_loops.Loops(here, self.resident, killed, self.gate)

    def sample(self, samples: Samples) -> None:
        """What its processes and files hold at rest. Raises BenchmarkFailed where one of them is gone."""
        with self.gate.rest():
            self._sample(samples)

    def _sample(self, samples: Samples) -> None:
        # What ended in the last moment is still to be waited for.
        node.until(lambda: not self._unsettled(), GONE_S, f"{self.name}: only the job that stays is there")
        watched = {
            "nursery": self.here.nursery_pid,
            "supervisor": lock.holder(self.here.root.job(self.resident).lock),
        }
        if not self.killed:
            watched["daemon"] = self.here.pid
        for which, pid in watched.items():
            try:
                found = processes.held(pid)
            except OSError as error:
                raise BenchmarkFailed(f"{self.name}: the {which} is gone: {error}") from error
            for what in ("rss", "pss", "descriptors", "threads", "children", "zombies"):
                samples[f"{self.name} {which}", what].append(getattr(found, what))
        for which, folder in (("state MB", self.here.root.state), ("log MB", self.here.root.log)):
            size, count = processes.folder_size(folder, ("audit.log",))  # that one has a bound of its own
            samples[self.name, which].append(size / 1e6)
            samples[self.name, f"{which[:-3]} files"].append(count)
        samples[self.name, "processes"].append(len(processes.descendants(watched["nursery"])))

    def _unsettled(self) -> bool:
        """Whether there is another child of the nursery than the supervisor of the job that stays."""
        return len(processes.children(self.here.nursery_pid)) != 1

    def keep_killing(self, over: threading.Event) -> None:
        """The daemon, until `over`. Raises BenchmarkFailed where another one does not come up."""
        while not over.wait(random.uniform(*KILL_S)):
            self.here.kill()
            self.kills += 1

    def left(self) -> list[str]:
        """Ends and forgets every job, and says what is there all the same."""
        here = self.here
        for job in here.jobs.List(job_pb2.ListRequest(page_size=1000), timeout=node.CALL_S).jobs:
            if job.state not in ENDED:
                here.stop(job.job_id)
            here.delete(job.job_id)
        nursery = here.nursery_pid
        found = []
        try:
            # But for the supervisor that waits for the next job.
            node.until(lambda: len(processes.descendants(nursery)) <= 1, GONE_S, "the processes of all jobs are gone")
        except BenchmarkFailed:
            found.append(f"{self.name}: {len(processes.descendants(nursery))} processes below the nursery")
        if jobs := list((here.root.state / "jobs").iterdir()):
            found.append(f"{self.name}: {len(jobs)} folders of deleted jobs, such as {jobs[0]}")
        return found


def judge(samples: Samples) -> list[str]:
    """A sentence for each thing that grows."""
    found = []
    for (who, what), values in samples.items():
        tolerance = TOLERANCE.get(what)
        if tolerance is not None and processes.grows(values, tolerance):
            first, _, last = processes.thirds(values)
            found.append(f"{who}: {what} grows: {first:.1f} behind the first tenth, {last:.1f} at the end")
    return found


def soak(minutes: float, samples: Samples) -> list[str]:
    """Fills `samples`. Returns what grew and what went wrong. Raises BenchmarkFailed."""
    over = threading.Event()
    troubles: list[str] = []

    def guarded(run: Callable[[], None]) -> Callable[[], None]:
        def body() -> None:
            try:
                run()
            except (BenchmarkFailed, grpc.RpcError, OSError) as error:
                troubles.append(str(error)[:500])
                over.set()

        return body

    with node.running(CONFIG) as steady, node.running(CONFIG) as killed:
        nodes = [Soaked("steady", steady, False), Soaked("killed", killed, True)]
        bodies = [guarded(partial(body, over)) for each in nodes for body in each.loops.bodies]
        bodies.append(guarded(partial(nodes[1].keep_killing, over)))
        threads = [threading.Thread(target=body) for body in bodies]
        for thread in threads:
            thread.start()
        begun, told = time.monotonic(), 0
        try:
            while (passed := time.monotonic() - begun) < minutes * 60 and not over.is_set():
                for each in nodes:
                    each.sample(samples)
                if passed // 60 > told:
                    told = int(passed // 60)
                    print(_line(told, nodes, samples), flush=True)
                over.wait(minutes * 60 / SAMPLES)
        finally:
            over.set()
            for thread in threads:
                thread.join()
        if not troubles:
            for each in nodes:
                troubles += each.left()
        for each in nodes:
            print(f"{each.name}: {each.loops}, {each.kills} kills")
    return troubles + judge(samples)


def _line(minute: int, nodes: list[Soaked], samples: Samples) -> str:
    """How it stands."""
    daemon = "steady daemon"
    held = ", ".join(f"{what} {samples[daemon, what][-1]:.0f}" for what in ("rss", "pss", "descriptors", "threads"))
    growing = judge(samples) or ["nothing grows"]
    done = ", ".join(f"{each.name} {each.loops.done} rounds" for each in nodes)
    return f"{minute} min: {done}, {nodes[1].kills} kills; daemon: {held}; {'; '.join(growing)}"


def report(samples: Samples, minutes: float) -> str:
    """A line for each series: medians of the three thirds, and the slope of a line through what is judged."""
    lines = [f"{'who':20} {'what':12} {'first':>9} {'second':>9} {'last':>9} {'per hour':>9} {'largest':>9}"]
    for (who, what), values in sorted(samples.items()):
        judged = values[len(values) // 10 :]
        hours = [i / len(values) * minutes / 60 for i in range(len(judged))]
        slope = statistics.linear_regression(hours, judged).slope if len(judged) > 1 else 0.0
        first, second, last = processes.thirds(values)
        lines.append(f"{who:20} {what:12} {first:9.2f} {second:9.2f} {last:9.2f} {slope:9.2f} {max(values):9.2f}")
    return "\n".join(lines)


def main() -> int:
    """See above."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help=f"at least {LEAST_MINUTES:g}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all samples there as well")
    arguments = parser.parse_args()
    if arguments.minutes < LEAST_MINUTES:
        parser.error(
            f"--minutes {arguments.minutes:g}: at least {LEAST_MINUTES:g}, since bounds are reached only by then"
        )
    samples: Samples = defaultdict(list)
    try:
        troubles = soak(arguments.minutes, samples)
    except BenchmarkFailed as error:
        troubles = [str(error)]
    print(report(samples, arguments.minutes))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([[*key, values] for key, values in samples.items()]))
    for trouble in troubles:
        print(f"FAILED: {trouble}", file=sys.stderr)
    return 1 if troubles else 0


if __name__ == "__main__":
    sys.exit(main())
