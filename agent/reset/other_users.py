"""Who else uses the cards of a reset: asked of the driver before it is closed, and awaited afterwards."""

import os
from collections.abc import Collection, Iterable

import anyio

from muster.agent import threads
from muster.agent.reset.reset_report import StepFailed, StepSkipped
from muster.probes.cards.accelerator import Card
from muster.probes.cards.driver import Driver, What
from muster.probes.cards.reset import device_holders
from muster.probes.cards.reset.device_holders import DeviceHolder, Listed

#: In seconds: between two looks; for other programs to let go of the card (an `nvidia-smi` that somebody calls takes
#: some).
LOOK_S, HOLDERS_S = 1.0, 10.0
#: Of many users so many are named.
_NAMED = 8


class OtherUsers:
    """Of one reset. With `force` it continues although others use the cards."""

    def __init__(self, *, force: bool) -> None:
        self._force = force
        self._listed = Listed()

    async def ask(self, driver: Driver, cards: Collection[int]) -> None:
        """Whom the driver lists on the cards; it may list for a moment who has ended."""
        end = anyio.current_time() + HOLDERS_S
        while True:
            seen = (await driver.refresh(What.HOLDERS, cards)).holders
            lists = [seen[index].value for index in cards if index in seen]
            self._listed = await threads.run(device_holders.listed, lists)
            if not self._listed.unseen or self._force or anyio.current_time() >= end:
                break
            await anyio.sleep(LOOK_S)

    async def wait(self, cards: Iterable[Card]) -> str:
        """Until nobody has one open, once the driver is closed. Raises StepFailed after a while, StepSkipped with
        `force`."""
        unseen = self._listed.unseen
        if unseen and not self._force:
            more = " and more" if len(unseen) > _NAMED else ""
            raise StepFailed(
                f"the driver lists processes that musterd cannot see (pid {', '.join(map(str, unseen[:_NAMED]))}"
                f"{more} of the host), because its container has PIDs of its own: end them, or give the container the"
                " host's PIDs (hostPID), then reset the card again"
            )
        nodes = {card.node for card in cards if card.node}
        end = anyio.current_time() + HOLDERS_S
        while True:
            found = await threads.run(device_holders.holders, nodes, self._listed.visible)
            if not found.holders and not unseen:
                hidden = f"; {found.hidden} processes are not visible without root" if found.hidden else ""
                return f"no process has it open{hidden}"
            if anyio.current_time() >= end or not found.holders:
                break
            await anyio.sleep(LOOK_S)
        names = [*map(_named, found.holders), *Listed(unseen=unseen)]
        held = "; ".join(names[:_NAMED])
        if self._force:
            raise StepSkipped(f"--force: the reset continues although {held} hold it open")
        raise StepFailed(f"it is held open by {held}: end them, then reset the card again")


def _named(holder: DeviceHolder) -> str:
    return "musterd itself" if holder.pid == os.getpid() else str(holder)
