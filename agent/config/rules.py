"""Kinds of settings that several tables have, and the rules of values that are more than a type and a range.

A rule returns what is wrong with a value, in one sentence; an empty text: nothing is.
"""

from pathlib import Path

from muster.agent.config import listen_address
from muster.probes.settings import setting, toml
from muster.supervisors.model.rules import notify_rules
from muster.supervisors.model.spec import MAX_GRACE_S

MAX_COUNT = 1_000_000
DAY_S = 86_400
MAX_DAYS = 3660
#: The shortest time between two looks of the same kind.
MIN_PERIOD_S = 0.05


def count(default: int, help: str, *, restart: bool = False) -> int:
    """A number of things, from 1 on."""
    return setting(default, help, least=1, most=MAX_COUNT, restart=restart)


def seconds(default: float, help: str) -> float:
    """A time of up to a day."""
    return setting(default, help, most=DAY_S)


def period(default: float, help: str) -> float:
    """A time between two looks."""
    return setting(default, help, least=MIN_PERIOD_S, most=DAY_S)


def command(default: tuple[str, ...], help: str) -> tuple[str, ...]:
    """A program with its arguments."""
    return setting(default, help, what="a program with its absolute path, and its arguments", rule=program)


def program(words: tuple[str, ...]) -> str:
    """The command line of a program."""
    return "" if not words or words[0].startswith("/") else f"{words[0]!r}: the program must have an absolute path"


def grace_steps(steps: tuple[float, ...]) -> str:
    """The steps of a stop."""
    if 1 <= len(steps) <= 64 and all(0 <= step <= MAX_GRACE_S for step in steps) and sum(steps) <= MAX_GRACE_S:
        return ""
    return f"{toml(steps)}: must be 1 to 64 numbers of seconds, none below 0, together at most {MAX_GRACE_S:.0f}"


def webhook(url: str) -> str:
    """The URL of a webhook, or empty."""
    return notify_rules.webhook_problem(url) if url else ""


def proxy(url: str) -> str:
    """The URL of an HTTP proxy, or empty."""
    if problem := webhook(url):
        return problem
    if not url:
        return ""
    if url.rstrip("/") != notify_rules.shown(url) or not url.startswith("http://"):
        return 'must be scheme, host and port, as in "http://proxy.example:3128"'
    return ""


def events(names: tuple[str, ...]) -> str:
    """Events that can be notified."""
    if not names:
        return "[]: name what is to be notified; to notify of nothing, leave out command and webhook"
    return notify_rules.events_problem(names, notify_rules.EVENTS)


def restart_path(help: str) -> str:
    """A path that is read when the daemon starts."""
    return setting("", help, restart=True)


def listen(text: str) -> str:
    """Where metrics are served."""
    try:
        listen_address.parse(text)
    except ValueError as error:
        return str(error)
    return ""


def textfile(path: str) -> str:
    """A file of node_exporter's textfile collector, or empty."""
    if not path or (path.startswith("/") and Path(path).suffix == ".prom"):
        return ""
    return (
        f"{path!r}: must be an absolute path that ends in .prom, in the folder of node_exporter's textfile "
        'collector, as in "/var/lib/node_exporter/textfile/muster.prom"'
    )
