"""What two looks at a communication library prove: which collective stands still, which ranks wait in it, which did not
come."""

import enum
from collections.abc import Sequence

from muster.probes.kernel import number_lists
from muster.probes.kernel.dataclass import dataclass


class LibraryVerdict(enum.StrEnum):
    """What two looks say of a job."""

    MOVES = "moves"  # something advanced between the looks: no proof of a hang
    IDLE = "idle"  # nothing moves, but no rank is inside a collective
    ABSENT = "absent"  # ranks wait in a collective to which named ranks did not come
    LAUNCHED = "launched"  # all ranks came to the collective, and it does not complete: no culprit among the ranks
    EVEN = "even"  # all ranks launched as many collectives, and nothing moves; whether these completed is unknown (RAS)
    MISMATCH = "mismatch"  # the ranks of a group called different collectives
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class StuckCollective:
    """A collective of one group that stood still between the looks; ranks are those of the job, in order.

    `call`: its name as the library has it ("nccl:all_reduce"), empty where that is unknown; `number`: its place in the
    group's order. `inside` wait in it, `absent` did not come to it, and of `unknown` no answer was had. `elsewhere`:
    ranks that did not come and that have no number here, in words (RAS: processes on other nodes). `line`: the user's
    line that called it, in the first of `inside`. `calls`: what each rank called, where they differ.
    """

    group: str
    call: str
    number: int
    inside: tuple[int, ...]
    absent: tuple[int, ...] = ()
    unknown: tuple[int, ...] = ()
    elsewhere: tuple[str, ...] = ()
    line: str = ""
    calls: tuple[tuple[str, tuple[int, ...]], ...] = ()

    @property
    def text(self) -> str:
        """ "ranks 0-2 wait in nccl:all_reduce (number 7 of group default_pg), to which rank 3 did not come"."""
        where = f"{self.call or 'a collective'} (number {self.number} of group {self.group})"
        if self.calls:
            called = "; ".join(f"{_ranks(ranks)} called {call}" for call, ranks in self.calls)
            return f"number {self.number} of group {self.group} is not the same collective in all ranks: {called}"
        said = f"{_ranks(self.inside)} {_verb(self.inside, 'waits', 'wait')} in {where}"
        missing = [_ranks(self.absent)] if self.absent else []
        missing += self.elsewhere
        if missing:
            return f"{said}, to which {' and '.join(missing)} did not come"
        if self.unknown:
            return f"{said}; {_ranks(self.unknown)} did not answer"
        return f"{said}, to which all its ranks came"


@dataclass(frozen=True, slots=True)
class LibraryFinding:
    """`culprits`: with ABSENT, the ranks that did not come and do not wait for another rank themselves; empty where
    each of them waits for another (a deadlock across groups), or where they are on other nodes. `stuck`: what the
    verdict is about comes first. `moved`: with MOVES,
    the ranks that advanced. `reason`: one sentence for people, whatever the verdict."""

    verdict: LibraryVerdict
    reason: str
    culprits: tuple[int, ...] = ()
    stuck: tuple[StuckCollective, ...] = ()
    moved: tuple[int, ...] = ()

    @property
    def stands_still(self) -> bool:
        """Whether ranks wait in a collective that does not go on. That is proof of where they wait, not that it lasts:
        to a rank that saves a checkpoint for minutes the others wait just so."""
        return self.verdict in (LibraryVerdict.ABSENT, LibraryVerdict.LAUNCHED, LibraryVerdict.MISMATCH)


def finding_of(stuck: Sequence[StuckCollective]) -> LibraryFinding:
    """The finding over collectives that stand still, one at least. The first of these rules that fits decides:

    - ranks did not come to a collective and wait in none themselves: ABSENT, and they are the culprits. A rank that
      waits in another collective is none: the fault is there. Ranks of which there is no answer change nothing here,
      since each culprit's own answer shows all of its groups.
    - processes without a rank number here (other nodes) did not come: ABSENT, without culprits.
    - ranks of one group called different collectives: MISMATCH.
    - there are ranks without an answer: each may be the one that did not come, so UNDECIDED.
    - all ranks came to a collective: LAUNCHED.
    - else each rank that did not come waits for another one: ABSENT, without culprits, a deadlock across groups.
    """
    waiting = {rank for one in stuck for rank in one.inside}
    culprits = tuple(sorted({rank for one in stuck for rank in one.absent} - waiting))
    ways: tuple[tuple[LibraryVerdict, list[StuckCollective], str], ...] = (
        (LibraryVerdict.ABSENT, [one for one in stuck if set(one.absent) & set(culprits)], ""),
        (LibraryVerdict.ABSENT, [one for one in stuck if one.elsewhere], ""),
        (LibraryVerdict.MISMATCH, [one for one in stuck if one.calls], ""),
        (LibraryVerdict.UNDECIDED, [one for one in stuck if one.unknown], ", and may be what the others wait for"),
        (LibraryVerdict.LAUNCHED, [one for one in stuck if not one.absent], ", and it does not complete"),
    )
    for verdict, first, end in ways:
        if first:
            others = [one for one in stuck if one not in first]
            return LibraryFinding(verdict, first[0].text + end, culprits, (*first, *others))
    reason = f"deadlock across groups: {'; '.join(one.text for one in stuck[:4])}"
    return LibraryFinding(LibraryVerdict.ABSENT, reason, (), tuple(stuck))


def shown(text: object, most: int = 200) -> str:
    """A text of the job's, for people: no control characters, not too long; "" for what is no text."""
    if not isinstance(text, str):
        return ""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:most])


def _ranks(ranks: Sequence[int]) -> str:
    return number_lists.ranks(ranks) if ranks else "a rank elsewhere"


def _verb(ranks: Sequence[int], one: str, several: str) -> str:
    return several if len(ranks) > 1 else one
