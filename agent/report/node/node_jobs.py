"""The jobs that a node had: from their journals, and, of those whose record was removed, from history and events."""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from muster.agent.config.schema import TelemetryTable
from muster.agent.events.event_store import Event
from muster.agent.jobs import entry as job_entry
from muster.agent.jobs.entry import Entry
from muster.agent.report.lanes import DONE, FAILED, LOST, RUNNING, STOPPED
from muster.agent.report.node.node_overview import NodeJob
from muster.agent.telemetry import job_processes
from muster.agent.telemetry.history.history_rows import Busy, JobSeries
from muster.agent.text import plain
from muster.agent.why.words import shown
from muster.supervisors.model.states import State
from muster.supervisors.paths import Root

#: At most so many journals are read, the newest; and bytes of the end of an old one, to see whether it has ended.
MAX_READ, TAIL = 3000, 4096
_LOOKS = {
    State.SUCCEEDED: DONE, State.FAILED: FAILED, State.STOPPED: STOPPED, State.LOST: LOST,
}  # fmt: skip
#: Two times of acceptance that are this near are one job's: the history keeps its own.
_SAME_S = 1.0


def read(root: Root, begin: float) -> tuple[list[Entry], list[str]]:
    """Jobs that had not ended before `begin`, and sentences about what could not be read. Blocks."""
    missing: list[str] = []
    try:
        folders = [path for path in root.jobs.iterdir() if not path.name.startswith(".")]
    except FileNotFoundError:
        return [], []
    except OSError as error:
        return [], [f"{root.jobs}: cannot be read: {error.strerror}: its jobs are missing"]
    chosen = []
    for folder in folders:
        journal = root.job(folder.name).journal
        try:
            changed = journal.stat().st_mtime
        except OSError:
            changed = 0.0  # damaged: `load` says how
        if changed >= begin or not changed or not _has_ended(journal):
            chosen.append((changed, folder))
    if len(chosen) > MAX_READ:
        missing.append(f"of {len(chosen)} jobs the newest {MAX_READ} are shown")
    found = []
    for _, folder in sorted(chosen, reverse=True)[:MAX_READ]:
        entry, _ = job_entry.load(folder.name, root.job(folder.name))
        if entry.damaged:
            missing.append(f"job {folder.name}: {shown(plain(entry.damaged), 300)}")
        found.append(entry)
    return found, missing


def _has_ended(journal: Path) -> bool:
    """Whether its last record says so, as far as a look tells: what is not certain is read."""
    try:
        with journal.open("rb") as file:
            file.seek(-min(TAIL, os.fstat(file.fileno()).st_size), os.SEEK_END)
            return b'"kind":"ended"' in file.read(TAIL).replace(b'": "', b'":"')
    except OSError:
        return False


def made(
    entries: Iterable[Entry],
    series: Sequence[JobSeries],
    events: Iterable[Event],
    begin: float,
    settings: TelemetryTable,
) -> list[NodeJob]:
    """All jobs, oldest first."""
    ended = {event.job_id: event for event in events if event.kind == "job.ended"}
    busy = {one.key: one.busy for one in series}
    found, known = [], list[tuple[str, float]]()
    for entry in entries:
        job = entry.job
        since = job.past[0].started_at if job.past else job.started_at
        at = since or job.accepted_at
        end = (job.ended_at or job.last_time or at) if job.state.final else None
        known.append((entry.job_id, job.accepted_at))
        if (end is not None and end < begin) or not at:
            continue
        said = job.verdict.summary if job.verdict is not None else entry.damaged
        look = _LOOKS.get(job.state, RUNNING)
        row = NodeJob(entry.job_id, str(job.state), at, end, look, list(job.cards), _text(said))
        found.append(_judged(row, busy.get(job_processes.key(entry)), settings))
    for one in series:
        if not any(name == one.key.name and abs(born - one.key.born) < _SAME_S for name, born in known):
            found.append(_judged(_removed(one, ended), one.busy, settings))
    return sorted(found, key=lambda job: job.begin)


def _removed(one: JobSeries, ended: Mapping[str, Event]) -> NodeJob:
    event = ended.get(one.key.name)
    mine = event is not None and abs(event.time - one.last) < 120.0
    state = event.attributes.get("state", "") if event is not None and mine else ""
    looks = {str(state): look for state, look in _LOOKS.items()}
    text = _text(event.message) if event is not None and mine else "its record was removed"
    name = _text(one.key.name, 200)
    return NodeJob(name, state or "removed", one.key.born, one.last, looks.get(state, LOST), list(one.cards), text)


def _text(text: str, width: int = 500) -> str:
    return shown(plain(text), width)


def _judged(job: NodeJob, busy: Busy | None, settings: TelemetryTable) -> NodeJob:
    """With what is known of the use of its cards."""
    if busy is None or busy.mean is None or not job.cards:
        return job
    low = busy.is_underused(settings.underused_percent, settings.underused_after_s)
    idle = (1 - busy.mean / 100) * len(job.cards) * busy.seconds / 3600
    return NodeJob(
        job.job_id, job.state, job.begin, job.end, job.look, job.cards, job.text, round(busy.mean, 1),
        round(busy.seconds, 1), low, round(idle, 1),
    )  # fmt: skip
