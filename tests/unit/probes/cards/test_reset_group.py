"""Which Ascend chips a reset of one takes along."""

import pytest

from muster.probes.cards.accelerator import ASCEND, Card, Numbers
from muster.probes.cards.reset import reset_group
from muster.probes.cards.view import View


def bus_id(index: int) -> str:
    return f"0000:{index + 1:02x}:00.0"


@pytest.fixture
def node(tmp_path):
    """A node's cards, and the PCI bus with their chips."""

    def make(device: str, cards: list[Card]) -> View:
        for card in cards:
            folder = tmp_path / "bus/pci/devices" / bus_id(card.index)
            folder.mkdir(parents=True)
            for name, text in (("vendor", "0x19e5"), ("class", "0x120000"), ("device", device)):
                (folder / name).write_text(f"{text}\n")
        return View(ASCEND, "24.1.rc3", {card.index: card for card in cards})

    return make


def boards(count: int, chips: int, brother: int | None = None) -> list[Card]:
    """Chips on boards; `brother`: how far the other module of each is, -1: there is none."""
    found = []
    for index in range(count):
        board = index // chips
        other = brother if brother in (None, -1) else (board + brother) % (2 * brother)
        numbers = Numbers(index, index, board, index % chips, brother=other)
        found.append(Card(index, ASCEND, bus_id=bus_id(index), numbers=numbers))
    return found


@pytest.mark.parametrize(
    ("device", "cards", "index", "together"),
    [
        ("0xd801", boards(8, 1), 5, {4, 5, 6, 7}),
        ("0xd802", boards(8, 1), 5, set(range(8))),
        ("0xd802", boards(16, 1), 5, set(range(16))),
        # Atlas 900 A3: the module, and the one whose ports stand in for its own (4 boards further).
        ("0xd803", boards(16, 2, 4), 0, {0, 1, 8, 9}),
        ("0xd803", boards(16, 2, 4), 13, {4, 5, 12, 13}),
        # The other module's chips are not all here.
        ("0xd803", boards(9, 2, 4), 0, {0, 1, 8}),
        ("0xd803", boards(4, 2, 4), 0, {0, 1}),
        # Atlas 9000 A3: the module alone.
        ("0xd803", boards(16, 2, -1), 3, {2, 3}),
        # A driver that does not say.
        ("0xd803", boards(16, 2), 3, set(range(16))),
        ("0xd500", boards(4, 1), 3, set(range(4))),
    ],
)
def test_chips_that_go_together(node, tmp_path, device, cards, index, together):
    plan = reset_group.plan(node(device, cards), index, tmp_path)
    assert (set(plan.together), plan.command, plan.refusal) == (together, (index,), "")


def test_a_module_whose_board_is_unknown(node, tmp_path):
    cards = [Card(index, ASCEND, bus_id=bus_id(index), numbers=Numbers(index, brother=-1)) for index in range(4)]
    assert reset_group.plan(node("0xd803", cards), 0, tmp_path).together == (0, 1, 2, 3)


def test_where_the_bus_shows_no_chips(tmp_path):
    view = View(ASCEND, "24.1.rc3", {card.index: card for card in boards(16, 2, 4)})
    assert reset_group.plan(view, 0, tmp_path).together == tuple(range(16))
