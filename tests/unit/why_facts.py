"""Facts of a job, made by hand for the tests of its report."""

import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from muster.agent.jobs.entry import Entry
from muster.agent.why.around import Happening
from muster.agent.why.facts import Facts
from muster.agent.why.log_signs import Searched, Sign
from muster.agent.why.signatures import Hit, Signature, builtin
from muster.supervisors.model.lifecycle import Job, Rank, Verdict
from muster.supervisors.model.spec import JobSpec
from muster.supervisors.model.states import Outcome, State
from muster.supervisors.paths import JobPaths

#: When the first rank ended, and seconds that the ranks had run.
ZERO, RAN = 1_800_000_000.0, 100.0


def rank(number: int, outcome: Outcome | None = None, *, code: int = 0, killed: int = 0, **fields: Any) -> Rank:
    """A rank on the device of its number; `killed`: by this signal."""
    status = None if outcome in (None, Outcome.LOST) else killed or code << 8
    ended = ZERO + number / 100 if outcome is not None else 0.0
    return Rank(
        number, number, number, 4000 + number, 1, ZERO - RAN, outcome, status, ended, **fields
    )  # fmt: skip


def victim(number: int) -> Rank:
    return rank(number, Outcome.GANG_VICTIM, killed=signal.SIGTERM)


def signature(name: str) -> Signature:
    (found,) = [one for one in builtin().signatures if one.id == name]
    return found


def sign(
    name: str,
    rank_number: int | None = 0,
    before: float = 1.0,
    *,
    last: bool = True,
    place: int = 0,
    worker: int | None = None,
    went_on: float | None = None,
    line: str = "",
) -> Sign:
    """A signature in the log of a rank, so many seconds before the end; `went_on`: so many before it, more followed."""
    hit = Hit(signature(name), place, line or f"a line of {name}", worker)
    return Sign(rank_number, hit, ZERO - before, last, went_on_at=None if went_on is None else ZERO - went_on)


def happening(kind: str, text: str, before: float = 1.0, **fields: Any) -> Happening:
    return Happening(ZERO - before, kind, text, **fields)


def facts(
    *ranks: Rank,
    state: State = State.FAILED,
    signs: tuple[Sign, ...] = (),
    happenings: tuple[Happening, ...] = (),
    past: Mapping[int, tuple[Sign, ...]] | None = None,
    verdict: Verdict | None = None,
    spec: dict[str, Any] | None = None,
    damaged: str = "",
    **job: Any,
) -> Facts:
    """Of a job with these ranks, the first of which that failed did so at ZERO."""
    known = Job(state=state, ranks=list(ranks), spawned=bool(ranks), accepted_at=ZERO - RAN - 5)
    known.started_at = ZERO - RAN if ranks else 0.0
    known.cards = tuple(one.device for one in ranks)
    known.local_ranks = known.world_size = len(ranks)
    known.ends = [one.rank for one in ranks if one.outcome is not None]
    failed = tuple(
        one
        for one in ranks
        if one.outcome in (Outcome.LOST, Outcome.NOT_STARTED, Outcome.OUT_OF_MEMORY)
        or (one.outcome in (Outcome.EXITED, Outcome.SIGNALLED, Outcome.HUNG) and one.status != 0)
    )
    if state.final:
        known.verdict = verdict or Verdict(1, "it failed", failed[0].rank if failed else None)
        known.ended_at = ZERO + 1
    for name, value in job.items():
        setattr(known, name, value)
    entry = Entry("j", JobSpec("j", ("train",), **(spec or {})), known, JobPaths(Path("/nonexistent")), damaged)
    return Facts(
        entry,
        now=ZERO + 5,
        zero=ZERO,
        around="the end of rank 0",
        first=failed[0] if failed else None,
        failed=failed,
        happenings=happenings,
        searched=Searched(signs),
        past=None if past is None else {number: Searched(signs) for number, signs in past.items()},
    )
