"""Both kinds of checks at once: those before a start (probes/precheck), and those of the node (probes/node_checks)."""

from collections.abc import Awaitable, Callable, Sequence

import anyio

from muster.probes.checks import custom, precheck
from muster.probes.checks.precheck import UnknownItem
from muster.probes.checks.result import CheckResult

#: Runs checks of the node by item; without items all. Raises UnknownItem.
NodeLook = Callable[[Sequence[str]], Awaitable[list[CheckResult]]]


async def run(
    settings: precheck.CheckSettings,
    request: precheck.CheckRequest,
    look: NodeLook,
    of_node: Sequence[str],
    items: Sequence[str] = (),
) -> list[CheckResult]:
    """Runs all checks of both kinds side by side, or those that `items` name (by item or by its first word); the
    results of checks before a start come first. `of_node`: the items that `look` knows. Raises UnknownItem."""
    before, node = chosen(items, of_node)
    found: list[list[CheckResult]] = [[], []]
    wrong: list[UnknownItem] = []

    async def one(place: int, results: Awaitable[list[CheckResult]]) -> None:
        try:
            found[place] = await results
        except UnknownItem as error:  # a check of the custom folder, or a check that was just switched off
            wrong.append(error)

    async with anyio.create_task_group() as group:
        if before or not items:
            group.start_soon(one, 0, precheck.run(settings, request, tuple(before)))
        if node or not items:
            group.start_soon(one, 1, look(node))
    if wrong:
        raise wrong[0]
    return found[0] + found[1]


def chosen(items: Sequence[str], of_node: Sequence[str]) -> tuple[list[str], list[str]]:
    """The items before a start, and the items of the node. Raises UnknownItem."""
    of_start = [entry.item for entry in precheck.catalogue()]
    before = [i for i in items if _named(i, of_start) or i.partition(" ")[0] == custom.ALL]
    node = [i for i in items if _named(i, of_node)]
    for item in items:
        if item not in before and item not in node:
            raise UnknownItem(item, [*of_start, *of_node])
    return before, node


def _named(wanted: str, items: Sequence[str]) -> bool:
    return any(wanted in (item, item.partition(" ")[0]) for item in items)
