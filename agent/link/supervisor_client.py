"""The daemon's client of a supervisor."""

from collections.abc import Sequence
from pathlib import Path

import anyio

from muster.agent.link import connection as control
from muster.agent.link.connection import Connection, LinkLost, Refused
from muster.probes.kernel.dataclass import dataclass
from muster.supervisors.model.journal import Record
from muster.supervisors.wire.messages import Message

#: Seconds in which a supervisor must have written a stop into its journal.
STOP_S = 5.0
#: What open gaps have lost by now: by rank, the begin of the gap (seconds since the epoch) and bytes.
Figures = dict[int, tuple[float, int]]


@dataclass(frozen=True, slots=True)
class JournalChange:
    """A report of a supervisor: bytes of the journal that are on disk, a record that it owes to the journal, why
    records cannot be written (empty: none waits), or the lost bytes of open gaps. The other fields are None.
    `records`: those of the journal between the sizes `behind` and `size`; none where they are to be read there."""

    size: int | None = None
    behind: int = -1
    records: tuple[Record, ...] = ()
    owed: Record | None = None
    gaps: Figures | None = None
    refused: str | None = None


async def watch(connection: Connection, known: int) -> None:
    """Subscribes to changes of the journal: `next_change` then returns them. `known`: how many bytes of it the caller
    has read. Raises LinkLost."""
    await connection.send({"op": "watch", "from": known})


async def next_change(connection: Connection) -> JournalChange:
    """Waits for the next change. Raises LinkLost when the supervisor has exited."""
    while True:
        message = await connection.receive()
        if message["op"] == "journal":
            return JournalChange(
                int(message["size"]), int(message.get("behind", -1)), tuple(message.get("records", ()))
            )
        if message["op"] == "owed" and isinstance(record := message.get("record"), dict):
            return JournalChange(owed=record)
        if message["op"] == "refused":
            return JournalChange(refused=str(message.get("why", "")))
        if message["op"] == "gaps" and isinstance(gaps := message.get("gaps"), list):
            return JournalChange(gaps={rank: (since, count) for rank, since, count in gaps})
        if message.get("ok") is False:
            raise LinkLost(f"the supervisor refused: {message.get('error')}")


async def stop(
    paths: Sequence[Path],
    steps: tuple[float, ...] | None,
    by: str,
    reason: str,
    *,
    up: float | None = None,
    sent: Sequence[str] = (),
    hung: tuple[float, str] | None = None,
) -> None:
    """Orders a stop over a connection of its own; returns when the stop has begun.

    `steps`: of the grace period in seconds, None for the job's own. `up`: when the daemon itself began the stop
    (seconds of CLOCK_BOOTTIME), and `sent`: the signals that it sent; the supervisor continues from there. `hung`:
    since when the job has hung (seconds since the epoch), and how. Raises LinkLost, Refused.
    """
    order: Message = {"op": "stop", "steps": None if steps is None else list(steps), "by": by, "reason": reason}
    if hung is not None:
        order["hung"] = {"since": hung[0], "how": hung[1]}
    await _order(paths, order if up is None else order | {"up": up, "sent": list(sent)})


async def hung(paths: Sequence[Path], attempt: int, ranks: Sequence[int], reason: str, *, again: bool) -> None:
    """Ends an attempt because it hangs; returns when that is in the journal.

    `ranks` are to blame (none: all of them); `again`: restart the job if its budget allows. Raises LinkLost, and
    Refused if that attempt no longer runs.
    """
    await _order(paths, {"op": "hung", "attempt": attempt, "ranks": list(ranks), "reason": reason, "again": again})


async def explained(paths: Sequence[Path], recommendation: str, cause: str) -> None:
    """Gives the supervisor the explanation of its job's end, for the epilog. Raises LinkLost, Refused."""
    await _order(paths, {"op": "explained", "recommendation": recommendation, "cause": cause})


async def _order(paths: Sequence[Path], order: Message) -> None:
    try:
        with anyio.fail_after(STOP_S):
            async with control.connect(*paths) as connection:
                await connection.ask(order)
    except TimeoutError:
        raise LinkLost(f"the supervisor did not take the order in {STOP_S:g} s") from None


__all__ = ["Figures", "JournalChange", "LinkLost", "Refused", "explained", "hung", "next_change", "stop", "watch"]
