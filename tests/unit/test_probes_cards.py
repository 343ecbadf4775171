import threading
import time

import pytest

from probes import cards, watched
from probes.backend import Answer, ask_each
from probes.cards import Wanted
from probes.result import Action, Code, Status

EIGHT = dict.fromkeys(range(8), "nvidia")


class Backend:
    """Answers as it is told: an Answer, an exception to raise, or an Event to wait for."""

    def __init__(self, **told):
        self.told = {int(name[1:]): what for name, what in told.items()}
        self.asked = []

    def one(self, index):
        self.asked.append(index)
        what = self.told.get(index, Answer(Code.CARDS_OK, f"GPU-{index}"))
        if isinstance(what, threading.Event):
            what.wait(60)
            what = Answer(Code.CARDS_OK, f"GPU-{index}")
        if isinstance(what, Exception):
            raise what
        return what

    async def __call__(self, indices, answers):
        await ask_each("test card", indices, self.one, answers)


@pytest.fixture
def use(monkeypatch):
    def use(**told):
        backend = Backend(**told)
        monkeypatch.setitem(cards._BACKENDS, "nvidia", backend)
        return backend

    return use


async def check(wanted, found=EIGHT, deadline_s=60.0):
    return await cards.check(wanted, found, deadline_s=deadline_s)


async def test_without_a_wish_nobody_is_asked(use):
    backend = use()
    found = await check(Wanted())
    assert (found.status, found.code) == (Status.NOT_APPLICABLE, Code.CARDS_NOT_WANTED)
    assert "8 cards found" in found.reason and backend.asked == []


async def test_each_card_that_is_wanted_is_asked_and_named(use):
    backend = use()
    found = await check(Wanted(indices=(2, 5)))
    assert (found.status, found.code, found.action) == (Status.OK, Code.CARDS_OK, Action.NONE)
    assert sorted(backend.asked) == [2, 5]
    assert found.observed == "nvidia: 2 of 2 cards answer (2 GPU-2, 5 GPU-5)"


async def test_a_count_means_the_first_that_are_there(use):
    backend = use()
    assert (await check(Wanted(count=2), dict.fromkeys((1, 4, 6), "nvidia"))).status is Status.OK
    assert sorted(backend.asked) == [1, 4]


async def test_a_missing_card_is_named_and_the_others_are_asked(use):
    backend = use()
    found = await check(Wanted(indices=(0, 1, 2, 3)), {0: "nvidia", 1: "nvidia", 2: "nvidia"})
    assert (found.status, found.code, found.action) == (Status.CRITICAL, Code.CARDS_MISSING, Action.DRAIN)
    assert found.reason == "card 3: not there; this host shows cards 0-2"
    assert sorted(backend.asked) == [0, 1, 2]


@pytest.mark.parametrize(
    ("wanted", "found", "code"),
    [
        (Wanted(count=8), dict.fromkeys(range(7), "nvidia"), Code.CARDS_TOO_FEW),
        (Wanted(count=1), {}, Code.CARDS_NONE_FOUND),
        (Wanted(indices=(0, 1)), {}, Code.CARDS_NONE_FOUND),
        # The nodes are gone, and what an operator configured for hosts without cards comes in their place.
        (Wanted(indices=(0, 1), kind="nvidia"), dict.fromkeys(range(8), "slot"), Code.CARDS_NONE_FOUND),
    ],
)
async def test_too_few_cards(use, wanted, found, code):
    use()
    result = await check(wanted, found)
    assert (result.status, result.code, result.action) == (Status.CRITICAL, code, Action.DRAIN)
    assert f"{len(wanted)} wanted" in result.reason


async def test_slots_are_no_cards():
    found = await check(Wanted(indices=(0, 1), kind="slot"), dict.fromkeys(range(4), "slot"))
    assert (found.status, found.code) == (Status.NOT_APPLICABLE, Code.CARDS_ARE_SLOTS)
    assert (await check(Wanted(count=2), dict.fromkeys(range(4), "slot"))).code is Code.CARDS_ARE_SLOTS


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (Code.CARDS_NO_ANSWER, Status.CRITICAL),
        (Code.CARDS_UNHEALTHY, Status.CRITICAL),
        (Code.CARDS_DRIVER_FAILED, Status.CRITICAL),
        (Code.CARDS_LIBRARY_MISSING, Status.CRITICAL),
        (Code.CARDS_NOT_TOLD, Status.UNKNOWN),
    ],
)
async def test_one_card_in_trouble(use, code, status):
    use(c3=Answer(code, "GPU is lost"))
    found = await check(Wanted(indices=tuple(range(8))))
    assert (found.status, found.code) == (status, code)
    assert found.reason == "card 3: GPU is lost"
    assert found.observed.startswith("nvidia: 7 of 8 cards answer")
    assert found.action is (Action.DRAIN if status is Status.CRITICAL else Action.INVESTIGATE)


async def test_the_same_trouble_is_told_once(use):
    lost = Answer(Code.CARDS_DRIVER_FAILED, "Driver Not Loaded")
    use(**{f"c{i}": lost for i in (0, 1, 2, 5)})
    assert (await check(Wanted(indices=(0, 1, 2, 5)))).reason == "cards 0-2,5: Driver Not Loaded"


async def test_a_card_that_hangs_is_unknown_and_hides_no_other(use):
    release = threading.Event()
    try:
        backend = use(c0=release)
        began = time.monotonic()
        found = await check(Wanted(indices=(0, 1)), deadline_s=0.5)
        assert time.monotonic() - began < 25
        assert (found.status, found.code) == (Status.UNKNOWN, Code.PROBE_TIMED_OUT)
        assert found.reason == "card 0: no answer within 0.5 s"
        backend.told[1] = Answer(Code.CARDS_NO_ANSWER, "GPU is lost")
        found = await check(Wanted(indices=(0, 1)), deadline_s=0.5)
        assert (found.status, found.code) == (Status.CRITICAL, Code.CARDS_NO_ANSWER)
        assert "card 1: GPU is lost; card 0: test card 0: an earlier call still hangs" in found.reason
        assert backend.asked.count(0) == 1
    finally:
        release.set()


async def test_no_thread_to_be_had_says_nothing_against_a_card(use, monkeypatch):
    use()

    async def refuse(*args, **kwargs):
        raise OSError(11, "no thread")

    monkeypatch.setattr(watched, "call", refuse)
    found = await check(Wanted(indices=(0,)))
    assert (found.status, found.code) == (Status.UNKNOWN, Code.CARDS_NOT_TOLD)


async def test_a_driver_that_cannot_be_looked_for(monkeypatch):
    async def hangs(indices, answers):
        raise watched.StillHanging("load the library", 7.0)

    monkeypatch.setitem(cards._BACKENDS, "nvidia", hangs)
    found = await check(Wanted(indices=(0, 1)))
    assert (found.status, found.code) == (Status.UNKNOWN, Code.PROBE_TIMED_OUT)
    assert "cards 0-1: load the library: an earlier call still hangs" in found.reason
