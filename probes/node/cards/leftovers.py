"""Processes that hold memory of a card which no job has, or which is another's job's."""

from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path

from muster.probes.calls import watched
from muster.probes.cards.accelerator import ASCEND, NVIDIA, Holder
from muster.probes.cards.driver import What
from muster.probes.checks.result import CheckResult, Code, Status
from muster.probes.kernel import marks, process
from muster.probes.kernel.dataclass import dataclass
from muster.probes.kernel.process import parse_stat
from muster.probes.node.node_check import About, CardFacts, Look, NodeCheck, NodeRule, about, for_kinds
from muster.probes.node.node_settings import words

CHECK = NodeCheck(
    "leftovers",
    "no process uses a card that no job holds",
    60.0,
    (Code.GPU_LEFTOVER_PROCESS, Code.NPU_LEFTOVER_PROCESS),
    of_cards=True,
)
STRANGERS = NodeCheck(
    "strangers",
    "no process uses a card that another's job holds",
    60.0,
    (Code.GPU_STRANGER_PROCESS, Code.NPU_STRANGER_PROCESS),
    of_cards=True,
)
#: Ancestors of a process that are looked at: a job's own may have cleared its environment.
_ANCESTORS = 32
#: A process that was just asked to end may still exist at one look.
_LOOKS = 2
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class CardHolder:
    """Who holds the card: its name as the kernel has it, and the number of its user."""

    name: str
    uid: int


async def check(look: Look) -> list[CheckResult]:
    """Each card that no job has. A pid that is not alive here is just gone, and not counted; in a container with PIDs
    of its own it may be another's, and nobody can say whose."""
    free = [facts for facts in look.cards(NVIDIA, ASCEND) if facts.index not in look.held]
    pids = {holder.pid for facts in free for holder in facts.holders or ()}
    alive, unseen = await watched.call("read /proc", partial(_sorted, look.roots.proc, pids))
    results = []
    for facts in look.cards(NVIDIA, ASCEND):
        say = about(CHECK.item, facts)
        if facts.index in look.held:
            results.append(say.off(f"job {look.held[facts.index]} holds it"))
        elif facts.sick is not None:
            results.append(say.not_told(f"the card does not answer ({facts.sick.trouble})"))
        elif facts.holders is None:
            results.append(
                say.not_told("its processes are unknown: its driver does not report them, or was not asked yet")
            )
        else:
            judged = judge(say, facts, look, alive)
            if judged.status is Status.OK and (others := [it.pid for it in facts.holders if it.pid in unseen]):
                judged = say.not_told(
                    "no job holds it, and whether processes that its driver lists live cannot be seen (pid"
                    f" {', '.join(map(str, others[:8]))}): this container has PIDs of its own, give it the host's"
                    " (hostPID)"
                )
            results.append(judged)
    return results


def _sorted(proc: Path, pids: Collection[int]) -> tuple[dict[int, CardHolder], frozenset[int]]:
    """Those that live, and those of which that cannot be said."""
    alive = {pid: found for pid in pids if (found := read(proc, pid))}
    if process.pids_are_the_kernels():
        return alive, frozenset()
    return alive, frozenset(pid for pid in pids if not (proc / str(pid)).exists())


def judge(say: About, facts: CardFacts, look: Look, alive: dict[int, CardHolder]) -> CheckResult:
    """The rule itself for one card that no job has; `alive` has the processes of this node by pid."""
    left = _counted(facts, look, alive)
    streak = look.memory.streaks.note((CHECK.item, facts.index), bool(left), look.now, CHECK.interval_s / 2)
    if not left:
        return say.ok("no process uses it", f"{len(facts.holders or ())} processes")
    names = "; ".join(_describe(holder, alive[holder.pid]) for holder in left[:8])
    more = f" and {len(left) - 8} more" if len(left) > 8 else ""
    reason = f"no job holds it, but {names}{more}"
    threshold = f"no process over {look.settings.leftover_min_mb:g} MB"
    code = Code.NPU_LEFTOVER_PROCESS if facts.card.kind == ASCEND else Code.GPU_LEFTOVER_PROCESS
    return say.found(code if streak.looks >= _LOOKS else Code.NODE_PENDING, reason, f"{len(left)} processes", threshold)


async def strangers(look: Look) -> list[CheckResult]:
    """Each card that a job holds: a process there that is not of the job, by its environment and its ancestors'. What
    cannot be looked at is not held against anybody."""
    held = [facts for facts in look.cards(NVIDIA, ASCEND) if facts.index in look.held]
    pids = {(holder.pid, look.held[facts.index]) for facts in held for holder in facts.holders or ()}
    known = await watched.call(
        "read /proc",
        lambda: {
            pid: found
            for pid, job in pids
            if (found := read(look.roots.proc, pid)) and _is_other(look.roots.proc, pid, job)
        },
    )
    results = []
    for facts in look.cards(NVIDIA, ASCEND):
        say = about(STRANGERS.item, facts)
        if facts.index not in look.held:
            results.append(say.off("no job holds it"))
        elif facts.sick is not None:
            results.append(say.not_told(f"the card does not answer ({facts.sick.trouble})"))
        elif facts.holders is None:
            results.append(
                say.not_told("its processes are unknown: its driver does not report them, or was not asked yet")
            )
        else:
            results.append(_stranger(say, facts, look, known))
    return results


def _stranger(say: About, facts: CardFacts, look: Look, known: dict[int, CardHolder]) -> CheckResult:
    job, others = look.held[facts.index], _counted(facts, look, known)
    streak = look.memory.streaks.note((STRANGERS.item, facts.index), bool(others), look.now, STRANGERS.interval_s / 2)
    if not others:
        return say.ok(f"only job {job} uses it")
    names = "; ".join(_describe(holder, known[holder.pid]) for holder in others[:8])
    code = Code.NPU_STRANGER_PROCESS if facts.card.kind == ASCEND else Code.GPU_STRANGER_PROCESS
    reason = f"job {job} holds it, but {names}, which is not of the job"
    return say.found(code if streak.looks >= _LOOKS else Code.NODE_PENDING, reason, f"{len(others)} processes", "none")


def _is_other(proc: Path, pid: int, job: str) -> bool:
    """Whether the process is certainly not of the job. Blocks."""
    wanted = marks.mark(marks.JOB_ID, job)
    for _ in range(_ANCESTORS):
        try:
            if wanted in (proc / str(pid) / "environ").read_bytes().split(b"\0"):
                return False
            stat = parse_stat(pid, (proc / str(pid) / "stat").read_bytes())
        except OSError:
            return False
        if stat is None or stat.ppid <= 1:
            return True
        pid = stat.ppid
    return True


def _counted(facts: CardFacts, look: Look, known: Mapping[int, CardHolder]) -> list[Holder]:
    """Its processes that are in `known`, and that the settings neither name nor find small."""
    # The kernel keeps 15 characters of a name.
    ignored = {name[:15] for name in words(look.settings.leftover_ignore)}
    named = [one for one in facts.holders or () if one.pid in known and known[one.pid].name not in ignored]
    return [one for one in named if _large(one, look.settings.leftover_min_mb)]


def _large(holder: Holder, least_mb: float) -> bool:
    """Of a process whose memory the driver does not report, only its existence is known; a display's is no left-
    over."""
    return not holder.graphics if holder.memory is None else holder.memory > least_mb * _MIB


def _describe(holder: Holder, process: CardHolder) -> str:
    memory = "" if holder.memory is None else f" with {holder.memory / _MIB:.0f} MB"
    return f"pid {holder.pid} ({process.name}, uid {process.uid}) uses it{memory}"


def read(proc: Path, pid: int) -> CardHolder | None:
    """A living process; None for a process that has exited, and for a zombie, which holds nothing."""
    folder = proc / str(pid)
    try:
        stat = parse_stat(pid, (folder / "stat").read_bytes())
        uid = folder.stat().st_uid
    except OSError:
        return None
    return None if stat is None or stat.ended else CardHolder(stat.comm, uid)


RULES = (
    NodeRule(CHECK, check, for_kinds(NVIDIA, ASCEND), frozenset({What.HOLDERS})),
    NodeRule(STRANGERS, strangers, for_kinds(NVIDIA, ASCEND), frozenset({What.HOLDERS})),
)
