"""Checks that the daemon's own logs can be written. A condition of the node, an event and a metric report lines missing
from audit.log; a condition reports that lines of the daemon's log are lost, or that the log of nursery and supervisors
cannot be opened."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import anyio
import structlog

from muster.agent import threads
from muster.agent.api.audit import Audit
from muster.agent.events.event_store import Event, EventStore
from muster.agent.exposition import Catalogue, Page
from muster.agent.host import log_setup
from muster.probes.calls.heartbeat import tick
from muster.probes.checks.codes import EXPLANATIONS
from muster.probes.checks.result import CheckResult, Code, Status
from muster.supervisors.paths import Root
from muster.supervisors.supervision_errors import explain
from muster.supervisors.system import trust

#: Seconds between two checks, and between two events about the same gap.
LOOK_S, EVENT_S = 5.0, 60.0
ITEM = "daemon"

OWN = Catalogue()
LOST = OWN.counter("muster_audit_lines_lost_total", "Lines that the audit log lacks, because it could not be written.")

_log = structlog.get_logger(__name__)


class OwnLogs:
    """Belongs to one event loop."""

    def __init__(self, root: Root, audit: Audit, events: EventStore, found: Callable[[CheckResult], None]) -> None:
        """`found` sets a condition of the node until it is cleared."""
        self._root, self._audit, self._events, self._found = root, audit, events, found
        self._said = log_setup.own_log(log_setup.STDERR)
        self._nursery, self._looking = "", False
        self._told, self._told_at = 0, float("-inf")
        self._threads = threads.Pool(1, abandon_on_cancel=True)

    @property
    def trouble(self) -> list[str]:
        """Sentences for an operator."""
        return [text for text in (self._audit.trouble, self._nursery, self._said.trouble) if text]

    def fill(self, page: Page) -> None:
        """Adds the metrics."""
        page.add(LOST, self._audit.lost)

    async def run(self) -> None:
        """Checks until cancelled."""
        while True:
            self._said.try_again()
            # Abandoned: a disk that hangs must delay neither what there is to tell nor the exit.
            with anyio.move_on_after(LOOK_S):
                if not self._looking:
                    await self._threads.run(self.look)
            self.tell()
            await tick(LOOK_S)

    def look(self) -> None:
        """Tries again to write and to open the logs. Blocks."""
        self._looking = True
        try:
            self._audit.try_again()
            self._audit.settle()
            before, self._nursery = self._nursery, _refusal(self._root.nursery_log)
        finally:
            self._looking = False
        if self._nursery and not before:
            _log.error("nursery.log_unwritten", text=self._nursery)

    def tell(self) -> None:
        """Reports the result of the last check."""
        action = EXPLANATIONS[Code.DAEMON_DEGRADED].action
        for path, text in (
            (self._audit.path, self._audit.trouble),
            (self._root.nursery_log, self._nursery),
            ("stderr", self._said.trouble),
        ):
            if text:
                reason = text.removeprefix(f"{path}: ")
                code = Code.DAEMON_DEGRADED
                self._found(CheckResult(ITEM, Status.WARN, code, reason, device=str(path), action=action))
        lost, now = self._audit.lost, time.monotonic()
        if lost > self._told and now - self._told_at >= EVENT_S:
            what = (
                self._audit.trouble
                or f"{self._audit.path}: lines of the audit log were lost; the daemon writes it again"
            )
            attributes = {"lines": str(lost - self._told), "total": str(lost)}
            self._events.append([(None, Event(time.time(), "node.audit_lost", message=what, attributes=attributes))])
            self._told, self._told_at = lost, now


def _refusal(path: Path) -> str:
    """The reason why the nursery's log cannot be opened or created, a sentence; empty if it can. Faults of the whole
    folder are reported elsewhere (agent/node/degraded.py). Blocks."""
    try:
        folder = trust.open_logs(path.parent)
    except OSError:
        return ""
    try:
        os.close(trust.open_log(path.name, os.O_WRONLY | os.O_APPEND, folder=folder)[0])
    except FileNotFoundError:
        return ""
    except OSError as error:
        why = explain(OSError(error.errno, error.strerror))
        return f"{path}: cannot be opened: {why}; messages of nurseries and supervisors outside journals are lost"
    finally:
        os.close(folder)
    return ""
