"""Which cards the node had: what is remembered, how what is shown differs, and what the PCI bus has besides."""

from dataclasses import replace

import pytest

from muster.probes.cards.accelerator import NVIDIA, Card, Trouble
from muster.probes.checks.result import Code, Status
from muster.probes.node.cards.inventory import judge
from muster.probes.node.memory import Memory
from muster.probes.node.remembered import Inventory
from tests.unit.node_looks import gpu, look, npu, sick, view

HOST = "22 1 0:5 / /dev rw,nosuid shared:2 - devtmpfs udev rw,size=1k\n"
CONTAINER = "22 1 0:5 / /dev rw,nosuid - tmpfs tmpfs rw\n"


def eight(**more):
    return [gpu(i, serial=f"S{i}", **more) for i in range(8)]


def known(cards=None):
    """What remembers these cards."""
    inventory = Inventory()
    inventory.learn(eight() if cards is None else cards, "nvidia", {}, 1.0)
    return inventory


def on_bus(tmp, bus_id, driver="nvidia", vendor="0x10de", kind="0x030200", device="0x2330"):
    folder = tmp / "sys/bus/pci/devices" / bus_id
    folder.mkdir(parents=True)
    for name, text in (("vendor", vendor), ("class", kind), ("device", device)):
        (folder / name).write_text(f"{text}\n")
    if driver:
        drivers = tmp / "sys/bus/pci/drivers" / driver
        drivers.mkdir(parents=True, exist_ok=True)
        (folder / "driver").symlink_to(drivers)
    return folder


def mounted(tmp, text=HOST):
    (tmp / "proc/self").mkdir(parents=True, exist_ok=True)
    (tmp / "proc/self/mountinfo").write_text(text)


async def judged(shown, inventory, tmp, **settings):
    results = await judge(look(shown, Memory(inventory), tmp=tmp, **settings))
    return results


def loud(results):
    quiet = (Code.NODE_OK, Code.NODE_NOT_APPLICABLE, Code.NODE_NOT_TOLD)
    return [(r.device, r.code, r.status) for r in results if r.code not in quiet]


# --- comparing --------------------------------------------------------------------------------------------------------


def codes(inventory, cards, slots=None):
    return {(d.device, d.code) for d in inventory.compare(cards, "nvidia", slots or {}).differences}


def test_the_first_cards_are_remembered_and_nothing_differs():
    inventory = known()
    assert len(inventory.cards) == 8 and inventory.changes
    before = inventory.changes
    assert codes(inventory, eight()) == set()
    inventory.learn(eight(), "nvidia", {}, 2.0)
    assert inventory.changes == before


def test_what_is_remembered_outlives_the_process():
    again = Inventory(known().state())
    assert codes(again, eight()[:7]) == {("0000:07:00.0", Code.CARD_MISSING)}
    assert again.learn([*eight(), gpu(9, serial="S9")], "nvidia", {}, 2.0).differences[0].code is Code.CARD_NEW


def test_a_missing_card_under_any_number():
    gone = [replace(card, index=i) for i, card in enumerate(c for c in eight() if c.index != 3)]
    assert codes(known(), gone) == {("0000:03:00.0", Code.CARD_MISSING)}


def test_another_card_in_the_same_place_is_a_replacement():
    cards = eight()
    cards[2] = gpu(2, uuid="GPU-new", serial="S99")
    assert codes(known(), cards) == {("card 2", Code.CARD_REPLACED)}


def test_another_card_in_the_same_slot_is_a_replacement_though_the_bus_is_counted_anew():
    slots = {"0000:02:00": "GPU3", "0000:22:00": "GPU3"}
    inventory = Inventory()
    inventory.learn(eight(), "nvidia", slots, 1.0)
    cards = eight()
    cards[2] = gpu(2, uuid="GPU-new", serial="S99", bus_id="0000:22:00.0")
    assert codes(inventory, cards, slots) == {("card 2", Code.CARD_REPLACED)}


def test_cards_that_changed_places_have_moved():
    cards = eight()
    cards[1], cards[2] = replace(cards[1], bus_id=cards[2].bus_id), replace(cards[2], bus_id=cards[1].bus_id)
    assert codes(known(), cards) == {("card 1", Code.CARD_MOVED), ("card 2", Code.CARD_MOVED)}


def test_a_card_moved_into_the_place_of_one_that_is_gone():
    cards = [card for card in eight() if card.index != 1]
    cards[1] = replace(cards[1], bus_id="0000:01:00.0")
    assert codes(known(), cards) == {("card 2", Code.CARD_MOVED), ("0000:01:00.0", Code.CARD_MISSING)}


def test_a_card_that_says_nothing_of_itself_is_known_by_its_place():
    """As Ascend cards by npu-smi, which tells no number of the chip."""
    inventory = Inventory()
    inventory.learn([npu(i) for i in range(2)], "ascend", {}, 1.0)
    poor = [npu(i, uuid=f"0000:0{i}:00.0") for i in range(2)]
    assert inventory.learn(poor, "ascend", {}, 2.0).differences == ()
    assert {card.uuid for card in inventory.cards} == {"die-0", "die-1"}
    other = [npu(0), npu(1, uuid="die-9")]
    assert [d.code for d in inventory.compare(other, "ascend", {}).differences] == [Code.CARD_REPLACED]


def test_cards_of_a_board_that_share_its_serial_number_are_distinguished():
    board = [gpu(i, serial="BOARD") for i in range(2)]
    assert codes(known(board), [gpu(0, serial="BOARD")]) == {("0000:01:00.0", Code.CARD_MISSING)}
    assert codes(known(board), [board[0], gpu(1, uuid="GPU-new", serial="BOARD")]) == {("card 1", Code.CARD_REPLACED)}


def test_of_two_chips_in_one_place_the_missing_one_is_the_one_whose_number_is_missing():
    place = "0000:01:00.0"
    chips = [gpu(i, uuid=uuid, bus_id=place) for i, uuid in enumerate((place, f"{place}/1"))]
    found = known(chips).compare(chips[1:], "nvidia", {})
    assert [was.index for was in found.missing] == [0]
    # A driver that tells dies from now on has the same cards.
    told = [replace(card, uuid=f"DIE-{card.index}") for card in chips]
    assert codes(known(chips), told) == set()


def test_a_card_that_does_not_say_who_it_is_is_not_missing():
    mute = Card(3, NVIDIA)
    found = known().compare([*(c for c in eight() if c.index != 3), mute], "nvidia", {})
    assert found.differences == () and found.unsure == () and found.nameless == (3,)


def test_when_numbers_fell_a_card_that_does_not_say_who_it_is_may_be_any_that_is_not_seen():
    rest = [c for c in eight() if c.index not in (3, 7)]
    shown = [*(replace(card, index=i) for i, card in enumerate(rest)), Card(6, NVIDIA)]
    found = known().compare(shown, "nvidia", {})
    assert found.differences == ()
    assert [was.index for was in found.unsure] == [3, 7]


def test_nothing_is_new_before_all_cards_were_known_once():
    inventory = Inventory()
    inventory.learn([gpu(0), Card(1, NVIDIA)], "nvidia", {}, 1.0)
    assert inventory.learn([gpu(0), gpu(1)], "nvidia", {}, 2.0).differences == ()
    assert len(inventory.cards) == 2
    assert codes(inventory, [gpu(0), gpu(1), gpu(2)]) == {("card 2", Code.CARD_NEW)}


def test_slots_and_instances_are_no_cards():
    inventory = Inventory()
    inventory.learn([Card(i, "slot") for i in range(4)], "slot", {}, 1.0)
    inventory.learn([gpu(0, mig=True), Card(1, NVIDIA, uuid="MIG-1")], "nvidia", {}, 1.0)
    assert [card.uuid for card in inventory.cards] == ["GPU-0"]
    assert codes(inventory, [gpu(0, mig=True)]) == set()


# --- accepting --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cards", "code", "device"),
    [
        (eight()[:7], Code.CARD_MISSING, "0000:07:00.0"),
        ([*eight()[:7], gpu(7, uuid="GPU-new", serial="S99")], Code.CARD_REPLACED, "card 7"),
        ([*eight()[:7], gpu(7, serial="S7", bus_id="0000:99:00.0")], Code.CARD_MOVED, "card 7"),
        ([*eight(), gpu(8)], Code.CARD_NEW, "card 8"),
    ],
)
def test_what_was_accepted_is_how_it_is_to_be(cards, code, device):
    inventory = known()
    assert codes(inventory, cards) == {(device, code)}
    before = inventory.changes
    inventory.accept(code, device, {card.index: card for card in cards}, "nvidia", {}, 3.0)
    assert inventory.changes > before
    assert codes(Inventory(inventory.state()), cards) == set()


def test_accepting_what_is_not_so_any_more_changes_nothing():
    inventory = known()
    before = inventory.changes
    shown = {card.index: card for card in eight()}
    for code in (Code.CARD_MISSING, Code.CARD_REPLACED, Code.CARD_MOVED, Code.CARD_NEW):
        for device in ("0000:07:00.0", "card 7"):
            inventory.accept(code, device, shown, "nvidia", {}, 3.0)
    assert inventory.changes == before


@pytest.mark.parametrize("name", ["7", "GPU-7", "S7", "0000:07:00.0"])
def test_the_names_of_a_missing_card(name):
    assert name in known().names_of("0000:07:00.0", {card.index: card for card in eight()[:7]})


# --- the check --------------------------------------------------------------------------------------------------------


async def test_all_cards_are_there(tmp_path):
    results = await judged(view(eight()), known(), tmp_path)
    assert [r.device for r in results] == [*(f"card {i}" for i in range(8)), ""]
    assert {r.code for r in results} == {Code.NODE_OK}
    assert results[-1].reason == "all 8 cards that muster remembers exist"


async def test_the_first_look_counts_what_it_has_just_learned(tmp_path):
    results = await judged(view(eight()), Inventory(), tmp_path)
    assert (results[-1].reason, results[-1].observed) == ("all 8 cards that muster remembers exist", "8 cards")
    (_, whole) = await judged(view(eight()[:1]), Inventory(), tmp_path)
    assert whole.reason == "the card that muster remembers exists"


async def test_a_missing_card_is_critical_and_named_in_full(tmp_path):
    results = await judged(view(eight()[:7]), known(), tmp_path)
    assert loud(results) == [("0000:07:00.0", Code.CARD_MISSING, Status.CRITICAL)]
    found = next(r for r in results if r.code is Code.CARD_MISSING)
    assert found.card == 7
    for part in ("card 7 (H200, GPU-7, serial S7)", "`muster node accept 0000:07:00.0`"):
        assert part in found.reason


async def test_a_missing_card_whose_number_another_has_is_about_no_card_of_these(tmp_path):
    shown = [replace(card, index=i) for i, card in enumerate(c for c in eight() if c.index != 3)]
    (found,) = [r for r in await judged(view(shown), known(), tmp_path) if r.code is Code.CARD_MISSING]
    assert found.card is None


async def test_a_look_at_some_cards_still_tells_of_what_is_missing(tmp_path):
    results = await judged(view(eight()[:7]), known(), tmp_path, only=frozenset({0}))
    assert [(r.device, r.code) for r in results] == [
        ("card 0", Code.NODE_OK),
        ("0000:07:00.0", Code.CARD_MISSING),
        ("", Code.NODE_OK),
    ]


@pytest.mark.parametrize("trouble", [Trouble.HANG, Trouble.NO_LIBRARY, Trouble.NO_DRIVER, Trouble.MISMATCH])
async def test_nothing_is_missing_while_the_driver_does_not_answer(tmp_path, trouble):
    (found,) = await judged(view(eight()[:7], driver=sick(trouble)), known(), tmp_path)
    assert (found.code, found.device) == (Code.NODE_NOT_TOLD, "")


async def test_cards_that_are_lost_are_not_missing(tmp_path):
    lost = {i: sick(Trouble.LOST) for i in range(8)}
    assert loud(await judged(view(eight(), sick=lost), known(), tmp_path)) == []


async def test_no_driver_of_cards_that_were_there(tmp_path):
    mounted(tmp_path)
    for i in range(8):
        on_bus(tmp_path, f"0000:0{i}:00.0")
    results = await judged(view([]), known(), tmp_path)
    assert loud(results) == [("", Code.CARD_DRIVER_GONE, Status.CRITICAL)]
    assert "8 nvidia cards (0-7)" in results[0].reason and "8 of them are on the PCI bus" in results[0].reason
    # Another maker's driver is here now, or these are others' in a container.
    results = await judged(view([npu(0)]), known(), tmp_path)
    assert ("", Code.CARD_DRIVER_GONE, Status.WARN) in loud(results)
    assert Status.CRITICAL not in {r.status for r in results}
    mounted(tmp_path, CONTAINER)
    assert loud(await judged(view([]), known(), tmp_path)) == [("", Code.CARD_DRIVER_GONE, Status.WARN)]


async def test_expected_cards_count_without_any_card_and_without_a_library(tmp_path):
    results = await judged(view([]), Inventory(), tmp_path, expected_cards=8)
    assert loud(results) == [("", Code.CARD_COUNT, Status.CRITICAL)]
    slots = view([Card(i, "slot") for i in range(4)])
    assert loud(await judged(slots, Inventory(), tmp_path, expected_cards=8))[0][1] is Code.CARD_COUNT
    (nothing,) = await judged(view([]), Inventory(), tmp_path)
    assert nothing.code is Code.NODE_NOT_APPLICABLE


@pytest.mark.parametrize(
    ("driver", "kind", "mounts", "status"),
    [
        ("", "0x030200", HOST, Status.CRITICAL),
        ("nvidia", "0x030200", HOST, Status.CRITICAL),
        ("nvidia", "0x030000", HOST, Status.CRITICAL),
        ("", "0x030000", HOST, Status.WARN),  # it may be for a screen alone
        ("", "0x030200", CONTAINER, Status.WARN),
        ("nvidia", "0x030200", CONTAINER, None),  # another container's
        ("nvidia", "0x030200", "", None),
        ("vfio-pci", "0x030200", HOST, None),
        ("nvgrace-gpu-vfio-pci", "0x030200", HOST, None),
        ("pci-stub", "0x030200", HOST, None),
        ("snd_hda_intel", "0x040300", HOST, None),
    ],
)
@pytest.mark.parametrize("cards", [[gpu(0)], []])
async def test_a_card_on_the_bus_that_the_driver_does_not_show(tmp_path, driver, kind, mounts, status, cards):
    mounted(tmp_path, mounts)
    on_bus(tmp_path, "0000:00:00.0") if cards else None
    on_bus(tmp_path, "0000:9d:00.0", driver, kind=kind)
    on_bus(tmp_path, "0000:9e:00.0", "", vendor="0x8086")
    results = await judged(view(cards), Inventory(), tmp_path)
    assert loud(results) == ([("0000:9d:00.0", Code.CARD_NOT_SHOWN, status)] if status else [])
    if "vfio" in driver and cards:
        assert "reserved for virtual machines, ignored by muster: 0000:9d:00.0" in results[-1].reason


@pytest.mark.parametrize(("device", "told"), [("0xd802", True), ("0xd803", True), ("0xa250", False)])
async def test_of_huaweis_accelerators_only_the_npus_are_cards(tmp_path, device, told):
    mounted(tmp_path)
    on_bus(tmp_path, "0000:9d:00.0", "", vendor="0x19e5", kind="0x120000", device=device)
    results = await judged(view([npu(0)]), Inventory(), tmp_path)
    assert bool(loud(results)) is told


async def test_a_virtual_function_is_part_of_its_card(tmp_path):
    mounted(tmp_path)
    on_bus(tmp_path, "0000:00:00.0")
    folder = on_bus(tmp_path, "0000:00:00.4")
    (folder / "physfn").symlink_to("../0000:00:00.0")
    assert loud(await judged(view([gpu(0)]), Inventory(), tmp_path)) == []


async def test_a_device_that_was_accepted_is_passed_over_until_the_driver_shows_it(tmp_path):
    mounted(tmp_path)
    on_bus(tmp_path, "0000:08:00.0", "")
    inventory = known()
    assert loud(await judged(view(eight()), inventory, tmp_path))
    inventory.accept(Code.CARD_NOT_SHOWN, "0000:08:00.0", {}, "nvidia", {}, 1.0)
    again = Inventory(inventory.state())
    assert loud(await judged(view(eight()), again, tmp_path)) == []
    assert loud(await judged(view([*eight(), gpu(8)]), again, tmp_path)) == [("card 8", Code.CARD_NEW, Status.WARN)]
    assert again.unshown == frozenset()


@pytest.mark.parametrize(
    ("driver", "mounts", "status", "said"),
    [
        ("nvidia", HOST, Status.CRITICAL, "is on the PCI bus (kernel driver nvidia)"),
        ("", HOST, Status.CRITICAL, "without a kernel driver"),
        ("nvidia", CONTAINER, Status.WARN, "this container has no access to it"),
        ("vfio-pci", HOST, Status.WARN, "reserved for a virtual machine"),
        (None, HOST, Status.CRITICAL, "neither does the PCI bus"),
    ],
)
async def test_a_missing_card_says_where_it_is(tmp_path, driver, mounts, status, said):
    mounted(tmp_path, mounts)
    for i in range(7):
        on_bus(tmp_path, f"0000:0{i}:00.0")
    if driver is not None:
        on_bus(tmp_path, "0000:07:00.0", driver)
    results = await judged(view(eight()[:7]), known(), tmp_path)
    assert loud(results) == [("0000:07:00.0", Code.CARD_MISSING, status)]
    assert said in next(r for r in results if r.code is Code.CARD_MISSING).reason
