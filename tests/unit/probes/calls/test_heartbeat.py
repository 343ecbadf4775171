"""Beats on a clock that a test sets."""

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace

import anyio
import pytest

from muster.probes.calls import heartbeat
from muster.probes.calls.heartbeat import Beat, Nap, until_tick


class Over(Exception):
    """The time of a test is over."""


class Clock:
    """A loop whose time passes by waiting for a timer, and by what `act` takes."""

    def __init__(self, end: float) -> None:
        self.now = 1000.0
        self._end = self.now + end
        self.create_future = asyncio.get_running_loop().create_future

    def time(self) -> float:
        return self.now

    def call_later(self, seconds: float, call: Callable[[], None]) -> SimpleNamespace:
        assert seconds > 0
        self.now += seconds
        if self.now > self._end:
            raise Over
        call()
        return SimpleNamespace(cancel=lambda: None)

    def rule(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(heartbeat, "asyncio", SimpleNamespace(get_running_loop=lambda: self))


def at(clock: Clock, times: list[float], takes: Callable[[int], float]) -> Callable[[], Awaitable[None]]:
    async def act() -> None:
        times.append(round(clock.now - 1000, 6))
        clock.now += takes(len(times) - 1)

    return act


async def run(
    monkeypatch: pytest.MonkeyPatch,
    end: float,
    period: Callable[[Clock], float],
    takes: Callable[[int], float],
    phase: float,
) -> tuple[list[float], Beat]:
    clock, times = Clock(end), list[float]()
    clock.rule(monkeypatch)
    beat = Beat("x", lambda: period(clock), at(clock, times, takes), phase)
    with pytest.raises(Over):
        await beat.run()
    return times, beat


async def test_each_period_from_the_phase_on(monkeypatch: pytest.MonkeyPatch):
    times, beat = await run(monkeypatch, 3.6, lambda _: 1.0, lambda _: 0.01, 0.35)
    assert times == [0.35, 1.35, 2.35, 3.35]
    assert (beat.done, beat.skipped) == (4, 0)
    assert beat.took_s == pytest.approx(0.01)


async def test_a_timer_that_fires_a_little_early_is_not_waited_for_twice(monkeypatch: pytest.MonkeyPatch):
    """Loops count whole milliseconds."""

    class Early(Clock):
        sleeps = 0

        def call_later(self, seconds: float, call: Callable[[], None]) -> SimpleNamespace:
            self.sleeps += 1
            return super().call_later(seconds - 0.0004, call)

    clock, times = Early(4.5), list[float]()
    clock.rule(monkeypatch)
    beat = Beat("x", lambda: 1.0, at(clock, times, lambda _: 0.0))
    with pytest.raises(Over):
        await beat.run()
    assert times == pytest.approx([0.0, 1.0, 2.0, 3.0, 4.0], abs=0.001)
    assert clock.sleeps == len(times)


async def test_a_slow_caller_skips_periods_and_keeps_the_time(monkeypatch: pytest.MonkeyPatch):
    times, beat = await run(monkeypatch, 9.5, lambda _: 1.0, lambda n: 3.4 if n == 1 else 0.0, 0.0)
    # The second one takes from 1 to 4.4: what was due at 2, 3 and 4 is not made up for but once.
    assert times == [0.0, 1.0, 5.0, 6.0, 7.0, 8.0, 9.0]
    assert beat.skipped == 3


async def test_a_caller_that_is_always_slow_never_piles_up(monkeypatch: pytest.MonkeyPatch):
    times, beat = await run(monkeypatch, 20, lambda _: 1.0, lambda _: 2.5, 0.0)
    assert times == [0.0, 3.0, 6.0, 9.0, 12.0, 15.0, 18.0]
    assert beat.skipped == 2 * beat.done


async def test_a_long_period_that_is_made_short_is_noticed(monkeypatch: pytest.MonkeyPatch):
    times, _ = await run(monkeypatch, 112, lambda clock: 3600.0 if clock.now < 1100 else 4.0, lambda _: 0.0, 0.0)
    assert times[0] == 0.0
    assert 100 <= times[1] <= 105
    assert times[2] - times[1] <= 4.0


async def test_it_runs_on_the_real_clock_until_it_is_cancelled():
    done = anyio.Event()
    count = 0

    async def act() -> None:
        nonlocal count
        count += 1
        if count == 3:
            done.set()

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(Beat("x", lambda: 0.01, act).run)
            await done.wait()
            tasks.cancel_scope.cancel()
    assert count >= 3


async def test_what_is_wanted_soon_is_done_out_of_turn_and_the_next_a_period_later(monkeypatch: pytest.MonkeyPatch):
    clock, times = Clock(60), list[float]()
    clock.rule(monkeypatch)

    async def act() -> None:
        times.append(round(clock.now - 1000, 6))
        if len(times) in (1, 2, 4):  # something new while it is done: it may have been missed
            beat.soon()
            beat.soon()

    beat = Beat("x", lambda: 15.0, act)
    with pytest.raises(Over):
        await beat.run()
    assert times == [0.0, 1.0, 2.0, 17.0, 18.0, 33.0, 48.0]
    assert beat.skipped == 0


async def test_what_is_wanted_soon_does_not_put_off_what_is_due_anyway(monkeypatch: pytest.MonkeyPatch):
    clock, times = Clock(1.1), list[float]()
    clock.rule(monkeypatch)

    async def act() -> None:
        times.append(round(clock.now - 1000, 6))
        beat.soon()

    beat = Beat("x", lambda: 0.25, act)
    with pytest.raises(Over):
        await beat.run()
    assert times == [0.0, 0.25, 0.5, 0.75, 1.0]


async def test_a_beat_that_sleeps_is_woken():
    looks = 0
    changed = anyio.Event()

    async def act() -> None:
        nonlocal looks
        looks += 1
        changed.set()

    beat = Beat("x", lambda: 3600.0, act)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(beat.run)
            await changed.wait()
            for _ in range(2):
                changed = anyio.Event()
                await anyio.wait_all_tasks_blocked()
                beat.soon()
                await changed.wait()
            tasks.cancel_scope.cancel()
    assert looks == 3


async def test_a_nap_ends_by_itself_or_is_ended_and_an_end_before_it_counts_for_none():
    nap, ended = Nap(), []

    async def sleeper() -> None:
        await nap.sleep(3600)
        ended.append("early")

    with anyio.fail_after(60):
        nap.end()
        await nap.sleep(0.001)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(sleeper)
            await anyio.wait_all_tasks_blocked()
            assert not ended
            nap.end()
            nap.end()
        assert ended == ["early"]


@pytest.mark.parametrize(("now", "left"), [(100.0, 0.5), (100.25, 0.25), (100.375, 0.125), (100.4375, 0.5625)])
def test_tasks_that_wait_for_a_tick_wake_up_together(monkeypatch: pytest.MonkeyPatch, now: float, left: float):
    monkeypatch.setattr(heartbeat, "time", SimpleNamespace(monotonic=lambda: now))
    assert until_tick(0.5) == left
    assert (now + until_tick(0.5)) % 0.5 == 0.0
