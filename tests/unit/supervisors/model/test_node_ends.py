"""What a node of an MPI job says of another one that ended it."""

import pytest

from muster.supervisors.model import node_ends
from muster.supervisors.model.states import StopCause


@pytest.mark.parametrize(
    ("sentence", "text", "advice", "faulty"),
    [
        (node_ends.ended("stopped", 0, "a"), "stopped on node 0 (a)", "NONE", ""),
        (node_ends.ended("timed out", 1, ""), "timed out on node 1", "NONE", ""),
        (node_ends.ended("failed", 1, "b"), "failed on node 1 (b)", "RETRY_HERE", ""),
        (
            node_ends.ended("failed", 0, "a", "mpirun ended with code 9"),
            "failed on node 0 (a): mpirun ended with code 9",
            "RETRY_HERE",
            "",
        ),
        (
            node_ends.late(2, "c", 600, "no answer"),
            "node 2 (c) did not come within 10 min: no answer",
            "RETRY_ELSEWHERE",
            "c",
        ),
        (node_ends.late(2, "", 90, "x"), "node 2 did not come within 90 s: x", "RETRY_ELSEWHERE", "2"),
        (node_ends.lost(1, "b", "gone"), "node 1 (b) was lost before the job ended: gone", "RETRY_ELSEWHERE", "b"),
    ],
)
def test_a_sentence_is_read_as_it_was_written(sentence: str, text: str, advice: str, faulty: str) -> None:
    assert sentence == text
    assert node_ends.read(f"{node_ends.LABEL}{sentence}\n") == text
    assert node_ends.recommend(text)[0] == advice
    assert node_ends.is_stop(text) == (advice == "NONE")
    assert node_ends.faulty(text, node_ends.recommend(text)) == faulty
    assert node_ends.faulty(text, ("RETRY_ELSEWHERE", "a card of this node has a fault")) == ""


@pytest.mark.parametrize("line", ["stopped on node 0", "[muster mpi] mpirun ended with code 3", "", "[muster mpi] "])
def test_other_lines_are_none(line: str) -> None:
    assert node_ends.read(line) == ""


def test_the_signal_before_sigterm_says_why() -> None:
    said = {cause: node_ends.SAID_BY.get(node_ends.signal_of(cause), "stopped") for cause in StopCause}
    assert said[StopCause.REQUESTED] == "stopped" and said[StopCause.MAX_RUNTIME] == "timed out"
    assert said[StopCause.HUNG] == said[StopCause.SERVICE_ENDED] == "failed"
