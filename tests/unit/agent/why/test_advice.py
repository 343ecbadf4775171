"""What is recommended for which cause."""

import signal
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from muster.agent.logs.log_reading import RankLogFile
from muster.agent.why import log_signs
from muster.agent.why.causes.advice import SIGNATURES, TABLE, Advice, Recommendation, advise
from muster.agent.why.causes.found import SeenIn
from muster.agent.why.causes.probable_cause import causes
from muster.agent.why.facts import Facts
from muster.agent.why.log_signs import Wanted
from muster.agent.why.signatures import Kind, builtin
from muster.probes.node import filesystems
from muster.probes.node.filesystems import Unwritable
from muster.supervisors.model.lifecycle import Verdict
from muster.supervisors.model.states import Outcome, State
from tests.unit.why_facts import facts, happening, rank, sign, victim

EARLY = Verdict(1, "rank 0 exited with code 1", 0, recommendation="FAIL", recommendation_reason="early")
FAILED = (rank(0, Outcome.EXITED, code=1), victim(1))
XID = happening("node.condition", "card 0: Xid 79", card=0, code="GPU_OFF_BUS", grave=True)


def advice(known: Facts) -> Advice:
    return advise(known, causes(known))


def test_each_kind_of_signature_has_a_row() -> None:
    assert {kind for kind, seen in TABLE if seen is SeenIn.OUTPUT} == set(get_args(Kind))
    assert SIGNATURES.keys() <= {one.id for one in builtin().signatures}


@pytest.mark.parametrize("early", [Recommendation.ELSEWHERE, Recommendation.NOTHING])
def test_what_the_supervisor_knows_for_certain_stays(early: str) -> None:
    verdict = Verdict(1, "", 0, recommendation=early, recommendation_reason="early")
    assert advice(facts(*FAILED, signs=(sign("python-import"),), verdict=verdict)) == (early, "early")


def test_a_fault_of_a_card_wins_over_an_error_that_it_makes() -> None:
    assert advice(facts(*FAILED, signs=(sign("nccl-timeout"),), verdict=EARLY)).action == Recommendation.HERE
    known = facts(*FAILED, signs=(sign("nccl-timeout"),), happenings=(XID,), verdict=EARLY)
    assert advice(known) == TABLE["node", SeenIn.CARD]
    # The program's own error is the cause, but the card must not get the next job.
    known = facts(*FAILED, signs=(sign("python-import"),), happenings=(XID,), verdict=EARLY)
    assert advice(known) == TABLE["node", SeenIn.CARD]


def test_a_job_whose_card_had_a_fault_of_the_moment_starts_again() -> None:
    """Not "the job failed by itself, and no fault is known": the driver said that the job must restart."""
    fault = happening(
        "node.event", "card 0: error code 0x80E01801 (the job must restart)", card=0, code="NPU_FAULT_JOB"
    )
    known = facts(*FAILED, happenings=(fault,), verdict=EARLY)
    assert "0x80E01801" in causes(known)[0].text and advice(known) == TABLE["device", SeenIn.CARD]
    assert advice(known).action == Recommendation.HERE
    # What the program says of such a fault, and of a peer that had one, is its consequence; an error of its own is not.
    known = facts(*FAILED, signs=(sign("nccl-timeout"),), happenings=(fault,), verdict=EARLY)
    assert advice(known) == TABLE["device", SeenIn.CARD]
    known = facts(*FAILED, signs=(sign("python-import"),), happenings=(fault,), verdict=EARLY)
    assert advice(known).action == Recommendation.FAIL
    # A card that must get no job does not get this one.
    known = facts(*FAILED, happenings=(fault, XID), verdict=EARLY)
    assert advice(known) == TABLE["node", SeenIn.CARD]


def test_it_is_that_of_the_rank_that_is_the_cause() -> None:
    """Not of the one that the supervisor saw end first."""
    ranks = rank(0, Outcome.EXITED, code=1), rank(1, Outcome.SIGNALLED, killed=signal.SIGKILL)
    assert advice(facts(*ranks, signs=(sign("gloo-peer-gone"),), verdict=EARLY)).action == Recommendation.HERE
    ranks = rank(0, Outcome.EXITED, code=1), rank(1, Outcome.EXITED, code=7)
    assert advice(facts(*ranks, signs=(sign("gloo-peer-gone"),), verdict=EARLY)).action == Recommendation.FAIL


def test_a_vague_sign_with_an_action_of_its_own_has_that() -> None:
    known = facts(*FAILED, signs=(sign("keyboard-interrupt"),), verdict=EARLY)
    assert advice(known) == SIGNATURES["keyboard-interrupt"]


NO_TOKENIZER = """Traceback (most recent call last):
  File "/workspace/train.py", line 21, in <module>
    tok = AutoTokenizer.from_pretrained(args.model)
OSError: Can't load tokenizer for 'bert-base-uncased'. If you were trying to load it from \
'https://huggingface.co/models', make sure you don't have a local directory with the same name. Otherwise, make sure \
'bert-base-uncased' is the correct path to a directory containing all relevant files for a BertTokenizerFast tokenizer.
"""
NO_HUB = """'(MaxRetryError("HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded with url: \
/bert-base-uncased/resolve/main/tokenizer_config.json (Caused by NewConnectionError(\
'<urllib3.connection.HTTPSConnection object at 0x7f>: \
Failed to establish a new connection: [Errno 101] Network is unreachable'))"), '(Request ID: 1d1c)')' \
thrown while requesting HEAD https://huggingface.co/bert-base-uncased/resolve/main/tokenizer_config.json
"""


@pytest.mark.parametrize(("text", "action"), [(NO_TOKENIZER, "FAIL"), (NO_HUB + NO_TOKENIZER, "RETRY_HERE")])
def test_a_tokenizer_that_is_not_there_is_no_hub_that_does_not_answer(text: str, action: str, tmp_path: Path) -> None:
    """The exception says the same of both."""
    log = RankLogFile(0, tmp_path / "x-proc-rank-0-device-0.txt", tmp_path / "x-proc-rank-0-device-0.idx")
    log.path.write_text(text)
    searched = log_signs.search_file(Wanted(0, log), builtin())
    assert advice(facts(*FAILED, signs=searched.signs, verdict=EARLY)).action == action


def test_a_vague_sign_changes_nothing() -> None:
    assert advice(facts(*FAILED, signs=(sign("python-exception"),), verdict=EARLY)) == ("FAIL", "early")
    assert advice(facts(*FAILED, verdict=EARLY)) == ("FAIL", "early")


def test_a_killed_rank_is_tried_again_with_any_earlier_output() -> None:
    verdict = Verdict(137, "", 0, recommendation="RETRY_HERE", recommendation_reason="early")
    killed = (rank(0, Outcome.SIGNALLED, killed=signal.SIGKILL), victim(1))
    old = sign("python-import", before=800.0, last=False)
    assert advice(facts(*killed, signs=(old,), verdict=verdict)) == ("RETRY_HERE", "early")


@pytest.mark.parametrize("code", [129, 130, 137, 143])
def test_a_process_below_a_rank_that_somebody_ended_counts_as_the_rank(code: int) -> None:
    """A shell, or a program that handles SIGTERM, reports the signal by its exit code."""
    known = facts(rank(0, Outcome.EXITED, code=code), victim(1), verdict=EARLY)
    assert advice(known) == TABLE["unknown", SeenIn.SIGNAL]
    known = facts(rank(0, Outcome.EXITED, code=code), victim(1), signs=(sign("python-import"),), verdict=EARLY)
    assert advice(known).action == Recommendation.FAIL
    killed = happening("node.event", "out of memory: process 9 was killed", code="OOM_KILL")
    known = facts(rank(0, Outcome.EXITED, code=code), victim(1), happenings=(killed,), verdict=EARLY)
    assert advice(known) == ("FAIL", "early")


@pytest.mark.parametrize("code", [134, 139, 200])
def test_an_exit_code_of_a_crash_is_the_programs(code: int) -> None:
    assert advice(facts(rank(0, Outcome.EXITED, code=code), victim(1), verdict=EARLY)) == ("FAIL", "early")


def test_a_full_file_system_of_the_node_is_the_nodes() -> None:
    full = facts(*FAILED, signs=(sign("no-space"),), verdict=EARLY)
    assert advice(full).action == Recommendation.FAIL
    disk = happening("node.condition", "/data: 100 % full", code="DISK_FULL", grave=True)
    assert (
        advice(facts(*FAILED, signs=(sign("no-space"),), happenings=(disk,), verdict=EARLY)).action
        == Recommendation.ELSEWHERE
    )


def test_memory() -> None:
    verdict = Verdict(137, "", 0, recommendation="FAIL", recommendation_reason="early")
    killed = (rank(0, Outcome.OUT_OF_MEMORY, killed=signal.SIGKILL),)
    line = "Out of memory: Killed process 4000 (python)"
    oom = happening("node.event", line, code="OOM_KILL")
    assert advice(facts(*killed, happenings=(oom,), verdict=verdict)) == TABLE["memory", SeenIn.NODE]
    limited = facts(*killed, happenings=(oom,), verdict=verdict, spec={"limits": {"memory": 1 << 30}})
    assert advice(limited).action in (Recommendation.FAIL, Recommendation.ELSEWHERE)
    assert advice(facts(*killed, verdict=verdict)) == ("FAIL", "early")


BY_SIGNAL = Verdict(143, "rank 0 was ended by SIGTERM", 0, recommendation="RETRY_HERE", recommendation_reason="early")


def test_the_rank_to_blame_decides_and_not_the_first() -> None:
    """The launcher's SIGTERM for rank 0 came first."""
    ends = rank(0, Outcome.SIGNALLED, killed=signal.SIGTERM), rank(1, Outcome.EXITED, code=1)
    known = facts(*ends, signs=(sign("python-exception", 1, line="ValueError: no"),), verdict=BY_SIGNAL)
    assert advice(known).action == Recommendation.FAIL
    assert advice(facts(*ends, verdict=BY_SIGNAL)).action == Recommendation.HERE


@pytest.mark.parametrize(
    ("line", "before", "action"),
    [
        ("RuntimeError: no memory left for the cache", 1.0, "FAIL"),
        ("RuntimeError: no memory left for the cache", 20.0, "RETRY_HERE"),
        ("RuntimeError: received SIGTERM", 1.0, "RETRY_HERE"),
    ],
)
def test_what_a_rank_wrote_just_before_it_was_killed(line: str, before: float, action: str) -> None:
    ends = (rank(0, Outcome.SIGNALLED, killed=signal.SIGKILL),)
    known = facts(*ends, signs=(sign("python-exception", 0, before, line=line),), verdict=BY_SIGNAL)
    assert advice(known).action == action


def test_a_job_that_goes_on_has_no_recommendation() -> None:
    assert advice(facts(rank(0), state=State.RUNNING)).action == "UNSPECIFIED"


DISKS = {
    "/scratch/run/ckpt.pt": Unwritable("/scratch", "xfs", shared=False, full=True),
    "/tmp/x": Unwritable("/", "ext4", shared=False),
    "/data/run/model.bin": Unwritable("/data", "lustre", shared=True),
    "/dev/shm": Unwritable("/dev/shm", "tmpfs", shared=False, full=True),
    "/local/ckpt.pt": Unwritable("/local", "ext4", shared=False, became_read_only=True),
}


@pytest.mark.parametrize(
    ("line", "action", "words"),
    [
        ("OSError: [Errno 28] No space left on device: '/scratch/run/ckpt.pt'", "RETRY_ELSEWHERE", "/scratch (xfs)"),
        ("OSError: [Errno 28] No space left on device: '/tmp/x'", "FAIL", "a file system is full"),
        ("cp: error writing '/data/run/model.bin': No space left on device", "FAIL", "all nodes share it"),
        (
            "RuntimeError: unable to write to file </torch_3121_1467>: No space left on device (28)",
            "RETRY_ELSEWHERE",
            "/dev/shm (tmpfs)",
        ),
        ("OSError: [Errno 28] No space left on device", "FAIL", "a file system is full"),
        ("/opt/app/write.c:33: No space left on device", "FAIL", "a file system is full"),
    ],
)
def test_whose_file_system_is_full(line: str, action: str, words: str) -> None:
    known = facts(*FAILED, signs=(sign("no-space", line=line),), verdict=EARLY)
    found = advice(replace(known, unwritable=DISKS))
    assert found.action == action and words in found.reason
    # Where nothing is known of the file system, nothing is guessed.
    assert advice(known) == SIGNATURES["no-space"]


@pytest.mark.parametrize(
    ("path", "action", "words"),
    [
        ("/local/ckpt.pt", "RETRY_ELSEWHERE", "this node's file system /local (ext4) became read-only"),
        ("/scratch/run/ckpt.pt", "FAIL", "writes to a read-only file system"),
        ("/data/run/model.bin", "FAIL", "writes to a read-only file system"),
        ("/image/x", "FAIL", "writes to a read-only file system"),
    ],
)
def test_whose_file_system_is_read_only(path: str, action: str, words: str) -> None:
    line = f"OSError: [Errno 30] Read-only file system: '{path}'"
    known = facts(*FAILED, signs=(sign("read-only", line=line),), verdict=EARLY)
    found = advice(replace(known, unwritable=DISKS))
    assert found.action == action and words in found.reason


async def test_a_file_system_is_looked_at_by_its_path(tmp_path: Path) -> None:
    path = sign("no-space", line=f"OSError: [Errno 28] No space left on device: '{tmp_path}/x'").path
    assert path == f"{tmp_path}/x"
    found = await filesystems.unwritable(path)
    assert found is not None and not found.shared and path.startswith(found.mount.rstrip("/"))
