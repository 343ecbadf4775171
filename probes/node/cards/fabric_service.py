"""Whether the fabric manager runs: without it, programs cannot use cards behind NVSwitches.

A card reports its registration as "complete" for weeks after the manager has died (NVSentinel's issue 883), so this
check looks at the process, too.
"""

from muster.probes.calls import watched
from muster.probes.cards import pci_cards
from muster.probes.cards.accelerator import NVIDIA
from muster.probes.cards.fabric_manager import is_running
from muster.probes.checks.result import CheckResult, Code
from muster.probes.node.cards.inventory import own_devices
from muster.probes.node.node_check import About, Look, NodeCheck, NodeRule, for_kinds

CHECK = NodeCheck(
    "fabric-manager",
    "nv-fabricmanager runs, on a node with NVSwitches",
    30.0,
    (Code.FABRIC_MANAGER_DOWN,),
    of_cards=True,
)


async def check(look: Look) -> list[CheckResult]:
    """A restart of the service takes seconds: it counts after several looks in a row."""
    say = About(CHECK.item)
    why_not, runs = await watched.call("look for nv-fabricmanager", lambda: _seen(look))
    if why_not:
        return [say.off(why_not)]
    streak = look.memory.streaks.note((CHECK.item,), not runs, look.now, CHECK.interval_s / 2)
    if runs:
        return [say.ok("nv-fabricmanager runs")]
    wanted, reason = look.settings.looks_in_a_row, "the node has NVSwitches, and nv-fabricmanager does not run"
    if streak.looks < wanted:
        return [say.found(Code.NODE_PENDING, f"{reason} (look {streak.looks} of {wanted} in a row)")]
    return [say.found(Code.FABRIC_MANAGER_DOWN, reason, "not running", "running")]


def _seen(look: Look) -> tuple[str, bool]:
    """Why it does not apply, and whether it runs. Blocks."""
    if not pci_cards.has_switches(look.roots.sys):
        return "the node has no NVSwitch of its own", False
    if not own_devices(look.roots):
        return "a container does not see the services of its host", False
    return "", is_running(look.roots.proc)


RULES = (NodeRule(CHECK, check, for_kinds(NVIDIA)),)
