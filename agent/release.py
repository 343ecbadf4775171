"""A stop frees the cards: when a job's processes are gone, its cards are not free before the driver says so.

A context that is torn down, a process in state D and a driver in trouble may hold a card's memory after all that muster
could end has ended. The next job would die of that, so that it does not get the card; an operator is told who holds it.
"""

import time
from collections.abc import Callable, Mapping, Sequence

import anyio
from anyio import to_thread

from agent import holders
from agent.control import Pause
from probes.accelerator import ASCEND, NVIDIA, Holder, Trouble
from probes.driver import Driver, View, What
from supervisors import process
from supervisors.lifecycle import Job

#: Between two looks at cards that were not free in time, in seconds.
LOOK_S = 5.0
#: Less memory than this on a card is no sign of life of a process that is not the job's (monitors, the driver's own).
_IDLE_BYTES = 15 << 20


def needed(job: Job) -> bool:
    """Whether there is something to be looked at once this job has ended."""
    return bool(job.cards) and job.card_kind in (NVIDIA, ASCEND) and job.boot_id == process.boot_id()


async def until_free(
    job_id: str,
    job: Job,
    cards: Sequence[int],
    driver: Driver,
    *,
    timeout_s: float,
    slack_bytes: int,
    free: Callable[[int], None],
    tell: Callable[[Mapping[int, str]], None],
) -> None:
    """Calls `free` for each of these cards of the job as soon as the driver shows nobody of it there, or has had
    `timeout_s` and cannot tell; returns when that was done for all of them.

    `tell` is called with a sentence by card whenever after that time somebody else is seen on them, for ever.
    Memory that is in use without a process counts above what was in use before the job and `slack_bytes`.
    """
    end = time.monotonic() + timeout_s
    pause = Pause(0.02, 1.0)
    told: Mapping[int, str] = {}
    left = list(cards)
    while True:
        await driver.refresh(What.HOLDERS, left)
        view = await driver.refresh(What.READINGS, left)
        texts, untold = await to_thread.run_sync(_seen, job_id, job, left, view, slack_bytes)
        late = time.monotonic() >= end
        held = {*texts, *(untold if not late else ())}
        for card in left:
            if card not in held:
                free(card)
        left = [card for card in left if card in held]
        if not left:
            return
        if not late:
            await pause.wait()
            continue
        if texts != told:
            told = texts
            tell(texts)
        await anyio.sleep(LOOK_S)


def _seen(
    job_id: str, job: Job, cards: Sequence[int], view: View, slack_bytes: int
) -> tuple[dict[int, str], list[int]]:
    """A sentence for each of the cards that is not free, and those of which nothing is known."""
    texts: dict[int, str] = {}
    untold: list[int] = []
    for card in cards:
        seen = view.holders.get(card)
        if card not in view.cards:
            continue  # a card that is gone is nobody's
        if seen is None:
            sick = view.sick.get(card)
            if sick is not None and sick.trouble is Trouble.HANG:
                texts[card] = f"nobody can tell who is on it after the end of job {job_id}: {sick.text}"
            else:
                untold.append(card)
            continue
        there = [text for holder in seen.value if (text := _holds(job_id, job, holder))]
        if there:
            texts[card] = f"{there[0]} still holds it, after the end of job {job_id}" + (
                f" (and {len(there) - 1} more)" if len(there) > 1 else ""
            )
        elif kept := _kept(job, card, view, slack_bytes):
            texts[card] = (
                f"{kept / 2**30:.1f} GiB of its memory are still in use after the end of job {job_id}, by no process "
                "that the driver names: reset the card, or reboot"
            )
    return texts, untold


def _holds(job_id: str, job: Job, holder: Holder) -> str:
    """Who it is; "" for one that has nothing to do with the job."""
    if holder.graphics:
        return ""
    found = holders.who(holder.pid)
    if found.job_id != job_id:
        if found.start and found.start / process.TICKS_PER_S < job.accepted_up:
            return ""  # it was there before the job
        if holder.memory is not None and holder.memory <= _IDLE_BYTES:
            return ""
    memory = f" ({holder.memory / 2**30:.1f} GiB)" if holder.memory else ""
    return f"{found}{memory}"


def _kept(job: Job, card: int, view: View, slack_bytes: int) -> int:
    """Bytes in use that nobody is named for; 0 where that cannot be told."""
    before, now = job.card_used.get(card), view.readings.get(card)
    if before is None or now is None or now.value.mem_used is None:
        return 0
    more = now.value.mem_used - before
    return more if more > slack_bytes and not view.holders[card].value else 0
