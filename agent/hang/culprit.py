"""The sentence that names the rank to blame for a hang."""

import time
from collections.abc import Mapping
from typing import Any

from muster.agent.text import ranks as named


def sentence(culprit: Mapping[str, Any], since: float) -> str:
    """ "rank 2 sleeps in guilty (train.py:11) since 10:04:11; ranks 0,1,3 wait for it in all_reduce".

    `culprit`: as the evidence of a verdict has it; `since` in seconds since the epoch."""
    at = time.strftime("%H:%M:%S", time.localtime(since))
    ranks, peers, where = tuple(culprit["ranks"]), tuple(culprit["peers"]), culprit["waits_in"]
    verb, whom = "wait" if len(peers) > 1 else "waits", "them" if len(ranks) > 1 else "it"
    text = f"{named(ranks)} {culprit['does']} since {at}"
    return f"{text}; {named(peers)} {verb} for {whom}" + (f" in {where}" if where else "") if peers else text
