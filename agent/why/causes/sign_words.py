"""What a sign in a log says of the rank that wrote it, by itself and beside what else is known of the job. Pure."""

import os
import re
import signal
from collections.abc import Sequence

from muster.agent.why.facts import Facts
from muster.agent.why.log_signs import Sign
from muster.agent.why.signatures import unprefixed
from muster.supervisors.model.lifecycle import Rank
from muster.supervisors.model.states import Outcome
from muster.supervisors.model.verdict import FROM_OUTSIDE

#: Up to this priority a signature says only that an error occurred, not which.
VAGUE = 40
#: Seconds between lines within which it is not known which came first: the time index is good for 100 ms.
SAME_TIME_S = 0.2
#: What a rank wrote within so many seconds before its end counts as the reason without doubt.
CLOSE_S = 60.0
#: A sign older than so many seconds before the end is ignored if other output followed it: longer than the time-outs
#: (10 min) by which the other ranks notice that one has failed.
STALE_S = 900.0
#: Exceptions of Python that are errors of the program, and follow from no error of card, network or file system.
_BUGS = re.compile(
    r"(?:[A-Za-z_]+\.)*(?:Key|Index|Type|Value|Attribute|Name|Assertion|ZeroDivision|UnboundLocal|NotImplemented|Recursion|"
    r"Lookup|Overflow|InvalidArgument|Syntax|Indentation|Unicode[A-Za-z]*)Error\b"
)
#: Errors of programs that are not in Python, and follow from no error of card, network or file system either.
_BUGS_OF_C = re.compile(
    r"Assertion [`'\"]|pure virtual method called|Java Runtime Environment|"
    r"Fortran runtime error: (?:Index|Array|End of file)|"
    r"forrtl: severe \((?:24|29|193|194|408)\)|what\(\):  (?:basic_string|vector|map|deque|stoi|stol|invalid)\b"
)
_ABORTED = "cpp-uncaught"
#: An exception that the program printed without its traceback, as its last words.
_BARE = "exception-line"
#: Signatures with which a process that is no Python program says that it dies of an error.
_DEADLY = frozenset({"uncaught", "cpp-uncaught", _BARE})
#: How late a rank may write its error after its peers have failed of its end, in seconds.
_LATE_S = 5.0
#: What a program writes of being asked to end, of the end of its children, and of peers that are gone.
OF_AN_END = re.compile(
    r"(?i:interrupt|sigterm|sigint|signal|terminat|\bkilled|abort|cancel|shut ?down|clos(?:e|ed|ing)\b|peer|connection|"
    r"reset|broken pipe|\beof|time(?:d )?out|exited unexpectedly|nccl|hccl|gloo|process ?group|communicator|heartbeat)"
)
#: What programs write of an error that they go on from.
_HANDLED = re.compile(
    r"\b(?:retrying|trying again|trying [0-9]|trying the next|skipp(?:ed|ing)|ignor(?:ed|ing)|falling back)\b"
)
#: A warning of urllib3, which has no other try left.
_LAST_TRY = re.compile(r"\bRetry\(total=0\b")
_WARNING = re.compile(r"(?<!NCCL )\bWARN(?:ING)?\b|^W[0-9]{4} [0-9\[]")
#: Kinds of causes that may follow from the end of another rank.
MAY_FOLLOW = frozenset({"network", "rendezvous"})
#: Errors of services that programs may do without.
OF_SERVICES = frozenset({"store-unavailable", "service-unavailable", "server-not-ready"})


def who(sign: Sign, facts: Facts) -> tuple[int | None, int | None]:
    """The rank and the worker that wrote it: a launcher's output contains that of all its workers."""
    launched = any(rank.rank == sign.rank and rank.launches for rank in facts.job.ranks)
    launched |= facts.launched is not None and facts.launched.rank == sign.rank
    return sign.rank, sign.hit.worker if launched else None


def is_survived(sign: Sign) -> bool:
    """Whether the line itself says that the program went on, or only mentions the error."""
    line = sign.hit.line
    if sign.hit.mentioned:
        return True
    if sign.hit.signature.shows == "exception" or _LAST_TRY.search(line):
        return sign.ignored
    return sign.ignored or (_HANDLED.search(line) or _WARNING.search(line)) is not None


def is_named(sign: Sign) -> bool:
    """Whether it names a cause."""
    return sign.hit.signature.role == "root" and sign.hit.signature.priority > VAGUE


def is_bug(sign: Sign) -> bool:
    """Whether it is an error of the program that ended it."""
    if sign.hit.signature.id == _ABORTED:
        return not sign.before_end and _BUGS_OF_C.search(sign.hit.line) is not None
    raised = sign.hit.signature.shows == "exception" or sign.hit.signature.id == _BARE
    return raised and not sign.before_end and _BUGS.match(unprefixed(sign.hit.line)) is not None


def dies(sign: Sign) -> bool:
    """Whether a program dies of what it says there, even where it names no known error."""
    return sign.hit.signature.shows == "exception" or sign.hit.signature.id in _DEADLY


def ended_it(sign: Sign, facts: Facts) -> bool:
    """Whether this is an exception of a rank that did not fail: it wrote it before the first failure, and nothing after
    it. So it hung on its way out, or ended when it was asked to."""
    return dies(sign) and is_last_word(sign, facts)


def ended_late(sign: Sign, facts: Facts) -> bool:
    """Whether this is an error of a rank that did not fail: it was asked to end, and ended by itself of what neither
    that nor the loss of its peers explains. Its peers may notice its end before it has written why: their connections
    to it break first. Where the job has other nodes only an error of the program counts: else the cause may be
    there."""
    if not dies(sign) or sign.rank is None or sign.at is None or not sign.last or sign.file:
        return False
    if not 0.0 <= sign.at - facts.zero <= _LATE_S or OF_AN_END.search(sign.hit.line):
        return False
    status = facts.job.rank(sign.rank).status
    if status is None:
        return False
    asked = (0, 128 + signal.SIGINT, 128 + signal.SIGTERM) if os.WIFEXITED(status) else (signal.SIGTERM, signal.SIGKILL)
    by_itself = (os.WEXITSTATUS(status) if os.WIFEXITED(status) else os.WTERMSIG(status)) not in asked
    return by_itself and (is_bug(sign) or facts.job.world_size == facts.job.local_ranks)


def is_last_word(sign: Sign, facts: Facts) -> bool:
    """Whether a rank wrote this before the first failure, and nothing after it until then."""
    if sign.at is None or not sign.last or sign.file:
        return False
    silent = sign.went_on_at is None or sign.went_on_at >= facts.zero - SAME_TIME_S
    return silent and 0.0 <= facts.zero + SAME_TIME_S - sign.at <= STALE_S


def who_follow(signs: Sequence[Sign], facts: Facts) -> set[tuple[int | None, int | None]]:
    """Who says at its end that another one failed. That it aborted says nothing of others, nor does a lost connection
    before the exception of its end: it may have been any connection."""

    def tells(sign: Sign) -> bool:
        vague = sign.before_end and sign.hit.signature.priority <= VAGUE
        return sign.last and sign.hit.signature.role == "follow" and sign.hit.signature.id != "abort" and not vague

    return {who(one, facts) for one in signs if tells(one)}


def stands_at_end(sign: Sign, facts: Facts) -> bool:
    """Whether it has a name, and is among the last output of its rank."""
    return is_named(sign) and sign.last and (sign.at is None or facts.zero - sign.at <= CLOSE_S)


def died_of(sign: Sign | None, rank: Rank) -> bool:
    """Whether a rank that a signal ended had just written an error of which it dies: then the signal was for what was
    left of it. An error of another process's end is none."""
    if sign is None or sign.rank != rank.rank or rank.outcome is not Outcome.SIGNALLED or sign.at is None:
        return False
    if not sign.last or not dies(sign) or OF_AN_END.search(sign.hit.line):
        return False
    return 0.0 <= rank.ended_at + SAME_TIME_S - sign.at <= _LATE_S


def killed_from_outside(sign: Sign, facts: Facts) -> bool:
    """Whether a signal that somebody sent ended the rank, muster included: it had survived what it wrote before."""
    status = None if sign.rank is None else facts.job.rank(sign.rank).status
    return status is not None and os.WIFSIGNALED(status) and os.WTERMSIG(status) in FROM_OUTSIDE


def aborted(rank: Rank) -> bool:
    """Whether it ended by SIGABRT: it has usually printed why, if not where muster looks."""
    return rank.status is not None and os.WTERMSIG(rank.status) == signal.SIGABRT
