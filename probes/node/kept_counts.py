"""Counts over hours that survive a restart of the daemon: error codes of Ascend cards, interruptions of links.

Times are seconds since the boot. A count from before a reboot is as old as the wall clock says; the state of a port and
the counter of an interface start again with a boot.
"""

from collections.abc import Iterable
from dataclasses import field

from muster.probes.kernel.dataclass import dataclass
from muster.probes.node import infiniband, nics
from muster.probes.node.cards import npus
from muster.probes.node.memory import Memory, PortPast
from muster.probes.node.nics import CHANGES

#: The checks that count.
_COUNTING = frozenset({infiniband.CHECK.item, nics.CHECK.item, npus.ERRORS.item})
#: Changes of one interface that are kept, the newest: three interruptions are too many.
_CHANGES = 64


@dataclass(slots=True)
class KeptPort:
    """Of one InfiniBand port, as in PortPast."""

    was_up: bool = False
    down_since: float = 0.0
    flaps: list[float] = field(default_factory=list)


@dataclass(slots=True)
class KeptCounts:
    """What a file keeps. `boot`, `up` and `at`: the boot, and the time by both clocks, when it was made. `codes`: by
    "card/code", when the card got it, and last when it had it for certain; `gone`: those that it no longer has. `nics`:
    the counter of changes of an interface after each change, and before the first."""

    boot: str = ""
    up: float = 0.0
    at: float = 0.0
    codes: dict[str, list[float]] = field(default_factory=dict)
    gone: list[str] = field(default_factory=list)
    ports: dict[str, KeptPort] = field(default_factory=dict)
    nics: dict[str, list[tuple[float, int]]] = field(default_factory=dict)

    @staticmethod
    def may_differ(items: Iterable[str]) -> bool:
        """Whether one of these checks counts."""
        return not _COUNTING.isdisjoint(items)

    def differs(self, other: "KeptCounts") -> bool:
        """Whether something else was counted."""
        began = {key: times[:-1] for key, times in self.codes.items()}
        others = {key: times[:-1] for key, times in other.codes.items()}
        mine = (began, sorted(self.gone), self.ports, self.nics)
        return mine != (others, sorted(other.gone), other.ports, other.nics)


def kept(memory: Memory, boot: str, up: float, at: float) -> KeptCounts:
    """What is to be kept of it now."""
    repeats = {f"{card}/{code:X}": kept for (card, code), kept in memory.repeats.kept(up).items()}
    codes = {key: [*began, up if stands else began[-1]] for key, (began, stands) in repeats.items()}
    gone = [key for key, (_, stands) in repeats.items() if not stands]
    ports = {
        name: KeptPort(past.was_up, past.down_since, list(past.flaps))
        for name, past in memory.ports.items()
        if name and (past.was_up or past.flaps)
    }
    nics = {name: changed for name, rate in memory.rates(CHANGES).items() if (changed := rate.changed()[-_CHANGES:])}
    return KeptCounts(boot, up, at, codes, gone, ports, nics)


def restore(memory: Memory, was: KeptCounts, boot: str, up: float, at: float) -> None:
    """Goes on where an earlier daemon was."""
    same = was.boot == boot
    # Seconds to add to a time of then. A wall clock that was set back makes nothing younger than it was.
    shift = 0.0 if same else up - was.up - max(0.0, at - was.at)
    for key, times in was.codes.items():
        card, _, code = key.rpartition("/")
        began = [time + shift for time in times[:-1]]
        # A boot resets the chips: what they have then, they have got anew.
        memory.repeats.restore(card, int(code, 16), began, stands=same and key not in was.gone)
    for name, port in was.ports.items():
        past = memory.ports.setdefault(name, PortPast())
        past.flaps.extend(time + shift for time in port.flaps)
        if same:
            past.was_up, past.down_since = port.was_up, port.down_since
    if same:
        for name, changed in was.nics.items():
            memory.rate((*CHANGES, name)).looks.extend(changed)
