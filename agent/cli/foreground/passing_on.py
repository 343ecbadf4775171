"""A signal for the ranks that came to the command: passed on to them, and what became of it."""

import signal
from collections.abc import Callable, Iterator, Sequence

from muster.agent.cli.exits import CommandFailed
from muster.agent.cli.printing import note
from muster.agent.text import clean, ranks
from muster.client import MusterError
from muster.v1 import job_pb2

#: Seconds that a daemon has for its answer.
ANSWER_S = 10.0


def pass_on(
    job_id: str,
    number: int,
    call: Callable[[job_pb2.SignalRequest], job_pb2.SignalResponse],
    node: str = "",
    *,
    beside: bool = False,
) -> None:
    """Has the daemon send it to the ranks that handle it. `call` makes the call. `beside`: daemon and ranks belong to
    this command, and so may have got the signal from where it has it; then it is not sent again. Never raises because
    of it: the job goes on."""
    where, name = f"{node}: " if node else "", signal.Signals(number).name
    request = job_pb2.SignalRequest(job_id=job_id, signal=name, passed_on=beside)
    try:
        answer = call(request)
    except (CommandFailed, MusterError) as failure:
        note(f"{where}{name} is not passed on: {getattr(failure, 'message', failure)}")
        return
    if answer.received:
        note(f"{where}{name}: it went to the daemon as well, and so to all: not sent again")
    for text in texts(answer.ranks, answer.signal):
        note(f"{where}{text}")


def texts(answers: Sequence[job_pb2.SignalledRank], name: str) -> Iterator[str]:
    """Lines for people: which ranks got it, and which did not, why."""
    if got := [one.rank for one in answers if one.pids]:
        yield f"{name} sent to {ranks(got)}"
    missed: dict[str, list[int]] = {}
    for one in answers:
        if not one.pids:
            missed.setdefault(clean(one.why_not), []).append(one.rank)
    for why, which in missed.items():
        yield f"{name} not sent to {ranks(which)}: {why}"
