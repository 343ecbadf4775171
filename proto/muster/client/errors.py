"""Errors of calls as they are meant to be read."""

from typing import NamedTuple, Self

import grpc
from grpc import aio

from muster.client import error_details
from muster.client.error_details import ErrorDetails
from muster.client.error_reasons import BY_REASON

_DETAILS = "grpc-status-details-bin"
_NO_DAEMON = "no daemon answers: {}"
_LATE = "the daemon did not answer in time"


class Failure(NamedTuple):
    """Why a call failed."""

    #: Stable, for programs: "JOB_NOT_FOUND", "CARD_BUSY", ... (job.proto); the status code's name where the failure did
    #: not come from muster ("UNAVAILABLE": no process listens).
    reason: str
    #: One sentence for people.
    message: str
    #: (field, what is wrong with it) of INVALID_ARGUMENT.
    violations: list[tuple[str, str]]


class MusterError(Exception):
    """Raised by the calls of `Client` and `BlockingClient` that are not the plain stubs: a call failed, and another try
    makes no sense, or the time for it is over.

    `status` is the name of the gRPC status; `reason`, `message` and `violations` are as in `Failure`; `facts` is what
    the error tells programs; `retry_after` in seconds, None where the daemon names none; `remedy` says what to do, and
    is empty where nothing helps.
    """

    def __init__(
        self,
        status: str,
        reason: str,
        message: str,
        violations: list[tuple[str, str]] | None = None,
        facts: dict[str, str] | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(f"{reason}: {message}")
        self.status, self.reason, self.message = status, reason, message
        self.violations, self.facts, self.retry_after = violations or [], facts or {}, retry_after
        known = BY_REASON.get((status, reason)) or BY_REASON.get((status, "" if reason == status else reason))
        self.remedy = known.remedy if known is not None else ""

    @property
    def answered(self) -> bool:
        """Whether muster itself refused the call; otherwise the error is gRPC's, and the call may have had its
        effect."""
        return self.reason != self.status

    @classmethod
    def of(cls, error: grpc.RpcError) -> "MusterError":
        """What a failed call says."""
        reason, message, violations = failure(error)
        answered = isinstance(error, aio.AioRpcError | grpc.Call)
        status = error.code().name if answered else "UNKNOWN"
        if reason == status == "UNAVAILABLE":
            message = _NO_DAEMON.format(message)
        elif reason == status == "DEADLINE_EXCEEDED":
            message = _LATE
        details = _details(error)
        kind = _KINDS.get(reason, MusterError)
        made = kind(status, reason, message, violations, details.facts, details.retry_after)
        made.__cause__ = error
        return made

    @classmethod
    def cut(cls) -> Self:
        """For a stream that ended in good order before its end: its daemon is ending."""
        return cls("UNAVAILABLE", "UNAVAILABLE", "the daemon ended the stream before its end")


class CursorLost(MusterError):
    """Raised where the history of events does not reach back to the cursor. List all jobs anew, and watch from
    `oldest`."""

    @property
    def oldest(self) -> str:
        """The oldest cursor that there is; empty where the daemon names none."""
        return self.facts.get("oldest", "")


_KINDS: dict[str, type[MusterError]] = {"CURSOR_TOO_OLD": CursorLost}


def failure(error: grpc.RpcError) -> Failure:
    """What a failed call says, whether or not it was muster that answered."""
    details = _details(error)
    answered = isinstance(error, aio.AioRpcError | grpc.Call)
    reason = error.code().name if answered else "UNKNOWN"
    message = (error.details() or "") if answered else str(error)
    return Failure(details.reason or reason, message, list(details.violations))


def retry_after(error: grpc.RpcError) -> float | None:
    """Seconds after which the same call may be tried again; None: it would fail again, or the daemon gave no time."""
    return _details(error).retry_after


def facts(error: grpc.RpcError) -> dict[str, str]:
    """What the error tells programs, by name: `oldest` of CURSOR_TOO_OLD, `end` of OFFSET_OUT_OF_RANGE, `job_id`."""
    return dict(_details(error).facts)


def _details(error: grpc.RpcError) -> ErrorDetails:
    if isinstance(error, aio.AioRpcError | grpc.Call):
        for key, value in error.trailing_metadata() or ():
            if key == _DETAILS and isinstance(value, bytes):
                return error_details.parse(value)
    return ErrorDetails()
