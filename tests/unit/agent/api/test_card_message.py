"""Cards as they are shown: what is old is left out, and a card that does not answer is not well."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from muster.agent.api.services import ServerContext
from muster.agent.api.services.card_message import cards_of
from muster.agent.config.schema import Config
from muster.agent.jobs.cards.leases import Lease
from muster.agent.node.conditions import Condition
from muster.agent.telemetry.freshness import OLD_S
from muster.probes.cards.accelerator import NVIDIA, Card, Health, Holder, Reading, Trouble
from muster.probes.cards.driver import Seen, Sick, View
from muster.probes.checks.result import Action, Status
from muster.v1 import node_pb2

NOW = 1_900_000_000.0
CARD = Card(0, NVIDIA, uuid="GPU-0")
#: Ours, as the kernel has it.
NAME = Path("/proc/self/comm").read_text().strip()
SICK = Sick(Trouble.HANG, "a call has not returned", NOW)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muster.agent.api.services.card_message.time", SimpleNamespace(time=lambda: NOW))


def view(reading: float | None = None, health: float | None = None, holders: float | None = None) -> View:
    """Read so many seconds ago."""
    return View(
        NVIDIA,
        "570",
        {0: CARD},
        {} if reading is None else {0: Seen(NOW - reading, Reading(util=50.0, mem_used=5))},
        {} if health is None else {0: Seen(NOW - health, Health(temp_c=40.0))},
        {} if holders is None else {0: Seen(NOW - holders, (Holder(os.getpid(), 7),))},
    )


async def shown(view: View, *conditions: Condition) -> node_pb2.Card:
    context = SimpleNamespace(
        driver=SimpleNamespace(view=view),
        registry=SimpleNamespace(leasing=SimpleNamespace(all=lambda: [Lease(CARD)])),
        health=SimpleNamespace(conditions=list(conditions)),
        config=Config,
    )
    (card,) = await cards_of(cast("ServerContext", context))
    return card


def condition(status: Status, card: int | None = 0) -> Condition:
    return Condition("x", "card 0", status, "GPU_LOST", "it is so", NOW, NOW, action=Action.REBOOT, card=card)


async def test_what_was_read_lately_is_shown_with_the_newest_time():
    reading = (await shown(view(reading=2, health=20, holders=100))).reading
    assert (reading.utilization, reading.temperature, reading.at.ToSeconds()) == (50, 40, NOW - 2)
    assert reading.processes_known
    assert [(p.pid, p.memory_bytes) for p in reading.processes] == [(os.getpid(), 7)]
    assert reading.processes[0].command == NAME, "without its arguments, which may be secrets"


async def test_each_part_is_left_out_when_it_is_old_by_its_own_time():
    reading = (await shown(view(reading=OLD_S + 1, health=40, holders=100))).reading
    assert not reading.HasField("utilization") and not reading.HasField("memory_used_bytes")
    assert reading.temperature == 40
    assert reading.processes_known
    assert reading.at.ToSeconds() == NOW - 40  # of what is shown
    reading = (await shown(view(reading=1, health=61, holders=241))).reading
    assert reading.utilization == 50
    assert not reading.HasField("temperature")
    assert not reading.processes_known and not reading.processes


async def test_of_a_card_of_which_everything_is_old_there_is_no_reading():
    assert not (await shown(view(reading=1000, health=1000, holders=1000))).HasField("reading")
    assert not (await shown(view())).HasField("reading")


@pytest.mark.parametrize(
    ("conditions", "well", "silent"),
    [
        ([], "OK", "UNKNOWN"),
        ([Status.WARN], "WARN", "UNKNOWN"),
        ([Status.UNKNOWN], "UNKNOWN", "UNKNOWN"),
        ([Status.WARN, Status.CRITICAL], "CRITICAL", "CRITICAL"),
    ],
)
async def test_a_card_that_does_not_answer_is_not_ok(conditions: list[Status], well: str, silent: str):
    found = [condition(status) for status in conditions]
    here, there = view(reading=1), {0: CARD}
    assert (await shown(here, *found)).health == well
    assert (await shown(View(NVIDIA, "570", there, here.readings, sick={0: SICK}), *found)).health == silent
    assert (await shown(View(NVIDIA, "570", there, driver=SICK), *found)).health == silent


async def test_what_is_wrong_elsewhere_is_not_the_cards():
    other = condition(Status.CRITICAL, card=None)
    assert (await shown(View(NVIDIA, "570", {0: CARD}, sick={1: SICK}), other)).health == "OK"
