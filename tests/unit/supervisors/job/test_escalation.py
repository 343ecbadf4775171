"""A stop, as its supervisor carries it out: beside what the daemon does, and where the journal takes no record."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from muster.supervisors.job.escalation import Escalation
from muster.supervisors.launch.containment import Containment
from muster.supervisors.model.ledger import Ledger
from muster.supervisors.model.lifecycle import Job, Rank
from muster.supervisors.model.replay import apply
from muster.supervisors.model.states import State, StopCause
from muster.supervisors.system.loop import Loop


class Desk:
    """A journal that is a list, processes that only count signals, and a loop that is us."""

    def __init__(self, before: Callable[["Desk"], object] = lambda _: None) -> None:
        self.job = Job(state=State.RUNNING, spawned=True, ranks=[Rank(0, 0, 0)])
        self.story: list[str] = []
        self.owes = False
        loop = SimpleNamespace(attempt=lambda work: work(), later=lambda *_: SimpleNamespace(cancel=lambda: None))
        contained = SimpleNamespace(signal=self._signal, kill=list, members=list)
        self.stop = Escalation(
            cast(Loop, loop), cast(Ledger, self), lambda: cast(Containment, contained), lambda: before(self),
            lambda: self.story.append("kept"), lambda: None, lambda _: None,
        )  # fmt: skip

    def _signal(self, number: int) -> int:
        self.story.append("signal")
        return 1

    def owe(self, *records: dict[str, Any], **_: bool) -> None:
        for record in records:
            self.story.append(str(record.get("signal", record["kind"])))
            apply(self.job, {"n": 1, "t": 1.0} | record)

    def begin(self, *sent: str) -> list[str]:
        self.stop.begin(StopCause.REQUESTED, "root", "a test", (60.0,), sent=sent)
        return self.story


def test_a_stop_sends_sigterm_and_tells_of_it():
    assert Desk().begin() == ["stopping", "signal", "SIGTERM"]


def test_what_the_daemon_sent_is_not_sent_again():
    assert Desk().begin("SIGTERM") == ["stopping", "SIGTERM"]


@pytest.mark.parametrize("name", ["SIGTERM", "SIGKILL"])
def test_what_the_daemon_sent_is_recorded_behind_a_stop_that_is_under_way(name):
    desk = Desk()
    apply(desk.job, {"n": 1, "t": 1.0, "kind": "stopping", "cause": StopCause.REQUESTED, "by": "", "reason": "",
                     "steps": [60.0], "up": 1.0})  # fmt: skip
    assert desk.begin(name) == [name]


def test_what_the_daemon_sent_may_be_learned_while_those_who_ended_are_noted():
    assert Desk(lambda desk: desk.stop.note_sent(("SIGTERM",))).begin() == ["stopping", "SIGTERM"]


def test_where_the_journal_takes_no_record_it_is_kept_before_a_signal_is_sent():
    desk = Desk()
    desk.owes = True
    assert desk.begin() == ["stopping", "kept", "signal", "SIGTERM", "kept"]
