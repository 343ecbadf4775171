"""Causes that the job's records show by themselves: who stopped it, what did not start, how a rank died."""

import os
import signal

from muster.agent.text import ranks, size
from muster.agent.why import curves
from muster.agent.why.around import OOM_KILL, SIGNALLED, near
from muster.agent.why.causes import causes_said, sign_words
from muster.agent.why.causes.found import CERTAIN, HIGH, LOW, MEDIUM, NONE, Cause, SeenIn, remedy, warns
from muster.agent.why.facts import Facts
from muster.agent.why.words import of_this_attempt
from muster.probes.kernel import endings, number_lists
from muster.supervisors.model import node_ends, rank_ends
from muster.supervisors.model.lifecycle import Rank
from muster.supervisors.model.rules import staging_urls
from muster.supervisors.model.staging_progress import OUTPUTS, STEPS
from muster.supervisors.model.states import Outcome, State, StopCause
from muster.supervisors.model.verdict import stopper
from muster.supervisors.system import oom

_SIGNALS = {
    signal.SIGSEGV: "it accessed memory that it does not own: a bug in a C extension, or libraries that do not match",
    signal.SIGBUS: "it accessed memory without backing: usually a full /dev/shm, or a mapped file that was truncated",
    signal.SIGABRT: "it aborted: a failed assertion or an uncaught exception in C or C++",
    signal.SIGFPE: "it divided an integer by zero, or did another illegal calculation",
    signal.SIGILL: "it ran an instruction that this processor does not have: it was built for another processor",
}
#: Seconds within which the order of two ends says nothing about which led to the other.
SAME_END_S = 0.5
#: A signal without a handler ends a process at once, unless that hangs in the kernel.
SENT_S = 10.0
#: How a container gets more shared memory, as a clause.
_SHM = "--shm-size or --ipc=host gives it more (Kubernetes: an emptyDir with `medium: Memory` at /dev/shm)"
#: What to do about a job that needs more memory than it may use.
_LESS = (
    "Reduce its memory use (data-loader workers, caches, pinned memory), or give it more (`--limit memory=`, the "
    "container's limit)."
)
_ASKED = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})


def stopped(facts: Facts) -> Cause:
    """A job that somebody stopped."""
    stop, end = facts.job.stop, facts.job.verdict
    if stop is not None and stop.cause is StopCause.MAX_RUNTIME:
        limit = facts.entry.spec.max_runtime
        text = "it reached its time limit" + (f" (max_runtime {limit:g} s)" if limit else "") + ": muster stopped it"
        step = "Start it again from its checkpoint, with a longer --max-runtime."
        return Cause(text, CERTAIN, "stop", (step,))
    by = end.stopped_by if end is not None else ""
    given = stopper(facts.job)[1] if stop is not None else ""
    reason = f", with the reason: {given}" if given else ""
    return Cause(f"it was stopped by {by or 'somebody'}{reason}", CERTAIN, "stop")


def without_service(facts: Facts) -> Cause | None:
    """A job one of whose services ended before its ranks."""
    service = rank_ends.ended_service(facts.job)
    if service is None or not rank_ends.lost_service(facts.job):
        return None
    name = rank_ends.service_name(service)
    read = f"Read its output: `muster logs {facts.entry.job_id} --service {service.local_rank}`."
    if service.outcome is Outcome.NOT_STARTED:
        return Cause(f"{name} could not be executed: {service.detail}", CERTAIN, "job", (read,))
    said = causes_said.best(facts.signs, facts)
    how = f": {said.text}" if said is not None else ""
    when = "while the ranks were running" if any(rank.pid for rank in facts.job.ranks) else "before the ranks began"
    return Cause(f"{name} ended {when}, which they are not to run without{how}", CERTAIN, "job", (read,))


def on_other_node(facts: Facts) -> Cause | None:
    """An MPI job that another node ended, or that it never reached."""
    end = facts.job.verdict
    if end is None or not (told := node_ends.read(node_ends.LABEL + end.summary)):
        return None
    return Cause(told, CERTAIN, "stop" if node_ends.is_stop(told) else "peer")


def not_begun(facts: Facts) -> Cause | None:
    """A job whose ranks never ran."""
    job = facts.job
    if any(rank.pid and rank.outcome is not Outcome.NOT_STARTED for rank in job.ranks):
        return None
    critical = [check for check in job.checks if check.get("status") == "CRITICAL"]
    if critical:
        steps = [text for check in critical if (text := remedy(str(check.get("code", ""))))]
        said = "; ".join(f"{check.get('item')}: {check.get('reason')}" for check in critical)
        return Cause(f"a check before the start failed: {said}", CERTAIN, "admission", tuple(dict.fromkeys(steps)))
    step = job.step
    if step is not None and step.outcome is not None and step.status != 0 and not job.spawned:
        if job.step_name in STEPS and step.detail:
            return Cause(f"{job.step_name} could not be copied: {step.detail}", CERTAIN, "job")
        return causes_said.in_step(facts) or Cause(
            f"{job.step_name} failed, so no rank was started",
            CERTAIN,
            "job",
            (f"Read its output: `muster logs {facts.entry.job_id} --job`.",),
        )
    first = facts.first
    if first is not None and first.outcome is Outcome.NOT_STARTED:
        text = f"its command could not be executed: {first.detail}"
        mend = "Correct the command, working folder or user (`muster status`), and start it again."
        return Cause(text, CERTAIN, "job", (mend,))
    summary = job.verdict.summary if job.verdict is not None else ""
    return Cause(f"none of its ranks ran: {summary}", CERTAIN, "muster") if summary else None


def undelivered(facts: Facts) -> Cause | None:
    """A job that succeeded but for its outputs."""
    job = facts.job
    if not job.outputs_kept or facts.first is not None or job.state is not State.FAILED:
        return None
    told = next((text for text in job.warnings if text.startswith(OUTPUTS)), OUTPUTS)
    entry = facts.entry
    same = (str(entry.paths.folder), entry.spec.workdir)
    left = staging_urls.undelivered(entry.spec.outputs, job.warnings)
    named = ", ".join(job.hardening.on_node(entry.job_id, path, same) for path in left)
    step = f"Copy them from this node: {named}. muster keeps the job's folder until `muster rm {facts.entry.job_id}`."
    return Cause(f"not delivered: {told}", CERTAIN, "job", (step,))


def out_of_memory(facts: Facts) -> Cause | None:
    """A rank that the kernel killed because memory ran out."""
    killed = [rank for rank in facts.failed if rank.outcome is Outcome.OUT_OF_MEMORY]
    if not killed:
        return _out_of_memory_below(facts)
    limit = facts.entry.spec.limits.get("memory")
    text = f"out of memory: the kernel killed {ranks([rank.rank for rank in killed])}"
    told = [one.text for one in facts.happenings if one.code == OOM_KILL and near(one, facts.zero)]
    lines = [line for line in told if any(f"process {rank.pid} " in line for rank in killed)]
    seen_at = SeenIn.LIMIT if limit else SeenIn.RECORDS
    if lines:
        limited = any("memory cgroup" in line.lower() for line in lines)
        text += "; a limit was reached (the job's, or a container's)" if limited else "; the host had none left"
        seen_at = SeenIn.LIMIT if limited else SeenIn.NODE
    text += f" (the job's limit is {size(int(limit))})" if limit else ""
    largest = max((rank.usage.max_rss or 0 for rank in killed), default=0)
    seen = (f"the largest of them had {size(largest)} resident at its peak",) if largest else ()
    return Cause(text, CERTAIN, "memory", (_LESS,), evidence=(*seen, *curves.remarks(facts.minutes)), seen=seen_at)


def _out_of_memory_below(facts: Facts) -> Cause | None:
    """A process below a rank that the kernel killed because the job had reached its memory limit."""
    rank = facts.first or facts.job.step
    if rank is None or not rank.memory_limit:
        return None
    seen = tuple(curves.remarks(facts.minutes))
    return Cause(rank.detail, HIGH, "memory", (_LESS,), evidence=seen, seen=SeenIn.LIMIT)


def lost(facts: Facts) -> Cause | None:
    """A rank whose exit status is unknown."""
    first = facts.first
    if first is None or first.outcome is not Outcome.LOST:
        return None
    text = f"the exit status of rank {first.rank} is unknown: {first.detail or 'no process of muster saw it end'}"
    return Cause(text, NONE, "muster", ("Read its output; restart the job from its checkpoint.",))


def sent_through_muster(facts: Facts) -> Cause | None:
    """The rank that failed first died of a signal that somebody had muster send to it (`muster signal --force`) just
    before."""
    rank = facts.first
    if rank is None or rank.outcome is not Outcome.SIGNALLED or rank.status is None:
        return None
    name = endings.signal_name(os.WTERMSIG(rank.status))
    for event in reversed(facts.events.kept):
        of_it = event.kind == SIGNALLED and rank.rank in number_lists.processors(event.attributes.get("ranks", ""))
        before = rank.ended_at - event.time
        if (
            of_it
            and "force" in event.attributes
            and event.attributes.get("signal") == name
            and -SAME_END_S <= before <= SENT_S
        ):
            text = f"rank {rank.rank} died of {name}, which {event.attributes.get('by', 'somebody')} had muster send"
            return Cause(text, CERTAIN, "stop", seen=SeenIn.SIGNAL, rank=rank.rank)
    return None


def by_signal(facts: Facts, rank: Rank | None) -> Cause | None:
    """What the signal that killed a rank says by itself."""
    if rank is None:
        return None
    number, by_shell = _signal_of(rank)
    if number is None:
        return None
    name = endings.signal_name(number)
    who = f"a process below rank {rank.rank}" if by_shell else f"rank {rank.rank}"
    how = f" (a shell reports it as exit code {128 + number})" if by_shell else ""
    if number == signal.SIGKILL:
        text = f"{who} was killed with SIGKILL{how}, not by muster; whether memory ran out is unknown"
        step = "Find out who sent it: an administrator, a container's memory limit, the kernel (`dmesg`)."
        if rank.detail == oom.NOT_THE_KERNEL and not by_shell:
            text = f"{who} was killed with SIGKILL, neither by muster nor by the kernel's OOM killer"
            step = "Find out who sent it: an administrator, a scheduler, the container runtime."
        remarks = tuple(curves.remarks(facts.minutes))
        return Cause(text, LOW, "unknown", (step,), evidence=remarks, seen=SeenIn.SIGNAL, rank=rank.rank)
    if number in _ASKED:
        step = "Find out who sent it: a scheduler, a login session that ended, a person."
        text = f"somebody ended {who} with {name}{how}; it was not muster"
        return Cause(text, LOW, "unknown", (step,), seen=SeenIn.SIGNAL, rank=rank.rank)
    if number == signal.SIGSYS and (profile := facts.job.hardening.seccomp):
        text = f"{who} died of {name}{how}: the seccomp profile {profile} does not allow a system call that it made"
        step = "Find the call in the kernel's log (`dmesg`, type=1326), and allow it in the profile, or name another "
        step += "profile (`--seccomp`; without it `seccomp_profile` in [hardening])."
        return Cause(text, MEDIUM, "job", (step,), seen=SeenIn.SIGNAL, rank=rank.rank)
    if not (said := meaning(number)):
        return Cause(f"{who} died of {name}{how}", LOW, "unknown", rank=rank.rank)
    step = "Set PYTHONFAULTHANDLER=1 to see where; `--limit core=unlimited` keeps a core dump."
    if number == signal.SIGBUS:
        step = f"Check /dev/shm (`df -h /dev/shm`): a container has 64 MB of it, unless {_SHM}. {step}"
    return Cause(f"{who} died of {name}{how}: {said}", LOW, "job", (step,), rank=rank.rank)


def in_silence(facts: Facts, said: Cause | None) -> Cause | None:
    """How a rank ended by itself that wrote no reason, if others wrote only that they lost a peer: this one. The kernel
    reports ends that are so close to each other in any order. None on one of several nodes, unless a signal ended the
    rank: the peer may be there."""
    first, sign = facts.first, None if said is None else said.sign
    if first is None or sign is None or sign.rank is None or sign.hit.signature.role != "follow":
        return None
    told = [one for one in facts.signs if one.hit.signature.role != "hint" and not sign_words.is_survived(one)]
    wrote = {one.rank for one in told}
    silent = [one for one in facts.failed if one.rank not in wrote and one.ended_at - facts.zero <= SAME_END_S]
    rank = next((one for one in silent if one.rank == first.rank or not sign_words.aborted(one)), None)
    if rank is None:
        return None
    if (cause := by_signal(facts, rank)) is not None:
        return cause
    if facts.job.world_size > facts.job.local_ranks or rank.outcome is not Outcome.EXITED or not rank.status:
        return None
    text = f"rank {rank.rank} {endings.describe(rank.status)} by itself, and named no error"
    step = f"Read its output: `muster logs {facts.entry.job_id} -r {rank.rank} --tail 200`."
    return Cause(text, MEDIUM, "job", (step,), rank=rank.rank)


def left_early(facts: Facts, said: Cause | None) -> Cause | None:
    """Ranks that exited with code 0 while the others went on, if these say only that they lost a peer."""
    first, sign = facts.first, None if said is None else said.sign
    if first is None or sign is None or said is None or said.kind != "peer" or sign.hit.signature.role != "follow":
        return None
    ends = facts.job.ends
    before = [facts.job.rank(number) for number in ends[: ends.index(first.rank)]] if first.rank in ends else []
    left = [rank.rank for rank in before if rank.outcome is Outcome.EXITED and not rank.status and not rank.serves]
    if not left:
        return None
    others = [rank.rank for rank in facts.job.ranks if rank.rank not in left]
    text = f"{ranks(left)} exited with code 0 while {ranks(others)} went on, and then lost the connection"
    step = (
        f"Find out why it ended: `muster logs {facts.entry.job_id} -r {left[0]} --tail 200`. Usual reasons: data sets "
    )
    step += "of different length, a `break` or `return` in one rank alone, no barrier before the end."
    return Cause(text, MEDIUM, "job", (step,), rank=left[0] if len(left) == 1 else None)


def meaning(number: int) -> str:
    """What a signal means that a program brings on itself; empty for other signals."""
    return _SIGNALS.get(signal.Signals(number), "") if number in signal.valid_signals() and number < 32 else ""


def _signal_of(rank: Rank) -> tuple[int | None, bool]:
    """The signal that killed a rank, and whether only its exit code says so (a shell's 128 + N)."""
    if rank.status is None:
        return None, False
    if os.WIFSIGNALED(rank.status):
        return os.WTERMSIG(rank.status), False
    number = os.WEXITSTATUS(rank.status) - 128
    return (number, True) if number == signal.SIGKILL or number in _ASKED or number in _SIGNALS else (None, False)


def unknown(facts: Facts) -> Cause:
    """The cause of last resort: no record, output or event names one."""
    first = facts.first
    if first is None:
        return Cause("the cause is unknown", NONE, "unknown")
    if first.lost_bytes:
        lost = f"{first.lost_bytes} bytes of its output were lost" + (f" ({first.lost_why})" if first.lost_why else "")
        text = f"the cause is unknown: rank {first.rank} ended by itself, and {lost}, which may have shown why"
        step = f"Read what is left: `muster logs {facts.entry.job_id} -r {first.rank} --tail 200`."
        return Cause(text, NONE, "unknown", (step,))
    # Less than a fault, and yet no card without an error: a person has to judge it.
    warned = [one for one in facts.happenings if near(one, facts.zero) and one.card is not None and warns(one.code)]
    reports = f"the node reports {warned[0].text}, which may be why" if warned else ""
    more = tuple(one.text for one in warned[1:4])
    if facts.job.verdict is not None and not of_this_attempt(facts.job.verdict.last_lines):
        text = f"the cause is unknown: rank {first.rank} ended by itself and wrote nothing; "
        text += reports or "the node shows no error"
        step = "Start it again with more output: a lower log level, `set -x` in a shell script."
        return Cause(text, NONE, "unknown", (step,), evidence=more)
    text = f"the cause is unknown: rank {first.rank} ended by itself; "
    text += f"its output shows no error; {reports}" if reports else "neither its output nor the node shows an error"
    step = f"Read its output: `muster logs {facts.entry.job_id} -r {first.rank} --tail 200`."
    return Cause(text, NONE, "unknown", (step,), evidence=more)
