"""Earlier attempts of a job: the cause of each one's end, by the same rules as that of the last one's."""

from collections.abc import Iterator
from dataclasses import replace

from muster.agent.text import numbers
from muster.agent.why.causes import causes_said
from muster.agent.why.causes.found import Cause
from muster.agent.why.facts import Facts
from muster.supervisors.model.lifecycle import Attempt
from muster.supervisors.model.states import State


def cause(attempt: Attempt, facts: Facts) -> Cause | None:
    """What the output of its ranks says; None if it says nothing."""
    searched = (facts.past or {}).get(attempt.number)
    if searched is None:
        return None
    first = None if attempt.first_failed is None else facts.job.rank(attempt.first_failed)
    zero = _first_end(attempt, facts)
    signs = searched.signs
    if zero is None:  # what was first cannot be told: only the rank that the supervisor saw fail speaks for itself
        signs = tuple(one for one in signs if one.rank == attempt.first_failed)
    known = replace(
        facts, zero=zero or attempt.ended_at, first=first, failed=() if first is None else (first,), searched=searched
    )
    return causes_said.best(signs, known)


def first_failures(facts: Facts) -> dict[int, int]:
    """The rank that is the cause, by the number of the attempt, where the supervisor saw another one fail first."""
    found = {}
    for attempt in facts.job.past:
        main = cause(attempt, facts)
        if main is not None and main.culprit is not None and main.culprit != attempt.first_failed is not None:
            found[attempt.number] = main.culprit
    return found


def repeated(facts: Facts) -> str:
    """A sentence if earlier attempts ended in the same way; else empty."""
    now = causes_said.best(facts.signs, facts)
    if now is None or facts.job.state is State.SUCCEEDED:
        return ""
    same = [attempt.number for attempt in facts.job.past if _signature(attempt, facts) == now.signature]
    if not same:
        return ""
    which = f"attempt{'s' if len(same) > 1 else ''} {numbers(same)}"
    return f"{which} ended in the same way ({now.signature}): a restart alone is not likely to help"


def _signature(attempt: Attempt, facts: Facts) -> str | None:
    main = cause(attempt, facts)
    return None if main is None else main.signature


def _first_end(attempt: Attempt, facts: Facts) -> float | None:
    """When the rank that failed first ended, by its event."""
    ends: Iterator[float] = (
        event.time
        for event in facts.events.kept
        if event.kind == "rank.exited"
        and event.job_id == facts.entry.job_id
        and event.rank == attempt.first_failed
        and attempt.started_at <= event.time <= attempt.ended_at
    )
    return next(ends, None)
