"""ExecService: commands in a job's ranks. Their sessions live in the job's supervisor (agent/link/exec_link.py)."""

import json
import os.path
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import anyio
import structlog

from muster.agent import protobuf_times
from muster.agent.api import access, audit, exec_order
from muster.agent.api.exec_relay import Relay, exited_message, first_request
from muster.agent.api.services import ServerContext
from muster.agent.errors import (
    ApiError,
    InvalidRequest,
    NoSession,
    RankNotRunning,
    SessionNotFound,
    SupervisorUnreachable,
    TooManySessions,
)
from muster.agent.events.event_store import Event
from muster.agent.jobs.entry import Entry
from muster.agent.link import exec_link
from muster.agent.link.connection import LinkLost, Refused
from muster.agent.link.exec_link import ExecRefused, SessionLink
from muster.agent.text import plain
from muster.probes.kernel.backoff import Backoff
from muster.probes.kernel.dataclass import dataclass
from muster.supervisors.model.spec import Violation
from muster.supervisors.wire import frames
from muster.supervisors.wire.messages import Message
from muster.v1 import exec_pb2
from muster.v1.exec_pb2_grpc import ExecServiceServicer

if TYPE_CHECKING:
    from grpc import aio

    _Stream = aio.ServicerContext[exec_pb2.ExecRequest, exec_pb2.ExecResponse]
    _Unary = aio.ServicerContext[Any, Any]

#: Seconds to wait for the successor of a supervisor that has exited.
LOOK_S = 5.0
#: Jobs whose supervisors are asked at once for their sessions.
ASKED_AT_ONCE = 16
#: Sessions of which it is remembered that an event told their end. A session is kept for minutes behind it.
_ENDS = 4096
_OUTPUT_LIMIT = 64 << 10
_TOO_MANY = "TOO_MANY"
_MAX_ID = 64

_log = structlog.get_logger(__name__)


class ExecService(ExecServiceServicer):
    """Passes on; what a session is, its supervisor knows."""

    def __init__(self, context: ServerContext) -> None:
        self._server = context
        self._ended: dict[str, None] = {}

    async def Exec(  # type: ignore[override]  # the generated base wants an iterator: those are finalised by grpc in another task
        self, request_iterator: AsyncIterator[exec_pb2.ExecRequest], context: "_Stream"
    ) -> None:
        """See exec.proto. Raises InvalidRequest, JobNotFound, JournalUnreadable, RankNotRunning, SessionNotFound,
        SupervisorUnreachable, TooManySessions, NoSession."""
        first = await first_request(context)
        audit.about(job_id=first.attach.job_id or first.start.job_id, session_id=first.attach.session_id)
        if first.WhichOneof("message") == "attach":
            attach = first.attach
            entry = await self._server.readable(attach.job_id)
            order = {
                "op": "attach",
                "session": _checked(attach.session_id),
                "stdout": attach.stdout_offset if attach.HasField("stdout_offset") else None,
                "stderr": attach.stderr_offset if attach.HasField("stderr_offset") else None,
            }
            told, body = None, b""
        else:
            entry, by = await self._server.readable(first.start.job_id), access.named(context)
            body = exec_order.start(first.start, entry, self._server.config().exec, by)
            order = {"op": "exec", "size": len(body)}
            told = _SessionFacts(first.start.argv[0], by, first.start.tty)
        async with self._session(entry, order, body) as link:
            program = told.argv0 if told is not None else ""
            audit.begun(job_id=entry.job_id, session_id=link.started.session, program=program)
            if told is not None:
                self._tell_start(entry, link, told)
            here = link.started
            started = exec_pb2.ExecStarted(
                session_id=here.session,
                rank=here.rank,
                pid=here.pid,
                input_offset=here.input,
                stdout_offset=here.stdout,
                stderr_offset=here.stderr,
                tty=here.tty,
            )
            await context.write(exec_pb2.ExecResponse(started=started))
            if first.start.detached:
                return
            await Relay(link, context, lambda exited: self._tell_end(entry, link, exited)).run()

    async def RunCommand(self, request: exec_pb2.RunCommandRequest, context: "_Unary") -> exec_pb2.RunCommandResponse:
        """See exec.proto. Raises what Exec raises."""
        entry, by = await self._server.readable(request.job_id), access.named(context)
        body, limit = exec_order.command(request, entry, self._server.config().exec, by)
        most = request.output_limit if request.HasField("output_limit") else _OUTPUT_LIMIT
        async with self._session(entry, {"op": "exec", "size": len(body)}, body) as link:
            self._tell_start(entry, link, _SessionFacts(request.argv[0], by, tty=False))
            answer = await self._outcome(entry, link, request.input, limit, most)
            self._tell_end(entry, link, answer.exited)
        return answer

    async def ListSessions(
        self, request: exec_pb2.ListSessionsRequest, context: "_Unary"
    ) -> exec_pb2.ListSessionsResponse:
        """See exec.proto. Raises JobNotFound, JournalUnreadable, SupervisorUnreachable."""
        if request.job_id:
            found = await self._sessions(await self._server.readable(request.job_id))
        else:
            found = []
            limiter = anyio.CapacityLimiter(ASKED_AT_ONCE)

            async def ask(entry: Entry) -> None:
                async with limiter:
                    try:
                        found.extend(await self._sessions(entry))
                    except (SupervisorUnreachable, RankNotRunning) as error:
                        # One that died took its sessions along, one of an earlier release has none; one that hangs must
                        # not hide those of other jobs.
                        _log.warning("sessions.not_told", job=entry.job_id, error=str(error))

            async with anyio.create_task_group() as tasks:
                for entry in self._server.registry.live():
                    mine = access.reach().covers(entry.spec.user)
                    if mine and entry.job.supervisor_pid and not entry.damaged:
                        tasks.start_soon(ask, entry)
        found.sort(key=lambda one: (one.started_at.ToNanoseconds(), one.session_id))
        return exec_pb2.ListSessionsResponse(sessions=found)

    async def EndSession(self, request: exec_pb2.EndSessionRequest, context: "_Unary") -> exec_pb2.EndSessionResponse:
        """See exec.proto. Raises JobNotFound, JournalUnreadable, SessionNotFound, SupervisorUnreachable."""
        await self._ask(
            await self._server.readable(request.job_id), {"op": "end_session", "session": _checked(request.session_id)}
        )
        return exec_pb2.EndSessionResponse()

    # --- the supervisor -----------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _session(self, entry: Entry, order: Message, body: bytes) -> AsyncIterator[SessionLink]:
        """Raises what Exec raises."""
        link: SessionLink | None = None
        try:
            async with exec_link.session(entry.paths.controls, order, body) as link:
                yield link
        except Refused as refused:
            raise self._refusal(entry, order, refused) from None
        except LinkLost as lost:
            if link is None:
                raise self._unreachable(entry, str(order.get("session", "")), lost) from lost
            raise await self._what_became(entry, link) from lost

    async def _ask(self, entry: Entry, order: Message) -> Message:
        try:
            return await exec_link.ask(entry.paths.controls, order)
        except Refused as refused:
            raise self._refusal(entry, order, refused) from None
        except LinkLost as lost:
            raise self._unreachable(entry, str(order.get("session", "")), lost) from lost

    def _refusal(self, entry: Entry, order: Message, refused: Refused) -> ApiError:
        text = f"job {entry.job_id}: {refused}"
        if not isinstance(refused, ExecRefused):
            return RankNotRunning(text)
        reason = refused.reason
        if reason == "INVALID":
            return InvalidRequest([Violation("start" if order["op"] == "exec" else "attach", str(refused))])
        if reason == "SESSION_NOT_FOUND":
            return SessionNotFound(str(order.get("session", "")), text)
        if reason == _TOO_MANY:
            return TooManySessions(entry.job_id, refused.limit) if refused.limit is not None else NoSession(text)
        return RankNotRunning(text)  # also where a supervisor of an older muster knows no sessions

    @staticmethod
    def _unreachable(entry: Entry, session: str, lost: LinkLost) -> ApiError:
        if not entry.job.state.final:
            return SupervisorUnreachable(f"job {entry.job_id}: {lost}")
        ended = f"job {entry.job_id} has ended ({entry.job.state})"
        if session:
            return SessionNotFound(session, f"{ended}; session {session} ended with it")
        return RankNotRunning.of_job(entry.job_id, entry.job.state)

    async def _what_became(self, entry: Entry, link: SessionLink) -> ApiError:
        """Of a session whose link broke: it lives in its supervisor, and died with it."""
        pause = Backoff(0.05, 0.5)
        session, problem = link.started.session, "its supervisor does not answer"
        with anyio.move_on_after(LOOK_S):
            while not entry.job.state.final:
                try:
                    pid = await exec_link.supervisor_pid(entry.paths.controls)
                except (LinkLost, Refused) as error:
                    problem = str(error)
                    await anyio.sleep(pause.next())
                    continue
                if pid != link.started.supervisor:
                    return SessionNotFound(session, f"job {entry.job_id}: session {session} died with its supervisor")
                return SupervisorUnreachable(
                    f"job {entry.job_id}: session {session} lost its connection: attach to it again"
                )
        return self._unreachable(entry, session, LinkLost(problem))

    async def _sessions(self, entry: Entry) -> list[exec_pb2.Session]:
        """None where the job has no supervisor: it has not begun, or has ended."""
        if entry.job.state.final or not entry.job.supervisor_pid:
            return []
        answer = await self._ask(entry, {"op": "sessions"})
        return [_session_message(entry.job_id, one) for one in answer["sessions"]]

    async def _outcome(
        self, entry: Entry, link: SessionLink, given: bytes, limit: float, most: int
    ) -> exec_pb2.RunCommandResponse:
        """Feeds a command, collects what it writes, and has it ended when its time is over. Raises LinkLost."""
        answer = exec_pb2.RunCommandResponse()
        kept = {frames.STDOUT: bytearray(), frames.STDERR: bytearray()}
        ends = {frames.STDOUT: 0, frames.STDERR: 0}

        async def end_in_time() -> None:
            await anyio.sleep(limit)
            answer.timed_out = True
            with suppress(ApiError):  # it has just ended, or its supervisor has exited, which the link reports
                await self._ask(entry, {"op": "end_session", "session": link.started.session})

        lost: LinkLost | None = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(end_in_time)
            try:
                for at in range(0, len(given), frames.MAX_DATA):
                    await link.send(frames.INPUT, at, data=given[at : at + frames.MAX_DATA])
                if given:
                    await link.send(frames.CLOSE, len(given))
                while not answer.HasField("exited"):
                    for frame in await link.receive():
                        if frame.kind in kept:
                            ends[frame.kind] = frame.numbers[0] + len(frame.data)
                            kept[frame.kind] += frame.data[: most - len(kept[frame.kind])]
                        elif frame.kind == frames.EXITED:
                            answer.exited.CopyFrom(exited_message(json.loads(frame.data)))
                    await link.acknowledge(ends[frames.STDOUT], ends[frames.STDERR])
            except LinkLost as error:
                lost = error
            tasks.cancel_scope.cancel()
        if lost is not None:
            raise lost
        if answer.timed_out:
            answer.exited.message = f"it reached its time limit of {limit:g} s"
        answer.stdout, answer.stderr = bytes(kept[frames.STDOUT]), bytes(kept[frames.STDERR])
        answer.stdout_cut = ends[frames.STDOUT] - len(answer.stdout)
        answer.stderr_cut = ends[frames.STDERR] - len(answer.stderr)
        return answer

    # --- the rest -----------------------------------------------------------------------------------------------------

    def _tell_start(self, entry: Entry, link: SessionLink, told: "_SessionFacts") -> None:
        here = link.started
        text = f"session {here.session} in rank {here.rank}: {told.command}, by {told.by}"
        facts = {"command": told.command, "by": told.by, "tty": str(told.tty).lower(), "pid": str(here.pid)}
        self._tell(entry, link, "job.exec", text, facts)

    def _tell_end(self, entry: Entry, link: SessionLink, exited: exec_pb2.ExecExited) -> None:
        """Reports the end once; a client that attaches after the end gets it, too."""
        session = link.started.session
        if session in self._ended:
            return
        self._ended[session] = None
        if len(self._ended) > _ENDS:
            del self._ended[next(iter(self._ended))]
        text = f"session {session} ended with code {exited.exit_code}"
        self._tell(entry, link, "job.exec_ended", text, {"exit_code": str(exited.exit_code)})

    def _tell(self, entry: Entry, link: SessionLink, kind: str, text: str, facts: dict[str, str]) -> None:
        facts = {"session": link.started.session} | facts
        event = Event(time.time(), kind, entry.job_id, link.started.rank, text, attributes=facts)
        self._server.events.append([(None, event)])


@dataclass(frozen=True, slots=True)
class _SessionFacts:
    """What events say of a session; never its arguments, which may be secrets."""

    argv0: str
    by: str
    tty: bool

    @property
    def command(self) -> str:
        return os.path.basename(self.argv0)[:64] or self.argv0[:64]


def _checked(session_id: str) -> str:
    """What may be the id of a session. Raises SessionNotFound."""
    if not (session_id.isascii() and session_id.isalnum() and len(session_id) <= _MAX_ID):
        raise SessionNotFound(session_id, f"session {session_id[:_MAX_ID]!r}: an id has only letters and digits")
    return session_id


def _session_message(job_id: str, told: Message) -> exec_pb2.Session:
    message = exec_pb2.Session(
        job_id=job_id,
        session_id=told["session"],
        rank=told["rank"],
        command=plain(told["command"]),
        tty=told["tty"],
        pid=told["pid"],
        started_at=protobuf_times.timestamp(told["started_at"]),
        by=plain(told["by"]),
        attached=told["attached"],
        detached=told["detached"],
    )
    if told["exited"] is not None:
        message.exited.CopyFrom(exited_message(told["exited"]))
    return message
