import itertools
import re
import signal

import pytest

from muster.probes.kernel import process
from muster.probes.kernel.endings import describe
from muster.supervisors.model.lifecycle import Asked, Job, Rank, Stop, Verdict
from muster.supervisors.model.rank_ends import failed, failures, first_failure, outcome, shell_code, stop_may_come
from muster.supervisors.model.states import SERVICE, Outcome, State, StopCause
from muster.supervisors.model.verdict import not_prepared, reach, recommend, so_far

EXIT_0, EXIT_7, SEGV, SEGV_CORE, TERM, KILL = 0, 7 << 8, 11, 11 | 0x80, 15, 9


def job_with(stop: Stop | None, *statuses: int | None, terminated: bool = True) -> Job:
    """A job whose ranks ended so, during `stop`."""
    job = Job(state=State.RUNNING if stop is None else State.STOPPING, stop=stop)
    job.terminated = terminated and stop is not None
    for i, status in enumerate(statuses):
        job.ranks.append(Rank(i, i, i, pid=100 + i, outcome=outcome(job, i, status, unborn=False), status=status))
        job.ends.append(i)
    return job


STOP = {cause: Stop(cause, by="me", reason="so") for cause in StopCause}


# --- what a rank's end is called --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cause", "terminated", "status", "expected"),
    [
        (None, False, EXIT_0, Outcome.EXITED),
        (None, False, EXIT_7, Outcome.EXITED),
        (None, False, SEGV, Outcome.SIGNALLED),
        (None, False, SEGV_CORE, Outcome.SIGNALLED),
        (None, False, None, Outcome.LOST),
        # A stop is recorded, but no signal has been sent yet: it ended by itself.
        (StopCause.REQUESTED, False, EXIT_7, Outcome.EXITED),
        (StopCause.RANK_FAILED, False, EXIT_7, Outcome.EXITED),
        (StopCause.REQUESTED, True, TERM, Outcome.STOPPED),
        (StopCause.REQUESTED, True, EXIT_0, Outcome.STOPPED),
        (StopCause.REQUESTED, True, KILL, Outcome.STOPPED),
        (StopCause.MAX_RUNTIME, True, TERM, Outcome.STOPPED),
        (StopCause.RANK_FAILED, True, TERM, Outcome.GANG_VICTIM),
        (StopCause.RANK_FAILED, True, EXIT_0, Outcome.GANG_VICTIM),
        (StopCause.LEFTOVERS, True, EXIT_7, Outcome.EXITED),
        (StopCause.SERVED, False, EXIT_0, Outcome.EXITED),
        (StopCause.SERVED, True, TERM, Outcome.STOPPED),
        (StopCause.SERVED, True, SEGV, Outcome.STOPPED),
        # The signal of a predecessor that did not live to write that it sent it.
        (StopCause.REQUESTED, False, TERM, Outcome.STOPPED),
        (StopCause.RANK_FAILED, False, TERM, Outcome.GANG_VICTIM),
        (None, False, TERM, Outcome.SIGNALLED),
        *((cause, True, None, Outcome.LOST) for cause in StopCause),
    ],
)
def test_outcome(cause, terminated, status, expected):
    job = Job(stop=STOP[cause] if cause else None, terminated=terminated)
    assert outcome(job, 0, status, unborn=False) is expected


@pytest.mark.parametrize(
    ("cause", "told", "status", "expected"),
    [
        (None, False, EXIT_0, Outcome.EXITED),
        (StopCause.REQUESTED, False, EXIT_7, Outcome.EXITED),
        (StopCause.REQUESTED, True, EXIT_7, Outcome.STOPPED),
        # A predecessor told it to end, and did not live to write so.
        (StopCause.REQUESTED, False, TERM, Outcome.STOPPED),
        (StopCause.SERVED, False, EXIT_0, Outcome.STOPPED),
        (StopCause.SERVED, False, EXIT_7, Outcome.STOPPED),
    ],
)
def test_outcome_of_a_service(cause, told, status, expected):
    job = Job(stop=STOP[cause] if cause else None, services_told=told)
    assert outcome(job, SERVICE, status, unborn=False) is expected


@pytest.mark.parametrize("cause", StopCause)
def test_an_epilog_ends_by_itself_after_every_end_of_the_ranks(cause):
    """What was sent to the ranks was not sent to it."""
    job = Job(stop=STOP[cause], terminated=True, killed=True)
    job.concluded = (State.FAILED, Verdict(7, "s"))
    assert outcome(job, 0, EXIT_7, unborn=False) is Outcome.EXITED
    assert outcome(job, 0, TERM, unborn=False) is Outcome.SIGNALLED


@pytest.mark.parametrize("stop", [None, *STOP.values()])
def test_a_child_that_never_became_a_rank_was_not_started(stop):
    assert outcome(Job(stop=stop, terminated=True), 0, 127 << 8, unborn=True) is Outcome.NOT_STARTED


@pytest.mark.parametrize("what", Outcome)
def test_who_failed(what):
    """By status 0, by another, and by one that nobody knows."""
    expected = {
        Outcome.EXITED: (False, True),
        Outcome.SIGNALLED: (False, True),
        Outcome.OUT_OF_MEMORY: (False, True),
        Outcome.HUNG: (True, True),
        Outcome.NOT_STARTED: (False, True),
        Outcome.GANG_VICTIM: (False, False),
        Outcome.STOPPED: (False, False),
        Outcome.LOST: (True, True),
    }[what]
    assert tuple(failed(Rank(0, 0, 0, outcome=what, status=status)) for status in (EXIT_0, EXIT_7)) == expected


def test_a_rank_that_has_not_ended_has_not_failed():
    assert not failed(Rank(0, 0, 0))


@pytest.mark.parametrize(
    ("status", "code", "text"),
    [
        (EXIT_0, 0, "exited with code 0"),
        (EXIT_7, 7, "exited with code 7"),
        (255 << 8, 255, "exited with code 255"),
        (SEGV, 139, "was killed by SIGSEGV"),
        (SEGV_CORE, 139, "was killed by SIGSEGV (core dumped)"),
        (KILL, 137, "was killed by SIGKILL"),
        (signal.SIGRTMIN, 128 + signal.SIGRTMIN, f"was killed by signal {int(signal.SIGRTMIN)}"),
        (33, 161, "was killed by signal 33"),
        (None, 125, "ended with an unknown status"),
    ],
)
def test_status_as_code_and_in_words(status, code, text):
    assert (shell_code(status), describe(status)) == (code, text)


# --- why the job ended ------------------------------------------------------------------------------------------------


def test_all_zero_is_success():
    state, verdict = reach(job_with(None, EXIT_0, EXIT_0), None, ())
    assert (state, verdict.exit_code, verdict.recommendation) == (State.SUCCEEDED, 0, "NONE")
    assert verdict.first_failed is None


def test_leftovers_of_good_ranks_do_not_make_a_failure():
    state, verdict = reach(job_with(STOP[StopCause.LEFTOVERS], EXIT_0), None, ())
    assert (state, verdict.exit_code) == (State.SUCCEEDED, 0)


@pytest.mark.parametrize(("status", "code"), [(EXIT_7, 7), (SEGV_CORE, 139)])
def test_the_first_failure_is_the_jobs(status, code):
    job = job_with(STOP[StopCause.RANK_FAILED], TERM, EXIT_0, KILL)
    first = Rank(3, 3, 5, outcome=Outcome.EXITED, status=status)
    job.ranks.append(first)
    state, verdict = reach(job, first, ("last", "words"))
    assert (state, verdict.exit_code, verdict.first_failed) == (State.FAILED, code, 3)
    assert (verdict.victims, verdict.last_lines) == ((0, 1, 2), ("last", "words"))
    assert f"rank 3 (device 5) {describe(status)}" in verdict.summary
    assert "3 other ranks" in verdict.summary
    assert (verdict.recommendation, bool(verdict.recommendation_reason)) == ("FAIL", True)


def test_others_that_failed_by_themselves_are_named_and_are_no_victims():
    job = job_with(None, EXIT_7, EXIT_0, SEGV)
    state, verdict = reach(job, job.ranks[2], ())
    assert (state, verdict.exit_code, verdict.victims) == (State.FAILED, 139, ())
    assert "rank 0" in verdict.summary
    assert "rank 1" not in verdict.summary


def test_the_first_failure_is_the_first_record_and_what_was_told_stays():
    """Not the time: all that ended in one batch have the same."""
    job = job_with(None, EXIT_7, EXIT_0, SEGV)
    job.ends = [1, 2, 0]
    assert [rank.rank for rank in failures(job)] == [2, 0]
    first = first_failure(job)
    assert first is not None and first.rank == 2
    job.verdict = Verdict(7, "said by an earlier version", 0)
    assert [rank.rank for rank in failures(job)] == [0, 2]
    first = first_failure(job)
    assert first is not None and first.rank == 0
    job.verdict = Verdict(125, "it could not be prepared")
    assert first_failure(job) is None


@pytest.mark.parametrize("cause", list(StopCause))
def test_what_is_known_of_a_job_that_is_being_ended(cause):
    job = job_with(STOP[cause], TERM, None)
    job.ends, job.ranks[1].outcome = [0], None
    job.ranks[0].outcome = Outcome.STOPPED
    told = so_far(job)
    assert told is not None
    assert (told.first_failed, told.stopped_by, told.summary) == (None, "me", "is being stopped by me: so")
    if cause is StopCause.MAX_RUNTIME:  # whatever its ranks do
        return
    job.ranks[0].outcome = Outcome.HUNG if cause is StopCause.HUNG else Outcome.SIGNALLED
    told = so_far(job)
    assert told is not None
    assert (told.first_failed, told.exit_code, told.stopped_by) == (0, 143, "")
    # The verdict, once the other has ended, says the same.
    job.ends, job.ranks[1].outcome = [0, 1], Outcome.STOPPED
    _, end = reach(job, first_failure(job), ())
    assert (end.first_failed, end.exit_code) == (0, 143)
    job.concluded = State.FAILED, end
    assert so_far(job) is end


@pytest.mark.parametrize(("cause", "asked"), [(StopCause.REQUESTED, True), (StopCause.RANK_FAILED, False)])
def test_a_rank_that_is_lost_in_a_stop_says_who_asked_for_it(cause: StopCause, asked: bool):
    job = job_with(STOP[cause], None)
    state, end = reach(job, first_failure(job), ())
    assert state is State.LOST
    assert (end.stopped_by, end.recommendation) == (("me", "NONE") if asked else ("", "RETRY_HERE"))
    assert ("me had requested a stop" in end.summary) is asked


def test_a_lost_rank_is_a_lost_job_and_never_a_success():
    job = job_with(None, EXIT_0, None)
    job.ranks[1].detail = "nobody was there"
    state, verdict = reach(job, job.ranks[1], ())
    assert (state, verdict.exit_code, verdict.first_failed) == (State.LOST, 125, 1)
    assert "nobody was there" in verdict.summary
    assert verdict.recommendation == "RETRY_HERE"


@pytest.mark.parametrize(("status", "code"), [(127 << 8, 127), (126 << 8, 126), (125 << 8, 125), (None, 125)])
def test_a_command_that_cannot_be_run(status, code):
    job = Job(state=State.RUNNING)
    job.ranks = [Rank(0, 0, 0, outcome=Outcome.NOT_STARTED, status=status, detail="x: not found")]
    state, verdict = reach(job, job.ranks[0], ("nonsense",))
    assert (state, verdict.exit_code) == (State.FAILED, code)
    assert verdict.summary == "rank 0 (device 0) could not be started: x: not found"
    assert verdict.last_lines == (), "no line of the file is its own"


@pytest.mark.parametrize(
    ("statuses", "code"), [((TERM, TERM), 143), ((EXIT_0, KILL), 137), ((EXIT_0, EXIT_7), 7), ((EXIT_0, EXIT_0), 0)]
)
def test_a_stop_that_was_asked_for(statuses, code):
    state, verdict = reach(job_with(STOP[StopCause.REQUESTED], *statuses), None, ())
    assert (state, verdict.exit_code, verdict.first_failed) == (State.STOPPED, code, None)
    assert (verdict.stopped_by, verdict.recommendation) == ("me", "NONE")
    assert verdict.recommendation_reason == "the stop was requested"
    assert verdict.summary == "stopped by me: so"
    assert verdict.victims == ()


@pytest.mark.parametrize("statuses", [(TERM, TERM), (EXIT_0, KILL), (EXIT_0, EXIT_7), (EXIT_0, EXIT_0), (None, TERM)])
@pytest.mark.parametrize("asked", [None, Asked("scheduler", "so", 1.0)])
def test_a_running_time_that_was_over(statuses, asked):
    """Also where a stop came while it ended, or the end of a rank is not known."""
    job = job_with(STOP[StopCause.MAX_RUNTIME], *statuses)
    job.asked = asked
    state, verdict = reach(job, next((rank for rank in job.ranks if failed(rank)), None), ())
    assert (state, verdict.exit_code, verdict.first_failed) == (State.FAILED, 124, None)
    assert (verdict.recommendation, verdict.recommendation_reason) == ("NONE", "its time limit had passed")
    assert verdict.summary == "TIMED_OUT: stopped by me: so"


@pytest.mark.parametrize(
    ("fault", "recommendation", "reason"),
    [
        ("", "RETRY_HERE", "the job hung, and no fault of the node is known"),
        ("card 3: Xid 79", "RETRY_ELSEWHERE", "card 3: Xid 79: isolate the node"),
    ],
)
def test_a_stop_of_a_job_that_hung(fault, recommendation, reason):
    job = job_with(STOP[StopCause.REQUESTED], TERM, TERM)
    job.asked = Asked("me", "so", 1.0, hung_since=1e9, hung_how="HUNG (spin)")
    state, verdict = reach(job, None, (), fault)
    assert (state, verdict.exit_code, verdict.stopped_by) == (State.STOPPED, 143, "me")
    assert re.fullmatch(r"hung since 2001-09-0\d \d\d:\d\d:\d\d, then stopped by me: so", verdict.summary)
    assert (verdict.recommendation, verdict.recommendation_reason) == (recommendation, reason)


def test_the_code_of_a_stop_is_that_of_the_rank_that_ended_first():
    job = job_with(STOP[StopCause.REQUESTED], EXIT_7, KILL)
    job.ends = [1, 0]
    assert reach(job, None, ())[1].exit_code == 137


def test_a_stop_with_a_kill_says_so():
    job = job_with(STOP[StopCause.REQUESTED], KILL)
    job.killed = True
    assert "SIGKILL" in reach(job, None, ())[1].summary


def test_a_stop_before_the_ranks_ran():
    job = Job(state=State.STOPPING, stop=STOP[StopCause.REQUESTED], ranks=[Rank(0, 0, 0)])
    state, verdict = reach(job, None, ())
    assert (state, verdict.exit_code) == (State.STOPPED, 143)


def test_a_failure_before_the_stop_is_a_failure():
    job = Job(state=State.STOPPING, stop=STOP[StopCause.REQUESTED], terminated=True)
    first = Rank(0, 0, 0, pid=1, outcome=Outcome.EXITED, status=EXIT_7)
    job.ranks = [first, Rank(1, 1, 1, pid=2, outcome=Outcome.STOPPED, status=TERM)]
    state, verdict = reach(job, first, ())
    assert (state, verdict.exit_code) == (State.FAILED, 7)


# --- what only serves the others --------------------------------------------------------------------------------------


def with_servers(*servers: int | None, workers: tuple[int, ...] = (EXIT_0, EXIT_0), terminated: bool = True) -> Job:
    """Workers that ended by themselves; then parameter servers that were ended, because all that they served had."""
    job = job_with(None, *workers)
    job.state, job.stop, job.terminated = State.STOPPING, STOP[StopCause.SERVED], terminated
    for status in servers:
        number = len(job.ranks)
        server = Rank(
            number, number, 0, pid=100 + number, outcome=outcome(job, number, status, unborn=False), status=status
        )
        server.role, server.serves = "ps", True
        job.ranks.append(server)
    return job


@pytest.mark.parametrize("servers", [(TERM,), (KILL, TERM), (EXIT_0,), (EXIT_7, SEGV), (143 << 8,)])
def test_a_job_has_succeeded_when_all_that_was_to_be_done_is_done(servers):
    """However a parameter server takes the signal that ends it: it never ends by itself."""
    state, verdict = reach(with_servers(*servers), None, ())
    assert (state, verdict.exit_code, verdict.recommendation) == (State.SUCCEEDED, 0, "NONE")
    assert verdict.summary == f"all 2 ranks exited with code 0; {len(servers)} that served them ended after that"


def test_a_server_that_ended_well_by_itself_is_one_of_all():
    job = with_servers(EXIT_0, terminated=False)
    assert reach(job, None, ())[1].summary == "all 3 ranks exited with code 0"


def test_the_end_of_a_server_that_nobody_knows_is_lost():
    job = with_servers(TERM, None)
    state, verdict = reach(job, job.ranks[3], ())
    assert (state, verdict.exit_code, verdict.first_failed) == (State.LOST, 125, 3)


def test_a_server_that_fails_by_itself_is_a_failure():
    """Before it was sent anything: its workers may have what it had not saved."""
    job = with_servers(EXIT_7, terminated=False)
    state, verdict = reach(job, job.ranks[2], ())
    assert (state, verdict.exit_code, verdict.first_failed) == (State.FAILED, 7, 2)


def test_only_what_serves_may_be_ended_in_a_success():
    """A worker that was ended is none that succeeded, and nobody but us may have claimed so."""
    job = with_servers(TERM)
    job.ranks[0].outcome, job.ranks[0].status = Outcome.STOPPED, TERM
    with pytest.raises(AssertionError, match="not all succeeded"):
        reach(job, None, ())
    job = with_servers(TERM)
    job.stop = STOP[StopCause.LEFTOVERS]
    with pytest.raises(AssertionError, match="not all succeeded"):
        reach(job, None, ())


# --- what to do about it ----------------------------------------------------------------------------------------------

UNFIT = [{"item": "dns", "status": "OK"}, {"item": "gpu-check", "status": "CRITICAL"}]
FIT = [{"item": "dns", "status": "OK"}, {"item": "ulimit", "status": "WARN"}, {"item": "shm", "status": "UNKNOWN"}]
GONE = "/dev/nvidia3: the card no longer exists"


@pytest.mark.parametrize(
    ("checks", "fault", "expected"),
    [
        (UNFIT, GONE, "RETRY_ELSEWHERE"),
        (UNFIT, "", "RETRY_ELSEWHERE"),
        (FIT, GONE, "RETRY_ELSEWHERE"),
        (FIT, "", "FAIL"),
        ([], "", "FAIL"),
    ],
)
@pytest.mark.parametrize("status", [EXIT_7, SEGV_CORE])
def test_the_table_of_modelarts(checks, fault, expected, status):
    """Its four rows (training guide, 5.2.1), for a job that ended abnormally; and no check is no failed one."""
    job = job_with(None, EXIT_0, status)
    job.checks = checks
    state, verdict = reach(job, job.ranks[1], (), fault)
    assert (state, verdict.recommendation) == (State.FAILED, expected)
    reason = verdict.recommendation_reason
    if checks is UNFIT:
        assert "gpu-check" in reason
        assert "dns" not in reason
    elif fault:
        assert fault in reason
    if expected == "RETRY_ELSEWHERE":
        assert "isolate" in reason


@pytest.mark.parametrize(
    ("what", "status", "expected"),
    [
        *((Outcome.SIGNALLED, status, "RETRY_HERE") for status in (KILL, TERM, int(signal.SIGINT), int(signal.SIGHUP))),
        *((Outcome.SIGNALLED, int(s), "FAIL") for s in (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE)),
        (Outcome.LOST, None, "RETRY_HERE"),
        (Outcome.OUT_OF_MEMORY, KILL, "FAIL"),  # a SIGKILL too, but not somebody's
        (Outcome.NOT_STARTED, 127 << 8, "FAIL"),
        (Outcome.NOT_STARTED, None, "FAIL"),
        (Outcome.EXITED, EXIT_7, "FAIL"),
        (Outcome.EXITED, 143 << 8, "FAIL"),  # a code of its own, whatever shells make of it
        (Outcome.HUNG, KILL, "RETRY_HERE"),
    ],
)
def test_what_a_sound_node_leaves_open(what, status, expected):
    job, first = Job(checks=FIT), Rank(0, 0, 0, outcome=what, status=status)
    recommendation, reason = recommend(job, first, "")
    assert (recommendation, bool(reason)) == (expected, True)
    for checks, fault in ((UNFIT, ""), (FIT, GONE)):
        assert recommend(Job(checks=checks), first, fault)[0] == "RETRY_ELSEWHERE", "the node comes first"


@pytest.mark.parametrize(("elsewhere", "expected"), [(True, "RETRY_ELSEWHERE"), (False, "RETRY_HERE")])
def test_a_job_whose_ranks_never_ran(elsewhere, expected):
    state, verdict = not_prepared("no room", elsewhere)
    assert (state, verdict.exit_code, verdict.summary) == (State.FAILED, 125, "no room")
    assert (verdict.recommendation, bool(verdict.recommendation_reason)) == (expected, True)
    assert (verdict.first_failed, verdict.last_lines, verdict.victims) == (None, (), ())


def test_a_success_and_a_stop_recommend_nothing_on_any_node():
    for job in (job_with(None, EXIT_0), job_with(STOP[StopCause.REQUESTED], TERM)):
        job.checks = UNFIT
        assert reach(job, None, (), GONE)[1].recommendation == "NONE"


# --- never a success that nobody saw ----------------------------------------------------------------------------------

_STATUSES = list(itertools.product((EXIT_0, EXIT_7, SEGV, None), repeat=3))


@pytest.mark.parametrize("terminated", [False, True])
def test_nor_is_one_invented_where_something_served(terminated):
    for workers, servers in itertools.product(
        itertools.product((EXIT_0, EXIT_7), repeat=2), ((status,) for status in (EXIT_0, EXIT_7, SEGV, TERM, None))
    ):
        job = with_servers(*servers, workers=workers, terminated=terminated)
        first = next((r for r in job.ranks if failed(r)), None)
        state, verdict = reach(job, first, ())
        if state is State.SUCCEEDED or verdict.exit_code == 0:
            assert workers == (EXIT_0, EXIT_0)
            assert None not in servers
        elif EXIT_7 not in workers and servers == (None,):
            assert state is State.LOST


@pytest.mark.parametrize("cause", [None, *(cause for cause in StopCause if cause is not StopCause.SERVED)])
@pytest.mark.parametrize("terminated", [False, True])
def test_success_is_never_invented(cause, terminated):
    """Over every way in which three ranks can end: SUCCEEDED and code 0 only where each was seen to exit with 0."""
    for statuses in _STATUSES:
        job = job_with(STOP[cause] if cause else None, *statuses, terminated=terminated)
        first = next((r for r in job.ranks if failed(r)), None)
        if cause in (StopCause.RANK_FAILED, StopCause.SERVICE_ENDED) and first is None:
            continue  # somebody has failed in such a job
        state, verdict = reach(job, first, ())
        assert state.final
        if state is State.SUCCEEDED or verdict.exit_code == 0:
            assert set(statuses) == {EXIT_0}
        if None in statuses and state is not State.FAILED:
            assert state is State.LOST


def hung_job(*ranks: int, statuses: tuple[int, ...] = (TERM, TERM)) -> Job:
    stop = Stop(StopCause.HUNG, "muster", "spin: its cards are flat at 100 %", (1.0,), 1.0, 1.0, ranks)
    job = Job(stop=stop, terminated=True)
    for i, status in enumerate(statuses):
        rank = Rank(i, i, i, pid=100 + i, outcome=outcome(job, i, status, unborn=False), status=status)
        job.ranks.append(rank)
        job.ends.append(i)
    return job


def test_the_odd_rank_of_a_hang_is_named_and_the_others_are_its_victims():
    job = hung_job(1)
    assert [rank.outcome for rank in job.ranks] == [Outcome.GANG_VICTIM, Outcome.HUNG]
    state, found = reach(job, first_failure(job), ())
    assert (state, found.exit_code, found.first_failed, found.victims) == (State.FAILED, 143, 1, (0,))
    assert found.summary == "rank 1 (device 1) hung: spin: its cards are flat at 100 %"
    assert found.recommendation == "RETRY_HERE"


def test_a_hang_of_all_that_ends_well_when_it_is_asked_to_has_failed_all_the_same():
    job = hung_job(statuses=(EXIT_0, EXIT_0))
    state, found = reach(job, first_failure(job), (), "card 0: Xid 79")
    assert (state, found.exit_code, found.victims) == (State.FAILED, 143, ())
    assert found.summary.startswith("the job hung: ")
    assert found.recommendation == "RETRY_ELSEWHERE"


# --- a signal that went to everybody ----------------------------------------------------------------------------------

EXIT_1, EXIT_143 = 1 << 8, 143 << 8


def ended_one_by_one(cause: StopCause, asked_after: float | None, signal_after: float | None, *statuses: int) -> Job:
    """A job whose ranks ended in this order before anything was sent to them; then somebody asked for a stop, so many
    seconds after the ranks began to be ended, and the supervisor got SIGTERM itself. None: it did not happen."""
    job = Job(state=State.RUNNING)
    for i, status in enumerate(statuses):
        job.ranks.append(Rank(i, i, i, pid=100 + i, outcome=outcome(job, i, status, unborn=False), status=status))
        job.ends.append(i)
    job.stop = Stop(cause, "rank 0", "it ended", up=50.0, since=50.0)
    if asked_after is not None:
        job.asked = Asked("me", "SIGTERM", 50.0 + asked_after, 0.0 if signal_after is None else 50.0 + signal_after)
    return job


@pytest.mark.parametrize(
    ("asked", "signalled", "statuses", "code", "more"),
    [
        (0.01, None, (TERM,), 143, "rank 0 was killed by SIGTERM before the stop reached it"),
        (0.01, None, (EXIT_143,), 143, "rank 0 exited with code 143 before the stop reached it"),
        (0.01, None, (TERM, SEGV), 143, "2 ranks ended before the stop reached them: rank 0 was killed by SIGTERM"),
        (0.01, 0.0, (EXIT_1,), 1, "rank 0 exited with code 1 before the stop reached it"),
        (2.0, -0.5, (EXIT_1, EXIT_143), 1, "2 ranks ended before the stop reached them: rank 0 exited with code 1"),
    ],
)
def test_a_signal_to_everybody_is_a_stop(asked, signalled, statuses, code, more):
    """Whatever comes first: the stop that the same signal makes of the command, or the end of a rank that got it."""
    job = ended_one_by_one(StopCause.RANK_FAILED, asked, signalled, *statuses)
    job.terminated = True
    last = len(statuses)
    job.ranks.append(Rank(last, last, last, pid=9, outcome=outcome(job, last, TERM, unborn=False), status=TERM))
    assert job.ranks[-1].outcome is Outcome.STOPPED
    assert first_failure(job) is None
    state, verdict = reach(job, first_failure(job), ())
    assert (state, verdict.exit_code, verdict.stopped_by) == (State.STOPPED, code, "me")
    assert verdict.summary == f"stopped by me: SIGTERM; {more}"
    assert (verdict.first_failed, verdict.recommendation) == (None, "NONE")


@pytest.mark.parametrize(
    ("asked", "signalled", "status"),
    [
        (None, None, TERM),  # somebody ended this rank, and nobody the job
        (None, 0.0, EXIT_1),
        (60.0, None, TERM),  # in the grace of the others somebody presses Ctrl-C
        (0.01, None, EXIT_1),  # a rank that failed
        (0.01, None, SEGV),
        (0.01, -60.0, EXIT_1),  # SIGTERM to the supervisor a minute ago has nothing to do with it
    ],
)
def test_a_rank_that_failed_before_a_stop_has_failed(asked, signalled, status):
    job = ended_one_by_one(StopCause.RANK_FAILED, asked, signalled, status)
    first = first_failure(job)
    assert first is job.ranks[0]
    state, verdict = reach(job, first, ())
    assert (state, verdict.first_failed) == (State.FAILED, 0)


@pytest.mark.parametrize("left", [Outcome.LOST, Outcome.OUT_OF_MEMORY, Outcome.NOT_STARTED])
def test_what_a_signal_cannot_do_stays_a_failure(left):
    job = ended_one_by_one(StopCause.RANK_FAILED, 0.01, 0.0, TERM, KILL)
    job.ranks[1].outcome = left
    assert first_failure(job) is job.ranks[1]


@pytest.mark.parametrize("cause", [StopCause.REQUESTED, StopCause.LEFTOVERS])
def test_ranks_that_end_well_on_a_signal_to_everybody_were_stopped(cause):
    job = ended_one_by_one(cause, 0.0, 0.0, EXIT_0)
    state, verdict = reach(job, first_failure(job), ())
    assert (state, verdict.exit_code, verdict.summary) == (State.STOPPED, 0, "stopped by me: SIGTERM")


def test_when_a_stop_may_still_come():
    job = ended_one_by_one(StopCause.RANK_FAILED, None, None, TERM)
    assert stop_may_come(job, 0.0)
    job.asked = Asked("me", "SIGTERM", 50.0)
    assert not stop_may_come(job, 0.0)
    failed_by_itself = ended_one_by_one(StopCause.RANK_FAILED, None, None, EXIT_1)
    assert not stop_may_come(failed_by_itself, 0.0)
    assert stop_may_come(failed_by_itself, process.uptime())
    assert not stop_may_come(failed_by_itself, process.uptime() - 60)
    assert not stop_may_come(ended_one_by_one(StopCause.HUNG, None, None, TERM), process.uptime())
