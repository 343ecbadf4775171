"""Detects a removed or emptied journal of a live job. Its supervisor continues, but a successor could not."""

import structlog

from muster.agent import threads
from muster.agent.jobs.entry import GONE, Entry
from muster.supervisors.supervision_errors import JournalDamaged, explain

#: Seconds between two looks.
LOOK_S = 5.0

_log = structlog.get_logger(__name__)


class JournalWatch:
    """Of one live job."""

    def __init__(self, entry: Entry) -> None:
        """Notes what it finds with `entry`."""
        self._entry = entry
        self._said = ""

    async def run(self, rounds: threads.Rounds) -> None:
        """Looks, until cancelled."""
        try:
            await rounds.join(self._look, self._say, lambda: LOOK_S)
        finally:
            self._entry.note("record", "")

    def _say(self, text: str) -> None:
        if text == self._said:
            return
        if text:
            _log.warning("journal.taken", job=self._entry.job_id, text=text)
        self._said = text
        self._entry.note("record", text)
        self._entry.wake()

    def _look(self) -> str:
        """A sentence about the fault; empty if there is none. Blocks."""
        journal = self._entry.paths.journal
        try:
            self._entry.refuse_shorter()
            return ""
        except GONE:
            what, do = f"{journal}: somebody removed it, or moved it away", "put it back if you can"
        except JournalDamaged as error:
            what, do = f"{error.path}: {error.what}", "let it end under this supervisor if you can"
        except OSError as error:
            return f"its record cannot be inspected: {explain(error)}"
        return (
            f"{what}: the job runs on, but if its supervisor or musterd dies, its outcome is unknown: {do}; "
            "`muster stop` works"
        )
