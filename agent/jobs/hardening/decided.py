"""What a job may not do: its spec, and where that is silent the settings of this node for jobs of other users."""

import os
import secrets

from muster.agent.config.hardening_settings import HardeningTable
from muster.agent.errors import InvalidRequest
from muster.probes.kernel.dataclass import dataclass
from muster.supervisors.launch.child import Account
from muster.supervisors.model.hardening import Hardening
from muster.supervisors.model.rules import capabilities
from muster.supervisors.model.spec import JobSpec, Violation

#: The limits of a node: pids at all, and threads.
_NODE_LIMITS = ("/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max")
_NOTHING = HardeningTable(False, (capabilities.ALL,), 0.0, False, (), "")


@dataclass(frozen=True, slots=True)
class Decided:
    """The hardening of a job, and the filter of its system calls: classic BPF, or nothing."""

    hardening: Hardening
    filter: bytes = b""


def decided(spec: JobSpec, table: HardeningTable) -> Decided:
    """For a spec that has passed admission. Blocks. Raises InvalidRequest for what this daemon may not do, or a profile
    that cannot be used."""
    node = table if _is_of_another(spec) else _NOTHING
    kept = capabilities.normal(spec.capabilities or node.capabilities)
    mask = capabilities.effective()
    if kept is not None and not mask >> capabilities.SETPCAP & 1:
        if spec.capabilities:
            raise _refused("capabilities", "CAP_SETPCAP")
        kept = None
    seccomp = spec.seccomp or node.seccomp_profile
    hardening = Hardening(
        no_new_privs=_chosen(spec.no_new_privs, node.no_new_privs) or bool(seccomp),
        capabilities=kept,
        pids=int(spec.limits.get("pids", 0)) or _most_pids(node.max_pids_percent),
        private_tmp=secrets.token_hex(8) if _chosen(spec.private_tmp, node.private_tmp) else "",
        read_only=_read_only(spec, node),
        seccomp=seccomp,
    )
    if hardening.has_mounts and not mask >> capabilities.SYS_ADMIN & 1:
        raise _refused("private_tmp" if hardening.private_tmp else "read_only", "CAP_SYS_ADMIN")
    return Decided(hardening, _filter(seccomp, kept) if seccomp else b"")


def weaker(spec: JobSpec, table: HardeningTable) -> str:
    """What of a spec undoes settings of this node, as the beginning of a sentence; empty: nothing does."""
    if spec.no_new_privs == "no" and (table.no_new_privs or table.seccomp_profile):
        return "no_new_privs: 'no'"
    usual = capabilities.normal(table.capabilities)
    if spec.capabilities and usual is not None:
        asked = capabilities.normal(spec.capabilities)
        if asked is None or not set(asked) <= set(usual):
            return f"capabilities: {', '.join(spec.capabilities)}"
    if spec.private_tmp == "no" and table.private_tmp:
        return "private_tmp: 'no'"
    if table.seccomp_profile and spec.seccomp not in ("", table.seccomp_profile):
        return f"seccomp: {spec.seccomp!r}"
    most = _most_pids(table.max_pids_percent)
    if most and spec.limits.get("pids", 0) > most:
        return f"limits.pids: {spec.limits['pids']:.0f} (more than {most})"
    return ""


def _is_of_another(spec: JobSpec) -> bool:
    """Whether a daemon of root starts it as somebody else. A daemon of another user starts its own jobs only."""
    return os.geteuid() == 0 and Account.of(spec.user).uid != 0


def _chosen(said: str, usual: bool) -> bool:
    return said == "yes" if said else usual


def _read_only(spec: JobSpec, node: HardeningTable) -> tuple[str, ...]:
    """Without links: what is mounted below a path is found by its name. What [hardening] names and this node does not
    have cannot be written to either."""
    for i, path in enumerate(spec.read_only):
        if not os.path.lexists(path):
            text = f"{path!r}: no such file or directory: give a path that exists on this node"
            raise InvalidRequest([Violation(f"read_only[{i}]", text)])
    paths = [*filter(os.path.lexists, node.read_only), *spec.read_only]
    return tuple(dict.fromkeys(os.path.realpath(path) for path in paths))


def _refused(field: str, needed: str) -> InvalidRequest:
    text = f"this musterd cannot do that: it lacks {needed}, which root has outside of containers"
    return InvalidRequest([Violation(field, text)])


def _most_pids(percent: float) -> int:
    if not percent:
        return 0
    found = []
    for path in _NODE_LIMITS:
        try:
            with open(path, encoding="ascii") as file:
                found.append(int(file.read()))
        except (OSError, ValueError):
            continue
    return int(min(found) * percent / 100) if found else 0


def _filter(path: str, kept: tuple[str, ...] | None) -> bytes:
    # Only here: most jobs have none.
    from muster.agent.jobs.hardening import seccomp_filter, seccomp_profile, syscalls

    try:
        if (architecture := syscalls.here()) is None:
            raise seccomp_profile.BadProfile(f"muster has no table of system calls for {os.uname().machine}")
        profile = seccomp_profile.parse(seccomp_profile.load(path), architecture, kept)
        return seccomp_filter.compiled(profile, architecture)
    except seccomp_profile.BadProfile as error:
        raise InvalidRequest([Violation("seccomp", f"{path!r}: {error}")]) from None
    except OSError as error:
        why = str(error.strerror).lower()
        raise InvalidRequest([Violation("seccomp", f"{path!r}: {why}: give a profile on this node")]) from None
