"""One session: a command beside a rank, its attached client, and its end."""

import contextlib
import json
import math
import os
import signal
import time
from collections.abc import Callable

from muster.probes.kernel import process
from muster.supervisors.launch import child
from muster.supervisors.launch.session_start import SessionRefused, SessionRequest
from muster.supervisors.model import rank_ends
from muster.supervisors.session.session_io import Inlet, Outlet, SessionDescriptors, set_size
from muster.supervisors.supervision_errors import ProtocolError
from muster.supervisors.system.loop import Alarm, Loop
from muster.supervisors.wire import frames
from muster.supervisors.wire.control import ControlClient
from muster.supervisors.wire.frames import FROM_SESSION, TO_SESSION, Frame, Parser
from muster.supervisors.wire.messages import Message

#: For so long after a connection was lost all output is kept for who comes back, and an end that was sent can be sent
#: again; in seconds. Longer than `muster exec` looks for the next daemon, last attempt included (PATIENCE_S in
#: agent/cli/client/calls.py): otherwise the oldest output is lost when the client returns.
LOST_S = 75.0
#: No more is written to a client that has so many bytes to take.
BACKLOG = 1 << 17
#: How often processes are looked for that are to have a signal, in seconds.
LOOK_S = 0.1


class Session:
    """`reap` and `turn` in sessions.py move it on."""

    def __init__(
        self,
        loop: Loop,
        ident: str,
        rank: int,
        pid: int,
        said: int,
        ends: SessionDescriptors,
        request: SessionRequest,
        due: Callable[["Session", Outlet], None],
        end: Callable[["Session", str], None],
        forget: Callable[["Session"], None],
    ) -> None:
        """`said`: see spawning.spawn_alone. `due`: an outlet may have something to read. `end`: it is to be ended, for
        this reason. `forget`: it is no longer needed. Raises OSError."""
        self.id, self.rank, self.pid = ident, rank, pid
        self.request = request
        self.started_at = time.time()
        self.client: ControlClient | None = None
        self.detached = request.detached
        #: Whether somebody has had its end.
        self.told = False
        self.exited: Message | None = None
        #: Why it is ended, if it is.
        self.why = ""
        self._said = said
        self._master, self._slave = (ends.output, ends.command[0]) if request.tty else (-1, -1)
        self._end, self._forget = end, forget
        self._status: int | None = None
        self._loop = loop
        #: Signals for a foreground whose members are still to be found.
        self._late: set[int] = set()
        self._told_input = 0
        self._alarm, self._limit = Alarm(loop), Alarm(loop)
        self.outlets = {
            kind: Outlet(loop, fd, lambda outlet: due(self, outlet))
            for kind, fd in ((frames.STDOUT, ends.output), (frames.STDERR, ends.errors))
        }
        self.inlet = Inlet(loop, ends.input, request.tty, self.pump)
        if request.time_limit_s is not None:
            limit = request.time_limit_s
            self._limit.set(limit, lambda: end(self, f"it reached its time limit of {limit:g} s"))
        if request.detached:
            self._hold(False)

    @property
    def lives(self) -> bool:
        """Whether its command has not been waited for: its pid is its own."""
        return self._status is None

    @property
    def kept(self) -> int:
        """Bytes of output."""
        return sum(outlet.end - outlet.start for outlet in self.outlets.values())

    def answer(self) -> Message:
        """To the client that began it, or attaches to it."""
        out, err = (outlet.sent for outlet in self.outlets.values())
        plain = {"session": self.id, "rank": self.rank, "pid": self.pid, "tty": self.request.tty}
        return {"ok": True} | plain | {"input": self.inlet.had, "stdout": out, "stderr": err}

    def facts(self) -> Message:
        """For a listing."""
        return {
            "session": self.id,
            "rank": self.rank,
            "command": self.request.argv[0][:200],
            "tty": self.request.tty,
            "pid": self.pid,
            "started_at": self.started_at,
            "by": self.request.by[:200],
            "attached": self.client is not None,
            "detached": self.detached,
            "exited": self.exited,
        }

    # --- the client ---------------------------------------------------------------------------------------------------

    def go_back(self, stdout: int | None, stderr: int | None) -> None:
        """Before somebody else attaches: to what that one has. Raises SessionRefused, with nothing changed."""
        both = list(zip(self.outlets.values(), (stdout, stderr), strict=True))
        for outlet, offset in both:
            if offset is not None and not 0 <= offset <= outlet.end:
                raise SessionRefused("INVALID", f"offset {offset} is not within the {outlet.end} bytes of output")
        self._leave("another client attached to the session")
        for outlet, offset in both:
            outlet.go_back(offset)

    def attach(self, client: ControlClient) -> None:
        """The answer has been sent; from here on both speak frames."""
        parser = Parser(TO_SESSION)

        def read(data: bytes) -> None:
            try:
                for frame in parser.feed(data):
                    if self.client is not client:
                        return
                    self._on_frame(frame)
                self.pump()
            except ProtocolError:
                client.drop()

        client.hand_over(read, self.pump, lambda: self._lost(client))
        self.client, self.detached, self.told, self._told_input = client, False, False, 0
        self._alarm.cancel()
        self._hold(True)
        self.pump()
        if client.gone:  # before it was ours
            self._lost(client)

    def pump(self, most: float = BACKLOG) -> None:
        """Sends what there is to be sent, until the client has so many bytes to take."""
        client = self.client
        if client is None:
            return
        if self._told_input < self.inlet.taken and client.backlog < most:
            self._told_input = self.inlet.taken
            client.write(FROM_SESSION.encode(frames.ACK, self._told_input))
        for kind, outlet in self.outlets.items():
            while outlet.sent < outlet.end and client.backlog < most and not client.gone:
                at = outlet.sent
                client.write(FROM_SESSION.encode(kind, at, data=outlet.next()))
        unsent = any(outlet.sent < outlet.end for outlet in self.outlets.values())
        if self.exited is not None and not (unsent or self.told or client.gone):
            client.write(FROM_SESSION.encode(frames.EXITED, data=json.dumps(self.exited).encode()))
            self.told = not client.gone

    def _on_frame(self, frame: Frame) -> None:
        """Raises ProtocolError."""
        if frame.kind == frames.INPUT:
            self.inlet.feed(frame.numbers[0], frame.data)
        elif frame.kind == frames.CLOSE:
            self.inlet.end(frame.numbers[0])
        elif frame.kind == frames.SIZE:
            self._resize(*frame.numbers)
        elif frame.kind == frames.SIGNAL:
            self._signal(frame.numbers[0])
        elif frame.kind == frames.ACK:
            for outlet, offset in zip(self.outlets.values(), frame.numbers, strict=True):
                outlet.received(offset)
        elif frame.kind == frames.DETACH:
            self._leave("detached")
            self.detached = True
            self._hold(False)
            self._wait_for_somebody()

    def _leave(self, message: str) -> None:
        client, self.client = self.client, None
        if client is not None:
            client.leave(FROM_SESSION.encode(frames.LEFT, data=json.dumps({"message": message}).encode()))

    def _lost(self, client: ControlClient) -> None:
        if self.client is client:
            self.client = None
            self._wait_for_somebody()

    def _hold(self, holds: bool) -> None:
        for outlet in self.outlets.values():
            outlet.hold(holds)

    def _wait_for_somebody(self) -> None:
        """Nobody is attached: all output is held for a while, then it is as if that one had detached, and then the
        session counts as abandoned; its end is kept for as long."""
        patience = self.request.abandoned_s
        held = min(LOST_S, patience)
        if self.exited is not None:
            self._alarm.set(held if self.told else patience, lambda: self._forget(self))
        elif not self.detached:

            def let_go() -> None:
                self._hold(False)
                self._alarm.set(
                    patience - held, lambda: self._end(self, f"abandoned: no client was attached for {patience:g} s")
                )

            self._alarm.set(held, let_go)

    # --- its command --------------------------------------------------------------------------------------------------

    def ended(self, status: int, why: str) -> None:
        """Its command has been waited for; `why`: a reason for an end by a signal, if there is one. That a signal ended
        what it had started, a shell tells by its code."""
        self._status = status
        self._limit.cancel()
        self.inlet.close()
        if os.WIFSIGNALED(status) or os.WEXITSTATUS(status) > 128:
            self.why = self.why or why
        for outlet in self.outlets.values():
            outlet.finish()
        self.look()

    def look(self) -> None:
        """Output was read, or the command has ended: sends what is new, and the end once there is no more."""
        if self.exited is None and not self.lives and not any(outlet.is_open for outlet in self.outlets.values()):
            self._exit()
        self.pump()

    def cut_off(self, why: str) -> None:
        """The supervisor ends: takes the output so far, and reports the end as it is now."""
        if self.lives:
            self.why = self.why or why
        self.inlet.close()
        for outlet in self.outlets.values():
            while outlet.is_open and outlet.read(BACKLOG):
                pass
            outlet.close()
        if self.exited is None:
            self._exit()
        self.pump(math.inf)

    def close(self) -> None:
        """Puts away all that it holds."""
        self._alarm.cancel()
        self._limit.cancel()
        self.inlet.close()
        for outlet in self.outlets.values():
            outlet.discard()
        self._close_own()
        if self.client is not None:
            self.client.drop()

    def _exit(self) -> None:
        status = self._status
        message = self.why or self._unborn()
        by_signal = os.WTERMSIG(status) if status is not None and os.WIFSIGNALED(status) else 0
        self.exited = {"exit_code": rank_ends.shell_code(status), "signal": by_signal, "message": message[:2000]}
        self._close_own()
        if self.client is None:
            self._wait_for_somebody()

    def _close_own(self) -> None:
        for fd in (self._said, self._slave):
            if fd >= 0:
                os.close(fd)
        self._said = self._slave = self._master = -1

    def _unborn(self) -> str:
        entry = child.read_unborn_line(self._said)
        return child.explain_exec(self.request.argv[0][:500], entry) if entry else ""

    def _resize(self, rows: int, columns: int) -> None:
        if self._master < 0:
            return
        with contextlib.suppress(OSError):
            if os.get_terminal_size(self._master) == (columns, rows):
                self._signal(signal.SIGWINCH)  # the kernel reports only a change; an attaching client needs a redraw
            set_size(self._master, rows, columns)

    def _signal(self, number: int) -> None:
        """To the foreground of the terminal, or to the session's first process group. Raises ProtocolError."""
        if not 1 <= number <= 31:
            raise ProtocolError(f"signal {number}: allowed are 1 to 31")
        if not self.lives:
            return
        group = os.tcgetpgrp(self._master) if self._master >= 0 else self.pid
        # A group's number is its own while somebody is in it. The command itself was not waited for.
        leader = process.read_stat(group)
        if group == self.pid or (leader is not None and leader.session == self.pid):
            if not _signal_group(group, number) and group == self.pid:
                # The child has not made its group yet. It is ours and was not waited for, so its number is its own.
                os.kill(self.pid, number)
            return
        # Its first process has exited before the others. Finding these takes time, so it is not done for each signal.
        if not self._late:
            self._loop.later(LOOK_S, self._signal_late)
        self._late.add(number)

    def _signal_late(self) -> None:
        late, self._late = self._late, set()
        if self.lives and self._master >= 0:
            group = os.tcgetpgrp(self._master)
            if any(s.pgrp == group and s.session == self.pid for s in process.all_stats().values()):
                for number in sorted(late):
                    _signal_group(group, number)


def _signal_group(group: int, number: int) -> bool:
    """Whether the group exists."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
