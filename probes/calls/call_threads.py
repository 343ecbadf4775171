"""Threads for calls that may hang: one thread serves all calls, and a call that hangs keeps its thread.

A call has a key, the thing that it asks (a card). One call at a time is made for a key, so that a thing which hangs
holds one thread, however often it is asked; and as long as all answer, one thread makes all calls, one after another.
"""

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from typing import Generic, Protocol, TypeVar

from muster.probes.calls.heartbeat import Nap
from muster.probes.kernel.dataclass import dataclass

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

#: After so many seconds, or this part of the time there is, the calls that still wait get threads of their own.
PATIENCE_S, _PART = 0.5, 0.25


@dataclass(frozen=True, slots=True)
class Answer(Generic[T]):
    """What a call returned."""

    value: T


@dataclass(frozen=True, slots=True)
class CallFailure:
    """What a call raised."""

    error: Exception


@dataclass(frozen=True, slots=True)
class Late:
    """There is no answer. `running_s`: for how long the call for this key, not always the asked one, has been running;
    None where none was begun, since no thread could be started."""

    running_s: float | None


class AskEach(Protocol):
    """Makes calls that may hang, each for itself, and returns in time: `CallThreads.ask` with a limit."""

    def __call__(self, calls: Mapping[K, Callable[[], T]]) -> Mapping[K, Answer[T] | CallFailure | Late]: ...


def in_turn(calls: Mapping[K, Callable[[], T]]) -> Mapping[K, Answer[T] | CallFailure | Late]:
    """One call after another, for somebody who can wait for ever."""
    return {key: _outcome(call) for key, call in calls.items()}


def _outcome(call: Callable[[], T]) -> Answer[T] | CallFailure:
    try:
        return Answer(call())
    except Exception as error:  # whatever it is, it belongs to who asked
        return CallFailure(error)


@dataclass(slots=True, eq=False)
class _Batch:
    """`over` is called once, by the thread that makes the last of its calls."""

    over: Callable[[], None]
    waiting: int


@dataclass(slots=True, eq=False)
class _Call:
    batch: _Batch
    key: Hashable
    function: Callable[[], object]
    outcome: Answer[object] | CallFailure | None = None
    began: float | None = None
    #: For how many seconds somebody waited for it in vain.
    in_vain: float = 0.0

    def is_late(self, limit_s: float, now: float) -> bool:
        """Whether somebody with `limit_s` seconds need not wait for it. Its asker gives up before the thread has had it
        for that long: a thread takes a moment to begin."""
        return self.in_vain >= limit_s or now - (self.began or now) >= limit_s


class CallThreads:
    """Daemon threads, at most one per key and one idle; none before the first call."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._wake = threading.Condition(self._lock)
        self._pending: deque[_Call] = deque()
        self._running: dict[Hashable, _Call] = {}
        self._threads = 0
        self._resting = False
        self._closed = False

    @property
    def threads(self) -> int:
        """How many there are now."""
        return self._threads

    @property
    def busy(self) -> bool:
        """Whether a call has not returned."""
        return bool(self._running)

    async def run(self, calls: Mapping[K, Callable[[], T]], limit_s: float) -> dict[K, Answer[T] | CallFailure | Late]:
        """Makes the calls and returns what became of each after at most `limit_s` seconds, whatever hangs.

        A key that has kept an earlier call for longer than that is not waited for: it is Late at once. A call that was
        not begun in time is not made.
        """
        loop, nap, done = asyncio.get_running_loop(), Nap(), False

        def end() -> None:
            nonlocal done
            done = True
            nap.end()

        def over() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the caller has exited
                loop.call_soon_threadsafe(end)

        made = self._calls(calls, limit_s, over)
        if made:
            self._submit(made)
            until = loop.time() + limit_s
            try:
                while not done and (left := until - loop.time()) > 0:
                    await nap.sleep(min(PATIENCE_S, _PART * limit_s, left))
                    if not done:
                        self._reinforce()
            finally:
                self._give_up(made)
        return self._outcomes(calls, made, limit_s)

    def ask(self, calls: Mapping[K, Callable[[], T]], limit_s: float) -> dict[K, Answer[T] | CallFailure | Late]:
        """As `run`, for a call that one of these threads is making: it blocks, and another thread makes these calls."""
        done, end = threading.Event(), time.monotonic() + limit_s
        made = self._calls(calls, limit_s, done.set)
        if made:
            self._submit(made, within=True)
            try:
                while not done.wait(min(PATIENCE_S, _PART * limit_s, max(0.0, end - time.monotonic()))):
                    if time.monotonic() >= end:
                        break
                    self._reinforce()
            finally:
                self._give_up(made)
        return self._outcomes(calls, made, limit_s)

    def close(self) -> None:
        """Ends the threads; a hanging thread ends when its call returns."""
        with self._lock:
            self._closed = True
            self._wake.notify_all()

    def _calls(self, calls: Mapping[K, Callable[[], T]], limit_s: float, over: Callable[[], None]) -> list[_Call]:
        """Those that are to be made: of keys that have not kept an earlier call for too long."""
        now = time.monotonic()
        with self._lock:
            late = {key for key in calls if (call := self._running.get(key)) and call.is_late(limit_s, now)}
        asked = [key for key in calls if key not in late]
        batch = _Batch(over, len(asked))
        return [_Call(batch, key, calls[key]) for key in asked]

    def _submit(self, calls: list[_Call], *, within: bool = False) -> None:
        """`within`: by a thread of these, which itself makes none of them."""
        with self._lock:
            self._pending.extend(calls)
            if self._resting:
                self._wake.notify()
            elif within:
                self._start(1)
            else:
                now = time.monotonic()
                stuck = sum(now - (call.began or now) >= PATIENCE_S for call in self._running.values())
                if self._threads == stuck:
                    self._start(1)

    def _reinforce(self) -> None:
        """The threads that there are have not come to the rest: each of it gets one."""
        with self._lock:
            waiting = {call.key for call in self._pending} - self._running.keys()
            # Those that make no call now rest, or are on their way.
            self._start(len(waiting) - (self._threads - len(self._running)))
            if self._resting:
                self._wake.notify()

    def _start(self, count: int) -> None:
        """With the lock held. Where no thread is to be had the calls wait for the next try, or for their end."""
        for _ in range(count):
            try:
                threading.Thread(target=self._work, name=self._name, daemon=True).start()
            except RuntimeError:
                return
            self._threads += 1

    def _work(self) -> None:
        self._lock.acquire()
        while True:
            call = self._next()
            if call is None:
                if self._resting or self._closed:
                    break
                self._resting = True
                self._wake.wait()
                self._resting = False
                continue
            call.began = time.monotonic()
            self._running[call.key] = call
            self._lock.release()
            outcome = _outcome(call.function)
            self._lock.acquire()
            del self._running[call.key]
            self._end(call, outcome)
        self._threads -= 1
        self._lock.release()

    def _next(self) -> _Call | None:
        """The first call whose key is free; with the lock held."""
        for place, call in enumerate(self._pending):
            if call.key not in self._running:
                del self._pending[place]
                return call
        return None

    @staticmethod
    def _end(call: _Call, outcome: Answer[object] | CallFailure) -> None:
        call.outcome = outcome
        call.batch.waiting -= 1
        if not call.batch.waiting:
            call.batch.over()

    def _give_up(self, calls: list[_Call]) -> None:
        with self._lock:
            for call in calls:
                if call.began is None:
                    self._pending.remove(call)

    def _outcomes(
        self, calls: Mapping[K, Callable[[], T]], made: list[_Call], limit_s: float
    ) -> dict[K, Answer[T] | CallFailure | Late]:
        outcomes: dict[K, Answer[T] | CallFailure | Late] = {}
        now = time.monotonic()
        ended = {call.key: call.outcome for call in made}
        with self._lock:
            for key in calls:
                outcome = ended.get(key)
                if outcome is None:
                    running = self._running.get(key)
                    began = running.began if running else None
                    if running is not None:
                        running.in_vain = max(running.in_vain, limit_s)
                    outcomes[key] = Late(None if began is None else now - began)
                else:
                    outcomes[key] = outcome  # type: ignore[assignment]  # from this key's own function, so it has a T
        return outcomes
