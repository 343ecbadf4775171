"""The report of a node in a format."""

from collections.abc import Iterator

import msgspec

from muster.agent.report import markdown, writing
from muster.agent.report.escaping import marked_down
from muster.agent.report.html_parts import clock, zone
from muster.agent.report.node import node_page
from muster.agent.report.node.node_overview import NodeOverview


def text(report: NodeOverview, form: str) -> str:
    """The report in this format of `writing`."""
    if form == writing.HTML:
        return node_page.page(report)
    if form == writing.MARKDOWN:
        return "\n".join(_lines(report)).rstrip() + "\n"
    return msgspec.json.format(msgspec.json.encode(report), indent=2).decode() + "\n"


def _lines(report: NodeOverview) -> Iterator[str]:
    axis = report.axis
    yield f"# Node {marked_down(report.node)}\n"
    yield f"**{marked_down(report.headline)}**\n"
    yield f"{clock(axis.begin, axis)} to {clock(axis.end, axis)}, {zone(axis)}."
    yield from markdown.facts(report.facts)
    for _, title, head, rows in node_page.tables(report):
        if rows:
            yield f"\n## {title}"
            yield from markdown.table(head, rows)
    yield from markdown.plots("Telemetry", report.plots, [])
    if report.unknown:
        yield "\n## Not known\n"
        yield from (f"- {marked_down(text)}" for text in report.unknown)
