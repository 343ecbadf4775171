"""Scenarios of the hang corpus as real processes on fake cards; `python -m tests.corpus --acted` has all of them."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.corpus.acted import ACTS, Act, Played, play_all
from tests.fakes import NoCompiler

#: The healthy ones that are mistaken first, and a hang of each kind, cause and disguise.
NAMES = ("H3", "H5", "H7", "H8", "H9", "H15", "H16", "U2", "U5", "U7", "U8", "U9", "U10", "U11", "U13", "U14", "U16")
AT_ONCE = 17


def wanted(name: str) -> Act:
    """Half an hour less of U14."""
    return replace(ACTS[name], hang={"busy_s": 20.0}) if name == "U14" else ACTS[name]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_what_processes_do_is_reported_as_it_must_be(tmp_path: Path) -> None:
    try:
        played = {one.act.name: one for one in play_all([wanted(name) for name in NAMES], tmp_path, AT_ONCE, late=True)}
    except NoCompiler as error:
        pytest.skip(str(error))
    assert {name: one.outcome.wrong for name, one in played.items() if one.outcome.wrong} == {}
    for one in played.values():
        assert was_told(one) == {"SUSPECT", "HUNG"} & set(one.outcome.verdicts), one
    # What the same processes were taken for by the plain rule.
    assert played["H8"].plain.hung and not played["U2"].plain.hung


def was_told(played: Played) -> set[str]:
    """What the events say."""
    kinds = {"job.suspected_hang": "SUSPECT", "job.hung": "HUNG"}
    return {kinds[event] for event in played.events if event in kinds}
