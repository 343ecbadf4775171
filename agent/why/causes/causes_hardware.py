"""Causes that the events tell: a card or node that failed at that time, a process that the kernel killed, a hang."""

import signal
from collections.abc import Iterator, Sequence

from muster.agent.node.node_notes import CLEARED, CONDITION
from muster.agent.why import curves
from muster.agent.why.around import HANG, OOM_KILL, Happening, near
from muster.agent.why.causes.found import HIGH, LOW, MEDIUM, Cause, SeenIn, remedy
from muster.agent.why.facts import Facts
from muster.supervisors.model.states import Outcome, StopCause

#: What the hang rule tells that may be the reason of an end.
_HUNG, _DRIVER = "job.hung", "job.driver_hang"


def card_failed(facts: Facts) -> Cause | None:
    """A critical finding about a card of the job: at the time of its end, or one that was there before and had not
    gone. The latter the job has lived with until then, so that it counts less."""
    grave = [one for one in facts.happenings if one.grave and one.card is not None]
    found = [one for one in grave if near(one, facts.zero)]
    sure, less = HIGH, MEDIUM
    if not found:
        found = [one for one in _open_at(facts.zero, facts.happenings) if one.card is not None]
        sure, less = MEDIUM, LOW
    own = [one for one in found if facts.first is not None and one.card == facts.first.device]
    told = own or found
    if not told:
        return None
    first = min(told, key=lambda one: one.at)
    steps = [*_remedies(told), "Start the job elsewhere, from its checkpoint."]
    evidence = tuple(one.text for one in told if one is not first)[:3]
    text = f"a card of the job failed: {first.text}"
    return Cause(text, sure if own else less, "node", tuple(steps), evidence=evidence, seen=SeenIn.CARD)


def node_failed(facts: Facts) -> Cause | None:
    """A critical finding about the node as a whole."""
    found = [one for one in facts.happenings if one.grave and one.card is None and near(one, facts.zero)]
    if not found:
        return None
    text = f"the node had a fault at that time: {found[0].text}"
    return Cause(text, LOW, "node", tuple(_remedies(found)), seen=SeenIn.NODE)


def killed_child(facts: Facts) -> Cause | None:
    """The kernel killed a process for want of memory, and it was none of the ranks."""
    found = [one for one in facts.happenings if one.code == OOM_KILL and near(one, facts.zero)]
    if not found or facts.first is None or facts.first.outcome is Outcome.OUT_OF_MEMORY:
        return None
    worker = facts.launched.workers[0] if facts.launched is not None else None
    if worker is not None and worker.killed_by == signal.SIGKILL:
        # The pid of a container is none of the host's, so that the kernel may name another.
        told = next((one for one in found if f"process {worker.pid} " in one.text), found[-1])
        seen = SeenIn.LIMIT if "memory cgroup" in told.text.lower() else SeenIn.NODE
        text = f"the kernel killed {worker.who} for want of memory, as {worker.launcher} and its log say: {told.text}"
        step = "Let it use less (data-loader workers, caches, pinned memory), or give it more memory."
        return Cause(text, HIGH, "memory", (step,), evidence=tuple(curves.remarks(facts.minutes)), seen=seen)
    text = f"the kernel killed a process for want of memory at that time: {found[-1].text}"
    step = "See whether it was one of the job's (a data-loader worker, say); let it use less, or give it more memory."
    return Cause(text, MEDIUM, "memory", (step,), evidence=tuple(curves.remarks(facts.minutes)))


def hung(facts: Facts, *, stopped: bool) -> Cause | None:
    """A hang for which the job was ended (`stopped`), or after which it failed by itself."""
    last = _last_of_hang(facts)
    told = last if last is not None and last.kind in (_HUNG, _DRIVER) and last.at <= facts.zero + 1.0 else None
    for_it = any(rank.outcome is Outcome.HUNG for rank in facts.job.ranks)
    stop = facts.job.stop
    for_it |= told is not None and stop is not None and stop.cause is StopCause.HUNG
    if for_it != stopped or (told is None and not stopped):
        return None
    text = "its ranks did not go on" if told is None else told.text
    text = ("a driver hung: " if told is not None and told.kind == _DRIVER else "it hung: ") + text
    text += "; muster ended it for that" if stopped else ""
    return _hang_cause(facts, text, HIGH if stopped else MEDIUM)


def _hang_cause(facts: Facts, text: str, confidence: str) -> Cause:
    step = f"Look at the stacks of then: `muster stacks {facts.entry.job_id} --kept`; the odd one comes first."
    return Cause(text, confidence, "hang", (step,), evidence=tuple(curves.remarks(facts.minutes)))


def hung_then_stopped(facts: Facts) -> Cause | None:
    """Of a job that hung when somebody stopped it, as the supervisor was told with the stop."""
    asked = facts.job.asked
    if asked is None or not asked.hung_since:
        return None
    return _hang_cause(facts, f"it hung: {asked.hung_how}; then it was stopped by {asked.by or 'somebody'}", HIGH)


def hangs_now(facts: Facts) -> Iterator[Cause]:
    """Of a job that runs: what the hang rule said last."""
    last = _last_of_hang(facts)
    if last is not None and last.kind != "job.recovered":
        steps = [f"Look at its stacks: `muster stacks {facts.entry.job_id}`; the odd one comes first."]
        text, sure = f"it seems to hang: {last.text}", LOW
        if last.kind == _DRIVER:
            text = f"a driver hangs: {last.text}"
        elif last.kind == _HUNG:
            steps.append("If it should compute, stop it and start it again from its checkpoint; else leave it alone.")
            sure = HIGH
        seen = tuple(curves.remarks(facts.minutes))
        yield Cause(text, sure, "hang", tuple(steps), evidence=seen)


def standing(facts: Facts) -> Iterator[Cause]:
    """Of a job that runs: grave conditions of its cards and the node that have not gone."""
    for one in _open_at(facts.now, facts.happenings):
        yield Cause(f"what it runs on has a fault: {one.text}", MEDIUM, "node", tuple(_remedies([one])))


def _open_at(moment: float, happenings: Sequence[Happening]) -> list[Happening]:
    """Grave findings before a moment that had not gone by then, one for each code and card."""
    found: dict[tuple[str, int | None], Happening] = {}
    for one in happenings:
        if one.at > moment:
            break
        if one.kind == CLEARED:
            found.pop((one.code, one.card), None)
        elif one.grave and one.kind == CONDITION:
            found.setdefault((one.code, one.card), one)
    return list(found.values())


def _last_of_hang(facts: Facts) -> Happening | None:
    """Of the present attempt."""
    began = facts.job.started_at or facts.job.accepted_at
    return next((one for one in reversed(facts.happenings) if one.kind in HANG and one.at >= began), None)


def _remedies(found: Sequence[Happening]) -> list[str]:
    return list(dict.fromkeys(text for one in found if (text := remedy(one.code))))
