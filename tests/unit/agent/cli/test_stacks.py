"""What `muster stacks` shows of an answer."""

import click
import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from muster.agent.cli.commands.stacks import stacks, text
from muster.v1 import job_pb2


def owner(rank: int, **fields: str) -> job_pb2.StackOwner:
    return job_pb2.StackOwner(rank=rank, pid=100 + rank, threads=3, **{"state": "S", "command": "python t.py"} | fields)


def shown(*groups: job_pb2.StackGroup, occasion: str = "request", notes: tuple[str, ...] = ()) -> list[str]:
    answer = job_pb2.GetStacksResponse(at=Timestamp(seconds=1), occasion=occasion, groups=groups, notes=notes)
    return list(text("train", answer))


def test_groups_stand_in_the_order_of_the_answer_with_their_frames():
    odd = job_pb2.StackGroup(owners=[owner(3, wchan="pipe_read")], stack="load (data.py:3)\nmain (t.py:9)")
    rest = job_pb2.StackGroup(owners=[owner(rank) for rank in (0, 1, 2, 4)], stack="wait (dist.py:1)\n\nthread 'x':")
    head, *lines = shown(odd, rest, occasion="hung")
    assert head.startswith("train: 5 processes at 2 places, ")
    assert head.endswith("(hung)")
    assert lines == [
        "",
        "rank 3: 1 of 5 processes",
        "  RANK  PID  S  THREADS  WAITS IN   COMMAND",
        "  3     103  S  3        pipe_read  python t.py",
        "  | load (data.py:3)",
        "  | main (t.py:9)",
        "",
        "ranks 0-2,4: 4 of 5 processes",
        "  RANK  PID  S  THREADS  WAITS IN  COMMAND",
        *(f"  {rank}     {100 + rank}  S  3        -         python t.py" for rank in (0, 1, 2, 4)),
        "  | wait (dist.py:1)",
        "  |",
        "  | thread 'x':",
    ]


def test_a_large_group_is_cut():
    lines = shown(job_pb2.StackGroup(owners=[owner(rank) for rank in range(64)], stack="f (a.py:1)"))
    assert lines[0].startswith("train: 64 processes at one place, ")
    assert "  and 56 more" in lines


def test_what_a_job_controls_cannot_write_to_the_terminal():
    lines = shown(job_pb2.StackGroup(owners=[owner(0, command="py\x1b[2Jthon")], stack="f\x1b]0;x\x07 (a.py:1)\a"))
    assert not any("\x1b" in line or "\a" in line for line in lines)


def test_notes_are_shown_also_alone():
    assert shown(notes=("the job has ended",)) == ["", "note: the job has ended"]


@pytest.mark.parametrize("wrong", ["x", "-1", "1,2"])
def test_a_rank_is_a_number(wrong: str):
    with pytest.raises(click.BadParameter):
        stacks.make_context("stacks", ["-r", wrong, "job"])
