"""Conditions: how they are latched, and by which rule each goes."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from muster.agent.node import condition_rules
from muster.agent.node.conditions import (
    AGE,
    MAX_CONDITIONS,
    MAX_TEXT,
    OPERATOR,
    READING,
    REBOOT,
    Condition,
    ConditionChange,
    ConditionRule,
    Conditions,
    Latched,
    Moment,
)
from muster.probes.checks.result import CheckResult, Code, Status

RULES = {
    Code.GPU_TEMPERATURE: ConditionRule(READING),
    Code.PROBE_TIMED_OUT: ConditionRule(READING),
    Code.GPU_ROW_REMAP_PENDING: ConditionRule(REBOOT),
    Code.GPU_ROW_REMAP_FAILED: ConditionRule(OPERATOR),
    Code.KERNEL_HUNG_TASK: ConditionRule(AGE, 3600.0),
    Code.FS_READ_ONLY: ConditionRule(READING),
}


def rule(code: str) -> ConditionRule:
    return RULES.get(Code(code), ConditionRule(READING, condition=False))


def still(item: str, device: str, code: Code, results: Sequence[CheckResult]) -> bool | None:
    """As `muster.probes.node.node_checks.still` tells it."""
    about = [r for r in results if r.item == item and r.device in ("", device)]
    if any(r.code is code and r.device == device for r in about):
        return True
    return None if not about or any(r.status is Status.UNKNOWN for r in about) else False


def conditions(looks: int = 2, spacing: float = 30.0) -> Conditions:
    return Conditions(rule, still, lambda: looks, lambda item: spacing)


def hot(card: int = 3, status: Status = Status.WARN, reason: str = "91 C") -> CheckResult:
    device = f"card {card}"
    return CheckResult("temperature", status, Code.GPU_TEMPERATURE, reason, device=device, card=card)


def cool(card: int = 3) -> CheckResult:
    return CheckResult("temperature", Status.OK, Code.NODE_OK, "40 C", device=f"card {card}", card=card)


def silent(card: int = 3) -> CheckResult:
    device = f"card {card}"
    return CheckResult("temperature", Status.UNKNOWN, Code.PROBE_TIMED_OUT, "no answer", device=device, card=card)


def finding(code: Code, status: Status = Status.CRITICAL, card: int | None = 3) -> CheckResult:
    return CheckResult("some", status, code, "it is so", device="" if card is None else f"card {card}", card=card)


def at(seconds: float) -> Moment:
    """So long after the start: two clocks that have nothing to do with each other."""
    return Moment(1_700_000_000 + seconds, 500 + seconds)


def codes(known: Conditions) -> list[str]:
    return [condition.code for condition in known.all]


def test_a_finding_is_latched_once_with_when_it_began_and_when_it_was_seen():
    known = conditions()
    (change,) = known.look([hot()], None, at(0))
    assert change == ConditionChange(known.all[0])
    assert known.look([hot(reason="card 3: 93 C")], None, at(60)) == []
    (condition,) = known.all
    assert condition == Condition(
        item="temperature",
        device="card 3",
        status=Status.WARN,
        code="GPU_TEMPERATURE",
        reason="93 C",  # whose it is stands beside it
        since=at(0).at,
        seen_at=at(60).at,
        clears="reading",
        card=3,
    )
    assert "card 3: GPU_TEMPERATURE since " in condition.sentence()


def test_another_status_is_a_change_and_an_ok_or_a_code_of_no_condition_is_none():
    known = conditions()
    known.look([hot()], None, at(0))
    (change,) = known.look([hot(status=Status.CRITICAL)], None, at(60))
    assert change.was is Status.WARN
    assert change.condition.status is Status.CRITICAL
    assert change.condition.since == at(0).at
    (change,) = known.look([hot(status=Status.WARN)], None, at(120))  # a reading says what is so now
    assert change.was is Status.CRITICAL
    other = CheckResult("x", Status.UNKNOWN, Code.NODE_NOT_TOLD, "a reading is missing")
    assert known.look([cool(4), other], None, at(180)) == []
    assert codes(known) == ["GPU_TEMPERATURE"]


def test_a_reading_goes_after_looks_in_a_row_that_do_not_find_it():
    known = conditions(looks=3)
    known.look([hot()], None, at(0))
    assert known.look([cool()], None, at(60)) == []
    assert known.look([cool()], None, at(120)) == []
    (change,) = known.look([cool()], None, at(180))
    assert change.gone == "it is normal again"
    assert known.all == []


def test_what_comes_and_goes_stays():
    known = conditions(looks=2)
    known.look([hot()], None, at(0))
    for i in range(1, 20, 2):
        assert known.look([cool()], None, at(i * 60)) == []
        assert known.look([hot()], None, at((i + 1) * 60)) == []
    assert known.all[0].since == at(0).at


def test_a_burst_of_looks_does_not_clear():
    known = conditions(looks=2, spacing=30)
    known.look([hot()], None, at(0))
    for i in range(10):
        assert known.look([cool()], None, at(i)) == []
    assert len(known.look([cool()], None, at(30))) == 1


def test_unknown_makes_its_own_condition_and_neither_clears_nor_worsens_another():
    known = conditions(looks=1)
    known.look([hot(status=Status.CRITICAL)], None, at(0))
    for i in range(1, 5):
        known.look([silent()], None, at(i * 60))
        assert codes(known) == ["GPU_TEMPERATURE", "PROBE_TIMED_OUT"]
    assert [c.status for c in known.all] == [Status.CRITICAL, Status.UNKNOWN]
    gone = known.look([cool()], None, at(600))
    assert {change.condition.code for change in gone} == {"GPU_TEMPERATURE", "PROBE_TIMED_OUT"}


def test_a_look_at_some_cards_says_nothing_of_others_nor_does_another_item():
    known = conditions(looks=1)
    known.look([hot(3), hot(4)], None, at(0))
    other = CheckResult("ecc", Status.OK, Code.NODE_OK, "none", device="card 3", card=3)
    assert known.look([other], None, at(60)) == []
    (change,) = known.look([cool(3)], {3}, at(120))
    assert change.condition.card == 3
    assert [c.card for c in known.all] == [4]
    assert known.look([cool(3), cool(4)], {3}, at(180)) == []


@pytest.mark.parametrize("code", [Code.GPU_ROW_REMAP_PENDING, Code.GPU_ROW_REMAP_FAILED, Code.KERNEL_HUNG_TASK])
def test_what_is_latched_is_not_cleared_by_a_look_nor_eased_by_one(code: Code):
    known = conditions(looks=1)
    known.found(finding(code), at(0))
    fine = CheckResult("some", Status.OK, Code.NODE_OK, "fine", device="card 3", card=3)
    assert known.look([fine], None, at(60)) == []
    assert known.found(finding(code, Status.WARN), at(120)) is None
    assert [c.status for c in known.all] == [Status.CRITICAL]


def test_by_age_it_goes_when_it_was_not_seen_again_whatever_the_wall_clock_does():
    known = conditions()
    known.found(finding(Code.KERNEL_HUNG_TASK, Status.WARN), at(0))
    known.found(finding(Code.KERNEL_HUNG_TASK, Status.WARN), at(3000))
    jumped = replace(at(3700), at=at(10**7).at)
    assert known.expire(jumped) == []
    (change,) = known.expire(at(6600))
    assert "not seen again for 3600 s" in change.gone


def test_an_operator_clears_everything_of_one_device_or_of_all():
    known = conditions()
    for card in (1, 2):
        known.found(finding(Code.GPU_ROW_REMAP_FAILED, card=card), at(0))
    known.found(finding(Code.GPU_ROW_REMAP_PENDING), at(0))
    assert known.clear("GPU_ROW_REMAP_FAILED", "card 9", "asked") == []
    (change,) = known.clear("GPU_ROW_REMAP_FAILED", "card 2", "asked")
    assert change.gone == "asked"
    assert len(known.clear("GPU_ROW_REMAP_FAILED", "", "asked")) == 1
    assert codes(known) == ["GPU_ROW_REMAP_PENDING"]
    # What is still so comes back with the next look.
    assert known.found(finding(Code.GPU_ROW_REMAP_FAILED, card=2), at(60)) is not None


def test_a_reboot_takes_away_what_a_reboot_clears_and_nothing_else():
    known = conditions()
    known.found(finding(Code.GPU_ROW_REMAP_PENDING), at(0))
    known.found(finding(Code.GPU_ROW_REMAP_FAILED), at(0))
    known.found(finding(Code.KERNEL_HUNG_TASK), at(0))
    known.look([hot()], None, at(0))
    again = conditions()
    assert again.restore(known.kept(), True, at(10)) == []
    assert again.all == known.all
    booted = conditions()
    now = Moment(at(1000).at, 20.0)  # the new boot's clock begins anew
    (change,) = booted.restore(known.kept(), False, now)
    assert (change.condition.code, change.gone) == ("GPU_ROW_REMAP_PENDING", "the node has rebooted")
    assert set(codes(booted)) == {"GPU_ROW_REMAP_FAILED", "KERNEL_HUNG_TASK", "GPU_TEMPERATURE"}
    assert booted.expire(Moment(now.at + 2500, now.up + 2500)) == []
    (change,) = booted.expire(Moment(now.at + 2600, now.up + 2600))
    assert change.condition.code == "KERNEL_HUNG_TASK"


def test_a_drill_stands_beside_the_real_thing_and_ends_by_itself():
    known = conditions(looks=1)
    drill = Condition(
        "temperature", "card 3", Status.CRITICAL, "GPU_TEMPERATURE", "a drill", at(0).at, at(0).at,
        clears=AGE, injected=True, card=3,
    )  # fmt: skip
    assert known.inject(drill, 600, at(0)) == ConditionChange(drill)
    assert known.inject(drill, 600, at(100)) is None  # the same again begins anew
    known.look([hot()], None, at(100))
    assert len(known.all) == 2
    (change,) = known.look([cool()], None, at(160))
    assert not change.condition.injected
    assert known.expire(at(699)) == []
    (change,) = known.expire(at(700))
    assert change.gone == "the drill has ended"
    known.inject(drill, 600, at(800))
    assert len(known.clear("GPU_TEMPERATURE", "", "asked")) == 1


def test_a_drill_ends_with_the_boot():
    known = conditions()
    drill = Condition(
        "x", "", Status.CRITICAL, "FS_READ_ONLY", "a drill", at(0).at, at(0).at, clears=AGE, injected=True
    )
    known.inject(drill, 600, at(0))
    booted = conditions()
    assert len(booted.restore(known.kept(), False, at(10))) == 1
    assert booted.all == []


def test_what_nobody_looks_at_any_more_goes_if_a_look_would_clear_it():
    known = conditions()
    known.look([hot()], None, at(0))
    known.found(finding(Code.GPU_ROW_REMAP_PENDING), at(0))
    assert known.unwatched({"temperature", "some"}, "off") == []
    (change,) = known.unwatched((), "off")
    assert change.condition.item == "temperature"
    assert codes(known) == ["GPU_ROW_REMAP_PENDING"]


def test_the_gravest_come_first_and_unknown_is_no_fault():
    known = conditions()
    known.look([silent(1)], None, at(0))
    known.look([hot(2)], None, at(1))
    known.look([hot(5, Status.CRITICAL)], None, at(3))
    known.look([hot(4, Status.CRITICAL)], None, at(2))
    assert [(c.status, c.card) for c in known.all] == [
        (Status.CRITICAL, 4),
        (Status.CRITICAL, 5),
        (Status.UNKNOWN, 1),
        (Status.WARN, 2),
    ]


def test_texts_are_bounded_and_cannot_forge_lines():
    known = conditions()
    known.look([hot(reason="a\nb" + "x" * 10_000)], None, at(0))
    assert known.all[0].reason.startswith("a\\nb")
    assert len(known.all[0].reason) == MAX_TEXT


def test_there_is_a_bound_on_how_many():
    known = conditions()
    for card in range(MAX_CONDITIONS + 5):
        known.look([hot(card)], None, at(0))
    assert len(known.all) == MAX_CONDITIONS
    assert known.refused == 5


def test_of_a_card_that_is_not_looked_at_nothing_is_known():
    """As while its driver hangs: then its checks do not even apply."""
    off = CheckResult("temperature", Status.NOT_APPLICABLE, Code.NODE_NOT_APPLICABLE, "there are no cards")
    assert condition_rules.still("temperature", "card 3", Code.GPU_TEMPERATURE, [off]) is None
    assert condition_rules.still("temperature", "card 3", Code.GPU_TEMPERATURE, [cool(4)]) is None
    assert condition_rules.still("temperature", "card 3", Code.GPU_TEMPERATURE, [silent()]) is None
    assert condition_rules.still("temperature", "card 3", Code.GPU_TEMPERATURE, [hot()]) is True
    assert condition_rules.still("temperature", "card 3", Code.GPU_TEMPERATURE, [cool()]) is False
    assert condition_rules.still("mounts", "/data", Code.FS_READ_ONLY, [off]) is None


def test_a_code_that_only_another_version_knew_stays_until_an_operator_clears_it():
    known = Conditions(condition_rules.rule, condition_rules.still, lambda: 1, lambda item: 0.0)
    since = at(0).at
    strange = Condition("temperature", "card 3", Status.CRITICAL, "GPU_STRANGE", "it is", since, since, card=3)
    known.restore([Latched(strange, 0.0)], False, at(10))
    assert known.look([cool()], None, at(60)) == []
    assert known.all[0].clears == "operator"
    assert known.unwatched((), "off") == []
    assert len(known.clear("GPU_STRANGE", "", "asked")) == 1


def of_driver(code: Code, status: Status = Status.CRITICAL) -> CheckResult:
    return CheckResult("driver", status, code, "the driver says so")


def real() -> Conditions:
    """As the daemon has them: by the table of the codes."""
    return Conditions(condition_rules.rule, condition_rules.still, lambda: 2, lambda item: 30.0)


def test_a_driver_that_is_back_is_well_with_the_first_look():
    known = real()
    known.look([of_driver(Code.DRIVER_NOT_LOADED)], None, at(0))
    known.look([hot()], None, at(0))
    (gone,) = known.look([of_driver(Code.NODE_OK, Status.OK), cool()], None, at(1))
    assert (gone.condition.code, gone.gone) == ("DRIVER_NOT_LOADED", "it is normal again")
    assert codes(known) == ["GPU_TEMPERATURE"]  # as a reading it may come again: that takes looks in a row


def test_another_trouble_of_the_driver_takes_the_place_of_the_former_at_once():
    known = real()
    known.look([of_driver(Code.DRIVER_NOT_LOADED)], None, at(0))
    came, gone = known.look([of_driver(Code.DRIVER_MISMATCH)], None, at(1))
    assert (came.condition.code, gone.condition.code) == ("DRIVER_MISMATCH", "DRIVER_NOT_LOADED")
    assert codes(known) == ["DRIVER_MISMATCH"]
    # A hang tells nothing of whether it is loaded by now.
    known.look([of_driver(Code.DRIVER_HANG, Status.UNKNOWN)], None, at(2))
    assert codes(known) == ["DRIVER_MISMATCH", "DRIVER_HANG"]


@pytest.mark.parametrize(
    ("item", "card", "refused"),
    [
        ("driver", None, {"any card", "card 3", "card 4"}),
        ("gpu-lost", None, {"any card", "card 3", "card 4"}),
        ("npu-lost", None, {"any card", "card 3", "card 4"}),
        ("nvswitch", None, {"any card", "card 3", "card 4"}),
        ("gpu-lost", 3, {"card 3"}),
        ("mounts", None, {"no card", "any card", "card 3", "card 4"}),
        ("an item of another version", None, {"no card", "any card", "card 3", "card 4"}),
    ],
)
def test_whom_a_condition_keeps_away(item: str, card: int | None, refused: set[str]):
    jobs = {"no card": ((), False), "any card": ((), True), "card 3": ((3,), True), "card 4": ((4,), True)}
    grave = Condition(item, "", Status.CRITICAL, "SOME", "it is so", 0.0, 0.0, card=card)
    assert {who for who, job in jobs.items() if condition_rules.refuses(grave, *job)} == refused
    for status in (Status.WARN, Status.UNKNOWN):
        assert not any(condition_rules.refuses(replace(grave, status=status), *job) for job in jobs.values())
