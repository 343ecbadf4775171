"""The mark of a drill, in what the commands print."""

from collections import defaultdict, deque

import pytest

from muster.agent.cli.commands import node
from muster.agent.cli.fitness import check_words, drills
from muster.agent.cli.live import top_table
from muster.v1 import job_pb2, node_pb2, telemetry_pb2


def condition(injected: bool, reason: str = "it is lost", status: str = "CRITICAL", card: int | None = 1):
    return node_pb2.Condition(
        device="" if card is None else f"card {card}",
        status=status,
        code="GPU_LOST",
        reason=reason,
        injected=injected,
        card=card,
    )


def cards(*health: str) -> list[node_pb2.Card]:
    return [node_pb2.Card(index=i, kind="nvidia", model="H100", health=word) for i, word in enumerate(health)]


@pytest.mark.parametrize("reason", ["it is lost", "a drill of uid 0: it is lost", "drill", ""])
def test_the_mark_is_shown_with_every_reason(reason: str, capfd: pytest.CaptureFixture[str]):
    assert drills.reason(condition(True, reason)).endswith("(injected for a drill)")
    assert drills.reason(condition(False, reason)) == reason
    check_words.print_conditions([condition(True, reason)], as_json=False)  # the answer of inject, and of clear
    assert "(injected for a drill)" in capfd.readouterr().out
    node.print_node(node_pb2.Node(hostname="n", conditions=[condition(True, reason)]), as_json=False)
    assert "(injected for a drill)" in capfd.readouterr().out


def test_the_health_of_a_card_is_starred_where_only_a_drill_makes_it_so(capfd: pytest.CaptureFixture[str]):
    found = node_pb2.Node(
        hostname="n",
        cards=cards("OK", "CRITICAL", "CRITICAL", "WARN"),
        conditions=[
            condition(True),
            condition(True, card=2),
            condition(False, card=2),
            condition(False, status="WARN", card=3),
            condition(True, card=None),
        ],
    )
    assert [drills.health(card, found.conditions) for card in found.cards] == ["OK", "CRITICAL*", "CRITICAL", "WARN"]
    node.print_node(found, as_json=False)
    lines = capfd.readouterr().out.splitlines()
    row = next(line for line in lines if line.startswith("1 "))
    assert "CRITICAL*" in row and len(row) <= 80
    assert lines[-1] == "* from a condition injected for a drill"
    del found.conditions[:2]
    node.print_node(found, as_json=False)
    assert "*" not in capfd.readouterr().out


def test_ranks_that_were_not_looked_at_are_reported_without_readings():
    job = telemetry_pb2.JobTelemetry(job_id="j", state=job_pb2.JOB_STATE_RUNNING)
    for rank in range(2):
        job.ranks.add(rank=rank, device=rank, pid=100 + rank)
    now = telemetry_pb2.GetTelemetryResponse(jobs=[job])
    *_, head, names, first, second = top_table.screen(now, defaultdict(deque), 80).splitlines()
    assert head == "JOB j  RUNNING  devices 0-1"
    assert names.split()[:3] == ["RANK", "DEV", "PID"]
    assert first.split() == ["0", "0", "100", "-", "-", "-", "-", "-", "-"]
    assert second.split()[:3] == ["1", "1", "101"]
    job.processes = 1
    job.ranks[0].at.FromSeconds(1)
    text = top_table.screen(telemetry_pb2.GetTelemetryResponse(jobs=[job]), defaultdict(deque), 80)
    assert "JOB j  RUNNING  1 process  devices" in text
    assert text.splitlines()[-2].split()[-1] == "0"  # it was looked for, and is gone
