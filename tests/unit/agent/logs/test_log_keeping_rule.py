"""Which log files go, and why."""

from hypothesis import given
from hypothesis import strategies as st

from muster.agent.logs.log_keeping_rule import YOUNG_S, Caps, Disk, Kept, doomed

DAY = 86400.0
NOW = 1_000 * DAY
ROOMY = Disk(1000, 900)


def kept(name: str, days: float, size: int = 100, **fields: bool) -> Kept:
    return Kept(name, NOW - days * DAY, size, **fields)


def names(found: list[tuple[Kept, str]]) -> list[str]:
    return [each.name for each, _ in found]


def test_what_is_old_goes_oldest_first() -> None:
    jobs = [kept("b", 31), kept("young", 29), kept("a", 40)]
    found = doomed(jobs, NOW, ROOMY, Caps(30 * DAY))
    assert names(found) == ["a", "b"]
    assert found[0][1] == "it ended over 30 days ago (keep_days in [logs])"


def test_for_ever() -> None:
    assert doomed([kept("a", 10_000)], NOW, ROOMY, Caps(0.0)) == []


def test_as_much_as_makes_room_goes_and_no_more() -> None:
    jobs = [kept("c", 1), kept("a", 3), kept("b", 2)]
    found = doomed(jobs, NOW, Disk(10_000, 350), Caps(30 * DAY, min_free_percent=5.0))
    assert names(found) == ["a", "b"]
    assert found[0][1] == "less than 5 % of the disk was free (min_free_percent in [logs])"


def test_all_logs_within_a_limit() -> None:
    jobs = [kept("c", 1), kept("a", 3), kept("b", 2), kept("live", 0, 1000, running=True)]
    found = doomed(jobs, NOW, ROOMY, Caps(0.0, max_node_bytes=1200))
    assert [(each.name, why) for each, why in found] == [
        ("a", "all logs had over 1200 bytes (max_node_bytes in [logs])")
    ]


def test_what_has_just_ended_is_not_taken_from_under_its_readers() -> None:
    jobs = [Kept("new", NOW - YOUNG_S + 1, 100), Kept("old", NOW - YOUNG_S - 1, 100)]
    assert names(doomed(jobs, NOW, Disk(1000, 0), Caps(0.0, min_free_percent=50.0))) == ["old"]
    assert names(doomed(jobs, NOW, Disk(1000, 0), Caps(1.0, min_free_percent=50.0))) == ["old", "new"]


jobs = st.lists(
    st.builds(
        Kept,
        st.text("abc", min_size=1, max_size=3),
        st.floats(NOW - 60 * DAY, NOW),
        st.integers(0, 500),
        st.booleans(),
        st.booleans(),
        st.booleans(),
    ),
    max_size=12,
    unique_by=lambda each: each.name,
)
caps = st.builds(
    Caps, st.sampled_from([0.0, DAY, 30 * DAY]), st.floats(0, 99), st.sampled_from([0, 700]), st.booleans()
)


@given(jobs, caps, st.integers(0, 1000))
def test_the_rule(there: list[Kept], limits: Caps, free: int) -> None:
    disk = Disk(1000, free)
    found = doomed(there, NOW, disk, limits)
    gone = [each for each, _ in found]
    left = [each for each in there if each not in gone]
    assert not any(each.running for each in gone)
    assert not limits.upload or all(each.uploaded or each.orphan for each in gone)
    assert [each.ended_at for each in gone] == sorted(each.ended_at for each in gone)

    def old(each: Kept) -> bool:
        return bool(limits.keep_s) and NOW - each.ended_at > limits.keep_s

    def short_of_room(removed: list[Kept]) -> bool:
        freed = sum(each.bytes for each in removed)
        used = sum(each.bytes for each in there) - freed
        over = bool(limits.max_node_bytes) and used > limits.max_node_bytes
        return over or free + freed < disk.size * limits.min_free_percent / 100

    may = [each for each in left if not each.running and (each.uploaded or each.orphan or not limits.upload)]
    assert not any(old(each) for each in may)
    # Whatever could still make room has gone, or there is room enough.
    assert not short_of_room(gone) or not any(
        each.bytes and not each.orphan and NOW - each.ended_at >= YOUNG_S for each in may
    )
    # None went for want of room while there was enough.
    for number, each in enumerate(gone):
        assert old(each) or (short_of_room(gone[:number]) and not each.orphan)
