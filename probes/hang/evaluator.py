"""Walks the tables: table 1 gives the signs, table 2 the limit, and the first row of table 3 that holds decides."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from muster.probes.hang.facts.moment import Decision, JobMoment, Scene, SilenceLimit
from muster.probes.hang.facts.signs import EvidenceRow, Strength
from muster.probes.hang.hang_settings import HangSettings
from muster.probes.hang.tables.explanation import ExplanationRow, RowSets, RowStep
from muster.probes.hang.tables.explanations import EXPLANATIONS
from muster.probes.hang.tables.pattern import PatternRow
from muster.probes.hang.tables.patterns import PATTERNS
from muster.probes.hang.tables.signs_of_life import EVIDENCE
from muster.probes.hang.tracks.card_look import CardLook
from muster.probes.hang.tracks.state import JobState
from muster.probes.kernel.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class HangTables:
    """The hang rule."""

    evidence: tuple[EvidenceRow, ...] = EVIDENCE
    explanations: tuple[ExplanationRow, ...] = EXPLANATIONS
    patterns: tuple[PatternRow, ...] = PATTERNS

    def moment(self, job: JobState, looks: Mapping[str, CardLook], s: HangSettings) -> JobMoment:
        """The job at its last record; `looks`: what each card does, by its key."""
        return JobMoment(job, looks, s, self.evidence)

    def find(self, m: JobMoment) -> Decision | None:
        """None: the earlier verdict stands."""
        m.limit = _limit(m, self.explanations)
        for row in self.patterns:
            if row.scene in (None, m.scene) and row.when(m):
                return _decision(row, m, self.explanations)
        return None


#: As it is.
TABLES = HangTables()


def _limit(m: JobMoment, table: Sequence[ExplanationRow]) -> SilenceLimit:
    """What the rows of the scene add up to."""
    m.limit = SilenceLimit(None, "", m.since)
    if m.scene is Scene.LIVELY:
        return m.limit
    m.limit.missing = m.missing_of(m.cards.spins if m.scene is Scene.SPINNING else m.looks)
    rows = [row for row in table if m.scene in row.scenes]
    for base in (row for row in rows if row.step is RowStep.BASE):
        if base.when(m):
            _apply(base, m)
            break
    for row in rows:
        if row.step is RowStep.MORE and row.when(m):
            _apply(row, m)
    return m.limit


def _apply(row: ExplanationRow, m: JobMoment) -> None:
    """Changes `m.limit`."""
    limit = m.limit
    before = (limit.seconds, limit.why, limit.confidence, len(limit.missing))
    limit.missing += row.missing if row.missing_now is None else row.missing_now(m)
    if row.limit:
        amount, so_far = row.seconds(m), limit.seconds
        reason = row.reason.format(missing=" and ".join(limit.missing))
        if row.sets is RowSets.IS:
            limit.seconds, limit.why, limit.set_by = amount, reason, row.name
        elif amount is None or so_far is None:
            pass  # it is never HUNG anyway
        elif row.sets is RowSets.TIMES:
            limit.seconds, limit.why, limit.set_by = so_far * amount, f"{limit.why}, {reason}", row.name
        elif amount > so_far or row.step is RowStep.NAMED:
            limit.seconds, limit.why, limit.set_by = max(amount, so_far), reason, row.name
        elif row.if_longer:
            return
    limit.confidence = limit.confidence if row.sure is None else row.sure
    limit.confidence = min(limit.confidence - row.less - row.less_each * len(limit.missing), row.at_most)
    if row.after_log:
        limit.since = max(limit.since, m.signs.last(Strength.LOG))
    if row.step is RowStep.BASE or before != (limit.seconds, limit.why, limit.confidence, len(limit.missing)):
        limit.rows.append(row.name)


def _decision(row: PatternRow, m: JobMoment, table: Sequence[ExplanationRow]) -> Decision | None:
    """What the row says; None where that is nothing."""
    if row.scene is None:
        m.limit = SilenceLimit(None, "", m.since)
    names = [
        e for name in row.limit for e in table if e.name == name and e.step is RowStep.NAMED and m.scene in e.scenes
    ]
    if (named := next((e for e in names if e.when(m)), None)) is not None:
        _apply(named, m)
    verdict = row.verdict_at(m)
    if verdict is None:
        return None
    ranks, odd = row.who(m)
    m.decision = Decision(
        row=row.name,
        verdict=verdict,
        kind=row.kind_at(m),
        rule=row.rule if isinstance(row.rule, str) else row.rule(m),
        since=row.since(m),
        ranks=ranks,
        odd=odd,
        limit=m.limit,
        confidence=(m.limit.confidence if row.sure is None else row.sure) - row.less,
        clears=row.clears(m) if row.clears else (),
        asleep=row.asleep,
        on_cards=row.on_cards,
    )
    return _afterwards(m, m.decision, table)


def _afterwards(m: JobMoment, decision: Decision, table: Sequence[ExplanationRow]) -> Decision:
    for row in table:
        if row.step is RowStep.AFTER and m.scene in row.scenes and row.when(m):
            decision = replace(decision, confidence=decision.confidence - row.less)
            decision.rule += row.adds(m) if row.adds else ""
            m.limit.missing += row.missing
            m.limit.rows.append(row.name)
    return decision
