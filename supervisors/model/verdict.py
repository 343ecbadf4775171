"""The verdict: computes from the ends of the ranks how the job ended, and what to do."""

import os
import signal
import time
from collections.abc import Mapping
from typing import Any

from muster.probes.kernel import endings, process
from muster.supervisors.model import node_ends
from muster.supervisors.model.lifecycle import Job, Rank, Verdict
from muster.supervisors.model.rank_ends import (
    OWN_FAILURE,
    ended_service,
    failed,
    first_failure,
    is_timed_out,
    known,
    lost_service,
    service_name,
    shell_code,
    signalled_all,
    unordered,
)
from muster.supervisors.model.states import Outcome, State, StopCause

#: Of a rank that hung and then, asked to end, ended well: the job did not do what it was started for.
HUNG_CODE = 128 + signal.SIGTERM
#: Signals with which people and schedulers end processes; others come of what a program does.
FROM_OUTSIDE = frozenset({signal.SIGKILL, *process.END_SIGNALS})
#: Of a job whose running time was over, as timeout(1) has it; and the reason by which programs know it.
TIMED_OUT_CODE, TIMED_OUT = 124, "TIMED_OUT"
_AFTER_HANG = "RETRY_HERE", "the job hung, and no fault of the node is known"


def _not_known(ranks: tuple[int, ...]) -> str:
    """What is added to a sentence about the rank that failed first."""
    if not ranks:
        return ""
    named = f"{', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"
    return f"; ranks {named} ended while no supervisor was running; which of them failed first is unknown"


def so_far(job: Job) -> Verdict | None:
    """The verdict of an ended job; the facts so far of a job that is ending; None for a running job."""
    if (end := known(job)) is not None:
        return end
    stop = job.stop
    if stop is None or job.state is not State.STOPPING:
        return None
    first = first_failure(job)
    if first is None:
        by, reason = stopper(job)
        text = f"is being stopped by {by}" + (f": {reason}" if reason else "")
        return Verdict(0, text, recommendation="UNSPECIFIED", stopped_by=by)
    code, text = shell_code(first.status), endings.describe(first.status)
    if first.outcome is Outcome.HUNG:
        code, text = code or HUNG_CODE, "hung" + (f": {stop.reason}" if stop.reason else "")
    text = f"is being stopped: rank {first.rank} {text}{_not_known(unordered(job))}"
    return Verdict(code, text, first.rank, recommendation="UNSPECIFIED")


def recommend(job: Job, first: Rank, fault: str) -> tuple[str, str]:
    """What to do about a job that ended abnormally, and why: ModelArts' table of its environment pre-check, and what
    its one row for a sound node leaves open.

    | pre-check | hardware | the first rank | |
    |---|---|---|---|
    | failed | any | any | RETRY_ELSEWHERE |
    | passed | fault | any | RETRY_ELSEWHERE |
    | passed | no fault | killed by somebody, hung, or its end is lost | RETRY_HERE |
    | passed | no fault | anything else | FAIL |

    A pre-check that refuses a job says the first row itself (agent/jobs/live/job_task.py); here it did not refuse it.
    `fault`: a sentence about the hardware, or empty.
    """
    if (elsewhere := _blamed(job, fault)) is not None:
        return elsewhere
    if first.outcome is Outcome.LOST:
        return "RETRY_HERE", "the exit status is unknown, and no fault of the node is known"
    if first.outcome is Outcome.NOT_STARTED:
        return "FAIL", "the command cannot be executed as given"
    if first.outcome is Outcome.HUNG:
        return _AFTER_HANG
    if first.outcome is Outcome.OUT_OF_MEMORY or first.memory_limit:
        return "FAIL", "the job needs more memory than it may use, and a retry would fail again"
    if first.outcome is Outcome.SIGNALLED and first.status is not None and os.WTERMSIG(first.status) in FROM_OUTSIDE:
        return "RETRY_HERE", "a signal from outside the job ended it, and no fault of the job or the node is known"
    return "FAIL", "the job failed by itself, and no fault of the node is known"


def _blamed(job: Job, fault: str) -> tuple[str, str] | None:
    """The recommendation where the node is to blame."""
    unfit = [check["item"] for check in job.checks if blames_node(check)]
    if unfit:
        return "RETRY_ELSEWHERE", f"the node failed its pre-check ({', '.join(unfit)}): isolate the node"
    if fault:
        return "RETRY_ELSEWHERE", f"{fault}: isolate the node"
    return None


def reach(job: Job, first: Rank | None, last_lines: tuple[str, ...], fault: str = "") -> tuple[State, Verdict]:
    """State and verdict of a job all of whose ranks have ended. `first` is the rank that failed first, if one did;
    `last_lines` are its own, or those of the service that has ended; `fault`: a sentence about the hardware."""
    victims = tuple(r.rank for r in job.ranks if r.outcome is Outcome.GANG_VICTIM)
    lost = [r for r in job.ranks if r.outcome is Outcome.LOST]
    stop = job.stop
    if is_timed_out(job):
        return State.FAILED, _timed_out(job, victims)
    asked = stop is not None and (stop.cause is StopCause.REQUESTED or signalled_all(job))
    if asked and first is None:
        return State.STOPPED, _stopped(job, lost, victims, fault)
    if stop is not None and stop.cause is StopCause.NOT_STARTED and first is None:
        return not_prepared(f"the job could not be prepared: {stop.reason}", elsewhere=True)
    if (service := ended_service(job)) is not None and lost_service(job):
        return _without_service(job, service, last_lines, victims, fault)
    served = stop is not None and stop.cause is StopCause.SERVED
    if first is None and any(
        (r.outcome is not Outcome.EXITED or r.status != 0) and not (served and r.serves) for r in job.ranks
    ):
        raise AssertionError(f"no rank failed, yet not all succeeded: {job.ranks}")  # success is never invented
    if first is None:
        serving = sum(r.outcome is not Outcome.EXITED for r in job.ranks)
        count = len(job.ranks) - serving
        who = f"all {count} ranks" if count > 1 else f"rank {next(r.rank for r in job.ranks if not r.serves)}"
        summary = f"{who} exited with code 0"
        return State.SUCCEEDED, Verdict(
            0, summary + (f"; {serving} that served them ended after that" if serving else "")
        )
    end = _failed(job, first, last_lines, victims, fault)
    end.summary += _not_known(unordered(job))
    by_somebody = stop is not None and stop.cause is StopCause.REQUESTED
    if by_somebody and first.outcome is Outcome.LOST:  # what is not known is no success, but it was asked for
        end.stopped_by = stopper(job)[0]
        end.summary += f"; {end.stopped_by} had requested a stop"
        end.recommendation, end.recommendation_reason = "NONE", "the stop was requested"
    return State.LOST if first.outcome is Outcome.LOST else State.FAILED, end


def _without_service(
    job: Job, service: Rank, last_lines: tuple[str, ...], victims: tuple[int, ...], fault: str
) -> tuple[State, Verdict]:
    how = endings.describe(service.status)
    if service.outcome is Outcome.NOT_STARTED:
        how = "could not be started"
    elif service.outcome is Outcome.LOST:
        how = "has ended, with an unknown exit status"
    summary = f"{service_name(service)} {how}" + (f" ({service.detail})" if service.detail else "")
    ran = any(rank.pid for rank in job.ranks)
    summary += " while the ranks were running" if ran else "; no rank was started"
    if victims:
        summary += f"; {len(victims)} rank{'s were' if len(victims) > 1 else ' was'} stopped"
    code = shell_code(service.status) if service.status else OWN_FAILURE
    state = State.LOST if service.outcome is Outcome.LOST else State.FAILED
    return state, Verdict(code, summary, None, last_lines, victims, *recommend(job, service, fault))


def _failed(job: Job, first: Rank, last_lines: tuple[str, ...], victims: tuple[int, ...], fault: str) -> Verdict:
    where = f"rank {first.rank} (device {first.device})"
    if first.outcome is Outcome.LOST:
        summary = f"the exit status of {where} is unknown: {first.detail}"
        return Verdict(OWN_FAILURE, summary, first.rank, last_lines, victims, *recommend(job, first, fault))
    if first.outcome is Outcome.NOT_STARTED:
        summary = f"{where} could not be started: {first.detail}"
        code = shell_code(first.status) if first.status else OWN_FAILURE
        return Verdict(code, summary, first.rank, (), victims, *recommend(job, first, fault))
    if told := _of_other_node(first, last_lines):
        advice = _blamed(job, fault) or node_ends.recommend(told)
        return Verdict(shell_code(first.status), told, first.rank, last_lines, victims, *advice)
    if first.outcome is Outcome.HUNG and job.stop is not None:
        return _hung(job, first, last_lines, victims, fault)
    summary = f"{where} {endings.describe(first.status)}" + (f" ({first.detail})" if first.detail else "")
    others = [str(r.rank) for r in job.ranks if failed(r) and r is not first]
    if others:
        summary += f"; also failed at nearly the same time: rank {', '.join(others)}"
    if victims:
        summary += f"; {len(victims)} other rank{'s were' if len(victims) > 1 else ' was'} stopped"
    code = shell_code(first.status)
    return Verdict(code, summary, first.rank, last_lines, victims, *recommend(job, first, fault))


def _of_other_node(first: Rank, last_lines: tuple[str, ...]) -> str:
    """What the program that runs on a node of an MPI job says of another node that ended the job; empty: nothing."""
    is_ours = first.of_mpi and first.outcome is Outcome.EXITED
    return node_ends.read(last_lines[-1]) if is_ours and last_lines else ""


def _hung(job: Job, first: Rank, last_lines: tuple[str, ...], victims: tuple[int, ...], fault: str) -> Verdict:
    assert job.stop is not None
    hung = [r for r in job.ranks if r.outcome is Outcome.HUNG]
    where = f"rank {first.rank} (device {first.device})" if len(hung) == 1 else f"{len(hung)} ranks"
    if len(hung) == len(job.ranks):
        where = "the job"
    code = shell_code(first.status) or HUNG_CODE
    # A reason that names the ranks is complete: where each is, and which waits for which.
    by_name = job.stop.reason.startswith("rank")
    text = ("hung" if by_name else f"{where} hung") + (f": {job.stop.reason}" if job.stop.reason else "")
    return Verdict(code, text, first.rank, last_lines, victims, *recommend(job, first, fault))


def not_prepared(summary: str, elsewhere: bool) -> tuple[State, Verdict]:
    """Of a job whose ranks never ran; `elsewhere`: this node is to blame."""
    if elsewhere:
        return State.FAILED, Verdict(
            OWN_FAILURE,
            summary,
            recommendation="RETRY_ELSEWHERE",
            recommendation_reason="this node could not prepare the job",
        )
    return State.FAILED, Verdict(
        OWN_FAILURE, summary, recommendation="RETRY_HERE", recommendation_reason="the job did not run"
    )


def card_missing(job: Job, missing: Mapping[int, str]) -> tuple[State, Verdict]:
    """Of a job some of whose cards the driver does not list any more, so that its next attempt has no cards to run on.
    `missing`: their UUIDs by the job's numbers."""
    named = " and ".join(f"card {card} ({uuid})" for card, uuid in sorted(missing.items()))
    what = f"the driver no longer lists {named}"
    code, summary = OWN_FAILURE, f"{what}: attempt {job.attempt} was not started"
    if job.past:
        code, summary = job.past[-1].exit_code, f"{summary}; attempt {job.past[-1].number}: {job.past[-1].summary}"
    reason = f"{what}: isolate the node"
    return State.FAILED, Verdict(code, summary, recommendation="RETRY_ELSEWHERE", recommendation_reason=reason)


def rebooted(job: Job) -> tuple[State, Verdict]:
    """Of a job of which nothing ran when the node was rebooted."""
    if not job.has_run:
        return not_prepared("the node was rebooted before the job began", elsewhere=False)
    doing = f"in its {job.step_name}" if job.step is not None else "between two attempts"
    if job.has_services:
        doing = "starting its services"
    summary = f"the node was rebooted while the job was {doing}"
    code = OWN_FAILURE
    if job.past:
        code, summary = job.past[-1].exit_code, f"{summary}; attempt {job.past[-1].number}: {job.past[-1].summary}"
    return State.FAILED, Verdict(
        code, summary, recommendation="RETRY_HERE", recommendation_reason="the node is up again"
    )


def stopper(job: Job) -> tuple[str, str]:
    """Who stops or stopped a job, and the reason that was given."""
    assert job.stop is not None
    if job.asked is not None and signalled_all(job):
        return job.asked.by or str(StopCause.REQUESTED), job.asked.reason
    return job.stop.by or str(job.stop.cause), job.stop.reason


def reason(job: Job) -> str:
    """The word by which programs know a special end: TIMED_OUT; else empty."""
    return TIMED_OUT if known(job) is not None and is_timed_out(job) else ""


def _timed_out(job: Job, victims: tuple[int, ...]) -> Verdict:
    """Whatever its ranks exited with: they were told to end."""
    by, reason = stopper(job)
    summary = f"{TIMED_OUT}: stopped by {by}: {reason}" + ("; SIGKILL was needed" if job.killed else "")
    return Verdict(
        TIMED_OUT_CODE,
        summary,
        None,
        (),
        victims,
        "NONE",
        "its time limit had passed",
        stopped_by=by,
    )


def _stopped(job: Job, lost: list[Rank], victims: tuple[int, ...], fault: str) -> Verdict:
    by, reason = stopper(job)
    # The first rank that did not end well gives the code, as a shell would see the job: 0 where all ended well within
    # the grace. A job that was stopped before it ran did nothing: 143.
    bad = [rank for number in job.ends if (rank := job.rank(number)).status]
    code = shell_code(bad[0].status) if bad else (OWN_FAILURE if lost else 0)
    if all(r.pid == 0 for r in job.ranks):
        code = 128 + signal.SIGTERM
    summary = f"stopped by {by}" + (f": {reason}" if reason else "")
    recommendation = "NONE", "the stop was requested"
    if job.asked is not None and job.asked.hung_since:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(job.asked.hung_since))
        summary = f"hung since {at}, then {summary}"
        recommendation = _blamed(job, fault) or _AFTER_HANG
    before = [r for r in bad if r.outcome in (Outcome.EXITED, Outcome.SIGNALLED)]
    if before:
        first, count = f"rank {before[0].rank} {endings.describe(before[0].status)}", len(before)
        several = f"{count} ranks ended before the stop reached them: {first}"
        summary += "; " + (several if count > 1 else f"{first} before the stop reached it")
    if job.killed:
        summary += "; SIGKILL was needed"
    return Verdict(code, summary, None, (), victims, *recommendation, stopped_by=by)


def blames_node(check: dict[str, Any]) -> bool:
    """Whether the result of a check is a reason to isolate the node, and not to look at the request (a limit, say, that
    it may not have)."""
    return check.get("status") == "CRITICAL" and check.get("action") != "INVESTIGATE"
