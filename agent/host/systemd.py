"""What systemd is told: ready, reloading, stopping (sd_notify(3)), and, where it asked, that the daemon lives."""

import os
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import structlog

from muster.agent.link import connection
from muster.agent.link.connection import LinkLost, Refused

if TYPE_CHECKING:
    from muster.agent.events.event_store import EventStore

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


async def feed_watchdog(events: "EventStore", nursery_socket: Path) -> None:
    """Says WATCHDOG=1 about three times in each period that systemd asks for (WatchdogSec), each time after the store
    and the nursery have answered; that this runs at all says that the event loop turns. Without a watchdog it returns.

    A full disk answers, too: that is not what a new start of the daemon mends.
    """
    period = _period_s()
    while period:
        with anyio.move_on_after(period) as late:
            await events.answers()
            try:
                async with connection.connect(nursery_socket):
                    notify("WATCHDOG=1")
            except (LinkLost, Refused) as error:
                _log.warning("watchdog.nursery", error=str(error))
        if late.cancelled_caught:
            _log.error("watchdog.store", error=f"no answer in {period:g} s")
        await anyio.sleep(period / 3)


def _period_s() -> float:
    """0 for none; meant for another process counts as none (WATCHDOG_PID)."""
    if os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return 0.0
    try:
        return int(os.environ.get("WATCHDOG_USEC", "0")) / 1e6
    except ValueError:
        return 0.0
