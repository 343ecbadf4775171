"""Why a process may not be read, and what to allow.

The rules are those of ptrace(2), "Ptrace access mode checking", which reading another's memory (process_vm_readv) is
subject to: the same user, no capability that the reader has not, and not marked as not dumpable, or CAP_SYS_PTRACE;
then Yama's; then a security module's. A seccomp filter refuses the calls themselves; py-spy 0.4.3 then reads
/proc/PID/mem, which the same rules guard, so that it works with such a filter if it does not stop the process.
"""

import os
from pathlib import Path

from muster.probes.kernel.dataclass import dataclass

_SYS_PTRACE = 1 << 19
_GIVE = (
    "give musterd CAP_SYS_PTRACE (in its unit AmbientCapabilities=CAP_SYS_PTRACE, and that in CapabilityBoundingSet= "
    "where it is set; docker run --cap-add SYS_PTRACE; in a pod securityContext.capabilities.add: [SYS_PTRACE])"
)


@dataclass(frozen=True, slots=True)
class Rights:
    """Of a process. `passed_on`: capabilities (bits) that a program which it starts has; `filtered`: it has a seccomp
    filter; `namespace`: its user namespace, empty where that may not be read."""

    uid: int
    permitted: int
    passed_on: int
    filtered: bool
    namespace: str
    dumpable: bool


def read(proc: Path, pid: int | str) -> Rights | None:
    """Of a process, or of this one ("self"). None where it has ended. Blocks."""
    folder = proc / str(pid)
    try:
        fields = dict(
            line.split(":", 1) for line in (folder / "status").read_text(errors="replace").splitlines() if ":" in line
        )
        uid = int(fields["Uid"].split()[1])
        permitted, ambient, bounding = (int(fields[name], 16) for name in ("CapPrm", "CapAmb", "CapBnd"))
        # The files of a process that is not dumpable belong to root, whatever its user.
        dumpable = uid == 0 or (folder / "environ").stat().st_uid == uid
    except (OSError, KeyError, ValueError, IndexError):
        return None
    try:
        namespace = os.readlink(folder / "ns/user")
    except OSError:
        namespace = ""
    filtered = fields.get("Seccomp", "0").strip() == "2"
    return Rights(uid, permitted, bounding if uid == 0 else ambient, filtered, namespace, dumpable)


def yama(proc: Path) -> int:
    """kernel.yama.ptrace_scope; 0 where there is no Yama. Blocks."""
    try:
        return int((proc / "sys/kernel/yama/ptrace_scope").read_text())
    except (OSError, ValueError):
        return 0


def explain(own: Rights, target: Rights, scope: int) -> str:
    """Why `own` may not read `target`, and what to do: half a sentence each. `scope` is Yama's."""
    if scope >= 3:
        return (
            "kernel.yama.ptrace_scope is 3, which forbids it until the next boot: set it to 0 or 1 in "
            "/etc/sysctl.d and reboot"
        )
    if own.passed_on & _SYS_PTRACE:
        if own.namespace and target.namespace and own.namespace != target.namespace:
            return (
                "it is in another user namespace, where musterd's CAP_SYS_PTRACE has no effect: run musterd "
                "in the user namespace of the host"
            )
        if own.filtered:
            return (
                "a seccomp filter forbids musterd ptrace or process_vm_readv, although musterd has CAP_SYS_PTRACE:"
                " allow "
                "both in the container's profile (docker run --security-opt seccomp=FILE), or in its unit "
                "(SystemCallFilter=@debug)"
            )
        return (
            "musterd has CAP_SYS_PTRACE, so a security module must be refusing: allow musterd's profile to trace and"
            " to read "
            "other processes (AppArmor: ptrace (trace, read); SELinux: sys_ptrace and ptrace)"
        )
    why = []
    if target.uid != own.uid:
        why.append(f"it runs as uid {target.uid} and musterd as uid {own.uid}")
    elif not target.dumpable:
        why.append("it is not dumpable, as after a change of its user")
    elif target.permitted & ~own.passed_on:
        why.append("it has capabilities that musterd lacks")
    if scope:
        reads = (
            "only its parent, or a process that it names, may read it"
            if scope == 1
            else "a reader needs CAP_SYS_PTRACE"
        )
        why.append(f"kernel.yama.ptrace_scope is {scope}: {reads}")
    if not why:
        filtered = "a seccomp filter forbids musterd ptrace or process_vm_readv" if own.filtered else ""
        why.append(filtered or "a security module (AppArmor, SELinux) or a user namespace forbids it")
    alone = scope == 1 and len(why) == 1
    return " and ".join(why) + ": " + _GIVE + (", or set kernel.yama.ptrace_scope=0 with sysctl" if alone else "")
