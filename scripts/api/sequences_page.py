"""docs/reference/api/sequences.md: what goes over the wire when something happens meanwhile, from recorded.json."""

import textwrap
from collections.abc import Iterator
from typing import Any

from scripts.api import wire_json
from scripts.api.calls_page import recorded

_HEAD = """# Sequences

What client and daemon say to each other in four cases, as it was recorded from a real daemon: `>` the client sends, `<`
the daemon answers, and only the fields that matter here are shown. `muster.client` does all of this by itself
([Clients](../../guides/clients.md)); a client in another language does the same.

`make docs` writes this page; `python -m scripts.api.record` records it again.
"""
_TITLES = {
    "start": (
        "A start",
        "`Start` answers once the job is on disk. Its end comes by `Wait`, or for many jobs by one `Watch`.",
    ),
    "lost-answer": (
        "A lost answer",
        "The client cannot know whether the job was accepted. It sends the request again; `alreadyExisted` tells.",
    ),
    "restart": (
        "A restart of the daemon",
        "Every call ends with UNAVAILABLE. The client waits for the next daemon and reads on behind the last byte.",
    ),
    "watch": (
        "A watch that resumes",
        "The client keeps the cursor of the last message that it has dealt with: no event is missed, none comes twice.",
    ),
}
_WIDTH = 120


def sequences() -> str:
    """The text of the page."""
    parts = [_HEAD]
    for key, (title, text) in _TITLES.items():
        lines = "".join(f"{line}\n" for step in recorded()["sequences"][key] for line in _lines(step))
        parts.append(f"\n## {title}\n\n{text}\n\n```text\n{lines}```\n")
    return "".join(parts)


def _lines(step: dict[str, Any]) -> Iterator[str]:
    if "note" in step:
        yield ""
        yield f"  ({step['note']})"
        yield ""
    elif "call" in step:
        yield from _wrapped("> ", f"{step['call']} {wire_json.shown(step['request'], -10_000)}")
    elif "error" in step:
        yield f"< error {' '.join(step['error'].values())}"
    else:
        yield from _wrapped("< ", wire_json.shown(step["answer"], -10_000))


def _wrapped(mark: str, text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=mark, subsequent_indent="    ", break_on_hyphens=False)
