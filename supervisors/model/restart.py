"""Whether and when muster restarts a failed gang."""

import os

from muster.probes.kernel.backoff import Backoff
from muster.supervisors.model.lifecycle import Job
from muster.supervisors.model.spec import JobSpec
from muster.supervisors.model.states import Outcome, State, StopCause

#: First pause and longest one, in seconds: a node that was rebooted for a driver is back before ten attempts are over.
BACKOFF_S, MAX_BACKOFF_S = 1.0, 60.0
#: So that the nodes of a job, or the jobs of a node, do not all begin in the same moment.
JITTER = 0.2
#: A job that hangs again and again does not get better by it.
MAX_HANG_RESTARTS = 3


def allowed(spec: JobSpec, job: Job, state: State) -> bool:
    """Whether another attempt follows an attempt that ended like this. Not after a stop that somebody asked for, nor
    where the command cannot be executed: it could not the next time either."""
    if state not in (State.FAILED, State.LOST) or job.attempt >= spec.max_restarts:
        return False
    if job.halted or (job.stop is not None and job.stop.cause is StopCause.MAX_RUNTIME):
        return False
    if job.stop is not None and job.stop.cause is StopCause.HUNG:
        most = MAX_HANG_RESTARTS if spec.max_hang_restarts is None else spec.max_hang_restarts
        if not job.stop.again or job.hang_restarts >= most:
            return False
    ran = [*job.ranks, *job.services, *([job.step] if job.step is not None else ())]
    return all(process.outcome is not Outcome.NOT_STARTED for process in ran)


def delay(spec: JobSpec, number: int, uniform: float | None = None) -> float:
    """Seconds before restart `number` (from 1). `uniform`: a random number from 0 to 1, for the jitter."""
    base = BACKOFF_S if spec.restart_backoff is None else spec.restart_backoff
    pause = Backoff(base, max(MAX_BACKOFF_S, base)).after(number)
    share = int.from_bytes(os.urandom(4), "big") / 2**32 if uniform is None else uniform
    return float(pause * (1 + JITTER * (2 * share - 1)))
