"""What a row of table 2 says."""

import enum
from collections.abc import Callable, Sequence

from muster.probes.hang.facts.moment import JobMoment, Scene
from muster.probes.kernel.dataclass import dataclass


class RowStep(enum.StrEnum):
    """When a row counts."""

    BASE = "base"  # the first of its scene that holds
    MORE = "more"  # then each that holds
    NAMED = "named"  # if it holds and a row of table 3 names it
    AFTER = "after"  # each that holds once table 3 has decided


class RowSets(enum.StrEnum):
    """What a row makes of the limit so far."""

    IS = "is"
    AT_LEAST = "at least"
    TIMES = "times"


@dataclass(frozen=True, slots=True)
class ExplanationRow:
    """A row. `words`: its condition. `scenario`: one of the corpus in which it counts.

    `limit`: a setting, or words for `amount` (seconds or a factor; None: never). `reason`: as the evidence shows it,
    with the missing readings in the place of `{missing}`; a factor appends it. The confidence becomes `sure`, then
    `less` and `less_each` (for each missing reading) are subtracted, then it is at most `at_most`. `missing`: readings
    that are missing; `missing_now` selects from several. `after_log`: the silence counts from the last line of the log.
    `if_longer`: the row counts only if it makes the limit longer. `adds`: text that is added to the rule's words.
    """

    name: str
    step: RowStep
    scenes: tuple[Scene, ...]
    words: str
    when: Callable[[JobMoment], bool]
    scenario: str
    limit: str = ""
    amount: Callable[[JobMoment], float | None] | None = None
    sets: RowSets = RowSets.AT_LEAST
    reason: str = ""
    sure: float | None = None
    less: float = 0.0
    less_each: float = 0.0
    at_most: float = 1.0
    missing: tuple[str, ...] = ()
    missing_now: Callable[[JobMoment], Sequence[str]] | None = None
    after_log: bool = False
    if_longer: bool = False
    adds: Callable[[JobMoment], str] | None = None

    def seconds(self, m: JobMoment) -> float | None:
        """The limit, or the factor; None: never."""
        if self.amount is not None:
            return self.amount(m)
        value: float = getattr(m.s, self.limit)
        return value


#: What a hang loses of its confidence where what is not seen may be all that tells it from work: nobody is stopped for
#: it.
UNSEEN = 0.5
#: The scenes in which processes decide.
QUIET = (Scene.STARTING, Scene.IDLE)


def always(_: JobMoment) -> bool:
    """The row holds."""
    return True
