"""Usage of jobs and their ranks, from two looks at their processes."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from muster.probes.cards.sampler import ProcessLook
from muster.probes.kernel.dataclass import dataclass
from muster.probes.kernel.process import TICKS_PER_S
from muster.probes.kernel.procfs import NodeTotals
from muster.probes.kernel.trees import JobProcess, ProcessRole


@dataclass(frozen=True, slots=True)
class RankUsage:
    """See RankTelemetry in telemetry.proto. `memory_bytes` are resident; shared pages count for each process.
    Rates are bytes per second, `cpu` is percent of one CPU; None before the second look, and if unknown."""

    rank: int
    device: int
    pid: int
    processes: int
    cpu: float | None
    memory_bytes: int | None
    read_rate: float | None
    write_rate: float | None
    state: str
    at: float


@dataclass(frozen=True, slots=True)
class JobUsage:
    """`cpu` and `mem` in percent of what the whole node has, helpers included; `at` in seconds since the epoch."""

    at: float
    ranks: tuple[RankUsage, ...]
    processes: int
    cpu: float | None
    mem: float | None


@dataclass(frozen=True, slots=True)
class NodeUsage:
    """In percent; `at` in seconds since the epoch."""

    at: float
    cpu: float | None
    mem: float | None


@dataclass(frozen=True, slots=True)
class RankPlace:
    """A rank as the job knows it, with or without a running process."""

    rank: int
    device: int
    pid: int


#: CPU seconds, bytes read and bytes written by process; a process is (pid, start).
_Counts = dict[tuple[int, int], tuple[float, int | None, int | None]]


class Meter:
    """Keeps the previous look, to compute the usage since then."""

    def __init__(self) -> None:
        self._before: ProcessLook | None = None
        self._counts: dict[str, dict[int | None, _Counts]] = {}

    def take(
        self, look: ProcessLook, places: Mapping[str, Sequence[RankPlace]], device: Callable[[str, int | None], int]
    ) -> tuple[NodeUsage, dict[str, JobUsage]]:
        """The usage of node and jobs. `places`: the ranks of each job that are always reported; `device`: the
        device of a job's local rank, for ranks that a launcher started."""
        before, self._before = self._before, look
        passed = look.up - before.up if before is not None else 0.0
        ticks = _grown_ticks(before.node if before is not None else None, look.node)
        jobs: dict[str, JobUsage] = {}
        counts: dict[str, dict[int | None, _Counts]] = {}
        for job, procs in look.jobs.items():
            counts[job] = now = _counts(procs)
            earlier = self._counts.get(job) if passed > 0 else None
            ranks = _all_places(places.get(job, ()), procs, partial(device, job))
            told = [_rank(place, procs, earlier, now, passed, look.at) for place in ranks]
            cpu = _grown(earlier, now, None, 0)
            memory = sum(proc.stat.rss for proc in procs)
            total = look.node.mem_total
            jobs[job] = JobUsage(
                at=look.at,
                ranks=tuple(told),
                processes=len(procs),
                cpu=None if cpu is None or ticks is None else min(100.0, 100 * cpu * TICKS_PER_S / ticks[1]),
                mem=min(100.0, 100 * memory / total) if total else None,
            )
        self._counts = counts
        return NodeUsage(look.at, None if ticks is None else 100 * ticks[0] / ticks[1], _memory(look.node)), jobs


def _all_places(
    known: Sequence[RankPlace], procs: Iterable[JobProcess], device: Callable[[int | None], int]
) -> list[RankPlace]:
    """The ranks that the job knows, and those that were found below a launcher, by number."""
    found = {place.rank: place for place in known}
    for proc in procs:
        if proc.role == ProcessRole.RANK and proc.rank is not None and proc.rank not in found:
            found[proc.rank] = RankPlace(proc.rank, device(proc.local), proc.stat.pid)
    return [found[rank] for rank in sorted(found)]


def _rank(
    place: RankPlace,
    procs: Iterable[JobProcess],
    earlier: Mapping[int | None, _Counts] | None,
    now: Mapping[int | None, _Counts],
    passed: float,
    at: float,
) -> RankUsage:
    mine = [proc for proc in procs if proc.rank == place.rank and proc.role != ProcessRole.HELPER]
    own = next((proc for proc in mine if proc.role == ProcessRole.RANK and proc.stat.pid == place.pid), None)
    cpu, read, written = (_grown(earlier, now, place.rank, number) for number in range(3))
    return RankUsage(
        rank=place.rank,
        device=place.device,
        pid=place.pid,
        processes=len(mine),
        cpu=None if cpu is None else 100 * cpu / passed,
        memory_bytes=sum(proc.stat.rss for proc in mine) if mine else None,
        read_rate=None if read is None else read / passed,
        write_rate=None if written is None else written / passed,
        state=own.stat.state if own is not None else "",
        at=at,
    )


def _counts(procs: Iterable[JobProcess]) -> dict[int | None, _Counts]:
    """By rank, and under None all of the job."""
    found: dict[int | None, _Counts] = {None: {}}
    for proc in procs:
        key = (proc.stat.pid, proc.stat.start)
        io = proc.io
        values = (proc.stat.cpu_s, io.rchar if io else None, io.wchar if io else None)
        found[None][key] = values
        if proc.rank is not None:
            found.setdefault(proc.rank, {})[key] = values
    return found


def _grown(
    earlier: Mapping[int | None, _Counts] | None, now: Mapping[int | None, _Counts], rank: int | None, number: int
) -> float | None:
    """The growth of a counter. None if there is nothing to compare.

    The kernel adds the usage of a reaped process to its parent, so the sum over all processes keeps growing. If no
    process reaped it, the sum falls: then only processes that are in both looks count.
    """
    if earlier is None or rank not in earlier or rank not in now:
        return None
    before = {key: values[number] for key, values in earlier[rank].items()}
    after = {key: values[number] for key, values in now[rank].items()}
    old = [value for value in before.values() if value is not None]
    new = [value for value in after.values() if value is not None]
    if not old or not new or before.keys().isdisjoint(after):
        return None
    if sum(new) >= sum(old):
        return float(sum(new) - sum(old))
    pairs = [(before.get(key), value) for key, value in after.items()]
    return float(sum(max(0.0, b - a) for a, b in pairs if a is not None and b is not None))


def _grown_ticks(before: NodeTotals | None, now: NodeTotals) -> tuple[int, int] | None:
    """Busy ticks and all ticks (over 0) since then, as the sum over all CPUs."""
    if before is None or before.busy_ticks is None or before.all_ticks is None:
        return None
    if now.busy_ticks is None or now.all_ticks is None or now.all_ticks <= before.all_ticks:
        return None
    return max(0, now.busy_ticks - before.busy_ticks), now.all_ticks - before.all_ticks


def _memory(node: NodeTotals) -> float | None:
    if not node.mem_total or node.mem_available is None:
        return None
    return 100 * (node.mem_total - node.mem_available) / node.mem_total
