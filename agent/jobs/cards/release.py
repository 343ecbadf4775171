"""When the cards of an ended job are free: not when its processes have ended, but when the driver shows none of them.

A context in teardown, a process in state D or a driver in trouble may hold a card's memory after all processes that
muster could end have ended. The next job would fail because of it, so it does not get the card; muster names the
holder.
"""

import time
from collections.abc import Callable, Mapping, Sequence

import anyio

from muster.agent import threads
from muster.agent.jobs.cards import holders
from muster.probes.cards.accelerator import ASCEND, NVIDIA, Holder, Trouble
from muster.probes.cards.driver import Driver, View, What
from muster.probes.kernel import process
from muster.probes.kernel.backoff import Backoff
from muster.probes.kernel.dataclass import dataclass
from muster.supervisors.model.card_identity import own_number
from muster.supervisors.model.lifecycle import Job

#: Between two looks at cards that were not free in time, in seconds.
LOOK_S = 5.0
#: Less memory than this on a card does not count as use (monitors, the driver's own).
_IDLE_BYTES = 15 << 20
#: The clocks of process starts and of records may differ by so many seconds.
_CLOCKS_S = 2.0
#: Troubles of a card, or of the whole driver, during which no process can use a card.
_NOBODYS = frozenset({Trouble.LOST, Trouble.ABSENT, Trouble.NO_DRIVER, Trouble.NO_LIBRARY, Trouble.MISMATCH})


def needed(job: Job) -> bool:
    """Whether the cards must be examined once this job has ended."""
    return possible(job.cards, job.card_kind, job.boot_id)


def possible(cards: Sequence[int], card_kind: str, boot_id: str) -> bool:
    """The same for a job with these cards that ran in this boot."""
    return bool(cards) and card_kind in (NVIDIA, ASCEND) and boot_id == process.boot_id()


async def until_free(
    job_id: str,
    job: Job,
    held_now: Callable[[], Sequence[int]],
    driver: Driver,
    *,
    timeout_s: float,
    slack_bytes: int,
    free: Callable[[int], None],
    tell: Callable[[Mapping[int, str]], None],
) -> None:
    """Calls `free` for each card that the job still holds (`held_now`: by their numbers at that moment) as soon as the
    driver shows no process of the job there, or after `timeout_s` if the driver cannot tell; returns when the job holds
    none any more.

    After that time `tell` is called with a sentence by card whenever the holders of the cards have changed, without
    end. Memory in use without a process counts above the amount in use before the job plus `slack_bytes`.
    """
    end = time.monotonic() + timeout_s
    pause = Backoff(0.02, 1.0)
    told: Mapping[int, str] = {}
    while left := list(held_now()):
        await driver.refresh(What.HOLDERS, left)
        view = await driver.refresh(What.READINGS, left)
        if left != list(held_now()):
            continue  # the driver renumbered the cards meanwhile
        if closed := driver.closed_for:  # by this daemon, for the reset of a card: it opens the driver again
            text = f"its holder after the end of job {job_id} is unknown: {closed}"
            held, untold = dict.fromkeys(left, _StillHeld(closed, text)), list[int]()
        else:
            held, untold = await threads.run(_seen, job_id, job, left, view, slack_bytes)
        late = time.monotonic() >= end
        stays = {*held, *(untold if not late else ())}
        for card in left:
            if card not in stays:
                free(card)
        if not stays:
            continue
        if not late:
            await anyio.sleep(pause.next())
            continue
        # A change of the holder is news; a change of its memory, or of the time without an answer, is not.
        whom = {card: seen.whom for card, seen in held.items()}
        if whom != told:
            told = whom
            tell({card: seen.text for card, seen in held.items()})
        await anyio.sleep(LOOK_S)


@dataclass(frozen=True, slots=True)
class _StillHeld:
    """Why a card is not free: the holder, and the sentence."""

    whom: str
    text: str


def _seen(
    job_id: str, job: Job, cards: Sequence[int], view: View, slack_bytes: int
) -> tuple[dict[int, _StillHeld], list[int]]:
    """The cards that are not free, and the cards for which that is unknown so far."""
    held: dict[int, _StillHeld] = {}
    untold: list[int] = []
    for card in cards:
        sick = view.sick.get(card) or view.driver
        if sick is not None and sick.trouble is Trouble.HANG:
            text = f"its holder after the end of job {job_id} is unknown: {sick.text}"
            held[card] = _StillHeld(str(Trouble.HANG), text)
        elif sick is not None and sick.trouble in _NOBODYS:
            pass  # no process can use it; a condition keeps jobs away from it
        elif (seen := view.holders.get(card)) is not None:
            there = [found for holder in seen.value if (found := _holds(job_id, job, holder))]
            if there:
                more = f" (and {len(there) - 1} more)" if len(there) > 1 else ""
                text = f"{there[0].text} still holds it, after the end of job {job_id}{more}"
                held[card] = _StillHeld(there[0].whom, text)
            elif kept := _kept(job, card, view, slack_bytes, nobody=not seen.value):
                held[card] = kept
        elif kept := _kept(job, card, view, slack_bytes, nobody=True):
            held[card] = kept
        elif card in view.readings:
            pass  # a driver that lists no processes: the card's memory has to do
        elif card in view.cards:
            untold.append(card)
    return held, untold


def _holds(job_id: str, job: Job, holder: Holder) -> _StillHeld | None:
    """The holder; None if it has nothing to do with the job."""
    if holder.graphics:
        return None
    found = holders.who(holder.pid)
    if found.job_id != job_id:
        if found.start and found.start / process.TICKS_PER_S < job.accepted_up:
            return None  # it ran before the job
        if found.start and job.ended_at and _began(found) > job.ended_at + _CLOCKS_S:
            return None  # it started after the job's end
        if holder.memory is not None and holder.memory <= _IDLE_BYTES:
            return None
    memory = f" ({holder.memory / 2**30:.1f} GiB)" if holder.memory else ""
    return _StillHeld(f"{found.pid} {found.start}", f"{found}{memory}")


def _began(found: holders.Who) -> float:
    """Seconds since the epoch."""
    return time.time() - process.uptime() + found.start / process.TICKS_PER_S


def _kept(job: Job, card: int, view: View, slack_bytes: int, *, nobody: bool) -> _StillHeld | None:
    """Memory in use without a known process; None if there is none, or if that is unknown."""
    own = own_number(job, card, view.uuids.get(card, ""))
    before, now = job.card_used.get(card if own is None else own), view.readings.get(card)
    if not nobody or before is None or now is None or now.value.mem_used is None:
        return None
    more = now.value.mem_used - before
    if more <= slack_bytes:
        return None
    text = f"{more / 2**30:.1f} GiB of its memory are still in use, and the driver names no process"
    return _StillHeld("memory", f"{text}: `muster node reset {card}`, or reboot")
