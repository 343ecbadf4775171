"""Records are read with distrust; settings are refused with the name, the value and what is allowed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.probes.hang import BadRecord, HangSettings, HangVerdict, PlainDetector, parse
from muster.probes.hang.hang_records import read
from muster.probes.hang.tracks.level import Level


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "not JSON"),
        ("[]", "is a JSON object"),
        ("{}", "t: None: must be a number"),
        ('{"t": true, "job": "j"}', "t: True"),
        ('{"t": NaN, "job": "j"}', "t: nan"),
        ('{"t": 1}', "job: None"),
        ('{"t": 1, "job": ""}', "job: ''"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_what_is_no_record_says_what_it_lacks(line: str, says: str) -> None:
    with pytest.raises(BadRecord, match=says.replace("[", r"\[")):
        parse(line)


def test_a_mark_that_records_were_left_out_is_no_record() -> None:
    assert parse('{"t": 1, "lost": 3}') is None


def test_a_reading_that_is_no_number_is_a_missing_one() -> None:
    cards = [{"index": 0, "util": "N/A", "power_w": -3, "mem_util": float("nan"), "fabric_bytes": True, "rank": 1.0}]
    card = (read({"t": 1, "job": "j", "cards": cards}).cards or ())[0]
    assert (card.util, card.power_w, card.mem_util, card.fabric_bytes, card.rank) == (None, None, None, None, 1)


def test_what_is_not_told_is_not_none_at_all() -> None:
    assert read({"t": 1, "job": "j"}).procs is None
    assert read({"t": 1, "job": "j", "procs": []}).procs == ()


def test_a_process_of_an_unknown_role_counts() -> None:
    procs = read({"t": 1, "job": "j", "procs": [{"pid": 1, "role": "?"}, {"role": "rank"}, 3]}).procs or ()
    assert [proc.role for proc in procs] == ["worker"]


@given(st.binary(max_size=200))
def test_any_line_is_a_record_or_a_bad_one(line: bytes) -> None:
    try:
        parse(line)
    except BadRecord as error:
        assert str(error)


# --- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"hung_x": 1}, "unknown key 'hung_x': did you mean 'hung_s'"),
        ({"hung_s": "soon"}, "hung_s: 'soon': must be a number"),
        ({"hung_s": "nan"}, "hung_s: nan"),
        ({"hung_s": 100}, "hung_s: 100: must be at least suspect_s"),
        ({"hung_s": -1}, "hung_s: -1: must be"),
        ({"min_samples": "1.5"}, "whole number"),
        ({"min_samples": 1}, "2 or more"),
        ({"power_apart_factor": 0.9}, "power_apart_factor: 0.9: must be a number, 1 or more"),
        ({"active_s": 0}, "active_s: 0: must be a number, 0.1 to"),
        ({"npu_suspect_ratio": 2}, "npu_suspect_ratio: 2: must be a number, 0 to 1"),
        ({"recent_periods": 0}, "recent_periods: 0: must be a number, 1 or more"),
        ({"rule": "other"}, "full or plain"),
        ({"io_scope": "all"}, "ranks or tree"),
        ({"low_percent": 99}, "more than low_percent|high_percent"),
        ({"window_s": 400}, "suspect_s: 300: must be at least window_s"),
        ({"hung_s": True}, "must be a number"),
    ],
)
def test_a_setting_that_cannot_be_meant_is_refused(values: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        HangSettings().with_written({name: str(value) for name, value in values.items()})


def test_settings_are_read_from_text() -> None:
    changed = HangSettings().with_written({"hung_s": "900", "min_samples": "7", "rule": "plain"})
    assert (changed.hung_s, changed.min_samples, changed.rule) == (900.0, 7, "plain")
    assert changed.suspect_s == HangSettings().suspect_s


# --- levels -----------------------------------------------------------------------------------------------------------


@given(st.lists(st.floats(0.001, 1e12), min_size=1, max_size=60))
def test_a_level_lies_within_what_was_read(values: list[float]) -> None:
    level = Level()
    for value in values:
        level.add(value)
    for found in (level.median(), level.typical()):
        assert min(values) * 0.97 <= found <= max(values) * 1.03


def test_the_typical_level_is_that_of_the_work() -> None:
    level = Level()
    for value in [100.0] * 80 + [600.0] * 20:
        level.add(value)
    assert level.typical() == pytest.approx(600, rel=0.03)
    assert level.median() == pytest.approx(100, rel=0.03)


def test_a_level_stays_small_and_follows() -> None:
    level = Level()
    for i in range(30_000):
        level.add(600.0 if i < 15_000 else 60.0)
    assert len(level.bins) <= 2
    assert level.typical() == pytest.approx(600, rel=0.03) or level.typical() == pytest.approx(60, rel=0.03)
    assert level.weight < 7000


# --- the plain rule ---------------------------------------------------------------------------------------------------


def _plain(utils: list[float], io: list[int]) -> list[str]:
    detector = PlainDetector(HangSettings(rule="plain", plain_s=600))
    found = []
    for i, (util, count) in enumerate(zip(utils, io, strict=True)):
        procs = [{"pid": 1, "start": 1, "rank": 0, "role": "helper", "rchar": count}]
        line = {"t": 15.0 * i, "job": "j", "procs": procs, "cards": [{"index": 0, "rank": 0, "util": util}]}
        found += [str(change.verdict) for change in detector.feed(read(line))]
        detector = PlainDetector.restored(detector.state(), detector.settings)
    return found


def test_the_plain_rule_needs_silence_and_a_flat_utilization() -> None:
    assert _plain([50.0] * 60, [7] * 60) == [HangVerdict.ALIVE, HangVerdict.HUNG]
    assert _plain([50.0] * 60, list(range(60))) == [HangVerdict.ALIVE]
    assert _plain([50.0, 90.0] * 30, [7] * 60) == [HangVerdict.ALIVE]
    assert _plain([50.0] * 60, [7] * 59 + [8]) == [HangVerdict.ALIVE, HangVerdict.HUNG, HangVerdict.ALIVE]
