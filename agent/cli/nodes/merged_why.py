"""`muster why JOB --hosts`: which rank on which node of a job failed first, and who were only its victims."""

import json
import re
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from muster.agent.cli.client.calls import DaemonConnection, connect
from muster.agent.cli.exits import CommandFailed, Exit
from muster.agent.cli.nodes.hosts import GangHost
from muster.agent.text import clean, local
from muster.agent.why.causes import first_node
from muster.agent.why.causes.first_node import NodePart
from muster.client.gang import ATTEMPT, GANG, TORCHX_APP, is_part, label_number
from muster.probes.kernel.dataclass import dataclass
from muster.v1 import job_pb2, telemetry_pb2

#: Seconds that one report may take.
REPORT_S = 60.0
#: How often a daemon's clock is read; the answer that was the quickest counts.
CLOCK_READS = 5
_FAILED = frozenset(("JOB_STATE_FAILED", "JOB_STATE_LOST"))


@dataclass(frozen=True, slots=True)
class NodeClock:
    """A node's clock against this one: by how many seconds it is ahead, and how far that may be wrong."""

    ahead: float
    doubt: float


@dataclass(frozen=True, slots=True)
class NodeReport:
    """What one node reports of its part. `failure`: why it reports nothing."""

    host: GangHost
    found: dict[str, Any] | None = None
    text: str = ""
    clock: NodeClock = NodeClock(0.0, 0.0)
    failure: str = ""

    @property
    def at(self) -> float:
        """When its first rank failed, or its part ended, by this node's clock; in seconds since the epoch."""
        return float((self.found or {}).get("zero") or 0.0) - self.clock.ahead

    @property
    def rank(self) -> int | None:
        """The rank that failed first there."""
        verdict = (self.found or {}).get("verdict") or {}
        return verdict.get("causeRank", verdict.get("firstFailedRank"))

    @property
    def has_failed(self) -> bool:
        """False where it succeeded, still runs, or was stopped."""
        return self.found is not None and self.found["state"] in _FAILED

    @property
    def summary(self) -> str:
        """One sentence."""
        if self.found is None:
            return self.failure
        state = self.found["state"].removeprefix("JOB_STATE_")
        told = (self.found.get("verdict") or {}).get("summary") or self.found["headline"]
        return f"{state}: {told}"


@dataclass(frozen=True, slots=True)
class MergedReport:
    """All nodes of a job. `first`: those to blame, more than one where their order cannot be told; `rest`: the others,
    by time."""

    job: str
    first: tuple[NodeReport, ...]
    rest: tuple[NodeReport, ...]


def collect(hosts: Sequence[GangHost], job: str, *, colour: bool) -> MergedReport:
    """Asks all nodes. Raises CommandFailed where none of them knows the job."""
    found: dict[str, list[NodeReport]] = {}

    def ask(host: GangHost) -> None:
        found[host.label] = _reports(host, job, colour=colour)

    # At once, so that a node that does not answer keeps no other waiting; daemons, so that Ctrl-C ends all.
    threads = [threading.Thread(target=ask, args=(host,), daemon=True) for host in hosts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    reports = [report for host in hosts for report in found[host.label]]
    if all(report.found is None for report in reports):
        told = "; ".join(f"{report.host.label}: {report.failure}" for report in reports)
        raise CommandFailed(f"no report of job {job} at these hosts: {told}", Exit.NO_SUCH_JOB)
    return merged(job, reports)


def merged(job: str, reports: Sequence[NodeReport]) -> MergedReport:
    """Who is to blame (first_node.py), and the others."""
    parts = [NodePart(one.has_failed, _kind(one), one.at, one.clock.doubt) for one in reports]
    first = [reports[place] for place in first_node.first(parts)]
    rest = sorted((report for report in reports if report not in first), key=lambda report: report.at)
    return MergedReport(job, tuple(first), tuple(rest))


def page(found: MergedReport) -> str:
    """For people: who is to blame, the others with their times, then the page of the first."""
    lines = [_blame(found), ""]
    begin = found.first[0].at if found.first else min(report.at for report in found.rest if report.found is not None)
    for report in (*found.first, *found.rest):
        rank = f" rank {report.rank}" if report.rank is not None else ""
        when = f"{report.at - begin:+8.2f}s" if report.found is not None else "        -"
        lines.append(f"  {when}  {report.host.label}{rank}: {clean(report.summary)}")
    for report in (*found.first, *found.rest):
        if abs(report.clock.ahead) > max(1.0, 2 * report.clock.doubt):
            which = "ahead of" if report.clock.ahead > 0 else "behind"
            off = f"{abs(report.clock.ahead):.1f} s {which} this node's"
            lines.append(f"  the clock of {report.host.label} is {off}; times are this node's")
    shown = found.first[:1] or tuple(report for report in found.rest if report.found is not None)[:1]
    for report in shown:
        lines += [
            "",
            f"On {report.host.label} ({report.host.address}), by its own clock:",
            "",
            _runnable(report).rstrip("\n"),
        ]
    return "\n".join(lines) + "\n"


def _runnable(report: NodeReport) -> str:
    """Its page, where the commands about its job name its daemon: here they would ask another one."""
    job = re.escape(str((report.found or {}).get("jobId", "")))
    named = rf"(`muster (?!why )[a-z]+ {job})(?=[ `])"
    return re.sub(named, lambda found: f"{found[1]} --address {report.host.address}", report.text)


def as_json(found: MergedReport) -> dict[str, Any]:
    """With each node's own report as `muster why -o json` prints it."""

    def shown(report: NodeReport) -> dict[str, Any]:
        return {
            "node": report.host.label,
            "address": str(report.host.address),
            "clockAhead": round(report.clock.ahead, 3),
            "clockDoubt": round(report.clock.doubt, 3),
            "at": report.at if report.found is not None else None,
            "rank": report.rank,
            "failure": report.failure,
            "report": report.found,
        }

    return {
        "job": found.job,
        "blame": _blame(found),
        "first": [shown(report) for report in found.first],
        "others": [shown(report) for report in found.rest],
    }


def _blame(found: MergedReport) -> str:
    if not found.first:
        return f"job {found.job}: no part has failed"
    told = []
    for report in found.first:
        assert report.found is not None
        rank = f"rank {report.rank} on " if report.rank is not None else ""
        cause = report.found["cause"]["text"] if report.found.get("cause") else report.summary
        told.append(f"{rank}{report.host.label} at {local(report.at)}: {clean(cause)}")
    if len(told) == 1:
        return f"job {found.job}: first failed {told[0]}"
    return f"job {found.job}: failed first (the clocks do not show in which order): " + "; ".join(told)


def _kind(report: NodeReport) -> str:
    cause = (report.found or {}).get("cause") or {}
    return str(cause.get("kind", ""))


def _reports(host: GangHost, job: str, *, colour: bool) -> list[NodeReport]:
    """At least one; more where a node has several replicas of an app of TorchX."""
    found = []
    try:
        with connect(host.address) as connection:
            for job_id in _replicas_of(connection, job) or [part_of(connection, job)]:
                request = job_pb2.GetReportRequest(job_id=job_id, color=colour)
                answer = connection.call(connection.jobs.GetReport, request, REPORT_S)
                found.append(NodeReport(host, json.loads(answer.json), answer.text))
            clock = _clock(connection)
    except CommandFailed as failure:
        return [NodeReport(host, failure=failure.message)]
    return [replace(report, clock=clock) for report in found]


def _replicas_of(connection: DaemonConnection, app: str) -> list[str]:
    """The jobs of an app of TorchX. Anybody may write a label; the id says whose job it is. Raises CommandFailed."""
    answer = connection.call(connection.jobs.List, job_pb2.ListRequest(labels={TORCHX_APP: app}))
    return sorted(one.job_id for one in answer.jobs if one.job_id.startswith(f"{app}-"))


def part_of(connection: DaemonConnection, job: str) -> str:
    """The job of the last try, where the name is that of a job of several nodes. Raises CommandFailed."""
    answer = connection.call(connection.jobs.List, job_pb2.ListRequest(labels={GANG: job}))
    tries = [one for one in answer.jobs if is_part(one, job)]
    return max(tries, key=lambda one: label_number(one.spec, ATTEMPT)).job_id if tries else job


def _clock(connection: DaemonConnection) -> NodeClock:
    """As NTP does it: the node's time against the middle of asking and answer; wrong by at most half of that time."""
    best = NodeClock(0.0, float("inf"))
    for _ in range(CLOCK_READS):
        asked = time.time()
        answer = connection.call(connection.telemetry.GetTelemetry, telemetry_pb2.GetTelemetryRequest())
        answered = time.time()
        doubt = (answered - asked) / 2
        if doubt < best.doubt:
            best = NodeClock(answer.at.ToNanoseconds() / 1e9 - (asked + answered) / 2, doubt)
    return best
