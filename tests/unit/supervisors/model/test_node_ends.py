"""What a node of an MPI job says of another one that ended it."""

import pytest

from muster.supervisors.model import node_ends


@pytest.mark.parametrize(
    ("sentence", "text", "advice", "faulty"),
    [
        (node_ends.stopped(0, "a"), "stopped on node 0 (a)", "NONE", ""),
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
