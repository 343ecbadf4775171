"""Which processes of a job are its services, and what these have started: muster ends them after all others."""

from collections.abc import Sequence

from muster.probes.kernel import marks, process
from muster.probes.kernel.process import Stat
from muster.supervisors.model.lifecycle import Rank


def of_services(services: Sequence[Rank], stats: Sequence[Stat]) -> set[int]:
    """Pids of those that descend from a service, are in its session, or have its mark. Raises OSError where there is no
    descriptor to look with."""
    roots = {service.pid for service in services if service.pid}
    numbers = [marks.mark(marks.SERVICE, str(service.local_rank)) for service in services]
    parents = {stat.pid: stat.ppid for stat in stats}
    return {stat.pid for stat in stats if _is_below(stat, roots, parents) or _is_marked(stat.pid, numbers)}


def _is_below(stat: Stat, roots: set[int], parents: dict[int, int]) -> bool:
    at, passed = stat.pid, set[int]()
    while at in parents and at not in passed:
        if at in roots:
            return True
        passed.add(at)
        at = parents[at]
    return stat.session in roots


def _is_marked(pid: int, numbers: list[bytes]) -> bool:
    return any(process.environ_has(pid, mark) for mark in numbers)
