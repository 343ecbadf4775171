"""How ranks and services ended, and which of them failed first: what the records of a job say before the verdict."""

import os

from muster.probes.kernel import process
from muster.supervisors.model.lifecycle import Job, Rank, Verdict
from muster.supervisors.model.states import SERVICE, Outcome, State, StopCause, log_owner

#: Of muster's own failure and of an unknown outcome (docker's convention for the former).
OWN_FAILURE = 125
#: Seconds within which a stop that somebody asks for, the first end of a rank and a SIGTERM to the supervisor are one
#: thing: a signal that went to everybody (Slurm, the init of a container, a shell) and reached some of them earlier.
SAME_SIGNAL_S = 3.0
#: How long the verdict of a job whose ranks such a signal may have ended waits for the stop, in seconds.
STOP_SETTLE_S = 1.0
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
        # Who has served may exit with any code after a SIGTERM of that predecessor.
        told = job.services_told or job.killed or ended_by_signal(status)
        if job.stop is not None and (told or job.stop.cause is StopCause.SERVED):
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


def is_timed_out(job: Job) -> bool:
    """Whether the job ended, or ends, because its running time was over: no failure and no stop came before. Earlier
    versions ended such a job as STOPPED, which stays."""
    return job.stop is not None and job.stop.cause is StopCause.MAX_RUNTIME and job.state is not State.STOPPED
