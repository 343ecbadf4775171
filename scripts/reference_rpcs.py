"""docs/reference/rpcs.md, from the services in proto/muster/v1/*.proto and their comments."""

import re
from collections.abc import Iterator
from pathlib import Path

from scripts.reference_table import table

_PROTO = Path(__file__).parents[1] / "proto" / "muster" / "v1"
_HEAD = """# Calls of the API

Every call that `musterd` answers. `make docs` writes this page from
[proto/muster/v1](../../proto/muster/v1), which has the messages with a comment for each field.
[errors.md](errors.md) has the errors, [schedulers.md](../guides/schedulers.md) says how to use the calls together.
`musterd` also answers `grpc.health.v1.Health`.
"""
_SERVICE = re.compile(r"^service (\w+) \{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
_CALL = re.compile(r"((?:^ *//.*\n)*)^ *rpc (\w+)\((stream )?(\w+)\) returns \((stream )?(\w+)\)[;{]", re.MULTILINE)


def rpcs() -> str:
    """The text of the page. Raises ValueError where a call has no comment."""
    parts = [_HEAD]
    for path in sorted(_PROTO.glob("*.proto")):
        text = path.read_text(encoding="utf-8")
        # The first paragraph of the file's comment.
        about = re.match(r"(//.+\n)*", text)
        for service, body in _SERVICE.findall(text):
            parts.append(f"\n## {service}\n\n{_words(about[0] if about else '')}\n\n")
            parts.append(table(("call", "request", "response", "purpose"), _rows(service, body)))
    return "".join(parts)


def _rows(service: str, body: str) -> Iterator[tuple[str, ...]]:
    for about, name, asks_stream, asks, answers_stream, answers in _CALL.findall(body):
        if not (text := _words(about)):
            raise ValueError(f"{service}.{name} has no comment in its .proto file: add one")
        yield f"`{name}`", f"{asks_stream}`{asks}`", f"{answers_stream}`{answers}`", text


def _words(comment: str) -> str:
    return " ".join(line.strip().removeprefix("//").strip() for line in comment.splitlines()).strip()
