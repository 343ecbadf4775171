"""The errors that the daemon raises on purpose.

Each class carries the gRPC status (`code`, the name of a `grpc.StatusCode`) and the stable `reason` that a client sees;
`boundary.py` is the one place that turns them into an answer. Codes are names, not gRPC's constants, so that the code
that raises these errors needs no gRPC.
"""

import time
from collections.abc import Sequence
from typing import ClassVar, Self

from muster.supervisors.model.spec import Violation
from muster.supervisors.model.states import State

#: Fields that a conflict names.
_MAX_NAMED = 8


class ApiError(Exception):
    """Base of all of them; never raised itself. The caller sees its text: name, value and remedy, and no secrets."""

    code: ClassVar[str] = "INTERNAL"
    reason: str = "DEFECT"
    #: Seconds after which another try makes sense (google.rpc.RetryInfo); None: the same call will fail again.
    retry_after: ClassVar[float | None] = None

    def metadata(self) -> dict[str, str]:
        """Facts for google.rpc.ErrorInfo, by name; short and safe to show."""
        return {}


class InvalidRequest(ApiError):
    """Raised when fields of a request are wrong. `violations` has one entry per field, at least one."""

    code = "INVALID_ARGUMENT"
    reason = "INVALID_REQUEST"

    def __init__(self, violations: list[Violation]) -> None:
        super().__init__("; ".join(f"{v.field}: {v.description}" for v in violations))
        self.violations = violations


class JobNotFound(ApiError):
    """Raised when no job with this id is known."""

    code = "NOT_FOUND"
    reason = "JOB_NOT_FOUND"

    def __init__(self, job_id: str) -> None:
        super().__init__(f"no job {_shown(job_id)} on this node: list its jobs with `muster ps --all`")
        self.job_id = job_id

    def metadata(self) -> dict[str, str]:
        return {"job_id": self.job_id}


class JobIdConflict(ApiError):
    """Raised when a job id is in use by a job with another spec. `fields`: in which fields the two differ; never their
    values, some of which are secrets."""

    code = "ALREADY_EXISTS"
    reason = "JOB_ID_CONFLICT"

    def __init__(self, job_id: str, fields: Sequence[str] = ()) -> None:
        more = len(fields) - _MAX_NAMED
        self.fields = ", ".join(fields[:_MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
        where = f", which differs in {self.fields}" if fields else ""
        remedy = "choose another id, or stop and remove that job (`muster stop`, `muster rm`)"
        super().__init__(f"job {_shown(job_id)} exists with another spec{where}: {remedy}")
        self.job_id = job_id

    def metadata(self) -> dict[str, str]:
        return {"job_id": self.job_id} | ({"fields": self.fields} if self.fields else {})


class CardBusy(ApiError):
    """Raised when a job holds a card, or fewer cards are free than a job needs. The message names the holder."""

    code = "FAILED_PRECONDITION"
    reason = "CARD_BUSY"


class NoSuchCard(ApiError):
    """Raised when the node lacks a card, or has fewer cards than a job needs. The message says what it has."""

    code = "FAILED_PRECONDITION"
    reason = "NO_SUCH_CARD"


class PortInUse(ApiError):
    """Raised when a process uses the port of the rendezvous on this node. The message names the process."""

    code = "FAILED_PRECONDITION"
    reason = "PORT_IN_USE"


class NodeUnhealthy(ApiError):
    """Raised when the node, or a card for a job, has a CRITICAL condition."""

    code = "FAILED_PRECONDITION"
    reason = "NODE_UNHEALTHY"

    def __init__(self, text: str) -> None:
        """`text`: the condition in its own words, and what the job wanted."""
        super().__init__(
            f"{text}: muster starts no job there; `muster node` lists all conditions, "
            "`muster check explain CODE` prints the remedy"
        )


class NodeDraining(ApiError):
    """Raised while the node is drained. The message says who drained it, when and why."""

    code = "FAILED_PRECONDITION"
    reason = "NODE_DRAINING"

    def __init__(self, drained_by: str, why: str, since: float, resetting: bool = False) -> None:
        """`since` in seconds since the epoch. `resetting`: a card is being reset, and nobody can undrain the node."""
        how = "return it to service with `muster node undrain`"
        if resetting:
            how = "a card is being reset: wait for the end, `muster events -f` shows it"
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(since))
        super().__init__(f"{drained_by} drained the node at {when}: {why}; {how}")
        self._told = {"by": drained_by, "drain_reason": why}

    def metadata(self) -> dict[str, str]:
        return self._told


class CannotReset(ApiError):
    """Raised when a card cannot be reset. The message says why, and nothing was changed."""

    code = "FAILED_PRECONDITION"
    reason = "CANNOT_RESET"


class ResetUnderWay(ApiError):
    """Raised for a call that must wait for the end of a reset, while a card of the node is being reset; also for a call
    about a reset, if there is none. The message says which."""

    code = "FAILED_PRECONDITION"
    reason = "RESET_UNDER_WAY"


class ConditionNotFound(ApiError):
    """Raised when the node has no condition of this code, or none of this device."""

    code = "NOT_FOUND"
    reason = "CONDITION_NOT_FOUND"

    def __init__(self, code: str, device: str, there: list[str]) -> None:
        whose = f" of {_shown(device)}" if device else ""
        has = f"it has {', '.join(there[:8])}{', ...' if len(there) > 8 else ''}" if there else "it has none"
        super().__init__(f"no condition {_shown(code)}{whose} on this node: {has}; list them with `muster node`")


class NothingToAccept(ApiError):
    """Raised when a card to accept has not changed, or the node does not know it."""

    code = "NOT_FOUND"
    reason = "NOTHING_TO_ACCEPT"

    def __init__(self, card: str, there: list[str]) -> None:
        names = f"{', '.join(there[:8])}{', ...' if len(there) > 8 else ''}"
        has = f"the cards that differ are {names}" if there else "no card of this node differs"
        super().__init__(f"card {_shown(card)}: nothing to accept: {has}; see `muster node`")


class JobNotEnded(ApiError):
    """Raised for a call that needs a job that has ended."""

    code = "FAILED_PRECONDITION"
    reason = "JOB_NOT_ENDED"

    def __init__(self, job_id: str) -> None:
        super().__init__(f"job {_shown(job_id)} has not ended: stop it first with `muster stop`")
        self.job_id = job_id

    def metadata(self) -> dict[str, str]:
        return {"job_id": self.job_id}


class JobAlive(JobNotEnded):
    """Raised when a process of a job to remove still runs, whatever the journal says. `ended`: the job has ended, so
    that a stop would do nothing."""

    def __init__(self, job_id: str, processes: str, ended: bool) -> None:
        shown = _shown(job_id)
        advice = "the job has ended; try again, or end them with `kill -9 PID`" if ended else "stop the job first"
        ApiError.__init__(self, f"job {shown}: processes still run: {processes}: {advice}")
        self.job_id = job_id


class TooMany(ApiError):
    """Raised when the daemon reaches a limit: `what` ("calls that wait for stacks", ...), the limit, and its setting
    (empty: it has none)."""

    code = "RESOURCE_EXHAUSTED"
    reason = "TOO_MANY_STREAMS"
    retry_after = 5.0

    def __init__(self, what: str, limit: int, setting: str = "") -> None:
        remedy = f", or raise {setting}" if setting else ""
        super().__init__(f"too many {what}: the daemon's limit is {limit}; try again later{remedy}")
        self.what = what
        self.limit = limit

    def metadata(self) -> dict[str, str]:
        return {"what": self.what, "limit": str(self.limit)}


class TooManyJobs(TooMany):
    """Raised when the number of jobs that have not ended reaches the daemon's limit."""

    reason = "TOO_MANY_JOBS"

    def __init__(self, limit: int) -> None:
        super().__init__("jobs", limit, "max_jobs in [jobs]")


class NoSlot(ApiError):
    """Raised when a listener reaches its limit of calls of one kind at once: `what` ("readers of logs"), the limit, the
    listener, and the setting of the limit (empty: it has none)."""

    code = "RESOURCE_EXHAUSTED"
    reason = "TOO_MANY_STREAMS"
    retry_after = 1.0

    def __init__(self, what: str, limit: int, listener: str, setting: str = "", reason: str = "") -> None:
        """`reason`: if another than TOO_MANY_STREAMS."""
        remedy = f", or raise {setting}" if setting else ""
        super().__init__(f"too many {what} at {listener}: the limit is {limit}; try again later{remedy}")
        self.reason = reason or self.reason
        self.what, self.limit, self.listener = what, limit, listener

    def metadata(self) -> dict[str, str]:
        return {"what": self.what, "limit": str(self.limit), "listener": self.listener}


class NoRoom(ApiError):
    """Raised when the disk that holds state or logs is full. The message names the folder."""

    code = "RESOURCE_EXHAUSTED"
    reason = "NO_ROOM"
    retry_after = 30.0


class ShuttingDown(ApiError):
    """Raised while the daemon stops. Jobs continue, unless it stops them; the next daemon answers."""

    code = "UNAVAILABLE"
    reason = "STOPPING"
    retry_after = 1.0

    def __init__(self, *, with_jobs: bool = False) -> None:
        """`with_jobs`: it stops its jobs first, and answers until they have ended."""
        text = (
            "the daemon is stopping its jobs and then exits; it starts no new job"
            if with_jobs
            else "the daemon is stopping; its jobs continue"
        )
        super().__init__(f"{text}: try again when a daemon runs again")


class SupervisorUnreachable(ApiError):
    """Raised when a job's supervisor does not answer in time. The message names the job."""

    code = "UNAVAILABLE"
    reason = "SUPERVISOR_UNREACHABLE"
    retry_after = 1.0


class JournalUnreadable(ApiError):
    """Raised when the files of a job are damaged. `text` names file and line."""

    code = "DATA_LOSS"
    reason = "JOURNAL_DAMAGED"

    def __init__(self, job_id: str, text: str) -> None:
        super().__init__(f"job {_shown(job_id)}: {text}")
        self.job_id = job_id

    def metadata(self) -> dict[str, str]:
        return {"job_id": self.job_id}


class LogUnreadable(ApiError):
    """Raised when the daemon cannot read a rank's log. `error` names the file."""

    code = "DATA_LOSS"
    reason = "LOG_UNREADABLE"

    def __init__(self, job_id: str, error: OSError) -> None:
        super().__init__(f"job {_shown(job_id)}: cannot read {error.filename or 'its log'}: {error.strerror}")
        self.job_id = job_id

    def metadata(self) -> dict[str, str]:
        return {"job_id": self.job_id}


class CursorTooOld(ApiError):
    """Raised when the history of events no longer reaches back to a cursor. `oldest` is the first that still works."""

    code = "OUT_OF_RANGE"
    reason = "CURSOR_TOO_OLD"

    def __init__(self, oldest: str) -> None:
        super().__init__(f"the event history no longer reaches back to this cursor: begin at the oldest, {oldest}")
        self.oldest = oldest

    def metadata(self) -> dict[str, str]:
        return {"oldest": self.oldest}


class OffsetOutOfRange(ApiError):
    """Raised for a read beyond the end of a log, or before its first stored byte. Offsets in bytes."""

    code = "OUT_OF_RANGE"
    reason = "OFFSET_OUT_OF_RANGE"

    def __init__(self, rank: int, offset: int, end: int, begin: int = 0) -> None:
        whose = "the job's own log" if rank < 0 else f"rank {rank}"
        if offset > end:
            what = f"offset {offset} is beyond the end of the log at byte {end}: begin there, or before"
        else:
            what = f"offset {offset} is before the first stored byte: begin at {begin}; the log ends at {end}"
        super().__init__(f"{whose}: {what}")
        self.rank = rank
        self.begin, self.end = begin, end

    def metadata(self) -> dict[str, str]:
        return {"rank": str(self.rank), "begin": str(self.begin), "end": str(self.end)}


class RankNotRunning(ApiError):
    """Raised for a command in, or a signal to, a job or rank that has not started, or has ended. The message says
    which."""

    code = "FAILED_PRECONDITION"
    reason = "RANK_NOT_RUNNING"

    @classmethod
    def of_job(cls, job_id: str, state: State, what: str = "`exec`") -> Self:
        """Because the job is in this state, and `what` needs another."""
        how = f"has ended ({state})" if state.final else f"is {state}"
        return cls(f"job {job_id} {how}: {what} needs a RUNNING job")


class SessionNotFound(ApiError):
    """Raised when a job has no such session, or the session has ended. The message says which."""

    code = "NOT_FOUND"
    reason = "SESSION_NOT_FOUND"

    def __init__(self, session_id: str, text: str) -> None:
        super().__init__(text)
        self.session_id = session_id

    def metadata(self) -> dict[str, str]:
        return {"session_id": self.session_id}


class TooManySessions(TooMany):
    """Raised when a job has reached its limit of sessions."""

    reason = "TOO_MANY"

    def __init__(self, job_id: str, limit: int) -> None:
        super().__init__(f"sessions of job {_shown(job_id)}", limit, "max_sessions in [exec]")


class NoSession(ApiError):
    """Raised when the node cannot start one more process for a session. The message says why."""

    code = "RESOURCE_EXHAUSTED"
    reason = "TOO_MANY"
    retry_after = 5.0


class HistoryUnreadable(ApiError):
    """Raised when the history's disk does not answer. The message names the file."""

    code = "UNAVAILABLE"
    reason = "HISTORY_UNREADABLE"
    retry_after = 15.0


class DiskSilent(ApiError):
    """Raised when the disk of the job records does not answer. `left`: what became of the call, and what to do."""

    code = "RESOURCE_EXHAUSTED"
    reason = "DISK_SILENT"
    retry_after = 30.0

    def __init__(self, folder: str, seconds: float, left: str) -> None:
        super().__init__(f"{folder}: its disk has not answered for {seconds:.0f} s: {left}")


class StartupError(ApiError):
    """Raised when the daemon cannot start; never the answer to a call. The operator sees the message."""

    reason = "STARTUP"


class NotAllowed(ApiError):
    """Raised when the role of a caller does not suffice for a call."""

    code = "PERMISSION_DENIED"
    reason = "ROLE_NOT_ALLOWED"

    def __init__(self, method: str, who: str) -> None:
        super().__init__(
            f"{method} needs the role operator; {who} has the role reader: use the operators' socket or certificate"
        )


class NotKnown(ApiError):
    """Raised when a caller has no role at all: its certificate is good, and no name in it is in the configuration."""

    code = "PERMISSION_DENIED"
    reason = "NO_ROLE"

    def __init__(self, who: str) -> None:
        super().__init__(f"{who} has no role: name it in operators or readers of [tls] in the daemon's configuration")


class NotTheirs(ApiError):
    """Raised when a caller may reach only its own jobs, and asks for more."""

    code = "PERMISSION_DENIED"
    reason = "NOT_YOUR_JOB"


class IdentityNeeded(ApiError):
    """Raised when a caller may reach only its own jobs, and sends no token that says who it is."""

    code = "UNAUTHENTICATED"
    reason = "IDENTITY_NEEDED"

    def __init__(self, where: str) -> None:
        super().__init__(
            f"musterd shows users only their own jobs (own_jobs_only in [access]), and {where} does not say who it is: "
            "get a token from identity.sock, beside that socket, and send it as muster-token"
        )


class TokenRefused(ApiError):
    """Raised when a token no longer identifies its caller."""

    code = "UNAUTHENTICATED"
    reason = "TOKEN_REFUSED"

    def __init__(self, why: str) -> None:
        super().__init__(f"the token of this call is not valid: {why}; get a new one from identity.sock")


def _shown(text: str) -> str:
    """An id, safe to print: text from a caller can be long and hold any character."""
    return repr(text) if len(text) <= 130 else f"{text[:40]!r}... ({len(text)} characters)"
