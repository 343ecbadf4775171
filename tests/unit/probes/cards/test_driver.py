"""The driver over a vendor's backend that does as a test says: answers, raises, or waits for an event."""

import threading
import time

import anyio
import anyio.lowlevel
import pytest

from muster.probes.calls import call_threads
from muster.probes.calls.call_threads import in_turn
from muster.probes.cards import driver as module
from muster.probes.cards.accelerator import Backend, Card, CardEvent, DriverError, Health, Holder, Reading, Trouble
from muster.probes.cards.driver import Driver, What
from muster.probes.cards.driver_settings import DriverSettings
from tests.conftest import eventually

LOST = DriverError(Trouble.LOST, "it fell off the bus", 15)
GONE = DriverError(Trouble.NO_DRIVER, "not loaded", 9, of_driver=True)


class Cards(Backend):
    """`says` has by (function, card) an exception to raise or a gate to wait at; the card is None for `open`, `cards`
    and `events`. `calls` counts."""

    kind = "nvidia"

    def __init__(self, count=4):
        self.count = count
        self.says = {}
        self.calls = []
        self.threads = set()
        self.events = []
        self.is_open = False

    def _do(self, function, card=None):
        self.calls.append((function, card))
        self.threads.add(threading.current_thread())
        said = self.says.get((function, card))
        if isinstance(said, threading.Event):
            assert said.wait(60)
        elif said is not None:
            raise said

    def asked(self, function):
        return [card for name, card in self.calls if name == function]

    def open(self, ask=in_turn):
        self._do("open")
        self.is_open = True

    def close(self):
        self._do("close")
        self.is_open = False

    def version(self):
        return "570.1"

    def cards(self):
        self._do("cards")
        return [Card(i, self.kind) for i in range(self.count)]

    def describe(self, card):
        self._do("describe", card.index)
        return Card(card.index, self.kind, uuid=f"GPU-{card.index}")

    def peers(self, indices):
        self._do("peers")
        return {i: tuple(j for j in indices if j != i) for i in indices}

    def read(self, index):
        self._do("read", index)
        return Reading(util=float(index))

    def health(self, index):
        self._do("health", index)
        return Health(temp_c=50.0 + index)

    def holders(self, index):
        self._do("holders", index)
        return [Holder(100 + index)]

    def wait_events(self, timeout_s):
        self._do("events")
        time.sleep(0.001)
        events, self.events = self.events, []
        return events


class Clock:
    """Time passes for the pauses between two openings as a test lets it."""

    def __init__(self, monkeypatch):
        self.ahead = 0.0
        monotonic = time.monotonic
        monkeypatch.setattr("muster.probes.cards.driver.time.monotonic", lambda: monotonic() + self.ahead)


@pytest.fixture
def backend():
    backend = Cards()
    yield backend
    for said in backend.says.values():
        if isinstance(said, threading.Event):
            said.set()


class Maker:
    """Makes drivers. Their deadline may be changed: what does not hang has all the time that a busy machine needs."""

    def __init__(self, dev):
        self.dev, self.made = dev, []
        self.deadline_s = 30.0

    def __call__(self, *backends, deadline_s=30.0, slots=0, nodes=()):
        self.deadline_s = deadline_s
        for node in nodes:
            (self.dev / node).touch()
        self.made.append(Driver(lambda: DriverSettings(self.deadline_s, slots), backends, dev=self.dev))
        return self.made[-1]


@pytest.fixture
async def make(tmp_path):
    dev = tmp_path / "dev"
    dev.mkdir()
    maker = Maker(dev)
    yield maker
    for driver in maker.made:
        await driver.close()


# --- what is there ----------------------------------------------------------------------------------------------------


async def test_before_it_is_opened_nothing_is_known(make, backend):
    view = make(backend).view
    assert (view.kind, view.cards, view.driver) == ("slot", {}, None)


async def test_cards_and_what_is_read_of_them(make, backend):
    driver = make(backend)
    view = await driver.open()
    assert (view.kind, view.version, view.driver, view.sick) == ("nvidia", "570.1", None, {})
    assert [card.uuid for card in view.cards.values()] == ["GPU-0", "GPU-1", "GPU-2", "GPU-3"]
    assert view.cards[1].peers == (0, 2, 3)
    assert view.readings == {}
    before = time.time()
    view = await driver.refresh(What.READINGS)
    assert {i: seen.value.util for i, seen in view.readings.items()} == {0: 0, 1: 1, 2: 2, 3: 3}
    assert all(before <= seen.at <= time.time() for seen in view.readings.values())
    view = await driver.refresh(What.HEALTH, [1, 3, 17])
    assert {i: seen.value.temp_c for i, seen in view.health.items()} == {1: 51, 3: 53}
    view = await driver.refresh(What.HOLDERS)
    assert view.holders[2].value == (Holder(102),)
    assert set(view.readings) == {0, 1, 2, 3} and set(view.health) == {1, 3}


async def test_a_view_is_never_changed(make, backend):
    driver = make(backend)
    await driver.open()
    before = await driver.refresh(What.READINGS)
    kept = dict(before.readings)
    backend.says["read", 1] = LOST
    assert 1 not in (await driver.refresh(What.READINGS)).readings
    assert before.readings == kept and before.sick == {}


async def test_one_thread_asks_all_cards(make, monkeypatch):
    monkeypatch.setattr(call_threads, "PATIENCE_S", 60.0)  # however slow this machine is
    backend = Cards(64)
    driver = make(backend)
    await driver.open()
    for what in What:
        await driver.refresh(what)
    assert len(driver.view.readings) == len(driver.view.holders) == 64
    assert len(backend.threads) == 1


async def test_refresh_opens_what_nobody_opened(make, backend):
    view = await make(backend).refresh(What.READINGS)
    assert set(view.readings) == {0, 1, 2, 3} and view.cards[3].uuid == "GPU-3"


async def test_the_first_backend_with_cards_is_it(make, backend):
    without, second = Cards(), Cards(2)
    without.says["open", None] = DriverError(Trouble.NO_LIBRARY, "none", 12, of_driver=True)
    second.kind = "ascend"
    view = await make(without, second, backend).open()
    assert (view.kind, len(view.cards), view.driver) == ("ascend", 2, None)
    assert backend.calls == []


async def test_a_library_without_cards_is_closed_again(make, backend):
    none, backend.kind = Cards(0), "ascend"
    assert (await make(none, backend).open()).kind == "ascend"
    assert not none.is_open


async def test_a_card_that_comes_back_is_listed_when_somebody_asks(make, backend):
    driver = make(backend)
    await driver.open()
    backend.count = 5
    await driver.refresh(What.READINGS)
    assert len(driver.view.cards) == 4
    assert len((await driver.relist()).cards) == 5
    opened = len(backend.asked("open"))
    await driver.relist()
    assert len(backend.asked("open")) == opened
    await driver.relist(anew=True)
    assert len(backend.asked("open")) == opened + 1 and len(driver.view.cards) == 5


async def test_who_asks_a_driver_that_does_not_answer_which_cards_there_are_changes_nothing(make, backend):
    driver = make(backend)
    await driver.open()
    backend.says["cards", None] = DriverError(Trouble.FAILED, "unknown error", 999)
    assert len((await driver.relist()).cards) == 4
    assert driver.view.driver is None


async def test_a_host_without_cards_has_slots(make, backend):
    backend.says["open", None] = DriverError(Trouble.NO_LIBRARY, "none", 12, of_driver=True)
    driver = make(backend, slots=3)
    view = await driver.open()
    assert (view.kind, list(view.cards), view.cards[2].kind, view.driver) == ("slot", [0, 1, 2], "slot", None)
    assert (await driver.refresh(What.READINGS)).readings == {}


async def test_slots_follow_the_settings(tmp_path):
    slots = [2]
    driver = Driver(lambda: DriverSettings(30.0, slots[0]), [], dev=tmp_path)
    assert len((await driver.open()).cards) == 2
    slots[0] = 5
    assert len((await driver.refresh(What.READINGS)).cards) == 5
    slots[0] = 0
    assert (await driver.refresh(What.READINGS)).cards == {}
    await driver.close()


async def test_cards_that_come_to_a_host_without_any(make, backend, monkeypatch):
    clock = Clock(monkeypatch)
    backend.says["open", None] = DriverError(Trouble.NO_LIBRARY, "none", 12, of_driver=True)
    driver = make(backend, slots=1)
    assert (await driver.open()).kind == "slot"
    backend.says.clear()
    assert (await driver.refresh(What.READINGS)).kind == "slot"
    clock.ahead += module.LOOK_S
    assert set((await driver.refresh(What.READINGS)).readings) == {0, 1, 2, 3}


async def test_cards_without_their_library_are_known_by_their_nodes(make, backend):
    backend.says["open", None] = DriverError(Trouble.NO_LIBRARY, "libnvidia-ml.so.1 is not found", 12, of_driver=True)
    driver = make(backend, slots=9, nodes=("nvidia0", "nvidia3", "nvidiactl", "null"))
    view = await driver.open()
    assert (view.kind, list(view.cards)) == ("nvidia", [0, 3])
    assert view.cards[3].node.endswith("/nvidia3")
    assert view.driver.trouble is Trouble.NO_LIBRARY
    assert (await driver.refresh(What.READINGS)).readings == {}


async def test_nodes_of_which_the_driver_has_no_card(make):
    backend = Cards(0)
    backend.says["read", 0] = DriverError(Trouble.ABSENT, "no card of this number", 2)
    driver = make(backend, nodes=("nvidia0",))
    assert (await driver.open()).driver is None
    assert (await driver.refresh(What.READINGS)).sick[0].trouble is Trouble.ABSENT


@pytest.mark.parametrize("trouble", [Trouble.NO_DRIVER, Trouble.MISMATCH, Trouble.FAILED])
@pytest.mark.parametrize("slots", [0, 4])
async def test_a_library_alone_is_no_sign_of_cards(make, backend, slots, trouble):
    backend.says["open", None] = DriverError(trouble, "not well", of_driver=True)
    view = await make(backend, slots=slots).open()
    assert (view.kind, len(view.cards)) == ("slot" if slots else "nvidia", slots)
    assert (view.driver and view.driver.trouble) == (None if slots else trouble)


@pytest.mark.parametrize("trouble", [Trouble.NO_DRIVER, Trouble.MISMATCH, Trouble.FAILED])
async def test_a_driver_in_trouble_with_device_nodes_has_cards_with_any_configuration(make, backend, trouble):
    backend.says["open", None] = DriverError(trouble, "not well", of_driver=True)
    view = await make(backend, slots=4, nodes=("nvidia0", "nvidia1")).open()
    assert (view.kind, list(view.cards), view.driver.trouble) == ("nvidia", [0, 1], trouble)


async def test_a_defect_of_a_backend_is_a_trouble_and_no_exception(make, backend):
    backend.says |= {("read", 1): ZeroDivisionError("by zero"), ("describe", 2): KeyError("two")}
    driver = make(backend)
    assert (await driver.open()).cards[2].uuid == ""
    view = await driver.refresh(What.READINGS)
    assert view.sick[1].trouble is Trouble.FAILED and "ZeroDivisionError: by zero" in view.sick[1].text
    backend.says = {("open", None): ZeroDivisionError("by zero")}
    assert "ZeroDivisionError" in (await driver.open()).driver.text


# --- cards in trouble -------------------------------------------------------------------------------------------------


async def test_a_lost_card_hides_no_other(make, backend):
    driver = make(backend)
    await driver.open()
    await driver.refresh(What.READINGS)
    backend.says["read", 2] = LOST
    before = time.time()
    view = await driver.refresh(What.READINGS)
    assert set(view.readings) == {0, 1, 3} and set(view.sick) == {2}
    since = view.sick[2].since
    assert (view.sick[2].trouble, view.sick[2].text, view.driver) == (Trouble.LOST, "it fell off the bus", None)
    assert before <= since <= time.time()
    # The first failure in a row counts, and the next good answer ends it.
    assert (await driver.refresh(What.READINGS)).sick[2].since == since
    backend.says.clear()
    view = await driver.refresh(What.READINGS)
    assert view.sick == {} and view.readings[2].value.util == 2


async def test_a_good_reading_does_not_hide_bad_health(make, backend):
    driver = make(backend)
    await driver.open()
    backend.says["health", 0] = DriverError(Trouble.RESET_REQUIRED, "reset it", 16)
    await driver.refresh(What.HEALTH)
    view = await driver.refresh(What.READINGS)
    assert view.sick[0].trouble is Trouble.RESET_REQUIRED and set(view.readings) == {0, 1, 2, 3}
    backend.says["read", 0] = LOST
    assert (await driver.refresh(What.READINGS)).sick[0].trouble is Trouble.LOST
    backend.says.clear()
    await driver.refresh(What.READINGS)
    assert driver.view.sick[0].trouble is Trouble.RESET_REQUIRED
    assert (await driver.refresh(What.HEALTH)).sick == {}


async def test_a_card_that_does_not_tell_its_holders_is_not_sick(make, backend):
    driver = make(backend)
    await driver.open()
    untold = DriverError(Trouble.NOT_TOLD, "not supported", 3)
    backend.says |= {("holders", 0): untold, ("holders", 1): LOST, ("read", 2): untold}
    # Nor is a card whose list alone fails: a container may not be allowed to see it.
    backend.says["holders", 3] = DriverError(Trouble.FAILED, "internal error", -8005)
    await driver.refresh(What.READINGS)
    view = await driver.refresh(What.HOLDERS)
    assert set(view.holders) == {2}
    assert {i: sick.trouble for i, sick in view.sick.items()} == {1: Trouble.LOST, 2: Trouble.NOT_TOLD}


async def test_a_card_that_was_lost_from_the_start_says_later_who_it_is(make, backend):
    backend.says |= {("describe", 1): LOST, ("read", 1): LOST}
    driver = make(backend)
    view = await driver.open()
    assert view.cards[1] == Card(1, "nvidia") and view.sick[1].trouble is Trouble.LOST
    assert view.cards[0].peers == (2, 3)
    backend.says.clear()
    view = await driver.refresh(What.READINGS)
    assert view.cards[1].uuid == "GPU-1" and view.sick == {}
    assert view.cards[1].peers == (0, 2, 3) and view.cards[0].peers == (1, 2, 3)


async def test_links_that_are_not_told_in_time_are_asked_for_again(make, backend):
    gate = backend.says["peers", None] = threading.Event()
    driver = make(backend, deadline_s=1.0)
    view = await driver.open()
    assert view.driver is None and view.cards[0].uuid == "GPU-0" and view.cards[0].peers == ()
    view = await driver.refresh(What.READINGS)
    assert set(view.readings) == {0, 1, 2, 3} and view.sick == {} and view.cards[0].peers == ()
    gate.set()
    with anyio.fail_after(60):
        while not (view := await driver.refresh(What.READINGS)).cards[0].peers:
            await anyio.lowlevel.checkpoint()
    assert [card.peers for card in view.cards.values()] == [(1, 2, 3), (0, 2, 3), (0, 1, 3), (0, 1, 2)]
    asked = backend.asked("peers")
    await driver.refresh(What.READINGS)
    assert backend.asked("peers") == asked


async def test_links_that_cannot_be_told_are_not_asked_for_again(make, backend):
    backend.says["peers", None] = DriverError(Trouble.NOT_TOLD, "not supported", 3)
    driver = make(backend)
    await driver.open()
    view = await driver.refresh(What.READINGS)
    assert view.cards[0].peers == () and view.sick == {} and len(backend.asked("peers")) == 1


# --- cards that hang --------------------------------------------------------------------------------------------------


async def test_a_card_that_hangs_hides_no_other_and_comes_back(make, backend):
    driver = make(backend)
    await driver.open()
    for what in What:
        await driver.refresh(what)
    gate = backend.says["read", 1] = threading.Event()
    make.deadline_s = 1.0
    began = time.time()
    view = await driver.refresh(What.READINGS)
    assert time.time() - began >= 0.9
    assert set(view.readings) == {0, 2, 3} and set(view.sick) == {1}
    assert view.sick[1].trouble is Trouble.HANG and began - 5 < view.sick[1].since < time.time()
    # Nothing of it is left, and nobody waits for it again.
    assert set(view.health) == set(view.holders) == {0, 2, 3}
    asked = backend.asked("read").count(1)
    view = await driver.refresh(What.HEALTH)
    assert set(view.health) == {0, 2, 3} and ("health", 1) not in backend.calls[-4:]
    assert (await driver.refresh(What.READINGS)).sick[1].since == view.sick[1].since
    assert backend.asked("read").count(1) == asked
    make.deadline_s = 30.0
    del backend.says["read", 1]
    gate.set()
    eventually(lambda: not driver.call_threads.busy)
    view = await driver.refresh(What.READINGS)
    assert view.sick == {} and set(view.readings) == {0, 1, 2, 3}


async def test_a_short_deadline_gives_up_without_a_verdict(make, backend):
    """A sampler does not wait for long: the card has no reading now, and hangs only once it has had its time."""
    driver = make(backend)
    await driver.open()
    gate = backend.says["read", 0] = threading.Event()
    make.deadline_s = 2.0
    view = await driver.refresh(What.READINGS, deadline_s=0.8)
    assert set(view.readings) == {1, 2, 3} and view.sick == {}
    with anyio.fail_after(60):
        while 0 not in (await driver.refresh(What.READINGS, deadline_s=0.8)).sick:
            await anyio.lowlevel.checkpoint()
    assert driver.view.sick[0].trouble is Trouble.HANG and set(driver.view.readings) == {1, 2, 3}
    gate.set()


@pytest.mark.slow
async def test_all_cards_hang(make):
    backend = Cards(64)
    driver = make(backend)
    await driver.open()
    gate = threading.Event()
    backend.says |= {("read", i): gate for i in range(64)}
    make.deadline_s = 2.0
    try:
        view = await driver.refresh(What.READINGS)
        assert set(view.sick) == set(range(64)) and view.readings == {}
        with anyio.fail_after(60):
            for what in What:
                await driver.refresh(what)
        assert driver.call_threads.threads <= 64 + 2
        assert len(backend.asked("read")) == 64 and backend.asked("health") == []
    finally:
        gate.set()
        backend.says.clear()
    make.deadline_s = 30.0
    eventually(lambda: driver.call_threads.threads == 1)
    assert len((await driver.refresh(What.READINGS)).readings) == 64


async def test_a_card_that_hangs_from_the_start(make, backend):
    gate = backend.says["describe", 1] = backend.says["read", 1] = threading.Event()
    driver = make(backend, deadline_s=2.0)
    view = await driver.open()
    assert view.driver is None and [card.uuid for card in view.cards.values()] == ["GPU-0", "", "GPU-2", "GPU-3"]
    view = await driver.refresh(What.READINGS)
    assert set(view.readings) == {0, 2, 3} and view.sick[1].trouble is Trouble.HANG
    make.deadline_s = 30.0
    backend.says.clear()
    gate.set()
    eventually(lambda: not driver.call_threads.busy)
    assert (await driver.refresh(What.READINGS)).cards[1].uuid == "GPU-1"


async def test_a_driver_that_hangs_when_it_is_opened(make, backend, monkeypatch):
    clock = Clock(monkeypatch)
    gate = backend.says["open", None] = threading.Event()
    driver = make(backend, deadline_s=0.5, nodes=("nvidia0", "nvidia1"))
    view = await driver.open()
    assert (view.kind, list(view.cards), view.driver.trouble) == ("nvidia", [0, 1], Trouble.HANG)
    for _ in range(3):
        clock.ahead += module.REOPEN_S
        with anyio.fail_after(60):
            again = await driver.refresh(What.READINGS)
        assert again.driver.trouble is Trouble.HANG and again.driver.since == view.driver.since
    assert backend.asked("open") == [None]
    make.deadline_s = 30.0
    gate.set()
    eventually(lambda: not driver.call_threads.busy)
    clock.ahead += module.REOPEN_S
    view = await driver.refresh(What.READINGS)
    assert view.driver is None and set(view.readings) == {0, 1, 2, 3}
    assert backend.asked("open") == [None]  # what the slow opening found was taken


async def test_a_hanging_driver_without_nodes_says_which_it_is(make, backend):
    gate = backend.says["cards", None] = threading.Event()
    view = await make(backend, deadline_s=0.3).open()
    assert (view.kind, view.cards, view.driver.trouble) == ("nvidia", {}, Trouble.HANG)
    gate.set()


async def test_a_slow_opening_is_no_hang_for_a_short_refresh(make, backend, monkeypatch):
    clock = Clock(monkeypatch)
    driver = make(backend)
    await driver.open()
    backend.says["read", 0] = GONE
    assert (await driver.refresh(What.READINGS)).driver.trouble is Trouble.NO_DRIVER
    backend.says.clear()
    gate = backend.says["open", None] = threading.Event()
    clock.ahead += module.REOPEN_S
    assert (await driver.refresh(What.READINGS, deadline_s=0.1)).driver.trouble is Trouble.NO_DRIVER
    gate.set()
    eventually(lambda: not driver.call_threads.busy)
    # No second opening, and no pause before what the first one found is taken.
    assert (await driver.refresh(What.READINGS, deadline_s=30)).driver is None
    assert backend.asked("open") == [None, None]


# --- drivers that go and come -----------------------------------------------------------------------------------------


async def test_a_driver_that_is_unloaded_and_back(make, backend, monkeypatch):
    clock = Clock(monkeypatch)
    driver = make(backend, slots=2)
    await driver.open()
    for what in What:
        await driver.refresh(what)
    backend.says |= {("read", i): GONE for i in range(4)} | {("open", None): GONE}
    view = await driver.refresh(What.READINGS)
    assert view.driver.trouble is Trouble.NO_DRIVER and (view.readings, view.health, view.holders) == ({}, {}, {})
    # The cards are still this host's, and so are their holders.
    assert [card.uuid for card in view.cards.values()] == ["GPU-0", "GPU-1", "GPU-2", "GPU-3"]
    tries = len(backend.asked("open"))
    clock.ahead += module.REOPEN_S
    view = await driver.refresh(What.READINGS)
    assert (view.kind, len(view.cards), view.driver.text) == ("nvidia", 4, "not loaded")
    assert len(backend.asked("open")) == tries + 1
    await driver.refresh(What.READINGS)
    assert len(backend.asked("open")) == tries + 1
    backend.says.clear()
    clock.ahead += module.REOPEN_S
    view = await driver.refresh(What.READINGS)
    assert view.driver is None and set(view.readings) == {0, 1, 2, 3} and view.sick == {}


async def test_who_wants_cards_now_does_not_wait_for_the_next_look(make, backend, monkeypatch):
    clock = Clock(monkeypatch)
    backend.says["open", None] = GONE
    driver = make(backend)
    await driver.open()
    backend.says.clear()
    assert (await driver.refresh(What.READINGS)).driver is not None
    clock.ahead += 0.5
    assert (await driver.ready()).driver is None
    opened = len(backend.asked("open"))
    await driver.ready()
    assert len(backend.asked("open")) == opened


async def test_a_driver_that_answers_for_no_card_is_opened_anew_more_and_more_rarely(make, backend, monkeypatch):
    """Reloaded under us it gives every card an unknown error until it is opened again."""
    clock = Clock(monkeypatch)
    driver = make(backend)
    await driver.open()
    unknown = DriverError(Trouble.FAILED, "Unknown Error (999)", 999)
    backend.says |= {("read", i): unknown for i in range(4)}
    opened = []
    for _ in range(100):
        clock.ahead += 5
        await driver.refresh(What.READINGS)
        opened.append(len(backend.asked("open")))
    assert opened[1] == 2  # at once
    assert 100 * 5 / module.RAREST_S <= opened[-1] <= 15
    assert {sick.trouble for sick in driver.view.sick.values()} == {Trouble.FAILED}
    backend.says.clear()
    assert set((await driver.refresh(What.READINGS)).readings) == {0, 1, 2, 3}
    clock.ahead += 1000
    await driver.refresh(What.READINGS)
    assert len(backend.asked("open")) == opened[-1]


async def test_one_good_card_keeps_the_driver_open(make, backend, monkeypatch):
    clock = Clock(monkeypatch)
    driver = make(backend)
    await driver.open()
    backend.says |= {("read", i): LOST for i in range(3)}
    for _ in range(5):
        clock.ahead += 100
        await driver.refresh(What.READINGS)
    assert backend.asked("open") == [None]


async def test_a_driver_that_lists_no_cards_any_more(make, backend):
    driver = make(backend)
    await driver.open()
    backend.count = 0
    view = await driver.open()
    assert view.driver.trouble is Trouble.ABSENT and len(view.cards) == 4


# --- events, and the end ----------------------------------------------------------------------------------------------


async def test_events_come_from_a_thread_of_their_own(make, backend):
    driver = make(backend)
    await driver.open()
    gate = backend.says["read", 0] = threading.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(driver.refresh, What.READINGS)
        xid = CardEvent("nvidia", 79, 3, "0000:9d:00.0", "Xid 79")
        backend.events = [xid]
        with anyio.fail_after(60):
            assert await driver.wait_events() == [xid]
        gate.set()


async def test_no_event_is_lost_when_who_waits_is_cancelled(make, backend):
    driver = make(backend)
    await driver.open()
    with anyio.move_on_after(0.05):
        await driver.wait_events()
    backend.events = [CardEvent("nvidia", 48, 0)]
    eventually(lambda: not backend.events)
    with anyio.fail_after(60):
        assert [event.code for event in await driver.wait_events()] == [48]


async def test_a_driver_without_events_keeps_nobody_busy(make, backend, monkeypatch):
    driver = make(backend)
    await driver.open()
    backend.says["events", None] = DriverError(Trouble.NOT_TOLD, "no events")
    slept = []

    async def sleep(seconds):
        slept.append(seconds)

    monkeypatch.setattr("muster.probes.cards.listening.anyio.sleep", sleep)
    with anyio.fail_after(60):
        assert await driver.wait_events() == []
    assert slept and slept[0] >= 5 and backend.asked("events") == [None]


async def test_events_of_a_host_without_cards(make, monkeypatch):
    slept = []

    async def sleep(seconds):
        slept.append(seconds)

    driver = make(slots=2)
    await driver.open()
    monkeypatch.setattr("muster.probes.cards.driver.anyio.sleep", sleep)
    assert await driver.wait_events() == [] and slept


async def test_closing_gives_the_driver_back_and_leaves_no_thread(make, backend):
    driver = make(backend)
    await driver.open()
    await driver.refresh(What.READINGS)
    with anyio.move_on_after(0.05):
        await driver.wait_events()
    await driver.close()
    assert not backend.is_open
    eventually(lambda: not any(thread.is_alive() for thread in backend.threads))


async def test_what_is_closed_is_not_opened_again(make, backend, monkeypatch):
    clock = Clock(monkeypatch)
    backend.says["open", None] = GONE
    driver = make(backend)
    await driver.open()
    await driver.close()
    backend.says.clear()
    clock.ahead += 1000
    assert (await driver.refresh(What.READINGS)).driver is not None and not backend.is_open


async def test_closing_while_a_card_hangs(make, backend):
    driver = make(backend)
    await driver.open()
    gate = backend.says["read", 0] = threading.Event()
    make.deadline_s = 0.5
    await driver.refresh(What.READINGS)
    with anyio.fail_after(60):
        await driver.close()
    assert backend.is_open  # a library is not closed under a call that is in it
    gate.set()
    eventually(lambda: not any(thread.is_alive() for thread in backend.threads))


def test_a_hanging_driver_does_not_keep_the_process_from_ending(tmp_path):
    backend = Cards()
    gate = backend.says["open", None] = threading.Event()

    async def main():
        driver = Driver(lambda: DriverSettings(0.2), [backend], dev=tmp_path)
        await driver.open()
        await driver.close()

    anyio.run(main)
    assert all(thread.daemon for thread in backend.threads)
    gate.set()
    eventually(lambda: not any(thread.is_alive() for thread in backend.threads))


async def test_a_driver_that_is_kept_closed_shows_the_device_nodes_until_it_is_opened(tmp_path):
    for number in range(2):
        (tmp_path / f"nvidia{number}").touch()
    backend = Cards(2)
    driver = Driver(lambda: DriverSettings(30.0), [backend], dev=tmp_path, closed="it crashed")
    for view in (driver.view, await driver.open(), await driver.ready(), await driver.refresh(What.READINGS)):
        assert (view.kind, list(view.cards)) == ("nvidia", [0, 1])
        assert view.driver is not None and view.driver.trouble is Trouble.FAILED and view.driver.text == "it crashed"
    assert backend.calls == []
    assert (await driver.take_again()).driver is None
    assert list((await driver.refresh(What.READINGS)).readings) == [0, 1]
    await driver.close()
