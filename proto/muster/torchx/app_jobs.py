"""The jobs of an app, at all of its daemons: started together or not at all, found, stopped together."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from muster.client import FailedAsk, ask_together, failures
from muster.client.gang import FINAL, ROLLBACK_GRACE_S, STARTED_S
from muster.torchx.app_parts import APP, MARK, PART, REPLICA, ROLE, SIZE, AppPart, AppRequest
from muster.torchx.daemon_hosts import DaemonHost, HostTls, KnownHosts
from muster.torchx.daemons import (
    GLANCE_S,
    LISTED_S,
    LOOK_S,
    DaemonPool,
    named,
)
from muster.v1 import job_pb2

#: Seconds within which all parts of an app should run. After that the app is left as it is: a check may take longer.
START_S = 60.0
_PAGE = 1000


class NotSubmitted(RuntimeError):
    """Raised when an app was not started: nothing of it runs. `left`: but for the jobs that the message names."""

    def __init__(self, text: str, left: str = "") -> None:
        super().__init__(text + left)
        self.left = bool(left)


class NotCancelled(RuntimeError):
    """Raised when not all parts of an app could be asked to stop; those that could be are."""


class NoAnswer(RuntimeError):
    """Raised when no daemon that may know an app, or that may be listed, answers."""


@dataclass(frozen=True, slots=True)
class FoundPart:
    """A job of an app, as its daemon shows it."""

    host: DaemonHost
    tls: HostTls
    job: job_pb2.Job

    @property
    def role(self) -> str:
        return self.job.spec.labels[ROLE]

    @property
    def replica(self) -> int:
        return number(self.job, REPLICA)


@dataclass(slots=True)
class FoundApp:
    """What the daemons know of an app. `silent`: those that do not answer, and why. `submitted_here`: by this process,
    so that all parts were there once."""

    app_id: str
    parts: list[FoundPart] = field(default_factory=list)
    silent: dict[DaemonHost, FailedAsk] = field(default_factory=dict)
    submitted_here: bool = False

    @property
    def size(self) -> int:
        """Replicas of the app, found or not."""
        return max([len(self.parts), *(number(part.job, SIZE) for part in self.parts)])


class AppJobs:
    """Start, find and stop, over the connections of one pool."""

    def __init__(self, pool: DaemonPool) -> None:
        self._pool = pool

    # --- start -------------------------------------------------------------------------------------------------------

    def start(self, request: AppRequest) -> None:
        """Starts all parts. If one of them cannot be started, or ends before a rank of it ran, what this call started
        is ended and removed. Parts that were there before, of the same submit, are left alone. Raises NotSubmitted,
        WrongOption."""
        mine = self._not_there(request)
        tls = request.known.tls
        clients = [self._pool.client(part.host, tls) for part in request.parts]
        try:
            starts = {
                i: lambda s, i=i: clients[i].jobs.Start.future(
                    job_pb2.StartRequest(spec=request.parts[i].spec), timeout=s
                )
                for i in range(len(clients))
            }
            answers = ask_together(starts, answer_s=STARTED_S)
            wrong = failures(answers)
            mine -= {i for i, failed in wrong.items() if failed.refused}
            told = _told(request, wrong) if wrong else self._never_ran(request, clients, mine)
        except BaseException:  # Ctrl-C as well: started together, or not at all
            self._roll_back(request, clients, mine)
            raise
        if told:
            left = self._roll_back(request, clients, mine)
            raise NotSubmitted(f"{request.app_id} was not started: {told}", left)

    def _not_there(self, request: AppRequest) -> set[int]:
        """Which parts their daemons do not have yet. Nothing is changed before all of them have answered."""
        wanted = [(part.host.address, part.spec.job_id) for part in request.parts]
        if len(set(wanted)) < len(wanted):
            raise NotSubmitted(f"{request.app_id}: two replicas have the same job id at one host")
        found = self.find(request.app_id, request.known, LOOK_S)
        silent = {host.address: failed for host, failed in found.silent.items()}
        if wrong := {i: silent[p.host.address] for i, p in enumerate(request.parts) if p.host.address in silent}:
            raise NotSubmitted(f"{request.app_id} was not started: {_told(request, wrong)}")
        there = {(part.host.address, part.job.job_id) for part in found.parts}
        if others := sorted(there - set(wanted)):
            address, job_id = others[0]
            raise NotSubmitted(
                f"{request.app_id} was not started: an app of this id has other hosts or replicas, job {job_id} at "
                f"{address} for one: choose another app_id"
            )
        return {i for i, place in enumerate(wanted) if place not in there}

    def _never_ran(self, request: AppRequest, clients: Sequence[Any], mine: Iterable[int]) -> str:
        """Waits until every part runs or has ended; which of them ended before a rank ran, and why."""
        end, pause = time.monotonic() + START_S, 0.02
        waiting, seen = set(mine), set[int]()
        while waiting and time.monotonic() < end:
            gets = {i: lambda s, i=i: clients[i].jobs.Get.future(_get(request.parts[i]), timeout=s) for i in waiting}
            for i, answer in ask_together(gets, LOOK_S).items():
                if isinstance(answer, FailedAsk):
                    continue  # a daemon that is restarting has the job all the same
                # Twice: a command that does not exist has a process for some milliseconds.
                if answer.job.state in FINAL or (i in seen and _runs(answer.job)):
                    waiting.discard(i)
                seen.add(i)
                if _never_started(answer.job):
                    part = request.parts[i]
                    return f"{part.role}/{part.replica} at {part.host.address}: {answer.job.verdict.summary}"
            if waiting:
                time.sleep(pause)
                pause = min(pause * 1.5, 0.5)
        return ""

    def _roll_back(self, request: AppRequest, clients: Sequence[Any], mine: Iterable[int]) -> str:
        """Ends and removes the parts that this call started; the words for those that it could not."""
        stop = {}
        for i in mine:
            asked = job_pb2.StopRequest(
                job_id=request.parts[i].spec.job_id, reason="torchx: another replica did not start"
            )
            asked.grace.FromSeconds(ROLLBACK_GRACE_S)
            stop[i] = lambda s, i=i, asked=asked: clients[i].jobs.Stop.future(asked, timeout=s + ROLLBACK_GRACE_S)
        stopped = ask_together(stop)
        gone = {i for i, failed in failures(stopped).items() if failed.reason == "JOB_NOT_FOUND"}
        left = {i: failed for i, failed in failures(stopped).items() if i not in gone}
        rest = set(stop) - gone - set(left)
        removals = {
            i: lambda s, i=i: clients[i].jobs.Delete.future(
                job_pb2.DeleteRequest(job_id=request.parts[i].spec.job_id), timeout=s
            )
            for i in rest
        }
        removed = failures(ask_together(removals))
        left |= {i: failed for i, failed in removed.items() if failed.reason != "JOB_NOT_FOUND"}
        if not left:
            return ""
        what = "; ".join(
            f"job {request.parts[i].spec.job_id} at {request.parts[i].host.address} ({failed})"
            for i, failed in sorted(left.items())
        )
        names = " ".join(dict.fromkeys(request.parts[i].spec.job_id for i in sorted(left)))
        return f". May still exist: {what}: run `muster stop {names}` and `muster rm {names}` there"

    # --- find --------------------------------------------------------------------------------------------------------

    def find(self, app_id: str, known: KnownHosts, patience_s: float = GLANCE_S) -> FoundApp:
        """What the daemons know of one app; no parts: none of those that answer knows it. `patience_s`: how long one
        that may be restarting is looked for. Raises WrongOption."""
        apps, silent = self._listed([known], {APP: app_id}, patience_s)
        return apps.get(app_id) or FoundApp(app_id, [], silent)

    def find_all(self, known: Iterable[KnownHosts]) -> tuple[list[FoundApp], dict[DaemonHost, FailedAsk]]:
        """All apps of TorchX, the newest first, and the daemons that do not answer. Raises WrongOption."""
        apps, silent = self._listed(known, {MARK[0]: MARK[1]})
        return sorted(
            apps.values(), key=lambda app: -min(part.job.accepted_at.ToNanoseconds() for part in app.parts)
        ), (silent)

    def _listed(
        self, known: Iterable[KnownHosts], labels: Mapping[str, str], patience_s: float = GLANCE_S
    ) -> tuple[dict[str, FoundApp], dict[DaemonHost, FailedAsk]]:
        where = {(host.address, each.tls): host for each in known for host in each.hosts}
        clients = {key: self._pool.client(host, key[1]) for key, host in where.items()}
        tokens, jobs = dict.fromkeys(where, ""), []
        silent: dict[DaemonHost, FailedAsk] = {}
        while tokens:
            lists = {
                key: lambda s, key=key, token=token: clients[key].jobs.List.future(
                    job_pb2.ListRequest(page_size=_PAGE, page_token=token, labels=labels), timeout=s
                )
                for key, token in tokens.items()
            }
            tokens = {}
            for key, answer in ask_together(lists, patience_s, LISTED_S).items():
                if isinstance(answer, FailedAsk):
                    silent[where[key]] = answer
                    continue
                jobs += [FoundPart(where[key], key[1], job) for job in answer.jobs if _has(job, labels)]
                if answer.next_page_token:
                    tokens[key] = answer.next_page_token
        apps: dict[str, FoundApp] = {}
        for part in jobs:
            app_id = part.job.spec.labels[APP]
            apps.setdefault(app_id, FoundApp(app_id, [], silent)).parts.append(part)
        for app in apps.values():
            app.parts.sort(key=lambda part: (number(part.job, PART), part.role, part.replica))
        return apps, silent

    # --- stop --------------------------------------------------------------------------------------------------------

    def stop(self, app: FoundApp, reason: str) -> None:
        """Asks all parts of an app to stop; does not wait for their end. Raises NotCancelled where a part, or the
        daemon of a part that was not found, does not answer."""
        stops = {}
        for part in app.parts:
            if part.job.state not in FINAL:
                asked = job_pb2.StopRequest(job_id=part.job.job_id, reason=reason)
                asked.timeout.FromSeconds(0)
                client = self._pool.client(part.host, part.tls)
                stops[part.host, part.job.job_id] = lambda s, client=client, asked=asked: client.jobs.Stop.future(
                    asked, timeout=s
                )
        refused = failures(ask_together(stops))
        told = [f"job {job_id} at {host.address}: {failed}" for (host, job_id), failed in refused.items()]
        if app.silent and len(app.parts) < app.size:
            told.append(f"no answer from {named(app.silent)}")
        if told:
            raise NotCancelled(
                f"{app.app_id}: not all replicas could be asked to stop: {'; '.join(told)}: cancel again once the "
                "daemons answer"
            )


def number(job: job_pb2.Job, label: str) -> int:
    """The value of a label that is a number; anybody may write a label, so 0 for anything else."""
    text = job.spec.labels.get(label, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 5 else 0


def _get(part: AppPart) -> job_pb2.GetRequest:
    return job_pb2.GetRequest(job_id=part.spec.job_id)


def _has(job: job_pb2.Job, labels: Mapping[str, str]) -> bool:
    """A damaged job is in every list, whatever it asks for."""
    return all(job.spec.labels.get(name) == value for name, value in labels.items()) and APP in job.spec.labels


def _runs(job: job_pb2.Job) -> bool:
    """Also where a rank has ended since. A job whose command does not exist has a start, too, and fails soon after."""
    ran = (rank.pid and rank.outcome != job_pb2.RANK_OUTCOME_NOT_STARTED for rank in job.ranks)
    return job.HasField("started_at") and any(ran)


def _never_started(job: job_pb2.Job) -> bool:
    if job.state != job_pb2.JOB_STATE_FAILED:
        return False
    return not job.HasField("started_at") or all(rank.outcome == job_pb2.RANK_OUTCOME_NOT_STARTED for rank in job.ranks)


def _told(request: AppRequest, wrong: Mapping[int, FailedAsk]) -> str:
    parts = [(request.parts[i], failed) for i, failed in sorted(wrong.items())]
    return "; ".join(f"{part.role}/{part.replica} at {part.host.address}: {failed}" for part, failed in parts)
