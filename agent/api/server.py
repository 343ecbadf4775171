"""The gRPC server: binds its sockets, serves, and shuts down cleanly."""

import grp
import os
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import structlog
from anyio.abc import TaskStatus
from google.protobuf import descriptor_pool
from grpc import aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from muster.agent.api import access, identity
from muster.agent.api.access import Caller, Role
from muster.agent.api.boundary import Boundary
from muster.agent.api.services import ServerContext
from muster.agent.api.services.event_service import EventService
from muster.agent.api.services.exec_service import ExecService
from muster.agent.api.services.job_service import JobService
from muster.agent.api.services.log_service import LogService
from muster.agent.api.services.node_service import NodeService
from muster.agent.api.services.probe_service import ProbeService
from muster.agent.api.services.telemetry_service import TelemetryService
from muster.agent.api.slots import Slots
from muster.agent.api.tls import Credentials
from muster.agent.config.access_settings import SocketTable, TlsTable
from muster.agent.config.schema import LEAST_CONNECTIONS, Config, LimitsTable
from muster.agent.errors import StartupError
from muster.supervisors.paths import Root
from muster.v1 import (
    event_pb2,
    event_pb2_grpc,
    exec_pb2,
    exec_pb2_grpc,
    job_pb2,
    job_pb2_grpc,
    log_pb2,
    log_pb2_grpc,
    node_pb2,
    node_pb2_grpc,
    probe_pb2,
    probe_pb2_grpc,
    telemetry_pb2,
    telemetry_pb2_grpc,
)

__all__ = ["ServerContext", "check", "serve"]

#: Seconds that calls under way have, when the daemon ends, before they are ended with UNAVAILABLE; and seconds after
#: that until their connections are cut.
GRACE_S = 1.0
CUT_S = 1.0
#: Calls of one connection at once, begun ones included, of a listener for others than operators.
MAX_STREAMS = 2048
#: Shares of all descriptors that the connections of a listener may take: of a listener for others than operators, and
#: of the operators' socket. The rest is reserved for the daemon's work.
SHARE, OPERATORS_SHARE = 1 / 8, 1 / 4
#: The operators' socket takes this multiple of max_connections.
OPERATORS_TIMES = 4
#: Seconds after which a connection without calls is closed. The client reconnects by itself with its next call.
IDLE_S = 60.0
_SERVICES = (
    job_pb2.DESCRIPTOR.services_by_name["JobService"].full_name,
    log_pb2.DESCRIPTOR.services_by_name["LogService"].full_name,
    event_pb2.DESCRIPTOR.services_by_name["EventService"].full_name,
    node_pb2.DESCRIPTOR.services_by_name["NodeService"].full_name,
    probe_pb2.DESCRIPTOR.services_by_name["ProbeService"].full_name,
    telemetry_pb2.DESCRIPTOR.services_by_name["TelemetryService"].full_name,
    exec_pb2.DESCRIPTOR.services_by_name["ExecService"].full_name,
)

_log = structlog.get_logger(__name__)


def check(root: Root, config: Config) -> None:
    """Checks that the listeners' files and groups exist, and changes nothing. Raises StartupError, as the start
    does."""
    if config.tls.listen:
        Credentials(config.tls)
    table, default = config.socket, SocketTable()
    groups = [(root.socket, table.group, default.group)]
    if table.reader:
        groups.append((root.reader_socket, table.reader_group, default.reader_group))
    for path, group, unasked in groups:
        try:
            if group not in ("", unasked):
                grp.getgrnam(group)
        except KeyError:
            raise _not_given(path, group, f"no such group: {group!r}") from None


async def serve(context: ServerContext, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
    """Serves on the root's sockets, and over TCP where that is configured, until `context.stopping` is set; started
    when calls are taken.

    Each listener is a server of its own, since gRPC does not tell a call which of them it came by; the services are the
    same. The caller holds the daemon's lock: gRPC takes the path of another server over without asking. Raises
    StartupError.
    """
    root = context.root
    health_servicer = _Health()
    for name in _SERVICES:
        await health_servicer.set(name, health_pb2.HealthCheckResponse.SERVING)
    services = _Services(context, health_servicer)

    tokens = identity.Tokens()

    failure: StartupError | None = None
    async with anyio.create_task_group() as tokens_task:
        listeners: list[tuple[aio.Server, Boundary]] = []
        try:
            # Before the sockets of the calls exist: who sees one of them gets a token.
            await tokens_task.start(identity.serve, root.identity_socket, tokens)
            listeners = _listeners(context, services, tokens)
            for server, _ in listeners:
                await server.start()
            task_status.started()
            _log.info("serving", socket=str(root.socket), tls=context.config().tls.listen or None)
            await context.stopping.wait()
        except StartupError as error:
            failure = error
        finally:
            with anyio.CancelScope(shield=True):
                # Bounded: a client that watches the health and does not read would block this.
                with anyio.move_on_after(GRACE_S):
                    await health_servicer.enter_graceful_shutdown()
                async with anyio.create_task_group() as tasks:
                    for server, boundary in listeners:
                        tasks.start_soon(_end, server, boundary)
            tokens_task.cancel_scope.cancel()
    if failure is not None:  # by itself: the group would wrap it
        raise failure


def _listeners(
    context: ServerContext, services: "_Services", tokens: identity.Tokens
) -> list[tuple[aio.Server, Boundary]]:
    """Bound, and not started yet. Raises StartupError."""
    root, config = context.root, context.config()

    def of_socket(role: Role, path: Path) -> Callable[[Any], Caller]:
        return access.of_socket(role, path, tokens, lambda: context.config().access)

    def made(identify: Callable[[Any], Caller], slots: Slots, operators: bool = False) -> tuple[aio.Server, Boundary]:
        boundary = Boundary(identify, context.audit, slots, context.registry)
        server = aio.server(interceptors=[boundary], options=_options(config.limits, operators))
        services.add_to(server)
        return server, boundary

    slots = context.slots.add("operators", root.socket)
    listeners = [made(of_socket(Role.OPERATOR, root.socket), slots, operators=True)]
    _bind(listeners[0][0], root.socket, config.socket.mode, config.socket.group, SocketTable().group)
    if config.socket.reader:
        slots = context.slots.add("readers", root.reader_socket)
        listeners.append(made(of_socket(Role.READER, root.reader_socket), slots))
        _bind(
            listeners[1][0],
            root.reader_socket,
            config.socket.reader_mode,
            config.socket.reader_group,
            SocketTable().reader_group,
        )
    if context.tls is not None:
        slots = context.slots.add("tls", config.tls.listen, shared=True)
        of_certificate = access.of_certificate(lambda: _names(context.config().tls), lambda: context.config().access)
        listeners.append(made(of_certificate, slots))
        _bind_tls(listeners[-1][0], config.tls.listen, context.tls)
    return listeners


class _Health(health.aio.HealthServicer):
    """With the list that the library's own leaves out (and its types, too)."""

    async def List(self, request: Any, context: Any) -> Any:
        """The health of the whole daemon ("") and of each service."""
        statuses = {
            name: await self.Check(health_pb2.HealthCheckRequest(service=name), context) for name in ("", *_SERVICES)
        }
        return health_pb2.HealthListResponse(statuses=statuses)  # type: ignore[attr-defined]


class _Services:
    """One of each, however many servers offer them."""

    def __init__(self, context: ServerContext, health_servicer: health.aio.HealthServicer) -> None:
        self._job, self._log, self._event = JobService(context), LogService(context), EventService(context)
        self._node, self._probe = NodeService(context), ProbeService(context)
        self._telemetry, self._exec = TelemetryService(context), ExecService(context)
        self._health = health_servicer

    def add_to(self, server: aio.Server) -> None:
        job_pb2_grpc.add_JobServiceServicer_to_server(self._job, server)
        log_pb2_grpc.add_LogServiceServicer_to_server(self._log, server)
        event_pb2_grpc.add_EventServiceServicer_to_server(self._event, server)
        node_pb2_grpc.add_NodeServiceServicer_to_server(self._node, server)
        probe_pb2_grpc.add_ProbeServiceServicer_to_server(self._probe, server)
        telemetry_pb2_grpc.add_TelemetryServiceServicer_to_server(self._telemetry, server)
        exec_pb2_grpc.add_ExecServiceServicer_to_server(self._exec, server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        names = (*_SERVICES, health.SERVICE_NAME, reflection.SERVICE_NAME)
        symbols: Any = _Symbols()
        reflection.enable_server_reflection(names, server, pool=symbols)


class _Symbols:
    """The descriptors for reflection. gRPC's contract has methods found by their names (`grpcurl describe`), which
    protobuf's own pool does not."""

    def __init__(self) -> None:
        self._pool: Any = descriptor_pool.Default()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)

    def FindFileContainingSymbol(self, symbol: str) -> Any:
        try:
            return self._pool.FindFileContainingSymbol(symbol)
        except KeyError:
            owner, _, name = symbol.rpartition(".")
            return self._pool.FindServiceByName(owner).methods_by_name[name].containing_service.file


def connections(limits: LimitsTable, operators: bool, descriptors: int) -> int:
    """How many connections a listener takes; one more is closed at once. `descriptors`: how many the daemon may have.

    Together they leave half of the descriptors, so that a flood of connections, on whichever listener, does not keep
    the daemon from its work, nor an operator out."""
    if operators:
        return max(8, min(OPERATORS_TIMES * limits.max_connections, int(descriptors * OPERATORS_SHARE)))
    return max(LEAST_CONNECTIONS, min(limits.max_connections, int(descriptors * SHARE)))


def _options(limits: LimitsTable, operators: bool) -> list[tuple[str, int]]:
    """`operators`: for the listener that they alone reach."""
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return [
        ("grpc.max_allowed_incoming_connections", connections(limits, operators, descriptors)),
        ("grpc.max_connection_idle_ms", int(IDLE_S * 1000)),
        *([] if operators else [("grpc.max_concurrent_streams", MAX_STREAMS)]),
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", limits.max_message_bytes),
        ("grpc.max_send_message_length", -1),
        # Time for the TLS handshake, in milliseconds; gRPC's default is two minutes.
        ("grpc.server_handshake_timeout_ms", 10_000),
        # Clients may send keepalive pings; by default gRPC allows one each five minutes.
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
        ("grpc.http2.max_ping_strikes", 0),
    ]


def _names(table: TlsTable) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return table.operators, table.readers


def _bind_tls(server: aio.Server, listen: str, credentials: Credentials) -> None:
    """Raises StartupError."""
    try:
        server.add_secure_port(listen, credentials.server())
    except RuntimeError as error:
        raise StartupError(f"tls.listen: cannot listen on {listen}: {error}") from error


def _bind(server: aio.Server, path: Path, mode: int, group: str, default_group: str) -> None:
    """Binds the socket so that no user excluded by `mode` can ever connect. Raises StartupError."""
    # Without the umask a new socket has mode 0777, and a process that connects between bind and chmod keeps its
    # connection. The umask may make other threads' new files too private while the bind runs.
    before = os.umask(0o177)
    try:
        server.add_insecure_port(f"unix:{path}")
    except RuntimeError as error:
        raise StartupError(f"{path}: cannot listen on this socket: {error}") from error
    finally:
        os.umask(before)
    try:
        if group:
            shutil.chown(path, group=group)
    except (OSError, LookupError) as error:
        if group != default_group:
            raise _not_given(path, group, error) from error
        # The default group is optional: the node may lack it, and the daemon may not be allowed to use it.
        _log.info("the socket stays with the daemon's own group", group=group, error=str(error))
    try:
        path.chmod(mode)
    except OSError as error:
        raise StartupError(f"{path}: cannot give the socket the mode {mode:04o}: {error}") from error


def _not_given(path: Path, group: str, why: object) -> StartupError:
    return StartupError(
        f"{path}: cannot give the socket to the group {group!r}: {why}; see [socket] in the configuration"
    )


async def _end(server: aio.Server, boundary: Boundary) -> None:
    boundary.end_streams()
    async with anyio.create_task_group() as tasks:
        # It refuses new calls at once, and returns as soon as the last call has ended.
        tasks.start_soon(server.stop, GRACE_S + CUT_S)
        with anyio.move_on_after(GRACE_S):
            await server.wait_for_termination()
        boundary.end_all()
