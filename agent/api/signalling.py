"""The call Signal: who gets a signal, and who hears of it."""

import os
import time

import anyio

from muster.agent import text, threads
from muster.agent.api import access
from muster.agent.errors import InvalidRequest, RankNotRunning
from muster.agent.events.event_store import Event, EventStore
from muster.agent.host import early_signals
from muster.agent.jobs.entry import Entry
from muster.agent.jobs.live import rank_signals
from muster.agent.jobs.live.rank_signals import Signalled
from muster.probes.kernel import endings, number_lists, process
from muster.supervisors.launch.child import Account
from muster.supervisors.model.lifecycle import Rank
from muster.supervisors.model.spec import Violation
from muster.supervisors.supervision_errors import NotStartable
from muster.v1 import job_pb2

#: Seconds before a call that passes a signal on in which the daemon may have got it, and seconds that it waits for it:
#: who signals a group or a step of Slurm signals one process after the other.
BEFORE_S, WAIT_S = 2.0, 1.0
#: Seconds that a job which is about to begin is waited for: its ranks may run before the daemon knows.
BEGINS_S = 2.0
#: Signals that their ranks handle may come every few seconds: one event of a signal and job in so many seconds.
APART_S = 60.0
_LOOK_S = 0.05
#: So many jobs and signals are remembered.
_MOST = 1024


class Signalling:
    """Of one daemon."""

    def __init__(self, events: EventStore) -> None:
        self._events = events
        #: When an event told of a job and a signal last.
        self._told: dict[tuple[str, str], float] = {}

    async def send(self, entry: Entry, request: job_pb2.SignalRequest, by: str) -> job_pb2.SignalResponse:
        """Sends it and tells of it. Raises InvalidRequest, RankNotRunning."""
        with anyio.move_on_after(BEGINS_S):
            while not (entry.job.spawned or entry.job.state.final):
                await entry.changed.next()
        number, ranks = _asked(entry, request)
        name = endings.signal_name(number)
        if request.passed_on and await _received(number, ranks):
            return job_pb2.SignalResponse(received=True, signal=name)
        theirs = not access.reach().is_everything
        with anyio.CancelScope(shield=True):  # an event follows where a rank got it; milliseconds
            sent = await threads.run(_send, entry.spec.user or "", theirs, ranks, number, request.force)
            self._tell(entry.job_id, name, sent, request, by)
        shown = [job_pb2.SignalledRank(rank=one.rank, pids=one.pids, why_not=one.why_not) for one in sent]
        return job_pb2.SignalResponse(ranks=shown, signal=name)

    def _tell(self, job_id: str, name: str, sent: list[Signalled], request: job_pb2.SignalRequest, by: str) -> None:
        got = [one.rank for one in sent if one.pids]
        now, key = time.monotonic(), (job_id, name)
        if not got or (not request.force and now - self._told.get(key, -APART_S) < APART_S):
            return
        if len(self._told) >= _MOST:
            self._told.clear()
        self._told[key] = now
        facts = {"signal": name, "ranks": number_lists.numbers(got), "by": by}
        for fact, is_so in (("force", request.force), ("passed_on", request.passed_on)):
            if is_so:
                facts[fact] = "true"
        what = f"{name} sent to {text.ranks(got)}, by {by}"
        rank = got[0] if len(got) == 1 else None
        self._events.append([(None, Event(time.time(), "job.signalled", job_id, rank, what, attributes=facts))])


def _send(user: str, theirs: bool, ranks: list[Rank], number: int, force: bool) -> list[Signalled]:
    """`theirs`: only to processes of the job's user, as a caller who reaches no other. Blocks."""
    try:
        uid = Account.of(user).uid if theirs else None
    except NotStartable as error:
        return [Signalled(rank.rank, why_not=str(error)) for rank in ranks]
    return rank_signals.send(ranks, number, force=force, uid=uid)


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


async def _received(number: int, ranks: list[Rank]) -> bool:
    """Whether the daemon gets the same signal about now, where the ranks surely get it as well: who signals the cgroup
    of a step reaches none that systemd has put elsewhere. Each that came counts once."""
    if not await threads.run(_are_beside, [rank.pid for rank in ranks if rank.pid]):
        return False
    since = time.monotonic() - BEFORE_S
    with anyio.move_on_after(WAIT_S):
        while early_signals.came_last(number) < since:  # noqa: ASYNC110  # a signal handler sets no event
            await anyio.sleep(_LOOK_S)
    return early_signals.take(number, since)


def _are_beside(pids: list[int]) -> bool:
    """Whether these processes are in a cgroup below that which the daemon's is in. Blocks."""
    try:
        around = os.path.dirname(process.cgroup())
        return all(process.cgroup(pid).startswith(around) for pid in pids)
    except OSError:  # one has just ended
        return True
