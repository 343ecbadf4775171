"""The report of each failed job of a node, where a setting wants it: musterd writes it soon after the end, and once
more when late facts have changed it."""

import datetime
import re
from pathlib import Path

import anyio
import structlog

from muster.agent import threads
from muster.agent.config.live_config import LiveConfig
from muster.agent.jobs.entry import Entry
from muster.agent.why.known import Known
from muster.supervisors.supervision_errors import explain

#: Mode of the files: log lines and the command are in them.
MODE = 0o640
_NAME = re.compile(r".+-\d{8}T\d{6}\.html")

_log = structlog.get_logger(__name__)


def file_name(entry: Entry) -> str:
    """Of the job's report: two jobs may have the same id, one after the other."""
    when = datetime.datetime.fromtimestamp(entry.job.accepted_at)
    return f"{entry.job_id}-{when:%Y%m%dT%H%M%S}.html"


class FailedReports:
    """Belongs to one event loop. What draws is imported with the first report: most nodes want none."""

    def __init__(self, known: Known, config: LiveConfig) -> None:
        self._known, self._config = known, config
        self._turn = anyio.Lock()  # drawing takes half a second of a core

    async def explained(self, entry: Entry, again: bool) -> None:
        """Writes the report into the folder of the setting, if it names one, and keeps the newest reports there. What
        goes wrong becomes a warning of the job. `again`: also where there is one. Raises only cancellation."""
        wanted = self._config.now.why
        if wanted.report_dir:
            async with self._turn:
                entry.note("report", await self._written(entry, Path(wanted.report_dir), wanted.reports_kept, again))

    async def _written(self, entry: Entry, folder: Path, kept: int, again: bool) -> str:
        """What went wrong."""
        from muster.agent.report import gathering, writing

        try:
            if not again and await threads.run((folder / file_name(entry)).exists):
                return ""
            report = await gathering.collect(self._known, entry)
            text = await threads.run(writing.text, report, writing.HTML)
            await threads.run(_put, folder, file_name(entry), text, kept)
        except OSError as error:
            _log.warning("report.unwritten", job=entry.job_id, error=explain(error))
            return f"{folder}: the job's report cannot be written: {explain(error)}: see why.report_dir"
        except Exception as error:  # a bug here must not end the daemon
            _log.exception("report.defect", job=entry.job_id)
            return f"the job's report could not be made: {error!r}: try `muster report {entry.job_id}`"
        return ""


def _put(folder: Path, name: str, text: str, kept: int) -> None:
    from muster.agent.report import writing

    folder.mkdir(0o750, parents=True, exist_ok=True)
    writing.put(folder / name, text.encode("utf-8", "replace"), MODE)
    there = sorted(
        (path for path in folder.iterdir() if _NAME.fullmatch(path.name)),
        key=lambda path: path.lstat().st_mtime,
        reverse=True,
    )
    for path in there[kept:]:
        path.unlink(missing_ok=True)
