"""The settings of whom musterd notifies of events."""

from muster.agent.config import rules
from muster.probes.kernel.dataclass import dataclass
from muster.probes.settings import Settings, optional_path, setting
from muster.supervisors.model.rules import notify_rules

#: What an operator wants to be woken for.
_EVENTS = ("failed", "hung", "suspected_hang", "recovered", "output_lost", "node_condition")


@dataclass(frozen=True, slots=True)
class NotifyTable(Settings):
    """Whom musterd notifies of events. [Notifications](guides/notify.md) describes what it sends, how to verify it."""

    command: tuple[str, ...] = rules.command(
        (),
        "Program that runs once for each event, with the event as JSON on stdin, and its arguments. No shell reads "
        "them. "
        "Empty: none.",
    )
    webhook: str = setting(
        "",
        "URL to which musterd posts each event. Empty: none.",
        what="an http or https URL, or empty",
        rule=rules.webhook,
        secret=True,
    )
    secret_file: str = optional_path(
        "",
        "File with the secret that signs the posts. musterd reads it at each use; while it cannot read it, or "
        "others "
        "can, it posts nothing.",
    )
    proxy: str = setting(
        "",
        "HTTP proxy for all webhooks. musterd ignores `http_proxy` and the like in its environment.",
        what="http://HOST:PORT, or empty",
        rule=rules.proxy,
        secret=True,
    )
    ca_file: str = optional_path("", "Certificates (PEM) to trust for `https://`, in the place of the system's.")
    events: tuple[str, ...] = setting(
        _EVENTS,
        "The events that the receivers of this node get.",
        what=f"names out of {', '.join(notify_rules.EVENTS)}",
        rule=rules.events,
    )
    timeout_s: float = setting(
        10.0,
        "How long one try may take. After that musterd kills the command, or closes the connection.",
        above=0,
        most=600,
    )
    retry_max_s: float = rules.period(300.0, "The longest pause between two tries.")
    keep: int = setting(
        1000,
        "Events that wait for a receiver, at most; the oldest are dropped, and muster reports that. All webhooks of "
        "jobs "
        "together have room for as many.",
        least=1,
        most=100_000,
    )
    max_age_s: float = setting(
        86_400.0, "musterd drops an event that it could not send for this long.", above=0, most=31 * rules.DAY_S
    )
