"""The verdict: computes from the ends of the ranks how the job ended, and what to do."""

import os
import signal
import time
from collections.abc import Mapping
from typing import Any

from muster.probes.kernel import endings, process
from muster.supervisors.model import node_ends
from muster.supervisors.model.lifecycle import Job, Rank, Verdict
from muster.supervisors.model.states import SERVICE, Outcome, State, StopCause, log_owner

#: Of muster's own failure and of an unknown outcome (docker's convention for the former).
OWN_FAILURE = 125
#: Of a rank that hung and then, asked to end, ended well: the job did not do what it was started for.
HUNG_CODE = 128 + signal.SIGTERM
#: Of a job whose running time was over, as timeout(1) has it; and the reason by which programs know it.
TIMED_OUT_CODE, TIMED_OUT = 124, "TIMED_OUT"
#: Signals with which people and schedulers end processes; others come of what a program does.
_FROM_OUTSIDE = frozenset({signal.SIGKILL, *process.END_SIGNALS})
#: Seconds within which a stop that somebody asks for, the first end of a rank and a SIGTERM to the supervisor are one
#: thing: a signal that went to everybody (Slurm, the init of a container, a shell) and reached some of them earlier.
SAME_SIGNAL_S = 3.0
#: How long the verdict of a job whose ranks such a signal may have ended waits for the stop, in seconds.
STOP_SETTLE_S = 1.0
_AFTER_HANG = "RETRY_HERE", "the job hung, and no fault of the node is known"
_OWN = frozenset({Outcome.EXITED, Outcome.SIGNALLED, Outcome.OUT_OF_MEMORY, Outcome.HUNG, Outcome.NOT_STARTED})


def outcome(job: Job, number: int, status: int | None, unborn: bool) -> Outcome:
    """How the end of the rank with this number is to be called, given what was going on in the job when it came."""
    if unborn:
        return Outcome.NOT_STARTED
    if status is None:
        return Outcome.LOST
    # A predecessor may have sent SIGTERM and not have lived to write so; or it came from where the stop came from.
    ours = job.terminated or ended_by_signal(status)
    if number <= SERVICE:
        if job.stop is not None and (job.services_told or job.killed or ended_by_signal(status)):
            return Outcome.STOPPED
        return Outcome.SIGNALLED if os.WIFSIGNALED(status) else Outcome.EXITED
    if job.stop is not None and job.concluded is None and ours and job.stop.cause is not StopCause.LEFTOVERS:
        if job.stop.cause is StopCause.HUNG:
            return Outcome.HUNG if number in (job.stop.ranks or (number,)) else Outcome.GANG_VICTIM
        failed_before = job.stop.cause in (StopCause.RANK_FAILED, StopCause.SERVICE_ENDED) and not signalled_all(job)
        return Outcome.GANG_VICTIM if failed_before else Outcome.STOPPED
    return Outcome.SIGNALLED if os.WIFSIGNALED(status) else Outcome.EXITED


def failed(rank: Rank) -> bool:
    """True for a rank that failed by itself, and for a rank that hung, however it then ended."""
    return rank.outcome in (Outcome.LOST, Outcome.HUNG) or (rank.outcome in _OWN and rank.status != 0)


def shell_code(status: int | None) -> int:
    """Exit code for a shell: 128 + n for a signal, 125 for what is not known."""
    if status is None:
        return OWN_FAILURE
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def ended_by_signal(status: int) -> bool:
    """Whether this is what SIGTERM, SIGINT or SIGHUP makes of a process: one that dies of it, or one that handles it
    and exits with the code that a shell would give."""
    if os.WIFSIGNALED(status):
        return os.WTERMSIG(status) in process.END_SIGNALS
    return os.WEXITSTATUS(status) - 128 in process.END_SIGNALS


def signalled_all(job: Job) -> bool:
    """Whether ranks ended by a signal that was meant for everybody: the job was stopped, and no rank failed.

    A SIGTERM to a whole step of Slurm, container or group reaches ranks, supervisor and the sender of the stop in any
    order. That it did is known where the supervisor got it too, or where the first rank that ended badly did so by such
    a signal; and the stop must come at nearly the same time. What such a signal cannot do to a rank (out of memory, an
    end that is lost) stays a failure.
    """
    stop, asked = job.stop, job.asked
    if (
        stop is None
        or asked is None
        or stop.cause not in (StopCause.REQUESTED, StopCause.RANK_FAILED, StopCause.SERVICE_ENDED, StopCause.LEFTOVERS)
    ):
        return False
    if asked.up - stop.since > SAME_SIGNAL_S:
        return False
    if asked.signal_up and abs(asked.signal_up - stop.since) <= SAME_SIGNAL_S:
        return True
    return stop.cause in (StopCause.RANK_FAILED, StopCause.SERVICE_ENDED) and _begun_by_signal(job)


def stop_may_come(job: Job, signal_up: float) -> bool:
    """Whether the ranks have ended as by a signal to everybody, of which the stop has not come yet. `signal_up`: when
    the supervisor got SIGTERM; 0: it did not."""
    if job.asked is not None or (job.stop is not None and job.stop.cause in (StopCause.HUNG, StopCause.MAX_RUNTIME)):
        return False
    recent = bool(signal_up) and process.uptime() - signal_up <= SAME_SIGNAL_S
    return recent or _begun_by_signal(job)


def _begun_by_signal(job: Job) -> bool:
    first = next((rank for number in job.ends if failed(rank := job.rank(number))), None)
    if job.stop is not None and job.stop.cause is StopCause.SERVICE_ENDED:
        first = ended_service(job)
    by_itself = first is not None and first.outcome in (Outcome.EXITED, Outcome.SIGNALLED)
    return by_itself and first is not None and first.status is not None and ended_by_signal(first.status)


def failures(job: Job) -> list[Rank]:
    """The ranks that failed by themselves, in the order of their records: the one in which the kernel reported the
    ends. Their times say less: all that ended in one batch have the same. None where the running time was over, or a
    service had ended: they were told to end."""
    if is_timed_out(job) or lost_service(job):
        return []
    found = [rank for number in job.ends if failed(rank := job.rank(number))]
    if signalled_all(job):
        found = [rank for rank in found if rank.outcome not in (Outcome.EXITED, Outcome.SIGNALLED)]
    end = known(job)
    if end is not None:  # the reported end stays, even if a later version judges the records differently
        found.sort(key=lambda rank: rank.rank != end.first_failed)
    return found


def unordered(job: Job) -> tuple[int, ...]:
    """Ranks of which any may have failed first: they ended while there was no supervisor. Empty: the order is known."""
    found = failures(job)
    alike = [rank.rank for rank in found if found[0].found_by and rank.found_by == found[0].found_by]
    return tuple(sorted(alike)) if len(alike) > 1 else ()


def _not_known(ranks: tuple[int, ...]) -> str:
    """What is added to a sentence about the rank that failed first."""
    if not ranks:
        return ""
    named = f"{', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"
    return f"; ranks {named} ended while no supervisor was running; which of them failed first is unknown"


def first_failure(job: Job) -> Rank | None:
    """The rank that failed first. This is the only place that says which one it is; once known it stays."""
    end = known(job)
    if end is not None and end.first_failed is None:
        return None
    return next(iter(failures(job)), None)


def ended_service(job: Job) -> Rank | None:
    """The service that was the first to end without that muster had told it to."""
    ended = [one for one in job.services if one.outcome not in (None, Outcome.STOPPED)]
    return min(ended, key=lambda one: one.ended_at, default=None)


def lost_service(job: Job) -> bool:
    """Whether the attempt ended, or ends, because a service of the job has."""
    by_it = job.stop is not None and job.stop.cause is StopCause.SERVICE_ENDED
    return by_it and ended_service(job) is not None


def service_name(service: Rank) -> str:
    """For people."""
    return f"{log_owner(service.rank)} ({service.role})"


def known(job: Job) -> Verdict | None:
    """The verdict of a job that has ended, or of which only the epilog still runs."""
    return job.verdict or (job.concluded[1] if job.concluded is not None else None)


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
    if first.outcome is Outcome.SIGNALLED and first.status is not None and os.WTERMSIG(first.status) in _FROM_OUTSIDE:
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
    is_ours = first.role.startswith("mpi-") and first.outcome is Outcome.EXITED
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


def is_timed_out(job: Job) -> bool:
    """Whether the job ended, or ends, because its running time was over: no failure and no stop came before. Earlier
    versions ended such a job as STOPPED, which stays."""
    return job.stop is not None and job.stop.cause is StopCause.MAX_RUNTIME and job.state is not State.STOPPED


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
