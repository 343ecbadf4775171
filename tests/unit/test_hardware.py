import pytest

from supervisors import hardware


@pytest.fixture
def dev(tmp_path):
    for name in ("nvidia0", "nvidia1", "nvidia3", "nvidiactl", "davinci0", "davinci_manager"):
        (tmp_path / name).touch()
    return tmp_path


@pytest.mark.parametrize(
    ("kind", "cards"),
    [("nvidia", (0, 1, 3)), ("nvidia", ()), ("ascend", (0,)), ("slot", (0, 1, 7)), ("", (9,)), ("other", (9,))],
)
def test_nothing_is_known_against_cards_that_are_there(dev, kind, cards):
    """Nor against slots, which stand for no device."""
    assert hardware.fault(kind, cards, str(dev)) == ""


@pytest.mark.parametrize(
    ("kind", "cards", "gone"),
    [("nvidia", (0, 2), ["nvidia2"]), ("nvidia", (2, 1, 4), ["nvidia2", "nvidia4"]), ("ascend", (0, 1), ["davinci1"])],
)
def test_a_card_that_is_gone_is_named(dev, kind, cards, gone):
    text = hardware.fault(kind, cards, str(dev))
    assert text.startswith(", ".join(f"{dev}/{name}" for name in gone) + ": ")
    assert "not there any more" in text
    assert "nvidia1" not in text


def test_the_nodes_own_devices_are_looked_at():
    assert "/dev/nvidia4711" in hardware.fault("nvidia", (4711,))


def test_a_device_that_may_not_be_opened_is_there_all_the_same(dev):
    (dev / "nvidia0").chmod(0)
    assert hardware.fault("nvidia", (0,), str(dev)) == ""
