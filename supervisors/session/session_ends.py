"""Ends the processes of sessions: those of one session, of all together with the ranks, and a predecessor's."""

import signal
from collections.abc import Mapping

from muster.probes.kernel import marks, process
from muster.probes.kernel.process import Stat
from muster.supervisors.launch.containment import Containment
from muster.supervisors.launch.session_start import read_environ
from muster.supervisors.session.session import Session
from muster.supervisors.system.ladder import Climb
from muster.supervisors.system.loop import Loop

#: From the first signal to SIGKILL for processes of a session that a predecessor began, in seconds.
GRACE_S = 5.0
#: Longest pause between two SIGKILLs for what is not gone by then, in seconds.
KILL_AGAIN_MOST_S = 1.0
WITH_RANKS = "it ended with the ranks of the job"


class SessionEnds:
    """Processes are known by what they were started with, wherever they are. All calls but `others` raise OSError."""

    def __init__(self, loop: Loop, containment: Containment, sessions: Mapping[str, Session]) -> None:
        """`sessions`, by id, are those that are known at any moment."""
        self._loop, self._containment, self._sessions = loop, containment, sessions
        self._grace = GRACE_S
        #: Whether there may be processes of sessions; the attempt with which they were ended; some cannot be killed.
        self._any = False
        self._ended_attempt = -1
        self._stuck = False
        self._seen: set[int] = set()

    def begun(self, grace: float) -> None:
        """There is a session. `grace`: seconds from the first signal to SIGKILL."""
        self._any, self._grace = True, grace

    def end(self, session: Session, why: str) -> None:
        """Once: SIGHUP or SIGTERM, and behind its grace SIGKILL, to all that it started."""
        if not session.why:
            self._signal({session.id})
            session.why = why
            self._kill_later(session.request.grace_s, {session.id})

    def end_with_ranks(self, attempt: int, terminated: bool) -> None:
        """The ranks of this attempt have ended: so do all sessions. `terminated`: all processes of the job got
        SIGTERM; they do not get it twice."""
        if self._any and self._ended_attempt != attempt:
            self._ended_attempt, self._stuck = attempt, False
            self._end_all(self._grace, terminated)

    def end_strays(self) -> None:
        """What a predecessor's sessions left."""
        self._any = True
        self._end_all(GRACE_S, terminated=False)

    def others(self, stats: list[Stat]) -> list[Stat]:
        """Those that are of no session, or of one that cannot be ended. Where there were sessions it takes two looks:
        for a moment of its exec a process shows no environment."""
        if not self._any or self._stuck:
            return stats
        found = [stat for stat in stats if not self._session_of(stat)]
        before, self._seen = self._seen, {stat.pid for stat in found}
        return [stat for stat in found if stat.pid in before]

    def _end_all(self, grace: float, terminated: bool) -> None:
        found = self._signal(None, terminated)
        for session in self._sessions.values():
            if session.lives:
                session.why = session.why or WITH_RANKS
        if found:
            self._kill_later(grace, found)

    def _signal(self, ids: set[str] | None, terminated: bool = False) -> set[str]:
        """To all processes of these sessions, or of all; returns of which there were some."""
        found = set()
        for stat in self._containment.members():
            ident = self._session_of(stat)
            if ident and (ids is None or ident in ids):
                found.add(ident)
                session = self._sessions.get(ident)
                hang_up = session is None or session.request.tty
                if hang_up or not terminated:
                    process.send(stat.pid, stat.start, signal.SIGHUP if hang_up else signal.SIGTERM)
                process.send(stat.pid, stat.start, signal.SIGCONT)
        return found

    def _kill_later(self, grace: float, ids: set[str]) -> None:
        def kill() -> None:
            left = [stat for stat in self._containment.members() if self._session_of(stat) in ids]
            for stat in left:
                process.send(stat.pid, stat.start, signal.SIGKILL)
            if not left:
                climb.stop()

        def give_up() -> None:
            self._stuck = True

        # Ranks may be running, and each look is at all processes of the node: it is repeated less and less often.
        climb = Climb(self._loop, lambda: None, kill, give_up, KILL_AGAIN_MOST_S)
        climb.begin(grace, terminated=True)

    def _session_of(self, stat: Stat) -> str:
        """The id of the session that a process belongs to; empty for none."""
        for session in self._sessions.values():
            if session.lives and session.pid in (stat.pid, stat.session):
                return session.id
        return read_environ(stat.pid).get(marks.SESSION) or read_environ(stat.session).get(marks.SESSION, "")
