"""The health of the node: what follows from what its checks and its events say."""

import asyncio
import json
import os
import threading
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from muster.agent.config.schema import Config
from muster.agent.errors import ConditionNotFound, InvalidRequest, NodeUnhealthy, NoRoom
from muster.agent.events import event_store
from muster.agent.events.event_store import Event, EventStore
from muster.agent.node.health import Clock, NodeHealth
from muster.agent.node.node_notes import FLOOD_S
from muster.probes.cards.accelerator import NVIDIA, Card, CardEvent
from muster.probes.cards.driver import View
from muster.probes.checks.precheck import UnknownItem
from muster.probes.checks.result import Action, CheckResult, Code, Status
from muster.probes.node.node_checks import Finding, Inventory, KeptCounts, NodeCheck, NodeSettings, Position
from muster.supervisors.paths import Root
from tests.unit.waiting import until

START = 1_700_000_000.0
QUICK = 0.01
CHECKS = [
    NodeCheck("temperature", "how hot", QUICK, (Code.GPU_TEMPERATURE,)),
    NodeCheck("ecc", "errors", QUICK, (Code.GPU_ECC_UNCORRECTED,)),
    NodeCheck("gpu-lost", "whether it is there", QUICK, (Code.GPU_LOST,)),
    NodeCheck("xid", "Xids", 0.0, (Code.GPU_OFF_BUS, Code.GPU_XID_RESET, Code.GPU_XID_APPLICATION)),
]


@dataclass
class Time:
    """A clock that a test sets."""

    now: float = START
    up: float = 500.0
    boot: str = "one"

    def clock(self) -> Clock:
        boot = self.boot
        return Clock(lambda: self.now, lambda: self.up, lambda: boot)

    def pass_(self, seconds: float) -> None:
        self.now += seconds
        self.up += seconds


class FakeDriver:
    """Cards that are there, and events that come."""

    def __init__(self) -> None:
        self.view = View(NVIDIA, "570", {i: Card(i, NVIDIA, uuid=f"GPU-{i}", bus_id=f"0000:0{i}:00.0") for i in (0, 3)})
        self.events: asyncio.Queue[list[CardEvent]] = asyncio.Queue()

    async def ready(self) -> View:
        return self.view

    async def wait_events(self) -> list[CardEvent]:
        return await self.events.get()


class FakeLooker:
    """Answers as a test says."""

    def __init__(self) -> None:
        self.results: dict[str, list[CheckResult]] = {}
        self.hanging: set[str] = set()
        self.broken: set[str] = set()
        self.looks: list[tuple[tuple[str, ...], Any, float, dict[int, str]]] = []
        self.forgotten: list[tuple[str, str]] = []
        self.position: Position | None = None
        self.after: Position | None = None
        self.earlier_boots: Callable[[str, int], int] = lambda name, xid: -1
        self.kernel: asyncio.Queue[list[Finding] | Exception] = asyncio.Queue()
        self.closed = False
        self.known = Inventory()
        self.counted = KeptCounts()
        self.of_driver: list[Finding] = []

    def made(
        self,
        settings: Callable[[], NodeSettings],
        driver: Any,
        *,
        after: Any,
        earlier_boots: Any,
        inventory: Inventory,
        counts: KeptCounts,
        own_paths: tuple[str, ...],
    ) -> "FakeLooker":
        assert own_paths
        assert isinstance(settings(), NodeSettings)
        self.after, self.earlier_boots, self.known, self.counted = after, earlier_boots, inventory, counts
        return self

    @property
    def inventory(self) -> Inventory:
        return self.known

    def counts(self) -> KeptCounts:
        return self.counted

    async def accept(self, code: Code, device: str) -> None:
        self.known.accept(code, device, {}, NVIDIA, {}, START)

    def applicable(self, item: str) -> str:
        return "it has no ECC" if item == "ecc" else ""

    async def look(
        self,
        items: Sequence[str] = (),
        cards: Collection[int] | None = None,
        *,
        held: Mapping[int, str] | None = None,
        max_age_s: float = 0.0,
    ) -> list[CheckResult]:
        self.looks.append((tuple(items), cards, max_age_s, dict(held or {})))
        known = [check.item for check in CHECKS]
        for item in items:
            if item not in known:
                raise UnknownItem(item, ())
        chosen = items or known
        if self.hanging & set(chosen):
            await anyio.sleep_forever()
        if self.broken & set(chosen):
            raise ZeroDivisionError("a defect")
        found = [result for item in chosen for result in self.results.get(item, [fine(item)])]
        return [r for r in found if cards is None or r.card is None or r.card in cards]

    async def kernel_events(self) -> list[Finding]:
        found = await self.kernel.get()
        if isinstance(found, Exception):
            raise found
        return found

    def driver_events(self, events: Sequence[CardEvent]) -> list[Finding]:
        return self.of_driver

    def close(self) -> None:
        self.closed = True

    def follow(self, number_now: Callable[[int, str], int | None]) -> None:
        pass

    def forget(self, code: Code, device: str) -> None:
        self.forgotten.append((code, device))


@dataclass
class House:
    """A node's health with all that is around it."""

    root: Root
    events: EventStore
    config: Config
    time: Time = field(default_factory=Time)
    looker: FakeLooker = field(default_factory=FakeLooker)
    driver: FakeDriver = field(default_factory=FakeDriver)

    async def load(self) -> NodeHealth:
        health = NodeHealth(
            self.root,
            lambda: self.config,
            self.events,
            self.driver,  # type: ignore[arg-type]  # what is used of it
            looker=self.looker.made,
            clock=self.time.clock(),
        )
        await health.load()
        return health

    @asynccontextmanager
    async def running(self) -> AsyncIterator[NodeHealth]:
        health = await self.load()
        async with anyio.create_task_group() as tasks:
            await tasks.start(health.run)
            yield health
            tasks.cancel_scope.cancel()

    def again(self) -> "House":
        """With a daemon that starts anew."""
        return replace(self, looker=FakeLooker(), driver=FakeDriver())

    async def told(self, kind: str = "") -> list[Event]:
        found = [event for event, _ in await self.events.read(None, 1000)]
        return [event for event in found if event.kind.startswith(kind or "node.")]

    def faults(self) -> dict[str, Any]:
        return dict(json.loads(self.root.faults.read_bytes())) if self.root.faults.exists() else {}

    def set(self, table: str, **values: Any) -> None:
        before = getattr(self.config, table)
        self.config = replace(self.config, **{table: replace(before, **values)})


@pytest.fixture
async def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[House]:
    monkeypatch.setattr("muster.agent.node.node_watch.node_checks.catalogue", lambda settings: list(CHECKS))
    root = Root.under(tmp_path)
    root.events.mkdir(parents=True)
    events = await EventStore.open(root.events, 1 << 20, boot_id="one")
    yield House(root, events, Config())
    await events.close()


def fine(item: str, card: int | None = 3) -> CheckResult:
    device = "" if card is None else f"card {card}"
    return CheckResult(item, Status.OK, Code.NODE_OK, "it is fine", device=device, card=card)


def lost(card: int = 3) -> CheckResult:
    device = f"card {card}"
    reason = f"{device}: it is not there any more"
    return CheckResult(
        "gpu-lost", Status.CRITICAL, Code.GPU_LOST, reason, action=Action.REBOOT, device=device, card=card
    )


def hot(status: Status = Status.CRITICAL) -> CheckResult:
    return CheckResult("temperature", status, Code.GPU_TEMPERATURE, "91 C", device="card 3", card=3)


def xid(number: int, code: Code, card: int | None = 3, at: float = START, **more: Any) -> Finding:
    grave = code in (Code.GPU_OFF_BUS, Code.GPU_XID_RESET)
    return Finding(
        item="xid",
        code=code,
        status=Status.CRITICAL if grave else Status.WARN,
        action=Action.REBOOT if grave else Action.RESTART_JOB,
        device="" if card is None else f"card {card}",
        card=card,
        bus_id="0000:03:00.0",
        text=f"Xid {number} happened",
        at=at,
        number=number,
        source="kernel log",
        **more,
    )


def codes(health: NodeHealth) -> list[str]:
    return [condition.code for condition in health.conditions]


async def test_what_a_periodic_look_finds_is_a_condition_an_event_and_a_fault(house: House):
    house.looker.results["gpu-lost"] = [lost()]
    async with house.running() as health:
        await until(lambda: codes(health) == ["GPU_LOST"])
        await until(
            lambda: (
                {r.item: r.status for r in health.results}
                == {
                    "temperature": Status.OK,
                    "ecc": Status.OK,
                    "gpu-lost": Status.CRITICAL,
                }
            )
        )
        condition = health.conditions[0]
        assert (condition.device, condition.card, condition.reason) == ("card 3", 3, "it is not there any more")
        (event,) = await house.told("node.condition")
        assert event.message == "card 3: GPU_LOST: it is not there any more (CRITICAL)"
        assert event.attributes == {
            "code": "GPU_LOST",
            "device": "card 3",
            "status": "CRITICAL",
            "item": "gpu-lost",
            "action": "REBOOT",
            "card": "3",
            "uuid": "GPU-3",
        }
        await until(lambda: house.faults().get("cards", {}).keys() == {"3"})
        assert house.faults()["boot"] == "one"


async def test_a_reading_that_is_normal_again_is_reported_once_and_leaves_the_faults(house: House):
    house.looker.results["temperature"] = [hot()]
    async with house.running() as health:
        await until(lambda: codes(health) == ["GPU_TEMPERATURE"])
        del house.looker.results["temperature"]
        house.time.pass_(60)
        await until(lambda: len([1 for items, *_ in house.looker.looks if items == ("temperature",)]) > 3)
        house.time.pass_(60)
        await until(lambda: codes(health) == [])
        await until(lambda: house.faults()["cards"] == {})
    kinds = [event.kind for event in await house.told()]
    assert kinds == ["node.condition", "node.condition_cleared"]
    assert "it is normal again" in (await house.told("node.condition_cleared"))[0].message


async def test_a_check_that_hangs_is_a_finding_of_its_own_and_hinders_no_other(
    house: House, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("muster.agent.node.node_watch.MARGIN_S", 0.0)
    house.set("health", look_deadline_s=0.05)
    house.set("cards", driver_deadline_s=0.05)
    house.looker.hanging.add("ecc")
    house.looker.results["temperature"] = [hot()]
    async with house.running() as health:
        await until(lambda: codes(health) == ["GPU_TEMPERATURE", "PROBE_TIMED_OUT"])
        assert [c.status for c in health.conditions] == [Status.CRITICAL, Status.UNKNOWN]
        assert health.conditions[1].item == "ecc"
        # A card on which nothing but UNKNOWN is known is fit.
        assert health.unfit_cards().keys() == {3}
        assert health.refusal([0]) is None


async def test_a_check_that_fails_by_a_defect_is_unknown_and_so_is_the_log_that_cannot_be_followed(
    house: House, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("muster.agent.node.node_watch.REST_S", 0.0)
    house.looker.broken.add("ecc")
    async with house.running() as health:
        await until(lambda: codes(health) == ["PROBE_FAILED"])
        assert "ZeroDivisionError: a defect" in health.conditions[0].reason
        await house.looker.kernel.put(RuntimeError("a defect"))
        await house.looker.kernel.put([xid(79, Code.GPU_OFF_BUS)])
        await until(lambda: "GPU_OFF_BUS" in codes(health))


async def test_looks_on_demand_have_fresh_readings_and_the_jobs_of_the_cards(house: House):
    health = await house.load()
    health.holders = lambda: {3: "job-a"}
    house.looker.results |= {"temperature": [hot()], "gpu-lost": [lost(0), fine("gpu-lost")]}
    assert [r.code for r in await health.look(("temperature",), [0])] == []
    assert house.looker.looks == [(("temperature",), [0], 0.0, {3: "job-a"})]
    assert health.conditions == []
    assert len(await health.look(cards=[3])) == 4
    assert codes(health) == ["GPU_TEMPERATURE"]
    (event,) = await house.told("node.condition")
    assert event.attributes["job"] == "job-a"
    with pytest.raises(UnknownItem):
        await health.look(("nonsense",))


async def test_a_look_for_a_job_that_waits_ends_in_time(house: House):
    house.set("checks", deadline_s=0.05)
    house.looker.hanging.add("temperature")
    health = await house.load()
    with anyio.fail_after(60):
        results = await health.look(cards=[3])
    assert {(r.item, r.code, r.status) for r in results} == {
        (check.item, Code.PROBE_TIMED_OUT, Status.UNKNOWN) for check in CHECKS if check.interval_s
    }
    # That somebody was in a hurry says nothing about the node.
    assert health.conditions == []


async def test_switched_off_nothing_is_watched_and_a_look_on_demand_leaves_nothing(house: House):
    house.looker.results["temperature"] = [hot()]
    house.set("health", policy="off")
    async with house.running() as health:
        await house.looker.kernel.put([xid(79, Code.GPU_OFF_BUS)])
        assert len(await health.look()) == 4
        assert health.conditions == []
        assert [items for items, *_ in house.looker.looks] == [()]
    assert await house.told() == []


async def test_what_a_look_would_clear_goes_when_the_checks_are_switched_off(house: House):
    health = await house.load()
    house.looker.results |= {"temperature": [hot()], "gpu-lost": [lost()]}
    await health.look()
    assert codes(health) == ["GPU_LOST", "GPU_TEMPERATURE"]
    house.set("health", policy="off")
    health.upkeep()
    left = codes(health)
    assert "GPU_TEMPERATURE" not in left
    (event,) = [e for e in await house.told("node.condition_cleared") if e.attributes["code"] == "GPU_TEMPERATURE"]
    assert "switched off" in event.message


async def test_policy_decides_which_jobs_are_refused(house: House):
    async with house.running() as health:
        house.looker.results["temperature"] = [hot(Status.WARN)]
        await health.look()
        assert health.refusal([3]) is None
        house.looker.results["gpu-lost"] = [lost()]
        await health.look()
        assert health.refusal([0]) is None
        found = health.refusal([0, 3])
        assert found is not None and found.code == "GPU_LOST"
        assert health.unfit_cards() == {3: found}
        error = NodeUnhealthy(found.sentence())
        for part in ("card 3", "GPU_LOST", "since", "it is not there any more", "muster check explain"):
            assert part in str(error)
        await health.inject("FS_READ_ONLY", None, "", "me")
        node = health.refusal([])
        assert node is not None and node.card is None
        assert health.refusal([], wants_cards=False) == node
        for policy in ("warn", "off"):
            house.set("health", policy=policy)
            assert health.refusal([3]) is None
            assert health.unfit_cards() == {}
            assert len(health.conditions) == 3


async def test_what_is_wrong_with_all_cards_refuses_no_job_without_cards(house: House):
    house.looker.results["gpu-lost"] = [
        CheckResult("gpu-lost", Status.CRITICAL, Code.GPU_COUNT, "the driver has 7 cards, 8 are expected")
    ]
    async with house.running() as health:
        await health.look()
        assert health.refusal([], wants_cards=False) is None
        for cards in ([], [3]):
            found = health.refusal(cards)
            assert found is not None and found.code == "GPU_COUNT"
        await health.inject("FS_READ_ONLY", None, "", "me")
        found = health.refusal([], wants_cards=False)
        assert found is not None and found.code == "FS_READ_ONLY"


async def test_a_card_that_is_missing_refuses_nobody_who_gets_others(house: House):
    missing = CheckResult("gpu-lost", Status.CRITICAL, Code.CARD_MISSING, "it was here", device="0000:9d:00.0")
    house.looker.results["gpu-lost"] = [missing, replace(missing, device="0000:9e:00.0", card=7)]
    async with house.running() as health:
        await health.look()
        assert len(health.conditions) == 2
        assert health.refusal([0, 3]) is None and health.refusal([]) is None
        assert health.refusal([7]) is not None


async def test_what_happened_is_not_kept_young_by_looks_that_tell_of_it_again(house: House):
    async with house.running() as health:
        await house.looker.kernel.put([xid(79, Code.GPU_OFF_BUS)])
        await until(lambda: codes(health) == ["GPU_OFF_BUS"])
        house.looker.results["xid"] = [
            CheckResult("xid", Status.CRITICAL, Code.GPU_OFF_BUS, "Xid 79 happened", device="card 3", card=3)
        ]
        house.time.pass_(100)
        await health.look()
        assert [c.seen_at for c in health.conditions] == [START]


async def test_an_event_of_the_kernel_is_reported_latched_and_remembered(house: House):
    async with house.running() as health:
        house.looker.position = Position("one", 41)
        house.time.pass_(100)
        await house.looker.kernel.put([xid(79, Code.GPU_OFF_BUS, at=START + 30), xid(31, Code.GPU_XID_APPLICATION)])
        await until(lambda: codes(health) == ["GPU_OFF_BUS"])
        # From before somebody was there to see it.
        assert health.conditions[0].since == START + 30
        first, second = await house.told("node.event")
        assert first.time == START + 30
        assert first.attributes == {
            "code": "GPU_OFF_BUS",
            "device": "card 3",
            "status": "CRITICAL",
            "item": "xid",
            "action": "REBOOT",
            "source": "kernel log",
            "card": "3",
            "uuid": "GPU-3",
            "number": "79",
        }
        assert second.attributes["number"] == "31"
    again = house.again()
    health = await again.load()
    assert again.looker.after == Position("one", 41)
    assert codes(health) == ["GPU_OFF_BUS"]
    assert again.looker.earlier_boots("GPU-3", 79) == 0


async def test_a_card_that_the_node_does_not_show_refuses_nobody(house: House):
    """As in a container, where the kernel's log is the host's."""
    async with house.running() as health:
        elsewhere = replace(xid(79, Code.GPU_OFF_BUS, card=None), device="0000:9d:00", bus_id="0000:9d:00")
        await house.looker.kernel.put([elsewhere])
        await until(lambda: codes(health) == ["GPU_OFF_BUS"])
        assert health.refusal([0, 3]) is None
        await until(lambda: house.faults() and not house.faults()["node"] and not house.faults()["cards"])


async def test_an_event_of_the_driver_is_no_position_in_the_kernel_log(house: House):
    async with house.running() as health:
        house.looker.position = Position("one", 41)
        house.looker.of_driver = [xid(48, Code.GPU_XID_RESET)]
        await house.driver.events.put([CardEvent(NVIDIA, 48, 3)])
        await until(lambda: codes(health) == ["GPU_XID_RESET"])
        await until(lambda: house.faults().get("cards", {}).keys() == {"3"})
    again = house.again()
    await again.load()
    assert again.looker.after is None


async def test_after_a_reboot_what_it_clears_is_gone_and_the_xids_are_counted(house: House):
    async with house.running() as health:
        house.looker.position = Position("one", 41)
        await house.looker.kernel.put([xid(79, Code.GPU_OFF_BUS)])
        await until(lambda: codes(health))
        await health.set_drain("a new fan", "ops")
    booted = house.again()
    booted.time = Time(house.time.now + 300, 20.0, "two")
    health = await booted.load()
    assert codes(health) == []
    assert booted.looker.after is None
    assert booted.looker.earlier_boots("GPU-3", 79) == 1
    assert booted.looker.earlier_boots("0000:03:00.0", 79) == 1
    assert booted.looker.earlier_boots("GPU-0", 79) == 0
    assert health.drain is not None
    (event,) = await house.told("node.condition_cleared")
    assert "has rebooted" in event.message


async def test_a_flood_is_reported_once_a_minute_with_its_number(house: House):
    async with house.running() as health:
        for _ in range(50):
            await house.looker.kernel.put([xid(31, Code.GPU_XID_APPLICATION, count=10)])
        await house.looker.kernel.put([xid(31, Code.GPU_XID_APPLICATION, card=0)])
        await house.looker.kernel.put([xid(79, Code.GPU_OFF_BUS)])
        await until(lambda: codes(health))
        events = await house.told("node.event")
        assert [(e.attributes["card"], e.attributes.get("count", "1")) for e in events] == [
            ("3", "10"),
            ("0", "1"),
            ("3", "1"),
        ]
        house.time.pass_(FLOOD_S)
        health.upkeep()
        rest = (await house.told("node.event"))[3:]
        assert [(e.attributes["card"], e.attributes["count"]) for e in rest] == [("3", "490")]
        assert rest[0].message.startswith("490 more, the last: card 3: GPU_XID_APPLICATION: ")
        house.time.pass_(FLOOD_S)
        health.upkeep()
        assert len(await house.told("node.event")) == 4


async def test_a_drain_outlives_the_daemon_and_is_reported(house: House):
    async with house.running() as health:
        await health.set_drain("a new fan", "ops")
        house.time.pass_(60)
        await health.set_drain("two new fans", "ops")
        await health.set_drain("two new fans", "ops")  # the same again is nothing new
        assert health.drain is not None
        assert (health.drain.reason, health.drain.since) == ("two new fans", START)
    again = house.again()
    async with again.running() as health:
        assert health.drain is not None and health.drain.reason == "two new fans"
        await health.undrain("ops")
        await health.undrain("ops")
        assert health.drain is None
    kinds = [event.kind for event in await house.told()]
    assert kinds == ["node.drained", "node.drained", "node.undrained"]
    assert (await house.again().load()).drain is None


async def test_a_full_disk_refuses_no_drain_but_says_that_a_restart_would_lose_it(
    house: House, monkeypatch: pytest.MonkeyPatch
):
    def full(path: Path, text: str, synced: bool) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("muster.agent.host.state_file.write_text", full)
    async with house.running() as health:
        with pytest.raises(NoRoom, match="would lose it"):
            await health.set_drain("a new fan", "ops")
        assert health.drain is not None
        assert "No space left" in health.trouble[0]
        house.looker.results["gpu-lost"] = [lost()]
        await until(lambda: codes(health) == ["GPU_LOST"])
        monkeypatch.undo()
        await until(lambda: health.trouble == [])


async def test_an_operator_clears_and_what_is_still_so_comes_back(house: House):
    async with house.running() as health:
        house.looker.results["gpu-lost"] = [lost(0), lost(3)]
        await until(lambda: len(health.conditions) == 2)
        house.looker.results.clear()
        await house.looker.kernel.put([xid(79, Code.GPU_OFF_BUS)])
        await until(lambda: len(health.conditions) == 3)
        (gone,) = await health.clear("GPU_LOST", "card 0", "ops")
        assert gone.card == 0
        assert house.looker.forgotten == [("GPU_LOST", "card 0")]
        await health.clear("GPU_OFF_BUS", "", "ops")
        (event, _) = await house.told("node.condition_cleared")
        assert event.attributes["by"] == "ops"
        assert "ops cleared it" in event.message
        await until(lambda: house.faults()["cards"].keys() == {"3"})
        with pytest.raises(ConditionNotFound, match="GPU_LOST of card 3"):
            await health.clear("GPU_LOST", "card 0", "ops")
        with pytest.raises(InvalidRequest, match="GPU_LOST") as caught:
            await health.clear("GPU_LSOT", "", "ops")
        assert caught.value.violations[0].field == "code"
        house.looker.results["gpu-lost"] = [lost(0)]
        await until(lambda: {c.card for c in health.conditions} == {0, 3})


async def test_a_drill_acts_as_a_real_one_and_is_marked_everywhere(house: House):
    async with house.running() as health:
        made = await health.inject("GPU_LOST", 3, "", "ops")
        assert (made.item, made.device, made.status, made.injected) == ("gpu-lost", "card 3", Status.CRITICAL, True)
        assert health.refusal([3]) == made
        assert "(injected for a drill)" in made.sentence()
        (event,) = await house.told("node.condition")
        assert event.attributes["injected"] == "true"
        assert "(injected for a drill)" in event.message
        await until(lambda: house.faults().get("cards", {}).get("3"))
        assert "(injected for a drill)" in house.faults()["cards"]["3"][0]
        # A look that finds nothing does not end a drill; its time does.
        looks = len(house.looker.looks)
        house.time.pass_(3000)
        await until(lambda: len(house.looker.looks) > looks + 10)
        health.upkeep()
        assert codes(health) == ["GPU_LOST"]
        house.time.pass_(600)
        health.upkeep()
        assert codes(health) == []
    assert "the drill has ended" in (await house.told("node.condition_cleared"))[0].message


async def test_a_drill_that_cannot_be_is_refused_with_the_reason(house: House):
    health = await house.load()
    for code, card, reason, field_, text in (
        ("GPU_LSOT", 3, "", "code", "GPU_LOST"),
        ("NODE_OK", 3, "", "code", "not the code of a condition"),
        ("GPU_XID_APPLICATION", 3, "", "code", "not the code of a condition"),
        ("GPU_LOST", 9, "", "card", "9: this node has cards 0, 3"),
        ("GPU_LOST", 3, "x" * 500, "reason", "500 characters"),
    ):
        with pytest.raises(InvalidRequest) as caught:
            await health.inject(code, card, reason, "ops")
        (violation,) = caught.value.violations
        assert violation.field == field_
        assert text in violation.description
    assert health.conditions == []


async def test_a_damaged_file_starts_anew_and_is_reported(house: House):
    (house.root.state / "node.json").write_text("{")
    health = await house.load()
    assert health.conditions == []
    assert "node.json: cannot be understood" in health.trouble[0]


async def test_the_checks_are_listed_with_why_they_do_not_apply(house: House):
    health = await house.load()
    assert [(check.item, why) for check, why in health.checks()] == [
        ("temperature", ""),
        ("ecc", "it has no ECC"),
        ("gpu-lost", ""),
        ("xid", ""),
    ]


async def test_what_is_kept_of_the_node_is_written_behind_its_events(house: House, monkeypatch: pytest.MonkeyPatch):
    """Else a daemon that is killed in between, or a machine that crashes, leaves a drain that no event tells of."""
    monkeypatch.setattr(event_store, "SHOW_S", 60.0)
    asked, answers = threading.Event(), threading.Event()

    def sync(_: int) -> None:
        asked.set()
        answers.wait(60)

    monkeypatch.setattr(os, "fdatasync", sync)

    def kept() -> Any:
        return json.loads(house.root.node.read_bytes())["drain"]

    try:
        answers.set()
        async with house.running() as health, anyio.create_task_group() as tasks:
            await until(house.root.node.exists)
            asked.clear()
            answers.clear()
            tasks.start_soon(health.set_drain, "a new fan", "me")
            await until(asked.is_set)
            assert [event.attributes["reason"] for event in await house.told("node.drained")] == ["a new fan"]
            assert kept() is None
            answers.set()
        assert kept()["reason"] == "a new fan"
    finally:
        answers.set()
