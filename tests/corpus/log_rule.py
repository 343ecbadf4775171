"""The rule that people write first: no line of log for ten minutes is a hang."""

from muster.probes.hang import Change, HangSettings, HangVerdict
from muster.probes.hang.hang_records import Record

LIMIT_S = 600.0


class LogRule:
    """For the records of one job; of a job that never logs it says nothing."""

    settings = HangSettings()
    wants_stacks = False

    def __init__(self) -> None:
        self.verdict: HangVerdict | None = None
        self._sizes: dict[int, float] = {}
        self._grew_at: float | None = None

    def feed(self, record: Record) -> list[Change]:
        """Takes a record. Returns the change of verdict that it brings, or nothing."""
        if any(size > self._sizes.get(rank, 0.0) for rank, size in record.log_bytes.items()):
            self._grew_at = record.t
        self._sizes |= record.log_bytes
        hung = self._grew_at is not None and record.t - self._grew_at >= LIMIT_S
        verdict = HangVerdict.HUNG if hung else HangVerdict.ALIVE
        if verdict is self.verdict:
            return []
        self.verdict = verdict
        return [Change(record.t, record.job, verdict, None, (), 0.5, {})]
