"""muster's own metrics of the daemon, its jobs and the node's health.

Metrics of the cards are in card_metrics.py, counters in tally.py.
"""

import time
from collections.abc import Iterable, Mapping, Sequence

from muster.agent import __version__
from muster.agent.exposition import Catalogue, Distribution, Page
from muster.agent.host import build
from muster.agent.jobs.entry import Entry
from muster.agent.node.conditions import Condition
from muster.probes.checks.result import GRAVITY, CheckResult, Status
from muster.supervisors.model.states import State

#: Maximum number of devices per check, the gravest first: a node may have any number of mounts.
MAX_CHECKS = 1024
#: The numbers of the statuses, from harmless to grave.
_NUMBERS = tuple(status.exit_code for status in GRAVITY)

OWN = Catalogue()
BUILD = OWN.gauge(
    "muster_build_info", "Always 1; version and build of the daemon are in the labels.", "version", "build"
)
STARTED = OWN.gauge("muster_start_time_seconds", "When the daemon started, in seconds since the epoch.")
CPU = OWN.counter("muster_daemon_cpu_seconds_total", "CPU time of the daemon, in user and kernel mode.")
MEMORY = OWN.gauge("muster_daemon_resident_memory_bytes", "Memory of the daemon that is resident.")
FDS = OWN.gauge("muster_daemon_open_descriptors", "File descriptors that the daemon has open.")
LAG = OWN.histogram("muster_loop_lag_seconds", "By how much later than due the event loop woke, twice a second.")
WARNINGS = OWN.gauge("muster_warnings", "What is wrong with the daemon: warnings that `muster node` shows.")

JOBS = OWN.gauge("muster_jobs", "Jobs that the daemon knows, by state; ended ones until they are deleted.", "state")
RANKS = OWN.gauge("muster_ranks_running", "Ranks of all jobs that have been started and have not ended.")
UNDERUSED = OWN.gauge("muster_jobs_underused", "Jobs with underused cards.")

CHECK = OWN.gauge(
    "muster_check_status", "Newest result of a check: 0 OK, 1 WARN, 2 CRITICAL, 3 UNKNOWN.", "item", "device"
)
CONDITIONS = OWN.gauge("muster_conditions", "Conditions that the node has now, by status.", "status")
CONDITION = OWN.gauge(
    "muster_condition", "1 for each condition that the node has now.", "item", "code", "device", "status", "injected"
)
DRAINED = OWN.gauge("muster_node_drained", "1 while the node is drained, by an operator or for a reset.")
ACCEPTS = OWN.gauge(
    "muster_node_accepts_jobs", "0 while the daemon refuses new jobs: the node is drained, or a condition refuses them."
)


def daemon(page: Page, started_at: float, lag: Distribution, warnings: int) -> None:
    """Adds the daemon itself; `started_at` in seconds since the epoch. Reads /proc/self, which never blocks."""
    page.add(BUILD, 1, __version__, build.BUILD)
    page.add(STARTED, started_at)
    import psutil  # only now: the daemon starts sooner

    own = psutil.Process()
    with own.oneshot():
        page.add(CPU, time.process_time())
        page.add(MEMORY, own.memory_info().rss)
        page.add(FDS, own.num_fds())
    page.add_distribution(LAG, lag)
    page.add(WARNINGS, warnings)


def jobs(page: Page, states: Mapping[State, int], live: Sequence[Entry], underused: int) -> None:
    """Adds jobs by state, and the ranks of jobs that have not ended."""
    page.add_each(JOBS, {(state,): states.get(state, 0) for state in State})
    running = (entry.job for entry in live if entry.job.spawned)
    page.add(RANKS, sum(rank.outcome is None for job in running for rank in job.ranks))
    page.add(UNDERUSED, underused)


def health(
    page: Page, results: Iterable[CheckResult], conditions: Sequence[Condition], drained: bool, refused: bool
) -> None:
    """Adds the findings of checks. `refused`: a condition of the node refuses jobs."""
    status: dict[tuple[str, ...], int] = {}
    for result in results:
        if result.status is not Status.NOT_APPLICABLE:
            key = result.item, result.device
            status[key] = max(result.status.exit_code, status.get(key, 0), key=_NUMBERS.index)
    gravest = sorted(status.items(), key=lambda entry: -_NUMBERS.index(entry[1]))
    page.add_each(CHECK, dict(sorted(gravest[:MAX_CHECKS])))
    page.add_counts(CONDITIONS, (Status.WARN, Status.CRITICAL, Status.UNKNOWN), (c.status for c in conditions))
    for c in conditions:
        page.add(CONDITION, 1, c.item, c.code, c.device, c.status, str(c.injected).lower())
    page.add(DRAINED, drained)
    page.add(ACCEPTS, not drained and not refused)
