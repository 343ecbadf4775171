"""Walks the tables: table 1 gives the signs, table 2 the limit, and the first row of table 3 that holds decides."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from muster.probes.hang.facts.moment import Finding, Limit, Moment, Scene
from muster.probes.hang.facts.signs import Evidence, Strength
from muster.probes.hang.hang_settings import HangSettings
from muster.probes.hang.tables.explanation import Explanation, Sets, Step
from muster.probes.hang.tables.explanations import EXPLANATIONS
from muster.probes.hang.tables.pattern import Pattern
from muster.probes.hang.tables.patterns import PATTERNS
from muster.probes.hang.tables.signs_of_life import EVIDENCE
from muster.probes.hang.tracks.card_look import CardLook
from muster.probes.hang.tracks.state import JobState


@dataclass(frozen=True, slots=True)
class Tables:
    """The hang rule."""

    evidence: tuple[Evidence, ...] = EVIDENCE
    explanations: tuple[Explanation, ...] = EXPLANATIONS
    patterns: tuple[Pattern, ...] = PATTERNS

    def moment(self, job: JobState, looks: Mapping[str, CardLook], s: HangSettings) -> Moment:
        """The job at its last record; `looks`: what each card does, by its key."""
        return Moment(job, looks, s, self.evidence)

    def find(self, m: Moment) -> Finding | None:
        """None where nothing is to be said: what was said before stands."""
        m.limit = _limit(m, self.explanations)
        for row in self.patterns:
            if row.scene in (None, m.scene) and row.when(m):
                return _finding(row, m, self.explanations)
        return None


#: As it is.
TABLES = Tables()


def _limit(m: Moment, table: Sequence[Explanation]) -> Limit:
    """What the rows of the scene add up to."""
    m.limit = Limit(None, "", m.since)
    if m.scene is Scene.LIVELY:
        return m.limit
    m.limit.missing = m.missing_of(m.cards.spins if m.scene is Scene.SPINNING else m.looks)
    rows = [row for row in table if m.scene in row.scenes]
    for base in (row for row in rows if row.step is Step.BASE):
        if base.when(m):
            _apply(base, m)
            break
    for row in rows:
        if row.step is Step.MORE and row.when(m):
            _apply(row, m)
    return m.limit


def _apply(row: Explanation, m: Moment) -> None:
    """Changes `m.limit`."""
    limit = m.limit
    before = (limit.seconds, limit.why, limit.confidence, len(limit.missing))
    if row.missing is not None:
        limit.missing = [*limit.missing, *row.missing(m)]
    if row.limit:
        amount, so_far = row.seconds(m), limit.seconds
        reason = row.reason.format(missing=" and ".join(limit.missing))
        if row.sets is Sets.IS:
            limit.seconds, limit.why, limit.set_by = amount, reason, row.name
        elif amount is None or so_far is None:
            pass  # it is never HUNG anyway
        elif row.sets is Sets.TIMES:
            limit.seconds, limit.why, limit.set_by = so_far * amount, f"{limit.why}, {reason}", row.name
        elif amount > so_far or row.step is Step.NAMED:
            limit.seconds, limit.why, limit.set_by = max(amount, so_far), reason, row.name
        elif row.if_longer:
            return
    limit.confidence = limit.confidence if row.sure is None else row.sure
    limit.confidence = min(limit.confidence - row.less - row.less_each * len(limit.missing), row.at_most)
    if row.after_log:
        limit.since = max(limit.since, m.signs.last(Strength.LOG))
    if row.step is Step.BASE or before != (limit.seconds, limit.why, limit.confidence, len(limit.missing)):
        limit.rows.append(row.name)


def _finding(row: Pattern, m: Moment, table: Sequence[Explanation]) -> Finding | None:
    """What the row says; None where that is nothing."""
    if row.scene is None:
        m.limit = Limit(None, "", m.since)
    names = [e for name in row.limit for e in table if e.name == name and e.step is Step.NAMED and m.scene in e.scenes]
    if (named := next((e for e in names if e.when(m)), None)) is not None:
        _apply(named, m)
    verdict = row.verdict_at(m)
    if verdict is None:
        return None
    ranks, odd = row.who(m)
    m.finding = Finding(
        row=row.name,
        verdict=verdict,
        kind=row.kind,
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
    return _afterwards(m, m.finding, table)


def _afterwards(m: Moment, finding: Finding, table: Sequence[Explanation]) -> Finding:
    for row in table:
        if row.step is Step.AFTER and m.scene in row.scenes and row.when(m):
            finding = replace(finding, confidence=finding.confidence - row.less)
            finding.rule += row.adds(m) if row.adds else ""
            m.limit.missing += row.missing(m) if row.missing else []
            m.limit.rows.append(row.name)
    return finding
