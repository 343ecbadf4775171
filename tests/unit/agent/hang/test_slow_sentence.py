"""The sentence that names a slow rank."""

import time
from typing import Any

from muster.agent.hang.slow_sentence import sentence
from muster.probes.hang.slow import SlowChange, SlowVerdict

AT = time.strftime("%H:%M:%S", time.localtime(1e9))
CARDS: dict[str, Any] = {"peers": [0, 1, 2], "factor": 3.44, "readings": 14, "waited": 10, "card_idles": False}
STACKS: dict[str, Any] = {"peers": [0, 2], "factor": 2.0, "dumps": 9, "blamed": 8, "does": "", "waits_in": "barrier"}


def said(seen: dict[str, Any], *ranks: int) -> str:
    evidence = {"ranks": {str(rank): seen for rank in ranks}}
    return sentence(SlowChange(1e9, "j", SlowVerdict.SLOW, ranks, 1e9, 0.9, evidence))


def test_by_cards() -> None:
    text = f"rank 3 takes 3.4 times as long as its peers since {AT}; ranks 0-2 wait for it in 71 % of 14 readings"
    assert said({"cards": CARDS}, 3) == text
    assert said({"cards": CARDS | {"card_idles": True}}, 3) == f"{text}, and its card idles then"
    assert said({"cards": CARDS | {"peers": [0]}}, 3, 4).startswith("ranks 3-4 take 3.4 times as long as their peers")


def test_by_stacks() -> None:
    text = f"rank 1 takes 2.0 times as long as its peers since {AT}; ranks 0,2 wait for it in barrier in 8 of 9 dumps"
    assert said({"stacks": STACKS}, 1) == text
    doing = STACKS | {"does": "runs in evaluate (train.py:40)"}
    assert said({"stacks": doing}, 1) == f"{text}, and it runs in evaluate (train.py:40) then"


def test_when_it_is_over() -> None:
    assert sentence(SlowChange(1e9, "j", SlowVerdict.EVEN, (), 1e9, 1.0)) == "no rank is slow any more"
