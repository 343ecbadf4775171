"""When a supervisor counts as stuck."""

from pathlib import Path

import pytest

from muster.agent.events.event_store import Event
from muster.agent.jobs.entry import Entry
from muster.agent.jobs.live.stuck_supervisor import AGAIN_S, STUCK_S, StuckSupervisor
from muster.supervisors.model.lifecycle import Job
from muster.supervisors.model.spec import JobSpec
from muster.supervisors.paths import JobPaths

LOOKS = int(STUCK_S / AGAIN_S) + 1


def nobody(_: Event) -> None:
    """Listens."""


@pytest.fixture
def entry() -> Entry:
    return Entry("a", JobSpec("a", ()), Job(), JobPaths(Path("/nowhere")))


def see(stuck: StuckSupervisor, states: str, pid: int = 7) -> None:
    for state in states:
        stuck.saw(pid, state)


@pytest.mark.parametrize(
    ("state", "said"),
    [("T", "is stopped (SIGSTOP)"), ("t", "by a debugger (state t)"), ("D", "hangs in the kernel (state D)")],
)
def test_it_is_reported_after_a_while_and_until_it_runs(entry: Entry, state: str, said: str):
    stuck = StuckSupervisor(entry, nobody)
    see(stuck, state * (LOOKS - 1))
    assert entry.notes is None
    see(stuck, state)
    assert entry.notes is not None
    text = entry.notes["stuck"]
    assert said in text and "(pid 7)" in text and "`muster stop` works" in text
    assert ("kill -CONT 7" in text) == (state == "T")
    see(stuck, "S")
    assert entry.notes is None


@pytest.mark.parametrize("between", "SRZ")
def test_one_look_that_finds_it_running_begins_anew(entry: Entry, between: str):
    stuck = StuckSupervisor(entry, nobody)
    see(stuck, ("D" * (LOOKS - 1) + between) * 3 + "D" * (LOOKS - 1))
    assert entry.notes is None


def test_a_successor_is_not_taken_for_the_one_that_was_stuck(entry: Entry):
    stuck = StuckSupervisor(entry, nobody)
    see(stuck, "T" * LOOKS)
    see(stuck, "T", pid=8)
    assert entry.notes is None
    see(stuck, "T" * LOOKS, pid=8)
    assert entry.notes is not None and "(pid 8)" in entry.notes["stuck"]
    stuck.saw(0, "")
    assert entry.notes is None


def test_each_change_is_an_event_and_a_mark(entry: Entry):
    events: list[Event] = []
    stuck = StuckSupervisor(entry, events.append)
    see(stuck, "T" * (LOOKS + 3))
    assert entry.stuck == "stopped"
    see(stuck, "S" * 3)
    assert entry.stuck == ""
    assert [(e.kind, e.job_id, e.attributes) for e in events] == [
        ("job.supervisor_stuck", "a", {"pid": "7", "state": "stopped"}),
        ("job.supervisor_works", "a", {"pid": "7"}),
    ]


def test_the_next_daemon_tells_once_that_it_works_again(entry: Entry):
    events: list[Event] = []
    stuck = StuckSupervisor(entry, events.append, was_stuck=True)
    see(stuck, "T" * (LOOKS - 1))
    assert not events, "it may be stuck still"
    see(stuck, "S" * 3)
    assert [event.kind for event in events] == ["job.supervisor_works"]
    see(stuck, "T" * LOOKS + "S")
    assert [event.kind for event in events[1:]] == ["job.supervisor_stuck", "job.supervisor_works"]
