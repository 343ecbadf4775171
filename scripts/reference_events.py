"""docs/reference/events.md, from the table in agent/events/event_kinds.py."""

from muster.agent.events.event_kinds import KINDS
from scripts.reference_table import table

_HEAD = """# Events

Every kind of event that `muster events` shows and `Watch` streams. `make docs` writes this page from
`agent/events/event_kinds.py`.
[Lists, events, logs and commands for programs: events](../guides/scheduler-streams.md#events) says how to follow them
without a gap, [Notifications](../guides/notify.md) how to be notified.

Ignore kinds that you do not know: later releases have more.

`seconds` says how long it took until the event: the wait for the rank table, the checks, a script, the preparation, the
life of a rank. In `job.stopping`, `job.restarting` and `job.ended` it is the time since the last of
`job.checking`, `job.preparing`, `job.running` and `job.stopping`.

"""


def events() -> str:
    """The text of the page."""
    return _HEAD + table(
        ("kind", "when", "attributes"), ((f"`{name}`", kind.when, kind.attributes) for name, kind in KINDS.items())
    )
