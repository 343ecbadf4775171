"""Processes and what the kernel has a limited number of: states D and Z, process numbers, file descriptors."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from muster.probes.calls import watched
from muster.probes.checks.result import Action, CheckResult, Code, Status
from muster.probes.node.kernel_files import number, text
from muster.probes.node.node_check import About, Look, NodeCheck, NodeRule, Roots, everywhere
from muster.probes.node.odd_processes import OddProcess

D_STATE = NodeCheck("d-state", "no process waits in the kernel for minutes", 60.0, (Code.PROCS_D_STATE,))
ZOMBIES = NodeCheck("zombies", "parents reap processes that have ended", 300.0, (Code.ZOMBIES,))
PIDS = NodeCheck("pids", "process numbers are left", 60.0, (Code.PIDS_NEARLY_FULL,))
FDS = NodeCheck("file-descriptors", "file descriptors are left", 60.0, (Code.FD_NEARLY_FULL,))

#: Programs whose waiting in the kernel means that the cards' driver is stuck, which only a reboot ends.
_DRIVERS = ("nvidia", "npu-smi", "dcgm", "nv-hostengine", "hccn_tool")


async def d_state(look: Look) -> list[CheckResult]:
    """Those that are in state D at several looks in a row: one look alone also shows processes that wait for a disk at
    that moment."""
    stuck = [p for p in await _odd(look) if p.state == "D"]
    waiting = await watched.call("read wchan", lambda: {p.pid: wchan(look.roots.proc, p.pid) for p in stuck[:64]})
    return [judge_d_state(stuck, waiting, look)]


def judge_d_state(stuck: Sequence[OddProcess], waiting: dict[int, str], look: Look) -> CheckResult:
    """The rule itself; `waiting` has the kernel's function in which each waits, if known."""
    say, wanted, streaks = About(D_STATE.item), look.settings.d_state_looks, look.memory.streaks
    keys = {(D_STATE.item, p.pid, p.start): p for p in stuck}
    streaks.keep(D_STATE.item, keys)
    looks = {key: streaks.note(key, True, look.now, D_STATE.interval_s / 2).looks for key in keys}
    long = [p for key, p in keys.items() if looks[key] >= wanted]
    threshold = f"fewer than {wanted} looks in a row"
    if long:
        names = ", ".join(f"{p.name} (pid {p.pid})" for p in long[:8]) + (
            f" and {len(long) - 8} more" if len(long) > 8 else ""
        )
        where = "; ".join(f"pid {p.pid}: {waiting[p.pid]}" for p in long[:8] if waiting.get(p.pid))
        action = Action.REBOOT if any(p.name.startswith(_DRIVERS) for p in long) else None
        reason = f"{len(long)} processes have been waiting in the kernel for minutes: {names}"
        return say.found(
            Code.PROCS_D_STATE, reason, f"{len(long)} in state D", threshold, evidence=where, action=action
        )
    if stuck:
        longest = max(looks.values())
        reason = f"{len(stuck)} processes wait in the kernel, for at most {longest} looks in a row"
        return say.found(Code.NODE_PENDING, reason, f"{len(stuck)} in state D", threshold)
    return say.ok("no process waits in the kernel", "0 in state D", threshold)


async def zombies(look: Look) -> list[CheckResult]:
    """How many there are, and whose they are."""
    proc = look.roots.proc
    dead = [p for p in await _odd(look) if p.state == "Z"]
    parents = Counter(p.parent for p in dead).most_common(3)
    names = await watched.call("read names", lambda: {pid: _name(proc, pid) for pid, _ in parents})
    return [judge_zombies(len(dead), [(pid, names[pid], count) for pid, count in parents], look.settings.zombies_max)]


def judge_zombies(count: int, parents: Sequence[tuple[int, str, int]], most: int) -> CheckResult:
    """`parents`: pid, name and number of zombies of the processes with the most."""
    say, observed, threshold = About(ZOMBIES.item), f"{count} zombies", f"at most {most}"
    ended = f"{count} processes have ended but were" if count != 1 else "1 process has ended but was"
    if not most or count <= most:
        return say.ok(f"{ended} not reaped", observed, threshold)
    whose = ", ".join(f"{name} (pid {pid}) has {n}" for pid, name, n in parents)
    return say.found(Code.ZOMBIES, f"{ended} not reaped: {whose}", observed, threshold)


async def pids(look: Look) -> list[CheckResult]:
    """Threads count, since each has a number; the tightest of the kernel's limits and of a container's decides."""
    limits = await watched.call("read pid limits", lambda: read_pids(look.roots))
    say, s = About(PIDS.item), look.settings
    if not limits:
        return [say.not_told("neither /proc nor the cgroup shows how many process numbers exist")]
    used, most, what = max(limits, key=lambda limit: limit[0] / limit[1])
    return [nearly_full(say, Code.PIDS_NEARLY_FULL, (used, most, what), s.pids_warn_percent, s.pids_critical_percent)]


def read_pids(roots: Roots) -> list[tuple[int, int, str]]:
    """How many are used, how many there can be, and whose limit that is."""
    found = []
    # "0.10 0.20 0.30 2/345 6789": 345 threads exist.
    used = number((text(roots.proc / "loadavg").split() + [""] * 4)[3].partition("/")[2])
    for name in ("pid_max", "threads-max"):
        most = number(text(roots.proc / "sys/kernel" / name))
        if used and most:
            found.append((used, most, f"kernel.{name}"))
    own = text(roots.proc / "self/cgroup").rpartition("::")[2].strip().lstrip("/")
    for folder in {roots.sys / "fs/cgroup" / own, roots.sys / "fs/cgroup"}:
        used, most = number(text(folder / "pids.current")), number(text(folder / "pids.max"))
        if used and most:
            found.append((used, most, f"pids.max of {folder}"))
    return found


async def descriptors(look: Look) -> list[CheckResult]:
    """fs.file-nr: allocated, of which unused (always 0), and how many there can be."""
    told = await watched.call("read file-nr", lambda: text(look.roots.proc / "sys/fs/file-nr"))
    say, s, fields = About(FDS.item), look.settings, [*told.split(), "", "", ""]
    used, most = number(fields[0]), number(fields[2])
    if not used or not most:
        return [say.not_told("/proc/sys/fs/file-nr could not be read")]
    return [
        nearly_full(say, Code.FD_NEARLY_FULL, (used, most, "fs.file-max"), s.fd_warn_percent, s.fd_critical_percent)
    ]


def nearly_full(say: About, code: Code, limit: tuple[int, int, str], warn: float, critical: float) -> CheckResult:
    """WARN and CRITICAL from these percents on."""
    used, most, what = limit
    percent = used * 100 / most
    observed, threshold = f"{used} of {most} ({what})", f"below {warn:g} % and {critical:g} %"
    if percent < warn:
        return say.ok(f"{percent:.0f} % are used", observed, threshold)
    status = Status.CRITICAL if percent >= critical else Status.WARN
    return say.found(code, f"{percent:.0f} % are used of {what}", observed, threshold, status=status)


async def _odd(look: Look) -> list[OddProcess]:
    return await watched.call("scan /proc", lambda: look.memory.odd.look(look.roots.proc, look.now))


def wchan(proc: Path, pid: int) -> str:
    """The kernel's function in which a process waits; "" where it is not told."""
    name = text(proc / str(pid) / "wchan")
    return "" if name == "0" else name


def _name(proc: Path, pid: int) -> str:
    return text(proc / str(pid) / "comm") or "?"


RULES = (
    NodeRule(D_STATE, d_state, everywhere),
    NodeRule(ZOMBIES, zombies, everywhere),
    NodeRule(PIDS, pids, everywhere),
    NodeRule(FDS, descriptors, everywhere),
)
