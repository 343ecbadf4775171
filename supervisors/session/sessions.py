"""All sessions of a job: commands that people and schedulers run beside its ranks.

The supervisor holds them, so they survive the daemon. They end with the ranks, and the journal does not depend on them.
If the supervisor dies they are lost, and its successor ends their remaining processes.
"""

import os
from collections.abc import Callable
from dataclasses import replace

from muster.probes.kernel import marks
from muster.supervisors.launch import spawning
from muster.supervisors.launch.child import ProcessSpec
from muster.supervisors.launch.containment import Containment
from muster.supervisors.launch.creation.underway import Underway, Waiting
from muster.supervisors.launch.session_start import MAX_REQUEST, SessionRefused, SessionRequest, place
from muster.supervisors.model.lifecycle import Job, Rank
from muster.supervisors.model.spec import Boot
from muster.supervisors.model.states import State
from muster.supervisors.session.session import Session
from muster.supervisors.session.session_ends import WITH_RANKS, SessionEnds
from muster.supervisors.session.session_io import Outlet, SessionDescriptors, open_pipes, open_terminal
from muster.supervisors.supervision_errors import NotStartable
from muster.supervisors.system import malloc
from muster.supervisors.system.loop import Loop
from muster.supervisors.wire.control import ControlClient, Handler
from muster.supervisors.wire.frames import MAX_DATA
from muster.supervisors.wire.messages import Message, encode

#: Sessions that have ended and whose end is kept, and bytes of output that is kept of them: the oldest goes first.
MAX_KEPT, MAX_KEPT_BYTES = 256, 16 << 20


class Sessions:
    """Of one job, over all its attempts."""

    def __init__(
        self,
        loop: Loop,
        boot: str,
        job: Job,
        containment: Containment,
        beside: Callable[[Rank], ProcessSpec],
    ) -> None:
        """`beside`: spawns what runs beside a rank; raises OSError and NotStartable."""
        self._loop, self._boot = loop, boot
        self._job, self._containment, self._beside = job, containment, beside
        self._all: dict[str, Session] = {}
        #: Their commands are being created.
        self._coming: set[Underway] = set()
        self._due: dict[Outlet, Session] = {}
        self.ends = SessionEnds(loop, containment, self._all)

    def handlers(self) -> dict[str, Handler]:
        """What is asked for over the control socket."""
        return {
            "exec": self._on_exec,
            "attach": self._on_attach,
            "sessions": self._on_list,
            "end_session": self._on_end,
        }

    @property
    def comes(self) -> bool:
        """Whether a command is being created."""
        return bool(self._coming)

    # --- what the loop's turn brings ----------------------------------------------------------------------------------

    def reap(self) -> bool:
        """Waits for commands that have ended. Returns whether there was one."""
        why = "" if self._job.state is State.RUNNING else WITH_RANKS
        found = False
        for session in list(self._all.values()):
            if session.lives:
                pid, status = os.waitpid(session.pid, os.WNOHANG)
                if pid:
                    found = True
                    session.ended(status, why)
        if found:
            self._forget_oldest()
        return found

    def turn(self) -> None:
        """Behind every batch of events: 64 KiB of all sessions' output, after the ranks'. They take turns."""
        left = MAX_DATA
        while self._due and left > 0:
            outlet = next(iter(self._due))
            session = self._due.pop(outlet)
            left -= max(1, outlet.read(left))
            session.look()
            if session.exited is not None:
                self._forget_oldest()
        if self._due:
            self._loop.later(0, lambda: None)

    def close(self) -> None:
        """The supervisor ends. Attached clients learn how their session ended."""
        for coming in list(self._coming):
            coming.cancel()
        self.reap()
        for session in self._all.values():
            session.cut_off(WITH_RANKS)

    # --- orders -------------------------------------------------------------------------------------------------------

    def _on_exec(self, message: Message, client: ControlClient) -> Message | None:
        size = message.get("size")
        if type(size) is not int or not 0 < size <= MAX_REQUEST:
            return _refusal(SessionRefused("INVALID", f"a request of {size!r} bytes: must have 1 to {MAX_REQUEST}"))
        body = bytearray()

        def read(data: bytes) -> None:
            body.extend(data)
            if len(body) >= size:
                client.hand_back(bytes(body[size:]))
                self._begin(client, bytes(body[:size]))

        client.hand_over(read)
        return None

    def _begin(self, client: ControlClient, body: bytes) -> None:
        """What the client sends until it has its answer waits."""
        early = bytearray()
        client.hand_over(early.extend)

        def work() -> Waiting[None]:
            try:
                session = yield from self._spawn(SessionRequest.parse(body))
            except SessionRefused as error:
                client.send({"op": "exec"} | _refusal(error))
                client.hand_back(bytes(early))
                return
            client.send({"op": "exec"} | session.answer())
            client.hand_back(bytes(early))
            if not session.detached:
                session.attach(client)
                client.next_line()

        def go_on() -> None:
            coming.go_on()
            if not coming.lasts:
                self._coming.discard(coming)

        coming = Underway(self._loop, go_on)
        coming.begin(work())
        if coming.lasts:
            self._coming.add(coming)

    def _on_attach(self, message: Message, client: ControlClient) -> Message | None:
        try:
            session = self._find(message)
            offsets = message.get("stdout"), message.get("stderr")
            if any(type(offset) not in (int, type(None)) for offset in offsets):
                raise SessionRefused("INVALID", "an offset must be a number of bytes")
            session.go_back(*offsets)
        except SessionRefused as error:
            return _refusal(error)
        client.send({"op": "attach"} | session.answer())
        session.attach(client)
        return None

    def _on_list(self, message: Message, client: ControlClient) -> None:
        shown = [session.facts() for session in self._all.values() if not session.told]
        client.write(encode({"op": "sessions", "ok": True, "sessions": shown}))

    def _on_end(self, message: Message, client: ControlClient) -> Message:
        try:
            self.ends.end(self._find(message), "a client asked it to end")
        except SessionRefused as error:
            return _refusal(error)
        return {"ok": True}

    def _find(self, message: Message) -> Session:
        """Raises SessionRefused."""
        session = self._all.get(str(message.get("session")))
        if session is None:
            why = "it does not exist, or its result is no longer kept"
            if self._job.takeovers:
                why += "; or it died with its supervisor"
            raise SessionRefused("SESSION_NOT_FOUND", f"session {message.get('session')}: {why}")
        return session

    # --- start --------------------------------------------------------------------------------------------------------

    def _spawn(self, request: SessionRequest) -> Waiting[Session]:
        """Raises SessionRefused, with no process left."""
        if sum(session.lives for session in self._all.values()) + len(self._coming) >= request.max_sessions:
            most = request.max_sessions
            raise SessionRefused("TOO_MANY", f"the job has {most} sessions, the most that are allowed", most)
        job = self._job
        members = self._containment.members() if self._boot != Boot.RANKS and job.state is State.RUNNING else []
        number, rank, env = place(job, self._boot, request.rank, members)
        ident = os.urandom(6).hex()
        ends: SessionDescriptors | None = None
        try:
            like = self._beside(rank)
            account = like.account
            if request.tty:
                ends = open_terminal(request.rows, request.columns, account.uid)
            else:
                ends = open_pipes(request.stdin, account.uid, account.gid)
            own = {marks.SESSION: ident, marks.NONCE: like.env[marks.NONCE]}
            like_a_rank = replace(
                like,
                argv=request.argv,
                env=(env or like.env) | (request.env or {}) | own,
                workdir=request.workdir or like.workdir,
                folders=(),
                files=(),
                stdio=ends.command,
                tty=request.tty,
            )
            pid, said = yield from spawning.spawn_alone(like_a_rank)
        except BaseException as error:
            if ends is not None:
                ends.close()
            if not isinstance(error, (OSError, NotStartable)):
                raise
            raise SessionRefused("TOO_MANY", f"cannot start the session: {error}") from None
        if not request.tty:
            ends.close_command()
        self.ends.begun(request.grace_s)
        session = Session(
            self._loop, ident, number, pid, said, ends, request, self._is_due,
            self.ends.end, self._forget,
        )  # fmt: skip
        self._all[ident] = session
        return session

    def _is_due(self, session: Session, outlet: Outlet) -> None:
        self._due.setdefault(outlet, session)

    def _forget(self, session: Session) -> None:
        self._all.pop(session.id, None)
        session.close()
        for outlet in session.outlets.values():
            self._due.pop(outlet, None)
        if not self._all:
            malloc.trim()

    def _forget_oldest(self) -> None:
        """Ended sessions without a client, whose result no client has received."""
        kept = [s for s in self._all.values() if s.exited is not None and s.client is None]
        size = sum(s.kept for s in kept)
        for i, session in enumerate(kept):
            if len(kept) - i <= MAX_KEPT and size <= MAX_KEPT_BYTES:
                break
            size -= session.kept
            self._forget(session)


def _refusal(error: SessionRefused) -> Message:
    limit = {} if error.limit is None else {"limit": error.limit}
    return {"ok": False, "error": str(error), "reason": error.reason} | limit
