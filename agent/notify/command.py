"""Passes a notification to the operator's program, on its standard input."""

from muster.agent.host import operator_program
from muster.agent.host.operator_program import ProgramFailed
from muster.agent.notify.notification import Item, NotificationRefused, NotTaken
from muster.probes.kernel import marks

#: Exit code for "do not send this notification again"; EX_DATAERR of sysexits.h.
REFUSED = 65


async def run(argv: tuple[str, ...], item: Item, body: bytes, timeout_s: float) -> None:
    """Runs it once, with `body` on its standard input. Raises NotTaken, Refused."""
    facts = {
        "MUSTER_EVENT": item.event,
        marks.JOB_ID: item.job,
        "MUSTER_STATE": item.attributes.get("state", ""),
    }
    try:
        await operator_program.run(argv, facts, body, timeout_s, "timeout_s in [notify]")
    except ProgramFailed as error:
        raise (NotificationRefused if error.code == REFUSED else NotTaken)(str(error)) from None
