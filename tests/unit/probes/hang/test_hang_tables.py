"""The tables of the hang rule: each row decides in its scenario of the corpus; without it the verdict is another."""

import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from muster.probes.hang import Detector, HangVerdict, Record
from muster.probes.hang.evaluator import TABLES, HangTables
from muster.probes.hang.facts.moment import JobMoment
from muster.probes.hang.facts.signs import EvidenceRow
from muster.probes.hang.hang_records import read
from muster.probes.hang.tables.explanation import ExplanationRow, RowStep
from muster.probes.hang.tables.pattern import PatternRow
from tests.corpus.__main__ import ALL
from tests.corpus.measure import changes_of, dumps_between, trace
from tests.corpus.physics import Play

#: Of a scenario, the first in which the row counts is taken: traces differ in ranks, vendor and lengths.
SEEDS = range(1, 5)
Row = TypeVar("Row")
Words = tuple[Any, ...]


@functools.lru_cache(maxsize=8)
def played(scenario: str, seed: int) -> tuple[Play, list[Record]]:
    told, lines = trace(ALL[scenario], seed)
    return told.play, [read(line) for line in lines]


def told(tables: HangTables, scenario: str, seed: int) -> Iterator[Words]:
    """What is said of it, and with which limit, one change after the other."""
    names = ("rule", "limit", "limit_s", "missing")
    for c in changes_of(Detector(tables=tables), *played(scenario, seed)):
        yield (c.t, c.verdict, c.kind, c.ranks, c.confidence, *(c.evidence[name] for name in names))


@functools.lru_cache(maxsize=64)
def usual(scenario: str, seed: int) -> tuple[list[Words], set[str]]:
    """What is said with all rows, and the patterns to which the evaluator comes, and which hold."""
    held: set[str] = set()

    def watched(row: PatternRow) -> PatternRow:
        def when(m: JobMoment) -> bool:
            holds = row.when(m)
            if holds:
                held.add(row.name)
            return holds

        return replace(row, when=when)

    return list(told(replace(TABLES, patterns=tuple(map(watched, TABLES.patterns))), scenario, seed)), held


def without(rows: tuple[Row, ...], row: Row) -> tuple[Row, ...]:
    return tuple(other for other in rows if other is not row)


@pytest.mark.parametrize("row", TABLES.patterns, ids=lambda row: row.name)
def test_each_pattern_decides_in_its_scenario_and_without_it_the_verdict_is_another(row: PatternRow) -> None:
    tables = replace(TABLES, patterns=without(TABLES.patterns, row))
    assert any(
        row.name in usual(row.scenario, seed)[1] and differs(tables, row.scenario, seed, verdict) for seed in SEEDS
    )


def verdict(said: Words) -> Words:
    """Time, verdict, kind, ranks, rule."""
    return (*said[:4], said[5])


def whole(said: Words) -> Words:
    return said


def differs(tables: HangTables, scenario: str, seed: int, part: Callable[[Words], Words] = whole) -> bool:
    """Whether something else is said with these tables; what comes behind the first difference is not looked at."""
    pairs = itertools.zip_longest(told(tables, scenario, seed), usual(scenario, seed)[0], fillvalue=("nothing",) * 9)
    return any(part(one) != part(other) for one, other in pairs)


@pytest.mark.parametrize("row", TABLES.explanations, ids=lambda row: f"{row.name}-{'-'.join(row.scenes)}"[:40])
def test_without_an_explanation_the_limit_or_the_confidence_is_another(row: ExplanationRow) -> None:
    tables = replace(TABLES, explanations=without(TABLES.explanations, row))
    assert any(differs(tables, row.scenario, seed) for seed in SEEDS)


@pytest.mark.parametrize("row", TABLES.evidence, ids=lambda row: row.source)
def test_without_a_sign_of_life_something_else_is_reported(row: EvidenceRow) -> None:
    tables = replace(TABLES, evidence=without(TABLES.evidence, row))
    assert any(differs(tables, row.scenario, seed) for seed in SEEDS)


def test_the_evidence_names_the_rows() -> None:
    changes = list(changes_of(Detector(), *played("U13", 1)))
    assert [change.evidence["row"] for change in changes] == ["cards work", "suspect: deadlock", "weak evidence"]
    assert changes[-1].evidence["limit_rows"] == ["silence", "weak evidence"]


def test_a_loop_stays_hung_though_its_thread_was_held_for_a_moment() -> None:
    """As the daemon does that reads its C frames: the kernel counts a wait."""
    detector, verdicts = Detector(), []
    for record in dumps_between(detector, *played("S31", 1)):
        waits = detector.verdict is HangVerdict.HUNG
        held = tuple(replace(stack, switches=(stack.switches or 0) + waits) for stack in record.stacks)
        verdicts += [change.verdict for change in detector.feed(replace(record, stacks=held))]
    assert verdicts[-1] is HangVerdict.HUNG and verdicts.count(HangVerdict.HUNG) == 1


def unique(names: list[Any]) -> bool:
    return len(names) == len(set(names))


def test_names_are_unique_and_what_a_row_names_exists() -> None:
    assert unique([row.source for row in TABLES.evidence])
    assert unique([row.name for row in TABLES.patterns])
    assert unique([(row.name, row.step, scene) for row in TABLES.explanations for scene in row.scenes])
    named = {(row.name, scene) for row in TABLES.explanations if row.step is RowStep.NAMED for scene in row.scenes}
    for row in TABLES.patterns:
        assert row.scene is None or all((name, row.scene) in named for name in row.limit), row.name


@pytest.mark.parametrize("rows", [TABLES.evidence, TABLES.explanations, TABLES.patterns], ids=["1", "2", "3"])
def test_each_row_has_words_and_a_scenario(rows: tuple[EvidenceRow | ExplanationRow | PatternRow, ...]) -> None:
    for row in rows:
        assert row.words and row.scenario in ALL
