"""Whose jobs a caller may reach, where users reach only their own (`own_jobs_only` in [access]).

A job is its user's: the one that its spec names, as whom it runs. A job that names none runs as the daemon, and is
reached by those only who may reach all.

A call that is in no table here is for those who reach all jobs. A new call is therefore closed to all others.
"""

import math
import resource
from collections.abc import Mapping
from dataclasses import replace

from muster.agent.config.access_settings import AccessTable
from muster.agent.config.hardening_settings import HardeningTable
from muster.agent.errors import InvalidRequest, NotTheirs
from muster.agent.jobs.entry import Entry
from muster.agent.jobs.hardening import decided as hardening
from muster.agent.jobs.registry import Registry
from muster.probes.kernel.dataclass import dataclass
from muster.supervisors.launch import limits
from muster.supervisors.model.spec import JobSpec, Violation
from muster.supervisors.model.spec_fields import PROCESS_LIMITS, UNLIMITED, limit_text

PACKAGE = "/muster.v1."
#: Seconds by which the time of the event of a job's acceptance may be off that of the record: both are rounded.
ACCEPTED_S = 0.000_01
_STOP = f"{PACKAGE}JobService/Stop"
#: Calls about the job that they name, which must be the caller's.
_NAMED = frozenset(
    {
        f"{PACKAGE}ExecService/EndSession",
        f"{PACKAGE}ExecService/RunCommand",
        f"{PACKAGE}JobService/Delete",
        f"{PACKAGE}JobService/Get",
        f"{PACKAGE}JobService/GetReport",
        f"{PACKAGE}JobService/GetStacks",
        f"{PACKAGE}JobService/Release",
        f"{PACKAGE}JobService/Signal",
        _STOP,
        f"{PACKAGE}JobService/Wait",
        f"{PACKAGE}LogService/ReadLogs",
    }
)
#: Calls that may name a job, which then must be the caller's, and whose handlers leave out what is not the caller's.
_FILTERED = frozenset(
    {
        f"{PACKAGE}EventService/Watch",
        f"{PACKAGE}ExecService/Exec",
        f"{PACKAGE}ExecService/ListSessions",
        f"{PACKAGE}JobService/List",
        f"{PACKAGE}JobService/Start",
        f"{PACKAGE}LogService/ReadNodeLogs",
        f"{PACKAGE}TelemetryService/GetHistory",
        f"{PACKAGE}TelemetryService/GetTelemetry",
        f"{PACKAGE}TelemetryService/RecordTelemetry",
    }
)
#: Calls about the node, for everybody who may connect. They show which job holds a card, by its id.
_OF_NODE = frozenset({f"{PACKAGE}NodeService/GetNode", f"{PACKAGE}ProbeService/ListChecks"})


@dataclass(frozen=True, slots=True)
class Reach:
    """What one caller may reach. `users`: its names as jobs spell them; None: the jobs of everybody. `user`: as whom
    its jobs run."""

    users: frozenset[str] | None = None
    user: str = ""

    @property
    def is_everything(self) -> bool:
        """Whether nothing is left out."""
        return self.users is None

    def covers(self, user: str | None) -> bool:
        """Whether it includes the jobs of a user, as their specs name it. None: of a job that is not known."""
        return self.users is None or user in self.users


EVERYTHING = Reach()


def of_user(table: AccessTable, uid: int, user: str, *, mine: bool) -> Reach:
    """The reach of a user of this node. `mine`: root, or the daemon's own."""
    if not table.own_jobs_only or mine or user in table.admins or str(uid) in table.admins:
        return EVERYTHING
    return Reach(frozenset({user, str(uid)}), user)


def of_certificate(table: AccessTable, name: str) -> Reach:
    """The reach of a client with this name in its certificate."""
    if not table.own_jobs_only or f"certificate:{name}" in table.admins:
        return EVERYTHING
    user = table.user_of(name)
    return Reach(frozenset({user} if user else ()), user)


def is_of_node(method: str) -> bool:
    """Whether a call looks at the node, and so need not show who makes it."""
    return method in _OF_NODE


def check(reach: Reach, method: str) -> None:
    """Raises NotTheirs for a call that only those may make who reach all jobs."""
    if not reach.is_everything and method not in _NAMED | _FILTERED | _OF_NODE:
        what = f"{method.rpartition('.')[2]}: only root and the admins in [access] may call it"
        raise NotTheirs(f"{what}, because own_jobs_only is set: ask one of them")


async def check_job(reach: Reach, method: str, job_id: str, registry: Registry) -> None:
    """`job_id`: of the request; empty: it names none. Raises NotTheirs, JobNotFound, and InvalidRequest where a call
    that must name a job names none."""
    if not job_id and method in _NAMED:
        raise no_job_id()
    if reach.is_everything or not job_id:
        return
    if method == _STOP:
        await registry.accepted(job_id)
    entry = await registry.get(job_id)
    if not reach.covers(entry.spec.user):
        owner = f"user {entry.spec.user}" if entry.spec.user else "the user of musterd"
        text = f"job {job_id} belongs to {owner}: only its owner and admins may reach it (own_jobs_only in [access])"
        raise NotTheirs(text)


def no_job_id() -> InvalidRequest:
    """For a call that must name a job, and names none."""
    return InvalidRequest([Violation("job_id", "is not set: name a job")])


def since(reach: Reach, registry: Registry, job_id: str) -> float:
    """From when on a caller may see what happened under this job's id, in seconds since the epoch: an id may have been
    another user's before. inf: nothing, as of a job that is not known. Ended jobs are known once they are indexed
    (`registry.ended.indexed`)."""
    if reach.is_everything:
        return 0.0
    job = registry.job(job_id)
    if job is None or not reach.covers(job.spec.user if isinstance(job, Entry) else job.user):
        return math.inf
    return job.key[0] - ACCEPTED_S


def as_themselves(reach: Reach, spec: JobSpec, table: HardeningTable) -> JobSpec:
    """The spec of a job that a caller may start. It runs as its caller, with nothing that needs root, and undoes
    nothing of [hardening]. Raises NotTheirs."""
    if reach.is_everything:
        return spec
    if not reach.user:
        raise NotTheirs("this certificate belongs to no user: ask an admin to name one in `certificates` of [access]")
    if not reach.covers(spec.user or reach.user):
        raise NotTheirs(f"user: {spec.user!r}: you may start jobs only as {reach.user} (own_jobs_only in [access])")
    if spec.nice < 0:
        raise NotTheirs(f"nice: {spec.nice}: only root and the admins in [access] may go below 0")
    allowed = _hard_limits()
    for name, value in spec.limits.items():
        most = allowed.get(name, UNLIMITED)
        if most != UNLIMITED and (value == UNLIMITED or value > most):
            asked = f"limits.{name}: {limit_text(value)}"
            raise NotTheirs(f"{asked}: only root and the admins in [access] may exceed the daemon's own {most}")
    if undone := hardening.weaker(spec, table):
        raise NotTheirs(f"{undone} undoes [hardening] of this node: only root and the admins in [access] may do that")
    return replace(spec, user=spec.user or reach.user)


def _hard_limits() -> Mapping[str, int]:
    """The daemon's own, which no job of a user's may exceed."""
    found = {name: resource.getrlimit(limits.RESOURCES[name])[1] for name in PROCESS_LIMITS}
    return {name: UNLIMITED if most == resource.RLIM_INFINITY else most for name, most in found.items()}
