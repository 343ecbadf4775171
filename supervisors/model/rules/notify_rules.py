"""Which events can be notified, and to which URLs: rules for both a job's spec and the daemon's configuration.

The path and query of a webhook often act as a password, so no message of this file shows them.
"""

from collections.abc import Collection, Iterable

#: Events of a job. "ended" is any end, "failed" and "stopped" are special ones of it; docs/guides/notify.md.
JOB_EVENTS = (
    "started",
    "ended",
    "failed",
    "stopped",
    "explained",
    "suspected_hang",
    "hung",
    "recovered",
    "slow_rank",
    "output_lost",
)
#: Those that a receiver gets only if it names them.
ASKED_FOR = ("slow_rank",)
#: What a job's webhook gets that names no events.
USUAL_JOB_EVENTS = tuple(name for name in JOB_EVENTS if name not in ASKED_FOR)
#: Events of the node itself.
NODE_EVENTS = ("node_condition", "node_drained")
EVENTS = (*JOB_EVENTS, *NODE_EVENTS)
#: Characters of a URL.
MAX_URL = 2048
#: Bytes of a secret that signs.
MAX_SECRET = 4096


def webhook_problem(url: str) -> str:
    """What is wrong with the URL of a webhook, in one sentence without its secret parts; empty: nothing is."""
    # Late: supervisors import these rules and never use them.
    from urllib.parse import urlsplit

    if len(url) > MAX_URL:
        return f"has {len(url)} characters: at most {MAX_URL} are allowed"
    if not url.isascii() or any(c.isspace() or not c.isprintable() for c in url):
        return "has a character that no URL has (a blank, a control character, or one beyond ASCII): write it as %XX"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:  # its text has what it could not read: of a URL that is cut wrongly, a part of a password
        return "is not a URL: host, or port (a number up to 65535), cannot be read"
    if parts.scheme not in ("http", "https"):
        return f"{parts.scheme[:20]!r} is not a supported scheme: must begin with http:// or https://"
    if not host:
        return f"{parts.scheme}://...: names no host"
    if port == 0:
        return f"{shown(url)}: the port must be 1 to 65535"
    if parts.username is not None or parts.password is not None:
        return f"{shown(url)}: must not have a user or a password before the host: use the path or the query instead"
    if "#" in url:
        return f"{shown(url)}: must not have a fragment (#...), which is never sent"
    return ""


def events_problem(names: Collection[str], allowed: Iterable[str]) -> str:
    """The first name that is not among the allowed ones, in one sentence; empty: there is none."""
    known = tuple(allowed)
    unknown = next((name for name in names if name not in known), None)
    return (
        "" if unknown is None else f"{unknown[:40]!r} is not an event that muster posts: allowed are {', '.join(known)}"
    )


def secret_problem(secret: str) -> str:
    """What is wrong with the secret that signs notifications, in one sentence without the secret; empty: nothing is."""
    if (size := len(secret.encode("utf-8", "surrogatepass"))) > MAX_SECRET:
        return f"has {size} bytes: at most {MAX_SECRET} are allowed"
    if any(character in secret for character in "\0\r\n"):
        return "contains a NUL or a line break: give one line of text"
    return ""


def shown(url: str) -> str:
    """A good URL as it may be shown: scheme, host and port."""
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}"


def without_secrets(url: str) -> str:
    """Any text given as a URL, as it may be shown: scheme and host. The rest of a webhook's address may be a token."""
    scheme, separator, rest = url.partition("://")
    host = rest.partition("/")[0].rpartition("@")[2].partition("?")[0]
    return f"{scheme}{separator}{host}/..." if separator else ""
