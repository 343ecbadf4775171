"""Causes in the job's output: which of the signs in the logs of its ranks names the cause."""

import re
from collections.abc import Collection, Sequence
from dataclasses import replace

from muster.agent.text import cut, plain, size, uncapitalized
from muster.agent.why import curves
from muster.agent.why.causes import consequences, sign_words
from muster.agent.why.causes.found import HIGH, LOW, MEDIUM, Cause, SeenIn
from muster.agent.why.facts import SHARED_MEMORY, Facts
from muster.agent.why.log_signs import Sign
from muster.agent.why.signatures import unprefixed
from muster.supervisors.model import rank_ends

#: An error without a traceback, of a rank that then stays for so many seconds, is older than another's that follows.
_SOON_S = 30.0
#: An exception's text that is not at the start of its line.
_QUOTED = re.compile(r"\S .{0,300}?\b[A-Z][A-Za-z]{1,60}(?:Error|Exception): ")
#: It says of an earlier line that it has failed.
_EARLIER = "cuda-device-assert"
#: Characters of a line that stand in the sentence about it.
_LONGEST = 200
#: The order of kinds of errors at the same time; others: 1.
_OF_EQUALS = {"node": 0} | dict.fromkeys(sign_words.MAY_FOLLOW, 2)
#: A line that reports an error which has no name: less than an exception of another rank.
_REPORTED = "error-line"
#: Tier (`_order`) of the exception with which a rank ended; before it are only errors with a name.
_OWN_ERROR = 1


def best(signs: Sequence[Sign], facts: Facts) -> Cause | None:
    """The first failed rank's own cause, else that of another rank, else what follows from a cause elsewhere;
    None where the logs say nothing."""
    signs = [one for one in signs if not one.ignored] or signs
    if not signs:
        return None
    signs = consequences.named(signs, facts)
    by_bug = {sign_words.who(one, facts) for one in signs if sign_words.is_bug(one)}
    ends = [one for one in signs if sign_words.is_named(one) and one.last and not one.before_end]
    by_name = {sign_words.who(one, facts) for one in ends}
    by_program = {
        sign_words.who(one, facts) for one in ends if _is_of_program(one) and one.hit.signature.id != _EARLIER
    }
    signs = [one for one in signs if _counts(one, by_bug, by_name, by_program, facts)]
    followers = sign_words.who_follow(signs, facts)
    raised = {sign_words.who(one, facts) for one in signs if one.last and one.hit.signature.role == "root"} - followers
    ordered = sorted(signs, key=lambda one: _order(one, followers, raised, facts))
    sign, tied = _first_of(ordered, followers, raised, facts)
    signature = sign.hit.signature
    rank = "" if sign.rank is None else str(sign.rank)
    steps = [signature.next.replace("{job}", facts.entry.job_id).replace("{rank}", rank)]
    if signature.role == "follow" and facts.job.world_size > facts.job.local_ranks:
        steps.append("The job has other nodes: look for the rank that failed first there (`muster why` on each).")
    seen = signature.kind in ("memory", "peer", "device")
    text = _sentence(sign)
    if tied is not None:
        text = f"rank {sign.rank}: {text}; or rank {tied.rank}: {_sentence(tied)}: which was first is unknown"
    return Cause(
        text,
        _confidence(sign, facts),
        signature.kind,
        tuple(steps),
        signature.id,
        sign,
        (*_space(sign, facts), *(curves.remarks(facts.minutes) if seen else ())),
        SeenIn.OUTPUT,
        tied=tied is not None,
    )


def _space(sign: Sign, facts: Facts) -> tuple[str, ...]:
    """How large the shared memory is that was too small."""
    found = facts.unwritable.get(sign.path) if sign.hit.signature.id == SHARED_MEMORY else None
    if found is None or not found.size:
        return ()
    return (f"{found.mount} has {size(found.size)} here, of which {size(found.free)} is free now",)


def _counts(
    sign: Sign,
    by_bug: Collection[tuple[int | None, int | None]],
    by_name: Collection[tuple[int | None, int | None]],
    by_program: Collection[tuple[int | None, int | None]],
    facts: Facts,
) -> bool:
    """False for what a program wrote before the error that ended it, if that error cannot follow from it (`by_bug`), or
    names its own cause (`by_name`) and the earlier line only quotes an exception: a sample of a data set, a report; or
    if both are errors of the program (`by_program`), which went on after the first. Nor for a service that did not
    answer long before: the program went on without it."""
    if sign.hit.signature.id == _REPORTED and sign_words.killed_from_outside(sign, facts):
        return False
    if not sign.before_end:
        return True
    if sign.far_before and (sign.hit.signature.kind == "rendezvous" or sign.hit.signature.id in sign_words.OF_SERVICES):
        return False
    of = sign_words.who(sign, facts)
    if of in by_bug or (of in by_program and _is_of_program(sign)):
        return False
    return not (of in by_name and _QUOTED.search(sign.hit.line) is not None)


def _is_of_program(sign: Sign) -> bool:
    return sign.hit.signature.kind in ("job", "environment")


def _sentence(sign: Sign) -> str:
    said = plain(cut(unprefixed(sign.hit.line).strip().removeprefix("what():").strip(), _LONGEST))
    if not said.endswith(".."):
        said = said.removesuffix(".")
    if said.startswith("Traceback ("):
        said = "an exception that nothing caught"
    return uncapitalized(sign.hit.signature.cause).rstrip(".").replace("{line}", said)


def _first_of(
    ordered: Sequence[Sign],
    followers: Collection[tuple[int | None, int | None]],
    raised: Collection[tuple[int | None, int | None]],
    facts: Facts,
) -> tuple[Sign, Sign | None]:
    """The sign that counts, and another one that may as well; `ordered`: by `_order`.

    Where several ranks ended with errors of their own, within a minute, the one that wrote its error first: the others'
    may follow from it, in whatever order they exited. Of errors at the same time those of hardware come first, as
    its card must not get the next job, those of the network last; else the order decides, if there is one.
    """
    began: dict[tuple[int | None, int | None], float] = {}
    for sign in ordered:
        of = sign_words.who(sign, facts)
        own = _order(sign, followers, raised, facts)[0] <= _OWN_ERROR
        own |= of not in followers and sign_words.ended_it(sign, facts)
        own |= _stood_before(sign, ordered, facts)
        if own and sign.last and sign.at is not None and not sign.file and facts.zero - sign.at <= sign_words.CLOSE_S:
            began[of] = min(sign.at, began.get(of, sign.at))
    best = {of: next(sign for sign in ordered if sign_words.who(sign, facts) == of) for of in began}
    first = ordered[0]
    if len(best) < 2 or sign_words.who(first, facts) not in best:
        return first, None
    earliest = min(began.values())
    same = [sign for of, sign in best.items() if began[of] - earliest <= sign_words.SAME_TIME_S]
    same.sort(key=lambda sign: _OF_EQUALS.get(sign.hit.signature.kind, 1))
    return same[0], next((one for one in same[1:] if _undecided(same[0], one, facts)), None)


def _undecided(one: Sign, other: Sign, facts: Facts) -> bool:
    """Whether one of two errors at the same time may as well be the cause as the other: both ranks ended unseen; or
    they ended at the same time, too, and both name their causes, of which none may follow from the other."""
    if (one.hit.signature, one.hit.line) == (other.hit.signature, other.hit.line):
        return False
    if {one.rank, other.rank} <= set(rank_ends.unordered(facts.job)):
        return True
    if one.hit.signature.id == other.hit.signature.id or not (sign_words.is_named(one) and sign_words.is_named(other)):
        return False
    ends = [rank.ended_at for rank in facts.failed if rank.rank in (one.rank, other.rank)]
    at_once = len(ends) == 2 and abs(ends[0] - ends[1]) <= sign_words.SAME_TIME_S
    return at_once and other.hit.signature.kind not in sign_words.MAY_FOLLOW


def in_step(facts: Facts) -> Cause | None:
    """The cause of a failed step before the ranks, from the job's own log."""
    cause = best(facts.signs, facts)
    return replace(cause, text=f"{facts.job.step_name} failed: {cause.text}") if cause is not None else None


def _order(
    sign: Sign,
    followers: Collection[tuple[int | None, int | None]],
    raised: Collection[tuple[int | None, int | None]],
    facts: Facts,
) -> tuple[float, ...]:
    """Smallest is best: a named cause in the output of a rank that failed, its uncaught exception, a named
    cause in the output of another rank, consequences of other causes, old lines, hints. Among equals: the lines that
    were written last, then those of the first failed rank, then the higher priority, then the earlier line.

    `followers`: ranks (`who`) whose last lines say that another one failed: their exception only reports that.
    `raised`: ranks that ended with an exception of their own. They survived an earlier error (a fallback, a retry),
    unless a card or node does not recover from it.
    """
    signature = sign.hit.signature
    first = facts.first.rank if facts.first is not None else None
    failed = sign.rank is None or any(rank.rank == sign.rank for rank in facts.failed)
    place = 0 if sign.rank in (None, first) else 1 if failed else 2
    place = 3 * place + _doubt(sign, facts)
    vague = signature.priority <= sign_words.VAGUE
    if signature.role == "hint":
        tier = 5.0
    elif signature.role == "root" and not vague:
        survived = sign_words.who(sign, facts) in raised and signature.kind not in ("node", "device")
        old = sign_words.CLOSE_S if survived else sign_words.STALE_S
        stale = not sign.last and sign.at is not None and facts.zero - sign.at > old
        stale |= sign.went_on_at is not None and signature.kind == "job" and sign_words.killed_from_outside(sign, facts)
        tier = 4 if stale or sign_words.is_survived(sign) else 0 if failed else 2
    elif signature.role == "root" and failed and sign.last and sign_words.who(sign, facts) not in followers:
        tier = _OWN_ERROR + (signature.id == _REPORTED) / 2
    elif signature.role == "root" and not failed:
        ended_it = sign_words.ended_it(sign, facts) or sign_words.ended_late(sign, facts)
        tier = 2 if ended_it and sign_words.who(sign, facts) not in followers else 4
    else:
        tier = 4 if sign_words.is_survived(sign) else 3
    at = sign.at if sign.at is not None else float("inf")
    return tier, not sign.last, place, -signature.priority, at, sign.hit.at


def _stood_before(sign: Sign, ordered: Sequence[Sign], facts: Facts) -> bool:
    """Whether this error with a name is the last word of a rank that had not ended when another one failed of what may
    follow from it: no error of the program, nor the same line, which both wrote."""
    first = ordered[0]
    if (
        not sign_words.is_named(sign)
        or sign_words.is_survived(sign)
        or sign_words.is_bug(first)
        or not sign_words.is_last_word(sign, facts)
    ):
        return False
    if sign.at is None or facts.zero - sign.at > _SOON_S:
        return False
    same = (one for one in ordered if one.hit.signature.id == sign.hit.signature.id)
    return all(sign_words.who(one, facts) != sign_words.who(first, facts) for one in same)


def _doubt(sign: Sign, facts: Facts) -> int:
    """Whether a line of a launcher's output is from the worker that failed first: 0 yes, 1 unknown, 2 no."""
    if facts.launched is None or sign.rank != facts.launched.rank:
        return 0
    if sign.hit.worker is None:
        return 1
    return 0 if sign.hit.worker == facts.launched.workers[0].rank else 2


def _confidence(sign: Sign, facts: Facts) -> str:
    signature = sign.hit.signature
    if signature.role == "hint" or sign_words.is_survived(sign):
        return LOW
    if signature.role == "follow" or signature.priority <= sign_words.VAGUE or not sign.last:
        return MEDIUM
    close = sign.at is None or facts.zero - sign.at <= sign_words.CLOSE_S
    own = sign.rank is None or (facts.first is not None and sign.rank == facts.first.rank)
    return HIGH if close and own else MEDIUM
