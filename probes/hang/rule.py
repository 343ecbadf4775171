"""The detector: takes the telemetry records of one job, returns each change of verdict."""

from collections.abc import Mapping
from typing import Any

from muster.probes.hang.evaluator import TABLES, HangTables
from muster.probes.hang.evidence import evidence
from muster.probes.hang.facts.moment import Decision, JobMoment
from muster.probes.hang.hang_records import Record
from muster.probes.hang.hang_settings import HangSettings
from muster.probes.hang.resumable import Resumable
from muster.probes.hang.tracks.card_look import CardLook, CardState, Eye
from muster.probes.hang.tracks.card_track import NEVER
from muster.probes.hang.tracks.state import JobState
from muster.probes.hang.verdicts import Change, HangKind, HangVerdict

_SILENCE = (HangVerdict.SUSPECT, HangVerdict.HUNG)
_QUIET = (*_SILENCE, HangVerdict.UNKNOWN)
_WAITED_FOR = (HangVerdict.WAITING, HangVerdict.BUSY_HOST)
_BAD = (*_SILENCE, HangVerdict.DRIVER_HANG)


class Detector(Resumable[JobState]):
    """The full rule, for the records of one job in the order of their time. No clock and no IO inside: the same records
    give the same verdicts, and a detector that goes on from a stored state gives those of one that never stopped."""

    _rule = "full"
    _kept = JobState

    def __init__(self, settings: HangSettings | None = None, tables: HangTables = TABLES) -> None:
        super().__init__(settings)
        self._tables = tables
        self._last: tuple[JobMoment, Decision] | None = None
        self._present: dict[str, Any] | None = None

    def feed(self, record: Record) -> list[Change]:
        """Takes a record. Returns the change of verdict that it brings, or nothing. Never raises."""
        job, s = self._job, self.settings
        anew = job.take(record, s)
        looks = {key: Eye(card, job.now, s).look() for key, card in job.cards.items()}
        self._note_work(looks)
        moment = self._tables.moment(job, looks, s)
        decision = self._tables.find(moment)
        self._last, self._present = ((moment, decision) if decision is not None else None), None
        hung = decision is not None and decision.verdict is HangVerdict.HUNG
        seen, job.candidate = job.candidate, decision.kind if decision is not None and hung else None
        if decision is None:
            return []
        if job.candidate and job.candidate is not seen and job.verdict not in (*_QUIET, HangVerdict.BUSY_HOST):
            return []  # out of nothing: one record is not enough
        if job.verdict is HangVerdict.BUSY_HOST and job.candidate not in (None, seen, HangKind.LIVELOCK):
            return []
        recovered = job.verdict in _SILENCE and moment.sign_at > job.silent_since
        if not self._is_new(decision, recovered, anew):
            return []
        told: dict[str, Any] = {}
        if job.verdict in _BAD and decision.verdict not in (*_BAD, HangVerdict.UNKNOWN):
            told = self._recovery(moment)
        change = Change(
            t=record.t,
            job=job.job,
            verdict=decision.verdict,
            kind=decision.kind,
            ranks=decision.ranks,
            confidence=_rounded(decision.confidence),
            evidence=evidence(moment, decision) | told,
        )
        job.verdict, job.kind, job.verdict_ranks = decision.verdict, decision.kind, list(decision.ranks)
        job.silent_since, job.verdict_at, job.asleep = decision.since, job.now, decision.asleep
        job.confidence = change.confidence
        if not self.wants_stacks and job.verdict is not HangVerdict.HUNG:  # of a hang they stay as evidence
            job.waits, job.library_inside, job.library_absent, job.library_text = {}, {}, [], ""
        return [change]

    @property
    def job(self) -> JobState:
        """What is known of the job after the last record; for reading only."""
        return self._job

    @property
    def wants_stacks(self) -> bool:
        """Whether stacks would tell more: while a silence is not explained, or is explained by stacks, or one of
        several ranks may be waited for, or stacks show a hang that is too unsure to act on."""
        job = self._job
        several = sum(track.is_known and rank >= 0 for rank, track in job.ranks.items()) > 1
        if job.verdict is HangVerdict.HUNG:
            return bool(job.waits) and not self._is_sure(job.confidence)
        return job.verdict is HangVerdict.SUSPECT or (job.verdict in _WAITED_FOR and (several or bool(job.waits)))

    def present(self) -> Mapping[str, Any] | None:
        """Evidence of the last record for the present verdict; None where that is not what the record itself says."""
        if self._last is None or self._last[1].verdict is not self._job.verdict:
            return None
        if self._present is None:
            self._present = evidence(*self._last)
        return self._present

    def _note_work(self, looks: Mapping[str, CardLook]) -> None:
        """Takes down what works: the signs of life of cards, the spell of work, how long most of them are slow."""
        job, s = self._job, self.settings
        working = [look.since for look in looks.values() if look.state in (CardState.WORKS, CardState.SLOW)]
        last = max(working, default=NEVER)
        if last > job.work_at:
            if last - job.spell_at > max(s.period_s, s.gap_factor * job.usual_s):
                job.spell_since = last
            job.work_at = job.spell_at = last
        slow = sum(look.state is CardState.SLOW for look in looks.values())
        if not slow or 2 * slow < len(looks):
            job.slow_since = None
        elif job.slow_since is None:
            job.slow_since = job.now

    def _is_sure(self, confidence: float) -> bool:
        """Sure enough to act on."""
        return confidence >= self.settings.action_confidence

    def _is_new(self, decision: Decision, recovered: bool, anew: str) -> bool:
        job = self._job
        if decision.verdict is job.verdict is HangVerdict.HUNG:
            return self._is_sure(_rounded(decision.confidence)) and not self._is_sure(job.confidence)
        if decision.verdict is job.verdict:
            # Ranks fall silent one by one: who is waited for may be known only later than that one is.
            now, told = set(decision.ranks), set(job.verdict_ranks)
            return decision.verdict is HangVerdict.WAITING and bool(now) and (now < told or not now & told)
        # A hang that muster acted upon is reported once, even if the driver fails meanwhile.
        if decision.verdict is HangVerdict.DRIVER_HANG and job.verdict is HangVerdict.HUNG:
            return False
        if anew or recovered or job.verdict not in _SILENCE:
            return True
        if HangVerdict.DRIVER_HANG in (decision.verdict, job.verdict):
            return True
        if job.verdict is HangVerdict.HUNG:
            # Only life ends a hang; a hang of sleeping processes ends once they compute.
            return job.asleep and decision.verdict in (HangVerdict.BUSY_HOST, HangVerdict.WAITING)
        return decision.verdict is not HangVerdict.ALIVE

    def _recovery(self, moment: JobMoment) -> dict[str, Any]:
        job = self._job
        restarted = job.begun_at > job.silent_since
        silence = max(0.0, min(moment.sign_at, job.now) - job.silent_since)
        if job.verdict in _SILENCE and not restarted:
            job.survived_s = max(job.survived_s, silence)
        return {
            "recovered": {
                "from": str(job.verdict),
                "kind": str(job.kind) if job.kind else None,
                "ranks": list(job.verdict_ranks),
                "silence_s": round(silence, 1),
                "how": "restarted" if restarted else "by itself",
            }
        }


def _rounded(confidence: float) -> float:
    return round(min(0.99, max(0.05, confidence)), 2)
