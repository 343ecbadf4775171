"""What a supervisor makes of a driver that has counted the cards anew."""

import json
from pathlib import Path

import pytest

from muster.probes.kernel import process
from muster.supervisors.launch import card_numbers
from muster.supervisors.model.card_identity import CardsNow
from muster.supervisors.model.lifecycle import Job

UUIDS = {4: "GPU-d", 5: "GPU-e"}


def job(visible: dict[int, str] | None = None) -> Job:
    return Job(card_kind="nvidia", cards=(4, 5), card_uuids=UUIDS, card_visible=visible or {})


def test_what_the_daemon_wrote_is_read(tmp_path: Path):
    path, now = tmp_path / "cards.json", CardsNow(UUIDS, {4: "3", 5: "4"})
    assert card_numbers.read(path, job()) is None
    path.write_text(json.dumps(now.written(process.boot_id())))
    assert card_numbers.read(path, job()) == now
    assert card_numbers.read(path, Job(cards=(4, 5), card_uuids={4: "GPU-d", 5: "GPU-x"})) is None, "of other cards"


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"boot": 1}', "\xff"])
def test_a_file_that_says_nothing_is_none(tmp_path: Path, text: str):
    path = tmp_path / "cards.json"
    path.write_text(text, encoding="latin-1")
    assert card_numbers.read(path, job()) is None


def test_what_has_changed_is_recorded_and_said():
    now = CardsNow(UUIDS, {4: "3", 5: "4"}, {4: "/dev/nvidia3"})
    record, said = card_numbers.counted_anew(job(), now)
    assert record == {"card_visible": {"4": "3", "5": "4"}, "card_nodes": {"4": "/dev/nvidia3"}}
    assert said == "the driver renumbered the cards: card 4 is 3, 5 is 4 in this attempt"
    assert card_numbers.counted_anew(job({4: "3", 5: "4"}), now) == ({}, "")
    assert card_numbers.counted_anew(job(), None) == ({}, "")
    back = CardsNow(UUIDS, {4: "4", 5: "5"})
    assert card_numbers.counted_anew(job({4: "3", 5: "4"}), back)[0]["card_visible"] == {"4": "4", "5": "5"}
    assert card_numbers.counted_anew(job(), CardsNow(UUIDS, missing={5: "GPU-e"})) == ({}, "")
