"""What events tell of a job's time: which of them, and which are shown."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from muster.agent.events.event_store import Event, EventStore
from muster.agent.jobs.entry import Entry
from muster.agent.node.conditions import Condition
from muster.agent.why import around
from muster.agent.why.around import Happening
from muster.probes.checks.result import Status
from tests.unit.why_facts import RAN, ZERO, facts, happening, rank

BEGAN = ZERO - RAN


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[EventStore]:
    made = await EventStore.open(tmp_path, 1 << 20, boot_id="b")
    yield made
    await made.close()


@pytest.fixture
def entry() -> Entry:
    """The job "j" on the cards 0 and 1."""
    return facts(rank(0), rank(1)).entry


def put(store: EventStore, at: float, kind: str, message: str, job_id: str = "", **attributes: str) -> None:
    store.append([(None, Event(at, kind, job_id, None, message, 0.0, attributes))])


def condition(code: str = "GPU_LOST", card: int | None = 0, **fields: Any) -> Condition:
    given = {"item": "gpu-lost", "device": f"card {card}", "status": Status.CRITICAL, "code": code, "reason": "is gone"}
    return Condition(**(given | {"since": BEGAN - 500, "seen_at": ZERO, "card": card} | fields))


def texts(found: list[Happening]) -> list[str]:
    return [one.text for one in found]


async def test_what_concerns_the_job(store: EventStore, entry: Entry) -> None:
    grave = {"status": "CRITICAL", "code": "GPU_OFF_BUS"}
    put(store, BEGAN + 1, "job.warning", "of this job", "j")
    put(store, BEGAN + 1, "job.warning", "of another", "k")
    put(store, BEGAN + 2, "node.event", "own card", card="1", job="j", **grave)
    put(store, BEGAN + 2, "node.event", "own card of no job then", card="0", **grave)
    put(store, BEGAN + 2, "node.event", "card of another", card="3", **grave)
    put(store, BEGAN + 2, "node.event", "of another job", card="1", job="k", **grave)
    put(store, BEGAN + 2, "node.event", "card that is not here", item="xid", device="0000:9d:00", **grave)
    put(store, BEGAN + 3, "node.drained", "drained")
    put(store, BEGAN + 4, "node.unheard", "of a kind that is not known")
    read = await around.read(store, entry)
    found = around.happenings(read.kept, [], entry)
    assert texts(found) == [
        "of this job",
        "own card (CRITICAL)",
        "own card of no job then (CRITICAL)",
        "drained",
    ]
    assert [one.grave for one in found] == [False, True, True, False]
    assert read.trouble == ""


async def test_the_one_rank_that_the_others_wait_for(store: EventStore, entry: Entry) -> None:
    for ranks in ("1", "0,1", ""):
        put(store, BEGAN + 1, "job.hung", f"it hangs: {ranks}", "j", ranks=ranks)
    put(store, BEGAN + 2, "job.recovered", "goes on", "j", ranks="1")
    found = around.happenings((await around.read(store, entry)).kept, [], entry)
    assert [one.rank for one in found] == [1, None, None, None]


async def test_more_events_than_a_page(store: EventStore, entry: Entry) -> None:
    for number in range(2500):
        put(store, BEGAN + number / 100, "job.warning", str(number), "j" if number % 2 else "k")
    read = await around.read(store, entry)
    assert [int(event.message) for event in read.kept] == list(range(1, 2500, 2))


async def test_what_the_node_reports_long_after_the_end_does_not_concern_the_job(
    store: EventStore, entry: Entry
) -> None:
    """And does not push the job's own events out: a node with a fault reports for days."""
    grave = {"status": "CRITICAL", "code": "GPU_OFF_BUS"}
    assert entry.job.state.final
    put(store, BEGAN + 1, "job.warning", "during", "j")
    put(store, ZERO + 5, "node.event", "soon", card="1", **grave)
    for number in range(around.MAX_KEPT + 10):
        put(store, ZERO + 1000 + number, "node.event", "later", card="1", **grave)
    put(store, ZERO + 5000, "job.warning", "its logs cannot be uploaded", "j")
    read = await around.read(store, entry)
    found = around.happenings(read.kept, [condition(since=ZERO + 900), condition(card=1)], entry)
    assert [one.text for one in found if one.card is None] == ["during", "its logs cannot be uploaded"]
    assert [(one.text, one.card) for one in found if one.card is not None] == [
        (condition(card=1).finding + " (CRITICAL), still open", 1),
        ("soon (CRITICAL)", 1),
    ]


async def test_a_condition_from_before_the_job_counts_until_it_goes(store: EventStore, entry: Entry) -> None:
    about = {"status": "CRITICAL", "card": "0", "device": "card 0"}
    put(store, BEGAN - 900, "node.condition", "came and went", code="GPU_ECC_SRAM_UNCORRECTED", **about)
    put(store, BEGAN - 800, "node.condition_cleared", "went", code="GPU_ECC_SRAM_UNCORRECTED", **about)
    put(store, BEGAN - 700, "node.condition", "came and stayed", code="GPU_OFF_BUS", **about)
    put(store, BEGAN - 600, "node.event", "long ago", code="GPU_OFF_BUS", **about)
    read = await around.read(store, entry)
    found = around.happenings(read.kept, [], entry)
    assert [(one.text, one.open, one.grave) for one in found] == [("came and stayed", True, True)]
    assert read.reach


async def test_of_a_damaged_job_the_events_begin_with_the_last_acceptance(store: EventStore, entry: Entry) -> None:
    entry.damaged = "its journal is"
    put(store, BEGAN - 50, "job.accepted", "an earlier job of the same id", "j")
    put(store, BEGAN - 40, "job.ended", "failed", "j")
    put(store, BEGAN - 30, "job.accepted", "it", "j")
    put(store, BEGAN - 20, "rank.exited", "rank 0 exited with code 1", "j")
    put(store, BEGAN - 20, "job.accepted", "another", "k")
    read = await around.read(store, entry)
    assert [event.message for event in read.kept] == ["it", "rank 0 exited with code 1"]


async def test_whether_the_events_go_back_far_enough(store: EventStore, entry: Entry) -> None:
    assert not (await around.read(store, entry)).reach
    put(store, BEGAN + 10, "job.warning", "later", "j")
    assert not (await around.read(store, entry)).reach


def test_conditions_that_are_there_now(entry: Entry) -> None:
    there = [
        condition(),
        condition(card=3),
        condition("DISK_SPACE_LOW", None, device="/", status=Status.WARN),
        condition("GPU_OFF_BUS", None, device="0000:9d:00", item="xid"),
        condition("GPU_LOST", 1, injected=True),
        condition("DRIVER_HANG", 1, status=Status.UNKNOWN),
    ]
    found = around.happenings((), there, entry)
    assert [(one.card, one.code, one.grave) for one in found] == [
        (0, "GPU_LOST", True),
        (None, "DISK_SPACE_LOW", False),
        (1, "GPU_LOST", False),
    ]
    assert all("still open" in one.text for one in found)
    # One that an event told of already is not told again.
    event = Event(BEGAN, "node.condition", "", None, "card 0: GPU_LOST", 0.0, {"code": "GPU_LOST", "card": "0"})
    assert texts(around.happenings((event,), there[:1], entry)) == ["card 0: GPU_LOST"]


def test_an_event_and_the_condition_that_it_makes_are_one_thing(entry: Entry) -> None:
    about = {"code": "GPU_OFF_BUS", "card": "0", "status": "CRITICAL"}
    event = Event(ZERO - 2, "node.event", "", None, "Xid 79", 0.0, about)
    made = Event(ZERO - 2, "node.condition", "", None, "off the bus", 0.0, about)
    later = Event(ZERO + 20, "node.event", "", None, "Xid 79 again", 0.0, about)
    assert texts(around.happenings((event, made, later), [], entry)) == ["off the bus", "Xid 79 again (CRITICAL)"]


def test_what_is_shown() -> None:
    old = happening("node.event", "old", 5000)
    standing = happening("node.condition", "standing", 9000, open=True)
    begun = happening("job.running", "let go", 100)
    late = happening("node.event", "late", -400)
    ends = [happening("rank.exited", f"rank {number}", -number / 10) for number in range(8)]
    shown = around.chosen([standing, old, begun, *ends, late], ZERO - RAN - 1, ZERO, 50)
    assert texts(shown) == ["standing", "let go", "rank 0", "rank 1", "rank 2", "5 more ranks ended"]


def test_what_is_grave_is_not_crowded_out() -> None:
    noise = [happening("job.warning", f"warning {number}", number) for number in range(90)]
    grave = happening("node.event", "grave", 95, grave=True)
    hung = happening("job.hung", "hung", 94)
    shown = texts(around.chosen([*noise, grave, hung], ZERO - RAN, ZERO, 10))
    assert shown[:2] == ["grave", "hung"] and shown[-1] == "warning 0" and len(shown) == 10


def test_a_daemon_that_came_or_went_after_the_end_has_no_part_in_it() -> None:
    restarted = happening("node.started", "musterd started", 5)
    left, came = happening("node.stopping", "musterd is ending", -1), happening("node.started", "started", -2)
    lost = happening("node.event", "Xid 79", -3)
    shown = around.chosen([restarted, left, came, lost], ZERO - RAN, ZERO, 10)
    assert texts(shown) == ["musterd started", "Xid 79"]
