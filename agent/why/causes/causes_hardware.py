"""Causes that the events show: a card or node that failed at that time, a process that the kernel killed, a hang."""

import re
import signal
from collections.abc import Iterator, Sequence
from dataclasses import replace

from muster.agent.node.node_notes import CLEARED, CONDITION
from muster.agent.why import curves
from muster.agent.why.around import HANG, OOM_KILL, SLOW, Happening, near
from muster.agent.why.causes.found import HIGH, LOW, MEDIUM, Cause, SeenIn, remedy
from muster.agent.why.facts import Facts
from muster.probes.checks.result import Code
from muster.supervisors.model.states import Outcome, StopCause

#: Events of the hang rule that may be the reason why a job ended.
_HUNG, _DRIVER, _SUSPECTED, _RECOVERED = "job.hung", "job.driver_hang", "job.suspected_hang", "job.recovered"
#: For so many seconds ranks that give up waiting write errors and dump their state before the first of them exits:
#: PyTorch's watchdog waits 15 s for the flight recorder's dumps, and the rule looks every 15 s.
GIVING_UP_S = 60.0
#: Below this confidence of the hang rule a hang is only possible (docs/concepts/hang.md).
_UNSURE = 0.5
_KILLED = re.compile(r"Killed process ([0-9]{1,10}) ")
#: The user of a process that the kernel killed: "Killed process 77 (python3) ..., UID:1000 pgtables:8kB".
_UID = re.compile(r" UID:([0-9]{1,10})\b")


def card_failed(facts: Facts) -> Cause | None:
    """A critical finding about a card of the job: at the time of its end, or an earlier one that was not cleared. The
    job ran on after an earlier one, so that counts less."""
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


def card_hit(facts: Facts) -> Cause | None:
    """A fault of a card of the job that spoils its work and leaves the card usable: the job is to start again."""
    found = [one for one in facts.happenings if one.code == Code.NPU_FAULT_JOB and near(one, facts.zero)]
    own = [one for one in found if facts.first is not None and one.card == facts.first.device]
    told = own or [one for one in found if one.card is not None]
    if not told:
        return None
    first = min(told, key=lambda one: one.at)
    evidence = tuple(one.text for one in told if one is not first)[:3]
    text = f"a fault of a card ended the work on it: {first.text}"
    sure = HIGH if own else MEDIUM
    return Cause(text, sure, "device", tuple(_remedies(told)), evidence=evidence, seen=SeenIn.CARD)


def node_failed(facts: Facts) -> Cause | None:
    """A critical finding about the node as a whole."""
    found = [one for one in facts.happenings if one.grave and one.card is None and near(one, facts.zero)]
    if not found:
        return None
    text = f"the node had a fault at that time: {found[0].text}"
    return Cause(text, LOW, "node", tuple(_remedies(found)), seen=SeenIn.NODE)


def killed_child(facts: Facts) -> Cause | None:
    """The kernel killed a process that is not a rank because memory ran out."""
    oom = [one for one in facts.happenings if one.code == OOM_KILL and near(one, facts.zero)]
    found = [one for one in oom if not _is_of_other_user(one, facts.uid) and _pid(one) not in facts.killed_in_others]
    if not found or facts.first is None or facts.first.outcome is Outcome.OUT_OF_MEMORY:
        return None
    if facts.first.memory_limit:
        return None
    worker = facts.launched.workers[0] if facts.launched is not None else None
    if worker is not None and worker.killed_by == signal.SIGKILL:
        # In a container the pid differs from the host's, so the kernel may name another.
        told = next((one for one in found if f"process {worker.pid} " in one.text), found[-1])
        seen = SeenIn.LIMIT if "memory cgroup" in told.text.lower() else SeenIn.NODE
        text = f"out of memory: the kernel killed {worker.who}, as {worker.launcher} and its log report: {told.text}"
        step = "Reduce its memory use (data-loader workers, caches, pinned memory), or give it more memory."
        return Cause(text, HIGH, "memory", (step,), evidence=tuple(curves.remarks(facts.minutes)), seen=seen)
    text = f"out of memory at that time: the kernel killed a process: {found[-1].text}"
    step = "Check whether it belonged to the job (a data-loader worker, say). Reduce its memory use, or give it more."
    return Cause(text, MEDIUM, "memory", (step,), evidence=tuple(curves.remarks(facts.minutes)))


def _pid(killed: Happening) -> int:
    """Of the process; 0: the line does not tell."""
    named = _KILLED.search(killed.text)
    return int(named[1]) if named is not None else 0


def _is_of_other_user(killed: Happening, uid: int | None) -> bool:
    """Whether the kernel killed a process of another user than the job's: one of another job or container."""
    named = _UID.search(killed.text)
    return named is not None and uid is not None and int(named[1]) != uid


def hung(facts: Facts, *, stopped: bool) -> Cause | None:
    """A hang because of which muster ended the job (`stopped`), or which lasted until the job failed by itself: its
    library's time limit had passed, say."""
    told = _lasted_until_end(facts)
    for_it = any(rank.outcome is Outcome.HUNG for rank in facts.job.ranks)
    stop = facts.job.stop
    for_it |= told is not None and stop is not None and stop.cause is StopCause.HUNG
    if for_it != stopped or (told is None and not stopped):
        return None
    text = "its ranks made no progress" if told is None else told.text
    text = ("a driver hung: " if told is not None and told.kind == _DRIVER else "it hung: ") + text
    text += "; muster ended it for that reason" if stopped else ""
    confidence = HIGH if stopped else LOW if told is not None and _is_unsure(told) else MEDIUM
    of_driver = told is not None and told.kind == _DRIVER
    found = replace(_hang_cause(facts, text, confidence), seen=SeenIn.CARD if of_driver else SeenIn.RECORDS)
    return replace(found, rank=_waited_for(facts, told)) if not stopped and confidence != LOW else found


def _waited_for(facts: Facts, told: Happening | None) -> int | None:
    """The rank of the job for which the others wait. The rule numbers a launcher's workers as the launcher does: none
    of them is a rank of the job."""
    own = [rank.rank for rank in facts.job.ranks if not rank.launches]
    return told.rank if told is not None and told.rank in own else None


def _lasted_until_end(facts: Facts) -> Happening | None:
    """The hang of which this attempt did not recover. What ranks write, and the work they do, when they give up waiting
    counts as life: a hang that ends so shortly before the first failure has lasted."""
    began, found = _beginning(facts), None
    for one in facts.happenings:
        if began <= one.at <= facts.zero + 1.0:
            if one.kind in (_HUNG, _DRIVER):
                found = one
            elif one.kind == _SUSPECTED or (one.kind == _RECOVERED and one.at < facts.zero - GIVING_UP_S):
                found = None
    return found


def _is_unsure(told: Happening) -> bool:
    return told.confidence is not None and told.confidence < _UNSURE


def after_hang(facts: Facts, said: Cause) -> bool:
    """Whether this is what ranks and launchers say of the signal with which muster ends them for a hang, and of each
    other after it."""
    last = _last_of_hang(facts)
    if said.is_root or said.sign is None or last is None:
        return False
    return said.sign.at is None or said.sign.at >= last.at


def _hang_cause(facts: Facts, text: str, confidence: str) -> Cause:
    step = f"Read the stacks taken then: `muster stacks {facts.entry.job_id} --kept`; the odd rank comes first."
    return Cause(text, confidence, "hang", (step,), evidence=tuple(curves.remarks(facts.minutes)))


def hung_then_stopped(facts: Facts) -> Cause | None:
    """A job that hung when somebody stopped it. The supervisor learned of the hang with the stop."""
    asked = facts.job.asked
    return _hang_cause(facts, asked.hang, HIGH) if asked is not None and asked.hang else None


def hangs_now(facts: Facts) -> Iterator[Cause]:
    """A running job: the last verdict of the hang rule."""
    last = _last_of_hang(facts)
    if last is not None and last.kind != _RECOVERED:
        steps = [f"Read its stacks: `muster stacks {facts.entry.job_id}`; the odd rank comes first."]
        # The stacks show whom the others wait for after the event.
        known = facts.suspected if last.kind == _SUSPECTED else ""
        text, sure = f"it seems to hang: {known or last.text}", LOW
        if last.kind == _DRIVER:
            text = f"a driver hangs: {last.text}"
        elif last.kind == _HUNG:
            steps.append("If it should compute, stop it and restart it from its checkpoint; otherwise leave it alone.")
            sure = LOW if _is_unsure(last) else HIGH
        seen = tuple(curves.remarks(facts.minutes))
        yield Cause(text, sure, "hang", tuple(steps), evidence=seen)


def slow_now(facts: Facts) -> Iterator[Cause]:
    """A running job: a rank for which its peers wait, by the last event about that."""
    last = _last_of(facts, SLOW)
    if last is not None and last.kind == SLOW[0]:
        job_id = facts.entry.job_id
        card = f"the power and temperature of its card (`muster top {job_id}`), " if facts.job.cards else ""
        step = f"Compare that rank with its peers: {card}its input, and its stacks (`muster stacks {job_id}`)."
        yield Cause(f"slow: {last.text}", MEDIUM, "slow", (step,))


def standing(facts: Facts) -> Iterator[Cause]:
    """A running job: open critical conditions of its cards and the node."""
    for one in _open_at(facts.now, facts.happenings):
        yield Cause(f"its node or card has a fault: {one.text}", MEDIUM, "node", tuple(_remedies([one])))


def _open_at(moment: float, happenings: Sequence[Happening]) -> list[Happening]:
    """Critical findings that were open at a moment, one for each code and card."""
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
    """The last event of the hang rule about this attempt."""
    return _last_of(facts, HANG)


def _last_of(facts: Facts, kinds: Sequence[str]) -> Happening | None:
    """The last event of one of these kinds about this attempt."""
    began = _beginning(facts)
    return next((one for one in reversed(facts.happenings) if one.kind in kinds and one.at >= began), None)


def _beginning(facts: Facts) -> float:
    """Of this attempt."""
    return facts.job.started_at or facts.job.accepted_at


def _remedies(found: Sequence[Happening]) -> list[str]:
    return list(dict.fromkeys(text for one in found if (text := remedy(one.code, one.card))))
