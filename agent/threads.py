"""Work that blocks, in threads: the one place where the daemon hands any of it to one."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import field
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar, TypeVarTuple

import anyio
import structlog
from anyio import CapacityLimiter, to_thread

from muster.probes.calls.call_threads import Answer, CallThreads, Late
from muster.probes.calls.heartbeat import EARLY_S, until_tick
from muster.probes.kernel.backoff import Backoff
from muster.probes.kernel.dataclass import dataclass

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

#: Seconds between two tries to start a thread, at first and at most; and between two words about it.
_PAUSE_S, _PAUSE_MOST_S, _SAY_S = 0.02, 1.0, 60.0
#: Seconds after which a thread of `InOrder` that has nothing to do ends.
_REST_S = 30.0
#: Seconds for which a loop stands still for an answer that usually comes sooner: less than a turn of a loop that fights
#: with the thread for the interpreter's lock.
SOON_S = 0.001

#: So long, in seconds, looks of a round that hang hold up what the others have found; and only in their first round.
_LATE_S = 2.0

_log = structlog.get_logger(__name__)


class _Word:
    """Said at most once a minute, however many wait."""

    def __init__(self) -> None:
        self._at = float("-inf")

    def say(self, error: RuntimeError) -> None:
        now = anyio.current_time()
        if now - self._at >= _SAY_S:
            self._at = now
            _log.warning("threads.none_to_be_had", error=f"{error}: raise the limit of processes; trying again")


_word = _Word()


class Pool:
    """Threads for one kind of work: so many at once, and each piece of work under the same rules.

    `at_once`: how many (None: as many as anyio gives to all others). `abandon_on_cancel`: a cancelled caller does not
    wait for the function, for what may hang in the kernel. `here_after`: as in `run`.
    """

    def __init__(
        self, at_once: int | None = None, *, abandon_on_cancel: bool = False, here_after: float | None = None
    ) -> None:
        self._limiter = None if at_once is None else CapacityLimiter(at_once)
        self._abandon_on_cancel, self._here_after = abandon_on_cancel, here_after

    async def run(self, function: Callable[[*Ts], T], *args: *Ts, here_after: float | None = None) -> T:
        """The result of `function(*args)`; raises what the function raises.

        Where the node has no thread to give (a limit of processes that jobs use up, too) it waits until there is one,
        or until the caller is cancelled: the daemon must not end because somebody else's fork bomb is at its limit.
        `here_after`: seconds after which the work is done on the loop instead, which serves nobody meanwhile. For what
        must not wait, above all for ending the processes that use the threads up.
        """
        here_after = self._here_after if here_after is None else here_after
        begun = False

        def work(*given: *Ts) -> T:
            nonlocal begun
            begun = True
            return function(*given)

        pause, since = Backoff(_PAUSE_S, _PAUSE_MOST_S), anyio.current_time()
        while True:
            try:
                return await to_thread.run_sync(
                    work, *args, limiter=self._limiter, abandon_on_cancel=self._abandon_on_cancel
                )
            except RuntimeError as error:
                if begun or "start new thread" not in str(error):
                    raise
                _word.say(error)
            if here_after is not None and anyio.current_time() - since >= here_after:
                return function(*args)
            await anyio.sleep(pause.next())


_ANY = Pool()


async def run(function: Callable[[*Ts], T], *args: *Ts, here_after: float | None = None) -> T:
    """Work without a pool of its own: see `Pool.run`."""
    return await _ANY.run(function, *args, here_after=here_after)


class InOrder:
    """Pieces of work that may hang in the kernel, such as writing to a disk that does not answer or to a pipe that
    nobody reads: one thread does them, in order. Neither the hand-over of one nor the process's exit ever waits.

    For every thread. There is none before the first piece. Where the node has no thread to give, the pieces wait until
    the next is handed over, or until `poke`.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        #: With 1 for a piece of work, and 0 for who waits for those before it.
        self._pieces: SimpleQueue[tuple[Callable[[], object], int]] = SimpleQueue()
        self._alive = False
        self._began: float | None = None
        #: Whether the last answer came soon.
        self._soon = True
        #: Pieces that are not done, with the present one.
        self.waiting = 0

    @property
    def stuck_s(self) -> float:
        """For how many seconds the present piece has been worked on; 0 if there is none."""
        began = self._began
        return 0.0 if began is None else time.monotonic() - began

    def hand(self, piece: Callable[[], object]) -> None:
        """Hands over a piece of work, which sees to its own errors."""
        self._add(piece, 1)

    def ask(self, piece: Callable[[], T], answer: Callable[[T], object], *, patient: bool = False) -> None:
        """Hands over a piece of work that raises nothing, and has the loop that runs here call `answer` with its
        result; nobody asks again before that.

        Where the last answer came within SOON_S and nothing else waits, the loop stands still for it, for as long at
        most: a write into the page cache takes a hundredth of that, and otherwise the loop and the thread take the
        interpreter's lock from each other at every system call. After one late answer the loop waits for none until
        they come soon again. `patient`: it does not wait for this one, however soon it comes.
        """
        waits = self._soon and not self.waiting and not patient
        asked = _AskedPiece(piece, answer, asyncio.get_running_loop(), late=not waits)
        self._add(partial(self._answered, asked), 1)
        if waits and not asked.wait(SOON_S if self._alive else 0.0):
            self._soon = False

    def _answered(self, asked: "_AskedPiece[Any]") -> None:
        """The thread's part of `ask`."""
        self._soon = asked.work() < SOON_S

    def poke(self) -> None:
        """Tries again to start a thread, where pieces wait for one."""
        with self._lock:
            if self.waiting and not self._alive:
                self._start()

    def settle(self, limit_s: float) -> bool:
        """Whether all that was handed over before is done after at most `limit_s` seconds. Blocks."""
        if not self.waiting:
            return True
        done = threading.Event()
        self._add(done.set, 0)
        return done.wait(limit_s)

    async def settled(self, limit_s: float) -> bool:
        """As `settle`, and blocks nobody."""
        if not self.waiting:
            return True
        loop, done = asyncio.get_running_loop(), asyncio.Event()
        self._add(partial(on_loop, loop, done.set), 0)
        with anyio.move_on_after(limit_s):
            await done.wait()
        return done.is_set()

    def _add(self, piece: Callable[[], object], counts: int) -> None:
        with self._lock:
            self.waiting += counts
            self._pieces.put((piece, counts))
            if not self._alive:
                self._start()

    def _start(self) -> None:
        """With the lock held."""
        with contextlib.suppress(RuntimeError):  # no thread is to be had
            threading.Thread(target=self._work, name=self._name, daemon=True).start()
            self._alive = True

    def _work(self) -> None:
        while True:
            try:
                piece, counts = self._pieces.get(timeout=_REST_S)
            except Empty:
                with self._lock:
                    if not self._pieces.empty():
                        continue
                    self._alive = False
                    return
            self._began = time.monotonic()
            try:
                piece()
            except Exception as error:  # it must not end the pieces behind it
                _log.error("threads.piece_failed", thread=self._name, exc_info=error)
            self._began = None
            with self._lock:
                self.waiting -= counts


class _AskedPiece(Generic[T]):
    """A piece of work of `InOrder.ask`. Its result is given by the loop that waits for it, or, where it is `late`, in a
    turn of its own."""

    def __init__(
        self, piece: Callable[[], T], answer: Callable[[T], object], loop: asyncio.AbstractEventLoop, *, late: bool
    ) -> None:
        self._piece, self._answer, self._loop = piece, answer, loop
        self._since = time.monotonic()
        self._lock, self._done = threading.Lock(), threading.Lock()
        self._done.acquire()
        self._late = late
        self._result: tuple[T] | None = None

    def work(self) -> float:
        """In the thread. Returns seconds since it was handed over."""
        result = self._piece()
        taken = time.monotonic() - self._since
        with self._lock:
            self._result = (result,)
            late = self._late
        self._done.release()
        if late:
            on_loop(self._loop, self._answer, result)
        return taken

    def wait(self, limit_s: float) -> bool:
        """On the loop: gives the result if it is there within `limit_s` seconds. Blocks for as long."""
        self._done.acquire(timeout=limit_s)
        with self._lock:
            result = self._result
            self._late = result is None  # from here on the thread gives it, so it is not looked at again
        if result is None:
            return False
        self._answer(result[0])
        return True


def on_loop(loop: asyncio.AbstractEventLoop, function: Callable[[*Ts], object], *args: *Ts) -> None:
    """Has an event loop call a function, from another thread; nothing where the loop has ended."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(function, *args)


@dataclass(slots=True, eq=False)
class _RoundLook(Generic[T]):
    look: Callable[[], T]
    take: Callable[[T], object]
    period: Callable[[], float]
    #: Seconds of the monotonic clock.
    due: float = 0.0
    over: asyncio.Event = field(default_factory=asyncio.Event)
    error: Exception | None = None

    def ended(self, outcome: Any) -> None:
        try:
            if isinstance(outcome, Answer):
                self.take(outcome.value)
            elif not isinstance(outcome, Late):
                raise outcome.error
        except Exception as error:  # a defect of this one ends neither the others nor the round
            self.error = error
            self.over.set()


class Rounds:
    """Looks that many need every few seconds, each at something else of its kind.

    One thread makes all that are due, one after the other: to wake a thread for each of them costs more than the look.
    One that hangs keeps the thread, and another makes the rest (`CallThreads`). For one event loop; `run` makes them.
    """

    def __init__(self, name: str) -> None:
        self._calls = CallThreads(name)
        self._looks: dict[_RoundLook[Any], None] = {}
        self._news = asyncio.Event()

    async def join(self, look: Callable[[], T], take: Callable[[T], object], period: Callable[[], float]) -> None:
        """Has `look()` made in a thread, now and then every `period()` seconds, and `take` called on the loop with what
        it says, until cancelled. Raises what one of them raises."""
        mine = _RoundLook(look, take, period)
        self._looks[mine] = None
        self._news.set()
        try:
            await mine.over.wait()
        finally:
            del self._looks[mine]
        if mine.error is not None:
            raise mine.error

    async def run(self) -> None:
        """For ever."""
        try:
            while True:
                self._news.clear()
                now = time.monotonic()
                due = [look for look in self._looks if look.due <= now + EARLY_S and look.error is None]
                for look in due:
                    look.due = now + until_tick(look.period(), now)
                if due:
                    outcomes = await self._calls.run({look: look.look for look in due}, _LATE_S)
                    for look in due:
                        if look in self._looks:
                            look.ended(outcomes[look])
                            # What it has found may have changed how soon it is to look again.
                            look.due = min(look.due, now + until_tick(look.period(), now))
                first = min((look.due for look in self._looks if look.error is None), default=None)
                with anyio.move_on_after(None if first is None else max(0.0, first - time.monotonic())):
                    await self._news.wait()
        finally:
            self._calls.close()
