"""The verdict about a job, and the reasons."""

import enum
from collections.abc import Mapping
from typing import Any

from muster.probes.kernel.dataclass import dataclass


class HangVerdict(enum.StrEnum):
    """How a job is doing; docs/concepts/hang.md has each one's meaning. Only HUNG is acted upon."""

    ALIVE = "ALIVE"
    BUSY_HOST = "BUSY_HOST"  # cards idle, a rank computes on the CPU
    WAITING = "WAITING"  # some ranks wait, on their cards, for one that is alive
    IDLE = "IDLE"  # its cards were never used
    SLOW = "SLOW"  # works, at less than half of its own rate
    SUSPECT = "SUSPECT"
    HUNG = "HUNG"
    DRIVER_HANG = "DRIVER_HANG"  # a call of the cards' driver does not return
    UNKNOWN = "UNKNOWN"  # the readings do not say


class HangKind(enum.StrEnum):
    """How a job hangs."""

    SPIN = "spin"  # cards at full utilization and little power: a collective that never completes
    DEADLOCK = "deadlock"  # cards idle, processes asleep
    IO_BLOCKED = "io_blocked"  # a process cannot leave the kernel (state D)
    STOPPED = "stopped"  # a process is stopped by a signal (state T)
    NOTIFY_WAIT = "notify_wait"  # NPUs wait for a notification of a peer: HCCL's collective that never completes
    LIVELOCK = "livelock"  # processes do something, but nothing comes of it


@dataclass(frozen=True, slots=True)
class Change:
    """A new verdict. `t`: the record's time, seconds since the epoch. `ranks`: the odd ones out, where some stand out;
    else those that the verdict is about. `confidence`: 0 to 1; below 0.5 is low."""

    t: float
    job: str
    verdict: HangVerdict
    kind: HangKind | None
    ranks: tuple[int, ...]
    confidence: float
    evidence: Mapping[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """As `muster hang replay -o json` prints it."""
        return {
            "t": self.t,
            "job": self.job,
            "verdict": str(self.verdict),
            "kind": str(self.kind) if self.kind else None,
            "ranks": list(self.ranks),
            "confidence": self.confidence,
            "evidence": dict(self.evidence),
        }
