"""A card's links: NVLink, the NVSwitch fabric, PCI Express."""

from muster.probes.calls import watched
from muster.probes.cards.accelerator import ASCEND, NVIDIA, Health
from muster.probes.cards.driver import What
from muster.probes.checks.result import CheckResult, Code, Status
from muster.probes.kernel import pci
from muster.probes.node.node_check import About, CardFacts, Look, NodeCheck, NodeRule, about, each, for_kinds, untold

NVLINK = NodeCheck(
    "nvlink",
    "the cards' NVLinks are up",
    60.0,
    (Code.NVLINK_DOWN,),
    of_cards=True,
)
NVLINK_ERRORS = NodeCheck(
    "nvlink-errors",
    "the cards' NVLinks have few errors, and none was retrained",
    60.0,
    (Code.NVLINK_ERRORS,),
    of_cards=True,
)
FABRIC = NodeCheck(
    "fabric",
    "the cards are registered with the NVSwitch fabric, and it is healthy",
    60.0,
    (Code.FABRIC_NOT_READY, Code.FABRIC_UNHEALTHY),
    of_cards=True,
)
PCIE = NodeCheck(
    "pcie",
    "width, generation and replays of the cards' PCI Express links",
    60.0,
    (Code.PCIE_WIDTH_DEGRADED, Code.PCIE_GEN_DEGRADED, Code.PCIE_REPLAYS),
    of_cards=True,
)

#: NVML's states of the fabric's probe: a card that is not part of one, one that has not begun or not ended, one that
#: has ended.
_NOT_SUPPORTED, _COMPLETED = 0, 3
#: ... and its summary of the fabric's health.
_UNHEALTHY, _LIMITED = 2, 3
#: A card saves power by a slower link while it rests; under this percent of utilization the generation is not judged.
_WORKING = 10.0
#: The link in Health. Its counter of packets sent again is another matter: without it the link is judged all the same.
_OF_PCIE = ("pcie_width", "pcie_width_max", "pcie_gen", "pcie_gen_max")
#: Seconds over which replays are counted.
_REPLAY_WINDOW_S = 300.0


async def nvlink(look: Look) -> list[CheckResult]:
    """Links that are down although they were up, or should be, or are on the neighbours.

    A card without a bridge shows each of its links as down: where none was ever up on any card, NVLink is not in use.
    """
    up: dict[int, int] = {}
    for facts in look.cards(NVIDIA):
        if facts.sick is None and facts.health is not None and facts.health.links:
            up[facts.index] = sum(facts.health.links)
    results = []
    for facts in look.cards(NVIDIA):
        say = about(NVLINK.item, facts)
        if facts.sick is not None:
            results.append(say.not_told(f"the card does not answer ({facts.sick.trouble})"))
        elif facts.health is None:
            results.append(say.not_told("its readings are not known yet"))
        elif missing := untold(say, facts.health, ("links",)):
            results += missing
        elif facts.index not in up:
            results.append(say.off("it has no NVLink, or its driver does not report it"))
        else:
            same = [n for i, n in up.items() if look.view.cards[i].model == facts.card.model]
            results.append(_links(say, facts, look, up[facts.index], len(facts.health.links), max(same)))
    return results


def _links(say: About, facts: CardFacts, look: Look, up: int, of: int, neighbours: int) -> CheckResult:
    key = facts.card.uuid or str(facts.index)
    before = look.memory.links.get(key, 0)
    look.memory.links[key] = max(before, up)
    wanted = look.settings.nvlink_links or before
    observed = f"{up} of {of} links up"
    if up < wanted:
        why = "are wanted" if look.settings.nvlink_links else "were up"
        return say.found(Code.NVLINK_DOWN, f"{up} NVLinks are up, {wanted} {why}", observed, f"{wanted} links up")
    if up < neighbours:
        reason = f"{up} NVLinks are up, its neighbours have {neighbours}"
        return say.found(Code.NVLINK_DOWN, reason, observed, f"{neighbours} links up", status=Status.WARN)
    if not up:
        return say.off("no NVLink of any card is up: NVLink is not in use")
    return say.ok(f"{up} NVLinks are up", observed)


def nvlink_errors(say: About, facts: CardFacts, health: Health, look: Look) -> list[CheckResult]:
    """Growth within the last minutes: what was counted before is over. A link that is trained anew stops all traffic
    meanwhile, so that one counts."""
    told = health.link_errors
    if told is None:
        return [say.off("it has no NVLink, or its driver does not count errors")]
    rate, key = look.memory.rate, (NVLINK_ERRORS.item, facts.index)
    noise = rate((*key, "noise")).note(told.crc + told.replay, look.now, _REPLAY_WINDOW_S) or 0.0
    trained = rate((*key, "trained")).note(told.recovery + told.recovery_failed, look.now, _REPLAY_WINDOW_S) or 0.0
    observed = f"{told.crc} wrong checksums, {told.replay} repeats, {told.recovery} recoveries"
    observed += f", {told.recovery_failed} failed" if told.recovery_failed else ""
    most = look.settings.nvlink_errors_per_minute
    found = []
    if most and noise > most:
        found.append(f"{noise:.0f} errors a minute")
    if trained > 0:
        found.append("a link was retrained")
    if not found:
        return [say.ok("its NVLinks have few errors", observed)]
    threshold = f"at most {most:g} errors a minute, no link retrained"
    return [say.found(Code.NVLINK_ERRORS, f"its NVLinks: {', '.join(found)}", observed, threshold)]


def fabric(say: About, facts: CardFacts, health: Health, look: Look) -> list[CheckResult]:
    """NVML's GpuFabricInfo: state of the registration, its status, summary of the health."""
    if health.fabric_state in (None, _NOT_SUPPORTED):
        return [say.off("it is not part of an NVSwitch fabric")]
    observed = f"state {health.fabric_state}, status {health.fabric_status}, health {health.fabric_health}"
    waiting = health.fabric_state != _COMPLETED
    streak = look.memory.streaks.note((FABRIC.item, facts.index), waiting, look.now, FABRIC.interval_s / 2)
    if waiting:
        wanted, reason = look.settings.looks_in_a_row, "it is not registered with the NVSwitch fabric"
        if streak.looks >= wanted:
            return [say.found(Code.FABRIC_NOT_READY, reason, observed, "state 3 (completed)")]
        return [say.found(Code.NODE_PENDING, f"{reason} (look {streak.looks} of {wanted} in a row)", observed)]
    if health.fabric_status:
        reason = f"its registration with the NVSwitch fabric failed with NVML's code {health.fabric_status}"
        return [say.found(Code.FABRIC_UNHEALTHY, reason, observed, "status 0")]
    if health.fabric_health == _UNHEALTHY:
        return [say.found(Code.FABRIC_UNHEALTHY, "the NVSwitch fabric is unhealthy", observed, "health summary 1")]
    if health.fabric_health == _LIMITED:
        reason = "the NVSwitch fabric has a limited capacity"
        return [say.found(Code.FABRIC_UNHEALTHY, reason, observed, "health summary 1", status=Status.WARN)]
    return [say.ok("registered with the NVSwitch fabric", observed)]


async def pcie(look: Look) -> list[CheckResult]:
    """By the driver's readings, and by sysfs for a card whose driver gives none."""
    facts_of = look.cards(NVIDIA, ASCEND)
    asked = [f.card.bus_id for f in facts_of if f.card.bus_id and (f.health is None or f.health.pcie_width is None)]
    links = await watched.call("read PCI links", lambda: {bus: pci.link(bus, look.roots.sys) for bus in asked})
    results = []
    for facts in facts_of:
        say = about(PCIE.item, facts)
        if facts.sick is not None:
            results.append(say.not_told(f"the card does not answer ({facts.sick.trouble})"))
        elif facts.health is None:
            results.append(say.not_told("its readings are not known yet"))
        else:
            link = links.get(facts.card.bus_id, pci.Link())
            missing = [] if link.width else untold(say, facts.health, _OF_PCIE)
            results += missing or pcie_link(say, facts, facts.health, look, link)
    return results


def pcie_link(say: About, facts: CardFacts, health: Health, look: Look, link: pci.Link) -> list[CheckResult]:
    """Judges one link. `link` is what sysfs tells."""
    s = look.settings
    if health.pcie_width is not None:
        link = pci.Link(health.pcie_width, health.pcie_width_max, health.pcie_gen, health.pcie_gen_max)
    width, width_max, gen, gen_max = link.width, link.width_max, link.gen, link.gen_max
    note, gap = look.memory.streaks.note, PCIE.interval_s / 2
    results = []
    observed = f"width {_show(width)} of {_show(width_max)}, generation {_show(gen)} of {_show(gen_max)}"
    if width and width_max:
        narrow = width < width_max
        streak = note((PCIE.item, facts.index, "width"), narrow, look.now, gap)
        if narrow:
            reason = f"its link has {width} of {width_max} lanes"
            code = Code.PCIE_WIDTH_DEGRADED if streak.looks >= s.looks_in_a_row else Code.NODE_PENDING
            results.append(say.found(code, reason, observed, f"{width_max} lanes, {s.looks_in_a_row} looks in a row"))
    util = facts.reading.util if facts.reading is not None else None
    if gen and gen_max and (gen >= gen_max or (util is not None and util >= _WORKING)):
        slow = gen < gen_max
        streak = note((PCIE.item, facts.index, "generation"), slow, look.now, gap)
        if slow:
            reason = f"its link runs at generation {gen} of {gen_max} while it works"
            code = Code.PCIE_GEN_DEGRADED if streak.looks >= s.looks_in_a_row else Code.NODE_PENDING
            results.append(
                say.found(code, reason, observed, f"generation {gen_max}, {s.looks_in_a_row} looks in a row")
            )
    if health.pcie_replay is not None and s.pcie_replays_per_minute:
        rate = look.memory.rate((PCIE.item, facts.index)).note(health.pcie_replay, look.now, _REPLAY_WINDOW_S)
        if rate is not None and rate > s.pcie_replays_per_minute:
            reason = f"{rate:.1f} packets a minute are sent again on its link"
            threshold = f"at most {s.pcie_replays_per_minute:g} a minute"
            results.append(say.found(Code.PCIE_REPLAYS, reason, f"{health.pcie_replay} replays", threshold))
    if results:
        return results
    if not width and not gen and health.pcie_replay is None:
        return [say.off("neither its driver nor the bus reports its link")]
    return [say.ok("its link has its full width", observed)]


def _show(value: int | None) -> str:
    return "?" if value is None else str(value)


RULES = (
    NodeRule(NVLINK, nvlink, for_kinds(NVIDIA), frozenset({What.HEALTH})),
    NodeRule(
        NVLINK_ERRORS,
        each(NVLINK_ERRORS.item, (NVIDIA,), nvlink_errors, ("link_errors",)),
        for_kinds(NVIDIA),
        frozenset({What.HEALTH}),
    ),
    NodeRule(
        FABRIC, each(FABRIC.item, (NVIDIA,), fabric, ("fabric_state",)), for_kinds(NVIDIA), frozenset({What.HEALTH})
    ),
    NodeRule(PCIE, pcie, for_kinds(NVIDIA, ASCEND), frozenset({What.HEALTH, What.READINGS})),
)
