"""Causes from a launcher's report: which of its workers failed first, and how."""

import signal
from dataclasses import replace

from muster.agent.why import curves
from muster.agent.why.causes import causes_ended
from muster.agent.why.causes.found import MEDIUM, Cause, SeenIn
from muster.agent.why.causes.sign_words import VAGUE
from muster.agent.why.facts import Facts
from muster.agent.why.launchers import WorkerFailure
from muster.supervisors.model.verdict import FROM_OUTSIDE


def failed(facts: Facts) -> Cause | None:
    """What the launcher itself reports about the worker that failed first."""
    launched = facts.launched
    if launched is None:
        return None
    worker = launched.workers[0]
    text = f"{worker.who} {worker.ending}, as {worker.launcher} reports"
    steps = [f"Read its output: `muster logs {facts.entry.job_id} -r {launched.rank} --tail 200`."]
    kind = "job"
    evidence: tuple[str, ...] = ()
    if (number := worker.killed_by) is not None:
        if number in FROM_OUTSIDE:
            kind = "unknown"
            steps.insert(0, "Find out who sent the signal: an administrator, a memory limit, the kernel (`dmesg`).")
            evidence = tuple(curves.remarks(facts.minutes))
        elif meaning := causes_ended.meaning(number):
            text += f": {meaning}"
            steps.insert(0, "Set PYTHONFAULTHANDLER=1 to see where; `--limit core=unlimited` keeps a core dump.")
    return Cause(text, MEDIUM, kind, tuple(steps), evidence=evidence, seen=SeenIn.LAUNCHER)


def outweighs(facts: Facts, said: Cause) -> bool:
    """Whether the launcher's report says more than the output: a hint, or an exception or a lost peer of another
    worker, because a signal ended the worker, or an exit code that no exception leads to. A worker that aborts has
    printed the reason."""
    worker = _first(facts)
    if worker is None or said.sign is None:
        return False
    signature = said.sign.hit.signature
    number = worker.killed_by
    by_signal = number is not None and number != signal.SIGABRT
    code = worker.code
    by_itself = by_signal or (code is not None and code not in (0, 1) and number is None)
    if signature.role == "follow":
        return by_itself and said.sign.hit.worker != worker.rank
    return signature.role == "hint" or (by_signal and signature.priority <= VAGUE)


def exited(facts: Facts) -> bool:
    """Whether the worker that failed first chose an exit code that neither an exception nor a signal leads to."""
    worker = _first(facts)
    return worker is not None and worker.code is not None and 1 < worker.code <= 128


def of_worker(said: Cause, facts: Facts) -> Cause:
    """A cause from the launcher's output, with how the worker ended."""
    worker, launched = _first(facts), facts.launched
    if worker is None or launched is None or said.sign is None or said.sign.rank != launched.rank:
        return said
    if said.sign.hit.worker in (None, worker.rank):
        return replace(said, text=f"{worker.who} {worker.ending}: {said.text}")
    return replace(said, text=f"{said.text}; {worker.launcher} reports that {worker.who} failed first: {worker.ending}")


def _first(facts: Facts) -> WorkerFailure | None:
    return facts.launched.workers[0] if facts.launched is not None else None
