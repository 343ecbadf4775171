"""Joins records of the same jobs from several nodes into records of whole jobs.

Only so can the rule find the odd rank on another node, or see that a rank at work there is why the ranks here wait.
"""

import heapq
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field

from muster.probes.hang.hang_records import Record
from muster.probes.kernel.dataclass import dataclass

#: Jobs that are kept at a time; beyond that the least recently seen one is closed.
MAX_JOBS = 1000
#: Seconds between two records of a node, until it is known.
_USUAL_S = 15.0
#: A period ends with the second record of a node, and after this share of the usual time between two.
_PERIOD = 0.9
#: For so many times that, the processes of a node of which nothing comes are as they were: a record may be lost.
_PATIENCE = 3


def joined(nodes: Sequence[Iterable[Record]]) -> Iterator[Record]:
    """One record for each job and period, with the time of the last in it. Each node's are in the order of time; the
    clocks of the nodes are taken to agree."""
    jobs: OrderedDict[str, _Joint] = OrderedDict()
    for node, record in heapq.merge(*map(_numbered, range(len(nodes)), nodes), key=lambda pair: pair[1].t):
        joint = jobs.setdefault(record.job, _Joint())
        jobs.move_to_end(record.job)
        if len(jobs) > MAX_JOBS:
            yield jobs.popitem(last=False)[1].closed()
        if joint.is_over(node, record.t):
            yield joint.closed()
        joint.take(node, record)
    for joint in jobs.values():
        yield joint.closed()


def _numbered(node: int, records: Iterable[Record]) -> Iterator[tuple[int, Record]]:
    for record in records:
        yield node, record


@dataclass(slots=True)
class _Joint:
    """A job: the last record of each node, and which of them came in this period."""

    last: dict[int, Record] = field(default_factory=dict)
    here: list[int] = field(default_factory=list)
    usual_s: float = _USUAL_S
    closed_at: float | None = None
    #: A counter that grows as that of the node that received most: others' background adds up to no sign of life.
    net_bytes: float | None = None
    net_rate: float = 0.0

    def is_over(self, node: int, t: float) -> bool:
        """A record of this node at this time is one of the next period."""
        if not self.here:
            return False
        return node in self.here or not 0 <= t - self.last[self.here[0]].t <= _PERIOD * self.usual_s

    def take(self, node: int, record: Record) -> None:
        """Takes a record of this period."""
        before = self.last.pop(node, None)  # the order is that of time
        if before is not None and (passed := record.t - before.t) > 0:
            self.usual_s += 0.2 * (min(passed, 4 * self.usual_s) - self.usual_s)
            if record.job_net_rate is not None:
                self.net_rate = max(self.net_rate, record.job_net_rate)
            elif record.net_bytes is not None and before.net_bytes is not None:
                self.net_rate = max(self.net_rate, (record.net_bytes - before.net_bytes) / passed)
        self.last[node] = record
        self.here.append(node)

    def closed(self) -> Record:
        """The record of this period, which begins the next."""
        newest = self.last[self.here[-1]]
        here = [self.last[node] for node in self.here]
        near = [record for record in self.last.values() if newest.t - record.t <= _PATIENCE * self.usual_s]
        if any(record.net_bytes is not None or record.job_net_rate is not None for record in here):
            passed = 0.0 if self.closed_at is None else max(0.0, newest.t - self.closed_at)
            self.net_bytes = (self.net_bytes or 0.0) + self.net_rate * passed
        procs = {(p.rank, p.key): p for record in near for p in record.procs or ()}
        cards = {(c.index, c.rank): c for record in here for c in record.cards or ()}
        found = Record(
            t=newest.t,
            job=newest.job,
            procs=None if all(r.procs is None for r in near) else tuple(sorted(procs.values(), key=lambda p: p.key)),
            cards=None if all(r.cards is None for r in here) else tuple(cards.values()),
            log_bytes={rank: size for record in here for rank, size in record.log_bytes.items()},
            log_lines={rank: lines for record in here for rank, lines in record.log_lines.items()},
            has_log=any(record.has_log for record in here),
            net_bytes=self.net_bytes,
            job_net_least=max((r.job_net_least for r in here if r.job_net_least is not None), default=None),
            driver_hangs=any(record.driver_hangs for record in near),
            others=max(0, newest.others + 1 - len(self.last)),
            nodes_known=newest.nodes_known,
            asked=any(record.asked for record in near),
            library=next((record.library for record in reversed(here) if record.library is not None), None),
            stacks=tuple(sorted((x for record in here for x in record.stacks), key=lambda x: (x.t, x.rank))),
            samples=tuple(sorted((x for record in here for x in record.samples), key=lambda x: (x.t, x.rank))),
        )
        self.here, self.net_rate, self.closed_at = [], 0.0, newest.t
        return found
