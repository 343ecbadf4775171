"""Errors of calls as they are meant to be read."""

from typing import NamedTuple, Self

import grpc
from google.rpc import error_details_pb2, status_pb2
from grpc import aio

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
        kind = _KINDS.get(reason, MusterError)
        return kind(status, reason, message, violations, facts(error), retry_after(error))

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
    status = _status(error)
    answered = isinstance(error, aio.AioRpcError | grpc.Call)
    reason = error.code().name if answered else "UNKNOWN"
    message = (error.details() or "") if answered else str(error)
    violations: list[tuple[str, str]] = []
    if status is not None:
        info, bad = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
        for detail in status.details:
            if detail.Unpack(info):
                reason = info.reason
            elif detail.Unpack(bad):
                violations = [(entry.field, entry.description) for entry in bad.field_violations]
    return Failure(reason, message, violations)


def retry_after(error: grpc.RpcError) -> float | None:
    """Seconds after which the same call may be tried again; None: it would fail again, or the daemon gave no time."""
    status = _status(error)
    retry = error_details_pb2.RetryInfo()
    for detail in status.details if status is not None else ():
        if detail.Unpack(retry):
            return retry.retry_delay.seconds + retry.retry_delay.nanos / 1e9
    return None


def facts(error: grpc.RpcError) -> dict[str, str]:
    """What the error tells programs, by name: `oldest` of CURSOR_TOO_OLD, `end` of OFFSET_OUT_OF_RANGE, `job_id`."""
    status = _status(error)
    info = error_details_pb2.ErrorInfo()
    for detail in status.details if status is not None else ():
        if detail.Unpack(info):
            return dict(info.metadata)
    return {}


def _status(error: grpc.RpcError) -> status_pb2.Status | None:
    if not isinstance(error, aio.AioRpcError | grpc.Call):
        return None
    for key, value in error.trailing_metadata() or ():
        if key == _DETAILS and isinstance(value, bytes):
            return status_pb2.Status.FromString(value)
    return None
