import pytest

from muster.probes.cards.accelerator import Card, DriverError, Trouble
from muster.probes.cards.no_cards import NoCards, by_node, present


@pytest.mark.parametrize(
    ("nodes", "kind", "numbers"),
    [
        ((), "slot", ()),
        (("null", "nvidiactl", "nvidia-uvm", "nvidia-caps", "davinci_manager"), "slot", ()),
        (("nvidia10", "nvidia2", "nvidia0", "nvidiactl"), "nvidia", (0, 2, 10)),
        (("davinci1", "davinci0", "davinci_manager", "hisi_hdc"), "ascend", (0, 1)),
        (("nvidia1", "davinci0"), "nvidia", (1,)),
    ],
)
def test_device_nodes_tell_of_cards(tmp_path, nodes, kind, numbers):
    for node in nodes:
        (tmp_path / node).touch()
    assert present(tmp_path) == (kind, numbers)
    found, cards = by_node(tmp_path)
    assert found == kind and [card.index for card in cards] == list(numbers)
    assert all((tmp_path / card.node).exists() and card.kind == kind for card in cards)


def test_a_dev_that_cannot_be_read_has_no_cards(tmp_path):
    assert present(tmp_path / "missing") == ("slot", ())


def test_slots_say_nothing_and_follow_their_setting():
    slots = [2]
    backend = NoCards(lambda: slots[0])
    backend.open()
    assert backend.cards() == [Card(0, "slot"), Card(1, "slot")]
    slots[0] = 0
    assert backend.cards() == []
    assert backend.read(0).util is None and backend.health(0).temp_c is None and backend.holders(0) == []
    with pytest.raises(DriverError) as caught:
        backend.wait_events(0.1)
    assert caught.value.trouble is Trouble.NOT_TOLD
