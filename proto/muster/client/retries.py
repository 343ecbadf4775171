"""Which calls may be repeated, after which errors, and for how long: the one rule of the client."""

import random
import time
from collections.abc import Mapping
from types import MappingProxyType

import grpc
from google.protobuf.message import Message

from muster.client.error_reasons import BY_REASON
from muster.client.errors import MusterError
from muster.v1 import exec_pb2, job_pb2

#: Pauses in seconds, where the daemon names none: the first, the longest, and how they grow.
_FIRST_S, _LONGEST_S, _GROWTH = 0.1, 1.0, 1.5
#: In which a daemon that is there answers, in seconds.
_ANSWER_S = 1.0
#: By the message of the request, of which each call has its own: whether a second one does no harm after an answer that
#: was lost. `Start` and `Exec` depend on their fields, see `may_repeat`.
REPEATS: Mapping[str, bool] = MappingProxyType(
    {
        **dict.fromkeys(("GetRequest", "ListRequest", "WaitRequest", "GetReportRequest", "GetStacksRequest"), True),
        **dict.fromkeys(("StopRequest", "ReleaseRequest", "DeleteRequest"), True),
        **dict.fromkeys(("ReadLogsRequest", "ReadNodeLogsRequest", "WatchRequest"), True),
        **dict.fromkeys(("GetNodeRequest", "DrainRequest", "UndrainRequest", "AcceptCardsRequest"), True),
        "CancelResetRequest": True,
        **dict.fromkeys(("ListChecksRequest", "RunChecksRequest", "ClearConditionsRequest"), True),
        **dict.fromkeys(("InjectConditionRequest", "ReportResultsRequest"), True),
        **dict.fromkeys(("GetTelemetryRequest", "GetHistoryRequest", "RecordTelemetryRequest"), True),
        **dict.fromkeys(("ListSessionsRequest", "EndSessionRequest"), True),
        # With an id of the caller's the daemon knows the second one for the first.
        "StartRequest": True,
        # A session that exists is attached to again.
        "ExecRequest": True,
        # They run a command, reset the card, or send a signal, each time.
        **dict.fromkeys(("RunCommandRequest", "ResetCardRequest", "SignalRequest"), False),
    }
)


def may_repeat(request: Message) -> bool:
    """Whether the call may be made again although it may have had its effect. False for calls of a later release."""
    if isinstance(request, job_pb2.StartRequest):
        return bool(request.spec.job_id)
    if isinstance(request, exec_pb2.ExecRequest):
        return not request.HasField("start")
    return REPEATS.get(request.DESCRIPTOR.name, False)


def may_pass(status: str, reason: str, message: str = "") -> bool:
    """Whether the same call may succeed after a pause. `reason`: of muster's ErrorInfo; empty or the status' name where
    gRPC itself says that the call failed."""
    own = "" if reason == status else reason
    known = BY_REASON.get((status, own))
    return (known is not None and known.passes) or broke(status, own, message)


def broke(status: str, reason: str, message: str) -> bool:
    """Whether the connection broke, or the daemon starts or ends."""
    if status in ("UNAVAILABLE", "CANCELLED"):
        return True
    # gRPC's status for a server that was killed in the middle of an answer.
    return status in ("UNKNOWN", "INTERNAL") and not reason and "stream" in message.lower()


def without_effect(status: str, reason: str) -> bool:
    """Whether the daemon refused the call before it did anything, so that even one that may not be repeated may be made
    again."""
    return status in ("RESOURCE_EXHAUSTED", "UNAUTHENTICATED") and reason not in ("", status)


class Attempts:
    """Bounds the tries of one call, or of one stream that goes on where it was cut."""

    def __init__(self, request: Message, within_s: float) -> None:
        """`within_s`: seconds for all tries together; of a stream, for each search for a daemon."""
        self._request, self._within_s = request, within_s
        self.renew()

    def renew(self) -> None:
        """A message has arrived: the time begins anew."""
        self._end = time.monotonic() + self._within_s
        self._pause_s = _FIRST_S

    @property
    def left_s(self) -> float:
        """Seconds that are left, at least a millisecond."""
        return max(0.001, self._end - time.monotonic())

    @property
    def try_s(self) -> float:
        """Seconds for one try of a search for a daemon: who gives it no time makes one that a daemon can answer."""
        return max(_ANSWER_S, self.left_s)

    def pause_s(self, failed: grpc.RpcError | MusterError) -> float:
        """Seconds until the next try. Raises MusterError where there is to be none."""
        error = failed if isinstance(failed, MusterError) else MusterError.of(failed)
        again = may_pass(error.status, error.reason, error.message) and (
            may_repeat(self._request) or without_effect(error.status, error.reason)
        )
        # Not all that wait ask at the same moment.
        pause = max(self._pause_s, error.retry_after or 0.0) * random.uniform(1.0, 1.3)
        if not again or time.monotonic() + pause > self._end:
            raise error
        self._pause_s = min(self._pause_s * _GROWTH, _LONGEST_S)
        return pause
