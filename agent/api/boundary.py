"""The boundary between handlers and gRPC: the one place where an exception becomes a status.

It is an interceptor, so no handler can forget it. What it sees to (each was met with grpc.aio):

* A domain error becomes its code with google.rpc details, cut to what fits into a trailer: a status over 8 KiB is
  dropped by the client's library, which then reports something else.
* An unexpected exception becomes INTERNAL without its text, and an incident number that the daemon's log has too.
* A handler's own CancelledError (asyncio's count of cancellations is 0) gets a status: without one the client hangs.
  A cancellation from outside (client, deadline) is raised again: swallowing it leaks the call.
* An ExceptionGroup is looked into, so that a task group in a handler does not turn a clear error into UNKNOWN.
* Bytes that are no message are INVALID_ARGUMENT.
* A generator is iterated here and written with `context.write`: grpc would finalise it in another task.
* Whether the caller may do that, to this job, is judged here, and what was done is written into the audit log.
* Each call that looks or streams has a slot (slots.py) for as long as it lasts.
* When the daemon ends, calls that wait are ended with UNAVAILABLE instead of a cut connection.
"""

import asyncio
import contextlib
import inspect
import uuid
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any

import anyio
import grpc
import structlog
from google.protobuf import duration_pb2
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2
from grpc import aio
from grpc_status import rpc_status

from muster.agent.api import access, own_jobs
from muster.agent.api.access import Caller, Role
from muster.agent.api.audit import Audit, Call
from muster.agent.api.slots import HeldSlot, Slots, kind_of
from muster.agent.errors import ApiError, InvalidRequest, ShuttingDown
from muster.agent.host.turns import PARTY, Party
from muster.agent.jobs.registry import Registry
from muster.supervisors.model.spec import Violation

if TYPE_CHECKING:  # generic in their stubs only
    _Handler = grpc.RpcMethodHandler[Any, Any]
    _Context = aio.ServicerContext[Any, Any]

DOMAIN = "muster"
#: Bytes; together they stay well below the 8 KiB that a client accepts as metadata (the details travel base64-coded,
#: the message a second time and with three characters per byte that is not ASCII).
MAX_MESSAGE = 700
MAX_VIOLATIONS = 2000

_log = structlog.get_logger(__name__)
_Behaviour = Callable[[Any, Any], Any]


class Defect(ApiError):
    """Raised for an unexpected exception of a handler; carries only a number that finds it in the log."""

    def __init__(self, incident: str) -> None:
        super().__init__(f"a defect of muster: see incident {incident} in the daemon's log")
        self.incident = incident

    def metadata(self) -> dict[str, str]:
        return {"incident": self.incident}


def status(error: ApiError) -> status_pb2.Status:
    """The google.rpc.Status of an error: ErrorInfo always, BadRequest and RetryInfo where they apply."""
    code = grpc.StatusCode[error.code]
    answer = status_pb2.Status(code=code.value[0], message=_plain(str(error), MAX_MESSAGE))
    info = error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN)
    for key, value in error.metadata().items():
        info.metadata[key] = _plain(value, 300)
    answer.details.add().Pack(info)
    if isinstance(error, InvalidRequest):
        answer.details.add().Pack(_bad_request(error))
    if error.retry_after is not None:
        whole = int(error.retry_after)
        delay = duration_pb2.Duration(seconds=whole, nanos=round((error.retry_after - whole) * 1e9))
        answer.details.add().Pack(error_details_pb2.RetryInfo(retry_delay=delay))
    return answer


class Boundary(aio.ServerInterceptor):
    """Wraps every handler of a server, and can end the running calls."""

    def __init__(self, identify: Callable[[Any], Caller], audit: Audit, slots: Slots, registry: Registry) -> None:
        """`identify` returns the caller for a call's context; `slots` are the slots of the server's listener;
        `registry` says whose a job is."""
        self._identify = identify
        self._registry = registry
        self._audit = audit
        self._slots = slots
        self._calls: dict[anyio.CancelScope, bool] = {}

    async def intercept_service(
        self,
        continuation: "Callable[[grpc.HandlerCallDetails], Awaitable[_Handler | None]]",
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "_Handler | None":
        """Returns the wrapped handler. gRPC calls it for each call."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        method = handler_call_details.method
        reading = _reading(handler.request_deserializer, handler.request_streaming)
        encode = handler.response_serializer
        if handler.unary_unary is not None:
            # Encoded here, to count the bytes that wait for the client: gRPC passes bytes on unchanged.
            return grpc.unary_unary_rpc_method_handler(self.guard(handler.unary_unary, method, encode), reading)
        if handler.unary_stream is not None:
            return grpc.unary_stream_rpc_method_handler(self.guard(handler.unary_stream, method), reading, encode)
        if handler.stream_unary is not None:
            return grpc.stream_unary_rpc_method_handler(self.guard(handler.stream_unary, method, encode), reading)
        assert handler.stream_stream is not None  # the last of gRPC's four kinds
        return grpc.stream_stream_rpc_method_handler(self.guard(handler.stream_stream, method), reading, encode)

    def end_streams(self) -> None:
        """Ends all streaming calls with UNAVAILABLE / STOPPING: clients resume later with their cursor or offsets."""
        for scope, streams in list(self._calls.items()):
            if streams:
                scope.cancel()

    def end_all(self) -> None:
        """Ends every call in the same way; each is safe to repeat."""
        for scope in list(self._calls):
            scope.cancel()

    def guard(self, behaviour: _Behaviour, method: str, encode: Callable[[Any], bytes] | None = None) -> _Behaviour:
        """`encode`: encodes the single answer of a call; None if the answers stream."""

        async def guarded(request: Any, context: "_Context") -> Any:
            caller = self._identify(context)
            call = Call(self._audit, method, caller, access.claimed(context), request)
            access.PRESENT.set(caller)
            try:
                access.check(method, caller)
                if isinstance(request, InvalidRequest):
                    raise request
                await own_jobs.check_job(caller.reach, method, getattr(request, "job_id", ""), self._registry)
                held = self._slot(method, caller, context)
                with (
                    held.handling() if held is not None else contextlib.nullcontext(),
                    anyio.CancelScope() as scope,
                    self._tracked(scope, streams=encode is None),
                ):
                    answer = await _call(behaviour, request, context)
                    call.answered(answer)
                    if encode is not None:
                        answer = encode(answer)
                        if held is not None:
                            held.answered(len(answer))
                    await self._noted(call, "OK")
                    return answer
                # Left without a result: only `end_streams` and `end_all` cancel this scope.
                failure: ApiError = ShuttingDown()
            except asyncio.CancelledError as error:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    _note(call, "CANCELLED")
                    raise
                failure = _defect(error, method)
            except aio.AbortError:
                raise  # it already has its status, as from health checks
            except (aio.UsageError, aio.InternalError) as error:
                # The client left during a write. A status can no longer be sent, and gRPC would fill the log with
                # errors.
                _note(call, "CANCELLED")
                raise asyncio.CancelledError from error
            except BaseExceptionGroup as group:
                try:
                    failure = _of_group(group, method)
                except asyncio.CancelledError:
                    _note(call, "CANCELLED")
                    raise
            except ApiError as error:
                failure = error
            except Exception as error:
                failure = _defect(error, method)
            await self._noted(call, failure.code)
            await context.abort_with_status(rpc_status.to_status(status(failure)))

        return guarded

    async def _noted(self, call: Call, answer: str) -> None:
        """The line in the audit log is written before the answer is sent, where the log's disk answers."""
        if _note(call, answer):
            with anyio.CancelScope(shield=True):
                await self._audit.written()

    @contextlib.contextmanager
    def _tracked(self, scope: anyio.CancelScope, streams: bool) -> Iterator[None]:
        self._calls[scope] = streams
        try:
            yield
        finally:
            del self._calls[scope]

    def _slot(self, method: str, caller: Caller, context: "_Context") -> HeldSlot | None:
        """Takes a slot for the duration of the call; None if it needs none. Raises NoSlot."""
        kind = kind_of(method)
        if kind is None:
            return None
        held = self._slots.take(kind, caller, access.claimed(context))
        # For this call's task and the tasks that it starts.
        PARTY.set(Party(self._slots.name, patient=caller.role is not Role.OPERATOR))
        context.add_done_callback(held.done)  # type: ignore[arg-type]  # a function is what it takes
        return held


def _reading(deserialize: Callable[[bytes], Any] | None, streams: bool) -> Callable[[bytes], Any] | None:
    """`deserialize` for bytes that may be no such message: gRPC would answer UNKNOWN before it calls the handler.
    A single request becomes the error itself; in a stream, the handler that reads the request gets the error."""
    if deserialize is None:
        return None

    def read(data: bytes) -> Any:
        try:
            return deserialize(data)
        except DecodeError:
            error = InvalidRequest([Violation("request", "its bytes are not a message of this call")])
        if streams:
            raise error
        return error

    return read


def _note(call: Call, answer: str) -> bool:
    """Audits calls that act, and says whether this is one. Read-only calls are audited only if the caller may not make
    them."""
    audited = not access.is_look(call.method) or answer == "PERMISSION_DENIED"
    if audited:
        call.end(answer)
    return audited


async def _call(behaviour: _Behaviour, request: Any, context: "_Context") -> Any:
    if not inspect.isasyncgenfunction(behaviour):
        return await behaviour(request, context)
    async with contextlib.aclosing(behaviour(request, context)) as messages:
        async for message in messages:
            await context.write(message)
    return None


def _of_group(group: BaseExceptionGroup[BaseException], method: str) -> ApiError:
    """The error that represents a group of exceptions. Re-raises an outside cancellation and exceptions that end the
    process."""
    leaves = list(_leaves(group))
    task = asyncio.current_task()
    for leaf in leaves:
        if isinstance(leaf, KeyboardInterrupt | SystemExit):
            raise leaf
        if isinstance(leaf, asyncio.CancelledError) and task is not None and task.cancelling():
            raise leaf
        if isinstance(leaf, aio.AbortError):
            raise leaf
        if isinstance(leaf, aio.UsageError | aio.InternalError):
            raise asyncio.CancelledError from leaf
    known = [leaf for leaf in leaves if isinstance(leaf, ApiError)]
    if known and all(isinstance(leaf, ApiError | asyncio.CancelledError) for leaf in leaves):
        return known[0]
    return _defect(group, method)


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    found: list[BaseException] = []
    for error in group.exceptions:
        found += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found


def _defect(error: BaseException, method: str) -> Defect:
    incident = uuid.uuid4().hex[:12]
    _log.error("a call failed by a defect", method=method, incident=incident, exc_info=error)
    return Defect(incident)


def _bad_request(error: InvalidRequest) -> error_details_pb2.BadRequest:
    """The violations, as many as fit; the last entry says how many do not."""
    answer = error_details_pb2.BadRequest()
    used = 0
    for number, violation in enumerate(error.violations):
        field, description = _plain(violation.field, 200), _plain(violation.description, 500)
        used += len(field.encode()) + len(description.encode()) + 8
        if used > MAX_VIOLATIONS:
            answer.field_violations.add(field="...", description=f"and {len(error.violations) - number} more")
            break
        answer.field_violations.add(field=field, description=description)
    return answer


def _plain(text: str, limit: int) -> str:
    """`text` as protobuf and a trailer take it: no lone surrogates, at most `limit` bytes."""
    data = text.encode("utf-8", "replace")
    if len(data) <= limit:
        return data.decode()
    return data[: limit - 3].decode("utf-8", "ignore") + "..."
