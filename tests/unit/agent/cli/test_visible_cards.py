"""Which cards a standalone run takes where the environment names some."""

import pytest

from muster.agent.cli.exits import CommandFailed, Exit
from muster.agent.cli.spec import visible_cards
from muster.agent.cli.spec.job_spec import Draft
from muster.supervisors.model.spec import FIELDS

CUDA = "CUDA_VISIBLE_DEVICES"


def cards(wanted: int | bool | tuple[int, ...] | None, env: dict[str, str]) -> object:
    draft = Draft()
    if wanted is not None:
        draft.say(FIELDS["card_count"], wanted, "--cards")
    visible_cards.keep_to(draft, env)
    asked = draft.asked
    assert sum(map(bool, (asked.card_indices, asked.card_count, asked.all_cards))) <= 1
    return asked.card_indices or asked.card_count or asked.all_cards


@pytest.mark.parametrize(
    ("wanted", "env", "expected"),
    [
        (2, {CUDA: "2,3"}, (2, 3)),
        (1, {CUDA: "7,3"}, (7,)),
        (True, {CUDA: " 4, 6"}, (4, 6)),
        (True, {CUDA: "1,-1,2"}, (1,)),
        (True, {CUDA: "1,1,2"}, (1,)),
        (2, {"ASCEND_RT_VISIBLE_DEVICES": "4,5,6,7"}, (4, 5)),
        (2, {"ASCEND_RT_VISIBLE_DEVICES": "4,5,6,7", CUDA: ""}, (4, 5)),
        (2, {"ASCEND_RT_VISIBLE_DEVICES": "4,5", CUDA: "-1"}, (4, 5)),
        (1, {"ASCEND_RT_VISIBLE_DEVICES": "4,5", CUDA: "4,5"}, (4,)),
        (2, {}, 2),
        (True, {}, True),
        ((0, 1), {CUDA: "2,3"}, (0, 1)),
        (None, {CUDA: "2,3"}, False),
        (None, {CUDA: ""}, False),
    ],
)
def test_the_cards_are_those_that_the_environment_names(
    wanted: int | bool | tuple[int, ...] | None, env: dict[str, str], expected: object
) -> None:
    assert cards(wanted, env) == expected


@pytest.mark.parametrize(
    ("wanted", "value", "said"),
    [
        (3, "0,1", "CUDA_VISIBLE_DEVICES: '0,1' names 2 cards, and --cards asks for 3: unset the variable, or "),
        (2, "5", "'5' names 1 card, and --cards asks for 2"),
        (1, "", "'' names no card, and --cards asks for 1"),
        (True, "NoDevFiles", "'NoDevFiles' names no card, and --cards asks for all"),
    ],
)
def test_fewer_than_are_asked_for_are_refused(wanted: int | bool, value: str, said: str) -> None:
    with pytest.raises(CommandFailed) as caught:
        cards(wanted, {CUDA: value})
    assert said in str(caught.value) and caught.value.exit_code == Exit.USAGE


def test_variables_that_name_different_cards_are_refused() -> None:
    with pytest.raises(
        CommandFailed, match="CUDA_VISIBLE_DEVICES=0,1 and ASCEND_RT_VISIBLE_DEVICES=4,5 name different"
    ):
        cards(2, {"ASCEND_RT_VISIBLE_DEVICES": "4,5", CUDA: "0,1"})


@pytest.mark.parametrize("value", ["GPU-8f1c", "MIG-0b2d,MIG-77aa"])
def test_names_that_are_no_numbers_choose_nothing(value: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert cards(1, {CUDA: value}) == 1
    assert "CUDA_VISIBLE_DEVICES names cards by UUID and does not choose" in capfd.readouterr().err
