"""What a client must know of each call beside its messages: role, errors, deadline, and whether to repeat it.

All of it is read from the code: the role from access.py, the limit from slots.py, the repetition from retries.py, the
errors from what the handlers say that they raise. Only the words about deadlines have their home here.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from muster.agent import errors
from muster.agent.api import access, slots
from muster.agent.api.services.job_service import STOP_MARGIN_S
from muster.agent.jobs.cards.leasing import FREED_S
from muster.client.error_reasons import REASONS
from muster.client.requests import ANSWER_S
from muster.client.retries import REPEATS

_AGENT = Path(__file__).parents[2] / "agent"
_SERVICES = _AGENT / "api" / "services"
#: Reasons that any call may fail with; a page of a service does not repeat them.
COMMON = (
    "STOPPING",
    "TOO_MANY_STREAMS",
    "ROLE_NOT_ALLOWED",
    "NO_ROLE",
    "NOT_YOUR_JOB",
    "IDENTITY_NEEDED",
    "TOKEN_REFUSED",
    "DEFECT",
    "",
)
_DEADLINES = {
    "Start": f"{ANSWER_S:g} s: it waits up to {FREED_S:g} s for cards that a job has just left",
    "Stop": "longer than `timeout`; without that it takes the grace and up to "
    f"{STOP_MARGIN_S:g} s more. When yours passes first, the order holds",
    "Wait": "longer than `timeout`; without that yours is the only one. For days: slices of a minute, so that a dead "
    "connection is noticed",
    "RunCommand": "longer than `time_limit` (60 s unless set): the command ends with the call",
    "RunChecks": f"{ANSWER_S:g} s; each check has its own limit",
    "GetStacks": f"{ANSWER_S:g} s",
    "Signal": "5 s",
    "ResetCard": "none: it lasts as long as the reset, which goes on without the client",
}
#: What a call does when it is made twice, where the comment in the .proto file does not say it in a word.
_AGAIN = {
    "Start": "with `spec.job_id`, always: the same spec gives the same job. Without, never",
    "Delete": "yes; the second answer is NOT_FOUND",
    "ClearConditions": "yes; the second answer is NOT_FOUND, unless the condition came back",
    "AcceptCards": "yes; the second answer is NOT_FOUND where `cards` names them",
    "CancelReset": "yes; the second answer is FAILED_PRECONDITION",
    "Exec": "`attach` yes, with the offsets that were received; `start` never: attach to the session instead",
    "RunCommand": "no: it runs the command each time",
    "ResetCard": "no: it resets the card each time",
    "Signal": "no: the ranks get it each time",
    "Watch": "yes, with the last `cursor`",
    "ReadLogs": "yes, with `offsets` (and `job_offset`, `event_cursor`) behind what was received",
    "ReadNodeLogs": "yes, with `positions` (and `event_cursor`) behind what was received",
    "RecordTelemetry": "yes; records of the meantime are missing",
}


def role(service: str, method: str) -> str:
    """The least role that a caller needs."""
    return "reader" if f"/muster.v1.{service}/{method}" in access.LOOKS else "operator"


def limit(service: str, method: str) -> str:
    """Which slots of its listener the call takes."""
    kind = slots.kind_of(f"/muster.v1.{service}/{method}")
    return f"`{kind}`" if kind is not None else "none"


def deadline(method: str, streams: bool) -> str:
    """In words."""
    return _DEADLINES.get(method, "none: ask with keepalive pings whether the node is there" if streams else "30 s")


def again(method: str) -> str:
    """Whether, and how, to repeat it after a lost answer. Raises ValueError where the client's rule says otherwise."""
    repeats = REPEATS[f"{method}Request"]
    text = _AGAIN.get(method, "yes" if repeats else "no")
    if text.startswith("no") is repeats:
        raise ValueError(f"scripts/api/call_facts.py says of {method}: {text!r}; muster/client/retries.py: {repeats}")
    return text


def reasons(service: str, method: str) -> list[str]:
    """What it may fail with beside COMMON, in the order of the table. Raises ValueError for an unknown reason."""
    found = {errors_of.reason for errors_of in _raised(f"{service}.{method}")}
    known = [row.reason for row in REASONS]
    if wrong := found - {*known}:
        raise ValueError(f"{service}.{method}: no row of error_reasons.py for {wrong}")
    return [reason for reason in dict.fromkeys(known) if reason in found and reason not in COMMON]


def _raised(qualified: str) -> Iterator[type[errors.ApiError]]:
    """The errors that the docstring of a method names: "Raises A, B and what Registry.start raises."."""
    text = " ".join(_docstrings()[qualified].split())
    match = re.search(r"Raises (.+?)[.;](?: |$)", text)
    for name in re.findall(r"[A-Z]\w+(?:\.\w+)?", match[1] if match else ""):
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, errors.ApiError):
            yield kind
        elif name in _docstrings():
            yield from _raised(name)
        elif f"{qualified.partition('.')[0]}.{name}" in _docstrings():
            yield from _raised(f"{qualified.partition('.')[0]}.{name}")
        else:
            raise ValueError(f"the docstring of {qualified} says that it raises {name}, which is no error of errors.py")


@cache
def _docstrings() -> dict[str, str]:
    """Of the methods of the services, and of what they call, by "Class.method"."""
    found = {}
    for path in (*_SERVICES.glob("*_service.py"), _AGENT / "jobs" / "registry.py"):
        body = ast.parse(path.read_text(encoding="utf-8")).body
        for kind in (each for each in body if isinstance(each, ast.ClassDef)):
            for method in kind.body:
                if isinstance(method, ast.AsyncFunctionDef | ast.FunctionDef):
                    found[f"{kind.name}.{method.name}"] = ast.get_docstring(method) or ""
    return found
