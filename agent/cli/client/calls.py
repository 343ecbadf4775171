"""Calls to the daemon. Blocking: one command makes one call at a time, and a signal interrupts it.

This module imports gRPC: import it inside commands only.
"""

import functools
import getpass
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from muster.probes.kernel import late_import

# Before the import below: nothing here forks, and gRPC's handlers for it cost time and can print warnings.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

# Blocking calls use neither of the first two, which are half of gRPC's import; the third is protobuf without its C.
with late_import.noted("asyncio", "grpc.aio", "google.protobuf.internal.python_message"):
    import grpc
    from google.protobuf.duration_pb2 import Duration

from muster.agent.cli.client.address import Address
from muster.agent.cli.client.slot_wait import NO_GOOD_TOKEN, SAY_S, SlotWait
from muster.agent.cli.exits import BadSpec, CallFailed, CommandFailed, Exit, NoDaemon, Why
from muster.agent.cli.printing import note
from muster.client.channel_options import OPTIONS, PINGING_OPTIONS
from muster.client.own_token import OwnToken, by_command, claim
from muster.probes.kernel.backoff import Backoff
from muster.v1 import job_pb2, job_pb2_grpc

if TYPE_CHECKING:
    from muster.v1 import (
        event_pb2_grpc,
        exec_pb2_grpc,
        log_pb2_grpc,
        node_pb2_grpc,
        probe_pb2_grpc,
        telemetry_pb2_grpc,
    )

#: Seconds within which a call that waits for nothing must be answered.
ANSWER_S = 30.0
#: Seconds for which a command that follows or waits looks for a daemon that has exited (it may restart). A session
#: holds its output for longer (LOST_S in supervisors/session/session.py).
PATIENCE_S = 60.0
#: Logs and events are read by two threads, and both calls fail at once where the daemon is killed.
_FIRST_USE = threading.Lock()

Response = TypeVar("Response")


class DaemonConnection:
    """The services of one daemon. Close it, or use `connect`."""

    def __init__(self, address: Address) -> None:
        """Raises CommandFailed where a file of the address' TLS cannot be read."""
        self.address = address
        self.credentials = credentials_of(address)
        if self.credentials is not None:
            self.channel = grpc.secure_channel(str(address), self.credentials, options=PINGING_OPTIONS)
        else:
            self.channel = grpc.insecure_channel(str(address), options=OPTIONS)
        self.jobs = job_pb2_grpc.JobServiceStub(self.channel)
        #: Whether a daemon has answered by now: if it disappears after that, it may come back.
        self.met = False
        #: True: a wait prints nothing.
        self.quiet = False
        #: Whether the listener was full when that was looked at last.
        self._waits = False
        self._claim = claim(caller_name())
        self._token = OwnToken(address.path)

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What a call says of who makes it. Blocks for up to own_token.ANSWER_S where the daemon does not
        answer."""
        return self._told()

    def _told(self, within_s: float | None = None) -> tuple[tuple[str, str], ...]:
        return (*self._claim, *self._token.metadata(within_s))

    # Made when they are asked for: every command would pay for the import, and few need more than one.

    @functools.cached_property
    def logs(self) -> "log_pb2_grpc.LogServiceStub":
        """The output of jobs."""
        from muster.v1 import log_pb2_grpc

        return log_pb2_grpc.LogServiceStub(self.channel)

    @functools.cached_property
    def events(self) -> "event_pb2_grpc.EventServiceStub":
        """What happens."""
        from muster.v1 import event_pb2_grpc

        return event_pb2_grpc.EventServiceStub(self.channel)

    @functools.cached_property
    def nodes(self) -> "node_pb2_grpc.NodeServiceStub":
        """The node."""
        from muster.v1 import node_pb2_grpc

        return node_pb2_grpc.NodeServiceStub(self.channel)

    @functools.cached_property
    def probes(self) -> "probe_pb2_grpc.ProbeServiceStub":
        """The checks."""
        from muster.v1 import probe_pb2_grpc

        return probe_pb2_grpc.ProbeServiceStub(self.channel)

    @functools.cached_property
    def telemetry(self) -> "telemetry_pb2_grpc.TelemetryServiceStub":
        """The readings."""
        from muster.v1 import telemetry_pb2_grpc

        return telemetry_pb2_grpc.TelemetryServiceStub(self.channel)

    @functools.cached_property
    def execs(self) -> "exec_pb2_grpc.ExecServiceStub":
        """Sessions."""
        from muster.v1 import exec_pb2_grpc

        return exec_pb2_grpc.ExecServiceStub(self.channel)

    def close(self) -> None:
        """Closes the channel; calls under way fail."""
        self.channel.close()

    def call(self, method: Callable[..., Response], request: Any, timeout: float | None = ANSWER_S) -> Response:
        """One answer. Waits for a slot for as long as for an answer. Raises CallFailed, NoDaemon, BadSpec."""
        slot = self.slot_wait(timeout)
        while True:
            began = time.monotonic()
            # The token comes out of the call's time, and takes half of it at most.
            told = self._told(None if timeout is None else timeout / 2)
            left = None if timeout is None else max(began + timeout - time.monotonic(), 0.1)
            try:
                answer = method(request, timeout=left, metadata=told)
            except grpc.RpcError as error:
                failure = self.failure(error, timeout)
            else:
                self.met = True
                slot.over()
                return answer
            slot.wait_or_raise(failure)

    def patiently(
        self, method: Callable[..., Response], request: Any, timeout: float | None = ANSWER_S, *, aloud: bool = False
    ) -> Response:
        """As `call`, for a call that is safe to repeat: looks for a daemon that has exited for PATIENCE_S. `aloud`:
        says so after a second."""
        say = self.say_search if aloud else _mute
        patience = Patience(say=say)
        while True:
            began = time.monotonic()
            try:
                return self.call(method, request, timeout)
            except (CallFailed, NoDaemon) as failure:
                if time.monotonic() - began > 1:
                    patience = Patience(say=say)  # a daemon answered before: the search begins now
                patience.wait_or_raise(failure)

    def stream(
        self,
        method: Callable[..., Iterator[Response]],
        request: Any,
        *,
        quiet: bool = False,
        timeout: float | None = None,
    ) -> Iterator[Response]:
        """The answers one after the other; a list of requests is a stream of them. Waits for a slot, however long it
        takes, or for `timeout`, as for all answers; `quiet`: without a word. Raises CallFailed, NoDaemon, BadSpec.
        Closing the iterator ends the call."""
        slot = self.slot_wait(timeout, quiet=quiet)
        asked = {} if timeout is None else {"timeout": timeout}
        while True:
            call = method(iter(request) if isinstance(request, list) else request, metadata=self.metadata, **asked)
            try:
                for answer in call:
                    self.met = True
                    slot.over()
                    yield answer
                return
            except grpc.RpcError as error:
                failure = self.failure(error, timeout)
            finally:
                cancel = getattr(call, "cancel", None)
                if cancel is not None:
                    cancel()
            slot.wait_or_raise(failure)

    def say_search(self, why: str) -> None:
        """Says that there is a wait for a daemon, and `why`."""
        if not self.quiet:
            note(f"waiting up to {PATIENCE_S:g} s for a daemon at {self.address}: {why}")

    def slot_wait(self, seconds: float | None, *, quiet: bool = False) -> SlotWait:
        """For one call; see there."""
        return SlotWait(seconds, _mute if quiet or self.quiet else note)

    def failure(self, error: grpc.RpcError, timeout: float | None) -> CommandFailed:
        """What the command says about a call that failed."""
        with _FIRST_USE:
            from grpc import aio  # only now is it run

            answered = isinstance(error, grpc.Call | aio.AioRpcError)
        from muster import client

        if not answered:
            return CallFailed("UNKNOWN", str(error))
        status = error.code().name
        known = client.failure(error)
        reason = "" if known.reason == status else known.reason
        if reason in NO_GOOD_TOKEN:
            self._token.drop()
            if self._token.refused:
                return CallFailed(status, f"musterd cannot tell which user you are: {self._token.refused}", reason)
        if status == "INVALID_ARGUMENT" and known.violations:
            from muster.supervisors.model.spec import Violation

            return BadSpec([Violation(field, text) for field, text in known.violations])
        if status == "UNAVAILABLE" and not reason:
            try:
                self.address.probe()
            except NoDaemon as failure:
                return failure
            # Nothing was sent to anybody then, so that it can be tried again, whatever the call does.
            if known.message.startswith("failed to connect") and (facts := self._full()):
                limit = f"it is at its limit of {facts['limit']}" if facts["limit"] else "it is at its limit"
                text = f"{facts['listener']} takes no more connections: {limit}: try again, or raise {facts['setting']}"
                pause = 1.0 if facts["limit"] else 0.2
                return CallFailed("RESOURCE_EXHAUSTED", text, "TOO_MANY_CONNECTIONS", pause, facts)
            if why := self._silence():
                return CallFailed(status, f"no answer from the daemon at {self.address}: {why}")
            return CallFailed(status, f"the connection to the daemon at {self.address} broke: {known.message}")
        if status == "DEADLINE_EXCEEDED" and timeout is not None:
            why = f": {why}" if (why := self._silence()) else ""
            return CallFailed(
                status, f"the daemon at {self.address} did not answer within {round(timeout, 3):g} s{why}"
            )
        return CallFailed(status, known.message or status, reason, client.retry_after(error), client.facts(error))

    def _full(self) -> dict[str, str] | None:
        """What is known of the limit, where the listener takes no more connections."""
        from muster.agent.cli.client import connection_limit

        facts = connection_limit.full(self.address, self._waits)
        self._waits = facts is not None  # also where it has room again: gRPC may fail once more before it looks
        return facts

    def _silence(self) -> str:
        """Why the daemon, which holds its socket, may be silent; empty if this cannot be found out from here."""
        from muster.agent.cli.client import silent

        return silent.why(self.address)


def may_pass(failure: CallFailed | NoDaemon) -> bool:
    """Whether another attempt may help."""
    return failure.transient if isinstance(failure, CallFailed) else failure.why is not Why.FORBIDDEN


class Patience:
    """Bounds the attempts to reach a daemon again: PATIENCE_S from now, with pauses that grow from 0.1 to 1 s."""

    def __init__(self, seconds: float = PATIENCE_S, say: Callable[[str], None] | None = None) -> None:
        """`say` is given why there is a wait, once that has lasted for a second."""
        self._say, self._say_at = say, time.monotonic() + SAY_S
        self._end = time.monotonic() + seconds
        self._pause = Backoff(0.1, 1.0, 1.5)

    def wait_or_raise(self, failure: CallFailed | NoDaemon, *, insist: bool = False) -> None:
        """Pauses, where another attempt may help; else raises `failure`. `insist`: also where a limit is reached."""
        pause, hopeful = self._pause.pause, may_pass(failure)
        if isinstance(failure, CallFailed):
            hopeful = hopeful or (insist and failure.status == "RESOURCE_EXHAUSTED")
            pause = max(pause, failure.retry_after or 0)
        if not hopeful or time.monotonic() + pause > self._end:
            raise failure
        if self._say is not None and time.monotonic() + pause > self._say_at:
            time.sleep(early := max(0.0, self._say_at - time.monotonic()))
            pause -= min(early, pause)
            self._say(failure.message)
            self._say = None
        time.sleep(pause)
        self._pause.next()


@contextmanager
def connect(address: Address) -> Iterator[DaemonConnection]:
    """A connection for the length of a `with`. Nothing is sent before the first call."""
    connection = DaemonConnection(address)
    try:
        yield connection
    finally:
        connection.close()


def credentials_of(address: Address) -> grpc.ChannelCredentials | None:
    """None for a unix socket, which needs none. Raises CommandFailed."""
    if address.tls is None:
        return None
    try:
        authority, certificate, key = (
            path.read_bytes() for path in (address.tls.authority, address.tls.certificate, address.tls.key)
        )
    except OSError as error:
        raise CommandFailed(f"cannot read {error.filename}: {error.strerror}", Exit.USAGE) from None
    return grpc.ssl_channel_credentials(authority, key, certificate)


def get_job(connection: DaemonConnection, job_id: str) -> job_pb2.Job:
    """Raises CallFailed (exit code 3 for an unknown job), NoDaemon."""
    return connection.call(connection.jobs.Get, job_pb2.GetRequest(job_id=utf8(job_id, "JOB"))).job


def utf8(text: str, name: str) -> str:
    """`text`, which protobuf only takes as UTF-8. Raises CommandFailed (usage) for anything else."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise CommandFailed(
            f"{name}: {text!r} is not UTF-8: the API of the daemon takes only UTF-8", Exit.USAGE
        ) from None
    return text


def proto_duration(seconds: float) -> Duration:
    """As protobuf wants it."""
    value = Duration()
    value.FromNanoseconds(round(seconds * 1e9))
    return value


def _mute(_: str) -> None:
    """For callers that print errors only."""


def caller_name() -> str:
    """The caller, as journal and events name it."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a number without a name, as in containers
        name = f"uid {os.getuid()}"
    return by_command(name, os.getpid())
