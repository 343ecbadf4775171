"""What each error of the API means to a client, and whether another try makes sense: one table, by status and reason.

docs/reference/errors.md is made from it, and retries.py decides by it. The classes of `muster.agent.errors` raise these
reasons.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class ErrorReason(NamedTuple):
    """One error as a client sees it: the name of the gRPC status, the `reason` of its ErrorInfo ("" where it has none),
    what it means, when the client may try again, and whether it passes by itself: then the same call may be repeated
    after a pause."""

    code: str
    reason: str
    meaning: str
    again: str
    passes: bool = False

    @property
    def remedy(self) -> str:
        """What the caller can do, as an imperative; empty where nothing helps."""
        if self.again.startswith("no"):
            return self.again.removeprefix("no").removeprefix(": ")
        if self.again.startswith("yes"):
            return "try again" + self.again.removeprefix("yes")
        return f"try again {self.again}"


_LIMIT = "; `metadata` has `what` and `limit`, of a listener also `listener`"
_PAUSES = "yes, with growing pauses"

REASONS = (
    ErrorReason(
        "INVALID_ARGUMENT",
        "INVALID_REQUEST",
        "fields of the request are wrong; `BadRequest` names each (those of a `JobSpec` without `spec.` before them)",
        "no: correct the request",
    ),
    ErrorReason("NOT_FOUND", "JOB_NOT_FOUND", "the node has no such job", "no: list the jobs of the node"),
    ErrorReason(
        "NOT_FOUND",
        "SESSION_NOT_FOUND",
        "the job has no such session, or the session has ended",
        "no: begin another session",
    ),
    ErrorReason(
        "NOT_FOUND", "CONDITION_NOT_FOUND", "the node has no such condition", "no: look at the node's conditions"
    ),
    ErrorReason(
        "NOT_FOUND",
        "NOTHING_TO_ACCEPT",
        "the card has not changed, or the node does not know it",
        "no: look at the node's cards",
    ),
    ErrorReason(
        "PERMISSION_DENIED",
        "ROLE_NOT_ALLOWED",
        "the caller has the role reader, and the call needs operator",
        "no: use another socket or certificate",
    ),
    ErrorReason(
        "PERMISSION_DENIED",
        "NOT_YOUR_JOB",
        "with `own_jobs_only`: the job is another user's, or the call is for admins",
        "no: ask the job's user, or an admin",
    ),
    ErrorReason(
        "UNAUTHENTICATED",
        "IDENTITY_NEEDED",
        "with `own_jobs_only`: the call has no token that says which user makes it",
        "with a token of `identity.sock`",
    ),
    ErrorReason(
        "UNAUTHENTICATED",
        "TOKEN_REFUSED",
        "the token of the call is too old, or an earlier daemon issued it",
        "yes, once, with a new token of `identity.sock`",
        passes=True,
    ),
    ErrorReason(
        "PERMISSION_DENIED",
        "NO_ROLE",
        "no name in the certificate has a role in the configuration",
        "no: name the certificate in `operators` or `readers` of the daemon",
    ),
    ErrorReason("ALREADY_EXISTS", "JOB_ID_CONFLICT", "a job with this id has another spec", "no: use another id"),
    ErrorReason("FAILED_PRECONDITION", "CARD_BUSY", "a job holds the cards", "elsewhere, or when a job has ended"),
    ErrorReason("FAILED_PRECONDITION", "NO_SUCH_CARD", "the node does not have the cards", "elsewhere"),
    ErrorReason(
        "FAILED_PRECONDITION",
        "NODE_UNHEALTHY",
        "the node, or a card for the job, has a CRITICAL condition; the message names it",
        "elsewhere",
    ),
    ErrorReason(
        "FAILED_PRECONDITION",
        "NODE_DRAINING",
        "an operator drained the node; the message says who and why",
        "elsewhere",
    ),
    ErrorReason(
        "FAILED_PRECONDITION",
        "CANNOT_RESET",
        "the card cannot be reset, or not alone; the message says why, and nothing was changed",
        "no: `force` may override it, if the message says so",
    ),
    ErrorReason(
        "FAILED_PRECONDITION",
        "RESET_UNDER_WAY",
        "a card of the node is being reset, or (`CancelReset`) none is, or it is too late",
        "when the reset has ended",
    ),
    ErrorReason(
        "FAILED_PRECONDITION",
        "PORT_IN_USE",
        "a process listens at `master_port` on the node of rank 0",
        "with another port, on every node",
    ),
    ErrorReason(
        "FAILED_PRECONDITION",
        "RANK_NOT_RUNNING",
        "the job or rank of a command has not started, or has ended",
        "when it is RUNNING",
    ),
    ErrorReason("FAILED_PRECONDITION", "JOB_NOT_ENDED", "`Delete` of a job that has not ended", "after `Stop`"),
    ErrorReason(
        "RESOURCE_EXHAUSTED", "TOO_MANY_JOBS", f"the daemon has reached its limit of jobs{_LIMIT}", _PAUSES, passes=True
    ),
    ErrorReason(
        "RESOURCE_EXHAUSTED",
        "TOO_MANY_STREAMS",
        f"a listener, or your certificate, has reached its limit of calls at the same time{_LIMIT}",
        _PAUSES,
        passes=True,
    ),
    ErrorReason(
        "RESOURCE_EXHAUSTED",
        "TOO_MANY",
        f"commands or sessions have reached their limit{_LIMIT}; without them the node cannot start another process",
        _PAUSES,
        passes=True,
    ),
    ErrorReason("RESOURCE_EXHAUSTED", "NO_ROOM", "the disk of state or logs is full", "yes, or elsewhere", passes=True),
    ErrorReason(
        "RESOURCE_EXHAUSTED",
        "DISK_SILENT",
        "the disk of the job records does not answer; the message says what became of the call",
        "yes, or elsewhere",
        passes=True,
    ),
    ErrorReason(
        "RESOURCE_EXHAUSTED",
        "",
        "the request is larger than `max_message_bytes` in `[limits]`",
        "no: send a smaller one",
    ),
    ErrorReason(
        "UNAVAILABLE",
        "STOPPING",
        "the daemon is stopping; while it stops its jobs first (PID 1, `stop_jobs`), only `Start` fails with this",
        "yes, for as long as a restart may take; or elsewhere",
        passes=True,
    ),
    ErrorReason("UNAVAILABLE", "SUPERVISOR_UNREACHABLE", "a job's supervisor does not answer", "yes", passes=True),
    ErrorReason("UNAVAILABLE", "HISTORY_UNREADABLE", "the disk of the history does not answer", "yes", passes=True),
    ErrorReason("UNAVAILABLE", "", "no daemon listens", "yes, for as long as a restart may take", passes=True),
    ErrorReason("DEADLINE_EXCEEDED", "", "your own deadline has passed", "yes, unless the call acts each time"),
    ErrorReason("CANCELLED", "", "you cancelled the call", "yes, unless the call acts each time", passes=True),
    ErrorReason(
        "UNIMPLEMENTED", "", "the daemon has no such call: it is older than the client", "no: upgrade the daemon"
    ),
    ErrorReason(
        "OUT_OF_RANGE",
        "CURSOR_TOO_OLD",
        "the history of events does not reach back to the cursor; `metadata` has `oldest`",
        "from there, after a new `List`",
    ),
    ErrorReason(
        "OUT_OF_RANGE",
        "OFFSET_OUT_OF_RANGE",
        "the log does not contain the offset; `metadata` has `rank`, `begin` and `end`",
        "from there",
    ),
    ErrorReason(
        "DATA_LOSS",
        "JOURNAL_DAMAGED",
        "the job's journal is damaged; the message names the file",
        "no: an operator must look at the file",
    ),
    ErrorReason(
        "DATA_LOSS",
        "LOG_UNREADABLE",
        "the daemon cannot read a log; the message names the file",
        "no: an operator must look at the file",
    ),
    ErrorReason(
        "INTERNAL",
        "DEFECT",
        "a defect of muster; the daemon's log has the number of the incident",
        "no: report it with that part of the daemon's log",
    ),
)

#: By status and reason.
BY_REASON: Mapping[tuple[str, str], ErrorReason] = MappingProxyType({(row.code, row.reason): row for row in REASONS})
