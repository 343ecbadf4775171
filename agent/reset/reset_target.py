"""Which card a reset is for, what goes with it, and whether it may be."""

from dataclasses import replace
from typing import TYPE_CHECKING

from muster.agent import threads
from muster.agent.errors import CannotReset, NoSuchCard
from muster.agent.reset.reset_file import ResetRecord
from muster.agent.reset.reset_report import ResetRequest
from muster.probes.cards.accelerator import Card
from muster.probes.cards.driver import Driver, View

if TYPE_CHECKING:  # nearly no daemon ever resets a card
    from muster.probes.cards.reset.reset_group import ResetPlan


def known(view: View, left: ResetRecord | None) -> View:
    """The view, in which a card that no longer tells its ids has those that it had at its last reset, `left`."""
    card = view.cards.get(left.card) if left is not None else None
    if left is None or card is None or card.uuid or card.bus_id:
        return view
    if any(left.uuid == it.uuid or left.bus_id == it.bus_id for it in view.cards.values() if it.uuid):
        return view  # the driver counts anew: this is another card
    return replace(view, cards={**view.cards, left.card: replace(card, uuid=left.uuid, bus_id=left.bus_id)})


def named(view: View, name: str, left: ResetRecord | None) -> Card:
    """The card of this number, UUID, serial number or bus id.

    While a reset that failed or was interrupted is open (`left`), the number of its card means that card, whatever the
    driver has given the number to, and no other card is reset: its end would pass for the end of that one's. Raises
    NoSuchCard, CannotReset.
    """
    if left is None or not (left.uuid or left.bus_id):
        return _named(view, name)
    open_for = f"the reset of {left.device} ({left.bus_id or left.uuid}) is open"
    mine = [it for it in view.cards.values() if it.bus_id == left.bus_id or (it.uuid and it.uuid == left.uuid)]
    mine.sort(key=lambda it: it.bus_id != left.bus_id)
    if name == str(left.card):
        if mine:
            return mine[0]
        raise CannotReset(
            f"{open_for}, and the driver lists no such card any more: reboot the node; `muster node undrain` returns "
            "it to service without the card"
        )
    card = _named(view, name)
    if mine and card.index in (mine[0].index, *left.together):
        return card
    raise CannotReset(
        f"card {card.index} ({card.bus_id or card.uuid}) is another one, and {open_for}: its end would pass for that "
        f"one's. Reset that one with `muster node reset {left.card}`, or end it with `muster node undrain`"
    )


async def planned(driver: Driver, view: View, card: Card) -> "ResetPlan":
    """What a reset of the card takes along."""
    from muster.probes.cards.reset import reset_group

    now = await driver.describe(card.index)
    if now is not None and now.mig:  # somebody may have switched it on since the card was listed
        view = replace(view, cards={**view.cards, card.index: replace(card, mig=True)})
    return await threads.run(reset_group.plan, view, card.index)


def refuse(card: Card, plan: "ResetPlan", request: ResetRequest) -> None:
    """Raises CannotReset where it cannot be, or is of no use and nobody insists."""
    from muster.probes.cards.reset import reset_program

    if plan.refusal:
        raise CannotReset(f"card {card.index}: {plan.refusal}")
    if plan.doubt and not request.force:
        raise CannotReset(f"card {card.index}: {plan.doubt}; --force resets it nevertheless")
    if not reset_program.find(card.kind):
        name = reset_program.name(card.kind)
        raise CannotReset(f"card {card.index}: {name}, which resets it, is not found in PATH: install it")


def _named(view: View, name: str) -> Card:
    for index, card in view.cards.items():
        if name.lower() in (str(index), card.uuid.lower(), card.bus_id, card.serial.lower()):
            return card
    have = ", ".join(map(str, view.cards)) or "none"
    raise NoSuchCard(f"card {name!r}: the cards of this node are {have}")
