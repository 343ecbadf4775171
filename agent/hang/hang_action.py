"""What follows a proven hang, as the job or the node asks: its supervisor stops or restarts the job."""

import time

import anyio
import structlog

from muster.agent.events.event_store import Event, EventStore
from muster.agent.hang.current_hang import sentence
from muster.agent.jobs.entry import Entry
from muster.agent.link import supervisor_client
from muster.agent.link.connection import LinkLost, Refused
from muster.probes.hang import Change
from muster.supervisors.model.spec import OnHang

#: A stop that a supervisor did not accept is tried so many times, with so many seconds in between.
TRIES, AGAIN_S = 5, 2.0
#: The kind of the event that says why nothing followed.
NOT_ACTED = "job.hang_not_acted"

_log = structlog.get_logger(__name__)


async def act(
    entry: Entry, attempt: int, change: Change, action: OnHang, least_confidence: float, events: EventStore
) -> None:
    """Has the attempt ended (STOP), or ended and begun again (RESTART). Below this confidence an event says why not."""
    least = least_confidence
    if change.confidence < least:
        text = f"action {action} skipped: confidence {change.confidence:g} is below action_confidence, {least:g}"
        told = {
            "action": str(action),
            "confidence": f"{change.confidence:g}",
            "action_confidence": f"{least:g}",
        }
        if events.last_told(NOT_ACTED, change.job) < change.t:  # else an earlier daemon told it
            events.tell(Event(time.time(), NOT_ACTED, change.job, message=text, attributes=told))
        return
    again = action is OnHang.RESTART
    for _ in range(TRIES):
        try:
            await supervisor_client.hung(entry.paths.controls, attempt, change.ranks, sentence(change), again=again)
            return
        except Refused as error:  # it is already ending, or is in another attempt
            _log.info("hang.not_ended", job=change.job, error=str(error))
            return
        except LinkLost as error:
            _log.warning("hang.not_ended", job=change.job, error=str(error))
            await anyio.sleep(AGAIN_S)
