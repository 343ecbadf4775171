import errno
import os
import select
import signal
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import muster.supervisors.system.loop
from muster.supervisors.system.loop import Alarm, Loop
from tests.unit.supervision import in_own_process


def on_a_loop(story: Callable[[Loop, list[Any]], None]) -> list[Any]:
    """Runs a loop in a process of its own until it is stopped; what was noted, `after`, `child` and errors too."""

    def work() -> Any:
        notes: list[Any] = []
        loop = Loop(lambda error: notes.append(error.strerror))
        loop.on_child, loop.after = note(notes, "child"), note(notes, "after")
        story(loop, notes)
        loop.run()
        return notes

    return list(in_own_process(work))


def does(*steps: Callable[[], object]) -> Callable[[], None]:
    """One callback of several."""

    def run() -> None:
        for step in steps:
            step()

    return run


def note(notes: list[Any], what: Any) -> Callable[[], None]:
    return lambda: notes.append(what)


def ready() -> int:
    """A descriptor that is readable, and stays so until it is read."""
    read, write = os.pipe()
    os.write(write, b"x")
    return read


def test_timers_fire_in_the_order_of_their_times(monkeypatch):
    def story(loop: Loop, notes: list[Any]) -> None:
        now = time.monotonic()
        with monkeypatch.context() as set_at_once:
            set_at_once.setattr(time, "monotonic", lambda: now)
            for delay in (0.03, 0.01, 0.02, 0.0):
                loop.later(delay, note(notes, delay))
            loop.later(0.04, loop.stop)

    notes = on_a_loop(story)
    assert [n for n in notes if n != "after"] == [0.0, 0.01, 0.02, 0.03]


def test_timers_of_one_time_fire_in_the_order_they_were_set_in_one_batch(monkeypatch):
    def story(loop: Loop, notes: list[Any]) -> None:
        now = time.monotonic()
        monkeypatch.setattr(time, "monotonic", lambda: now)
        for i in range(20):
            loop.later(0, note(notes, i))
        loop.later(0, loop.stop)

    assert on_a_loop(story) == [*range(20), "after"]


def test_a_timer_does_not_fire_early():
    def story(loop: Loop, notes: list[Any]) -> None:
        begin = time.monotonic()

        def done() -> None:
            notes.append(time.monotonic() - begin)
            loop.stop()

        loop.later(0.05, done)

    (passed,) = (n for n in on_a_loop(story) if n != "after")
    assert passed >= 0.05


def test_a_cancelled_timer_does_not_fire_nor_one_twice():
    def story(loop: Loop, notes: list[Any]) -> None:
        once = loop.later(0, does(note(notes, "once"), lambda: doomed.cancel()))  # noqa: PLW0108 - it comes next
        doomed = loop.later(0.01, lambda: notes.append("never"))
        loop.later(0.02, does(once.fire, once.cancel, doomed.fire, loop.stop))

    assert [n for n in on_a_loop(story) if n != "after"] == ["once"]


def test_a_timer_set_by_a_timer_waits_for_the_next_batch():
    def story(loop: Loop, notes: list[Any]) -> None:
        def second() -> None:
            notes.append("second")
            loop.stop()

        def first() -> None:
            notes.append("first")
            loop.later(0.001, second)

        loop.later(0, first)

    notes = on_a_loop(story)
    assert notes[:2] == ["first", "after"]
    assert notes[-2:] == ["second", "after"]


class Refusing:
    """Work that the disk refuses so many times."""

    def __init__(self, times: int, then: Callable[[], None]) -> None:
        self.times, self.then = times, then

    def __call__(self) -> None:
        self.times -= 1
        if self.times >= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.then()


FULL = "No space left on device"


@pytest.mark.parametrize("how", ["later", "attempt"])
def test_work_that_the_disk_refuses_is_done_again_until_it_is_done(monkeypatch, how):
    monkeypatch.setattr(muster.supervisors.system.loop, "AGAIN_S", 0.01)

    def story(loop: Loop, notes: list[Any]) -> None:
        work = Refusing(2, does(note(notes, "done"), loop.stop))
        if how == "later":
            loop.later(0, work)
        else:
            loop.attempt(work)

    assert [n for n in on_a_loop(story) if n != "after"] == [FULL, FULL, "done"]


def test_work_that_is_tried_again_can_be_cancelled(monkeypatch):
    """A kill that was put off, say, while the first try ran into a full disk."""
    monkeypatch.setattr(muster.supervisors.system.loop, "AGAIN_S", 0.02)

    def story(loop: Loop, notes: list[Any]) -> None:
        timer = loop.later(0, Refusing(1, note(notes, "done")))
        loop.later(0.01, timer.cancel)
        loop.later(0.05, loop.stop)

    assert [n for n in on_a_loop(story) if n != "after"] == [FULL]


def test_another_error_ends_the_loop():
    def story(loop: Loop, notes: list[Any]) -> None:
        loop.later(0, lambda: notes.remove("what is not there"))
        with pytest.raises(ValueError, match="not in list"):
            loop.run()
        loop.later(0, loop.stop)

    assert on_a_loop(story) == ["after"]


def test_what_is_done_once_comes_first_and_its_error_ends_the_loop():
    def story(loop: Loop, notes: list[Any]) -> None:
        loop.later(0, note(notes, "later"))
        loop.once(does(note(notes, "once"), Refusing(1, loop.stop)))
        with pytest.raises(OSError, match=FULL):
            loop.run()
        loop.later(0, loop.stop)

    assert on_a_loop(story) == ["once", "later", "after"]


def test_after_runs_once_behind_all_that_happened_at_once():
    def story(loop: Loop, notes: list[Any]) -> None:
        fds = [ready() for _ in range(5)]
        for fd in fds:
            loop.add(fd, does(note(notes, "fd"), partial(os.read, fd, 1)))
        loop.later(0, lambda: notes.append("timer"))
        loop.later(0.02, loop.stop)

    assert on_a_loop(story)[:7] == [*["fd"] * 5, "timer", "after"]


def test_what_is_not_read_is_reported_again():
    def story(loop: Loop, notes: list[Any]) -> None:
        fd = ready()

        def look() -> None:
            notes.append("fd")
            if notes.count("fd") == 3:
                loop.remove(fd)
                loop.later(0.01, loop.stop)

        loop.add(fd, look)

    assert on_a_loop(story).count("fd") == 3


def test_what_is_removed_in_a_batch_is_not_called_in_it():
    def story(loop: Loop, notes: list[Any]) -> None:
        fds = [ready(), ready()]

        def look() -> None:
            notes.append("fd")
            for fd in fds:
                loop.remove(fd)
                os.close(fd)
            loop.later(0, loop.stop)

        for fd in fds:
            loop.add(fd, look)

    assert on_a_loop(story).count("fd") == 1


def test_removing_what_is_not_there_is_passed_over():
    def story(loop: Loop, notes: list[Any]) -> None:
        loop.remove(9999)
        fd = ready()
        loop.add(fd, lambda: notes.append("fd"))
        loop.remove(fd)
        loop.remove(fd)
        loop.later(0.01, loop.stop)

    assert "fd" not in on_a_loop(story)


def test_what_rests_is_left_alone_for_a_while():
    def story(loop: Loop, notes: list[Any]) -> None:
        fd = ready()
        loop.add(fd, does(note(notes, "fd"), partial(os.read, fd, 1), loop.stop))
        loop.rest(fd, 0.03)
        loop.later(0.01, note(notes, "meanwhile"))
        loop.rest(9999, 0.01)

    assert [n for n in on_a_loop(story) if n != "after"] == ["meanwhile", "fd"]


def test_what_is_removed_while_it_rests_does_not_come_back():
    """The listening socket of a job that ends just then: its number may be another file's by the time."""

    def story(loop: Loop, notes: list[Any]) -> None:
        fd = ready()
        loop.add(fd, note(notes, "fd"))
        loop.rest(fd, 0.01)
        loop.remove(fd)
        loop.later(0.03, loop.stop)

    assert "fd" not in on_a_loop(story)


def test_a_timer_may_be_weeks_away():
    def story(loop: Loop, notes: list[Any]) -> None:
        loop.later(10 * 365 * 24 * 3600, note(notes, "never"))
        loop.add(ready(), loop.stop)  # it waits for this, and epoll(7) takes milliseconds in an int

    assert set(on_a_loop(story)) == {"after"}


def test_what_is_waited_for_can_be_changed():
    def story(loop: Loop, notes: list[Any]) -> None:
        _, write = os.pipe()

        def on_event() -> None:
            notes.append("writable")
            loop.want(write, 0)
            loop.later(0.01, loop.stop)

        loop.add(write, on_event, 0)
        loop.later(0.01, does(note(notes, "ask"), partial(loop.want, write, select.EPOLLOUT)))

    assert [n for n in on_a_loop(story) if n != "after"] == ["ask", "writable"]


def test_a_hang_up_is_reported_without_being_asked_for():
    def story(loop: Loop, notes: list[Any]) -> None:
        read, write = os.pipe()
        loop.add(read, does(note(notes, "gone"), loop.stop), 0)
        loop.later(0, lambda: os.close(write))

    assert on_a_loop(story).count("gone") == 1


def test_a_child_that_ends_is_reported_between_batches():
    def story(loop: Loop, notes: list[Any]) -> None:
        loop.on_child = does(note(notes, "child"), loop.stop)
        pid = os.fork()
        if pid == 0:
            os._exit(0)

    notes = on_a_loop(story)
    assert notes.count("child") == 1
    assert notes[-1] == "after"


def test_children_that_end_in_a_crowd_need_not_be_told_one_by_one():
    """More signals than the wakeup pipe has room for are no error and are not lost."""

    def story(loop: Loop, notes: list[Any]) -> None:
        for _ in range(70_000):
            signal.raise_signal(signal.SIGCHLD)
        loop.later(0, loop.stop)

    assert on_a_loop(story).count("child") >= 1


def test_an_alarm_that_is_set_again_replaces_the_one_before():
    def story(loop: Loop, notes: list[Any]) -> None:
        alarm = Alarm(loop)
        alarm.set(0.01, note(notes, "first"))
        alarm.set(0.0, note(notes, "second"))
        loop.later(0.02, does(note(notes, "timer"), loop.stop))

    assert [n for n in on_a_loop(story) if n != "after"] == ["second", "timer"]


def test_an_alarm_that_is_cancelled_does_not_ring():
    def story(loop: Loop, notes: list[Any]) -> None:
        alarm = Alarm(loop)
        alarm.cancel()
        alarm.set(0.0, note(notes, "alarm"))
        alarm.cancel()
        alarm.cancel()
        loop.later(0.01, loop.stop)

    assert "alarm" not in on_a_loop(story)


def test_an_alarm_whose_time_is_over_rings_at_once_and_may_be_set_from_within():
    def story(loop: Loop, notes: list[Any]) -> None:
        alarm = Alarm(loop)
        alarm.set(-100.0, does(note(notes, "first"), lambda: alarm.set(-1.0, does(note(notes, "again"), loop.stop))))

    assert [n for n in on_a_loop(story) if n != "after"] == ["first", "again"]


def test_other_signals_with_a_handler_wake_the_loop_too():
    def story(loop: Loop, notes: list[Any]) -> None:
        heard = does(note(notes, "alarm"), loop.stop)
        signal.signal(signal.SIGALRM, lambda *_: heard())
        loop.later(0, does(partial(signal.setitimer, signal.ITIMER_REAL, 0.02)))

    assert "alarm" in on_a_loop(story)
