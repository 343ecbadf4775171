"""The rule of slow ranks for one running job: fed beside the hang rule, its state kept with that one's, each change an
event. Nothing acts on it."""

import time
from collections.abc import Mapping
from dataclasses import field
from typing import Any

import structlog

from muster.agent.events.event_store import Event
from muster.agent.hang.slow_sentence import sentence
from muster.probes import hang
from muster.probes.hang.slow import SlowChange, SlowRule, SlowSettings, SlowVerdict
from muster.probes.kernel.dataclass import dataclass

#: Kinds of the events.
BEGINS, ENDS = "job.slow_rank", "job.slow_rank_cleared"

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class SlowWatch:
    """Belongs to the watch of one attempt of a job. `found`: the ranks that are SLOW now, and why."""

    rule: SlowRule
    found: SlowChange | None = None
    #: The change whose event may not have been published yet.
    untold: SlowChange | None = field(default=None)

    @classmethod
    def begun(cls, settings: SlowSettings, stored: Mapping[str, Any]) -> "SlowWatch":
        """`stored`: as `stored` returned it, or empty."""
        try:
            return cls(
                SlowRule.restored(stored["state"], settings), _told(stored.get("found")), _told(stored.get("untold"))
            )
        except (KeyError, TypeError, ValueError) as error:
            if stored:
                _log.warning("slow.begun_anew", error=repr(error))
            return cls(SlowRule(settings))

    def stored(self) -> dict[str, Any]:
        """As JSON takes it."""
        found = {"state": self.rule.state()}
        for name, change in (("found", self.found), ("untold", self.untold)):
            if change is not None:
                found[name] = change.as_dict()
        return found

    def configured(self, settings: SlowSettings) -> None:
        """Goes on with other settings."""
        self.rule = SlowRule.restored(self.rule.state(), settings)

    def take(self, record: "hang.Record", detector: "hang.Detector | hang.PlainDetector", *, enabled: bool) -> bool:
        """Takes a record that the detector has taken. Whether anything changed. The plain rule keeps no tracks of
        cards, so beside it no rank is ever SLOW."""
        if not enabled or not isinstance(detector, hang.Detector):
            change = self.rule.reset(record)
        else:
            change = self.rule.feed(record, detector.job, detector.settings)
        if change is not None:
            self.found, self.untold = (change if change.verdict is SlowVerdict.SLOW else None), change
        return change is not None


def event(change: SlowChange, attempt: int) -> Event:
    """The event about a change."""
    attributes = {"ranks": ",".join(map(str, change.ranks)), "attempt": str(attempt)}
    if change.ranks:
        attributes["confidence"] = f"{change.confidence:g}"
    attributes = {name: value for name, value in attributes.items() if value}
    kind = BEGINS if change.ranks else ENDS
    return Event(time.time(), kind, change.job, message=sentence(change), attributes=attributes)


def _told(found: dict[str, Any] | None) -> SlowChange | None:
    if found is None:
        return None
    return SlowChange(
        found["t"],
        found["job"],
        SlowVerdict(found["verdict"]),
        tuple(found["ranks"]),
        found["since"],
        found["confidence"],
        found["evidence"],
    )
