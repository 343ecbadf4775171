"""Which cards of this node its daemon does not let anybody test: a job may hold a card long before its first process is
on it, and a card may be in a reset.

This module imports gRPC: import it inside commands only.
"""

import time
from collections.abc import Mapping

import anyio
import anyio.to_thread

from muster.agent.cli.client.address import Address
from muster.agent.cli.client.calls import connect
from muster.agent.cli.exits import CommandFailed, NoDaemon, Why
from muster.probes.cards.accelerator import Card
from muster.v1 import node_pb2

#: Seconds for which an answer counts, and which the daemon has for it.
_KEPT_S, _ANSWER_S = 1.0, 5.0
#: There is no daemon, and so nobody who gives cards to jobs.
_NOBODY = (Why.ABSENT, Why.REFUSED)


class CardJobs:
    """Asks the daemon whenever its last answer is old."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._asking = anyio.Lock()
        self._until = 0.0
        #: Why cards are taken, by UUID where it is known, else by number; of all cards, where nobody can say.
        self._taken: Mapping[str | int, str] = {}
        self._trouble = ""

    async def taken(self, card: Card) -> str:
        """Why a card is not to be tested; empty: it may be."""
        async with self._asking:  # the cards are tested side by side
            if time.monotonic() >= self._until:
                await anyio.to_thread.run_sync(self._ask)
                self._until = time.monotonic() + _KEPT_S
        return self._trouble or self._taken.get(card.uuid or card.index, "")

    def _ask(self) -> None:
        """Blocks, for _ANSWER_S at most."""
        try:
            with connect(self._address) as connection:
                node = connection.call(connection.nodes.GetNode, node_pb2.GetNodeRequest(), timeout=_ANSWER_S).node
        except NoDaemon as failure:
            self._taken = {}
            self._trouble = "" if failure.why in _NOBODY else f"musterd does not say who holds it: {failure.message}"
        except CommandFailed as failure:
            self._trouble = f"musterd does not say who holds it: {failure.message}"
        else:
            self._trouble = ""
            self._taken = {card.uuid or card.index: why for card in node.cards if (why := _why(card))}


def _why(card: node_pb2.Card) -> str:
    return card.held_by or card.reserved or (f"job {card.job_id} holds it" if card.job_id else "")
