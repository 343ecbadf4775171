"""The request for a reset, the parts of the daemon that it uses, and its report: the steps, each with its result."""

import enum
import time
from collections.abc import Callable

from muster.agent.changes import Changes
from muster.agent.config.schema import Config
from muster.agent.events.event_store import EventStore
from muster.agent.jobs.registry import Registry
from muster.agent.node.health import NodeHealth
from muster.probes.cards.driver import Driver
from muster.probes.kernel.dataclass import dataclass
from muster.supervisors.paths import Root


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetParts:
    """The parts of the daemon that a reset uses."""

    root: Root
    config: Callable[[], Config]
    events: EventStore
    driver: Driver
    health: NodeHealth
    registry: Registry


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetRequest:
    """The options of a reset: how many seconds to wait for jobs, or whether to stop them; whether to continue despite
    doubts; whether to skip the active tests. `code`: for which muster resets by itself, "" where somebody asks for
    it."""

    by: str
    wait_s: float = 0.0
    stop_jobs: bool = False
    force: bool = False
    skip_active: bool = False
    code: str = ""


class ResetStep(enum.StrEnum):
    """The steps in their order."""

    DRAIN = "drain"
    JOBS = "jobs"
    CLOSE = "close"
    PERSISTENCE_OFF = "persistence-off"
    HOLDERS = "holders"
    RESET = "reset"
    OPEN = "open"
    PERSISTENCE_ON = "persistence-on"
    CHECK = "check"
    ACTIVE = "active"
    UNDRAIN = "undrain"


class StepFailed(Exception):
    """Raised when a step failed; the message is a sentence without a full stop."""


class StepSkipped(Exception):
    """Raised when there was nothing to do, or what could not be done is no reason to stop. The message says which."""


class StepStatus(enum.StrEnum):
    """BEGUN and WAITING are followed by one of the others. COMPLETED and GIVEN_UP are the last of a reset."""

    BEGUN = "begun"
    WAITING = "waiting"
    DONE = "done"
    SKIPPED = "skipped"
    FAILED = "failed"
    COMPLETED = "completed"
    GIVEN_UP = "given up"

    @property
    def last(self) -> bool:
        """Whether nothing follows."""
        return self in (StepStatus.COMPLETED, StepStatus.GIVEN_UP)


@dataclass(frozen=True, slots=True)
class StepReport:
    """One message. `at` in seconds since the epoch."""

    step: ResetStep
    status: StepStatus
    text: str
    at: float


class ResetProgress:
    """All that a reset has told so far; any number of readers follow it at their own pace."""

    def __init__(self) -> None:
        self.reports: list[StepReport] = []
        self.changes = Changes()

    def tell(self, step: ResetStep, status: StepStatus, text: str) -> StepReport:
        """Adds a message."""
        report = StepReport(step, status, text, time.time())
        self.reports.append(report)
        self.changes.tell()
        return report

    @property
    def over(self) -> bool:
        """Whether the last one is there."""
        return bool(self.reports) and self.reports[-1].status.last
