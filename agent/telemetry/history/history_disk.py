"""The history as it lies on disk, for a reader beside the daemon or after it."""

import sqlite3
import time
from pathlib import Path

from muster.agent import threads
from muster.agent.errors import HistoryUnreadable
from muster.agent.telemetry.history.history_db import DamagedHistory, Database, told
from muster.agent.telemetry.history.history_rows import Bounds, FoundSeries


class DiskHistory:
    """Reads the file at each question, and changes nothing. A file that does not exist has no series."""

    def __init__(self, path: Path, bounds: Bounds) -> None:
        self._path, self._bounds = path, bounds

    async def job(self, name: str, start: float, end: float, step: float, *, ranks: bool = False) -> list[FoundSeries]:
        """As `History.job`. Raises HistoryUnreadable."""
        return await threads.run(self._job, name, start, end, step, ranks)

    def _job(self, name: str, start: float, end: float, step: float, ranks: bool) -> list[FoundSeries]:
        try:
            database = Database.look(self._path, self._bounds)
            try:
                # What was fresh at the end of the job is still so, where nothing took its place.
                return database.job(name, start, end, step, min(time.time(), end), ranks=ranks)
            finally:
                database.close()
        except FileNotFoundError:
            return []
        except DamagedHistory as error:
            why = str(error)
        except sqlite3.Error as error:
            why = told(error) or f"cannot be read: {error}"
        except OSError as error:
            why = f"cannot be read: {error.strerror}"
        raise HistoryUnreadable(f"{self._path}: {why}")
