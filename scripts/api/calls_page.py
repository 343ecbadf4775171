"""The pages of the services in docs/reference/api/: each call with what was sent and answered, and its facts."""

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from scripts.api import call_facts, wire_json

_RECORDED = Path(__file__).with_name("recorded.json")
_HEAD = """# {service}

{about} Each call with what it needs, and with a request and its answer as a daemon gave it, in protobuf's JSON form.
[Calls of the API](../rpcs.md) has what is true of every call, [{proto}](../../../proto/muster/v1/{proto}) each field.

`make docs` writes this page; `python -m scripts.api.record` makes the calls again. The daemon's folder is shown as
`/srv/node`. Long texts end in `…`. A field that is not set is not sent; nor is 0, false or an empty text, unless the
field is `optional`.
"""


@cache
def recorded() -> Any:
    """The file of record.py."""
    return json.loads(_RECORDED.read_text(encoding="utf-8"))


def page(service: str, proto: str, about: str, calls: list[tuple[str, str, str, str]]) -> str:
    """The text of the page. `calls`: name, request, response ("stream X") and comment. Raises ValueError for a call of
    which nothing is recorded."""
    parts = [_HEAD.format(service=service, proto=proto, about=about)]
    for name, request, response, text in calls:
        examples = recorded()["calls"].get(f"{service}/{name}")
        if not examples:
            raise ValueError(f"{service}/{name}: no recorded call: add it to scripts/api/record.py, and run that")
        parts.append(f"\n## {name}\n\n{text}\n\n")
        parts.append(_facts(service, name, request, response))
        parts.extend(_example(example) for example in examples)
    return "".join(parts)


def file_name(service: str) -> str:
    """Of the page of a service: "JobService" has job-service.md."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", service).lower() + ".md"


def _facts(service: str, name: str, request: str, response: str) -> str:
    streams = response.startswith("stream")
    own = ", ".join(f"`{reason}`" for reason in call_facts.reasons(service, name))
    rows = (
        ("messages", f"`{request}`, `{response}`".replace("`stream ", "stream of `")),
        ("role, slots", f"{call_facts.role(service, name)}, {call_facts.limit(service, name)}"),
        ("deadline", call_facts.deadline(name, streams)),
        ("repeat after a lost answer", call_facts.again(name)),
        ("reasons of its own", own or "none"),
    )
    return "| | |\n|---|---|\n" + "".join(f"| {what} | {text} |\n" for what, text in rows)


def _example(example: dict[str, Any]) -> str:
    return "\n```jsonc\n" + "".join(f"{line}\n" for line in _lines(example)) + "```\n"


def _lines(example: dict[str, Any]) -> Iterator[str]:
    asked = example["request"]
    for message in asked if isinstance(asked, list) else [asked]:
        yield f"// request\n{wire_json.shown(message)}"
    if "error" in example:
        yield f"// error\n{wire_json.shown(example['error'])}"
        return
    answers = example["answers"] if "answers" in example else [example["answer"]]
    for number, message in enumerate(answers, 1):
        what = f"answer {number}" if len(answers) > 1 else "answer"
        yield f"// {what}{': ' + example['cut'] if 'cut' in example else ''}\n{wire_json.shown(message)}"
