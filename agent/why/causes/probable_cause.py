"""The probable cause of a job's end, from its facts. Pure: this module reads nothing and guesses nothing.

Certain causes come first (a stop, a failed check, out of memory), then what a card or the node reported at that time,
then what the program itself wrote, then what the signal alone says. If a card reported a fault and the program wrote an
error, the card wins only if a broken card can cause that kind of error.
"""

from collections.abc import Iterator
from dataclasses import replace

from muster.agent.why.causes import causes_ended, causes_hardware, causes_launched, causes_said, hardened, sign_words
from muster.agent.why.causes.found import LOW, NONE, Cause
from muster.agent.why.facts import LIVE_S, Facts, latest
from muster.supervisors.model import rank_ends
from muster.supervisors.model.states import State

#: Kinds of errors in a log that a fault of a card during the work can cause as well.
_FAULT_MAKES = frozenset({"device", "rendezvous", "peer"})
#: Kinds of errors in a log that a broken card, node or link can cause as well.
_HARDWARE_MAKES = frozenset({"device", "node", "network", "rendezvous", "peer"})


def causes(facts: Facts) -> list[Cause]:
    """The most likely first; at least one for a job that ended without success. For a job that runs: what is wrong so
    far."""
    if facts.entry.damaged:
        text = "the job's record on disk is damaged; how the job ended is unknown"
        step = f"Check the disk (`muster check storage`), and read its output: `muster logs {facts.entry.job_id}`."
        return [Cause(text, NONE, "muster", (step,), evidence=(facts.entry.damaged,))]
    if facts.job.state is State.SUCCEEDED:
        return []
    if not facts.job.state.final and facts.first is None:
        return list(_live(facts))
    found = [cause for cause in _ended(facts) if cause is not None]
    found = found or [causes_ended.unknown(facts)]
    return [_with_rank(_with_crash(hardened.with_hint(found[0], facts), facts), facts), *found[1:]]


def _with_rank(main: Cause, facts: Facts) -> Cause:
    """The only rank of a job is the cause, whatever it says of others."""
    alone = facts.first if facts.job.world_size == 1 and not any(rank.launches for rank in facts.job.ranks) else None
    if alone is None or main.culprit is not None or main.kind in ("stop", "admission", "hang", "muster"):
        return main
    return replace(main, rank=alone.rank)


def _with_crash(main: Cause, facts: Facts) -> Cause:
    """Adds what the kernel reports about a process of the job that crashed."""
    if main.kind in ("stop", "admission", "hang", "muster"):
        return main
    return replace(main, evidence=(*(f"the kernel log says: {one.text}" for one in facts.crashes[:3]), *main.evidence))


def _ended(facts: Facts) -> Iterator[Cause | None]:
    ended_for_hang = causes_hardware.hung(facts, stopped=True)
    yield ended_for_hang
    if facts.job.state is State.STOPPED:
        yield causes_hardware.hung_then_stopped(facts)
    if facts.job.state is State.STOPPED or rank_ends.is_timed_out(facts.job):
        yield causes_ended.stopped(facts)
        return
    yield causes_ended.sent_through_muster(facts)
    yield causes_ended.on_other_node(facts)
    yield causes_ended.without_service(facts)
    yield causes_ended.not_begun(facts)
    yield causes_ended.undelivered(facts)
    yield causes_ended.out_of_memory(facts)
    card = causes_hardware.card_failed(facts)
    said = causes_said.best(facts.signs, facts)
    worker = causes_launched.failed(facts)
    if worker is not None and said is not None and causes_launched.outweighs(facts, said):
        said = None
    if said is not None:
        said = causes_launched.of_worker(said, facts)
    if card is not None and (said is None or said.kind in _HARDWARE_MAKES or said.confidence == LOW):
        yield card
        card = None
    hit = causes_hardware.card_hit(facts)
    if hit is not None and (said is None or said.kind in _FAULT_MAKES or said.confidence == LOW):
        yield hit
        hit = None
    if said is not None and said.is_root and said.confidence != LOW:
        yield said
        said = None
    hang = causes_hardware.hung(facts, stopped=False)
    if hang is not None and hang.confidence != LOW:
        yield hang
        hang = None
    if said is None and causes_launched.exited(facts):
        # The kernel did not kill it, but perhaps a process of another job.
        yield worker
        worker = None
    yield causes_hardware.killed_child(facts)
    if said is None or not said.is_root:
        yield causes_ended.in_silence(facts, said)
        yield causes_ended.left_early(facts, said)
    if ended_for_hang is None or said is None or not causes_hardware.after_hang(facts, said):
        yield said
    yield hang
    yield card
    yield hit
    yield worker
    yield causes_ended.lost(facts)
    yield causes_ended.by_signal(facts, facts.first)
    yield causes_hardware.node_failed(facts)


def _live(facts: Facts) -> Iterator[Cause]:
    """What is known to be wrong with a running job."""
    yield from causes_hardware.hangs_now(facts)
    yield from causes_hardware.standing(facts)
    yield from causes_hardware.slow_now(facts)
    recent = latest(facts.signs, facts.now - LIVE_S)
    # Exceptions that the job survived are left out.
    said = causes_said.best([sign for sign in recent if sign.hit.signature.priority > sign_words.VAGUE], facts)
    if said is not None:
        yield replace(said, text=f"its recent output says: {said.text}", confidence=LOW)
