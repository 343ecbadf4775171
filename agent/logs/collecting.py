"""Removes records of ended jobs beyond a number or an age. Their logs stay until the rules of [logs] remove them.

A record is everything that muster keeps of a job except its logs and events: its folder, with journal, spec, workspace,
stacks and installed packages, and its rows of telemetry. That of a job whose outputs could not be delivered stays, as
they may be in it: `muster rm` removes it. The order of removal is such that a kill at any moment leaves
either the whole job, which the next pass collects, or a folder that the next start removes.
"""

import itertools
import math
import time
from collections.abc import Callable, Sequence

import anyio
import structlog

from muster.agent.changes import Changes
from muster.agent.config.schema import Config, JobsTable
from muster.agent.jobs.ended.collected_logs import CollectedLogs
from muster.agent.jobs.ended.ended_row import Ended
from muster.agent.jobs.registry import Registry
from muster.agent.logs.log_keeping import LogKeeping
from muster.agent.telemetry.history.history_rows import SeriesKey
from muster.agent.telemetry.history.history_store import History

#: How many records are collected at once, and the seconds between two batches.
LOT, LOT_S = 32, 0.05
#: The least number of seconds between two passes; seconds between two passes if no job ends.
PASS_S, LOOK_S = 5.0, 60.0
#: A record is not collected within so many seconds after the job's end: clients may still request its verdict.
YOUNG_S = 10.0

_log = structlog.get_logger(__name__)


class Collecting:
    """Belongs to one event loop."""

    def __init__(
        self,
        settings: Callable[[], Config],
        registry: Registry,
        keeping: LogKeeping,
        logs: CollectedLogs,
        history: History,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`settings` gives the present configuration; `logs` learns which log files stay; `clock` gives the time in
        seconds since the epoch."""
        self._settings = settings
        self._registry = registry
        self._keeping = keeping
        self._logs = logs
        self._history = history
        self._clock = clock
        self._told = Changes()
        #: When to search for records beyond their age next, by the loop's clock.
        self._by_age_at = 0.0

    def reload(self) -> None:
        """Starts a pass at once: the configuration may have changed."""
        self._by_age_at = 0.0
        self._told.tell()

    async def run(self) -> None:
        """Collects until cancelled."""
        ended = self._registry.ended
        ended.on_ended.append(lambda _: self._told.tell())
        await ended.indexed.wait()
        await self._registry.leasing.settled.wait()
        while True:
            told = self._told.count
            try:
                wait = await self._collect()
            except Exception:  # a bug here must not end the daemon
                _log.exception("jobs.collecting_defect")
                wait = LOOK_S
            with anyio.move_on_after(wait):
                await self._told.beyond(told)
            await anyio.sleep(PASS_S)

    async def _collect(self) -> float:
        """Collects all due records; returns the seconds until the next pass."""
        table, now = self._settings().jobs, self._clock()
        rows, wait = self._registry.ended.rows(), LOOK_S
        by_age = anyio.current_time() >= self._by_age_at
        if table.keep_ended_days and rows:
            until = min(row.since for row in rows) + table.keep_ended_days * 86400 - now
            if 0 < until < LOOK_S:
                wait = until
            by_age = by_age or -LOOK_S < until <= 0  # it became due since the last look
        if by_age:
            self._by_age_at = anyio.current_time() + LOOK_S
        due = _due(rows, table, now, by_age=by_age)
        if any(0 <= now - row.since < YOUNG_S for row, _ in due):
            wait, self._by_age_at = YOUNG_S, 0.0
        ready = ((row, why) for row, why in due if not 0 <= now - row.since < YOUNG_S and self._may_go(row))
        while lot := dict(itertools.islice(ready, LOT)):
            await self._history.forget([SeriesKey("job", row.job_id, row.accepted_at) for row in lot])
            if await self._registry.collect(lot, self._logs):
                break
            await anyio.sleep(LOT_S)
        return wait

    def _may_go(self, row: Ended) -> bool:
        registry = self._registry
        if (
            row.outputs_kept
            or row.job_id in registry.ended.unread
            or registry.is_followed(row.job_id)
            or registry.leasing.held_by(row.job_id) is not None
        ):
            return False
        return self._keeping.may_go(row)


def _due(rows: Sequence[Ended], table: JobsTable, now: float, *, by_age: bool) -> list[tuple[Ended, str]]:
    """Which records to remove, those of the jobs that ended first before the others, each with the reason, a part of a
    sentence. Searches for records beyond their age only with `by_age`."""
    over = len(rows) - table.keep_ended if table.keep_ended else 0
    oldest = now - table.keep_ended_days * 86400 if table.keep_ended_days and by_age else -math.inf
    if over <= 0 and not any(row.since < oldest for row in rows):
        return []
    due = []
    for number, row in enumerate(sorted(rows, key=lambda row: (row.since, row.job_id))):
        if number < over:
            due.append((row, f"there were more than {table.keep_ended} (keep_ended in [jobs])"))
        elif row.since < oldest:
            due.append((row, f"it ended over {table.keep_ended_days:g} days ago (keep_ended_days in [jobs])"))
        else:
            break
    return due
