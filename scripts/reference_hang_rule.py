"""docs/reference/hang-rule.md, from the tables in probes/hang/tables/."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import fields

from muster.probes.hang import HangSettings
from muster.probes.hang.evaluator import TABLES
from muster.probes.hang.facts.moment import SCENE_WORDS, Scene
from muster.probes.hang.facts.signs import EvidenceRow
from muster.probes.hang.tables.explanation import ExplanationRow, RowSets, RowStep
from muster.probes.hang.tables.pattern import PatternRow
from tests.corpus.__main__ import ALL
from tests.corpus.scenarios import Scenario

_HEAD = """# The tables of the hang rule

How muster decides whether a job hangs, row by row. [Is a job hung?](../concepts/hang.md) explains the rule, and
[Settings of musterd](settings.md) has its numbers. `make docs` writes this page from `probes/hang/tables/`.

For each telemetry record muster reads the signs of life (table 1), adds up how long the silence may last (table 2), and
takes the first row of table 3 that holds. The evidence of a verdict names that row as `row`, and the rows of table 2
that count as `limit_rows`.

Each row names a scenario of the corpus ([below](#scenarios)) in which it decides. The tests remove every row, one after
the other: without it the verdict of its scenario is another.
"""
_EVIDENCE = """
## 1. Evidence: signs of life

| sign | strength | what it is | ends a silence | scenario |
|---|---|---|---|---|
"""
_SCENES = """
## What the cards show

The rows of tables 2 and 3 are for one of these. The first that holds counts.

| cards | condition |
|---|---|
"""
_EXPLANATIONS = """
## 2. Explanations: what may take long

The limit is the silence after which a job is HUNG. The first row that holds sets it (*base*). Then each row that holds
may make it longer (*more*).

| row | cards | step | condition | limit | confidence | missing | scenario |
|---|---|---|---|---|---|---|---|
"""
_NAMED = """
These rows count where table 3 names them (*named*), or after table 3 has decided (*after*):

| row | cards | step | condition | limit | confidence | missing | scenario |
|---|---|---|---|---|---|---|---|
"""
_PATTERNS = """
## 3. Patterns: the verdicts

The first row that holds decides. *SUSPECT, HUNG*: HUNG from the limit on, SUSPECT before. A dash: muster says nothing,
and the verdict before stands. The confidence is that of table 2 if the row has none.

- *Silent*: since the last sign that ends a silence, or since the last card began to do what it does now.
- *Asleep*: silent, and since then no sign of life at all. *Only weak evidence*: silent, and since then only weak signs
  and lines of log. If no card reports anything, weak signs and traces end both. Only weak evidence for `weak_s` and for
  the limit, which ended within its first `suspect_s`, counts as *asleep for the limit*.
- *A process cannot leave the kernel* (state D) or *is stopped* (state T) after four fifths of `window_s`. A stopped
  child counts only if its rank does not compute and the job did not work on for `hung_s` without it.
- With idle cards, HUNG needs processes in the records, and a card that was active in this attempt or the end of
  `startup_s` (`startup_busy_s` if a rank computes).

| row | cards | condition | verdict | kind | names | limit | confidence | scenario |
|---|---|---|---|---|---|---|---|---|
"""
_SCENARIOS = """
## Scenarios

`python -m tests.corpus NAME` plays them. H and V are healthy jobs, U and W are not; P has those of single rows.

| name | what happens | HUNG must be said |
|---|---|---|
"""
_SETTINGS = re.compile(rf"(?<![`\w])({'|'.join(field.name for field in fields(HangSettings))})(?![`\w])")


def hang_rule() -> str:
    """The text of the page."""
    explanations = TABLES.explanations
    first = [row for row in explanations if row.step in (RowStep.BASE, RowStep.MORE)]
    named = [row for row in explanations if row.step not in (RowStep.BASE, RowStep.MORE)]
    return "".join(
        [
            _HEAD,
            _EVIDENCE,
            *map(_evidence, TABLES.evidence),
            _SCENES,
            *(_row([scene.value, words]) for scene, words in SCENE_WORDS.items()),
            _EXPLANATIONS,
            *map(_explanation, first),
            _NAMED,
            *map(_explanation, named),
            _PATTERNS,
            *map(_pattern, TABLES.patterns),
            _SCENARIOS,
            *map(_scenario, _used()),
        ]
    )


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(_SETTINGS.sub(r"`\1`", cell) for cell in cells) + " |\n"


def _evidence(row: EvidenceRow) -> str:
    return _row([row.source, row.strength, row.words, row.ends_words, row.scenario])


def _explanation(row: ExplanationRow) -> str:
    cards = "any" if set(row.scenes) == set(Scene) else ", ".join(row.scenes)
    missing = ", ".join(row.missing)
    return _row([row.name, cards, row.step, row.words, _limit(row), _confidence(row), missing, row.scenario])


def _limit(row: ExplanationRow) -> str:
    words = row.limit
    if words and row.sets is RowSets.AT_LEAST:
        words = f"at least {words}" + (" (the row counts only if that is longer)" if row.if_longer else "")
    elif words and row.sets is RowSets.TIMES:
        words = f"times {words}"
    return words + (", from the last line of a log on" if row.after_log else "")


def _confidence(row: ExplanationRow) -> str:
    words = [] if row.sure is None else [f"{row.sure:g}"]
    words += [f"{row.less:g} less"] if row.less else []
    words += [f"{row.less_each:g} less for each missing reading"] if row.less_each else []
    words += [f"at most {row.at_most:g}"] if row.at_most < 1 else []
    return ", ".join(words)


def _pattern(row: PatternRow) -> str:
    verdict = "-" if row.verdict is None else f"SUSPECT, {row.verdict}" if row.ladder else str(row.verdict)
    sure = "" if row.sure is None else f"{row.sure:g}"
    sure = f"{row.less:g} less" if row.less else sure
    limit = ", else ".join(row.limit)
    who = "" if row.verdict is None else (row.who.__doc__ or "").rstrip(".")
    who = who[:1].lower() + who[1:]
    return _row(
        [
            row.name,
            row.scene or "any",
            row.words,
            verdict,
            ("by the stacks" if callable(row.kind) else row.kind) or "",
            who,
            limit,
            sure,
            row.scenario,
        ]
    )


def _used() -> Iterable[Scenario]:
    names = {row.scenario for row in TABLES.evidence} | {row.scenario for row in TABLES.explanations}
    names |= {row.scenario for row in TABLES.patterns}
    return (scenario for name, scenario in ALL.items() if name in names)


def _scenario(scenario: Scenario) -> str:
    last = scenario.verdicts[-1] if scenario.verdicts else ""
    if scenario.within_min is None:
        must = "never"
    else:
        other = "" if last == "HUNG" else f" ({scenario.verdicts[0]})"
        must = f"within {scenario.within_min:g} min{other}"
    return _row([scenario.name, scenario.what, must])
