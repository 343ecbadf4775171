"""Who works next: streams of one listener do not keep those of another waiting.

Readers send one batch after the other, with a pause between as long as the batch took. However many of them follow, the
event loop has the messages of one before it, and an operator's call does not wait for those of all. With many readers
each gets more at a time, and later. Operators need no turn to send.

Logs are read in one thread, in turns between listeners. The thread is apart, so that a disk that hangs or 200 followers
do not keep the other threads from their work (a job's start must reach the disk). There is one: of several, each waits
for the interpreter that another has, and the event loop for them all (with four, 200 followers get half as much and a
Get takes four times as long).
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import TypeVar, TypeVarTuple

import anyio
from anyio.lowlevel import RunVar

from muster.agent import threads
from muster.probes.kernel.dataclass import dataclass

_T = TypeVar("_T")
_Args = TypeVarTuple("_Args")

#: Seconds after which a reader's turn to send is over, whether or not its client took the messages or the disk gave
#: them; and the longest pause behind a turn.
HOLD_S = 0.02


@dataclass(frozen=True, slots=True)
class Party:
    """Whose streams have their turns together: those of a listener and a role. `patient`: readers."""

    listener: str = ""
    patient: bool = False


#: For whom the call is handled in which we are; for nobody in the daemon's own work.
PARTY: ContextVar[Party] = ContextVar("PARTY", default=Party())  # noqa: B039  # a Party never changes


class Turns:
    """One turn at a time, the parties one after the other. Belongs to one event loop."""

    def __init__(self, *, pauses: bool = False) -> None:
        """`pauses`: a turn ends after HOLD_S, and behind each comes a pause as long, where somebody waits."""
        self._pauses = pauses
        #: The present turn, or the one behind which there is a pause.
        self._now: anyio.Event | None = None
        self._since = 0.0
        self._timer: asyncio.TimerHandle | None = None
        #: The waiting tasks, by party; the party whose turn is next comes first.
        self._waiting: dict[Party, deque[anyio.Event]] = {}

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """While it is our turn."""
        turn = anyio.Event()
        if self._now is None:
            self._give(turn)
        else:
            queue = self._waiting.setdefault(PARTY.get(), deque())
            queue.append(turn)
            try:
                await turn.wait()
            except BaseException:
                if turn.is_set():
                    self._end(turn)
                else:
                    queue.remove(turn)
                raise
        try:
            yield
        finally:
            self._end(turn)

    def _give(self, turn: anyio.Event) -> None:
        self._now = turn
        if self._pauses:
            loop = asyncio.get_running_loop()
            self._since = loop.time()
            self._timer = loop.call_later(HOLD_S, self._end, turn)
        turn.set()

    def _end(self, turn: anyio.Event) -> None:
        """A turn is over, or has lasted too long."""
        if self._now is not turn or (self._timer is None and self._pauses):
            return  # it was over before
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._pauses and any(self._waiting.values()):
            loop = asyncio.get_running_loop()
            loop.call_later(min(loop.time() - self._since, HOLD_S), self._next)
        else:
            self._next()

    def _next(self) -> None:
        self._now = None
        for party in list(self._waiting):
            queue = self._waiting.pop(party)
            if not queue:
                continue
            turn = queue.popleft()
            if queue:
                self._waiting[party] = queue  # behind the others
            self._give(turn)
            return


class _Of:
    """The state of one event loop."""

    def __init__(self) -> None:
        self.sending = Turns(pauses=True)
        self.reading = Turns()
        self.threads = threads.Pool(1)


_of: RunVar[_Of] = RunVar("_of")


def _present() -> _Of:
    try:
        return _of.get()
    except LookupError:
        _of.set(made := _Of())
        return made


@asynccontextmanager
async def sending() -> AsyncIterator[None]:
    """Around a batch that a stream gets and sends."""
    if not PARTY.get().patient:
        yield
        return
    async with _present().sending.turn():
        yield


async def in_turn(function: Callable[[*_Args], _T], *args: *_Args) -> _T:
    """Calls it in the thread for reading logs, when it is our turn. Cancelled, it waits for the function all the
    same."""
    own = _present()
    async with own.reading.turn():
        return await own.threads.run(function, *args)
