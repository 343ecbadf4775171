"""Causes in the job's output: which of the signs in the logs of its ranks names the cause."""

import os
import re
import signal
from collections.abc import Collection, Sequence
from dataclasses import replace

from msgspec import structs

from muster.agent.text import cut, plain, size, uncapitalized
from muster.agent.why import curves
from muster.agent.why.causes.found import HIGH, LOW, MEDIUM, Cause, SeenIn
from muster.agent.why.facts import SHARED_MEMORY, Facts
from muster.agent.why.log_signs import Sign
from muster.agent.why.signatures import unprefixed
from muster.supervisors.model import rank_ends
from muster.supervisors.model.lifecycle import Rank
from muster.supervisors.model.states import Outcome

#: Up to this priority a signature says only that an error occurred, not which.
VAGUE = 40
#: What a rank wrote within so many seconds before its end counts as the reason without doubt.
_CLOSE_S = 60.0
#: A sign older than so many seconds before the end is ignored if other output followed it: longer than the time-outs
#: (10 min) by which the other ranks notice that one has failed.
_STALE_S = 900.0
#: Seconds between lines within which it is not known which came first: the time index is good for 100 ms.
SAME_TIME_S = 0.2
#: Exceptions of Python that are errors of the program, and follow from no error of card, network or file system.
_BUGS = re.compile(
    r"(?:[A-Za-z_]+\.)*(?:Key|Index|Type|Value|Attribute|Name|Assertion|ZeroDivision|UnboundLocal|NotImplemented|Recursion|"
    r"Lookup|Overflow|Syntax|Indentation|Unicode[A-Za-z]*)Error\b"
)
#: What programs write of an error that they go on from.
_HANDLED = re.compile(
    r"\b(?:retrying|trying again|trying [0-9]|trying the next|skipp(?:ed|ing)|ignor(?:ed|ing)|falling back)\b"
)
#: An exception's text that is not at the start of its line.
_QUOTED = re.compile(r"\S .{0,300}?\b[A-Z][A-Za-z]{1,60}(?:Error|Exception): ")
#: Characters of a line that stand in the sentence about it.
_LONGEST = 200
_WARNING = re.compile(r"(?<!NCCL )\bWARN(?:ING)?\b")
#: Kinds of causes that may follow from the end of another rank; and the order of errors at the same time, others: 1.
_MAY_FOLLOW = frozenset({"network", "rendezvous"})
_OF_EQUALS = {"node": 0} | dict.fromkeys(_MAY_FOLLOW, 2)
#: Tier (`_order`) of the exception with which a rank ended; before it are only errors with a name.
_OWN_ERROR = 1


def best(signs: Sequence[Sign], facts: Facts) -> Cause | None:
    """The first failed rank's own cause, else that of another rank, else what follows from a cause elsewhere;
    None where the logs say nothing."""
    signs = [one for one in signs if not one.ignored] or signs
    if not signs:
        return None
    signs = _consequences_named(_without_consequences(signs, facts), facts)
    by_bug = {who(one, facts) for one in signs if _is_bug(one)}
    by_name = {who(one, facts) for one in signs if _is_named(one) and one.last and not one.before_end}
    signs = [one for one in signs if _counts(one, by_bug, by_name, facts)]
    followers = {who(one, facts) for one in signs if one.last and one.hit.signature.role == "follow"}
    raised = {who(one, facts) for one in signs if one.last and one.hit.signature.role == "root"} - followers
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


def _without_consequences(signs: Sequence[Sign], facts: Facts) -> list[Sign]:
    """Without what a rank says of its peers after an error of the program, in the traceback of its end or behind it: it
    lost them because it ended, or on its way out."""
    bugs: dict[tuple[int | None, int | None], int] = {}
    for sign in signs:
        if _is_bug(sign) and sign.last and not sign.file:
            bugs[who(sign, facts)] = min(sign.hit.at, bugs.get(who(sign, facts), sign.hit.at))

    def follows(sign: Sign) -> bool:
        begin = bugs.get(who(sign, facts))
        return sign.hit.signature.role == "follow" and begin is not None and sign.hit.at > begin and not sign.file

    return [sign for sign in signs if not follows(sign)]


def _consequences_named(signs: Sequence[Sign], facts: Facts) -> list[Sign]:
    """With errors of the network as consequences, where another rank had ended before without a word: its peers lose
    the connection to it."""
    first = facts.first
    wrote = {sign.rank for sign in signs if sign.hit.signature.role != "hint"}
    if first is None or first.rank in wrote or first.outcome not in (Outcome.EXITED, Outcome.SIGNALLED):
        return list(signs)
    if aborted(first):
        return list(signs)

    def follows(sign: Sign) -> bool:
        after = sign.at is not None and sign.at - facts.zero > SAME_TIME_S
        return after and sign.rank is not None and sign.hit.signature.kind in _MAY_FOLLOW

    return [_as_consequence(sign) if follows(sign) else sign for sign in signs]


def aborted(rank: Rank) -> bool:
    """Whether it ended by SIGABRT: it has usually printed why, if not where muster looks."""
    return rank.status is not None and os.WTERMSIG(rank.status) == signal.SIGABRT


def _as_consequence(sign: Sign) -> Sign:
    if sign.hit.signature.role != "root":
        return sign
    return replace(sign, hit=replace(sign.hit, signature=structs.replace(sign.hit.signature, role="follow")))


def _is_bug(sign: Sign) -> bool:
    """Whether it is an error of the program that ended it."""
    return sign.hit.signature.shows == "exception" and not sign.before_end and _BUGS.match(sign.hit.line) is not None


def _is_named(sign: Sign) -> bool:
    return sign.hit.signature.role == "root" and sign.hit.signature.priority > VAGUE


def _counts(
    sign: Sign,
    by_bug: Collection[tuple[int | None, int | None]],
    by_name: Collection[tuple[int | None, int | None]],
    facts: Facts,
) -> bool:
    """False for what a program wrote before the error that ended it, if that error cannot follow from it (`by_bug`), or
    names its own cause (`by_name`) and the earlier line only quotes an exception: a sample of a data set, a report."""
    if not sign.before_end:
        return True
    of = who(sign, facts)
    return of not in by_bug and not (of in by_name and _QUOTED.search(sign.hit.line) is not None)


def is_survived(sign: Sign) -> bool:
    """Whether the line itself says that the program went on, or only mentions the error."""
    line = sign.hit.line
    if sign.hit.mentioned:
        return True
    said = sign.hit.signature.shows != "exception" and (_HANDLED.search(line) or _WARNING.search(line)) is not None
    return said or sign.ignored


def _sentence(sign: Sign) -> str:
    said = plain(cut(unprefixed(sign.hit.line), _LONGEST))
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
        of = who(sign, facts)
        own = _order(sign, followers, raised, facts)[0] <= _OWN_ERROR
        own |= of not in followers and _ended_it(sign, facts)
        if own and sign.last and sign.at is not None and not sign.file and facts.zero - sign.at <= _CLOSE_S:
            began[of] = min(sign.at, began.get(of, sign.at))
    best = {of: next(sign for sign in ordered if who(sign, facts) == of) for of in began}
    first = ordered[0]
    if len(best) < 2 or who(first, facts) not in best:
        return first, None
    earliest = min(began.values())
    same = [sign for of, sign in best.items() if began[of] - earliest <= SAME_TIME_S]
    same.sort(key=lambda sign: _OF_EQUALS.get(sign.hit.signature.kind, 1))
    return same[0], next((one for one in same[1:] if _undecided(same[0], one, facts)), None)


def _undecided(one: Sign, other: Sign, facts: Facts) -> bool:
    """Whether one of two errors at the same time may as well be the cause as the other: both ranks ended unseen; or
    they ended at the same time, too, and both name their causes, of which none may follow from the other."""
    if (one.hit.signature, one.hit.line) == (other.hit.signature, other.hit.line):
        return False
    if {one.rank, other.rank} <= set(rank_ends.unordered(facts.job)):
        return True
    if one.hit.signature.id == other.hit.signature.id or not (_is_named(one) and _is_named(other)):
        return False
    ends = [rank.ended_at for rank in facts.failed if rank.rank in (one.rank, other.rank)]
    at_once = len(ends) == 2 and abs(ends[0] - ends[1]) <= SAME_TIME_S
    return at_once and other.hit.signature.kind not in _MAY_FOLLOW


def in_step(facts: Facts) -> Cause | None:
    """The cause of a failed step before the ranks, from the job's own log."""
    cause = best(facts.signs, facts)
    return replace(cause, text=f"{facts.job.step_name} failed: {cause.text}") if cause is not None else None


def who(sign: Sign, facts: Facts) -> tuple[int | None, int | None]:
    """The rank and the worker that wrote it: a launcher's output contains that of all its workers."""
    launched = any(rank.rank == sign.rank and rank.launches for rank in facts.job.ranks)
    launched |= facts.launched is not None and facts.launched.rank == sign.rank
    return sign.rank, sign.hit.worker if launched else None


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
    vague = signature.priority <= VAGUE
    if signature.role == "hint":
        tier = 5
    elif signature.role == "root" and not vague:
        survived = who(sign, facts) in raised and signature.kind not in ("node", "device")
        old = _CLOSE_S if survived else _STALE_S
        stale = not sign.last and sign.at is not None and facts.zero - sign.at > old
        tier = 4 if stale or is_survived(sign) else 0 if failed else 2
    elif signature.role == "root" and failed and sign.last and who(sign, facts) not in followers:
        tier = _OWN_ERROR
    elif signature.role == "root" and not failed:
        ended_it = who(sign, facts) not in followers and _ended_it(sign, facts)
        tier = 2 if ended_it else 4
    else:
        tier = 4 if is_survived(sign) else 3
    at = sign.at if sign.at is not None else float("inf")
    return tier, not sign.last, place, -signature.priority, at, sign.hit.at


def _ended_it(sign: Sign, facts: Facts) -> bool:
    """Whether this is an exception of a rank that did not fail: it wrote it before the first failure, and nothing after
    it. So it hung on its way out, or ended when it was asked to."""
    if sign.at is None or sign.hit.signature.shows != "exception" or not sign.last or sign.file:
        return False
    silent = sign.went_on_at is None or sign.went_on_at >= facts.zero - SAME_TIME_S
    return silent and 0.0 <= facts.zero + SAME_TIME_S - sign.at <= _STALE_S


def _doubt(sign: Sign, facts: Facts) -> int:
    """Whether a line of a launcher's output is from the worker that failed first: 0 yes, 1 unknown, 2 no."""
    if facts.launched is None or sign.rank != facts.launched.rank:
        return 0
    if sign.hit.worker is None:
        return 1
    return 0 if sign.hit.worker == facts.launched.workers[0].rank else 2


def _confidence(sign: Sign, facts: Facts) -> str:
    signature = sign.hit.signature
    if signature.role == "hint" or is_survived(sign):
        return LOW
    if signature.role == "follow" or signature.priority <= VAGUE or not sign.last:
        return MEDIUM
    close = sign.at is None or facts.zero - sign.at <= _CLOSE_S
    own = sign.rank is None or (facts.first is not None and sign.rank == facts.first.rank)
    return HIGH if close and own else MEDIUM
