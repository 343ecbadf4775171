"""ModelArts' two stages and nothing else, for comparison, and for sites that want it.

As long as the IO of any process of the job changes from one period to the next, the job is alive. When the IO of none
has changed for several periods, the utilization of its cards over a window decides: if neither its variance nor its
median says that it changes, the job hangs.
"""

from typing import Any

import msgspec

from muster.probes.hang.hang_records import Record
from muster.probes.hang.resumable import Resumable
from muster.probes.hang.tracks.card_track import median, variance
from muster.probes.hang.verdicts import Change, HangVerdict


class _State(msgspec.Struct):
    job: str = ""
    #: Counters of each process; when one changed last.
    counters: dict[str, tuple[float | None, float | None, float | None, float | None]] = {}
    changed_at: float = 0.0
    records: int = 0
    #: Utilization of each card over the window: time and percent.
    utils: dict[str, list[tuple[float, float]]] = {}
    verdict: HangVerdict | None = None


class PlainDetector(Resumable[_State]):
    """The plain rule, for the records of one job."""

    _rule = "plain"
    _kept = _State

    def feed(self, record: Record) -> list[Change]:
        """Takes a record. Returns the change of verdict that it brings, or nothing. Never raises."""
        job, s, t = self._job, self.settings, record.t
        if not job.records or t < job.changed_at:
            job.changed_at = t
            job.utils = {}
        job.job, job.records = record.job, job.records + 1
        if record.procs is not None:
            counters = {p.key: (p.rchar, p.wchar, p.read_bytes, p.write_bytes) for p in record.procs}
            if counters != job.counters:
                job.changed_at = t
            job.counters = counters
        for card in record.cards or ():
            if card.util is not None:
                seen = job.utils.setdefault(f"{card.index}:{card.rank}", [])
                seen.append((t, card.util))
                while seen[0][0] < t - s.plain_s:
                    del seen[0]
        changes = [key for key, seen in job.utils.items() if not self._flat(seen, t)]
        silent = t - job.changed_at
        hung = silent >= s.plain_s and not changes and bool(job.utils)
        verdict = HangVerdict.HUNG if hung else HangVerdict.ALIVE
        if verdict is job.verdict:
            return []
        before, job.verdict = job.verdict, verdict
        told: dict[str, Any] = {
            "rule": "plain: no IO changed, and no utilization" if hung else "plain: IO or a utilization changes",
            "since": job.changed_at,
            "silent_s": round(silent, 1),
            "cards": {
                key: {"median": round(median(us), 2), "variance": round(variance(us), 2), "samples": len(us)}
                for key, seen in job.utils.items()
                if (us := [util for _, util in seen])
            },
            "missing": [] if job.utils else ["util"],
            "would_clear": ["IO of any process", "a utilization that changes"] if hung else [],
            "thresholds": {"plain_s": s.plain_s, "flat_variance": s.flat_variance},
        }
        if before is HangVerdict.HUNG:
            told["recovered"] = {"from": "HUNG"}
        ranks = tuple(sorted({c.rank for c in record.cards or () if c.rank is not None})) if hung else ()
        return [Change(t, job.job, verdict, None, ranks, 0.5, told)]

    def _flat(self, seen: list[tuple[float, float]], t: float) -> bool:
        """Over the whole window: a small variance, and the same median in both halves."""
        s = self.settings
        if not seen or len(seen) < s.min_samples or t - seen[0][0] < 0.9 * s.plain_s:
            return False
        utils = [util for _, util in seen]
        half = len(utils) // 2
        return variance(utils) <= s.flat_variance and abs(median(utils[:half]) - median(utils[half:])) <= 1
