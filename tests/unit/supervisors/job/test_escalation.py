"""A stop, as its supervisor carries it out: beside what the daemon does, and where the journal takes no record."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from muster.probes.kernel import process
from muster.supervisors.job import stop_order
from muster.supervisors.job.context import JobContext
from muster.supervisors.job.ends import Ends
from muster.supervisors.job.escalation import Escalation
from muster.supervisors.job.remains import Remains
from muster.supervisors.job.stop_order import StopOrder
from muster.supervisors.model.lifecycle import Job, Rank
from muster.supervisors.model.replay import apply
from muster.supervisors.model.spec import JobSpec
from muster.supervisors.model.states import State, StopCause
from muster.supervisors.paths import Root


class Desk:
    """A journal that is a list, processes that only count signals, and a loop that is us."""

    def __init__(self, folder: Path, before: Callable[["Desk"], object] = lambda _: None) -> None:
        self.job = Job(state=State.RUNNING, spawned=True, ranks=[Rank(0, 0, 0)])
        self.story: list[str] = []
        self.owes = False
        self.root = Root.under(folder)
        self.root.run.mkdir(parents=True)
        self._before = before
        context = SimpleNamespace(
            root=self.root,
            spec=JobSpec("job", ()),
            job=self.job,
            nonce="n",
            ledger=self,
            loop=SimpleNamespace(attempt=lambda work: work(), later=lambda *_: SimpleNamespace(cancel=lambda: None)),
            output=SimpleNamespace(say=lambda _: None),
            containment=SimpleNamespace(signal=self._signal, kill=list, members=list),
        )
        ends = SimpleNamespace(undecided=False, collect=self._collect)
        remains = SimpleNamespace(look=lambda: None)
        self.stop = Escalation(cast(JobContext, context), cast(Ends, ends), cast(Remains, remains))

    def _collect(self, before: Callable[[], object], *, look: bool) -> list[int]:
        self._before(self)
        before()
        return []

    def order(self, *sent: str) -> None:
        """The daemon stops the job in our place, and sends these."""
        order = StopOrder("n", (60.0,), "root", "a test", process.uptime(), sent)
        stop_order.write(self.root.stop_order("job"), order)

    @property
    def kept(self) -> tuple[str, ...] | None:
        """The signals that a successor is told of beside the journal; None: of no stop at all."""
        order = stop_order.read(self.root.stop_order("job"), "n")
        return None if order is None else order.sent

    def _signal(self, number: int) -> int:
        self.story.append("signal" if self.kept is None else f"signal, {list(self.kept)} kept")
        return 1

    def owe(self, *records: dict[str, Any], **_: bool) -> None:
        for record in records:
            self.story.append(str(record.get("signal", record["kind"])))
            apply(self.job, {"n": 1, "t": 1.0} | record)

    def begin(self, *sent: str) -> list[str]:
        self.stop.begin(StopCause.REQUESTED, "root", "a test", (60.0,), sent=sent)
        return self.story


def test_a_stop_sends_sigterm_and_tells_of_it(tmp_path):
    assert Desk(tmp_path).begin() == ["stopping", "signal", "SIGTERM"]


def test_what_the_daemon_sent_is_not_sent_again(tmp_path):
    assert Desk(tmp_path).begin("SIGTERM") == ["stopping", "SIGTERM"]


@pytest.mark.parametrize("name", ["SIGTERM", "SIGKILL"])
def test_what_the_daemon_sent_is_recorded_behind_a_stop_that_is_under_way(name, tmp_path):
    desk = Desk(tmp_path)
    apply(desk.job, {"n": 1, "t": 1.0, "kind": "stopping", "cause": StopCause.REQUESTED, "by": "", "reason": "",
                     "steps": [60.0], "up": 1.0})  # fmt: skip
    assert desk.begin(name) == [name]


def test_what_the_daemon_sent_may_be_learned_while_those_who_ended_are_noted(tmp_path):
    assert Desk(tmp_path, lambda desk: desk.order("SIGTERM")).begin() == ["stopping", "SIGTERM"]


def test_a_stop_that_the_daemon_carries_out_is_known_before_an_end_is_judged(tmp_path):
    desk = Desk(tmp_path)
    desk.order("SIGTERM")
    desk.stop.note_ends()
    assert desk.story == ["stopping", "SIGTERM"]


def test_where_the_journal_takes_no_record_it_is_kept_before_a_signal_is_sent(tmp_path):
    desk = Desk(tmp_path)
    desk.owes = True
    assert desk.begin() == ["stopping", "signal, [] kept", "SIGTERM"]
    assert desk.kept == ("SIGTERM",)
