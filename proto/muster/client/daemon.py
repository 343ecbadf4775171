"""The way to one daemon: a channel with the right options.

Over a unix socket each call shows which user and process makes it (own_token.py).
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
from grpc import aio

from muster.client import own_token
from muster.client.async_client import Client
from muster.client.blocking_client import BlockingClient
from muster.client.channel_options import OPTIONS, PINGING_OPTIONS
from muster.v1 import (
    event_pb2_grpc,
    exec_pb2_grpc,
    job_pb2_grpc,
    log_pb2_grpc,
    node_pb2_grpc,
    probe_pb2_grpc,
    telemetry_pb2_grpc,
)

_NO_CREDENTIALS = "{}: over TCP a daemon requires a client certificate: give credentials; write a socket as unix:PATH"
#: Seconds that a daemon has to give a token; without one a call is made all the same.
TOKEN_S = 1.0


def target(address: str) -> str:
    """What gRPC wants to hear: a path is a unix socket; `unix:PATH`, `unix:///PATH`, `HOST:PORT` stay as they are."""
    is_path = address.startswith(("/", "./", "../")) or ("/" in address and ":" not in address)
    return f"unix:{address}" if is_path else address


@asynccontextmanager
async def connect(
    address: str, caller: str = "", credentials: grpc.ChannelCredentials | None = None
) -> AsyncIterator[Client]:
    """A client of the daemon at `address`. Nothing is sent before the first call, which fails with UNAVAILABLE where
    no daemon listens. `caller` is shown in journal and events as the one who asked ("slurmctld", "alice@login1").
    HOST:PORT needs `credentials`, as grpc.ssl_channel_credentials makes them; ValueError without.
    """
    where = target(address)
    told = _Told(caller, where)
    interceptors = [kind(told) for kind in _KINDS]
    if credentials is not None:
        made = aio.secure_channel(where, credentials, options=PINGING_OPTIONS, interceptors=interceptors)
    elif where.startswith("unix:"):
        made = aio.insecure_channel(where, options=OPTIONS, interceptors=interceptors)
    else:
        raise ValueError(_NO_CREDENTIALS.format(address))
    async with made as channel:
        yield Client(
            channel,
            job_pb2_grpc.JobServiceStub(channel),
            log_pb2_grpc.LogServiceStub(channel),
            event_pb2_grpc.EventServiceStub(channel),
            node_pb2_grpc.NodeServiceStub(channel),
            exec_pb2_grpc.ExecServiceStub(channel),
            probe_pb2_grpc.ProbeServiceStub(channel),
            telemetry_pb2_grpc.TelemetryServiceStub(channel),
        )


@contextmanager
def connect_blocking(
    address: str, caller: str = "", credentials: grpc.ChannelCredentials | None = None
) -> Iterator[BlockingClient]:
    """As `connect`, with calls that block; one whose node is lost ends within 30 s, with UNAVAILABLE.
    `stub.Method.future(request, timeout=...)` does not block, so that one thread may ask many daemons at once."""
    where = target(address)
    if credentials is not None:
        made = grpc.secure_channel(where, credentials, options=PINGING_OPTIONS)
    elif where.startswith("unix:"):
        made = grpc.insecure_channel(where, options=PINGING_OPTIONS)
    else:
        raise ValueError(_NO_CREDENTIALS.format(address))
    with made:
        channel = grpc.intercept_channel(made, _BlockingTeller(_Told(caller, where)))
        yield BlockingClient(
            channel,
            job_pb2_grpc.JobServiceStub(channel),
            log_pb2_grpc.LogServiceStub(channel),
            event_pb2_grpc.EventServiceStub(channel),
            node_pb2_grpc.NodeServiceStub(channel),
            exec_pb2_grpc.ExecServiceStub(channel),
            probe_pb2_grpc.ProbeServiceStub(channel),
            telemetry_pb2_grpc.TelemetryServiceStub(channel),
        )


class _Told:
    """What each call says of who makes it."""

    def __init__(self, caller: str, where: str) -> None:
        self._claim = own_token.claim(caller)
        path = where.removeprefix("unix:").removeprefix("//") if where.startswith("unix:") else ""
        self._tokens = own_token.beside(Path(path)) if path else None

    def of_call(self, details: Any) -> tuple[tuple[tuple[str, str | bytes], ...], float | None]:
        """The metadata of a call, with claim and token, and the seconds that are left to it. A token for each call: the
        daemon may be another one by now. Blocks for as long as the daemon needs to answer, at most a second."""
        token: tuple[tuple[str, str], ...] = ()
        left, began = details.timeout, time.monotonic()
        if self._tokens is not None:
            within_s = TOKEN_S if left is None else max(0.001, min(TOKEN_S, left))
            with suppress(OSError, ValueError, KeyError, TypeError):
                token = ((own_token.HEADER, own_token.fresh(self._tokens, within_s)[0]),)
        if left is not None:
            left = max(0.001, left - (time.monotonic() - began))
        return (*(details.metadata or ()), *self._claim, *token), left


class _Teller:
    """Says in each call who makes it; gRPC wants an object for each kind of calls."""

    def __init__(self, told: _Told) -> None:
        self._told = told

    async def _tell(self, continuation: Any, details: aio.ClientCallDetails, request: Any) -> Any:
        metadata, left = await asyncio.to_thread(self._told.of_call, details)
        more = aio.ClientCallDetails(
            details.method, left, aio.Metadata(*metadata), details.credentials, details.wait_for_ready
        )
        return await continuation(more, request)

    intercept_unary_unary = intercept_unary_stream = intercept_stream_unary = intercept_stream_stream = _tell


class _UnaryUnary(_Teller, aio.UnaryUnaryClientInterceptor): ...


class _UnaryStream(_Teller, aio.UnaryStreamClientInterceptor): ...


class _StreamUnary(_Teller, aio.StreamUnaryClientInterceptor): ...


class _StreamStream(_Teller, aio.StreamStreamClientInterceptor): ...


_KINDS = (_UnaryUnary, _UnaryStream, _StreamUnary, _StreamStream)


class _BlockingTeller(
    grpc.UnaryUnaryClientInterceptor,
    grpc.UnaryStreamClientInterceptor,
    grpc.StreamUnaryClientInterceptor,
    grpc.StreamStreamClientInterceptor,
):
    """The same for calls that block."""

    def __init__(self, told: _Told) -> None:
        self._told = told

    def _tell(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        metadata, left = self._told.of_call(client_call_details)
        return continuation(_Details(client_call_details, metadata, left), request)

    def _tell_all(self, continuation: Any, client_call_details: Any, request_iterator: Any) -> Any:
        return self._tell(continuation, client_call_details, request_iterator)

    intercept_unary_unary = intercept_unary_stream = _tell
    intercept_stream_unary = intercept_stream_stream = _tell_all


class _Details(grpc.ClientCallDetails):
    """Those of a call, with other metadata and time."""

    def __init__(self, details: Any, metadata: tuple[tuple[str, str | bytes], ...], timeout: float | None) -> None:
        self.method, self.timeout = details.method, timeout
        self.credentials, self.wait_for_ready = details.credentials, details.wait_for_ready
        self.compression = details.compression
        self.metadata = metadata
