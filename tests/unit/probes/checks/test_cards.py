import threading
import time

import pytest

from muster.probes.calls.call_threads import in_turn
from muster.probes.cards.accelerator import Card, DriverError, Health, Reading, Trouble
from muster.probes.cards.driver import Driver, What
from muster.probes.cards.driver_settings import DriverSettings
from muster.probes.cards.no_cards import NoCards
from muster.probes.checks import card_checks
from muster.probes.checks.card_checks import CardAnswer, CardsWanted
from muster.probes.checks.result import Action, Code, Status

LOST = DriverError(Trouble.LOST, "GPU is lost", 15)


class Cards(NoCards):
    """Answers as it is told by card: an exception to raise, an event to wait for, a Health to give."""

    def __init__(self, count=8, kind="nvidia"):
        super().__init__(lambda: 0)
        self.kind, self.count = kind, count
        self.told = {}
        self.asked = []

    def open(self, ask=in_turn):
        if isinstance(self.told.get("open"), Exception):
            raise self.told["open"]
        if isinstance(self.told.get("open"), threading.Event):
            self.told["open"].wait(60)

    def cards(self):
        return [Card(i, self.kind, uuid=f"GPU-{i}") for i in range(self.count)]

    def read(self, index):
        self.asked.append(index)
        told = self.told.get(index)
        if isinstance(told, threading.Event):
            told.wait()
        elif isinstance(told, Exception):
            raise told
        return Reading()

    def health(self, index):
        told = self.told.get(("health", index), Health(npu_health=0))
        if isinstance(told, Exception):
            raise told
        return told


@pytest.fixture
async def make(tmp_path):
    made = []

    def make(backend, *, slots=0, deadline_s=60.0):
        driver = Driver(lambda: DriverSettings(deadline_s, slots), [backend], dev=tmp_path)
        made.append(driver)
        return driver

    yield make
    for driver in made:
        await driver.close()


async def check(wanted, driver, deadline_s=60.0):
    return await card_checks.check(wanted, driver, deadline_s=deadline_s)


async def test_without_a_wish_nobody_is_asked(make):
    backend = Cards()
    driver = make(backend)
    await driver.open()
    found = await check(CardsWanted(), driver)
    assert (found.status, found.code) == (Status.NOT_APPLICABLE, Code.CARDS_NOT_WANTED)
    assert "8 cards found" in found.reason and backend.asked == []


async def test_each_card_that_is_wanted_is_asked_and_named(make):
    backend = Cards()
    found = await check(CardsWanted(indices=(2, 5)), make(backend))
    assert (found.status, found.code, found.action) == (Status.OK, Code.CARDS_OK, Action.NONE)
    assert sorted(backend.asked) == [2, 5]
    assert found.observed == "nvidia: 2 of 2 cards answer (2 GPU-2, 5 GPU-5)"


async def test_a_count_means_the_first_that_are_there(make):
    backend = Cards(3)
    assert (await check(CardsWanted(count=2), make(backend))).status is Status.OK
    assert sorted(backend.asked) == [0, 1]


async def test_every_card_that_there_is(make):
    backend = Cards(3)
    assert (await check(CardsWanted(every=True), make(backend))).reason == "cards 0-2: present and answering"
    found = await check(CardsWanted(every=True), make(Cards(0)))
    assert (found.status, found.code) == (Status.NOT_APPLICABLE, Code.CARDS_NOT_WANTED)


async def test_a_missing_card_is_named_and_the_others_are_asked(make):
    backend = Cards(3)
    found = await check(CardsWanted(indices=(0, 1, 2, 3)), make(backend))
    assert (found.status, found.code, found.action) == (Status.CRITICAL, Code.CARDS_MISSING, Action.DRAIN)
    assert found.reason == "card 3: does not exist; this host shows cards 0-2"
    assert sorted(backend.asked) == [0, 1, 2]


@pytest.mark.parametrize(
    ("wanted", "count", "slots", "code"),
    [
        (CardsWanted(count=8), 7, 0, Code.CARDS_TOO_FEW),
        (CardsWanted(count=1), 0, 0, Code.CARDS_NONE_FOUND),
        (CardsWanted(indices=(0, 1)), 0, 0, Code.CARDS_NONE_FOUND),
        # The cards are gone, and what an operator configured for hosts without cards comes in their place.
        (CardsWanted(indices=(0, 1), kind="nvidia"), 0, 8, Code.CARDS_NONE_FOUND),
    ],
)
async def test_too_few_cards(make, wanted, count, slots, code):
    result = await check(wanted, make(Cards(count), slots=slots))
    assert (result.status, result.code, result.action) == (Status.CRITICAL, code, Action.DRAIN)
    assert f"{len(wanted)} wanted" in result.reason


async def test_slots_are_no_cards(make):
    driver = make(Cards(0), slots=4)
    found = await check(CardsWanted(indices=(0, 1), kind="slot"), driver)
    assert (found.status, found.code) == (Status.NOT_APPLICABLE, Code.CARDS_ARE_SLOTS)
    assert (await check(CardsWanted(count=2), driver)).code is Code.CARDS_ARE_SLOTS
    assert (await check(CardsWanted(every=True), driver)).reason.startswith("4 slots")


@pytest.mark.parametrize(
    ("error", "code", "status"),
    [
        (LOST, Code.CARDS_NO_ANSWER, Status.CRITICAL),
        (DriverError(Trouble.RESET_REQUIRED, "GPU is lost", 16), Code.CARDS_NO_ANSWER, Status.CRITICAL),
        (DriverError(Trouble.FAILED, "GPU is lost", 999), Code.CARDS_NO_ANSWER, Status.CRITICAL),
        (DriverError(Trouble.ABSENT, "GPU is lost", 2), Code.CARDS_NO_ANSWER, Status.CRITICAL),
        (DriverError(Trouble.NOT_TOLD, "GPU is lost", 20), Code.CARDS_NOT_TOLD, Status.UNKNOWN),
    ],
)
async def test_one_card_in_trouble(make, error, code, status):
    backend = Cards()
    backend.told[3] = error
    found = await check(CardsWanted(indices=tuple(range(8))), make(backend))
    assert (found.status, found.code) == (status, code)
    assert found.reason == "card 3: GPU is lost"
    assert found.observed.startswith("nvidia: 7 of 8 cards answer")
    assert found.action is (Action.DRAIN if status is Status.CRITICAL else Action.INVESTIGATE)


async def test_what_it_says_now_counts_and_not_what_was_read_before(make):
    backend = Cards(2)
    driver = make(backend)
    await driver.refresh(What.READINGS)
    backend.told[1] = LOST
    assert (await check(CardsWanted(every=True), driver)).code is Code.CARDS_NO_ANSWER
    backend.told.clear()
    assert (await check(CardsWanted(every=True), driver)).code is Code.CARDS_OK


@pytest.mark.parametrize(
    ("trouble", "code", "status"),
    [
        (Trouble.NO_LIBRARY, Code.CARDS_LIBRARY_MISSING, Status.CRITICAL),
        (Trouble.NO_DRIVER, Code.CARDS_DRIVER_FAILED, Status.CRITICAL),
        (Trouble.MISMATCH, Code.CARDS_DRIVER_FAILED, Status.CRITICAL),
        (Trouble.LOST, Code.CARDS_DRIVER_FAILED, Status.CRITICAL),
        (Trouble.NOT_TOLD, Code.CARDS_NOT_TOLD, Status.UNKNOWN),
    ],
)
@pytest.mark.parametrize("wanted", [CardsWanted(indices=(0, 1, 2, 5)), CardsWanted(every=True), CardsWanted(count=4)])
async def test_a_driver_in_trouble_is_reported_once_for_all_cards(make, tmp_path, wanted, trouble, code, status):
    for i in (0, 1, 2, 5):
        (tmp_path / f"nvidia{i}").touch()
    backend = Cards()
    backend.told["open"] = DriverError(trouble, "NVML says no", 9, of_driver=True)
    found = await check(wanted, make(backend))
    assert (found.status, found.code) == (status, code)
    assert found.reason == "cards 0-2,5: NVML says no"


async def test_a_driver_in_trouble_that_lists_no_card(make):
    backend = Cards()
    backend.told["open"] = DriverError(Trouble.NO_DRIVER, "NVML says no", 9, of_driver=True)
    for wanted in (CardsWanted(count=2), CardsWanted(indices=(0,)), CardsWanted(every=True)):
        found = await check(wanted, make(backend))
        assert (found.status, found.code) == (Status.CRITICAL, Code.CARDS_DRIVER_FAILED)
        assert found.reason == "NVML says no" and found.action is Action.DRAIN


async def test_a_driver_that_is_back_is_asked_at_once(make, monkeypatch):
    backend = Cards()
    backend.told["open"] = DriverError(Trouble.NO_DRIVER, "NVML says no", 9, of_driver=True)
    driver = make(backend)
    assert (await check(CardsWanted(count=2), driver)).status is Status.CRITICAL
    backend.told.clear()
    later = time.monotonic() + 1
    monkeypatch.setattr("muster.probes.cards.driver.time.monotonic", lambda: later)
    assert (await check(CardsWanted(count=2), driver)).status is Status.OK


async def test_a_card_that_hangs_is_unknown_and_hides_no_other(make):
    release = threading.Event()
    backend = Cards()
    driver = make(backend, deadline_s=1.5)
    await driver.open()
    try:
        backend.told[0] = release
        found = await check(CardsWanted(indices=(0, 1)), driver, deadline_s=1.5)
        assert (found.status, found.code) == (Status.UNKNOWN, Code.PROBE_TIMED_OUT)
        assert found.reason == "card 0: no answer within 1.5 s"
        backend.told[1] = LOST
        found = await check(CardsWanted(indices=(0, 1)), driver, deadline_s=1.5)
        assert (found.status, found.code) == (Status.CRITICAL, Code.CARDS_NO_ANSWER)
        assert "card 1: GPU is lost; card 0: an earlier call still hangs after" in found.reason
        assert backend.asked.count(0) == 1
    finally:
        release.set()


async def test_a_driver_that_hangs_is_unknown(make, tmp_path):
    for i in range(2):
        (tmp_path / f"nvidia{i}").touch()
    release = threading.Event()
    backend = Cards()
    backend.told["open"] = release
    try:
        found = await check(CardsWanted(indices=(0, 1)), make(backend, deadline_s=0.5), deadline_s=0.5)
        assert (found.status, found.code, found.action) == (
            Status.UNKNOWN,
            Code.PROBE_TIMED_OUT,
            Action.INVESTIGATE,
        )
        assert found.reason.startswith("cards 0-1: opening the driver: a call to its driver has not returned")
    finally:
        release.set()


async def test_a_driver_that_takes_longer_than_there_is_time_is_unknown(make):
    release = threading.Event()
    backend = Cards()
    backend.told["open"] = release
    try:
        driver = make(backend)
        found = await check(CardsWanted(count=2), driver, deadline_s=0.3)
        assert (found.status, found.code) == (Status.UNKNOWN, Code.PROBE_TIMED_OUT)
        assert found.reason == "no driver was found within 0.3 s"
    finally:
        release.set()
    assert (await check(CardsWanted(count=2), driver)).status is Status.OK


async def test_a_card_that_hangs_hides_no_alarm_of_another(make):
    release = threading.Event()
    backend = Cards(3, "ascend")
    backend.told |= {1: release, ("health", 2): Health(npu_health=3)}
    try:
        found = await check(CardsWanted(count=3), make(backend, deadline_s=2.0), deadline_s=2.0)
    finally:
        release.set()
    assert (found.status, found.code) == (Status.CRITICAL, Code.CARDS_UNHEALTHY)
    assert found.reason == "card 2: health 3 (critical alarm): `npu-smi info` shows more; card 1: no answer within 2 s"
    assert "0 GPU-0, health 0 (OK)" in found.observed


async def test_no_thread_to_be_had_says_nothing_against_a_card(make, monkeypatch):

    def refuse(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    found = await check(CardsWanted(indices=(0,)), make(Cards()), deadline_s=0.3)
    assert (found.status, found.code) == (Status.UNKNOWN, Code.CARDS_NOT_TOLD)


@pytest.mark.parametrize(
    ("health", "code", "words"),
    [
        (Health(npu_health=0), Code.CARDS_OK, "1 GPU-1, health 0 (OK)"),
        (Health(npu_health=1), Code.CARDS_OK, "1 GPU-1, health 1 (minor alarm)"),
        (Health(npu_health=2), Code.CARDS_UNHEALTHY, "card 1: health 2 (major alarm)"),
        (Health(npu_health=3), Code.CARDS_UNHEALTHY, "card 1: health 3 (critical alarm)"),
        (Health(), Code.CARDS_OK, "1 GPU-1"),
        (
            Health(untold={"npu_health": "gives -8005"}),
            Code.CARDS_NOT_TOLD,
            "card 1: its health is unknown: gives -8005",
        ),
        (DriverError(Trouble.LOST, "not ready", -8012), Code.CARDS_NO_ANSWER, "card 1: not ready"),
        (DriverError(Trouble.NOT_TOLD, "no permission", -8002), Code.CARDS_NOT_TOLD, "card 1: no permission"),
    ],
)
async def test_health_of_ascend_cards(make, health, code, words):
    backend = Cards(2, "ascend")
    backend.told["health", 1] = health
    found = await check(CardsWanted(count=2), make(backend))
    assert found.code is code
    assert words in f"{found.reason} {found.observed}"


def test_what_is_certain_comes_first():
    late, gone = (
        CardAnswer(Code.PROBE_TIMED_OUT, "no answer within 1 s"),
        CardAnswer(Code.CARDS_NO_ANSWER, "GPU is lost"),
    )
    found = card_checks.judge("nvidia", {0: late, 1: gone, 2: gone, 3: CardAnswer(Code.CARDS_OK, "GPU-3")})
    assert (found.status, found.code) == (Status.CRITICAL, Code.CARDS_NO_ANSWER)
    assert found.reason == "cards 1-2: GPU is lost; card 0: no answer within 1 s"
    assert found.observed == "nvidia: 1 of 4 cards answer (3 GPU-3)"
