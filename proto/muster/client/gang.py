"""The job of several nodes: one part at each daemon. A gang has no state of its own: its parts have its name as a
label, so that any process finds them again, and nothing of it runs anywhere but in the daemons."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf.duration_pb2 import Duration

from muster.client.blocking_client import BlockingClient
from muster.client.together import ANSWER_S, PATIENCE_S, FailedAsk, ask_together, failures
from muster.v1 import job_pb2

#: Labels of a part: the gang's name, which of its parts this is, how many there are, and which try of the gang it is.
GANG, PART, SIZE, ATTEMPT = "muster-gang", "muster-gang-part", "muster-gang-size", "muster-gang-attempt"
#: The label of the jobs of an app of TorchX: its id.
TORCHX_APP = "torchx-app"
FINAL = frozenset(
    (
        job_pb2.JOB_STATE_SUCCEEDED,
        job_pb2.JOB_STATE_FAILED,
        job_pb2.JOB_STATE_STOPPED,
        job_pb2.JOB_STATE_LOST,
    )
)
#: States in which the ranks of a part have not begun.
_BEFORE = frozenset((job_pb2.JOB_STATE_ACCEPTED, job_pb2.JOB_STATE_CHECKING))
#: Where a port is chosen at which the ranks meet: below those that the kernel gives away (ip_local_port_range).
PORTS = range(20_000, 30_000)
#: Seconds within which a start must be answered: it waits for the cards of a job that has just ended.
STARTED_S = 45.0
#: Seconds for which all parts get ready, checks included: as long as a part waits for its release.
READY_S = 600.0
#: Grace in seconds for parts that are ended because another one could not be started.
ROLLBACK_GRACE_S = 2
_LOOK_S = 3.0
#: Boot modes in which nodes may have different numbers of ranks: a launcher counts them, or each has one process.
COUNT_THEMSELVES = ("command", "torchrun")


class GangNotStarted(RuntimeError):
    """Raised when a gang was not started. `reasons`: of the failures, by part. `left`: parts that could not be ended
    and may still exist, as a sentence; empty: nothing of the gang runs."""

    def __init__(self, text: str, reasons: Mapping[str, str], left: str = "") -> None:
        super().__init__(text + left)
        self.reasons, self.left = dict(reasons), left


@dataclass(frozen=True, slots=True)
class GangPart:
    """One part: `node` names its daemon for people; `client` reaches it; `spec` is what it runs there."""

    node: str
    client: BlockingClient
    spec: job_pb2.JobSpec


class Gang:
    """All parts of one try, in the order of their node ranks. Any thread may call it, one at a time."""

    def __init__(self, parts: Sequence[GangPart]) -> None:
        self.parts = tuple(parts)
        #: Whether all parts have begun, by `start` or `begin` of this object.
        self.begun = False
        #: Behind one of them that has failed or was interrupted: as in GangNotStarted.
        self.left = ""

    def start(self) -> None:
        """Starts all parts or none: they are accepted, get ready, and once all are ready begin their ranks. What this
        call started is ended and removed where one part is refused, is not fit or does not answer, and where the call
        is interrupted. Raises GangNotStarted."""
        looked = failures(self.jobs(_LOOK_S))
        if silent := {i: failed for i, failed in looked.items() if not failed.refused}:
            raise self._not_started(silent)  # before anything is started anywhere
        mine = set(looked)  # a part that a daemon has already is another call's

        def start() -> dict[int, FailedAsk]:
            answers = self._ask(lambda part: (part.client.jobs.Start, _start(part)), answer_s=STARTED_S)
            refused = failures(answers)
            there = {i for i, answer in answers.items() if i not in refused and answer.already_existed}
            mine.difference_update(there, {i for i, failed in refused.items() if failed.refused})
            if there and len(there) < len(self.parts):
                # Some parts may have run to their end: the new ones would run without them.
                text = "has a part of this id already: take the job up again, or choose another id"
                refused |= {i: FailedAsk("JOB_ID_CONFLICT", text, refused=True) for i in there}
            return refused or self._begin_together()

        self._all_or_none(start, mine)

    def begin(self) -> None:
        """Goes on with a start whose process died before it had released all parts. Ends and removes all where one does
        not get ready, and where the call is interrupted. Raises GangNotStarted."""
        self._all_or_none(self._begin_together, set(range(len(self.parts))))

    def _all_or_none(self, begin: Callable[[], dict[int, FailedAsk]], mine: set[int]) -> None:
        """Calls `begin`, which returns what went wrong; ends and removes `mine` then, and where it is interrupted.
        Raises GangNotStarted."""
        try:
            refused = begin()
            if refused:
                self.left = self._roll_back(mine)
            self.begun = not refused  # nothing of the `try` comes behind it: an interrupted call has not begun
        except BaseException:  # Ctrl-C as well, also in the middle of ending them
            self.left = self._roll_back(mine)
            raise
        if refused:
            raise self._not_started(refused, self.left)

    def _not_started(self, failed: Mapping[int, FailedAsk], left: str = "") -> GangNotStarted:
        told = "; ".join(f"{self.parts[i].node}: {failed[i]}" for i in sorted(failed))
        return GangNotStarted(told, {self.parts[i].node: failed[i].reason for i in failed}, left)

    def _begin_together(self) -> dict[int, FailedAsk]:
        """The barrier: waits until all parts are ready, then releases them until they have begun. What went wrong."""
        end, pause = time.monotonic() + READY_S, 0.01
        wrong: dict[int, FailedAsk] = {}
        waiting, released = set(range(len(self.parts))), False
        while waiting and time.monotonic() < end:
            jobs = self._ask(lambda part: (part.client.jobs.Get, _get(part)), waiting, PATIENCE_S)
            wrong = failures(jobs)
            for i, answer in jobs.items():
                if i not in wrong and _never_began(answer.job):
                    wrong[i] = FailedAsk("NOT_STARTED", answer.job.verdict.summary or "it has ended", refused=True)
            if wrong:
                return wrong
            ready = {i for i in waiting if _is_ready(jobs[i].job)}
            if not released and ready == waiting and (wrong := self._of_other_size({i: jobs[i].job for i in jobs})):
                return wrong
            if released or ready == waiting:
                # Again until it has begun: a daemon that is restarted just then does not remember it.
                released = True
                held = {i for i in waiting if jobs[i].job.awaits_release}
                self._ask(lambda part: (part.client.jobs.Release, _release(part)), held, PATIENCE_S)
                waiting -= {i for i in waiting if jobs[i].job.state not in _BEFORE}
            if waiting:
                time.sleep(pause)
                pause = min(pause * 1.5, 0.25)
        late = FailedAsk("NOT_READY", f"was not ready within {READY_S:g} s", refused=False)
        return dict.fromkeys(waiting, late)

    def _of_other_size(self, jobs: Mapping[int, job_pb2.Job]) -> dict[int, FailedAsk]:
        """Parts whose node takes the job for one of another size than the first does (`--cards all` where the nodes
        have different numbers of cards): their ranks would wait for each other for ever."""
        sizes = {
            i: job.world_size
            for i, job in jobs.items()
            if job.spec.node_count > 1 and job.spec.boot not in COUNT_THEMSELVES and job.world_size
        }
        if len(set(sizes.values())) < 2:
            return {}
        first = min(sizes)
        text = "its number of ranks is {}, and that of {} is {}: ask for the same number of cards or ranks on each node"
        per_node = {i: size // jobs[i].spec.node_count for i, size in sizes.items()}
        return {
            i: FailedAsk("NOT_STARTED", text.format(count, self.parts[first].node, per_node[first]), refused=True)
            for i, count in per_node.items()
            if count != per_node[first]
        }

    def _roll_back(self, mine: Iterable[int]) -> str:
        """Ends and removes these parts; the words for those that it could not."""
        grace = Duration(seconds=ROLLBACK_GRACE_S)
        stopped = self._ask(
            lambda part: (
                part.client.jobs.Stop,
                job_pb2.StopRequest(job_id=part.spec.job_id, grace=grace, reason="another node did not start"),
            ),
            mine,
            answer_s=ANSWER_S + ROLLBACK_GRACE_S,
        )
        left = {i: failed for i, failed in failures(stopped).items() if failed.reason != "JOB_NOT_FOUND"}
        over = {i for i, answer in stopped.items() if not isinstance(answer, FailedAsk)}
        removed = self._ask(
            lambda part: (part.client.jobs.Delete, job_pb2.DeleteRequest(job_id=part.spec.job_id)), over
        )
        left |= {i: failed for i, failed in failures(removed).items() if failed.reason != "JOB_NOT_FOUND"}
        if not left:
            return ""
        what = "; ".join(f"{self.parts[i].spec.job_id} on {self.parts[i].node} ({left[i]})" for i in sorted(left))
        names = " ".join(dict.fromkeys(self.parts[i].spec.job_id for i in sorted(left)))
        return f". May still exist: {what}: run `muster stop {names}` there"

    def stop(
        self,
        reason: str,
        grace_s: float | None = None,
        among: Iterable[int] | None = None,
        patience_s: float = PATIENCE_S,
        answer_s: float = ANSWER_S,
    ) -> dict[int, FailedAsk]:
        """Orders all parts (or those `among` them) to stop, and does not wait for their end. `grace_s`: 0 kills; None:
        as long as each part's spec says. Returns the parts that could not be reached: they run on until they are asked
        again."""

        def order(part: GangPart) -> tuple[Any, Any]:
            request = job_pb2.StopRequest(job_id=part.spec.job_id, reason=reason, timeout=Duration())
            if grace_s is not None:
                request.grace.FromMilliseconds(round(grace_s * 1000))
            return part.client.jobs.Stop, request

        refused = failures(self._ask(order, among, patience_s, answer_s))
        return {i: failed for i, failed in refused.items() if failed.reason != "JOB_NOT_FOUND"}

    def jobs(
        self, patience_s: float = _LOOK_S, among: Iterable[int] | None = None, answer_s: float = ANSWER_S
    ) -> dict[int, job_pb2.Job | FailedAsk]:
        """Each part (or those `among` them) as its daemon shows it now."""
        answers = self._ask(lambda part: (part.client.jobs.Get, _get(part)), among, patience_s, answer_s)
        return {i: answer if isinstance(answer, FailedAsk) else answer.job for i, answer in answers.items()}

    def _ask(
        self,
        call: Any,
        among: Iterable[int] | None = None,
        patience_s: float = PATIENCE_S,
        answer_s: float = ANSWER_S,
    ) -> dict[int, Any]:
        asks = {}
        for i in range(len(self.parts)) if among is None else sorted(among):
            method, request = call(self.parts[i])
            asks[i] = lambda s, method=method, request=request: method.future(request, timeout=s)
        return ask_together(asks, patience_s, answer_s)


def find(
    name: str, clients: Mapping[str, BlockingClient], patience_s: float = _LOOK_S
) -> tuple[Gang | None, dict[str, FailedAsk]]:
    """The last try of the gang of this name, by what the daemons know, and the daemons that do not answer. `clients`:
    by node; `patience_s`: for how long one is looked for that may be restarting. None: no daemon that answers knows it.
    The specs of its parts lack the values of their environment."""
    labels = {GANG: name}
    asks = {
        node: lambda s, client=client: client.jobs.List.future(job_pb2.ListRequest(labels=labels), timeout=s)
        for node, client in clients.items()
    }
    answers = ask_together(asks, patience_s)
    silent = failures(answers)
    found = [
        (label_number(job.spec, ATTEMPT), label_number(job.spec, PART), GangPart(node, clients[node], job.spec))
        for node, answer in answers.items()
        if node not in silent
        for job in answer.jobs
        if is_part(job, name)
    ]
    if not found:
        return None, silent
    last = max(attempt for attempt, _, _ in found)
    parts = sorted(((part, each) for attempt, part, each in found if attempt == last), key=lambda pair: pair[0])
    return Gang([each for _, each in parts]), silent


def attempt_id(name: str, attempt: int) -> str:
    """The id of the jobs of a try (0: the first)."""
    return f"{name}.r{attempt}" if attempt else name


def labels_of(name: str, part: int, size: int, attempt: int) -> dict[str, str]:
    """The labels by which `find` finds a part."""
    return {GANG: name, PART: str(part), SIZE: str(size), ATTEMPT: str(attempt)}


def is_part(job: job_pb2.Job, name: str) -> bool:
    """Whether a job is a part of the gang of this name. Anybody may write a label; the id says whose part it is."""
    return job.spec.labels.get(GANG) == name and job.job_id == attempt_id(name, label_number(job.spec, ATTEMPT))


def label_number(spec: job_pb2.JobSpec, label: str) -> int:
    """The value of a label that is a number; 0 for anything else."""
    text = spec.labels.get(label, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 6 else 0


def _start(part: GangPart) -> job_pb2.StartRequest:
    spec = job_pb2.JobSpec()
    spec.CopyFrom(part.spec)
    spec.hold = True
    return job_pb2.StartRequest(spec=spec)


def _get(part: GangPart) -> job_pb2.GetRequest:
    return job_pb2.GetRequest(job_id=part.spec.job_id)


def _release(part: GangPart) -> job_pb2.ReleaseRequest:
    return job_pb2.ReleaseRequest(job_id=part.spec.job_id)


def _is_ready(job: job_pb2.Job) -> bool:
    return job.awaits_release or job.state not in _BEFORE


def _never_began(job: job_pb2.Job) -> bool:
    """Whether it has ended without a rank that ran."""
    ran = job.HasField("started_at") and not all(rank.outcome == job_pb2.RANK_OUTCOME_NOT_STARTED for rank in job.ranks)
    return job.state in FINAL and not ran
