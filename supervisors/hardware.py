"""Is the hardware of a job still there? Asked when it has ended badly."""

import os
from collections.abc import Sequence

#: Device nodes of cards by their kind.
NODES = {"nvidia": "nvidia{}", "ascend": "davinci{}"}


def fault(card_kind: str, cards: Sequence[int], dev: str = "/dev") -> str:
    """A sentence about the cards that are gone; empty where nothing is known against them."""
    name = NODES.get(card_kind)
    gone = [f"{dev}/{name.format(i)}" for i in cards if not os.path.exists(f"{dev}/{name.format(i)}")] if name else []
    return f"{', '.join(gone)}: the card is not there any more" if gone else ""
