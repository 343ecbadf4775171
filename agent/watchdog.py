"""systemd's watchdog is fed while the daemon lives."""

from pathlib import Path

import anyio
import structlog

from muster.agent.events.event_store import EventStore
from muster.agent.host import systemd
from muster.agent.link import connection
from muster.agent.link.connection import LinkLost, Refused

_log = structlog.get_logger(__name__)


async def feed(events: EventStore, nursery_socket: Path) -> None:
    """Says WATCHDOG=1 about three times in each period that systemd asks for (WatchdogSec), each time after the store
    and the nursery have answered; that this runs at all says that the event loop turns. Without a watchdog it returns.

    A full disk answers, too: that is not what a new start of the daemon mends.
    """
    period = systemd.watchdog_s()
    while period:
        with anyio.move_on_after(period) as late:
            await events.answers()
            try:
                async with connection.connect(nursery_socket):
                    systemd.notify("WATCHDOG=1")
            except (LinkLost, Refused) as error:
                _log.warning("watchdog.nursery", error=str(error))
        if late.cancelled_caught:
            _log.error("watchdog.store", error=f"no answer in {period:g} s")
        await anyio.sleep(period / 3)
