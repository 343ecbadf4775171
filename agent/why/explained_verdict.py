"""The explained verdict, from the facts about a job. Pure."""

import time
from collections.abc import Sequence

from muster.agent.jobs.explained import Explained, Worker
from muster.agent.why.causes import past_attempts
from muster.agent.why.causes.advice import advise
from muster.agent.why.causes.found import Cause
from muster.agent.why.facts import Facts
from muster.agent.why.words import shown
from muster.supervisors.model.states import EXPLAINED


def explanation(facts: Facts, causes: Sequence[Cause]) -> Explained:
    """What to do, and why. `causes`: the most likely first (probable_cause.py)."""
    advice = advise(facts, causes)
    main = causes[0] if causes else None
    past = past_attempts.first_failures(facts)
    if main is None or facts.job.state not in EXPLAINED:
        return Explained(advice.action, advice.reason, at=time.time(), past=past)
    first = first_failed(facts, main)
    moved = first is not None and (facts.first is None or first != facts.first.rank)
    return Explained(
        advice.action,
        advice.reason,
        shown(main.text, 1000),
        main.kind,
        main.confidence,
        main.signature,
        main.sign.rank if main.sign is not None else main.rank,
        time.time(),
        worker=_worker(facts),
        first_failed=first if moved else None,
        last_lines=facts.searched.last_lines.get(first, ()) if moved and first is not None else (),
        past=past,
    )


def first_failed(facts: Facts, main: Cause | None) -> int | None:
    """The rank that failed first: the one that is the cause, else the one that the supervisor saw fail first."""
    if facts.first is None:
        return None
    return facts.first.rank if main is None or main.culprit is None else main.culprit


def _worker(facts: Facts) -> Worker | None:
    launched = facts.launched
    if launched is None:
        return None
    one = launched.workers[0]
    return Worker(
        one.launcher, launched.rank, shown(f"{one.who} {one.ending}"), one.rank, one.local_rank, shown(one.host),
        one.pid, one.code,
    )  # fmt: skip
