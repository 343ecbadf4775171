"""The mark of a drill: an injected condition must never look like a real one."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from muster.v1 import node_pb2

#: The mark after a card's health, where the column is narrow; FOOT explains it.
STAR = "*"
FOOT = "* from a condition injected for a drill\n"


def reason(condition: "node_pb2.Condition") -> str:
    """The reason with the mark of a drill."""
    return condition.reason + (" (injected for a drill)" if condition.injected else "")


def health(card: "node_pb2.Card", conditions: "Sequence[node_pb2.Condition]") -> str:
    """A card's health, with a star if only drills cause it."""
    same = [c.injected for c in conditions if c.HasField("card") and c.card == card.index and c.status == card.health]
    return card.health + (STAR if same and all(same) else "")
