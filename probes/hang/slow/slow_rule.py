"""The rule: takes the telemetry records of one job, returns each change of the ranks that are SLOW."""

import enum
from collections.abc import Mapping
from dataclasses import field, fields
from typing import Any

import msgspec

from muster.probes import typed
from muster.probes.hang.hang_records import Record
from muster.probes.hang.hang_settings import HangSettings
from muster.probes.hang.slow import dumps as stacks
from muster.probes.hang.slow import looks as cards
from muster.probes.hang.slow import samples, short_steps
from muster.probes.hang.slow.dumps import DumpedWait, StackEvidence
from muster.probes.hang.slow.looks import CardEvidence, RankLook
from muster.probes.hang.slow.samples import Sampled
from muster.probes.hang.slow.slow_settings import SlowSettings
from muster.probes.hang.tracks.card_track import NEVER
from muster.probes.hang.tracks.state import JobState
from muster.probes.kernel.dataclass import dataclass

#: Version of the stored state; another one is not read.
VERSION = 1


class SlowVerdict(enum.StrEnum):
    """How the ranks of a job keep pace."""

    SLOW = "SLOW"  # one of them, or a few, keep the others waiting again and again
    EVEN = "EVEN"


@dataclass(frozen=True, slots=True)
class SlowChange:
    """The ranks that are SLOW from now on. `t`: the record's time; `since`: the first of the waits for them, of EVEN
    `t`; both in seconds since the epoch. `confidence`: 0 to 1."""

    t: float
    job: str
    verdict: SlowVerdict
    ranks: tuple[int, ...]
    since: float
    confidence: float
    evidence: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """As `muster hang replay -o json` prints it. `rule` tells it from a change of the hang rule's verdict."""
        return {
            "t": self.t,
            "job": self.job,
            "rule": "slow",
            "verdict": str(self.verdict),
            "kind": self.evidence.get("source"),
            "ranks": list(self.ranks),
            "since": self.since,
            "confidence": self.confidence,
            "evidence": dict(self.evidence),
        }


class SlowState(msgspec.Struct):
    """What is kept of a job. Times are those of the detector's clock, but of `since`."""

    looks: list[RankLook] = []
    waits: list[DumpedWait] = []
    #: Of a job without cards.
    sampled: Sampled = msgspec.field(default_factory=Sampled)
    begun_at: float = NEVER
    #: Since when the cards show that a rank is slow.
    shown_at: dict[int, float] = {}
    ranks: list[int] = []
    #: When the first of them was first waited for, in seconds since the epoch.
    since: float = 0.0


class SlowRule:
    """For the records of one job, each after its detector has taken it. No clock and no IO inside."""

    def __init__(self, settings: SlowSettings | None = None) -> None:
        self.settings = settings or SlowSettings()
        self._kept = SlowState()
        #: A series of dumps is to be taken now, for `samples` of the next records.
        self.wants_samples = False

    def feed(self, record: Record, job: JobState, hang: HangSettings) -> SlowChange | None:
        """Takes a record. `job`: what the job's detector keeps, this record included; `hang`: the settings of that.
        Returns the change that it brings."""
        kept, s = self._kept, self.settings
        if kept.begun_at != job.begun_at:  # another attempt
            kept.looks, kept.waits, kept.sampled, kept.begun_at = [], [], Sampled(), job.begun_at
        look = cards.look_of(record, job, hang) if job.now - job.begun_at >= s.after_s else None
        if look is not None:
            short_steps.mark(look, record, job, hang)
            cards.take(kept.looks, look, s.window_s)
        kept.looks = [one for one in kept.looks if one.at > job.now - s.window_s]
        stacks.take(kept.waits, record, job, look.waits if look else (), s.dump_window_s)
        self.wants_samples = samples.take(kept.sampled, record, job, s)
        return self._changed(record, job, hang)

    def _changed(self, record: Record, job: JobState, hang: HangSettings) -> SlowChange | None:
        kept = self._kept
        by_cards = {
            **short_steps.judge(kept.looks, self.settings, kept.ranks),
            **cards.judge(kept.looks, self.settings, hang, kept.ranks),
        }
        kept.shown_at = {rank: kept.shown_at.get(rank, job.now) for rank in by_cards}
        hold_s = self.settings.hold_s
        by_cards = {
            rank: one for rank, one in by_cards.items() if rank in kept.ranks or job.now - kept.shown_at[rank] >= hold_s
        }
        by_stacks = {
            **stacks.judge(kept.waits, job.now, self.settings, kept.ranks),
            **samples.judge(kept.sampled, self.settings, kept.ranks),
        }
        ranks = sorted({*by_cards, *by_stacks})
        if ranks == kept.ranks:
            return None
        if not ranks:
            return self._even(record)
        found: list[CardEvidence | StackEvidence] = [
            by_cards[rank] if rank in by_cards else by_stacks[rank] for rank in ranks
        ]
        begin = min(one.since for one in found)
        kept.since = min(kept.since, begin) if set(kept.ranks) & set(ranks) else begin
        kept.ranks = ranks
        sure = min(one.confidence for one in found)
        sources: dict[str, Mapping[int, CardEvidence | StackEvidence]] = {"cards": by_cards, "stacks": by_stacks}
        evidence: dict[str, Any] = {
            "source": "cards" if by_cards else "stacks",
            "ranks": {
                str(rank): {name: one[rank].as_dict() for name, one in sources.items() if rank in one} for rank in ranks
            },
            "thresholds": {one.name: getattr(self.settings, one.name) for one in fields(SlowSettings)},
        }
        return SlowChange(
            record.t, record.job, SlowVerdict.SLOW, tuple(ranks), kept.since, round(min(0.99, sure), 2), evidence
        )

    def reset(self, record: Record) -> SlowChange | None:
        """Forgets everything. Returns the change, where a rank was SLOW."""
        slow, self._kept, self.wants_samples = bool(self._kept.ranks), SlowState(), False
        return self._even(record) if slow else None

    def _even(self, record: Record) -> SlowChange:
        self._kept.ranks = []
        return SlowChange(record.t, record.job, SlowVerdict.EVEN, (), record.t, 1.0)

    @property
    def ranks(self) -> tuple[int, ...]:
        """Those that are SLOW now."""
        return tuple(self._kept.ranks)

    # --- storing ------------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """What is known so far, as JSON takes it."""
        return {"version": VERSION, "job": msgspec.to_builtins(self._kept, str_keys=True)}

    @classmethod
    def restored(cls, state: Mapping[str, Any], settings: SlowSettings | None = None) -> "SlowRule":
        """A rule that goes on from there. Raises ValueError where that is no state of this version."""
        found = cls(settings)
        if state.get("version") != VERSION:
            raise ValueError(f"no state of version {VERSION} of the rule of slow ranks")
        try:
            found._kept = typed.convert(state.get("job"), SlowState, strict=False)
        except msgspec.ValidationError as error:
            raise ValueError(f"the state is damaged ({error})") from None
        return found
