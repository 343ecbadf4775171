import os

import pytest

from probes import cards
from probes.result import Action, Code, Status


@pytest.mark.parametrize(
    ("wanted", "found", "status", "code"),
    [
        (0, 0, Status.NOT_APPLICABLE, Code.CARDS_NOT_WANTED),
        (0, 8, Status.NOT_APPLICABLE, Code.CARDS_NOT_WANTED),
        (8, 8, Status.OK, Code.CARDS_OK),
        (2, 8, Status.OK, Code.CARDS_OK),
        (8, 7, Status.CRITICAL, Code.CARDS_TOO_FEW),
        (1, 0, Status.CRITICAL, Code.CARDS_NONE_FOUND),
    ],
)
async def test_cards_wanted_against_found(wanted, found, status, code):
    result = await cards.check(wanted=wanted, found=found)
    assert (result.status, result.code) == (status, code)
    assert result.action is (Action.DRAIN if status is Status.CRITICAL else Action.NONE)


def test_only_numbered_device_nodes_count(tmp_path, monkeypatch):
    for name in ("nvidia0", "nvidia10", "nvidia2", "nvidiactl", "nvidia-uvm", "davinci_manager", "davinci0"):
        (tmp_path / name).touch()
    assert cards.present(str(tmp_path)) == cards.Cards()  # plain files are no devices
    monkeypatch.setattr(cards, "_device", lambda dev, name: os.path.exists(f"{dev}/{name}"))
    assert cards.present(str(tmp_path)) == cards.Cards("nvidia", (0, 2, 10))


def test_ascend(tmp_path, monkeypatch):
    for i in range(8):
        (tmp_path / f"davinci{i}").touch()
    monkeypatch.setattr(cards, "_device", lambda dev, name: True)
    assert cards.present(str(tmp_path)) == cards.Cards("ascend", tuple(range(8)))
