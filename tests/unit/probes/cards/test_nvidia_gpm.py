"""What the parts of an NVIDIA card did, over a library in NVML's place that is called by the real pynvml."""

import ctypes
import math
import threading

import pynvml
import pytest

from muster.probes.cards.accelerator import DriverError, Trouble
from muster.probes.cards.nvidia import nvidia_gpm
from muster.probes.cards.nvidia.backend import Nvidia
from tests.conftest import eventually
from tests.fakes import FakeCards, build

BUSY = {1: 99.5, 2: 98.0, 3: 41.0, 5: 3.5, 10: 12.0, 11: 0.0, 12: 5.0, 13: 1.0, 20: 2.0, 21: 3.0, 60: 4.0, 61: 5.0}
MIB = 1 << 20


class Clock:
    """Stands until it is set on."""

    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(nvidia_gpm, "time", clock)
    return clock


@pytest.fixture
def make(tmp_path, monkeypatch, clock):
    """Makes cards and the backend on them, open. One library a process: pynvml has one."""
    made = []

    def make(count=2, model="", **more):
        cards = FakeCards.for_test(tmp_path / "cards", "nvidia", count, model, **more)
        monkeypatch.setattr(pynvml, "nvmlLib", ctypes.CDLL(str(cards.folder / "libnvidia-ml.so.1")))
        monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
        backend = Nvidia()
        backend.open()
        made.append((cards, backend))
        return cards, backend

    yield make
    for cards, backend in made:
        cards.restore()
        backend.close()
        cards.close()


def look(backend, clock, index=0, after=15.0):
    clock.now += after
    return backend.health(index).activity


def test_the_second_look_tells_the_means_of_the_time_since_the_first(make, clock):
    cards, backend = make()
    cards[0].util = 100
    cards[0].gpm_says(BUSY)
    assert look(backend, clock) is None  # and not 0
    told = look(backend, clock)
    assert told.over_s == 15.0
    assert (told.graphics, told.sm, told.occupancy, told.tensor, told.dram) == (99.5, 98.0, 41.0, 3.5, 12.0)
    assert (told.fp64, told.fp32, told.fp16) == (0.0, 5.0, 1.0)
    assert (told.pcie_tx, told.pcie_rx) == (2 * MIB, 3 * MIB)
    assert (told.fabric_rx, told.fabric_tx) == (4 * MIB, 5 * MIB)
    assert backend.read(0).util == 100.0  # what hides that its tensor cores are idle


def test_a_metric_that_is_not_told_or_no_number_is_none(make, clock):
    cards, backend = make()
    cards[0].gpm_says(BUSY | {5: -1.0, 10: math.nan, 2: math.inf})
    look(backend, clock)
    told = look(backend, clock)
    assert (told.tensor, told.dram, told.sm, told.graphics) == (None, None, None, 99.5)


@pytest.mark.parametrize(("share", "told"), [(100.4, 100.0), (250.0, None), (1e300, None)])
def test_a_share_that_no_period_has_is_not_told(make, clock, share, told):
    cards, backend = make()
    cards[0].gpm_says(BUSY | {5: share})
    look(backend, clock)
    found = look(backend, clock)
    assert (found.tensor, found.sm) == (told, 98.0)


def test_a_card_of_before_hopper_tells_nothing_and_is_asked_once(make, clock):
    cards, backend = make(model="NVIDIA A100-SXM4-80GB")
    assert look(backend, clock) is None
    before = cards[0].calls
    assert look(backend, clock) is None
    without = cards[0].calls - before
    cards[1].gpm = True
    for _ in range(2):
        before, told = cards[1].calls, look(backend, clock, 1)
    assert told is not None
    # One call to the card; the comparison is the library's own. None of a card that has no GPM.
    assert cards[1].calls - before == without + 1
    assert cards.state.all.gpm_samples == 2


def test_a_library_without_gpm_tells_nothing(make, clock):
    cards, backend = make(without=("nvmlGpmQueryDeviceSupport", "nvmlGpmSampleAlloc"))
    assert look(backend, clock) is None
    assert look(backend, clock) is None
    assert cards.state.all.gpm_samples == 0


def test_who_asks_again_at_once_takes_no_sample(make, clock):
    cards, backend = make()
    cards[0].gpm_says(BUSY)
    look(backend, clock)
    told = look(backend, clock)
    cards[0].gpm_says({5: 80.0})
    assert look(backend, clock, after=0.9) == told
    assert look(backend, clock, after=14.1).tensor == 80.0
    assert nvidia_gpm.LEAST_S > 0.1  # what NVML wants


def test_samples_are_allocated_once_and_freed_at_the_end(make, clock):
    cards, backend = make()
    for _ in range(4):
        look(backend, clock, 0)
        look(backend, clock, 1, after=0.0)
    assert cards.state.all.gpm_samples == 4  # two for each card
    backend.close()
    assert cards.state.all.gpm_samples == 0


@pytest.mark.parametrize("function", ["nvmlGpmSampleGet", "nvmlGpmMetricsGet", "nvmlGpmSampleAlloc"])
def test_a_call_that_fails_tells_nothing_until_it_works_again(make, clock, function):
    cards, backend = make()
    cards[0].gpm_says(BUSY)
    cards.fail(function, 999)
    assert look(backend, clock) is None
    assert look(backend, clock) is None
    assert backend.health(0).temp_c is not None
    cards.clear()
    look(backend, clock)
    assert look(backend, clock).over_s == 15.0


def test_a_lost_card_is_not_asked(make, clock):
    cards, backend = make()
    look(backend, clock)
    cards[0].lose()
    cards[0].hang("nvmlGpmSampleGet")
    with pytest.raises(DriverError) as caught:
        look(backend, clock)
    assert caught.value.trouble is Trouble.LOST


def test_a_card_that_falls_off_during_the_look_is_lost(make, clock):
    cards, backend = make()
    look(backend, clock)
    cards[0].fail("nvmlGpmSampleGet", 15)
    with pytest.raises(DriverError) as caught:
        look(backend, clock)
    assert caught.value.trouble is Trouble.LOST


def test_closing_leaves_the_samples_in_which_a_call_hangs(make, clock):
    cards, backend = make()
    look(backend, clock, 0)
    look(backend, clock, 1, after=0.0)
    cards[0].hang("nvmlGpmSampleGet")
    clock.now += 15
    said = []

    def ask():
        try:
            backend.health(0)
        except DriverError as error:
            said.append(error.trouble)

    caller = threading.Thread(target=ask, daemon=True)
    caller.start()
    eventually(lambda: cards[0].waits_in() == ["nvmlGpmSampleGet"])
    backend.close()
    assert cards.state.all.gpm_samples == 2  # of that card: freeing them would be under its feet
    cards[0].clear()
    caller.join(timeout=30)
    assert not caller.is_alive() and said == [Trouble.FAILED]  # the library is closed


def test_of_a_card_in_mig_mode_each_instance_tells_its_own(make, clock):
    cards, backend = make()
    cards[0].gpm_says(BUSY)
    cards[0].mig, cards[0].mig_count = 1, 2
    described = [backend.describe(card) for card in backend.cards()]
    assert [one.index for one in described[0].instances] == [1000, 1001]
    for index in (0, 1000, 1001):
        assert look(backend, clock, index) is None
    assert look(backend, clock, 0) is None  # NVML has no sample of the whole card
    assert look(backend, clock, 1000).tensor == 3.5
    assert look(backend, clock, 1001).tensor == 2.5


def test_a_library_that_an_update_replaced_is_loaded_anew(make, clock):
    cards, backend = make(without=("nvmlGpmQueryDeviceSupport",))
    backend.close()
    cards.unload(18)
    with pytest.raises(DriverError) as caught:
        backend.open()  # the file is that of the library which is loaded
    assert caught.value.trouble is Trouble.MISMATCH
    # The update brings what the old library lacks; of that one no init succeeds.
    build.install(build.library("nvidia"), cards.folder)
    before = pynvml.nvmlLib
    with pytest.raises(DriverError):
        backend.open()
    assert pynvml.nvmlLib is not before
    cards.load()
    backend.open()
    look(backend, clock)
    assert look(backend, clock) is not None


def test_the_structure_is_that_of_the_largest_header():
    """nvml.h of CUDA 13.5; those before are shorter, with the same version."""
    metric = nvidia_gpm.MetricsGet.metrics
    assert (ctypes.sizeof(nvidia_gpm.MetricsGet), metric.offset, metric.size // 477) == (19104, 24, 40)
    members = ("version", "count", "before", "now")
    assert [getattr(nvidia_gpm.MetricsGet, name).offset for name in members] == [0, 4, 8, 16]
