"""Network adapters: links that go down and up again, and errors of the link itself.

The counters are those that the kernel keeps of an interface (/sys/class/net); those of InfiniBand ports are left alone
(infiniband.py says why).
"""

from pathlib import Path

from muster.probes.calls import watched
from muster.probes.checks.result import CheckResult, Code
from muster.probes.kernel.dataclass import dataclass
from muster.probes.node.kernel_files import listed, text
from muster.probes.node.node_check import About, Look, NodeCheck, NodeRule
from muster.probes.node.node_settings import words

CHECK = NodeCheck(
    "nic",
    "links of the network adapters stay up, and have few errors",
    60.0,
    (Code.NIC_FLAPPING, Code.NIC_LINK_ERRORS),
)
#: Key of the growth of an interface's changes, before its name.
CHANGES = (CHECK.item, "changes")
_FOLDER = "class/net"
#: Errors of the link, not of what is sent over it: checksums, framing, lost carrier (Documentation/networking/
#: statistics.rst of the kernel).
_ERRORS = ("rx_crc_errors", "rx_frame_errors", "tx_carrier_errors")
#: Seconds over which errors are counted.
_WINDOW_S = 300.0


@dataclass(frozen=True, slots=True)
class Nic:
    """An interface with hardware behind it: how often its carrier changed since the start, and its link errors; None:
    not told."""

    name: str
    changes: int | None
    errors: int | None


def read(sys: Path) -> list[Nic]:
    """All interfaces of adapters, without virtual ones. Blocks."""
    found = []
    for folder in listed(sys / _FOLDER):
        if (folder / "device").exists():
            counts = [_number(folder / "statistics" / name) for name in _ERRORS]
            told = [count for count in counts if count is not None]
            found.append(Nic(folder.name, _number(folder / "carrier_changes"), sum(told) if told else None))
    return found


async def check(look: Look) -> list[CheckResult]:
    """Growth since the look before: what a cable did before muster came is over."""
    s = look.settings
    nics = await watched.call("read network interfaces", lambda: read(look.roots.sys))
    found = [nic for nic in nics if nic.name not in words(s.nic_ignore)]
    return [result for nic in found for result in _judge(About(CHECK.item, nic.name), nic, look)]


def _judge(say: About, nic: Nic, look: Look) -> list[CheckResult]:
    s, rate = look.settings, look.memory.rate
    observed = f"{_shown(nic.changes)} changes of the carrier, {_shown(nic.errors)} link errors"
    results = []
    if nic.changes is not None and s.nic_flaps:
        window = s.ib_flap_window_s
        grown = rate((*CHANGES, nic.name)).growth(nic.changes, look.now, window)
        if grown >= 2 * s.nic_flaps:  # down, and up again
            reason = f"its link went down and up again {grown // 2} times within {window / 3600:g} h"
            results.append(say.found(Code.NIC_FLAPPING, reason, observed, f"fewer than {s.nic_flaps} times"))
    if nic.errors is not None and s.nic_errors_per_minute:
        grows = rate((CHECK.item, nic.name, "errors")).note(nic.errors, look.now, _WINDOW_S) or 0.0
        if grows > s.nic_errors_per_minute:
            threshold = f"at most {s.nic_errors_per_minute:g} a minute"
            reason = f"its link has {grows:.0f} errors a minute"
            results.append(say.found(Code.NIC_LINK_ERRORS, reason, observed, threshold))
    return results or [say.ok("its link is steady", observed)]


def _applies(look: Look) -> str:
    there = any((folder / "device").exists() for folder in listed(look.roots.sys / _FOLDER))
    return "" if there else "there is no network adapter (/sys/class/net)"


def _number(path: Path) -> int | None:
    told = text(path)
    return int(told) if told.isdecimal() else None


def _shown(value: int | None) -> str:
    return "?" if value is None else str(value)


RULES = (NodeRule(CHECK, check, _applies),)
