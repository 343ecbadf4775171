"""Which card a reset is for."""

from dataclasses import replace

from muster.agent.errors import CannotReset, NoSuchCard
from muster.agent.reset.reset_file import ResetRecord
from muster.probes.cards.accelerator import Card
from muster.probes.cards.driver import View


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


def _named(view: View, name: str) -> Card:
    for index, card in view.cards.items():
        if name.lower() in (str(index), card.uuid.lower(), card.bus_id, card.serial.lower()):
            return card
    have = ", ".join(map(str, view.cards)) or "none"
    raise NoSuchCard(f"card {name!r}: the cards of this node are {have}")
