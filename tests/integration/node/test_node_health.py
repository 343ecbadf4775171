"""The health of a node through a real daemon, with cards that a test makes sick: refused jobs, drills, drains."""

import functools
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from muster.v1 import job_pb2, node_pb2, probe_pb2
from tests.conftest import FINAL, Daemon, eventually
from tests.fakes.cards import FakeCards
from tests.integration.driver_events import until_heard

#: The kernel's log of the machine that runs the tests is not the cards'.
CONFIG = """
[health]
skip = "kernel-log,storage,kernel,memory-errors,oom,disk-free,mounts,nfs,d-state,zombies,pids,file-descriptors,ib"
clear_looks = 1
"""
#: For a driver that hangs. A healthy one may well take so long on a busy machine.
IMPATIENT = CONFIG + "[cards]\ndriver_deadline_s = 2.0\n"


@pytest.fixture
def cards(tmp_path: Path) -> Iterator[FakeCards]:
    with FakeCards.for_test(tmp_path / "cards", "nvidia", 4) as made:
        yield made


@pytest.fixture
def sick(make_daemon: Callable[..., Daemon], cards: FakeCards) -> Daemon:
    """A daemon on these cards that knows them."""
    daemon = make_daemon(CONFIG, cards.env)
    eventually(lambda: len(node(daemon).cards) == len(cards))
    return daemon


def node(daemon: Daemon) -> Any:
    return daemon.nodes.GetNode(node_pb2.GetNodeRequest(), timeout=60).node


def look(daemon: Daemon, *items: str) -> list[Any]:
    return list(daemon.probes.RunChecks(probe_pb2.RunChecksRequest(items=items), timeout=60).results)


def conditions(daemon: Daemon) -> dict[tuple[str, str], Any]:
    return {(c.code, c.device): c for c in node(daemon).conditions}


def refused(call: Callable[[], Any]) -> tuple[grpc.StatusCode, str, Any]:
    """Code, message and google.rpc.ErrorInfo of a call that must fail."""
    with pytest.raises(grpc.RpcError) as caught:
        call()
    status = rpc_status.from_call(caught.value)  # type: ignore[arg-type]  # it is the call as well
    assert status is not None
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    return caught.value.code(), status.message, info


def start(daemon: Daemon, *indices: int, count: int = 0) -> Any:
    wanted = job_pb2.CardRequest(indices=list(indices), count=count)
    spec = job_pb2.JobSpec(command=["sleep", "600"], cards=wanted)
    return daemon.jobs.Start(job_pb2.StartRequest(spec=spec), timeout=60).job


def test_a_lost_card_refuses_jobs_and_leaves_the_others_alone(sick: Daemon, cards: FakeCards):
    running = start(sick, 0)
    cards[2].lose()
    assert {r.code: r.reason for r in look(sick, "gpu-lost")}.keys() == {"GPU_LOST", "NODE_OK"}
    condition = conditions(sick)["GPU_LOST", "card 2"]
    assert (condition.status, condition.card) == ("CRITICAL", 2)
    code, message, info = refused(lambda: start(sick, 1, 2))
    assert (code, info.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "NODE_UNHEALTHY")
    for part in ("card 2", "GPU_LOST", "since", "muster check explain"):
        assert part in message
    # Who names no card gets those that are fit.
    assert sorted(rank.device for rank in start(sick, count=2).ranks) == [1, 3]
    assert sick.get(running.job_id).state not in FINAL
    cards[2].back()
    eventually(lambda: look(sick, "gpu-lost") and ("GPU_LOST", "card 2") not in conditions(sick))
    assert [rank.device for rank in start(sick, 2).ranks] == [2]


def test_an_xid_of_the_driver_is_an_event_a_condition_and_a_fault_for_the_verdict(sick: Daemon, cards: FakeCards):
    job = start(sick, 1)
    sick.until_running(job.job_id)
    until_heard(sick, cards, 0)
    cards.xid(1, 79)
    eventually(lambda: ("GPU_OFF_BUS", "card 1") in conditions(sick))
    of_driver = [e for e in sick.event_list() if e.kind == "node.event" and e.attributes["source"] == "driver"]
    (event,) = [e for e in of_driver if e.attributes["card"] == "1"]
    assert event.attributes["number"] == "79"
    assert event.attributes["job"] == job.job_id
    faults = eventually(lambda: said(sick).get("cards", {}).get("1"))
    assert "Xid 79" in faults[0]
    # The job that runs is left alone; its verdict knows.
    assert sick.get(job.job_id).state == job_pb2.JOB_STATE_RUNNING
    os.kill(sick.get(job.job_id).ranks[0].pid, signal.SIGABRT)
    ended = sick.wait(job.job_id)
    assert ended.verdict.recommendation == job_pb2.RECOMMENDATION_RETRY_ELSEWHERE
    assert "Xid 79" in ended.verdict.recommendation_reason


@pytest.mark.slow
def test_what_is_counted_over_a_day_outlives_the_daemon(make_daemon: Callable[..., Daemon], tmp_path: Path):
    twice_is_too_often = 0x80E01801
    with FakeCards.for_test(tmp_path / "npus", "ascend", 1) as npus:
        daemon = make_daemon(CONFIG, npus.env)
        npus[0].error(twice_is_too_often)
        eventually(lambda: {r.code for r in look(daemon, "npu-errors")} == {"NPU_ERROR_CODES"})
        state = daemon.root.state / "node.json"

        def kept(what: str) -> object:
            return state.exists() and json.loads(state.read_text()).get("counts", {}).get(what)

        def found() -> set[str]:
            return {r.code for r in look(daemon, "npu-errors")}

        eventually(lambda: kept("codes"), message="the count is on the disk")
        # Whatever time passes without a look, it is the same one.
        daemon.kill()
        times = json.loads(state.read_text())
        codes = {name: [t - 3600 for t in them] for name, them in times["counts"]["codes"].items()}
        state.write_text(json.dumps(times | {"counts": times["counts"] | {"codes": codes}}))
        daemon.restart()
        assert eventually(lambda: (it := found()) - {"NODE_UNKNOWN"} and it) == {"NPU_ERROR_CODES"}
        # Another one is one that came after this was gone.
        npus[0].recover(twice_is_too_often)
        eventually(lambda: found() == {"NODE_OK"} and kept("gone"))
        daemon.kill()
        npus[0].error(twice_is_too_often)
        daemon.restart()
        eventually(lambda: "NPU_FAULT_REPEATED" in {r.code for r in look(daemon, "npu-errors")})
        assert daemon.cli("check", "clear", "NPU_FAULT_REPEATED").returncode == 0
        daemon.kill()
        daemon.restart()
        eventually(lambda: {r.code for r in look(daemon, "npu-errors")} == {"NPU_ERROR_CODES"})


def said(daemon: Daemon) -> dict[str, Any]:
    path = daemon.root.faults
    return dict(json.loads(path.read_bytes())) if path.exists() else {}


def test_conditions_and_the_drain_outlive_the_daemon(sick: Daemon, cards: FakeCards):
    cards[3].lose()
    look(sick, "gpu-lost")
    sick.nodes.Drain(node_pb2.DrainRequest(reason="a new fan"), timeout=60)
    before = node(sick)
    sick.kill()
    sick.restart()
    after = node(sick)
    assert [(c.code, c.device, c.since) for c in after.conditions if c.code == "GPU_LOST"] == [
        (c.code, c.device, c.since) for c in before.conditions if c.code == "GPU_LOST"
    ]
    assert after.drain == before.drain
    code, message, info = refused(lambda: start(sick, 0))
    assert (code, info.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "NODE_DRAINING")
    assert "a new fan" in message
    assert not sick.nodes.Undrain(node_pb2.UndrainRequest(), timeout=60).node.HasField("drain")
    start(sick, 0)


@pytest.mark.slow
def test_a_driver_that_hangs_is_a_finding_and_the_daemon_answers(make_daemon: Callable[..., Daemon], cards: FakeCards):
    sick = make_daemon(IMPATIENT, cards.env)
    eventually(lambda: len(node(sick).cards) == len(cards))
    cards[1].hang()
    results = look(sick)
    assert any(r.code == "DRIVER_HANG" and r.device == "card 1" for r in results)
    condition = conditions(sick)["DRIVER_HANG", "card 1"]
    assert condition.status == "UNKNOWN"
    # What is not known refuses nobody: only who is on the other cards was asked.
    assert [rank.device for rank in start(sick, 0).ranks] == [0]
    cards[1].clear()
    eventually(lambda: look(sick, "driver") and ("DRIVER_HANG", "card 1") not in conditions(sick), 60)


def test_a_drill_refuses_jobs_until_it_is_cleared(sick: Daemon):
    made = sick.probes.InjectCondition(probe_pb2.InjectConditionRequest(code="GPU_LOST", card=0), timeout=60).condition
    assert made.injected
    assert (made.item, made.status, made.clears) == ("gpu-lost", "CRITICAL", "age")
    _, message, info = refused(lambda: start(sick, 0))
    assert info.reason == "NODE_UNHEALTHY"
    assert "(injected for a drill)" in message
    (gone,) = sick.probes.ClearConditions(
        probe_pb2.ClearConditionsRequest(code="GPU_LOST", device="card 0"), timeout=60
    ).conditions
    assert gone.injected
    start(sick, 0)
    kinds = [e.kind for e in sick.event_list() if e.attributes.get("injected") == "true"]
    assert kinds == ["node.condition", "node.condition_cleared"]


def test_requests_that_cannot_be_are_refused(sick: Daemon):
    run, clear, inject = sick.probes.RunChecks, sick.probes.ClearConditions, sick.probes.InjectCondition
    to_run, to_clear, to_inject = (
        probe_pb2.RunChecksRequest,
        probe_pb2.ClearConditionsRequest,
        probe_pb2.InjectConditionRequest,
    )
    cases: list[tuple[Any, Any, str, str]] = [
        (run, to_run(items=["gpu-lots"]), "INVALID_ARGUMENT", "gpu-lost"),
        (run, to_run(items=["x"] * 300), "INVALID_ARGUMENT", "300"),
        (clear, to_clear(code="GPU_LOST"), "NOT_FOUND", "GPU_LOST"),
        (clear, to_clear(code="GPU_LSOT"), "INVALID_ARGUMENT", "GPU_LOST"),
        (clear, to_clear(), "INVALID_ARGUMENT", "code"),
        (inject, to_inject(code="NODE_OK"), "INVALID_ARGUMENT", "NODE_OK"),
        (inject, to_inject(code="GPU_LOST", card=9), "INVALID_ARGUMENT", "cards 0, 1, 2, 3"),
    ]
    for call, request, code, text in cases:
        found, message, _ = refused(functools.partial(call, request, timeout=60))
        assert (found.name, text in message) == (code, True), message


def test_the_checks_are_listed_with_their_codes(sick: Daemon):
    checks = {c.item: c for c in sick.probes.ListChecks(probe_pb2.ListChecksRequest(), timeout=60).checks}
    assert list(checks["dns"].when) == ["start"]
    assert list(checks["gpu-lost"].when) == ["start", "period"]
    assert "GPU_LOST" in checks["gpu-lost"].codes
    assert checks["gpu-lost"].interval.seconds > 0
    assert checks["gpu-lost"].not_applicable == ""
    assert list(checks["xid"].when) == ["event"]
    assert "ascend" in checks["npu-lost"].not_applicable
    results = look(sick, "disk-size", "gpu-lost")
    assert {r.item for r in results} == {"disk-size root", "disk-size shm", "disk-size cache", "gpu-lost"}
