"""Ports of InfiniBand and RoCE adapters.

Only `state`, `phys_state` and `rate` are read. The counters beside them are left alone: reading those makes some
adapters' firmware write an error into the kernel's log each time (gpud's issue 1164). By a setting one of them is read,
once a minute.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from muster.probes.calls import watched
from muster.probes.checks.result import CheckResult, Code
from muster.probes.kernel.dataclass import dataclass
from muster.probes.node.kernel_files import listed, text
from muster.probes.node.memory import PortPast
from muster.probes.node.node_check import About, Look, NodeCheck, NodeRule
from muster.probes.node.node_settings import NodeSettings, words

CHECK = NodeCheck(
    "ib",
    "ports of the InfiniBand and RoCE adapters are up and stay so",
    15.0,
    (
        Code.IB_PORT_DOWN,
        Code.IB_PORT_FLAPPING,
        Code.IB_PORTS_MISSING,
        Code.IB_RATE_LOW,
        Code.IB_SYMBOL_ERRORS,
        Code.IB_HARDWARE_WARNING,
    ),
)
_FOLDER = "class/infiniband"
#: Seconds between two readings of a counter, and over which its growth is judged.
_COUNTER_S, _HOUR_S = 60.0, 3600.0


@dataclass(frozen=True, slots=True)
class Port:
    """One port as sysfs shows it: "mlx5_0/1", whether it is ACTIVE, its states in words, its rate in Gb/s (0: not
    told)."""

    name: str
    active: bool
    states: str
    rate_gbps: float


def read(sys: Path, ignored: Sequence[str] = ()) -> list[Port]:
    """All ports. Omits a port that disappears meanwhile or cannot be read."""
    found = []
    for adapter in listed(sys / _FOLDER):
        if adapter.name in ignored:
            continue
        for folder in listed(adapter / "ports"):
            state, physical = text(folder / "state"), text(folder / "phys_state")
            if state:
                # "4: ACTIVE", "5: LinkUp", "400 Gb/sec (4X NDR)"
                active = state.partition(":")[0].strip() == "4"
                rate = text(folder / "rate").partition(" ")[0]
                words = f"{state.partition(':')[2].strip()}, {physical.partition(':')[2].strip()}"
                found.append(Port(f"{adapter.name}/{folder.name}", active, words, _rate(rate)))
    return found


def symbol_errors(sys: Path, port: str) -> int | None:
    """The counter of a port, "mlx5_0/1"; None where there is none. Blocks."""
    adapter, _, number = port.partition("/")
    told = text(sys / _FOLDER / adapter / "ports" / number / "counters/symbol_error")
    return int(told) if told.isascii() and told.isdigit() else None


async def check(look: Look) -> list[CheckResult]:
    """Reads the ports in a thread, and judges them."""
    ignored = words(look.settings.ib_ignore)
    ports = await watched.call("read InfiniBand ports", lambda: read(look.roots.sys, ignored))
    results = judge(ports, look.memory.ports, look.settings, look.now)
    return results + (await _noisy(ports, look) if look.settings.ib_symbol_errors else [])


async def _noisy(ports: Sequence[Port], look: Look) -> list[CheckResult]:
    """Active ports that received too many symbol errors within the last hour."""
    limit, found = look.settings.ib_symbol_errors, []
    for port in ports:
        rate, name = look.memory.rate((CHECK.item, "symbols", port.name)), port.name
        due = not rate.looks or look.now - rate.looks[-1][0] >= _COUNTER_S
        if port.active and due:
            count = await watched.call(f"read the counter of {name}", partial(symbol_errors, look.roots.sys, name))
            if count is not None:
                rate.growth(count, look.now, _HOUR_S)
        grown = rate.looks[-1][1] - rate.looks[0][1] if rate.looks else 0
        if port.active and grown > limit:
            reason = f"it received {grown} symbol errors within an hour"
            say = About(CHECK.item, name)
            found.append(say.found(Code.IB_SYMBOL_ERRORS, reason, f"{grown} symbol errors", f"at most {limit} an hour"))
    return found


def judge(ports: Sequence[Port], past: dict[str, PortPast], s: NodeSettings, now: float) -> list[CheckResult]:
    """The rule itself. `past` is what is remembered of each port; what is new is written into it.

    A port that never was up is not in use, unless `ib_ports` asks for more than there are. A removed adapter
    counts as down.
    """
    there = {port.name: port for port in ports}
    for name in there:
        past.setdefault(name, PortPast())
    results = []
    for name, before in sorted(past.items()):
        results += _port(About(CHECK.item, name), there.get(name), before, s, now)
    active, say = sum(port.active for port in ports), About(CHECK.item)
    if s.ib_ports:
        observed, threshold = f"{active} ports up", f"{s.ib_ports} ports up for {s.ib_down_s:g} s"
        whole = past.setdefault("", PortPast())
        if active >= s.ib_ports:
            whole.down_since = 0.0
            results.append(say.ok(f"{active} ports are up", observed, threshold))
        else:
            whole.down_since = whole.down_since or now
            reason = f"{active} ports are up, {s.ib_ports} are required, for {now - whole.down_since:.0f} s"
            code = Code.IB_PORTS_MISSING if now - whole.down_since >= s.ib_down_s else Code.NODE_PENDING
            results.append(say.found(code, reason, observed, threshold))
    return results


def _port(say: About, port: Port | None, past: PortPast, s: NodeSettings, now: float) -> list[CheckResult]:
    if not say.device:  # what is remembered of all ports together
        return []
    results = []
    up = port is not None and port.active
    if up:
        if past.was_up and past.down_since and now - past.down_since >= s.ib_flap_s:
            past.flaps.append(now)
        past.was_up, past.down_since = True, 0.0
    else:
        past.down_since = past.down_since or now
    while past.flaps and past.flaps[0] <= now - s.ib_flap_window_s:
        past.flaps.popleft()
    states = port.states if port is not None else "its adapter was removed"
    if len(past.flaps) >= s.ib_flaps:
        reason = (
            f"it was down for {s.ib_flap_s:g} s and longer {len(past.flaps)} times in {s.ib_flap_window_s / 3600:g} h"
        )
        results.append(say.found(Code.IB_PORT_FLAPPING, reason, states, f"fewer than {s.ib_flaps}"))
    if not up:
        seconds = now - past.down_since
        if not past.was_up:
            results.append(say.off(f"it was never up ({states}): not in use"))
        elif seconds >= s.ib_down_s:
            reason = f"it is down for {seconds:.0f} s ({states})"
            results.append(say.found(Code.IB_PORT_DOWN, reason, states, f"less than {s.ib_down_s:g} s"))
        else:
            results.append(say.found(Code.NODE_PENDING, f"it is down for {seconds:.0f} s ({states})", states))
    elif port is not None and port.rate_gbps and port.rate_gbps < s.ib_rate_gbps:
        reason = f"it runs at {port.rate_gbps:g} Gb/s"
        results.append(say.found(Code.IB_RATE_LOW, reason, f"{port.rate_gbps:g} Gb/s", f"{s.ib_rate_gbps:g} Gb/s"))
    return results or [say.ok("it is up", states)]


def _applies(look: Look) -> str:
    if look.memory.ports or listed(look.roots.sys / _FOLDER) or look.settings.ib_ports:
        return ""
    return "there is no InfiniBand or RoCE adapter (/sys/class/infiniband)"


def _rate(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


RULES = (NodeRule(CHECK, check, _applies),)
