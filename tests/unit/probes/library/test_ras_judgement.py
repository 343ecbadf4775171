"""Two answers of RAS, and who did not come."""

from muster.probes.library import LibraryFinding, LibraryVerdict, judge_answers
from muster.probes.library.nccl_ras import RasAnswer, parse_answer
from tests.unit.probes.library.ras_server import ELSEWHERE, HERE, communicator, missing, rank, report

#: Ranks 4 to 7 of a job are here; each calls itself 10 more than its rank.
JOB = {14: 4, 15: 5, 16: 6, 17: 7}


def answer(*communicators: object, at: float = 100.0) -> RasAnswer:
    return parse_answer(report(*communicators), at, {HERE})


def standing(*communicators: object) -> LibraryFinding:
    """The finding where both answers are the same."""
    return judge_answers(answer(*communicators), answer(*communicators, at=130.0), JOB)


def test_the_rank_that_lags_is_named_by_its_number_in_the_job() -> None:
    found = standing(communicator([rank(0, 14, 7), rank(1, 15, 7), rank(2, 16, 6), rank(3, 17, 7)]))
    assert (found.verdict, found.culprits) == (LibraryVerdict.ABSENT, (6,))
    (one,) = found.stuck
    assert (one.call, one.number, one.inside, one.absent) == ("AllReduce", 7, (4, 5, 7), (6,))
    assert "ranks 4-5,7 wait in AllReduce (number 7 of group 0x7cbcd4b24fb45306 of 4)" in found.reason


def test_counts_that_move() -> None:
    before = communicator([rank(0, 14, 7), rank(1, 15, 6)])
    found = judge_answers(answer(before), answer(communicator([rank(0, 14, 7), rank(1, 15, 7)]), at=130.0), JOB)
    assert (found.verdict, found.moved) == (LibraryVerdict.MOVES, (5,))
    away = [rank(0, 14, 7), rank(1, 15, 6), rank(2, 15, 3, host=ELSEWHERE)]
    moved = [*away[:2], rank(2, 15, 4, host=ELSEWHERE)]
    found = judge_answers(answer(communicator(away)), answer(communicator(moved), at=130.0), JOB)
    assert (found.verdict, found.moved) == (LibraryVerdict.MOVES, ())


def test_a_communicator_that_comes_or_goes() -> None:
    one, other = communicator([rank(0, 14, 7), rank(1, 15, 6)]), communicator([rank(0, 14, 0)], name="0x2")
    for first, second in ((answer(one), answer(one, other, at=130.0)), (answer(one, other), answer(one, at=130.0))):
        assert judge_answers(first, second, JOB).verdict is LibraryVerdict.MOVES


def test_answers_too_close_to_each_other() -> None:
    one = communicator([rank(0, 14, 7), rank(1, 15, 6)])
    assert judge_answers(answer(one), answer(one, at=101.0), JOB).verdict is LibraryVerdict.UNDECIDED


def test_equal_counts_name_nobody() -> None:
    found = standing(communicator([rank(0, 14, 7), rank(1, 15, 7)]))
    assert (found.verdict, found.culprits, found.stands_still) == (LibraryVerdict.EVEN, (), False)
    assert standing(communicator([rank(0, 14), rank(1, 15)])).verdict is LibraryVerdict.IDLE


def test_a_rank_of_another_node() -> None:
    found = standing(communicator([rank(0, 14, 7), rank(1, 15, 7), rank(2, 14, 6, host=ELSEWHERE)]))
    assert (found.verdict, found.culprits) == (LibraryVerdict.ABSENT, ())
    assert found.stuck[0].elsewhere == (f"rank 2 of the communicator (pid 14 on {ELSEWHERE})",)
    assert "did not come" in found.reason


def test_a_rank_that_waits_in_another_communicator_is_no_culprit() -> None:
    everyone = communicator([rank(0, 14, 7), rank(1, 15, 7), rank(2, 16, 6), rank(3, 17, 6)])
    pair = communicator([rank(0, 16, {"AllGather": 5}), rank(1, 17, {"AllGather": 4})], name="0x2")
    found = standing(everyone, pair)
    assert (found.verdict, found.culprits) == (LibraryVerdict.ABSENT, (7,))


def test_a_rank_here_waits_for_one_elsewhere() -> None:
    everyone = communicator([rank(0, 14, 7), rank(1, 15, 6)])
    pair = communicator([rank(0, 15, 5), rank(1, 99, 4, host=ELSEWHERE)], name="0x2")
    found = standing(everyone, pair)
    assert (found.verdict, found.culprits, found.stuck[0].group) == (LibraryVerdict.ABSENT, (), "0x2 of 2")
    assert f"pid 99 on {ELSEWHERE}" in found.reason


def test_different_collectives() -> None:
    first, second = {"AllReduce": 7, "Broadcast": 2}, {"AllReduce": 6, "Broadcast": 3}
    found = standing(communicator([rank(0, 14, first), rank(1, 15, second)]))
    assert found.verdict is LibraryVerdict.MISMATCH
    assert "rank 4 called AllReduce; rank 5 called Broadcast" in found.reason


def test_a_rank_that_does_not_report() -> None:
    found = standing(communicator([rank(0, 14, 7), rank(1, 15, 7)], [missing(2, 16)]))
    assert found.verdict is LibraryVerdict.UNDECIDED and "no report of rank 6" in found.reason
    found = standing(communicator([rank(0, 14, 7), rank(1, 15, 6)], [missing(2, 16)]))
    assert (found.verdict, found.culprits, found.stuck[0].unknown) == (LibraryVerdict.ABSENT, (5,), (6,))


def test_errors_and_communicators_that_do_not_run() -> None:
    lag = [rank(0, 14, 7), rank(1, 15, 6)]
    for status in ({"async_error": 3}, {"abort_flag": True}):
        found = standing(communicator([lag[0], rank(1, 15, 6, **status)]))
        assert found.verdict is LibraryVerdict.UNDECIDED and "rank 5" in found.reason
    for status in ({"init_state": 7}, {"finalize_called": True}, {"destroy_flag": True}):
        assert standing(communicator([lag[0], rank(1, 15, 6, **status)])).verdict is LibraryVerdict.UNDECIDED
    assert standing(communicator([lag[0], rank(1, 15, 6, async_error=7)])).culprits == (5,)


def test_a_process_with_several_ranks() -> None:
    found = standing(communicator([rank(0, 14, 7), rank(1, 14, 6, dev=1), rank(2, 15, 7)]))
    assert (found.verdict, found.culprits, found.stuck[0].inside) == (LibraryVerdict.ABSENT, (4,), (5,))
