"""The settings of notifications: the table [notify] as it is written."""

from pathlib import Path
from typing import Annotated

import msgspec

from muster.supervisors.model import notify_rules

#: What somebody wants to be woken for.
DEFAULT_EVENTS = ("failed", "hung", "suspected_hang", "recovered", "output_lost", "node_condition")


class NotifyTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[notify]: what this node tells, and to whom. Times are in seconds; docs/notify.md says what the keys mean."""

    command: tuple[str, ...] = ()
    webhook: str = ""
    secret_file: str = ""
    proxy: str = ""
    ca_file: str = ""
    events: tuple[str, ...] = DEFAULT_EVENTS
    timeout_s: Annotated[float, msgspec.Meta(gt=0, le=600)] = 10.0
    retry_max_s: Annotated[float, msgspec.Meta(ge=0.05, le=86_400)] = 300.0
    keep: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 1000
    max_age_s: Annotated[float, msgspec.Meta(gt=0, le=31 * 86_400)] = 86_400.0


def check_command(key: str, words: tuple[str, ...]) -> None:
    """Of a program with its arguments, or nothing. Raises ValueError as `check` does."""
    if words and not Path(words[0]).is_absolute():
        raise ValueError(f"{key}: {words[0]!r}: the program has an absolute path; its arguments follow it")
    if any("\0" in word for word in words):
        raise ValueError(f"{key}: contains a NUL character, which no process can be given")


def check(table: NotifyTable) -> None:
    """Raises ValueError with one sentence that begins with the key's name, for a value that cannot be meant."""
    check_command("command", table.command)
    if table.webhook and (problem := notify_rules.webhook_problem(table.webhook)):
        raise ValueError(f"webhook: {problem}")
    for name in ("secret_file", "ca_file"):
        path = getattr(table, name)
        if path and (not Path(path).is_absolute() or "\0" in path):
            raise ValueError(f"{name}: {path!r}: must be an absolute path")
    if table.proxy:
        if problem := notify_rules.webhook_problem(table.proxy):
            raise ValueError(f"proxy: {problem}")
        if table.proxy.rstrip("/") != notify_rules.shown(table.proxy) or not table.proxy.startswith("http://"):
            raise ValueError('proxy: must be scheme, host and port, as in "http://proxy.example:3128"')
    if not table.events:
        raise ValueError("events: is empty: name what is to be notified, or leave command and webhook out for nothing")
    if problem := notify_rules.events_problem(table.events, notify_rules.EVENTS):
        raise ValueError(f"events: {problem}")
