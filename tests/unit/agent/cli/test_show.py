"""The API's messages as words."""

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from muster.agent.cli import show
from muster.agent.cli.commands import look, ps
from muster.agent.cli.printing import as_dict
from muster.agent.text import table_parts
from muster.v1 import job_pb2


def job(**hang: object) -> job_pb2.Job:
    found = job_pb2.HangVerdict(**hang)  # type: ignore[arg-type]
    return job_pb2.Job(job_id="j", state=job_pb2.JOB_STATE_RUNNING, hang=found, spec=job_pb2.JobSpec(command=["true"]))


@pytest.mark.parametrize(
    ("verdict", "kind", "shown"),
    [
        ("", "", ""),
        ("ALIVE", "", ""),
        ("UNKNOWN", "", ""),
        ("SUSPECT", "deadlock", "SUSPECT (deadlock)"),
        ("HUNG", "spin", "HUNG (spin)"),
        ("DRIVER_HANG", "", "DRIVER_HANG"),
    ],
)
def test_a_job_that_hangs_is_pointed_out(verdict: str, kind: str, shown: str) -> None:
    found = job(verdict=verdict, kind=kind)
    assert show.hang(found) == shown
    assert ("RUNNING, " + shown if shown else "RUNNING  ") in "".join(
        table_parts(ps.HEAD, [ps.FittingJobs([found]).rows([found])])
    )


def test_status_says_since_when_who_and_why() -> None:
    reason = "HUNG (spin) for 600 s: per rank: cards wait for a rank that does nothing; rank 5: its process has ended"
    found = job(verdict="HUNG", kind="spin", ranks=[5], reason=reason, since=Timestamp(seconds=1763719200))
    assert look.hang_line(found) == (
        f"HUNG (spin) since {show.when(found.hang.since)}, rank 5: per rank: cards wait for a rank that does nothing; "
        "rank 5: its process has ended (muster why j, muster stacks j)"
    )
    assert look.hang_line(job(verdict="ALIVE")) == ""


@pytest.mark.parametrize(
    ("verdict", "kind", "reason", "shown"),
    [
        ("HUNG", "deadlock", "rank 1 sleeps in f (t.py:8) since 10:04:11; rank 0 waits for it", "HUNG (deadlock): {}"),
        ("SUSPECT", "spin", "SUSPECT: rank 1 sleeps in f (t.py:8) since 10:04:11", "SUSPECT (spin): {}"),
        ("WAITING", "", "WAITING: rank 1 runs in f (t.py:8) since 10:04:11; rank 0 waits for it", "WAITING: {}"),
        ("WAITING", "", "WAITING; rank 1: stacks: a rank waits for requests", ""),
    ],
)
def test_status_names_the_culprit(verdict: str, kind: str, reason: str, shown: str) -> None:
    sentence = reason.removeprefix(f"{verdict}: ")
    more = " (muster why j, muster stacks j)" if shown else ""
    assert look.hang_line(job(verdict=verdict, kind=kind, ranks=[1], reason=reason)) == shown.format(sentence) + more


def test_what_could_not_be_read_of_a_rank_is_no_zero() -> None:
    unknown, none = job_pb2.Usage(), job_pb2.Usage(cpu_user_seconds=0, cpu_system_seconds=0, max_rss_bytes=0)
    assert [show.cpu(unknown), show.memory(unknown), show.transferred(unknown)] == ["-", "-", "-"]
    assert [show.cpu(none), show.memory(none)] == ["0.00+0.00s", "0B"]
    assert not as_dict(unknown)
