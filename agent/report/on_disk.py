"""Reads what a node's folders say about a job, without its daemon. Changes nothing."""

import os
from collections.abc import Callable, Iterable

from muster.agent.config.schema import Config
from muster.agent.errors import StartupError
from muster.agent.events.disk_events import DiskEvents
from muster.agent.events.event_store import Event
from muster.agent.jobs import entry as job_entry
from muster.agent.jobs.entry import Entry
from muster.agent.node.conditions import Condition
from muster.agent.telemetry.history.history_disk import DiskHistory
from muster.agent.telemetry.history.history_rows import Bounds
from muster.probes.kernel.dataclass import dataclass
from muster.supervisors.paths import Root


class Unreadable(Exception):
    """Raised when a job's records cannot be read. The text is a sentence for the user."""


class Forbidden(Unreadable):
    """Raised when this user may not read a job's records."""


@dataclass(frozen=True, slots=True)
class _History:
    history: DiskHistory


@dataclass(frozen=True, slots=True)
class _NoConditions:
    """The present conditions of a node are its daemon's; the events tell of those that there were."""

    conditions: Iterable[Condition] = ()


class _NoHangs:
    """Nobody watches the jobs."""

    def found(self, _entry: Entry) -> None:
        return None


@dataclass(frozen=True, slots=True)
class OnDisk:
    """`agent.why.known.Known` from the folders of a node, or of a kept run."""

    root: Root
    events: DiskEvents
    telemetry: _History
    config: Callable[[], Config]
    health: _NoConditions = _NoConditions()
    hangs: _NoHangs = _NoHangs()
    #: Why the configuration could not be used; "" if it was.
    trouble: str = ""

    def damage(self) -> list[str]:
        """Sentences about what was damaged, as far as it has been read by now."""
        lines = self.events.damaged
        events = f"{self.events.folder}: {lines} line{'s' if lines != 1 else ''} of the events cannot be read"
        return [*([events] if lines else []), *([self.trouble] if self.trouble else [])]


def sources(root: Root, job_id: str) -> OnDisk:
    """What is known of this job and of its node. Opens nothing yet but the configuration, which need not exist."""
    from muster.agent.config import loading

    trouble = ""
    try:
        config = loading.load(root.config) if root.config.exists() else Config()
    except (StartupError, OSError) as error:
        config, trouble = Config(), f"the configuration cannot be used, so its defaults are: {error}"

    def chosen(event: Event) -> bool:
        return event.job_id in (job_id, "")

    telemetry = config.telemetry
    bounds = Bounds(telemetry.readings_s, telemetry.history_days, telemetry.history_bytes)
    history = DiskHistory(root.telemetry, bounds)
    return OnDisk(root, DiskEvents(root.events, chosen), _History(history), lambda: config, trouble=trouble)


def job(root: Root, job_id: str) -> Entry | None:
    """The job as its journal tells it; None for an unknown one. The entry tells of damage. Blocks.

    Raises Unreadable, and Forbidden where this user may not read it.
    """
    paths = root.job(job_id)
    try:
        os.stat(paths.folder)
        for path in (paths.spec, paths.journal):
            if path.exists():
                with path.open("rb"):
                    pass
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError as error:
        raise Forbidden(f"{error.filename or paths.folder}: permission denied") from None
    except OSError as error:
        raise Unreadable(f"{error.filename or paths.folder}: cannot be read: {error.strerror}") from None
    found, _ = job_entry.load(job_id, paths)
    return found
