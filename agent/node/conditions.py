"""What is wrong with the node now: conditions, which are latched, and the rules by which they clear.

A condition is identified by (item, device, code); an injected one exists beside a real one of the same code.
`muster.probes.checks.codes` alone defines what a code means and how it clears, and
`muster.probes.node.node_checks.still` whether a look finds a condition again: a result UNKNOWN neither raises nor
clears a condition. This module reads no disk and no card, and its callers pass the time.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from muster.agent.text import cut, local
from muster.probes.checks.result import GRAVITY, Action, CheckResult, Code, Status, one_line
from muster.probes.kernel.dataclass import dataclass
from muster.supervisors.model.card_identity import number_now

#: How a condition clears: see Condition in node.proto.
READING, REBOOT, OPERATOR, AGE = "reading", "reboot", "operator", "age"
#: The item of findings about cards of which only the bus id may be known.
XID = "xid"
#: More than any node has; further ones are counted and reported.
MAX_CONDITIONS = 512
#: Limit of a text from a check, in characters: some contain a line of the kernel log.
MAX_TEXT = 500
#: Limit of such a text in an error, which has to fit into a trailer.
MAX_SENTENCE = 300
#: What becomes a condition, from harmless to grave.
_BAD = GRAVITY[1:]

Key = tuple[str, str, str, bool]
#: For an item, a device and a code: whether these results find it again (True), do not (False), or cannot tell (None).
Still = Callable[[str, str, Code, Sequence[CheckResult]], bool | None]


@dataclass(frozen=True, slots=True)
class Condition:
    """See Condition in node.proto; times in seconds since the epoch, `card` None if it is not about a card."""

    item: str
    device: str
    status: Status
    code: str
    reason: str
    since: float
    seen_at: float
    observed: str = ""
    threshold: str = ""
    action: Action = Action.NONE
    clears: str = READING
    injected: bool = False
    card: int | None = None
    #: Of the card, "" if unknown.
    uuid: str = ""

    @property
    def key(self) -> Key:
        """What tells it from every other condition."""
        return self.item, self.device, self.code, self.injected

    @property
    def elsewhere(self) -> bool:
        """It is about a card that this node does not show, so no job can get it. The kernel log in a container reports
        the Xids of every card of the host."""
        return self.item == XID and self.card is None and bool(self.device)

    @property
    def finding(self) -> str:
        """The device, the code and the reason, in one line."""
        return f"{self.device or 'the node'}: {self.code}: {self.reason}{self._drill}"

    def sentence(self) -> str:
        """The same with its start time, short enough for an error."""
        reason = cut(self.reason, MAX_SENTENCE)
        return f"{self.device or 'the node'}: {self.code} since {local(self.since)}: {reason}{self._drill}"

    @property
    def _drill(self) -> str:
        return " (injected for a drill)" if self.injected else ""


@dataclass(frozen=True, slots=True)
class Moment:
    """`at` is wall-clock time, for people; `up` is seconds since the boot, which no one can set."""

    at: float
    up: float


@dataclass(frozen=True, slots=True)
class ConditionRule:
    """How conditions of a code clear; `age_s` after it was last seen, if it clears by age. Without `condition` a result
    with this code is no condition, however grave. A `steady` one clears with the first look that does not find it."""

    clears: str
    age_s: float = 0.0
    condition: bool = True
    steady: bool = False


@dataclass(frozen=True, slots=True)
class ConditionChange:
    """A condition that began (`was` None), changed its status (`was`: the earlier one) or cleared (`gone`: why)."""

    condition: Condition
    was: Status | None = None
    gone: str = ""


@dataclass(slots=True)
class Latched:
    """A condition and what decides its end: how many looks in a row did not find it, when (boot time) the last of them
    was counted, and when it was last seen; `age_s` of an injected one."""

    condition: Condition
    seen_up: float
    misses: int = 0
    missed_up: float = 0.0
    age_s: float | None = None


class Conditions:
    """All conditions. Not thread-safe."""

    def __init__(
        self,
        rules: Callable[[str], ConditionRule],
        still: Still,
        looks: Callable[[], int],
        spacing: Callable[[str], float],
        uuids: Callable[[], Mapping[int, str]] = dict,
    ) -> None:
        """`looks`: how many looks in a row must not find a condition that is not steady before it clears. `spacing`:
        seconds between two looks that count, by item, so that a burst of looks does not clear an intermittent
        condition. `uuids`: of the existing cards, by number."""
        self._rules = rules
        self._still = still
        self._looks = looks
        self._spacing = spacing
        self._uuids = uuids
        self._latched: dict[Key, Latched] = {}
        self._sorted: list[Condition] | None = None
        #: Conditions that were not stored because there are too many.
        self.refused = 0

    @property
    def all(self) -> list[Condition]:
        """All conditions, the gravest first, then the oldest."""
        if self._sorted is None:
            found = (latched.condition for latched in self._latched.values())
            self._sorted = sorted(found, key=lambda c: (-GRAVITY.index(c.status), c.since, c.item, c.device))
        return list(self._sorted)

    # --- new conditions -----------------------------------------------------------------------------------------------

    def look(self, results: Sequence[CheckResult], cards: Collection[int] | None, now: Moment) -> list[ConditionChange]:
        """Stores what a look found, and clears what it no longer finds.

        `cards`: the look examined only these, and everything that is not about a card; None: all cards.
        """
        changes = [change for result in results if (change := self.found(result, now)) is not None]
        for latched in list(self._latched.values()):
            condition = latched.condition
            looked_at = cards is None or condition.card is None or condition.card in cards
            if condition.injected or not looked_at or self._rules(condition.code).clears != READING:
                continue
            # `found` handles what is found again. A reading does not clear a code without a rule.
            over = self._still(condition.item, condition.device, Code(condition.code), results) is False
            if over and self._missed(latched, now):
                changes.append(self._drop(condition, "it is normal again"))
        return changes

    def found(self, result: CheckResult, now: Moment) -> ConditionChange | None:
        """Latches a finding; None if it is no condition, or changes nothing worth an event."""
        rule = self._rules(str(result.code))
        if result.status not in _BAD or not rule.condition:
            return None
        new = Condition(
            item=result.item,
            device=result.device,
            status=result.status,
            code=str(result.code),
            reason=said(result.reason, result.device),
            since=now.at,
            seen_at=now.at,
            observed=shown(result.observed),
            threshold=shown(result.threshold),
            action=result.action,
            clears=rule.clears,
            card=result.card,
            uuid=self._uuids().get(result.card, "") if result.card is not None else "",
        )
        latched = self._latched.get(new.key)
        if latched is None:
            return self._take(Latched(new, now.up))
        old = latched.condition
        # A condition by reading has the status of the last reading; a latched one keeps its gravest status.
        eased = new.clears != READING and GRAVITY.index(new.status) < GRAVITY.index(old.status)
        status = old.status if eased else new.status
        latched.condition = replace(new, since=old.since, status=status)
        latched.seen_up, latched.misses = now.up, 0
        self._sorted = None
        return ConditionChange(latched.condition, old.status) if status is not old.status else None

    def inject(self, condition: Condition, age_s: float, now: Moment) -> ConditionChange | None:
        """A condition for a drill, which clears after `age_s`; None if the same one existed."""
        old = self._latched.get(condition.key)
        if old is not None:
            old.condition = replace(condition, since=old.condition.since)
            old.seen_up, old.age_s, self._sorted = now.up, age_s, None
            return None
        return self._take(Latched(condition, now.up, age_s=age_s))

    def restore(self, kept: Iterable[Latched], same_boot: bool, now: Moment) -> list[ConditionChange]:
        """Restores conditions from a file. After a reboot drops drills and conditions that a reboot clears."""
        changes = []
        for latched in kept:
            condition = latched.condition
            clears = condition.clears if condition.injected else self._rules(condition.code).clears
            latched.condition = replace(condition, clears=clears)
            self._latched[condition.key] = latched
            if not same_boot:
                # The clock of another boot is useless here: the age comes from the wall clock.
                latched.seen_up = now.up - max(0.0, now.at - condition.seen_at)
                latched.misses, latched.missed_up = 0, 0.0
                if clears == REBOOT or condition.injected:
                    changes.append(self._drop(condition, "the node has rebooted"))
        self._sorted = None
        return changes

    # --- clearing -----------------------------------------------------------------------------------------------------

    def clear(self, code: str, device: str, why: str) -> list[ConditionChange]:
        """Clears the conditions of a code, of one device or (empty) of all."""
        chosen = [c for c in self.all if c.code == code and device in ("", c.device)]
        return [self._drop(condition, why) for condition in chosen]

    def follow(self) -> list[ConditionChange]:
        """Moves conditions with their cards to new numbers. Clears a condition if another card has the number and the
        driver does not show its own card: a missing card is a condition of its own."""
        shown, changes = self._uuids(), list[ConditionChange]()
        for latched in list(self._latched.values()):
            condition = latched.condition
            if condition.card is None or not condition.uuid:
                continue
            number = number_now(condition.card, condition.uuid, shown)
            if number == condition.card:
                continue
            gone = self._drop(condition, f"the driver gave number {condition.card} to another card")
            device = f"card {number}" if condition.device == f"card {condition.card}" else condition.device
            new = replace(condition, card=number, device=device)
            if number is None:
                changes.append(gone)
            elif new.key not in self._latched:
                latched.condition = new
                self._latched[new.key] = latched
        return changes

    def expire(self, now: Moment) -> list[ConditionChange]:
        """Clears conditions that are old enough."""
        gone = []
        for latched in list(self._latched.values()):
            condition = latched.condition
            rule = self._rules(condition.code)
            age = latched.age_s if condition.injected else rule.age_s if rule.clears == AGE else None
            if age is not None and now.up - latched.seen_up >= age:
                why = "the drill has ended" if condition.injected else f"it was not seen again for {age:g} s"
                gone.append(self._drop(condition, why))
        return gone

    def unwatched(self, items: Collection[str], why: str) -> list[ConditionChange]:
        """Clears conditions that only a look could clear and no check looks for any more: only `items` are still
        checked."""
        chosen = [c for c in self.all if c.clears == READING and not c.injected and c.item not in items]
        return [self._drop(condition, why) for condition in chosen]

    def kept(self) -> list[Latched]:
        """Conditions for a file."""
        return list(self._latched.values())

    def _missed(self, latched: Latched, now: Moment) -> bool:
        """Counts a look that did not find it; returns whether it was the last one needed."""
        if latched.misses and now.up - latched.missed_up < self._spacing(latched.condition.item):
            return False
        latched.misses += 1
        latched.missed_up = now.up
        return self._rules(latched.condition.code).steady or latched.misses >= self._looks()

    def _take(self, latched: Latched) -> ConditionChange | None:
        if len(self._latched) >= MAX_CONDITIONS:
            self.refused += 1
            return None
        self._latched[latched.condition.key] = latched
        self._sorted = None
        return ConditionChange(latched.condition)

    def _drop(self, condition: Condition, why: str) -> ConditionChange:
        del self._latched[condition.key]
        self._sorted = None
        return ConditionChange(condition, condition.status, why)


def said(text: str, device: str) -> str:
    """A text about a device without the leading name of the device, which is shown beside it; see `shown`."""
    return shown(text.removeprefix(f"{device}: ") if device else text)


def shown(text: str) -> str:
    """A text of a check or the kernel, fit for a line: no control characters, bounded length."""
    return cut(one_line(text), MAX_TEXT)
