"""The layouts of libdcmi.so's structures, its codes, how it is loaded and in which dialect it is spoken to."""

import ctypes
import os
import re
import subprocess

import pytest

from muster.probes.cards.accelerator import DriverError, Trouble
from muster.probes.cards.ascend import ascend_numbers, dcmi_codes, dcmi_layouts, dcmi_library
from muster.probes.cards.ascend.ascend_numbers import ChipIdentity
from muster.probes.cards.ascend.dcmi import Dcmi
from tests.fakes import build
from tests.fakes.cards import FakeCards


@pytest.mark.parametrize(
    ("layout", "size", "offsets"),
    [
        (dcmi_layouts.ChipInfo, 132, {"name": 32, "version": 64, "aicores": 96, "npu_name": 100}),
        (dcmi_layouts.PcieInfo, 64, {"domain": 16, "bus": 20, "device": 24, "function": 28}),
        (dcmi_layouts.DieId, 20, {}),
        (dcmi_layouts.Label, 1280, {"serial": 1024}),
        (dcmi_layouts.HbmInfo, 32, {"size": 0, "clock": 8, "used": 16, "temperature": 24, "bandwidth": 28}),
        # 28 in the driver's header, 36 in that of npu-exporter: room for the longer one.
        (dcmi_layouts.EccInfo, 36, {"enabled": 0, "single": 4, "double": 8, "isolated_double": 24}),
        (dcmi_layouts.DcmiProcess, 16, {"pid": 0, "bytes": 8}),
        (dcmi_layouts.PortStatistics, 496, {"seconds": 416, "reserved": 432}),
        (dcmi_layouts.UbStatus, 148, {"ports": 4}),
        (dcmi_layouts.EventFilter, 48, {"event_id": 8, "severity": 12, "node_type": 13}),
        (dcmi_layouts.DcmiEvent, 360, {"event_id": 8, "logical": 12, "severity": 18, "assertion": 19, "name": 40}),
    ],
)
def test_layouts(layout, size, offsets):
    assert ctypes.sizeof(layout) == size
    assert {name: getattr(layout, name).offset for name in offsets} == offsets


@pytest.mark.parametrize(
    ("code", "trouble", "words"),
    [
        (-8012, Trouble.LOST, "not ready, as a card that dropped off the bus"),
        (-8008, Trouble.LOST, "no such device"),
        (-8007, Trouble.ABSENT, "no card with this number"),
        (-8002, Trouble.NOT_TOLD, "no permission"),
        (-8003, Trouble.NOT_TOLD, "no memory"),
        (-8013, Trouble.NOT_TOLD, "in a container"),
        (-8255, Trouble.NOT_TOLD, "not supported"),
        (-8006, Trouble.FAILED, "time-out"),
        (-1, Trouble.FAILED, "unknown"),
    ],
)
def test_a_return_code_is_reported_in_words(code, trouble, words):
    error = dcmi_codes.error("dcmi_get_device_health", code)
    assert (error.trouble, error.number) == (trouble, code)
    assert f"dcmi_get_device_health gives {code} (" in str(error) and words in str(error)


def test_a_die_of_zeros_is_none():
    die = dcmi_layouts.DieId()
    assert dcmi_layouts.die_text(die) == ""
    die.words[0], die.words[4] = 0xABCDEF01, 2
    assert dcmi_layouts.die_text(die) == "ABCDEF01-00000000-00000000-00000000-00000002"


# --- loading ----------------------------------------------------------------------------------------------------------


def compiled(folder, name, text, *more):
    try:
        command, _ = build.compiler()
    except build.NoCompiler as error:
        pytest.skip(str(error))
    source, library = folder / f"{name}.c", folder / f"lib{name}.so"
    source.write_text(text)
    caches = {f"ZIG_{which}_CACHE_DIR": str(build.cache() / "zig") for which in ("GLOBAL", "LOCAL")}
    subprocess.run(
        [*command, "-shared", "-fPIC", f"-Wl,-soname,{library.name}", "-o", library, source, *more],
        check=True,
        env=os.environ | caches,
    )
    return library


def test_no_library():
    with pytest.raises(DriverError, match=r"libdcmi\.so is not found") as caught:
        dcmi_library.load(("/nonexistent/libdcmi.so",))
    assert caught.value.trouble is Trouble.NO_LIBRARY and caught.value.of_driver


def test_a_library_that_cannot_be_loaded_is_reported(tmp_path):
    broken = tmp_path / "libdcmi.so"
    broken.write_text("no library")
    with pytest.raises(DriverError, match=re.escape(f"cannot be loaded: {broken}: ")) as caught:
        dcmi_library.load((str(tmp_path / "none.so"), str(broken)))
    assert caught.value.trouble is Trouble.NO_LIBRARY


def test_the_first_that_can_be_loaded_counts(tmp_path):
    broken = tmp_path / "libbroken.so"
    broken.write_text("no library")
    good = compiled(tmp_path, "dcmi_first", "int dcmi_init(void) { return 0; }\n")
    assert dcmi_library.load((str(broken), str(good))).dcmi_init() == 0


@pytest.mark.parametrize(("code", "expected"), [(0, 5), (87, None)])
def test_how_many_chips_cann_counts(tmp_path, code, expected):
    name = f"muster_hal_{code}"
    text = f"int drvGetDevNum(unsigned *count) {{ *count = 5; return {code}; }}\n"
    assert ascend_numbers.counted((str(compiled(tmp_path, name, text)),)) == expected
    assert ascend_numbers.counted(("/nonexistent/libascend_hal.so",)) is None


def test_what_the_library_needs_is_found_in_the_driver_folders(tmp_path, monkeypatch):
    linked, common, driver = tmp_path / "linked", tmp_path / "common", tmp_path / "driver"
    for folder in (linked, common, driver):
        folder.mkdir()
    inner = compiled(linked, "muster_test_inner", "int inner(void) { return 7; }\n")
    text = "int inner(void); int outer(void) { return inner(); }\n"
    outer = compiled(linked, "muster_test_outer", text, f"-L{linked}", "-lmuster_test_inner")
    text = "int outer(void); int dcmi_init(void) { return outer(); }\n"
    library = compiled(tmp_path, "dcmi_needy", text, f"-L{linked}", "-lmuster_test_outer")
    # Where they were linked they would be found without us.
    inner.rename(common / inner.name)
    outer.rename(driver / outer.name)
    monkeypatch.setattr(dcmi_library, "NEEDED", ())
    with pytest.raises(DriverError, match=re.escape("libmuster_test_outer.so: cannot open")):
        dcmi_library.load((str(library),))
    monkeypatch.setattr(dcmi_library, "NEEDED", (str(driver), str(common)))
    assert dcmi_library.load((str(library),)).dcmi_init() == 7


# --- dialects ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def make(tmp_path):
    made: list[FakeCards] = []

    def cards(count=2, model="", **more):
        made.append(FakeCards.for_test(tmp_path / str(len(made)), "ascend", count, model, **more))
        return made[-1], Dcmi(dcmi_library.load((str(made[-1].folder / "libdcmi.so"),)))

    yield cards
    for one in made:
        one.close()


@pytest.mark.parametrize(
    ("model", "seats", "second"),
    [
        ("Ascend910B3", [ChipIdentity((n, 0), n, n) for n in range(4)], False),
        ("Ascend910", [ChipIdentity((n // 2, n % 2), n, n) for n in range(4)], False),
        ("Ascend950", [ChipIdentity((n,), n, n) for n in range(4)], True),
    ],
)
def test_the_dialect_of_the_chips_is_found(make, model, seats, second):
    _, library = make(4, model)
    assert library.start().found == seats
    assert library.second is second
    assert library.driver_version() == "24.1.rc3"
    assert library.health(seats[3].seat) == 0


def test_physical_numbers_are_not_logical_ones(make):
    cards, library = make(2)
    cards[0].minor, cards[1].minor = 5, 4
    assert library.start().found == [ChipIdentity((0, 0), 0, 5), ChipIdentity((1, 0), 1, 4)]


def test_the_library_is_initialized_once(make):
    cards, library = make(1)
    library.start()
    cards.fail("dcmi_init", -8005)
    library.start()
    again = Dcmi(dcmi_library.load((str(cards.folder / "libdcmi.so"),)))
    assert again.start().found == [ChipIdentity((0, 0), 0, 0)]


def test_a_driver_that_was_unloaded_is_initialized_anew(make):
    cards, library = make(1)
    library.start()
    cards.unload(-8005)
    with pytest.raises(DriverError, match=r"dcmi_init gives -8005 \(internal error\)") as caught:
        library.start()
    assert caught.value.of_driver
    with pytest.raises(DriverError, match="dcmi_get_card_list gives -8009") as caught:
        library.answers()
    assert caught.value.of_driver
    cards.load()
    assert library.start().found == [ChipIdentity((0, 0), 0, 0)]
    library.answers()


def test_a_driver_without_cards(make):
    _, library = make(0)
    listing = library.start()
    assert not listing.found and not listing.lost


def test_a_card_that_does_not_tell_its_number_hides_no_other(make):
    cards, library = make(3)
    cards[1].lose()
    listing = library.start()
    assert listing.found == [ChipIdentity((0, 0), 0, 0), ChipIdentity((2, 0), 2, 2)]
    assert listing.lost[(1, 0)].trouble is Trouble.LOST


def test_a_library_that_lacks_functions(make):
    _, library = make(1, without=("dcmi_get_device_phyid_from_logicid", "dcmi_get_device_health"))
    assert library.start().found == [ChipIdentity((0, 0), 0)]
    with pytest.raises(DriverError, match="lacks dcmi_get_device_health") as caught:
        library.health((0, 0))
    assert caught.value.trouble is Trouble.NOT_TOLD


@pytest.mark.parametrize("count", [-1, 129, 5000])
def test_so_many_error_codes_as_there_cannot_be_are_no_answer(make, count):
    cards, library = make(1)
    library.start()
    cards[0].raw.error_count = count
    with pytest.raises(DriverError, match=f"there are {count} error codes") as caught:
        library.errors((0, 0))
    assert caught.value.trouble is Trouble.FAILED


def test_what_a_chip_says_is_wrong(make):
    cards, library = make(1)
    library.start()
    assert library.errors((0, 0)) == ()
    cards[0].error(0x80E01801)
    cards[0].error(0x8C1F8608)
    assert library.errors((0, 0)) == (0x80E01801, 0x8C1F8608)
    assert library.error_text((0, 0), 0x80E01801) == "fault 0x80E01801 of the fake card"
    cards[0].npu_health = -1
    with pytest.raises(DriverError, match="absent") as caught:
        library.health((0, 0))
    assert caught.value.trouble is Trouble.LOST


def test_processes(make):
    cards, library = make(1)
    library.start()
    cards[0].processes = [(pid, pid << 20) for pid in range(100, 140)]
    # The library tells of 32 at most.
    assert library.processes((0, 0)) == [(pid, pid << 20) for pid in range(100, 132)]
