"""What a view of the driver says of cards that are reset: their present numbers, whether they answer, and which were in
persistence mode."""

from muster.probes.cards.accelerator import BOOTED, NVIDIA, Card
from muster.probes.cards.driver import View
from muster.probes.cards.reset import reset_program


def number(view: View, card: Card) -> int | None:
    """Its number now: the driver may count anew."""
    if not (card.uuid or card.bus_id):
        return card.index if card.index in view.whole else None
    return next((index for index, it in view.whole.items() if _same(card, it)), None)


def _same(card: Card, other: Card) -> bool:
    return bool((card.uuid and other.uuid == card.uuid) or (card.bus_id and other.bus_id == card.bus_id))


def why_absent(view: View, card: Card) -> str:
    """Why a card is not back; empty: it is there, and answers."""
    now = number(view, card)
    if view.driver is not None:
        return f"the driver does not answer: {view.driver.text}"
    if now is None:
        return f"card {card.index} ({card.uuid or card.bus_id}) did not come back"
    if now in view.sick:
        return f"card {now} does not answer: {view.sick[now].text}"
    health = view.health.get(now)
    if health is None:
        return f"card {now} does not answer"
    boot = health.value.npu_boot
    return f"card {now} has not started (boot status {boot})" if boot not in (None, BOOTED) else ""


def persistent(view: View, cards: tuple[Card, ...]) -> list[str]:
    """Those in persistence mode, as nvidia-smi names them. A sick card that does not tell has it as the others have."""
    if cards[0].kind != NVIDIA:
        return []
    told = {index: seen.value.persistence for index, seen in view.health.items() if seen.value.persistence is not None}
    usual = any(told.values())
    return [reset_program.named(card) for card in cards if told.get(card.index, usual)]
