"""Ascend cards, as DCMI tells them."""

from muster.probes.cards import accelerator
from muster.probes.cards.accelerator import ASCEND, BOOTED, NETWORK_GOOD, Health
from muster.probes.cards.driver import What
from muster.probes.checks.result import CheckResult, Code, Status
from muster.probes.node import npu_repeats
from muster.probes.node.node_check import About, CardFacts, Look, NodeCheck, NodeRule, counted, each, for_kinds
from muster.probes.node.reported import npu_codes

ALARMS = NodeCheck(
    "npu-health",
    "health and start of the Ascend cards",
    30.0,
    (Code.NPU_ALARM, Code.NPU_UNHEALTHY, Code.NPU_NOT_BOOTED),
    of_cards=True,
)
ERRORS = NodeCheck(
    "npu-errors",
    "error codes of the Ascend cards",
    30.0,
    (
        Code.NPU_FAULT_RESET,
        Code.NPU_FAULT_ISOLATE,
        Code.NPU_FAULT_REPEATED,
        Code.NPU_ERROR_CODES,
        Code.NPU_FAULT_EVENT,
        Code.NPU_FAULT_JOB,
        Code.NPU_FAULT_NOTE,
    ),
    of_cards=True,
)
NETWORK = NodeCheck(
    "npu-network",
    "the RoCE ports of the Ascend cards",
    60.0,
    (Code.NPU_NETWORK_DOWN,),
    of_cards=True,
)

#: Fields of Health that the driver failed to tell, in words.
_UNREAD = {
    "npu_health": "its health is unknown",
    "npu_boot": "its boot status is unknown",
    "npu_errors": "its error codes are unknown",
    "npu_network": "the health of its network port is unknown",
}
#: Of what npu-smi's table does not have.
UNASKED = "npu-smi does not report it: give musterd the driver's libdcmi.so"


def alarms(say: About, facts: CardFacts, health: Health, look: Look) -> list[CheckResult]:
    """Alarms, and whether the card has started."""
    found = _unread(say, health, "npu_health", "npu_boot")
    if health.npu_health is None and health.npu_boot is None:
        return found or [say.not_told("its driver reports neither its health nor its start")]
    if health.npu_health is None and not found:
        found.append(say.not_told("its driver does not report its health"))
    if health.npu_health:
        word = accelerator.ALARMS.get(health.npu_health)
        several = "s" if len(health.npu_errors or ()) > 1 else ""
        codes = "".join(f" {code:#x}" for code in health.npu_errors or ())
        observed = f"health {health.npu_health}{f', error code{several}{codes}' if codes else ''}"
        if word is None:
            found.append(say.not_told(f"health {health.npu_health} is unknown to muster"))
        else:
            code = Code.NPU_ALARM if health.npu_health == 1 else Code.NPU_UNHEALTHY
            found.append(say.found(code, f"it has a {word} alarm", observed, "health 0"))
    if health.npu_boot is None:
        return found or [say.ok("no alarm", f"health {health.npu_health}")]
    waiting = health.npu_boot != BOOTED
    streak = look.memory.streaks.note((ALARMS.item, facts.index), waiting, look.now, ALARMS.interval_s / 2)
    if waiting:
        reason, wanted = f"it has not started (boot status {health.npu_boot})", look.settings.looks_in_a_row
        code = Code.NPU_NOT_BOOTED if streak.looks >= wanted else Code.NODE_PENDING
        found.append(say.found(code, reason, f"boot status {health.npu_boot}", f"16 within {wanted} looks"))
    return found or [say.ok("no alarm", f"health {health.npu_health}")]


def errors(say: About, facts: CardFacts, health: Health, look: Look) -> list[CheckResult]:
    """The codes as they stand, by the gravest of them; and those that the card had too often."""
    whose, ignored = facts.card.uuid or say.device, look.settings.hex_numbers("npu_ignore")
    if health.npu_errors is not None:
        look.memory.repeats.look(whose, health.npu_errors, look.now)
    too_often = {c: n for c, n in look.memory.repeats.too_often(whose, look.now).items() if c not in ignored}
    if not too_often:
        return _present(say, health, look)
    told = ", ".join(f"{npu_codes.named([c], look.settings)} {n} times" for c, n in sorted(too_often.items()))
    limits = ", ".join(f"{code:#x} fewer than {npu_repeats.LIMITS[code]} times" for code in sorted(too_often))
    found = say.found(Code.NPU_FAULT_REPEATED, f"within a day it had {told}", told, f"{limits} a day")
    return [found, *(r for r in _present(say, health, look) if r.code is not Code.NODE_OK)]


def _present(say: About, health: Health, look: Look) -> list[CheckResult]:
    if health.npu_errors is None:
        if unread := _unread(say, health, "npu_errors"):
            return unread
        return [say.not_told(UNASKED if health.partial else "its driver does not report error codes")]
    if not health.npu_errors:
        return [say.ok("no error codes")]
    code = npu_codes.code_of(health.npu_errors, look.settings, Code.NPU_ERROR_CODES)
    named = npu_codes.named(health.npu_errors, look.settings)
    if code is Code.NPU_FAULT_NOTE:
        return [say.ok(f"only informative error codes: {named}", named)]
    text = f"it reports {counted(len(health.npu_errors), 'error code')}: {named}"
    return [say.found(code, text, named, "none")]


def network(say: About, facts: CardFacts, health: Health, look: Look) -> list[CheckResult]:
    """CRITICAL for a port that was up; WARN for a port that never was: it may have no cable."""
    s = look.settings
    unread = _unread(say, health, "npu_network")
    if unread and health.npu_link_up is not False:
        return unread
    if health.npu_network is None and health.npu_link_up is None:
        return [say.not_told(UNASKED) if health.partial else say.off("its driver reports no network port")]
    bad = health.npu_link_up is False or (health.npu_network is not None and health.npu_network not in NETWORK_GOOD)
    observed = f"network health {'?' if health.npu_network is None else health.npu_network}"
    if health.npu_link_up is not None:
        observed += f", link {'up' if health.npu_link_up else 'down'}"
    key = (NETWORK.item, facts.card.uuid or facts.index)
    streak = look.memory.streaks.note((NETWORK.item, facts.index), bad, look.now, NETWORK.interval_s / 2)
    if not bad:
        look.memory.once.add(key)
        return [say.ok("its network port is up", observed)]
    reason, threshold = "its network port does not reach the network", "network health 0 or 6, link up"
    if streak.looks < s.looks_in_a_row:
        pending = f"{reason} (look {streak.looks} of {s.looks_in_a_row} in a row)"
        return [say.found(Code.NODE_PENDING, pending, observed, threshold)]
    status = None if key in look.memory.once else Status.WARN
    return [say.found(Code.NPU_NETWORK_DOWN, reason, observed, threshold, status=status)]


def _unread(say: About, health: Health, *names: str) -> list[CheckResult]:
    """Which of these readings the card has and did not tell this time, with the driver's answer."""
    return [say.not_told(f"{_UNREAD[name]}: {health.untold[name]}") for name in names if name in health.untold]


_NEEDS = frozenset({What.HEALTH})
RULES = (
    NodeRule(ALARMS, each(ALARMS.item, (ASCEND,), alarms), for_kinds(ASCEND), _NEEDS),
    NodeRule(ERRORS, each(ERRORS.item, (ASCEND,), errors), for_kinds(ASCEND), _NEEDS),
    NodeRule(NETWORK, each(NETWORK.item, (ASCEND,), network), for_kinds(ASCEND), _NEEDS),
)
