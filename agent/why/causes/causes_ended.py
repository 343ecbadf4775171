"""Causes that the records of a job tell by themselves: who stopped it, what did not begin, how a rank died."""

import os
import signal

from muster.agent.text import ranks
from muster.agent.why import curves
from muster.agent.why.around import OOM_KILL, near
from muster.agent.why.causes import causes_said
from muster.agent.why.causes.found import CERTAIN, LOW, NONE, Cause, SeenIn, remedy
from muster.agent.why.facts import Facts
from muster.agent.why.words import of_this_attempt
from muster.probes.kernel import endings
from muster.supervisors.model.lifecycle import Rank
from muster.supervisors.model.states import Outcome, StopCause
from muster.supervisors.model.verdict import stopper
from muster.supervisors.system import oom

_SIGNALS = {
    signal.SIGSEGV: "it reached into memory not its own: a defect of a C extension, or libraries that do not fit",
    signal.SIGBUS: "it touched memory that was not there: mostly a full /dev/shm, or a file that became shorter",
    signal.SIGABRT: "it ended itself: an assertion or an exception in C or C++ that nobody took",
    signal.SIGFPE: "it divided by zero, or did another forbidden calculation",
    signal.SIGILL: "it used an instruction that this processor does not have: it was built for another one",
}
_ASKED = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})


def stopped(facts: Facts) -> Cause:
    """Of a job that somebody stopped."""
    stop, verdict = facts.job.stop, facts.job.verdict
    if stop is not None and stop.cause is StopCause.MAX_RUNTIME:
        limit = facts.entry.spec.max_runtime
        text = "its time was over" + (f" (max_runtime {limit:g} s)" if limit else "") + ": muster stopped it"
        step = "Start it again from its checkpoint, with a longer --max-runtime."
        return Cause(text, CERTAIN, "stop", (step,))
    by = verdict.stopped_by if verdict is not None else ""
    given = stopper(facts.job)[1] if stop is not None else ""
    reason = f", with the reason: {given}" if given else ""
    return Cause(f"it was stopped by {by or 'somebody'}{reason}", CERTAIN, "stop")


def not_begun(facts: Facts) -> Cause | None:
    """Of a job none of whose ranks ran."""
    job = facts.job
    if any(rank.pid and rank.outcome is not Outcome.NOT_STARTED for rank in job.ranks):
        return None
    critical = [check for check in job.checks if check.get("status") == "CRITICAL"]
    if critical:
        steps = [text for check in critical if (text := remedy(str(check.get("code", ""))))]
        said = "; ".join(f"{check.get('item')}: {check.get('reason')}" for check in critical)
        return Cause(f"the node was not fit for it: {said}", CERTAIN, "admission", tuple(dict.fromkeys(steps)))
    step = job.step
    if step is not None and step.outcome is not None and step.status != 0 and not job.spawned:
        return causes_said.in_step(facts) or Cause(
            f"{job.step_name} failed, so that no rank was started",
            CERTAIN,
            "job",
            (f"Read its output: `muster logs {facts.entry.job_id} --job`.",),
        )
    first = facts.first
    if first is not None and first.outcome is Outcome.NOT_STARTED:
        text = f"its command could not be executed: {first.detail}"
        mend = "Mend command, working folder or user (`muster status`), and start it again."
        return Cause(text, CERTAIN, "job", (mend,))
    summary = job.verdict.summary if job.verdict is not None else ""
    return Cause(f"no rank of it ran: {summary}", CERTAIN, "muster") if summary else None


def out_of_memory(facts: Facts) -> Cause | None:
    """Of a rank that the kernel killed for want of memory."""
    killed = [rank for rank in facts.failed if rank.outcome is Outcome.OUT_OF_MEMORY]
    if not killed:
        return None
    limit = facts.entry.spec.limits.get("memory")
    text = f"the kernel killed {ranks([rank.rank for rank in killed])} for want of memory"
    told = [one.text for one in facts.happenings if one.code == OOM_KILL and near(one, facts.zero)]
    lines = [line for line in told if any(f"process {rank.pid} " in line for rank in killed)]
    seen_at = SeenIn.LIMIT if limit else SeenIn.RECORDS
    if lines:
        limited = any("memory cgroup" in line.lower() for line in lines)
        text += ": a limit was reached (the job's, or a container's)" if limited else ": the host had none left"
        seen_at = SeenIn.LIMIT if limited else SeenIn.NODE
    text += f" (the job's limit is {limit / 2**30:.1f} GiB)" if limit else ""
    step = "Let it use less (data-loader workers, caches, pinned memory), or give it more (`--limit memory=`, the "
    step += "container's limit)."
    largest = max((rank.usage.max_rss or 0 for rank in killed), default=0)
    seen = (f"the largest of them had {largest / 2**30:.1f} GiB resident at its peak",) if largest else ()
    return Cause(text, CERTAIN, "memory", (step,), evidence=(*seen, *curves.remarks(facts.minutes)), seen=seen_at)


def lost(facts: Facts) -> Cause | None:
    """Of a rank whose end nobody saw."""
    first = facts.first
    if first is None or first.outcome is not Outcome.LOST:
        return None
    text = f"how rank {first.rank} ended nobody can tell: {first.detail or 'it was not seen'}"
    return Cause(text, NONE, "muster", ("Look at its output; start the job again from its checkpoint.",))


def by_signal(facts: Facts) -> Cause | None:
    """What the signal alone says of which the first rank died."""
    first = facts.first
    if first is None:
        return None
    number, by_shell = _signal_of(first)
    if number is None:
        return None
    name = endings.signal_name(number)
    who = f"a process below rank {first.rank}" if by_shell else f"rank {first.rank}"
    how = f" (exit code {128 + number} is how a shell tells it)" if by_shell else ""
    if number == signal.SIGKILL:
        text = f"{who} was killed with SIGKILL{how}, not by muster; that it was for want of memory is not known"
        step = "Look who sends it: an administrator, a container's limit of memory, the kernel (`dmesg`)."
        if first.detail == oom.NOT_THE_KERNEL and not by_shell:
            text = f"{who} was killed with SIGKILL, neither by muster nor by the kernel for want of memory"
            step = "Look who sends it: an administrator, a scheduler, what runs the container."
        return Cause(text, LOW, "unknown", (step,), evidence=tuple(curves.remarks(facts.minutes)))
    if number in _ASKED:
        step = "Look who sends it: a scheduler, a session that ended, a person."
        return Cause(f"somebody ended {who} with {name}{how}; it was not muster", LOW, "unknown", (step,))
    if not (said := meaning(number)):
        return Cause(f"{who} died of {name}{how}", LOW, "unknown")
    step = "Set PYTHONFAULTHANDLER=1 to see where; `--limit core=unlimited` keeps a core dump."
    return Cause(f"{who} died of {name}{how}: {said}", LOW, "job", (step,))


def meaning(number: int) -> str:
    """What a signal says that comes of what a program does; empty for another one."""
    return _SIGNALS.get(signal.Signals(number), "") if number in signal.valid_signals() and number < 32 else ""


def _signal_of(rank: Rank) -> tuple[int | None, bool]:
    """The signal of which a rank died, and whether only its exit code says so, as a shell's does."""
    if rank.status is None:
        return None, False
    if os.WIFSIGNALED(rank.status):
        return os.WTERMSIG(rank.status), False
    number = os.WEXITSTATUS(rank.status) - 128
    return (number, True) if number == signal.SIGKILL or number in _ASKED or number in _SIGNALS else (None, False)


def unknown(facts: Facts) -> Cause:
    """Where nothing tells."""
    first = facts.first
    if first is None:
        return Cause("it is not known", NONE, "unknown")
    if first.lost_bytes:
        lost = f"{first.lost_bytes} bytes of its output were lost" + (f" ({first.lost_why})" if first.lost_why else "")
        text = f"it is not known: rank {first.rank} ended by itself, and {lost}, which may have said why"
        step = f"Read what is left: `muster logs {facts.entry.job_id} -r {first.rank} --tail 200`."
        return Cause(text, NONE, "unknown", (step,))
    if facts.job.verdict is not None and not of_this_attempt(facts.job.verdict.last_lines):
        text = f"it is not known: rank {first.rank} ended by itself and wrote nothing, and the node holds no known sign"
        step = "Start it again so that it says more: a lower log level, `set -x` in a shell script."
        return Cause(text, NONE, "unknown", (step,))
    text = f"it is not known: rank {first.rank} ended by itself, and neither its output nor the node holds a known sign"
    step = f"Read what it wrote: `muster logs {facts.entry.job_id} -r {first.rank} --tail 200`."
    return Cause(text, NONE, "unknown", (step,))
