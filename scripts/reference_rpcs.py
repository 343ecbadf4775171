"""docs/reference/rpcs.md and a page per service, from the services in proto/muster/v1/*.proto and their comments."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from scripts.api import call_facts, calls_page
from scripts.reference_table import table

_PROTO = Path(__file__).parents[1] / "proto" / "muster" / "v1"
_HEAD = """# Calls of the API

Every call that `musterd` answers. `make docs` writes this page from
[proto/muster/v1](../../proto/muster/v1), which has the messages with a comment for each field. The page of a call shows
a request with its answer, the errors, the deadline and whether to repeat it. [Error reasons](errors.md) has the errors,
[Sequences](api/sequences.md) calls in their order, [States of a job](api/job-states.md) the states of a job,
[A scheduler on the API](../guides/schedulers.md) says how to use the calls together. `musterd` also answers
`grpc.health.v1.Health`.

## Every call

"""
_TAIL = """
Any call may fail with {common}; [Error reasons](errors.md) says what each means. `muster.client` follows all of these
rules ([Clients](../guides/clients.md)).
"""
#: What is true of every call.
_RULES = (
    (
        "deadline",
        "set one: 30 s is enough for a call that does not wait; the page of a call says where it waits. Streams have "
        "none; ask with keepalive pings (at most one each 10 s) whether the node is there",
    ),
    (
        "no answer",
        "UNAVAILABLE, CANCELLED or DEADLINE_EXCEEDED: the call may have had its effect. Repeat it as its page says, "
        "after the `RetryInfo` of the error, else after 0.1 s, growing to 1 s, for as long as a restart of the daemon "
        "may take (a minute)",
    ),
    (
        "metadata",
        "`muster-caller`: the name that journals, events and verdicts give. `muster-token`: "
        "[who calls](../concepts/security.md#who-calls), needed with `own_jobs_only`",
    ),
    ("size", "answers of up to 64 MiB (jobs of thousands of ranks); requests of up to `max_message_bytes`"),
    (
        "slots",
        "a listener serves a limited number of calls at once, by kind (`max_followers`, `max_watchers`, "
        "`max_streams` of [Settings of musterd: limits](settings.md#limits)). Beyond, the call fails with "
        "TOO_MANY_STREAMS (`exec`: TOO_MANY)",
    ),
)
_SERVICE = re.compile(r"^service (\w+) \{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
_CALL = re.compile(r"((?:^ *//.*\n)*)^ *rpc (\w+)\((stream )?(\w+)\) returns \((stream )?(\w+)\)[;{]", re.MULTILINE)


class Service(NamedTuple):
    """A service of a .proto file. `calls`: name, request, response ("stream X") and comment."""

    name: str
    proto: str
    about: str
    calls: list[tuple[str, str, str, str]]


def rpcs() -> str:
    """The text of the page. Raises ValueError where a call has no comment."""
    common = ", ".join(f"`{reason}`" for reason in call_facts.COMMON if reason)
    parts = [_HEAD, table(("of every call", "rule"), _RULES), _TAIL.format(common=common)]
    for service in services():
        page = f"api/{calls_page.file_name(service.name)}"
        rows = (
            (f"[`{name}`]({page}#{name.lower()})", _code(request), _code(response), text)
            for name, request, response, text in service.calls
        )
        parts.append(f"\n## {service.name}\n\n{service.about}\n\n")
        parts.append(table(("call", "request", "response", "purpose"), rows))
    return "".join(parts)


def service_page(service: Service) -> str:
    """The text of its own page."""
    return calls_page.page(*service)


def services() -> list[Service]:
    """All of them, by the name of their files."""
    found = []
    for path in sorted(_PROTO.glob("*.proto")):
        text = path.read_text(encoding="utf-8")
        # The first paragraph of the file's comment.
        about = re.match(r"(//.+\n)*", text)
        found += [
            Service(name, path.name, _words(about[0] if about else ""), list(_calls(name, body)))
            for name, body in _SERVICE.findall(text)
        ]
    return found


def _calls(service: str, body: str) -> Iterator[tuple[str, str, str, str]]:
    for about, name, asks_stream, asks, answers_stream, answers in _CALL.findall(body):
        if not (text := _words(about)):
            raise ValueError(f"{service}.{name} has no comment in its .proto file: add one")
        yield name, f"{asks_stream}{asks}", f"{answers_stream}{answers}", text


def _code(message: str) -> str:
    stream, _, name = message.rpartition(" ")
    return f"{stream} `{name}`".strip()


def _words(comment: str) -> str:
    return " ".join(line.strip().removeprefix("//").strip() for line in comment.splitlines()).strip()
