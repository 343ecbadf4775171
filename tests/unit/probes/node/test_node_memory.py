from hypothesis import given
from hypothesis import strategies as st

from muster.probes.node.memory import Memory, Rate, Share, Streaks


def test_a_streak_counts_looks_in_a_row_and_knows_since_when():
    streaks = Streaks()
    for look in range(1, 4):
        row = streaks.note(("x", 1), True, look * 60.0, 30.0)
        assert (row.looks, row.since) == (look, 60.0)
    assert streaks.note(("x", 1), False, 240.0, 30.0).looks == 0
    assert streaks.note(("x", 1), True, 300.0, 30.0).looks == 1


def test_looks_in_quick_succession_count_once():
    streaks = Streaks()
    looks = [streaks.note(("x",), True, 100.0 + i, 30.0).looks for i in range(61)]
    assert looks[0] == looks[29] == 1
    assert looks[30] == 2 and looks[60] == 3


def test_one_key_does_not_count_for_another_and_what_is_gone_is_forgotten():
    streaks = Streaks()
    streaks.note(("x", 1), True, 0.0, 1.0)
    streaks.note(("x", 2), True, 0.0, 1.0)
    streaks.note(("y", 1), True, 0.0, 1.0)
    streaks.keep("x", {("x", 2)})
    assert streaks.note(("x", 1), True, 10.0, 1.0).looks == 1
    assert streaks.note(("x", 2), True, 10.0, 1.0).looks == 2
    assert streaks.note(("y", 1), True, 10.0, 1.0).looks == 2


def test_a_share_forgets_what_is_older_than_its_window():
    share = Share()
    for minute in range(10):
        looks, so = share.note(minute < 6, minute * 60.0, 600.0, 30.0)
    assert (looks, so) == (10, 6)
    for minute in range(10, 16):
        looks, so = share.note(False, minute * 60.0, 600.0, 30.0)
    assert (looks, so) == (10, 0)


def test_a_rate_needs_two_looks_and_begins_anew_after_a_reset_of_its_counter():
    rate = Rate()
    assert rate.note(100, 0.0, 300.0) is None
    assert rate.note(130, 60.0, 300.0) == 30.0
    assert rate.note(5, 120.0, 300.0) is None
    assert rate.note(5, 180.0, 300.0) == 0.0


def test_a_rate_looks_at_its_window_alone():
    rate = Rate()
    rate.note(0, 0.0, 300.0)
    rate.note(1000, 60.0, 300.0)
    for minute in range(2, 12):
        per_minute = rate.note(1000, minute * 60.0, 300.0)
    assert per_minute == 0.0


@given(st.lists(st.tuples(st.floats(0, 1e6), st.booleans()), max_size=50))
def test_a_share_is_never_more_than_all(looks):
    share = Share()
    for at, so in sorted(looks, key=lambda look: look[0]):
        total, number = share.note(so, at, 600.0, 30.0)
        assert 0 <= number <= total <= len(share.looks)


def test_memory_keeps_shares_and_rates_by_key():
    memory = Memory()
    assert memory.share(("x", 1)) is memory.share(("x", 1)) is not memory.share(("x", 2))
    assert memory.rate(("x", 1)) is memory.rate(("x", 1)) is not memory.rate(("x", 2))
