"""What to do next in a job. It follows from the records alone: what a full disk refused, or what a predecessor did not
finish, is simply what comes next.

docs/concepts/job-records.md has a picture of the phases.
"""

import enum

from muster.supervisors.model.lifecycle import Job
from muster.supervisors.model.states import State


class Phase(enum.Enum):
    """Where a job is. What each one leads to is in the table `RankGang.NEXT`."""

    #: Nothing of this attempt exists yet: it is made ready, then its first step or its ranks are started.
    ATTEMPT_DUE = enum.auto()
    #: The same, but somebody asked for the job's end.
    STOPPED_EARLY = enum.auto()
    #: A step runs: code, inputs, requirements, pre_start, outputs, epilog.
    STEP_RUNS = enum.auto()
    #: The step itself has ended; processes that it started may be left.
    STEP_ENDED = enum.auto()
    #: The services of the ranks run, and these do not exist yet.
    SERVICES_RUN = enum.auto()
    #: The ranks run, and no record says so yet.
    RANKS_LET_GO = enum.auto()
    #: At least one rank runs.
    RANKS_RUN = enum.auto()
    #: All ranks have ended; processes that they started may be left.
    RANKS_ENDED = enum.auto()
    #: An attempt has failed, and the time of the next one has not come.
    PAUSED = enum.auto()
    #: It is known how the job ends, and the next step after the ranks is to be started: outputs, epilog.
    AFTER_DUE = enum.auto()
    #: The job has ended.
    OVER = enum.auto()


def phase(job: Job, up: float) -> Phase:
    """`up`: now, in seconds of CLOCK_BOOTTIME."""
    if job.state.final:
        return Phase.OVER
    if job.concluded is not None and (job.step is None or job.step_name != job.after[0]):
        return Phase.AFTER_DUE
    if job.step is not None:  # `services` and `spawned` take the steps before the ranks out of the job
        return Phase.STEP_RUNS if job.in_step else Phase.STEP_ENDED
    if job.spawned:
        if job.state is State.PREPARING:
            return Phase.RANKS_LET_GO
        return Phase.RANKS_RUN if any(rank.outcome is None for rank in job.ranks) else Phase.RANKS_ENDED
    if job.has_services:
        return Phase.SERVICES_RUN
    if job.state is State.STOPPING:
        return Phase.STOPPED_EARLY
    if job.state is State.RESTARTING and up < job.restart_up:
        return Phase.PAUSED
    return Phase.ATTEMPT_DUE
