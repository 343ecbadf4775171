"""The call Signal: who gets a signal, and who hears of it."""

import time

import anyio

from muster.agent import text, threads
from muster.agent.errors import InvalidRequest, RankNotRunning
from muster.agent.events.event_store import Event, EventStore
from muster.agent.host import early_signals
from muster.agent.jobs.entry import Entry
from muster.agent.jobs.live import rank_signals
from muster.probes.kernel import endings
from muster.supervisors.model.lifecycle import Rank
from muster.supervisors.model.spec import Violation
from muster.v1 import job_pb2

#: Seconds before a call that passes a signal on in which the daemon may have got it, and seconds that it waits for it:
#: who signals a group or a step of Slurm signals one process after the other.
BEFORE_S, WAIT_S = 3.0, 1.0
_LOOK_S = 0.05


async def send(entry: Entry, request: job_pb2.SignalRequest, by: str, events: EventStore) -> job_pb2.SignalResponse:
    """Sends it and tells of it. Raises InvalidRequest, RankNotRunning."""
    number, ranks = _asked(entry, request)
    name = endings.signal_name(number)
    if request.passed_on and await _received(number):
        return job_pb2.SignalResponse(received=True, signal=name)
    sent = await threads.run(lambda: rank_signals.send(ranks, number, force=request.force))
    if got := [one.rank for one in sent if one.pids]:
        facts = {"signal": name, "ranks": ",".join(map(str, got)), "by": by}
        if request.passed_on:
            facts["passed_on"] = "true"
        what = f"{name} sent to {text.ranks(got)}, by {by}"
        rank = got[0] if len(got) == 1 else None
        events.append([(None, Event(time.time(), "job.signalled", entry.job_id, rank, what, attributes=facts))])
    shown = [job_pb2.SignalledRank(rank=one.rank, pids=one.pids, why_not=one.why_not) for one in sent]
    return job_pb2.SignalResponse(ranks=shown, signal=name)


def _asked(entry: Entry, request: job_pb2.SignalRequest) -> tuple[int, list[Rank]]:
    try:
        number = rank_signals.number_of(request.signal)
    except ValueError as error:
        raise InvalidRequest([Violation("signal", str(error))]) from None
    job = entry.job
    here = {rank.rank: rank for rank in job.ranks}
    wanted = sorted(set(request.ranks)) or sorted(here)
    if unknown := [rank for rank in wanted if rank not in here]:
        known = text.ranks(sorted(here)) if here else "no ranks yet"
        raise InvalidRequest([Violation("ranks", f"{text.ranks(unknown)}: this node has {known}")])
    if job.state.final or not job.spawned:
        raise RankNotRunning.of_job(entry.job_id, job.state, "a signal")
    return number, [here[rank] for rank in wanted]


async def _received(number: int) -> bool:
    """Whether the daemon gets the same signal about now."""
    since = time.monotonic() - BEFORE_S
    with anyio.move_on_after(WAIT_S):
        while early_signals.came_last(number) < since:  # noqa: ASYNC110  # a signal handler sets no event
            await anyio.sleep(_LOOK_S)
    return early_signals.came_last(number) >= since
