"""docs/reference/checks.md, from the catalogues of checks and the table of codes in probes/checks/codes.py."""

from collections.abc import Iterator

from muster.agent.text import span
from muster.probes.active import active_check
from muster.probes.checks import precheck
from muster.probes.checks.codes import EXPLANATIONS, Clears, Explanation
from muster.probes.checks.result import Code
from muster.probes.node.node_checks import catalogue
from muster.probes.node.node_settings import NodeSettings
from scripts.reference_table import table

_HEAD = """# Checks and codes

Which checks there are, which codes they find, what a code means and what to do about it. `make docs` writes this page
from `probes/checks/codes.py` and the catalogues of checks. [Check a node](../guides/checks.md) says how to run them,
[Node health](../concepts/node-health.md) how muster judges,
[Settings of musterd: checks](settings.md#checks) has their settings.

A code is stable: it is never renamed or given another meaning. `muster check explain CODE` says the same as this page.

"""
_CLEARS = {
    Clears.READING: "a look that does not find it",
    Clears.REBOOT: "a reboot",
    Clears.OPERATOR: "`muster check clear`",
}


def checks() -> str:
    """The text of the page."""
    of_start = [(f"`{one.item}`", one.checks) for one in precheck.catalogue()]
    of_work = [(f"`{one.item}`", one.checks) for one in active_check.catalogue()]
    of_node = [
        (f"`{one.item}`", one.looks_at, f"{one.interval_s:g} s" if one.interval_s else "events")
        for one in catalogue(NodeSettings())
    ]
    parts = [
        _HEAD,
        f"## Checks before a start\n\n{table(('item', 'looks at'), of_start)}",
        f"\n## Node checks\n\n{table(('item', 'looks at', 'every'), of_node)}",
        "\nA check of `events` is made when the kernel or a driver reports something.\n",
        f"\n## Active checks\n\nThose of `muster check --active`.\n\n{table(('item', 'looks at'), of_work)}",
        "\n## Codes\n\n",
        "`status` is that of the code; settings and the node may make it milder: see\n"
        "[Node health](../concepts/node-health.md). `ends by` says how the condition goes away; a code without it\n"
        "makes no condition. `muster check clear` ends any of them.\n",
    ]
    for item, codes in _by_item():
        rows = [_row(code, EXPLANATIONS[code]) for code in codes]
        parts.append(f"\n### {item}\n\n{table(('code', 'status', 'action', 'ends by', 'meaning and remedy'), rows)}")
    return "".join(parts)


def _by_item() -> Iterator[tuple[str, list[Code]]]:
    """Each code once, below the first check that finds it; those that every check has, and the daemon's own, last."""
    left = dict.fromkeys(Code)
    every = {Code.PROBE_TIMED_OUT, Code.PROBE_FAILED}
    owners = [(one.item.partition(" ")[0], one.codes) for one in precheck.catalogue()]
    owners += [(one.item.partition(" ")[0], one.codes) for one in active_check.catalogue()]
    owners += [(one.item, one.codes) for one in catalogue(NodeSettings())]
    for item, codes in owners:
        own = [Code(code) for code in codes if code in left and code not in every]
        for code in own:
            del left[code]
        if own:
            yield f"`{item}`", own
    common = [code for code in left if code in every or code.startswith("NODE_")]
    yield "Any check", common
    yield "The daemon itself", [code for code in left if code not in common]


def _row(code: Code, row: Explanation) -> tuple[str, ...]:
    if not row.condition:
        ends = ""
    elif row.presence:
        ends = "the cards being as they were, or `muster node accept`"
    elif row.clears is Clears.AGE:
        ends = f"{span(row.age_s)} without it"
    elif row.steady:
        ends = "the first look that does not find it"
    else:
        ends = _CLEARS[row.clears]
    remedy = "" if row.remedy == "Nothing." else row.remedy
    return f"`{code}`", str(row.status), f"`{row.action}`", ends, f"{row.what} {remedy}"
