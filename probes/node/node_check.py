"""What a node check is, and the words in which it gives its results."""

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import field
from pathlib import Path
from typing import TypeVar

from muster.probes.cards.accelerator import Card, Health, Holder, Reading, Trouble
from muster.probes.cards.driver import Seen, Sick, View, What
from muster.probes.checks.codes import EXPLANATIONS
from muster.probes.checks.result import Action, CheckResult, Code, Status
from muster.probes.kernel.dataclass import dataclass
from muster.probes.node.memory import Memory
from muster.probes.node.node_settings import NodeSettings

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class NodeCheck:
    """One check: its item, what it looks at, the seconds between two looks (0: it is made by events alone), the codes
    that it can give beside those common to all. `of_cards`: what it finds is about cards, all of them where it names
    none, and nothing to a job that wants none."""

    item: str
    looks_at: str
    interval_s: float
    codes: tuple[Code, ...]
    of_cards: bool = False


@dataclass(frozen=True, slots=True)
class Roots:
    """Where a check finds the kernel's files; others in a test."""

    proc: Path = Path("/proc")
    sys: Path = Path("/sys")
    dev: Path = Path("/dev")


@dataclass(frozen=True, slots=True)
class Look:
    """What a check has to go by in one look. `now` is seconds of CLOCK_BOOTTIME, which nobody can set; `held` the job
    that has a card, by index; `only` the cards that somebody asked about (None: all)."""

    settings: NodeSettings
    view: View
    memory: Memory
    now: float
    roots: Roots = field(default_factory=Roots)
    held: Mapping[int, str] = field(default_factory=dict)
    only: frozenset[int] | None = None
    #: Folders of muster itself.
    own_paths: tuple[str, ...] = ()

    def cards(self, *kinds: str) -> list["CardFacts"]:
        """The cards of these kinds that are asked about, by index; also those that do not answer."""
        view = self.view
        return [
            CardFacts(
                card,
                _value(view.health, index),
                _value(view.readings, index),
                _value(view.holders, index),
                view.sick.get(index),
            )
            for index, card in sorted(view.whole.items())
            if card.kind in kinds and (self.only is None or index in self.only)
        ]


@dataclass(frozen=True, slots=True)
class CardFacts:
    """What is known of one card at one look. `sick` says why there is no answer, where there is none."""

    card: Card
    health: Health | None = None
    reading: Reading | None = None
    holders: tuple[Holder, ...] | None = None
    sick: Sick | None = None

    @property
    def index(self) -> int:
        """The card's number on this node."""
        return self.card.index


def _value(known: Mapping[int, Seen[T]], index: int) -> T | None:
    seen = known.get(index)
    return None if seen is None else seen.value


#: What makes the results of an item. It may hang: its caller gives it a deadline.
Judge = Callable[[Look], Awaitable[list[CheckResult]]]


@dataclass(frozen=True, slots=True)
class NodeRule:
    """A check with what does it: what of the driver must be fresh for it, and why it does not apply ("": it does)."""

    check: NodeCheck
    judge: Judge
    applies: Callable[[Look], str]
    needs: frozenset[What] = frozenset()


@dataclass(frozen=True, slots=True)
class About:
    """Gives the results of one item on one device; status and action are those of the code unless said otherwise."""

    item: str
    device: str = ""
    card: int | None = None

    def ok(self, reason: str, observed: str = "", threshold: str = "") -> CheckResult:
        """The item is as it should be."""
        return self.found(Code.NODE_OK, reason, observed, threshold)

    def off(self, reason: str) -> CheckResult:
        """There is nothing here that the item could be about."""
        return self.found(Code.NODE_NOT_APPLICABLE, reason)

    def not_told(self, reason: str) -> CheckResult:
        """What the item needs to know could not be had this time."""
        return self.found(Code.NODE_NOT_TOLD, reason)

    def found(
        self,
        code: Code,
        reason: str,
        observed: str = "",
        threshold: str = "",
        *,
        evidence: str = "",
        status: Status | None = None,
        action: Action | None = None,
    ) -> CheckResult:
        """A result with this code. `evidence`: what was read, word for word."""
        row = EXPLANATIONS[code]
        return CheckResult(
            self.item,
            row.status if status is None else status,
            code,
            reason,
            observed,
            threshold,
            row.action if action is None else action,
            device=self.device,
            card=self.card,
            evidence=evidence,
        )


def counted(number: int, one: str) -> str:
    """A number with its noun, given in the singular: "1 error", "3 errors"."""
    return f"{number} {one}" if number == 1 else f"{number} {one}s"


def about(item: str, facts: CardFacts) -> About:
    """For results on one card."""
    return About(item, f"card {facts.index}", facts.index)


#: Troubles of one call, which leave the answers of others as they are.
_OTHERS_HOLD = frozenset({Trouble.FAILED, Trouble.NOT_TOLD})


def each(
    item: str,
    kinds: tuple[str, ...],
    judge: Callable[[About, CardFacts, Health, Look], list[CheckResult]],
    reads: Collection[str] = (),
) -> Judge:
    """A check that judges each card by its health: a card without a report is NODE_NOT_TOLD, and `driver` says why. It
    is the same for a card of which the driver failed to tell one of the fields of Health that the check `reads`.

    What a card reports is judged although another call for it fails: that it must be replaced counts all the same.
    """

    async def judged(look: Look) -> list[CheckResult]:
        results: list[CheckResult] = []
        for facts in look.cards(*kinds):
            say = about(item, facts)
            if facts.sick is not None and (facts.health is None or facts.sick.trouble not in _OTHERS_HOLD):
                results.append(say.not_told(f"the card does not answer ({facts.sick.trouble})"))
            elif facts.health is None:
                results.append(say.not_told("its readings are not known yet"))
            else:
                results += untold(say, facts.health, reads) or judge(say, facts, facts.health, look)
        return results

    return judged


def untold(say: About, health: Health, reads: Collection[str]) -> list[CheckResult]:
    """NODE_NOT_TOLD where the driver failed to tell one of these fields of a card's health: what was found before is
    neither over nor found again."""
    text = next((health.untold[name] for name in reads if name in health.untold), "")
    return [say.not_told(f"its driver failed to report it this time: {text}")] if text else []


def for_kinds(*kinds: str) -> Callable[[Look], str]:
    """Applies where there are cards of these kinds."""

    def applies(look: Look) -> str:
        if any(card.kind in kinds for card in look.view.cards.values()):
            return ""
        return f"there are no {' or '.join(kinds)} cards"

    return applies


def everywhere(_look: Look) -> str:
    """Applies to each node."""
    return ""
