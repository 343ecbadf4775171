"""The history as it lies on disk, for a reader beside the daemon or after it."""

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from muster.agent import threads
from muster.agent.errors import HistoryUnreadable
from muster.agent.telemetry.history.history_db import DamagedHistory, Database, told
from muster.agent.telemetry.history.history_rows import Bounds, FoundSeries, JobSeries

T = TypeVar("T")


class DiskHistory:
    """Reads the file at each question, and changes nothing. A file that does not exist has no series."""

    def __init__(self, path: Path, bounds: Bounds) -> None:
        self._path, self._bounds = path, bounds

    async def job(self, name: str, start: float, end: float, step: float, *, ranks: bool = False) -> list[FoundSeries]:
        """As `History.job`. Raises HistoryUnreadable."""
        # What was fresh at the end of the job is still so, where nothing took its place.
        return await threads.run(
            self._asked, lambda database: database.job(name, start, end, step, min(time.time(), end), ranks=ranks)
        )

    async def node(self, start: float, end: float, step: float) -> list[FoundSeries]:
        """The node and all cards that it had. Raises HistoryUnreadable."""
        return await threads.run(self._asked, lambda database: database.node(start, end, step, min(time.time(), end)))

    async def jobs(self, since: float) -> list[JobSeries]:
        """All jobs with a reading since then. Raises HistoryUnreadable."""
        return await threads.run(self._asked, lambda database: database.jobs(since))

    def _asked(self, question: Callable[[Database], list[T]]) -> list[T]:
        try:
            database = Database.look(self._path, self._bounds)
            try:
                return question(database)
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
