"""What is known against the hardware of a job that ended badly."""

import json
from pathlib import Path

import pytest

from muster.probes.kernel import process
from muster.supervisors.job import hardware
from muster.supervisors.model.lifecycle import Job


def job(kind: str = "nvidia", cards: tuple[int, ...] = (0, 1), nodes: dict[int, str] | None = None) -> Job:
    return Job(card_kind=kind, cards=cards, card_nodes={} if nodes is None else nodes)


@pytest.fixture
def faults(tmp_path: Path):
    """Writes the daemon's file, and gives its path."""
    path = tmp_path / "faults.json"

    def write(boot: str = "", **fields: object) -> Path:
        path.write_text(json.dumps({"boot": boot or process.boot_id(), "at": 1.0} | fields))
        return path

    return write


def test_a_device_node_that_is_gone_is_named(tmp_path: Path):
    nodes = {0: str(tmp_path / "nvidia0"), 1: str(tmp_path / "nvidia5")}
    Path(nodes[0]).touch(mode=0)  # one that may not be opened is there all the same
    found = hardware.fault(job(nodes=nodes), tmp_path / "none")
    assert found == f"{nodes[1]}: the card no longer exists"


@pytest.mark.parametrize("kind", ["slot", "", "other"])
def test_slots_stand_for_no_device(tmp_path: Path, kind: str):
    assert hardware.gone(kind, (0, 9), None) == []
    assert not hardware.may_speak(job(kind))


def test_a_journal_that_does_not_tell_the_nodes_means_those_of_the_numbers():
    assert hardware.gone("nvidia", (4711,), None) == ["/dev/nvidia4711: the card no longer exists"]
    assert hardware.gone("ascend", (4711,), None) == ["/dev/davinci4711: the card no longer exists"]
    assert hardware.gone("nvidia", (4711,), {}) == [], "it was no node when the job got the card"


def test_the_daemon_says_what_is_wrong_with_the_jobs_cards_and_the_node(tmp_path: Path, faults):
    path = faults(node=["a disk is lost"], cards={"1": ["Xid 79"], "3": ["Xid 48"]})
    assert hardware.fault(job(), path) == "card 1: Xid 79; a disk is lost"
    assert hardware.fault(job(cards=(0,)), path) == "a disk is lost"


def test_many_sentences_are_cut(faults):
    path = faults(cards={"0": [f"Xid {number}" for number in range(9)]})
    assert hardware.fault(job(), path) == "card 0: Xid 0; card 0: Xid 1; card 0: Xid 2; card 0: Xid 3; and 5 more"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"boot": 1}', '{"boot": null, "cards": 3}', "\x00\xff"])
def test_a_file_that_says_nothing_is_no_fault(tmp_path: Path, text: str):
    (tmp_path / "faults.json").write_text(text)
    assert hardware.fault(job(), tmp_path / "faults.json") == ""
    assert hardware.fault(job(), tmp_path / "none") == ""


def test_what_was_wrong_in_another_boot_is_no_fault(faults):
    assert hardware.fault(job(), faults(boot="another", node=["a disk is lost"])) == ""


def test_what_happened_before_the_job_and_is_over_is_no_fault_of_its(faults):
    path = faults(
        node=["a disk was lost at 1", "a disk is lost since 1"],
        cards={"0": ["Xid 48 at 2", "Xid 79 since 1", "Xid 48 at 9"]},
        ups={"a disk was lost at 1": 100.0, "Xid 48 at 2": 200.0, "Xid 48 at 9": 900.0},
    )
    mine = job()
    mine.accepted_up = 500.0
    assert hardware.fault(mine, path) == "card 0: Xid 79 since 1; card 0: Xid 48 at 9; a disk is lost since 1"
    mine.accepted_up = 150.0
    assert "card 0: Xid 48 at 2" in hardware.fault(mine, path)


def test_a_fault_is_known_by_the_uuid_of_its_card(faults):
    """The driver has counted anew: the job's card 1 is 0 now, and its card 0 is not there."""
    path = faults(
        cards={"0": ["Xid 79", "Xid 48"], "1": ["Xid 95", "Xid 62"]}, uuids={"GPU-b": ["Xid 79"], "GPU-c": ["Xid 95"]}
    )
    mine = job()
    mine.card_uuids = {0: "GPU-a", 1: "GPU-b"}
    # What is about a card of which nothing but the number was known is about the one that has it.
    assert hardware.fault(mine, path) == "card 0: Xid 48; card 1: Xid 79; card 1: Xid 62"
