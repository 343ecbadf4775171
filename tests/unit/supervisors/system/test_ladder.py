"""The signal ladder: when SIGTERM, SIGKILL and giving up are due."""

import itertools

from muster.supervisors.system.ladder import KILL_AGAIN_S, KILL_WAIT_S, Climb, Ladder, Rung
from muster.supervisors.system.loop import Loop


def test_sigterm_then_the_grace_then_sigkill_until_the_wait_is_over():
    ladder = Ladder(100.0, 5.0)
    assert ladder.due(100.0) is Rung.TERMINATE
    ladder.done(Rung.TERMINATE, 100.0)
    assert (ladder.due(104.9), ladder.next_at()) == (Rung.NOTHING, 105.0)
    now, kills = ladder.next_at(), 0
    while ladder.due(now) is Rung.KILL:
        ladder.done(Rung.KILL, now)
        kills += 1
        now = ladder.next_at()
    assert ladder.due(now) is Rung.GIVE_UP
    assert 105 + KILL_WAIT_S <= now <= 105 + KILL_WAIT_S + KILL_AGAIN_S
    assert kills > 1000


def test_what_failed_stays_due():
    ladder = Ladder(0.0, 5.0)
    assert [ladder.due(t) for t in (0.0, 1.0, 2.0)] == [Rung.TERMINATE] * 3
    assert [ladder.due(t) for t in (5.0, 6.0)] == [Rung.KILL] * 2


def test_without_a_grace_and_after_a_predecessors_sigterm_there_is_no_sigterm():
    assert Ladder(0.0, 0.0).due(0.0) is Rung.KILL
    assert Ladder(0.0, -3.0).due(0.0) is Rung.KILL
    assert Ladder(0.0, 5.0, terminated=True).due(0.0) is Rung.NOTHING


def test_a_grace_can_only_be_shortened():
    ladder = Ladder(0.0, 10.0)
    assert not ladder.shorten(0.0, 10.0)
    assert ladder.shorten(1.0, 2.0)
    assert ladder.kill_at == 3.0
    assert not ladder.shorten(2.0, 5.0)


def test_who_was_stopped_past_the_end_still_sends_sigkill_before_it_gives_up():
    ladder = Ladder(0.0, 5.0)
    assert ladder.due(5000.0) is Rung.KILL
    assert ladder.due(5000.0 + KILL_WAIT_S) is Rung.GIVE_UP


def test_the_pause_between_two_sigkills_grows_to_what_is_allowed():
    ladder = Ladder(0.0, 0.0, pause_most=1.0)
    times = [0.0]
    for _ in range(10):
        ladder.due(times[-1])
        ladder.done(Rung.KILL, times[-1])
        times.append(ladder.next_at())
    pauses = [round(b - a, 6) for a, b in itertools.pairwise(times)]
    assert pauses[:3] == [KILL_AGAIN_S, 2 * KILL_AGAIN_S, 4 * KILL_AGAIN_S]
    assert max(pauses) == 1.0


def test_a_climb_goes_on_after_an_error_of_the_work():
    said: list[str] = []
    loop = Loop(lambda error: said.append(str(error)))

    def terminate() -> None:
        said.append("term")
        if said.count("term") == 1:
            raise OSError("no descriptor to be had")

    def kill() -> None:
        said.append("kill")
        climb.stop()
        loop.stop()

    climb = Climb(loop, terminate, kill, lambda: None)
    climb.begin(2.0)
    loop.run()
    assert said == ["term", "no descriptor to be had", "term", "kill"]
    assert climb.kill_at == 0


def test_what_does_not_go_is_killed_ahead_of_everything_for_a_while():
    ladder = Ladder(0.0, 1.0)
    urgent = []
    for now in (1.0, 1.1, 1.2, 5.9, 6.1):
        assert ladder.due(now) is Rung.KILL
        urgent.append(ladder.is_urgent(now))
        ladder.done(Rung.KILL, now)
    assert urgent == [False, False, True, True, False]
