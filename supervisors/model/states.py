"""The states of a job, the records that change it, and the table of allowed transitions."""

import enum


class State(enum.StrEnum):
    """States of a job; the last four are final."""

    ACCEPTED = "ACCEPTED"
    CHECKING = "CHECKING"
    PREPARING = "PREPARING"
    RUNNING = "RUNNING"
    STOPPING = "STOPPING"
    RESTARTING = "RESTARTING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    STOPPED = "STOPPED"
    LOST = "LOST"

    @property
    def final(self) -> bool:
        """Whether no other state can follow."""
        return self in _FINAL


_FINAL = frozenset({State.SUCCEEDED, State.FAILED, State.STOPPED, State.LOST})


#: States of a job whose verdict the daemon explains soon after its end.
EXPLAINED = frozenset({State.FAILED, State.LOST})


class Outcome(enum.StrEnum):
    """How a rank ended."""

    EXITED = "EXITED"
    SIGNALLED = "SIGNALLED"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    GANG_VICTIM = "GANG_VICTIM"
    STOPPED = "STOPPED"
    HUNG = "HUNG"
    LOST = "LOST"
    NOT_STARTED = "NOT_STARTED"


class StopCause(enum.StrEnum):
    """Why a job is being stopped."""

    REQUESTED = "requested"  # somebody asked
    MAX_RUNTIME = "max_runtime"  # its time is over
    RANK_FAILED = "rank_failed"  # a rank failed: the others are its victims
    LEFTOVERS = "leftovers"  # all ranks have ended, but processes of theirs have not
    HUNG = "hung"  # it does not get on any more
    SERVICE_ENDED = "service_ended"  # a service of the job has ended, which the ranks are not to run without
    NOT_STARTED = "not_started"  # the ranks could not be started, and services that were started for them run
    SERVED = "served"  # all is done that was to be done: what only serves the others is ended (services, a ps)


class Kind(enum.StrEnum):
    """Kinds of records. The handlers of `Job.apply` describe the content of each."""

    ACCEPTED = "accepted"
    CHECKING = "checking"
    CHECKED = "checked"
    PLANNED = "planned"
    TAKEN = "taken"
    PREPARING = "preparing"
    SERVICES = "services"
    SPAWNED = "spawned"
    UNBORN = "unborn"
    RUNNING = "running"
    EXITED = "exited"
    USAGE = "usage"
    STOPPING = "stopping"
    ESCALATED = "escalated"
    WARNING = "warning"
    LOST_BYTES = "lost_bytes"
    STEP = "step"
    RESTARTING = "restarting"
    CONCLUDED = "concluded"
    ENDED = "ended"


#: In the place of a rank's number: the step before or after the ranks that is run at the moment, and the job itself.
STEP = -1
JOB = -2
#: The first service of the job; the next one is -4, and so on.
SERVICE = -3


def service_number(index: int) -> int:
    """What stands for a service in the place of a rank's number; and which service such a number stands for."""
    return SERVICE - index


def log_owner(number: int) -> str:
    """Whose output that of this number is, in words."""
    if number == JOB:
        return "the job"
    return f"rank {number}" if number > SERVICE else f"service {service_number(number)}"


_LIVE = frozenset(State) - _FINAL
#: Where a process of the job may be there: ranks or a step before them, or an epilog, which may come behind checks.
_BEGUN = _LIVE - {State.ACCEPTED}

#: kind -> (states in which it may come, state that it leads to; None: stays). `ended` carries its own final state.
TRANSITIONS: dict[Kind, tuple[frozenset[State], State | None]] = {
    Kind.CHECKING: (frozenset({State.ACCEPTED, State.CHECKING, State.RESTARTING}), State.CHECKING),
    Kind.CHECKED: (frozenset({State.CHECKING}), None),
    Kind.PLANNED: (frozenset({State.ACCEPTED, State.CHECKING}), None),
    Kind.TAKEN: (_LIVE, None),
    Kind.PREPARING: (frozenset({State.ACCEPTED, State.CHECKING, State.PREPARING, State.RESTARTING}), State.PREPARING),
    Kind.SERVICES: (frozenset({State.PREPARING}), None),
    Kind.SPAWNED: (frozenset({State.PREPARING}), None),
    Kind.UNBORN: (_BEGUN, None),
    Kind.RUNNING: (frozenset({State.PREPARING}), State.RUNNING),
    Kind.STEP: (_BEGUN, None),
    Kind.EXITED: (_BEGUN, None),
    Kind.USAGE: (_LIVE, None),
    Kind.STOPPING: (_LIVE, State.STOPPING),
    Kind.ESCALATED: (frozenset({State.STOPPING}), None),
    Kind.WARNING: (_LIVE, None),
    Kind.LOST_BYTES: (_LIVE, None),
    Kind.RESTARTING: (frozenset({State.CHECKING, State.PREPARING, State.RUNNING, State.STOPPING}), State.RESTARTING),
    Kind.CONCLUDED: (_BEGUN, None),
    Kind.ENDED: (_LIVE, None),
}
