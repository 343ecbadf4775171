"""Processes that are being created while a loop goes on."""

import os
import subprocess
from collections.abc import Callable

import pytest

from muster.supervisors.launch.creation.underway import Underway, Waiting
from muster.supervisors.system.loop import Loop
from tests.unit.supervision import in_own_process


def waiting() -> tuple["subprocess.Popen[bytes]", int]:
    """A process that runs until it is killed, as `in_own_process` does in the end; and its pidfd."""
    program = subprocess.Popen(["sleep", "600"])
    return program, os.pidfd_open(program.pid)


class Story:
    """Work that tells what becomes of it."""

    def __init__(self, pidfd: int, seconds: float) -> None:
        self.told: list[object] = []
        self.pidfd, self.seconds = pidfd, seconds

    def work(self) -> Waiting[None]:
        self.told.append("begins")
        try:
            self.told.append((yield self.pidfd, self.seconds))
        except GeneratorExit:
            self.told.append("closed")
            raise
        raise OSError("it fails")


def turned(loop: Loop, until: Callable[[], bool]) -> list[str]:
    """The loop's turns until something holds, with a turn that needs no event between."""
    seen = []

    def after() -> None:
        seen.append("turn")
        if until():
            loop.stop()
        else:
            loop.later(0.001, lambda: None)

    loop.after = after
    loop.once(lambda: None)
    loop.run()
    return seen


@pytest.mark.parametrize("ends", [True, False])
def test_the_loop_turns_until_the_process_ends_or_its_time_is_over(ends: bool) -> None:
    def work() -> object:
        program, pidfd = waiting()
        loop = Loop(lambda error: None)
        due: list[str] = []
        underway, story = Underway(loop, lambda: due.append("due")), Story(pidfd, 600.0 if ends else 0.5)
        underway.begin(story.work())
        assert underway.lasts
        underway.go_on()
        assert story.told == ["begins"], "its wait is not over"
        if ends:
            program.kill()
        assert len(turned(loop, lambda: bool(due))) > 1
        try:
            underway.go_on()
        except OSError as error:
            return [story.told, str(error), underway.lasts]
        return "the work raised nothing"

    assert in_own_process(work) == [["begins", ends], "it fails", False]


def test_what_is_cancelled_is_closed_and_waits_for_nothing() -> None:
    def work() -> object:
        _, pidfd = waiting()
        loop = Loop(lambda error: None)
        reaped: list[str] = []
        loop.on_child = lambda: reaped.append("children")
        underway, story = Underway(loop), Story(pidfd, 600.0)
        underway.begin(story.work())
        underway.cancel()
        underway.cancel()
        turned(loop, lambda: bool(reaped))
        return [story.told, underway.lasts]

    assert in_own_process(work) == [["begins", "closed"], False]
