"""The sentence that names a slow rank."""

from collections.abc import Mapping
from typing import Any

from muster.agent.text import ranks as named
from muster.agent.text import time_of_day
from muster.probes.hang.slow import SlowChange


def sentence(change: SlowChange) -> str:
    """ "rank 3 takes 2.1 times as long as its peers since 10:04:11; ranks 0-2 wait for it in 71 % of 14 readings"; of
    EVEN "no rank is slow any more". Of several slow ranks the numbers are those of the first."""
    if not change.ranks:
        return "no rank is slow any more"
    at = time_of_day(change.since)
    seen: Mapping[str, Any] = change.evidence["ranks"][str(change.ranks[0])]
    verb, whom = ("take", "them") if len(change.ranks) > 1 else ("takes", "it")
    if by_cards := seen.get("cards"):
        share = 100 * by_cards["waited"] / by_cards["readings"]
        where = f"in {share:.0f} % of {by_cards['readings']} readings"
        idles = ", and its card idles then" if by_cards["card_idles"] and len(change.ranks) == 1 else ""
        peers, factor = by_cards["peers"], by_cards["factor"]
    else:
        by_stacks = seen["stacks"]
        call = f"in {by_stacks['waits_in']} " if by_stacks["waits_in"] else ""
        where = f"{call}in {by_stacks['blamed']} of {by_stacks['dumps']} dumps"
        idles = f", and it {by_stacks['does']} then" if by_stacks["does"] and len(change.ranks) == 1 else ""
        peers, factor = by_stacks["peers"], by_stacks["factor"]
    waiting = "wait" if len(peers) > 1 else "waits"
    least = "at least " if seen.get("stacks", {}).get("at_least") and not by_cards else ""
    text = f"{named(change.ranks)} {verb} {least}{factor:.1f} times as long as its peers since {at}"
    if len(change.ranks) > 1:
        text = text.replace("its peers", "their peers")
    return f"{text}; {named(peers)} {waiting} for {whom} {where}{idles}"
