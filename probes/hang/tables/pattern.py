"""What a row of table 3 says."""

from collections.abc import Callable

from muster.probes.hang.facts.moment import JobMoment, Scene
from muster.probes.hang.verdicts import HangKind, HangVerdict
from muster.probes.kernel.dataclass import dataclass
from muster.probes.waits import WaitKind

#: The ranks that a verdict is about, and what each of those does that stands out.
Who = Callable[[JobMoment], tuple[tuple[int, ...], dict[int, str]]]


def all_ranks(m: JobMoment) -> tuple[tuple[int, ...], dict[int, str]]:
    """All ranks."""
    return m.all_ranks, {}


def nobody(_: JobMoment) -> tuple[tuple[int, ...], dict[int, str]]:
    """No rank."""
    return (), {}


def odd_ranks(m: JobMoment) -> tuple[tuple[int, ...], dict[int, str]]:
    """Ranks that stand out, else all."""
    return m.odd_ranks, m.odd


def computing(m: JobMoment) -> tuple[tuple[int, ...], dict[int, str]]:
    """Ranks that compute, else those that stand out."""
    return m.computing or m.odd_ranks, {}


def blamed(m: JobMoment) -> tuple[tuple[int, ...], dict[int, str]]:
    """Ranks that the others wait for."""
    found = m.stacks.culprit
    return (found.ranks, dict.fromkeys(found.ranks, found.does)) if found is not None else ((), {})


def kind_of_proof(m: JobMoment) -> HangKind:
    """By what the ranks to blame do, then by what the cards do."""
    found = m.stacks.proven or m.stacks.suspected
    kind = found.place.kind if found is not None else WaitKind.UNKNOWN
    if kind is WaitKind.RUNS:
        return HangKind.LIVELOCK
    if kind in (WaitKind.STOPPED, WaitKind.BLOCKED):
        return HangKind.STOPPED if kind is WaitKind.STOPPED else HangKind.IO_BLOCKED
    if m.cards.spins:
        return HangKind.SPIN
    return HangKind.NOTIFY_WAIT if m.npus_fell_silent else HangKind.DEADLOCK


def proof_clears(_: JobMoment) -> tuple[str, ...]:
    return "another place of a rank", "lines of a log, IO or CPU time of the rank", "a card that works"


def since_silent(m: JobMoment) -> float:
    """The begin of the silence."""
    return m.since


def since_limit(m: JobMoment) -> float:
    """The begin of the silence; with some rows of table 2 that is the last line of a log."""
    return m.limit.since


def sleep_clears(m: JobMoment) -> tuple[str, ...]:
    """What ends the sleep of processes whose cards idle."""
    cpu = f"{m.s.cpu_busy_s:g} s of CPU a minute"
    card = ("a card's utilization that changes",) if m.looks else ()
    return ("IO of a rank above its floor", *card, cpu)


def with_cards(text: str, of_cards: str) -> Callable[[JobMoment], str]:
    """A rule's text, with what it says of cards where the job has any."""
    return lambda m: text + (of_cards if m.looks else "")


STOPPED = "processes: one is stopped by a signal"
BUSY = with_cards("processes: a rank computes on the CPU", ", cards idle")
SEEMS_STUCK = "stacks: the others wait for a rank that stays in one place and does nothing"
UNSEEN = with_cards("processes are silent", ", and no card reports utilization")


@dataclass(frozen=True, slots=True)
class PatternRow:
    """A row. `scene` None: any. `words`: its condition. `verdict` None: no verdict; the one before stands.
    `scenario`: one of the corpus in which the row decides.

    `ladder`: the row is HUNG only from the limit on; SUSPECT after so many seconds, without verdict before.
    `rule`: what the evidence shows. `who`: whom it is about; its docstring stands in docs/reference/hang-rule.md.
    `since`: begin of what it is about. `limit`: named rows of table 2; the first that holds counts besides the others.
    `sure`: the confidence, if that is not what table 2 says; `less` is subtracted. `clears`: what would have kept it
    from being said. `asleep`: it rests on processes that sleep. `on_cards`: it rests on what cards do, and the evidence
    shows the thresholds of that.
    """

    name: str
    scene: Scene | None
    words: str
    when: Callable[[JobMoment], bool]
    verdict: HangVerdict | None
    scenario: str
    kind: HangKind | Callable[[JobMoment], HangKind] | None = None
    rule: str | Callable[[JobMoment], str] = ""
    who: Who = all_ranks
    since: Callable[[JobMoment], float] = since_silent
    ladder: Callable[[JobMoment], float] | None = None
    limit: tuple[str, ...] = ()
    sure: float | None = None
    less: float = 0.0
    clears: Callable[[JobMoment], tuple[str, ...]] | None = None
    asleep: bool = False
    on_cards: bool = False

    def kind_at(self, m: JobMoment) -> HangKind | None:
        """Now."""
        return self.kind(m) if callable(self.kind) else self.kind

    def verdict_at(self, m: JobMoment) -> HangVerdict | None:
        """Now."""
        if self.ladder is None:
            return self.verdict
        silent = m.now - self.since(m)
        if m.limit.seconds is not None and silent >= m.limit.seconds:
            return self.verdict
        return HangVerdict.SUSPECT if silent >= self.ladder(m) else None
