"""Calls to many daemons at once: one connection each, one answer or one failure each."""

import getpass
import os
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import grpc

from muster.client import BlockingClient, connect_blocking, failure, retry_after
from muster.torchx.daemon_hosts import TLS_OPTIONS, DaemonHost, HostTls, WrongOption

#: Seconds within which a call that waits for nothing must be answered.
ANSWER_S = 15.0
#: The same for a list, of which one daemon's part is missed less than the others are waited for.
LISTED_S = 5.0
#: The same for a start, which waits for the cards of a job that has just ended.
STARTED_S = 45.0
#: Seconds for which a daemon that has exited, or is full, is asked again, as it may be restarting: for a status; before
#: a start, and for a cancellation; where something is changed.
GLANCE_S, LOOK_S, PATIENCE_S = 0.5, 3.0, 10.0
_TRANSIENT = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED)

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


class DaemonPool:
    """Connections to daemons, made when they are asked for and kept until `close`. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open = ExitStack()
        self._clients: dict[tuple[str, HostTls], BlockingClient] = {}

    def client(self, host: DaemonHost, tls: HostTls) -> BlockingClient:
        """Raises WrongOption where a file of TLS is missing or unreadable; never because of the daemon."""
        where = (host.address, tls)
        with self._lock:
            if where not in self._clients:
                credentials = None if host.local else _credentials(host, tls)
                self._clients[where] = self._open.enter_context(connect_blocking(host.address, _caller(), credentials))
            return self._clients[where]

    def close(self) -> None:
        """Closes all connections; may be called again, and the pool may be used again."""
        with self._lock:
            self._clients.clear()
            self._open.close()


def ask_together(asks: Mapping[Key, Ask], patience_s: float = PATIENCE_S, answer_s: float = ANSWER_S) -> dict[Key, Any]:
    """The answers, or a FailedAsk, by key. A daemon that is restarting, or full, is asked again for `patience_s`.
    A call must be answered within `answer_s`.

    Ends all calls that are under way if it is interrupted.
    """
    answers: dict[Key, Any] = {}
    end, left, pause = time.monotonic() + patience_s, dict(asks), 0.1
    while left:
        calls = {key: ask(answer_s) for key, ask in left.items()}
        wait = 0.0
        try:
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


def named(hosts: Iterable[DaemonHost]) -> str:
    """Their addresses, for a sentence."""
    return ", ".join(dict.fromkeys(host.address for host in hosts))


def status_of(error: grpc.RpcError) -> grpc.StatusCode:
    """UNKNOWN for an error that is no answer."""
    return error.code() if hasattr(error, "code") else grpc.StatusCode.UNKNOWN


def _may_pass(error: grpc.RpcError) -> bool:
    return status_of(error) in _TRANSIENT


def _failed(error: grpc.RpcError) -> FailedAsk:
    code = status_of(error)
    reason, message, violations = failure(error)
    said = "; ".join(f"{field}: {text}" for field, text in violations) or message
    if reason == code.name:  # not muster's own words
        if code is grpc.StatusCode.UNAVAILABLE:
            said = f"no daemon answers: {message}"
        elif code is grpc.StatusCode.DEADLINE_EXCEEDED:
            said = "the daemon did not answer in time"
    unsure = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)
    return FailedAsk(reason, said or code.name, refused=reason != code.name and code not in unsure)


def _credentials(host: DaemonHost, tls: HostTls) -> grpc.ChannelCredentials:
    data = []
    for (option, variable), path in zip(TLS_OPTIONS.items(), (tls.ca, tls.cert, tls.key), strict=True):
        if not path:
            text = f"{host.address}: TCP needs a certificate: give -cfg {option}=FILE or set {variable}"
            raise WrongOption(option, text)
        try:
            data.append(Path(path).read_bytes())
        except OSError as error:
            raise WrongOption(option, f"cannot read {path}: {error.strerror or error}") from None
    authority, certificate, key = data
    return grpc.ssl_channel_credentials(authority, key, certificate)


def _caller() -> str:
    name = f"uid {os.getuid()}"
    with suppress(KeyError, OSError):  # a number without a name, as in containers
        name = getpass.getuser()
    return f"{name} (torchx, pid {os.getpid()})"
