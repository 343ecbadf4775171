"""The probable cause: which of all that is known of a job's end is taken for its reason."""

import signal
from dataclasses import replace

import pytest

from muster.agent.events.event_store import Event
from muster.agent.why.around import Events
from muster.agent.why.causes import past_attempts
from muster.agent.why.causes.advice import advise
from muster.agent.why.causes.past_attempts import first_failures, repeated
from muster.agent.why.causes.probable_cause import causes
from muster.agent.why.curves import Curve, Minutes
from muster.agent.why.facts import Facts
from muster.supervisors.model.lifecycle import Attempt, Rank, Stop, Verdict
from muster.supervisors.model.states import STEP, Outcome, State, StopCause
from muster.supervisors.system import oom
from tests.unit.why_facts import RAN, ZERO, facts, happening, rank, sign, victim

GRAVE = {"card": 0, "code": "GPU_OFF_BUS", "grave": True}
FAILED = (rank(0, Outcome.EXITED, code=1), victim(1))


def first(known: Facts) -> tuple[str, str, str]:
    """Kind, signature, confidence of the likeliest."""
    cause = causes(known)[0]
    return cause.kind, cause.signature, cause.confidence


def test_a_job_that_succeeded_has_none() -> None:
    assert causes(facts(rank(0, Outcome.EXITED), state=State.SUCCEEDED, signs=(sign("no-space"),))) == []


# --- what is certain --------------------------------------------------------------------------------------------------


def test_a_stop_says_who_and_why() -> None:
    stop = Stop(StopCause.REQUESTED, "alice", "enough", (), ZERO)
    verdict = Verdict(143, "stopped by alice: enough", stopped_by="alice")
    known = facts(rank(0, Outcome.STOPPED, killed=signal.SIGTERM), state=State.STOPPED, stop=stop, verdict=verdict)
    (cause,) = causes(known)
    assert (cause.kind, cause.confidence) == ("stop", "certain")
    assert cause.text == "it was stopped by alice, with the reason: enough"


def test_its_time_was_over() -> None:
    stop = Stop(StopCause.MAX_RUNTIME, "", "", (), ZERO)
    spec = {"max_runtime": 100.0}
    (cause,) = causes(facts(victim(0), state=State.STOPPED, stop=stop, spec=spec, verdict=Verdict(143, "stopped")))
    assert "max_runtime 100 s" in cause.text and "--max-runtime" in cause.steps[0]


def test_a_node_that_was_not_fit() -> None:
    check = {"item": "disk-size shm", "status": "CRITICAL", "code": "DISK_SIZE_TOO_SMALL", "reason": "64 MiB"}
    ranks = [Rank(0, 0, 0)]
    (cause,) = causes(facts(state=State.FAILED, ranks=ranks, checks=[check], verdict=Verdict(125, "not fit")))
    assert (cause.kind, cause.confidence) == ("admission", "certain")
    assert "disk-size shm: 64 MiB" in cause.text and cause.steps


def test_a_command_that_cannot_be_run() -> None:
    none = Rank(0, 0, 0, 4711, outcome=Outcome.NOT_STARTED, status=127 << 8, ended_at=ZERO, detail="trian: not found")
    (cause,) = causes(facts(none))
    assert cause.confidence == "certain" and "trian: not found" in cause.text


def test_a_script_before_the_ranks_that_failed() -> None:
    step = Rank(STEP, 0, 0, 5, outcome=Outcome.EXITED, status=1 << 8, ended_at=ZERO, role="requirements")
    known = facts(ranks=[Rank(0, 0, 0)], step=step, step_name="requirements", signs=(sign("name-resolution", None),))
    assert first(known) == ("rendezvous", "name-resolution", "high")
    assert causes(known)[0].text.startswith("requirements failed: a host's name")
    silent = facts(ranks=[Rank(0, 0, 0)], step=step, step_name="requirements")
    assert "muster logs j --job" in causes(silent)[0].steps[0]


def test_want_of_memory_on_the_host() -> None:
    killed = rank(0, Outcome.OUT_OF_MEMORY, killed=signal.SIGKILL)
    killed.usage.max_rss = 3 << 30
    known = facts(killed, victim(1), spec={"limits": {"memory": float(4 << 30)}}, signs=(sign("killed"),))
    cause = causes(known)[0]
    assert (cause.kind, cause.confidence) == ("memory", "certain")
    assert "rank 0" in cause.text and "4.0GiB" in cause.text and "3.0GiB" in cause.evidence[0]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (
            "Memory cgroup out of memory: Killed process 4000 (python)",
            "a limit was reached (the job's, or a container's)",
        ),
        ("Out of memory: Killed process 4000 (python)", "the host had none left"),
        ("Memory cgroup out of memory: Killed process 40001 (python)", "out of memory: the kernel killed rank 0"),
    ],
)
def test_whose_memory_was_full(line: str, says: str) -> None:
    killed = rank(0, Outcome.OUT_OF_MEMORY, killed=signal.SIGKILL)
    cause = causes(facts(killed, victim(1), happenings=(happening("node.event", line, code="OOM_KILL"),)))[0]
    assert cause.text.endswith(says)


def test_a_kill_that_was_not_the_kernels() -> None:
    """Its log could be read: nobody is sent to look there again."""
    killed = rank(0, Outcome.SIGNALLED, killed=signal.SIGKILL, detail=oom.NOT_THE_KERNEL)
    cause = causes(facts(killed, victim(1)))[0]
    assert "neither by muster nor by the kernel" in cause.text and "dmesg" not in cause.steps[0]


def test_a_lost_end_is_not_guessed() -> None:
    known = facts(rank(0, Outcome.LOST, detail="the node was rebooted"), state=State.LOST)
    cause = causes(known)[0]
    assert cause.confidence == "none" and "the node was rebooted" in cause.text


def test_a_damaged_journal_is_reported_and_nothing_is_made_of_it() -> None:
    (cause,) = causes(facts(state=State.LOST, damaged="journal: record 7 is damaged"))
    assert cause.confidence == "none" and cause.evidence == ("journal: record 7 is damaged",)


def test_what_the_output_only_mentions_is_no_cause() -> None:
    """A line that names an error in quotes, before the exception that ended the rank."""
    quoted = replace(sign("cuda-ecc", 0, 2.0), hit=replace(sign("cuda-ecc").hit, mentioned=True))
    bare = sign("exception-line", 0, 1.0, place=100, line="[rank0]: RuntimeError: boom")
    cause = causes(facts(*FAILED, signs=(quoted, bare)))[0]
    assert (cause.kind, cause.confidence, cause.text) == ("job", "medium", "the program raised RuntimeError: boom")
    assert first(facts(*FAILED, signs=(quoted,)))[2] == "low"


# --- the output -------------------------------------------------------------------------------------------------------


def test_what_the_first_failed_rank_wrote() -> None:
    assert first(facts(*FAILED, signs=(sign("cuda-out-of-memory"),))) == ("memory", "cuda-out-of-memory", "high")


def test_the_cause_wins_over_what_follows_from_it() -> None:
    signs = (
        sign("nccl-timeout", 0, 0.1),
        sign("abort", 0, 0.0),
        sign("python-import", 0, 2.0),
        sign("elastic-child-failed", 0, 0.0),
    )
    assert first(facts(*FAILED, signs=signs))[1] == "python-import"


def test_of_two_causes_the_more_telling_and_of_equal_ones_the_earlier() -> None:
    signs = (sign("file-not-found", 0, 3.0), sign("cuda-out-of-memory", 0, 2.0), sign("npu-out-of-memory", 0, 1.0))
    assert first(facts(*FAILED, signs=signs))[1] == "cuda-out-of-memory"


def test_the_cause_is_found_in_the_rank_that_the_others_waited_for() -> None:
    """Rank 0 ended first, by a time-out: rank 1 had run out of memory ten minutes before, and did not end for it."""
    signs = (
        sign("nccl-timeout", 0, 0.5),
        sign("python-exception", 0, 0.4),
        sign("cuda-out-of-memory", 1, 600.0),
        sign("python-exception", 1, 600.0),
    )
    known = facts(*FAILED, signs=signs)
    assert first(known) == ("memory", "cuda-out-of-memory", "medium")
    told = causes(known)[0].sign
    assert told is not None and told.rank == 1


def test_an_exception_of_its_own_counts_more_than_what_a_victim_wrote() -> None:
    signs = (sign("python-exception", 0, 0.5), sign("connection-refused", 1, 50.0))
    assert first(facts(*FAILED, signs=signs)) == ("job", "python-exception", "medium")


def told_by(known: Facts) -> tuple[int | None, str]:
    cause = causes(known)[0]
    assert cause.sign is not None
    return cause.sign.rank, cause.signature


#: Rank 0 exits first, and says that another one went away; rank 1 is stopped for that.
CLOSED = (sign("gloo-peer-gone", 0, 0.5), sign("python-exception", 0, 0.4))


@pytest.mark.parametrize(
    ("before", "went_on", "last", "rank_number"),
    [
        (3.0, None, True, 1),
        (500.0, None, True, 1),
        (3.0, -1.0, True, 1),  # it wrote something when it was asked to end
        (3.0, 2.0, True, 0),  # it was caught: the rank went on
        (3.0, None, False, 0),
        (-0.5, None, True, 0),  # that is how it ends of a SIGTERM
        (2000.0, None, True, 0),
    ],
)
def test_the_rank_that_wrote_its_own_traceback_first_is_the_cause_though_another_exits_first(
    before: float, went_on: float | None, last: bool, rank_number: int
) -> None:
    raised = sign("python-exception", 1, before, went_on=went_on, last=last)
    assert told_by(facts(*FAILED, signs=(*CLOSED, raised)))[0] == rank_number


@pytest.mark.parametrize(
    ("name", "before", "went_on", "rank_number"),
    [
        ("nccl-ib", 3.0, None, 1),  # it writes its core dump, or hangs on its way out
        ("cuda-ecc", 3.0, None, 1),
        ("io-error", 3.0, None, 1),
        ("heap-corruption", 3.0, None, 1),
        ("bus-error", 3.0, None, 1),
        ("nccl-ib", 3.0, -1.0, 1),  # it wrote something when it was asked to end
        ("nccl-ib", 3.0, 2.0, 0),  # the rank went on
        ("nccl-ib", 50.0, None, 0),
        ("nccl-ib", -1.0, None, 0),
    ],
)
def test_a_rank_whose_last_word_is_an_error_with_a_name_is_the_cause_though_another_exits_first(
    name: str, before: float, went_on: float | None, rank_number: int
) -> None:
    other = sign("python-exception", 0, 0.5, line="RuntimeError: worker 1 did not answer")
    mine = sign(name, 1, before, went_on=went_on)
    assert told_by(facts(*FAILED, signs=(other, mine)))[0] == rank_number
    # Not where the other's is an error of the program, or both wrote the same line.
    bug = sign("python-exception", 0, 0.5, line="KeyError: 'labels'")
    assert told_by(facts(*FAILED, signs=(bug, mine)))[0] == 0
    assert told_by(facts(*FAILED, signs=(other, mine, sign(name, 0, 0.5))))[0] == 0


def test_of_ranks_with_errors_of_their_own_the_one_that_wrote_first_counts() -> None:
    both = rank(0, Outcome.EXITED, code=1), rank(1, Outcome.EXITED, code=1)
    signs = (sign("python-import", 0, 1.0), sign("python-exception", 1, 4.0))
    assert told_by(facts(*both, signs=signs)) == (1, "python-exception")
    # At the same time the more telling one, and of equal ones that of the rank that exited first.
    signs = (sign("python-exception", 0, 3.9), sign("python-import", 1, 4.0))
    assert told_by(facts(*both, signs=signs)) == (1, "python-import")
    signs = (sign("python-import", 0, 3.9), sign("python-import", 1, 4.0))
    assert told_by(facts(*both, signs=signs)) == (0, "python-import")
    # Long before is another story.
    signs = (sign("python-exception", 0, 1.0), sign("python-exception", 1, 400.0))
    assert told_by(facts(*both, signs=signs))[0] == 0


def test_of_errors_at_the_same_time_those_of_the_network_may_follow_from_the_other() -> None:
    both = rank(0, Outcome.EXITED, code=1), rank(1, Outcome.EXITED, code=1)
    signs = (sign("nccl-ib", 0, 3.9), sign("cuda-ecc", 1, 4.0))
    assert told_by(facts(*both, signs=signs)) == (1, "cuda-ecc")


def test_what_a_rank_says_of_its_peers_after_an_error_of_its_own_follows_from_that() -> None:
    """`During handling of the above exception`, or on its way out."""
    error, lost = sign("python-exception", place=10), sign("connection-reset", place=90)
    bug = replace(error, hit=replace(error.hit, line="KeyError: 'input_ids'"))
    assert told_by(facts(rank(0, Outcome.EXITED, code=1), signs=(bug, lost))) == (0, "python-exception")
    # The other way round the program stumbled over the lost connection.
    after = replace(bug, hit=replace(bug.hit, at=100))
    assert told_by(facts(rank(0, Outcome.EXITED, code=1), signs=(lost, after))) == (0, "connection-reset")


def test_a_traceback_that_python_goes_on_from_counts_where_nothing_else_is_known() -> None:
    error, ignored = sign("python-exception", place=10), replace(sign("io-error", place=90), ignored=True)
    assert first(facts(rank(0, Outcome.EXITED, code=1), signs=(error, ignored)))[1:] == ("python-exception", "medium")
    assert first(facts(rank(0, Outcome.EXITED, code=1), signs=(ignored,)))[1:] == ("io-error", "low")


def late(number: int, code: int = 1) -> Rank:
    """It was asked to end, did not at once, and ended by itself."""
    return rank(number, Outcome.GANG_VICTIM, code=code)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("python-exception", "RuntimeError: shape '[2, 128]' is invalid for input of size 250"),
        ("uncaught", "panic: runtime error: index out of range [5] with length 3"),
    ],
)
def test_who_writes_its_error_after_its_peers_have_lost_it(name: str, line: str) -> None:
    lost, own = sign("gloo-peer-gone", 0, 0.1), sign(name, 1, -0.8, line=line)
    ranks = (rank(0, Outcome.EXITED, code=1), late(1))
    assert causes(facts(*ranks, signs=(lost, own)))[0].sign == own
    assert causes(facts(*ranks, signs=(lost, own), world_size=4))[0].sign == lost  # the cause may be on another node
    bug = sign(name, 1, -0.8, line="ValueError: bad shape")
    if name == "python-exception":
        assert causes(facts(*ranks, signs=(lost, bug), world_size=4))[0].sign == bug
    assert causes(facts(ranks[0], victim(1), signs=(lost, own)))[0].sign == lost  # the signal ended it
    assert causes(facts(ranks[0], late(1, 143), signs=(lost, own)))[0].sign == lost
    assert causes(facts(*ranks, signs=(lost, sign(name, 1, -60.0, line=line))))[0].sign == lost


@pytest.mark.parametrize(
    "line",
    [
        "SignalException: Process 123 got signal: 15",
        "RuntimeError: DataLoader worker (pid 7) exited unexpectedly with exit code 1",
        "RuntimeError: Connection closed",
        "ConnectionResetError: [Errno 104] Connection reset by peer",
    ],
)
def test_what_a_rank_writes_of_being_asked_to_end_is_no_cause(line: str) -> None:
    lost, asked = sign("gloo-peer-gone", 0, 0.1), sign("python-exception", 1, -0.3, line=line)
    assert causes(facts(rank(0, Outcome.EXITED, code=1), late(1), signs=(lost, asked)))[0].sign == lost


def test_the_fabric_is_not_blamed_for_a_peer_that_ended_of_a_bug() -> None:
    fabric = sign("nccl-ib", 0, 0.1)
    ranks = (rank(0, Outcome.EXITED, code=1), late(1))
    bug = sign("python-exception", 1, -0.8, line="IndexError: index 151936 is out of bounds")
    other = sign("python-exception", 1, -0.8, line="RuntimeError: could not go on")
    assert causes(facts(*ranks, signs=(fabric, bug)))[0].sign == bug
    assert causes(facts(*ranks, signs=(fabric, other)))[0].sign == fabric


@pytest.mark.parametrize("error", ["Connection reset by peer", "Broken pipe", "Failed to recv, got 0 bytes"])
def test_a_store_that_ended_during_the_setup_is_a_consequence(error: str) -> None:
    line = f"DistNetworkError: [2] is setting up NCCL communicator, but store->get('0') got error: {error}"
    setup, own = sign("nccl-setup", 1, 0.1, line=line), sign("loss-scale", 0, -0.5)
    ranks = (late(0), rank(1, Outcome.EXITED, code=1))
    assert causes(facts(*ranks, signs=(setup, own)))[0].sign == own
    assert causes(facts(*ranks, signs=(sign("nccl-setup", 1, 0.1), own)))[0].signature == "nccl-setup"


def test_who_cannot_have_a_port_is_the_cause_of_those_who_do_not_reach_it() -> None:
    taken = "ERROR: [Errno 98] error while attempting to bind on address ('0.0.0.0', {}): address already in use"
    refused = sign("store-unavailable", 0, 0.1, line="HTTPConnectionPool(host='10.0.0.8', port=51216): Max retries")
    ranks = (rank(0, Outcome.EXITED, code=1), late(1))
    own = sign("address-in-use", 1, -0.8, line=taken.format(51216))
    assert causes(facts(*ranks, signs=(refused, own)))[0].sign == own
    elsewhere = sign("address-in-use", 1, -0.8, line=taken.format(51217))
    assert causes(facts(*ranks, signs=(refused, elsewhere)))[0].sign == refused


def test_an_exception_that_a_line_quotes_is_no_cause_of_a_known_error_behind_it() -> None:
    def known(line: str) -> Facts:
        before = sign("cuda-out-of-memory", 0, 3.0)
        before = replace(before, before_end=True, hit=replace(before.hit, line=line))
        return facts(*FAILED, signs=(before, sign("stale-handle", 0, 0.5, place=900)))

    quoted = 'sample 17: "RuntimeError: CUDA out of memory. Tried to allocate"'
    assert first(known(quoted))[1] == "stale-handle"
    assert first(known("RuntimeError: CUDA out of memory. Tried to allocate"))[1] == "cuda-out-of-memory"


PEER_GONE = (sign("gloo-peer-gone", 0, 0.5), sign("gloo-peer-gone", 2, 0.4))


@pytest.mark.parametrize(
    ("silent", "text", "culprit"),
    [
        (rank(1, Outcome.EXITED, code=7), "rank 1 exited with code 7 by itself, and named no error", 1),
        (rank(1, Outcome.SIGNALLED, killed=9), "rank 1 was killed with SIGKILL", 1),
        (rank(1, Outcome.SIGNALLED, killed=6), "gloo lost its connection", None),  # it has said why, somewhere
        (victim(1), "gloo lost its connection", None),
    ],
)
def test_a_rank_that_ended_in_silence_at_the_same_time_is_the_cause(
    silent: Rank, text: str, culprit: int | None
) -> None:
    both = rank(0, Outcome.EXITED, code=1), rank(2, Outcome.EXITED, code=1)
    cause = causes(facts(both[0], silent, both[1], signs=PEER_GONE))[0]
    assert (cause.text.startswith(text), cause.culprit) == (True, culprit), cause


@pytest.mark.parametrize(
    ("silent", "after", "text", "culprit"),
    [
        (rank(0, Outcome.SIGNALLED, killed=11), 0.5, "rank 0 died of SIGSEGV", 0),
        (rank(0, Outcome.SIGNALLED, killed=9), 0.5, "rank 0 was killed with SIGKILL", 0),
        (rank(0, Outcome.EXITED, code=1), 0.5, "rank 0 exited with code 1 by itself", 0),
        (rank(0, Outcome.EXITED, code=1), -0.5, "the fabric (InfiniBand", 1),
        (rank(0, Outcome.SIGNALLED, killed=6), 0.5, "the fabric (InfiniBand", 1),  # it has said why, somewhere
    ],
)
def test_an_error_of_the_network_follows_from_a_silent_end_before_it(
    silent: Rank, after: float, text: str, culprit: int
) -> None:
    other = replace(rank(1, Outcome.EXITED, code=1), ended_at=ZERO + 0.6)
    cause = causes(facts(silent, other, signs=(sign("nccl-ib", 1, -after),)))[0]
    assert (cause.text.startswith(text), cause.culprit) == (True, culprit), cause


def test_ranks_that_left_before_the_others_are_the_cause_of_their_lost_connection() -> None:
    lost = rank(0, Outcome.EXITED, code=1), rank(1, Outcome.EXITED), rank(2, Outcome.EXITED, code=1)
    cause = causes(facts(*lost, signs=PEER_GONE, ends=[1, 0, 2]))[0]
    assert cause.text.startswith("rank 1 exited with code 0 while ranks 0,2 went on")
    assert (cause.kind, cause.confidence, cause.culprit) == ("job", "medium", 1)
    lost = rank(0, Outcome.EXITED, code=1), rank(1, Outcome.EXITED), rank(2, Outcome.EXITED)
    several = causes(facts(*lost, signs=PEER_GONE[:1], ends=[1, 2, 0]))[0]
    assert several.text.startswith("ranks 1-2 exited with code 0 while rank 0 went on") and several.culprit is None
    # One that served the others, or that ended after them, has done nothing wrong.
    lost = rank(0, Outcome.EXITED, code=1), rank(1, Outcome.EXITED, serves=True), rank(2, Outcome.EXITED, code=1)
    assert first(facts(*lost, signs=PEER_GONE, ends=[1, 0, 2]))[0] == "peer"
    lost = rank(0, Outcome.EXITED, code=1), rank(1, Outcome.EXITED), rank(2, Outcome.EXITED, code=1)
    assert first(facts(*lost, signs=PEER_GONE, ends=[0, 1, 2]))[0] == "peer"


@pytest.mark.parametrize("name", ["python-exception", "permission", "store-refused"])
@pytest.mark.parametrize(("went_on", "culprit"), [(None, 1), (70.0, 0)])
def test_a_rendezvous_to_which_a_rank_did_not_come_after_its_error(
    name: str, went_on: float | None, culprit: int
) -> None:
    """It hung on its way out, while rank 0 waited for it."""
    signs = (sign("rendezvous-refused", 0, 0.1), sign(name, 1, 120.0, went_on=went_on, line="PermissionError: no"))
    (main, *_) = causes(facts(*FAILED, signs=signs))
    assert main.culprit == culprit


def test_two_causes_that_cannot_be_told_apart_are_both_named() -> None:
    both = rank(0, Outcome.EXITED, code=1, found_by=2), rank(1, Outcome.EXITED, code=1, found_by=2)
    signs = (sign("python-import", 0, 4.0), sign("no-space", 1, 3.9))
    text = causes(facts(*both, signs=signs))[0].text
    assert "rank 0: " in text and "rank 1: " in text and text.endswith(": which was first is unknown")


def test_two_causes_at_one_instant_are_both_named_and_the_card_comes_first() -> None:
    both = rank(0, Outcome.EXITED, code=1), rank(1, Outcome.EXITED, code=1)
    errors = sign("python-import", 0, 4.0), sign("cuda-ecc", 1, 3.9)
    cause = causes(facts(*both, signs=errors))[0]
    assert cause.text.startswith("rank 1: ") and "; or rank 0: " in cause.text
    assert (cause.signature, cause.culprit) == ("cuda-ecc", None)
    # The order of the ends decides where it is known; what may follow from the other, or is vague, is not named.
    apart = rank(0, Outcome.EXITED, code=1), replace(rank(1, Outcome.EXITED, code=1), ended_at=ZERO + 5)
    assert " or rank " not in causes(facts(*apart, signs=errors))[0].text
    for name in ("connection-refused", "python-exception"):
        other = (sign("python-import", 0, 4.0), sign(name, 1, 4.0))
        assert " or rank " not in causes(facts(*both, signs=other))[0].text


def test_below_a_launcher_each_worker_speaks_for_itself() -> None:
    launcher = rank(0, Outcome.EXITED, code=1, role="launcher")
    signs = (
        sign("python-exception", 0, 2.0, worker=1),
        sign("gloo-peer-gone", 0, 1.0, worker=0),
        sign("python-exception", 0, 1.0, worker=0),
        sign("elastic-child-failed", 0, 0.5),
    )
    known = facts(launcher, signs=signs)
    assert first(known) == ("job", "python-exception", "medium")
    told = causes(known)[0].sign
    assert told is not None and told.hit.worker == 1


def test_what_was_written_long_before_is_no_cause() -> None:
    signs = (sign("connection-refused", 0, 50_000.0, last=False), sign("nccl-timeout", 0, 0.5, place=9))
    assert first(facts(*FAILED, signs=signs)) == ("peer", "nccl-timeout", "medium")
    # Within the time that others need to notice, it can be.
    signs = (sign("cuda-out-of-memory", 0, 610.0, last=False), sign("nccl-timeout", 0, 0.5, place=9))
    assert first(facts(*FAILED, signs=signs)) == ("memory", "cuda-out-of-memory", "medium")


def test_a_victim_says_so_and_sends_one_to_the_other_nodes() -> None:
    known = facts(*FAILED, signs=(sign("nccl-peer-gone"),), world_size=16)
    assert first(known) == ("peer", "nccl-peer-gone", "medium")
    assert "other nodes" in causes(known)[0].steps[-1]


def test_a_hint_is_only_a_hint() -> None:
    assert first(facts(*FAILED, signs=(sign("loss-nan"),))) == ("job", "loss-nan", "low")


def test_placeholders_are_filled() -> None:
    (cause, *_) = causes(facts(*FAILED, signs=(sign("python-exception"),)))
    assert "`muster logs j -r 0 --tail 100`" in cause.steps[0]


def test_the_lack_of_any_fact_is_reported() -> None:
    wrote = Verdict(1, "", 0, ("[muster: attempt 1 begins]", "step 17"))
    (cause,) = causes(facts(*FAILED, verdict=wrote))
    assert (cause.kind, cause.confidence) == ("unknown", "none")
    assert "the cause is unknown" in cause.text and "muster logs j -r 0" in cause.steps[0]


@pytest.mark.parametrize("lines", [(), ("[muster: attempt 1 begins]", "step 17")])
def test_what_a_card_warned_of_is_reported_where_no_fact_explains_the_end(lines: tuple[str, ...]) -> None:
    warned = happening("node.event", "card 0: error code 0x8C104E00 (WARN)", card=0, code="NPU_FAULT_EVENT")
    noted = happening("node.event", "card 0: error code 0x80E00209 (OK)", 2.0, card=0, code="NPU_FAULT_NOTE")
    verdict = Verdict(1, "", 0, lines)
    (cause,) = causes(facts(*FAILED, happenings=(noted, warned), verdict=verdict))
    assert "the cause is unknown" in cause.text and "card 0: error code 0x8C104E00 (WARN), which may be" in cause.text
    assert "node shows" not in cause.text
    (cause,) = causes(facts(*FAILED, happenings=(noted,), verdict=verdict))
    assert "0x80E00209" not in cause.text and "node shows" in cause.text


@pytest.mark.parametrize("lines", [(), ("of the attempt before", "[muster: attempt 1 begins]")])
def test_a_log_without_a_line_is_not_said_to_be_worth_reading(lines: tuple[str, ...]) -> None:
    (cause,) = causes(facts(*FAILED, verdict=Verdict(1, "", 0, lines)))
    assert "wrote nothing" in cause.text and not any("muster logs" in step for step in cause.steps)


def test_output_that_was_lost_is_no_silence() -> None:
    ranks = rank(0, Outcome.EXITED, code=1, lost_bytes=4096, lost_why="No space left on device")
    (cause,) = causes(facts(ranks, verdict=Verdict(1, "", 0, ())))
    assert "4096 bytes of its output were lost (No space left on device)" in cause.text and cause.kind == "unknown"


# --- card and node ----------------------------------------------------------------------------------------------------


def test_a_card_that_failed_then() -> None:
    known = facts(*FAILED, happenings=(happening("node.event", "card 0: Xid 79", 2.0, **GRAVE),))
    assert first(known) == ("node", "", "high")
    assert any("Reboot" in step for step in causes(known)[0].steps)


def test_a_command_for_a_card_names_the_card() -> None:
    known = facts(*FAILED, happenings=(happening("node.event", "Xid 48", 2.0, **(GRAVE | {"code": "GPU_XID_RESET"})),))
    assert any(step.startswith("Run `muster node reset 0`") for step in causes(known)[0].steps)


def test_a_card_of_another_rank_counts_less() -> None:
    known = facts(*FAILED, happenings=(happening("node.event", "card 1: Xid 79", 2.0, **(GRAVE | {"card": 1})),))
    assert first(known) == ("node", "", "medium")


@pytest.mark.parametrize("name", ["cuda-illegal-access", "nccl-timeout", "cuda-ecc", "nccl-ib"])
def test_the_card_wins_over_an_error_that_a_broken_card_makes(name: str) -> None:
    known = facts(*FAILED, signs=(sign(name),), happenings=(happening("node.event", "Xid", 2.0, **GRAVE),))
    assert first(known)[0] == "node"
    assert name in [cause.signature for cause in causes(known)]


@pytest.mark.parametrize("name", ["python-import", "cuda-out-of-memory", "no-space"])
def test_an_error_that_no_card_makes_wins_over_the_card(name: str) -> None:
    known = facts(*FAILED, signs=(sign(name),), happenings=(happening("node.event", "Xid", 2.0, **GRAVE),))
    assert first(known)[1] == name
    assert any(cause.text.startswith("a card of the job failed") for cause in causes(known))


def test_a_fault_from_before_counts_less_and_one_that_was_gone_not_at_all() -> None:
    began = happening("node.condition", "card 0: ECC", 5000.0, **GRAVE)
    assert first(facts(*FAILED, happenings=(began,))) == ("node", "", "medium")
    gone = happening("node.condition_cleared", "card 0: ECC: is gone", 4000.0, card=0, code="GPU_OFF_BUS")
    assert first(facts(*FAILED, happenings=(began, gone)))[0] == "unknown"


def test_what_came_long_after_the_end_is_no_reason() -> None:
    assert first(facts(*FAILED, happenings=(happening("node.event", "Xid", -300.0, **GRAVE),)))[0] == "unknown"


def test_a_drill_is_no_reason() -> None:
    drill = happening("node.condition", "card 0", 2.0, card=0, code="GPU_OFF_BUS", grave=False)
    assert first(facts(*FAILED, happenings=(drill,)))[0] == "unknown"


def test_the_node_as_a_whole_is_the_last_to_be_blamed() -> None:
    disk = happening("node.event", "nvme0: I/O error", 2.0, code="KERNEL_FS_READ_ONLY", grave=True)
    assert first(facts(*FAILED, happenings=(disk,))) == ("node", "", "low")
    known = facts(*FAILED, signs=(sign("cuda-out-of-memory"),), happenings=(disk,))
    assert first(known)[1] == "cuda-out-of-memory"


def test_a_child_that_the_kernel_killed() -> None:
    killed = happening("node.event", "process 77 (pt_data_worker)", 2.0, code="OOM_KILL")
    known = facts(*FAILED, signs=(sign("data-loader"),), happenings=(killed,))
    assert first(known) == ("memory", "", "medium")
    assert "process 77" in causes(known)[0].text


@pytest.mark.parametrize(("others", "kind"), [((), "memory"), ((78,), "memory"), ((77, 78), "peer")])
def test_a_process_of_a_cgroup_without_anything_of_the_job(others: tuple[int, ...], kind: str) -> None:
    """A container beside it had reached its limit."""
    line = "Memory cgroup out of memory: Killed process 77 (python3) total-vm:42kB, UID:0 pgtables:8kB"
    killed = happening("node.event", line, 2.0, code="OOM_KILL")
    known = facts(*FAILED, signs=(sign("nccl-timeout"),), happenings=(killed,))
    assert first(replace(known, killed_in_others=frozenset(others)))[0] == kind


@pytest.mark.parametrize(("uid", "kind"), [(1000, "memory"), (0, "unknown"), (None, "memory")])
def test_a_process_of_another_user_is_none_of_the_job(uid: int | None, kind: str) -> None:
    line = "Memory cgroup out of memory: Killed process 77 (python3) total-vm:42kB, UID:1000 pgtables:8kB"
    killed = happening("node.event", line, 2.0, code="OOM_KILL")
    assert first(replace(facts(*FAILED, happenings=(killed,)), uid=uid))[0] == kind


# --- hangs ------------------------------------------------------------------------------------------------------------

HUNG = happening("job.hung", "rank 1 does not take part (spin)", 3.0)


def test_a_hang_for_which_it_was_stopped() -> None:
    stop = Stop(StopCause.HUNG, "muster", "rank 1 does not take part (spin)", (), ZERO)
    known = facts(
        rank(0, Outcome.STOPPED, killed=9), state=State.STOPPED, stop=stop, happenings=(HUNG,), verdict=Verdict(137, "")
    )
    assert first(known) == ("hang", "", "high")
    assert "muster stacks j --kept" in causes(known)[0].steps[0]
    assert first(facts(rank(0, Outcome.HUNG, killed=9), happenings=(HUNG,)))[::2] == ("hang", "high")


@pytest.mark.parametrize(
    ("name", "before", "counts"), [("keyboard-interrupt", 1.0, False), ("nccl-peer-gone", 9.0, True)]
)
def test_what_follows_from_the_signal_that_ended_it_for_a_hang_is_no_cause(
    name: str, before: float, counts: bool
) -> None:
    found = causes(facts(rank(0, Outcome.HUNG, killed=9), happenings=(HUNG,), signs=(sign(name, 0, before),)))
    assert [cause.signature for cause in found if cause.signature] == ([name] if counts else [])


@pytest.mark.parametrize(("by", "reason"), [("uid 1001 (zhang)", ""), ("uid 1000 (alice)", "learning rate changed")])
def test_a_hang_that_was_told_before_somebody_stopped_it_for_another_reason(by: str, reason: str) -> None:
    stop = Stop(StopCause.REQUESTED, by, reason, (), ZERO)
    stopped = rank(0, Outcome.STOPPED, killed=9)
    known = facts(stopped, state=State.STOPPED, stop=stop, happenings=(HUNG,), verdict=Verdict(137, ""))
    assert first(known) == ("stop", "", "certain")


def test_a_driver_that_hung_is_reported_as_that() -> None:
    hangs = happening("job.driver_hang", "a call of the driver for card 1 does not return", 3.0)
    assert causes(facts(*FAILED, happenings=(hangs,)))[0].text.startswith("a driver hung: a call")
    (now,) = causes(facts(rank(0, None), state=State.RUNNING, happenings=(hangs,)))
    assert now.text.startswith("a driver hangs: a call") and now.confidence == "low"


@pytest.mark.parametrize(("confidence", "sure"), [(None, "high"), (0.95, "high"), (0.4, "low")])
def test_a_running_job_hangs_as_surely_as_the_rule_says(confidence: float | None, sure: str) -> None:
    hangs = replace(HUNG, confidence=confidence)
    (now,) = causes(facts(rank(0, None), state=State.RUNNING, happenings=(hangs,)))
    assert now.text.startswith("it seems to hang: rank 1") and now.confidence == sure


def test_a_hang_after_which_it_failed_by_itself() -> None:
    known = facts(*FAILED, signs=(sign("nccl-timeout"),), happenings=(HUNG,))
    assert first(known) == ("hang", "", "medium")
    assert causes(known)[0].rank is None
    named = replace(HUNG, rank=1)
    assert causes(facts(*FAILED, signs=(sign("nccl-timeout"),), happenings=(named,)))[0].culprit == 1
    root = facts(*FAILED, signs=(sign("python-exception"),), happenings=(named,))
    assert first(root)[1] == "python-exception", "what a rank says of itself counts more"
    long_ago = replace(HUNG, at=ZERO - 400.0)
    recovered = happening("job.recovered", "goes on", 300.0)
    assert first(facts(*FAILED, signs=(sign("nccl-timeout"),), happenings=(long_ago, recovered)))[1] == "nccl-timeout"
    unsure = replace(HUNG, confidence=0.4)
    assert first(facts(*FAILED, signs=(sign("nccl-timeout"),), happenings=(unsure,)))[1] == "nccl-timeout"
    earlier = happening("job.hung", "in the attempt before", RAN + 50)
    assert first(facts(*FAILED, signs=(sign("nccl-timeout"),), happenings=(earlier,)))[1] == "nccl-timeout"


@pytest.mark.parametrize(("number", "role"), [(2, "launcher"), (0, "launcher"), (2, "rank")])
def test_a_worker_of_a_launcher_is_no_rank_of_the_job(number: int, role: str) -> None:
    """The rule numbers workers as their launcher does."""
    hung = replace(HUNG, rank=number)
    failed, early = rank(0, Outcome.EXITED, code=1, role=role), Verdict(1, "", recommendation="FAIL")
    known = facts(failed, signs=(sign("nccl-timeout"),), happenings=(hung,), verdict=early)
    assert first(known) == ("hang", "", "medium") and causes(known)[0].culprit is None
    assert advise(known, causes(known)).action == "RETRY_HERE"


@pytest.mark.parametrize("before", [0.25, 20.0, -0.5])
def test_what_ranks_write_when_they_give_up_waiting_is_no_recovery(before: float) -> None:
    """The library's time limit has passed: each writes an error, dumps its state, and exits."""
    recovered = happening("job.recovered", "does not hang: gives signs of life", before)
    hung = replace(HUNG, at=ZERO - RAN + 10.0, rank=1)
    known = facts(*FAILED, signs=(sign("nccl-timeout"),), happenings=(hung, recovered))
    assert first(known) == ("hang", "", "medium") and causes(known)[0].culprit == 1


# --- a status alone ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "words", "confidence"),
    [
        (signal.SIGKILL, "whether memory ran out is unknown", "low"),
        (signal.SIGTERM, "somebody ended rank 0 with SIGTERM", "low"),
        (signal.SIGSEGV, "memory that it does not own", "low"),
        (signal.SIGBUS, "/dev/shm", "low"),
        (signal.SIGUSR1, "died of SIGUSR1", "low"),
        (40, "died of signal 40", "low"),
    ],
)
def test_a_signal(number: int, words: str, confidence: str) -> None:
    cause = causes(facts(rank(0, Outcome.SIGNALLED, killed=number), victim(1)))[0]
    assert words in cause.text and cause.confidence == confidence


@pytest.mark.parametrize(
    ("to", "name", "before", "by_muster"),
    [
        ("0", "SIGUSR1", 0.1, True),
        ("0,1", "SIGUSR1", 3.0, True),
        ("1", "SIGUSR1", 0.1, False),
        ("10", "SIGUSR1", 0.1, False),
        ("0", "SIGUSR2", 0.1, False),
        ("0", "SIGUSR1", 600.0, False),
    ],
)
def test_a_signal_that_somebody_had_muster_send(to: str, name: str, before: float, by_muster: bool) -> None:
    told = {"signal": name, "ranks": to, "by": "root (uid 0, pid 7)", "force": "true"}
    event = Event(ZERO - before, "job.signalled", "job", attributes=told)
    killed = rank(0, Outcome.SIGNALLED, killed=signal.SIGUSR1)
    early = Verdict(138, "it failed", 0, recommendation="FAIL")
    known = replace(facts(killed, victim(1), signs=(sign("python-exception"),), verdict=early), events=Events((event,)))
    cause = causes(known)[0]
    assert (cause.kind == "stop") is by_muster
    if by_muster:
        assert cause.text == "rank 0 died of SIGUSR1, which root (uid 0, pid 7) had muster send"
        assert advise(known, [cause]).action == "RETRY_HERE"


@pytest.mark.parametrize(("code", "name"), [(137, "SIGKILL"), (139, "SIGSEGV"), (143, "SIGTERM")])
def test_a_shell_tells_the_signal_of_its_child(code: int, name: str) -> None:
    cause = causes(facts(rank(0, Outcome.EXITED, code=code)))[0]
    assert name in cause.text and f"exit code {code}" in cause.text and "below rank 0" in cause.text


def test_an_exit_code_that_is_no_signal_says_nothing() -> None:
    assert first(facts(rank(0, Outcome.EXITED, code=200)))[0] == "unknown"


# --- while it runs ----------------------------------------------------------------------------------------------------


def running(**fields: object) -> Facts:
    return facts(rank(0), rank(1), state=State.RUNNING, **fields)  # type: ignore[arg-type]  # passed on as they are


def test_a_job_that_runs_well() -> None:
    assert causes(running()) == []
    assert causes(running(signs=(sign("connection-refused", 0, 5000.0),))) == []
    assert causes(running(signs=(sign("python-exception", 0, 1.0),))) == []


def test_a_job_that_seems_to_hang_or_has_a_sick_card() -> None:
    hung = happening("job.suspected_hang", "no progress for 5 min", 3.0)
    assert [(c.kind, c.confidence) for c in causes(running(happenings=(hung,)))] == [("hang", "low")]
    (cause,) = causes(replace(running(happenings=(hung,)), suspected="SUSPECT: rank 1 waits in lock (a.py:1)"))
    assert cause.text == "it seems to hang: SUSPECT: rank 1 waits in lock (a.py:1)"
    assert [(c.kind, c.confidence) for c in causes(running(happenings=(HUNG,)))] == [("hang", "high")]
    assert causes(running(happenings=(HUNG, happening("job.recovered", "goes on", 1.0)))) == []
    sick = happening("node.condition", "card 0: GPU_OFF_BUS", 3.0, **GRAVE)
    assert [c.kind for c in causes(running(happenings=(sick,)))] == ["node"]


def test_what_it_wrote_lately() -> None:
    (cause,) = causes(running(signs=(sign("no-space", 0, 3.0),)))
    assert cause.confidence == "low" and "its recent output says" in cause.text


# --- attempts ---------------------------------------------------------------------------------------------------------


#: An attempt of which rank 0 failed first, at AT; rank 1 was stopped then.
AT = ZERO - 500.0
BEFORE = [Attempt(number, AT - 60, AT + 5, 7, "rank 0 exited with code 7", 0, {0: 10, 1: 10}) for number in range(3)]


def of_attempts(known: Facts, *, told: bool = True) -> Facts:
    """`told`: its event tells when rank 0 ended."""
    exited = Event(AT, "rank.exited", known.entry.job_id, rank=0)
    known.job.past = list(BEFORE)
    return replace(known, events=Events((exited,)) if told else Events())


def test_the_same_end_again() -> None:
    past = {0: (sign("no-space", 0, 501.0),), 1: (sign("cuda-ecc", 0, 501.0),), 2: (sign("no-space", 0, 501.0),)}
    assert "attempts 0,2" in repeated(of_attempts(facts(*FAILED, signs=(sign("no-space"),), past=past)))
    assert repeated(of_attempts(facts(*FAILED, signs=(sign("python-import"),), past=past))) == ""
    assert repeated(of_attempts(facts(*FAILED, past=past))) == ""
    succeeded = facts(rank(0, Outcome.EXITED), state=State.SUCCEEDED, signs=(sign("no-space"),), past=past)
    assert repeated(of_attempts(succeeded)) == ""


def test_an_earlier_attempt_is_judged_as_the_last_one() -> None:
    """Its victim exited first; the rank with the error of its own was stopped, or wrote its own only when it was."""
    lost = sign("gloo-peer-gone", 0, 500.5)
    own, late = sign("io-error", 1, 501.0), sign("python-exception", 1, 499.0)
    past = {0: (lost, own), 1: (lost, late), 2: (lost,)}
    known = of_attempts(facts(*FAILED, past=past))
    assert first_failures(known) == {0: 1}
    found = [past_attempts.cause(attempt, known) for attempt in BEFORE]
    assert [one.signature if one else None for one in found] == ["io-error", "gloo-peer-gone", "gloo-peer-gone"]
    # Where nobody knows when the first rank ended, no other is blamed.
    assert first_failures(of_attempts(facts(*FAILED, past=past), told=False)) == {}


def test_telemetry_is_evidence() -> None:
    busy, idle = Curve(0, 0, (100.0,) * 5), Curve(1, 1, (100.0, 100.0, 100.0, 0.0, 0.0))
    known = facts(*FAILED, signs=(sign("nccl-timeout"),))
    known = Facts(**{name: getattr(known, name) for name in known.__slots__} | {"minutes": Minutes(0, 1, (busy, idle))})
    assert causes(known)[0].evidence == ("card 1 (rank 1) stayed idle at the end while the others were busy",)
