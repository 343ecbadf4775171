"""Which card is which once the driver has counted anew."""

import json

import pytest

from muster.supervisors.model.card_identity import CardsNow, missing_of, number_now, numbers_now, own_number
from muster.supervisors.model.lifecycle import Job


@pytest.mark.parametrize(
    ("uuid", "now"),
    [
        ("b", 0),
        ("c", 1),
        ("a", None),  # it is gone, and its number is another's
        ("", 0),  # nothing but the number is known
    ],
)
def test_the_number_that_a_card_has_now(uuid: str, now: int | None):
    assert number_now(0, uuid, {0: "b", 1: "c", 2: ""}) == now


def test_a_number_has_to_do_where_nobody_says_whose_it_is():
    assert number_now(2, "a", {0: "b", 2: ""}) == 2, "the card there does not say who it is"
    assert number_now(5, "a", {0: "b"}) == 5, "nobody has the number"
    assert number_now(1, "same", {0: "same", 1: "same"}) == 1


def test_the_cards_of_a_job():
    job = Job(cards=(4, 5, 6), card_uuids={4: "d", 5: "e", 6: "f"})
    shown = {3: "d", 4: "e", 5: "x", 6: "y"}
    assert numbers_now(job, job.cards, shown) == {4: 3, 5: 4}
    assert own_number(job, 3, "d") == 4 and own_number(job, 4, "e") == 5
    assert own_number(job, 5, "x") is None and own_number(job, 5, "") == 5 and own_number(job, 9, "") is None


def test_the_card_of_a_mig_instance_is_the_jobs():
    job = Job(cards=(1000,), card_uuids={1000: "MIG-a", 1: "GPU-b"}, card_parents={1000: 1})
    assert own_number(job, 0, "GPU-b") == 1 and own_number(job, 1, "GPU-c") is None


def test_cards_that_are_missing():
    job = Job(cards=(4, 5), card_uuids={4: "d", 5: "e"})
    assert missing_of(job, {3: "d", 4: "e"}) == {}
    assert missing_of(job, {3: "d", 4: "x"}) == {5: "e"}
    assert missing_of(job, {3: "d", 4: ""}) is None, "that may be it"
    assert missing_of(Job(cards=(4, 5), card_uuids={4: "d"}), {3: "d", 4: "e"}) is None, "who it was is not known"


def test_what_is_written_of_the_cards_is_read_in_this_boot_alone():
    job = Job(cards=(4, 5), card_uuids={4: "d", 5: "e"})
    now = CardsNow({4: "d", 5: "e"}, {4: "3", 5: "4"}, {4: "/dev/nvidia3"})
    text = json.dumps(now.written("boot"))
    assert CardsNow.of_written(json.loads(text), "boot") == now
    assert CardsNow.of_written(json.loads(text), "another") is None
    assert now.is_of(job) and not now.is_of(Job(cards=(4, 5), card_uuids={4: "d", 5: "f"}))
    assert not now.is_of(Job(cards=(4,), card_uuids={4: "d"}))


@pytest.mark.parametrize("damage", [[], "x", None, {}, {"boot": "boot"}, {"boot": "boot", "uuids": []}])
def test_what_is_damaged_says_so(damage: object):
    with pytest.raises(ValueError, match="does not describe cards"):
        CardsNow.of_written(damage, "boot")
