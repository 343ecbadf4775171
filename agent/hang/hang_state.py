"""What the watch of a job keeps in `hang.json` in the job's folder, so that the next daemon goes on with it."""

import contextlib
from collections.abc import Iterable
from typing import Any

import msgspec
import structlog

from muster.agent.host import state_file
from muster.agent.jobs.entry import Entry
from muster.probes import hang
from muster.probes.hang import Change, HangVerdict
from muster.supervisors.paths import JobPaths

_log = structlog.get_logger(__name__)


class HangState(msgspec.Struct):
    """`attempt`: when the job was accepted, and the number of the attempt. `untold`: the kind of the event about
    `found` that may not have been published yet."""

    attempt: tuple[float, int]
    state: dict[str, Any]
    found: dict[str, Any] | None = None
    since: float = 0.0
    untold: str = ""
    #: Of the rule of slow ranks.
    slow: dict[str, Any] = {}


def going_on(state: dict[str, Any], settings: hang.HangSettings) -> "hang.Detector | hang.PlainDetector":
    """A detector with these settings that takes over the state of another one; an empty one if that used the other
    rule."""
    begun = hang.detector(settings)
    try:
        return type(begun).restored(state, settings)
    except ValueError as error:
        _log.warning("hang.begun_anew", error=str(error))
        return begun


def change_of(found: dict[str, Any] | None) -> Change | None:
    """None also if only another version can read it: the rule then reaches its own verdict."""
    if found is None:
        return None
    try:
        return Change(
            found["t"],
            found["job"],
            HangVerdict(found["verdict"]),
            hang.HangKind(found["kind"]) if found["kind"] else None,
            tuple(found["ranks"]),
            found["confidence"],
            found["evidence"],
        )
    except (KeyError, TypeError, ValueError) as error:
        _log.warning("hang.begun_anew", error=repr(error))
        return None


def load(paths: JobPaths) -> HangState | None:
    """None: there is none that this version can read."""
    try:
        return state_file.read(paths.hang, HangState)
    except (OSError, ValueError):
        return None


def load_all(jobs: Iterable[JobPaths]) -> list[HangState]:
    """Those of these jobs that can be read."""
    return [found for paths in jobs if (found := load(paths)) is not None]


def store(entry: Entry, state: HangState) -> None:
    """Not synced: a crash of the node ends the job, too."""
    try:
        state_file.write(entry.paths.hang, state, synced=False)
    except OSError as error:
        _log.warning("hang.state_not_written", job=entry.job_id, error=str(error))


def remove(entry: Entry) -> None:
    """Of a job that runs no more."""
    with contextlib.suppress(OSError):
        entry.paths.hang.unlink()
