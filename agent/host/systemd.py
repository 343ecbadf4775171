"""Messages to systemd: ready, reloading, stopping and, if systemd asks for it, that the daemon lives (sd_notify(3));
and the daemon's log in the journal, with fields of its own: `journalctl MUSTER_JOB=a1`, `journalctl -o json`.

The journal's protocol is systemd's native one (systemd.io/JOURNAL_NATIVE_PROTOCOL): a datagram an entry. Stderr, which
goes to the journal as well, would make a line of text of it.
"""

import functools
import os
import re
import socket
import time
from collections.abc import MutableMapping
from typing import Any, TextIO

import structlog

JOURNAL = "/run/systemd/journal/socket"
_PRIORITY = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}
_NOT_OF_A_NAME = re.compile(r"[^A-Z0-9_]")
#: Bytes of a value, so that an entry fits into a datagram (net.core.wmem_default is 208 KiB).
_MAX_VALUE = 32 << 10

_log = structlog.get_logger(__name__)


def notify(state: str) -> None:
    """Tells systemd, where it asked for that; else nothing."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    if state.startswith("RELOADING"):
        state += f"\nMONOTONIC_USEC={time.monotonic_ns() // 1000}"
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.connect("\0" + address[1:] if address.startswith("@") else address)
            sock.send(state.encode())
    except OSError as error:
        _log.warning("systemd.unreachable", error=str(error))


def watchdog_s() -> float:
    """The period of systemd's watchdog (WatchdogSec) in seconds; 0 for none; meant for another process counts as none
    (WATCHDOG_PID)."""
    if os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return 0.0
    try:
        return int(os.environ.get("WATCHDOG_USEC", "0")) / 1e6
    except ValueError:
        return 0.0


def journal_is_behind(stream: TextIO) -> bool:
    """Whether what is written there goes to the journal (systemd.exec(5), $JOURNAL_STREAM)."""
    try:
        found = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}" and os.path.exists(JOURNAL)


def journal_entry(_: object, method: str, told: MutableMapping[str, Any]) -> bytes:
    """Last of structlog's processors: MESSAGE (kind and facts, for people), PRIORITY, MUSTER_KIND, and each fact as
    MUSTER_<ITS NAME>."""
    kind, level = str(told.pop("event", "")), told.pop("level", method)
    trace = told.pop("exception", "")
    told = {name: value for name, value in told.items() if value is not None and value != ""}
    said = [str(told["text"])] if "text" in told else []
    facts = [f"{name}={value}" for name, value in told.items() if name != "text"]
    text = " ".join([f"{kind}:" if said else kind, *said, *facts]) + (f"\n{trace}" if trace else "")
    fields = {"MESSAGE": text, "PRIORITY": _PRIORITY.get(level, 6), "SYSLOG_IDENTIFIER": "musterd", "MUSTER_KIND": kind}
    fields |= {"MUSTER_" + _NOT_OF_A_NAME.sub("_", name.upper())[:57]: value for name, value in told.items()}
    return b"".join(_field(name, str(value)) for name, value in fields.items())


def _field(name: str, value: str) -> bytes:
    data = value.encode("utf-8", "replace")[:_MAX_VALUE]
    # With its length, since a line's end would end it.
    return name.encode() + b"\n" + len(data).to_bytes(8, "little") + data + b"\n"


@functools.cache
def journal() -> "Journal":
    """One for all of the process."""
    return Journal()


class Journal:
    """What structlog hands its entries to. Never waits: while the journal takes none, entries are counted and left
    out, and the next one says how many (MUSTER_LEFT_OUT)."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._left_out = 0

    def msg(self, data: bytes) -> None:
        """Sends an entry."""
        if self._left_out:
            data += _field("MUSTER_LEFT_OUT", str(self._left_out))
        try:
            self._socket.sendto(data, JOURNAL)
            self._left_out = 0
        except OSError:  # full, or gone for a moment while it is started anew
            self._left_out += 1

    def close(self) -> None:
        """Nothing more is sent."""
        self._socket.close()

    debug = info = warning = warn = error = critical = exception = fatal = log = msg
