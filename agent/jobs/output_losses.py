"""The node's view of lost output: a condition of the logs' file system for as long as output is being lost; and the
lines about gaps in which jobs ended, which are written once there is space."""

import contextlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import structlog

from muster.agent import threads
from muster.agent.jobs.entry import Entry
from muster.agent.jobs.registry import Registry
from muster.agent.text import time_of_day
from muster.probes.calls.heartbeat import tick
from muster.probes.checks.codes import EXPLANATIONS
from muster.probes.checks.result import CheckResult, Code, Status
from muster.probes.kernel.dataclass import dataclass
from muster.supervisors.model.job_logs import logs_of
from muster.supervisors.output.log_file import Claims, LogFile
from muster.supervisors.output.log_layout import Folder
from muster.supervisors.output.log_reader import Reader
from muster.supervisors.output.log_removals import removals
from muster.supervisors.paths import Root, rank_log_name

#: Seconds between two looks.
LOOK_S = 5.0
ITEM = "output"

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _GapLine:
    """A gap's line that the log of an ended job still lacks. `end`: bytes of its output. `is_removed`: the job was
    removed; if its logs were kept, they get the line, and otherwise nothing may make them anew."""

    log: Path
    line: str
    end: int
    entry: Entry
    rank: int
    is_removed: bool = False


class OutputLosses:
    """Belongs to one event loop."""

    def __init__(self, root: Root, found: Callable[[CheckResult], None], registry: Registry) -> None:
        """`found` latches a condition of the node."""
        self._root, self._found, self._registry = root, found, registry
        self._lines: dict[Path, _GapLine] = {}

    async def run(self) -> None:
        """Looks at all jobs until cancelled."""
        while True:
            self._condition()
            for log, line in list(self._lines.items()):
                job_id = line.entry.job_id
                if not self._registry.is_busy(job_id):  # a removal may wait for a disk: losses are reported meanwhile
                    async with self._registry.alone(job_id):
                        await self._complete(log)
            await tick(LOOK_S)

    def ended(self, entry: Entry) -> None:
        """A job has ended, or was found ended: writes the lines that its logs lack as soon as possible."""
        job = entry.job
        if not job.missing_lines:
            return
        for log in logs_of(self._root, entry.job_id, job):
            if line := job.missing_lines.get(log.number):
                self._lines[log.path] = _GapLine(log.path, line, job.log_ends.get(log.number, -1), entry, log.number)

    def removed(self, job_id: str) -> None:
        """The job's record was removed, and perhaps its logs."""
        for log, line in self._lines.items():
            if line.entry.job_id == job_id:
                self._lines[log] = replace(line, is_removed=True)

    async def _complete(self, log: Path) -> None:
        line = self._lines[log]
        if line.is_removed and self._registry.is_known(line.entry.job_id):  # another of this name
            del self._lines[log]
            return
        try:
            await threads.run(_write, line)
        except OSError as error:
            _log.info("gap_line.not_written", log=str(log), error=str(error))
        else:
            del self._lines[log]
            await self._written(line)

    async def _written(self, line: _GapLine) -> None:
        """The last line ends the job's warning, also for a later reader of the job."""
        missing = line.entry.job.missing_lines
        missing.pop(line.rank, None)
        if not missing:
            with contextlib.suppress(OSError):  # if this fails, the next daemon looks again, and finds the line
                await threads.run(lambda: line.entry.paths.lines_written.touch(mode=0o600))
        line.entry.wake()

    def _condition(self) -> None:
        jobs = 0
        gaps = []
        for entry in self._registry.writing():
            own = [gap for rank in entry.job.gaps if (gap := entry.gap(rank)) is not None]
            jobs += bool(own)
            gaps += own
        if not gaps:
            return
        since = time_of_day(min(gap.since for gap in gaps))
        errors = ", ".join(sorted({gap.error for gap in gaps}))
        reason = f"{sum(gap.bytes for gap in gaps)} bytes of output of {jobs} job(s) are lost since {since}: {errors}"
        action = EXPLANATIONS[Code.OUTPUT_LOST].action
        self._found(CheckResult(ITEM, Status.WARN, Code.OUTPUT_LOST, reason, action=action, device=str(self._root.log)))


def _others(missing: _GapLine) -> Claims:
    """The files of the job's other logs: this line must not go into one of them."""
    entry, folder = missing.entry, missing.log.parent
    names = [rank_log_name(entry.job_id, rank.rank, rank.device) for rank in entry.job.ranks]
    claims: Claims = {}
    for path in (folder / name for name in names if name != missing.log.name):
        with contextlib.suppress(OSError):
            found = path.stat(follow_symlinks=False)
            claims[found.st_dev, found.st_ino] = path
    return claims


def _write(missing: _GapLine) -> None:
    """Appends the line, unless it exists or the log was removed. Blocks. Raises OSError."""
    if missing.is_removed and not missing.log.is_file():
        return
    gone = removals(missing.log)
    if gone and not gone[-1].lost and gone[-1].end >= missing.end:
        return
    with Reader(Folder(missing.log.parent)) as reader:
        layout = reader.layout(missing.log)
        _, tail = reader.stretch(missing.log, max(layout.begin, layout.end - 4096), layout.end)
    if tail.endswith(missing.line.encode()):
        return
    owner = missing.log.parent.stat()
    try:
        owner = missing.log.stat(follow_symlinks=False)
    except FileNotFoundError:
        pass
    log = LogFile(missing.log, (owner.st_uid, owner.st_gid), missing.end, claims=_others(missing))
    try:
        log.open()
        log.append(missing.line.encode())
    finally:
        log.close()
