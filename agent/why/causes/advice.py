"""What to do about a job that failed, and why: the one table from a cause to a recommendation.

The supervisor recommends at once, from what it knows: how the ranks ended, its checks, the cards
(supervisors/model/verdict.py). This table adds the cause, which needs the output and the node's events.
"""

import os
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from muster.agent.why.causes import hardened, sign_words
from muster.agent.why.causes.found import HIGH, LOW, MEDIUM, NONE, Cause, SeenIn
from muster.agent.why.facts import NO_SPACE, READ_ONLY, SHARED_MEMORY, Facts
from muster.supervisors.model import verdict
from muster.supervisors.model.lifecycle import Rank, Verdict
from muster.supervisors.model.states import Outcome, State


class Recommendation(StrEnum):
    """What to do with a job, as in job.proto."""

    NOTHING = "NONE"
    HERE = "RETRY_HERE"
    ELSEWHERE = "RETRY_ELSEWHERE"
    FAIL = "FAIL"


_NOTHING, _HERE, _ELSEWHERE, _FAIL = Recommendation


class Advice(NamedTuple):
    """An action, and a sentence that gives the reason."""

    action: str
    reason: str


#: The key: the kind of the cause, and where it was seen.
TABLE: dict[tuple[str, SeenIn], Advice] = {
    ("node", SeenIn.CARD): Advice(_ELSEWHERE, "a card of the job has a fault: isolate the node"),
    ("node", SeenIn.NODE): Advice(_ELSEWHERE, "the node has a fault: isolate it"),
    ("node", SeenIn.OUTPUT): Advice(_ELSEWHERE, "its output names a fault of a card or of the node: isolate the node"),
    ("network", SeenIn.OUTPUT): Advice(_ELSEWHERE, "the fabric failed, or this node's link to it: isolate the node"),
    ("storage", SeenIn.OUTPUT): Advice(_ELSEWHERE, "a file system failed on this node: isolate the node"),
    ("memory", SeenIn.NODE): Advice(_ELSEWHERE, "this node ran out of memory"),
    ("memory", SeenIn.LIMIT): Advice(_FAIL, "it needs more memory than its limit; a restart would fail, too"),
    ("memory", SeenIn.OUTPUT): Advice(_FAIL, "it needs more memory than it has; a restart would fail, too"),
    ("rendezvous", SeenIn.OUTPUT): Advice(
        _HERE, "its processes did not find each other, or an address was in use; a restart may work"
    ),
    ("peer", SeenIn.OUTPUT): Advice(
        _HERE,
        "another rank or node failed; no fault of this node is known",
    ),
    ("device", SeenIn.OUTPUT): Advice(_FAIL, "the program failed on a card, and no fault of the card is known"),
    ("device", SeenIn.CARD): Advice(_HERE, "a fault of a card ended the work on it; a restart may work"),
    ("environment", SeenIn.OUTPUT): Advice(_FAIL, "the program does not match its environment"),
    ("job", SeenIn.LAUNCHER): Advice(_FAIL, "a worker failed by itself, and no fault of the node is known"),
    ("hang", SeenIn.RECORDS): Advice(_HERE, "the job hung, and no fault of the node is known"),
    ("hang", SeenIn.CARD): Advice(_ELSEWHERE, "a driver of the node hung: isolate the node"),
    ("unknown", SeenIn.LAUNCHER): Advice(
        _HERE, "a signal from outside the job ended a worker, and no fault of the job or the node is known"
    ),
    ("unknown", SeenIn.SIGNAL): Advice(
        _HERE, "a signal from outside the job ended a process of it, and no fault of the job or the node is known"
    ),
    ("stop", SeenIn.SIGNAL): Advice(
        _HERE, "somebody ended a rank through muster, and no fault of the job or the node is known"
    ),
    ("job", SeenIn.OUTPUT): Advice(_FAIL, "the program itself failed, and no fault of the node is known"),
}

#: Signatures with another action than their kind.
SIGNATURES: dict[str, Advice] = {
    "no-space": Advice(_FAIL, "a file system is full: free space first"),
    "write-failed": Advice(_FAIL, "a file could not be written: look at space and quota first"),
    "read-only": Advice(_FAIL, "it writes to a read-only file system, and no fault of it is known"),
    "nccl-system-error": Advice(_FAIL, "a system call of NCCL failed, and no fault of the node is known"),
    "shared-memory-full": Advice(_FAIL, "shared memory (/dev/shm) is too small for it; a restart would fail, too"),
    "cuda-driver-too-old": Advice(_ELSEWHERE, "this node's driver is too old for the program; a newer one may run it"),
    "node-memory-low": Advice(_ELSEWHERE, "this node ran low on memory"),
    "disk-quota": Advice(_FAIL, "the quota of the job's user is used up: free space first"),
    "corrupt-checkpoint": Advice(_FAIL, "a file that it reads is damaged; it would fail on any node"),
    "store-unavailable": Advice(_HERE, "a storage service did not answer or was too busy; a restart may work"),
    "service-unavailable": Advice(_HERE, "a service did not answer or was too busy; a restart may work"),
    "server-not-ready": Advice(_HERE, "a service did not answer or was too busy; a restart may work"),
    "preempted": Advice(_HERE, "the scheduler took the node for another job"),
    "evicted-storage": Advice(_ELSEWHERE, "this node had no local storage left for it"),
    "hccl-process-left": Advice(_HERE, "a process of an earlier job was still on the NPU; restart once it has ended"),
    "tpu-in-use": Advice(_HERE, "a process of an earlier job was still on the TPU; restart once it has ended"),
    "killed": Advice(_HERE, "a process of it was killed with SIGKILL, and no lack of memory is known"),
    "keyboard-interrupt": Advice(
        _HERE, "somebody interrupted it; neither the job nor the node is known to be at fault"
    ),
}


def advise(facts: Facts, causes: Sequence[Cause]) -> Advice:
    """The recommendation for an ended job, from its causes, the most likely first. If no cause says more, it is the
    supervisor's; UNSPECIFIED for a job that has not ended."""
    early = facts.job.verdict
    if early is None:
        return Advice("UNSPECIFIED", "")
    given = Advice(early.recommendation, early.recommendation_reason)
    if not _is_open(facts, early):
        return given
    blamed = _blamed(causes, facts)
    if blamed is not None and facts.first is not None and blamed.rank != facts.first.rank:
        given = Advice(*verdict.recommend(facts.job, blamed, ""))
    if causes and causes[0].kind == "storage" and any(cause.seen is SeenIn.NODE for cause in causes):
        return TABLE["storage", SeenIn.OUTPUT]
    if causes and blamed is not None and sign_words.died_of(causes[0].sign, blamed):
        given = TABLE["job", SeenIn.OUTPUT]
    # A hardware fault counts whatever else is wrong: the card must not get the next job.
    hardware = [one for one in causes if one.kind == "node" and one.confidence in (HIGH, MEDIUM)]
    for cause in (*hardware, *causes[:1]):
        found = _hardened(cause, facts) or _unwritable(cause, facts) or _of(cause)
        if found is not None and _outweighs(cause, facts, blamed):
            return found
    return given


def _blamed(causes: Sequence[Cause], facts: Facts) -> Rank | None:
    """The rank that is the cause, else the one that failed first."""
    culprit = causes[0].culprit if causes else None
    return facts.first if culprit is None else facts.job.rank(culprit)


def _is_open(facts: Facts, early: Verdict) -> bool:
    """Whether a cause may change what the supervisor recommends: it knows a stop, a fault and a refusal for certain."""
    if facts.job.state is not State.FAILED or early.recommendation in (
        _NOTHING,
        _ELSEWHERE,
    ):
        return False
    first, step = facts.first, facts.job.step
    if first is not None:
        return first.outcome in (Outcome.EXITED, Outcome.SIGNALLED, Outcome.OUT_OF_MEMORY, Outcome.HUNG)
    return step is not None and step.outcome is Outcome.EXITED and step.status != 0


def _hardened(cause: Cause, facts: Facts) -> Advice | None:
    found = hardened.hint(cause, facts)
    return Advice(_FAIL, f"{found.said}; it would fail on any node") if found is not None and found.is_sure else None


def _unwritable(cause: Cause, facts: Facts) -> Advice | None:
    """Of a file system that could not be written, where it is known which: one of this node that is full without the
    job, too, or became read-only; or a full one that all nodes share. None: another cause, or nothing is known that
    would change the advice."""
    if cause.signature not in (NO_SPACE, READ_ONLY, SHARED_MEMORY) or cause.sign is None:
        return None
    found = facts.unwritable.get(cause.sign.path)
    if found is None:
        return None
    name = f"file system {found.mount} ({found.type})"
    if cause.signature == READ_ONLY:
        became = f"this node's {name} became read-only, as after an error: isolate the node"
        return Advice(_ELSEWHERE, became) if found.became_read_only else None
    if found.shared:
        return Advice(_FAIL, f"the {name} is full, and all nodes share it")
    return Advice(_ELSEWHERE, f"this node's {name} is full, also without the job") if found.full else None


def _of(cause: Cause) -> Advice | None:
    if (own := SIGNATURES.get(cause.signature)) is not None:
        return own
    if cause.sign is not None and cause.sign.hit.signature.priority <= sign_words.VAGUE and cause.kind == "job":
        return None
    return TABLE.get((cause.kind, cause.seen))


def _outweighs(cause: Cause, facts: Facts, blamed: Rank | None) -> bool:
    """Whether the cause counts more than how the rank that is to blame ended."""
    if cause.kind == "stop":
        return True
    if cause.seen is SeenIn.SIGNAL:  # the supervisor knows what a signal to the rank itself means
        killed = facts.first if cause.rank is None else facts.job.rank(cause.rank)
        return killed is not None and killed.outcome is Outcome.EXITED
    if cause.seen in (SeenIn.CARD, SeenIn.NODE, SeenIn.LIMIT):
        return cause.confidence not in (LOW, NONE) or cause.kind == "memory"
    first = facts.first
    if first is not None and first.outcome is Outcome.HUNG:
        return False
    signalled = blamed is not None and blamed.outcome is Outcome.SIGNALLED and not sign_words.aborted(blamed)
    if signalled and blamed is not None and blamed.status is not None:
        by_somebody = os.WTERMSIG(blamed.status) in verdict.FROM_OUTSIDE
        sure = cause.confidence == HIGH or (cause.sign is not None and sign_words.stands_at_end(cause.sign, facts))
        return cause.is_root and (not by_somebody or sure)
    return cause.confidence not in (LOW, NONE)
