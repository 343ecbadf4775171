"""Calls to many daemons at once: one answer or one failure each."""

import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc

from muster.client.errors import failure, retry_after
from muster.client.retries import may_pass

#: Seconds within which a call that waits for nothing must be answered.
ANSWER_S = 15.0
#: Seconds for which a daemon that has exited, or is full, is asked again where something is changed.
PATIENCE_S = 10.0

Key = TypeVar("Key", bound=Hashable)
#: Makes one call, which may take so many seconds, without waiting for it.
Ask = Callable[[float], Any]


@dataclass(frozen=True, slots=True)
class FailedAsk:
    """A call that has no answer. `reason` as in muster.client.Failure. `refused`: the daemon itself said no, so that
    the call changed nothing there."""

    reason: str
    message: str
    refused: bool

    def __str__(self) -> str:
        return self.message


def ask_together(asks: Mapping[Key, Ask], patience_s: float = PATIENCE_S, answer_s: float = ANSWER_S) -> dict[Key, Any]:
    """The answers, or a FailedAsk, by key. A daemon that is restarting, or full, is asked again for `patience_s`.
    A call must be answered within `answer_s`.

    Ends all calls that are under way if it is interrupted.
    """
    answers: dict[Key, Any] = {}
    end, left, pause = time.monotonic() + patience_s, dict(asks), 0.1
    while left:
        calls: dict[Key, Any] = {}
        wait = 0.0
        try:
            for key, ask in left.items():
                calls[key] = ask(answer_s)
            for key, call in calls.items():
                try:
                    answers[key] = call.result()
                except grpc.RpcError as error:
                    answers[key] = _failed(error)
                    again = retry_after(error) or pause
                    if _may_pass(error) and time.monotonic() + again < end:
                        wait = max(wait, again)
                        continue
                del left[key]
        finally:
            for call in calls.values():
                call.cancel()
        if left:
            time.sleep(wait)
            pause = min(pause * 1.5, 1.0)
    return answers


def failures(answers: Mapping[Key, Any]) -> dict[Key, FailedAsk]:
    """Those of them that failed."""
    return {key: answer for key, answer in answers.items() if isinstance(answer, FailedAsk)}


def status_of(error: grpc.RpcError) -> grpc.StatusCode:
    """UNKNOWN for an error that is no answer."""
    return error.code() if hasattr(error, "code") else grpc.StatusCode.UNKNOWN


def _may_pass(error: grpc.RpcError) -> bool:
    known = failure(error)
    return may_pass(status_of(error).name, known.reason, known.message)


def _failed(error: grpc.RpcError) -> FailedAsk:
    code = status_of(error)
    reason, message, violations = failure(error)
    said = "; ".join(f"{field}: {text}" for field, text in violations) or message
    if reason == code.name:  # not muster's own words
        if code is grpc.StatusCode.UNAVAILABLE:
            said = f"no daemon answers: {message.rpartition('error: ')[2]}"  # gRPC's last of several
        elif code is grpc.StatusCode.DEADLINE_EXCEEDED:
            said = "the daemon did not answer in time"
    unsure = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)
    return FailedAsk(reason, said or code.name, refused=reason != code.name and code not in unsure)
