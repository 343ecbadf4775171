"""Names and numbers of Linux' capabilities, and the words none and all."""

from collections.abc import Iterable

from muster.probes.kernel.process import effective_capabilities

NONE, ALL = "none", "all"
#: By number, as in linux/capability.h.
NAMES = (
    "chown", "dac_override", "dac_read_search", "fowner", "fsetid", "kill", "setgid", "setuid", "setpcap",
    "linux_immutable", "net_bind_service", "net_broadcast", "net_admin", "net_raw", "ipc_lock", "ipc_owner",
    "sys_module", "sys_rawio", "sys_chroot", "sys_ptrace", "sys_pacct", "sys_admin", "sys_boot", "sys_nice",
    "sys_resource", "sys_time", "sys_tty_config", "mknod", "lease", "audit_write", "audit_control", "setfcap",
    "mac_override", "mac_admin", "syslog", "wake_alarm", "block_suspend", "audit_read", "perfmon", "bpf",
    "checkpoint_restore",
)  # fmt: skip
#: Numbers of those that muster itself needs for some steps.
SETPCAP, SYS_ADMIN = NAMES.index("setpcap"), NAMES.index("sys_admin")
_LAST = "/proc/sys/kernel/cap_last_cap"


def plain(name: str) -> str:
    """The name as it is in `NAMES`: CAP_SYS_NICE is sys_nice."""
    return name.lower().removeprefix("cap_")


def problem(names: tuple[str, ...]) -> str:
    """What is wrong with a list of names, in one sentence; empty: nothing is."""
    words = [plain(name) for name in names]
    if not words:
        return "is empty: name capabilities, or say none or all"
    for name, word in zip(names, words, strict=True):
        if word not in (*NAMES, NONE, ALL):
            return f"{name[:40]!r}: is not a capability of Linux, as in sys_nice (capabilities(7))"
    if len(words) > 1 and (NONE in words or ALL in words):
        return f"{', '.join(words)}: none and all stand alone"
    return f"{', '.join(words)}: name each capability once" if len(set(words)) < len(words) else ""


def normal(names: Iterable[str]) -> tuple[str, ...] | None:
    """The names as they are in `NAMES`, in its order; none is an empty tuple, and None stands for all."""
    words = {plain(name) for name in names}
    return None if ALL in words else tuple(name for name in NAMES if name in words)


def dropped(kept: Iterable[str]) -> tuple[int, ...]:
    """The numbers of all capabilities of this kernel but these."""
    numbers = {NAMES.index(name) for name in kept}
    try:
        with open(_LAST, encoding="ascii") as file:
            last = int(file.read())
    except (OSError, ValueError):  # Linux before 3.2, or no /proc
        last = len(NAMES) - 1
    return tuple(number for number in range(last + 1) if number not in numbers)


def effective() -> int:
    """The mask of those that this process has in force."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        return effective_capabilities(file.read())
