from muster.probes.kernel.backoff import Backoff


def test_pauses_grow_up_to_the_longest_and_begin_anew_after_a_success():
    backoff = Backoff(0.5, 3.0)
    assert [backoff.next() for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    backoff.reset()
    assert backoff.pause == backoff.next() == 0.5


def test_the_pause_after_so_many_failures_is_the_one_that_next_gives():
    backoff = Backoff(1.0, 100.0, 1.5)
    assert [backoff.after(n) for n in range(1, 20)] == [backoff.next() for _ in range(19)]


def test_very_many_failures_give_the_longest_pause():
    assert Backoff(0.01, 60.0).after(10**9) == 60.0


def test_a_first_pause_above_the_longest_is_cut():
    assert Backoff(5.0, 1.0).next() == 1.0
