"""Telemetry of a real daemon: jobs' real processes, cards of a fake driver, over its RPCs."""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from muster.v1 import job_pb2, telemetry_pb2
from tests.conftest import Daemon, eventually
from tests.fakes import FakeCards

FAST = """
[telemetry]
readings_s = 0.1
health_s = 0.2
holders_s = 0.2
processes_s = 0.2
underused_after_s = 1.0
"""
#: Writes a megabyte a second, with a child that computes.
BUSY = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
print("begun", flush=True)
with open("/dev/null", "wb", buffering=0) as sink:
    while True:
        sink.write(b"x" * 50_000)
        time.sleep(0.05)
"""


@pytest.fixture
def cards(tmp_path: Path) -> Iterator[FakeCards]:
    with FakeCards.for_test(tmp_path / "cards", "nvidia", 4) as made:
        yield made


@pytest.fixture
def node(make_daemon: Callable[..., Daemon], cards: FakeCards) -> Daemon:
    daemon = make_daemon(FAST, cards.env)
    eventually(lambda: len(now(daemon).cards) == 4, message="four cards are there")
    return daemon


def now(daemon: Daemon, job_id: str = "") -> Any:
    return daemon.telemetry.GetTelemetry(telemetry_pb2.GetTelemetryRequest(job_id=job_id), timeout=60)


def of_job(daemon: Daemon, job_id: str) -> Any:
    (found,) = now(daemon, job_id).jobs
    return found


def history(daemon: Daemon, **fields: Any) -> dict[tuple[str, int | None], list[Any]]:
    """Points by metric and card, in steps of half a second."""
    request = telemetry_pb2.GetHistoryRequest(**fields)
    request.step.FromMilliseconds(500)
    answer = daemon.telemetry.GetHistory(request, timeout=60)
    return {(s.metric, s.card if s.HasField("card") else None): list(s.points) for s in answer.series}


def refused(daemon: Daemon, **fields: Any) -> str:
    with pytest.raises(grpc.RpcError) as caught:
        daemon.telemetry.GetHistory(telemetry_pb2.GetHistoryRequest(**fields), timeout=60)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    return str(caught.value.details())


def on_cards(daemon: Daemon, *command: str, indices: tuple[int, ...] = (1, 2)) -> str:
    cards = job_pb2.CardRequest(indices=indices)
    spec = job_pb2.JobSpec(command=command, cards=cards, env={"PYTHONUNBUFFERED": "1"})
    job_id: str = daemon.jobs.Start(job_pb2.StartRequest(spec=spec), timeout=60).job.job_id
    daemon.until_running(job_id)
    return job_id


def test_what_a_job_does_is_reported_by_rank(node: Daemon, cards: FakeCards):
    for card in cards:
        card.util = 10 * card.place
    job_id = on_cards(node, "python3", "-c", BUSY)
    ranks = eventually(
        lambda: [r for r in of_job(node, job_id).ranks if r.processes == 2 and r.HasField("cpu") and r.cpu > 5]
    )
    found = of_job(node, job_id)
    assert [(r.rank, r.device) for r in found.ranks] == [(0, 1), (1, 2)]
    assert {r.pid for r in found.ranks} == {r.pid for r in node.get(job_id).ranks}
    assert all(r.memory_bytes > 1 << 20 for r in ranks)
    eventually(lambda: all(r.write_rate > 100_000 for r in of_job(node, job_id).ranks))
    eventually(lambda: of_job(node, job_id).card_utilization == pytest.approx(15.0, abs=0.1))
    everything = now(node)
    assert [(card.index, card.job_id) for card in everything.cards] == [(0, ""), (1, job_id), (2, job_id), (3, "")]
    assert [job.job_id for job in everything.jobs] == [job_id]
    assert {card.index for card in now(node, job_id).cards} == {1, 2}
    assert 0 < everything.mem_usage < 100 and 0 <= everything.cpu_usage <= 100
    # It is below half, for over a second.
    assert eventually(lambda: of_job(node, job_id).underused)
    for card in cards:
        card.util = 100
    eventually(lambda: not of_job(node, job_id).underused, 60)


def least(daemon: Daemon, card: int) -> float | None:
    """The lowest utilization of its last point; None: there is no point yet."""
    points = history(daemon, card=card).get(("gpuUtil", card))
    return points[-1].least if points else None


@pytest.mark.slow
def test_history_of_a_job_its_cards_and_the_node_survives_a_kill(node: Daemon, cards: FakeCards):
    for card in cards:
        card.util = 10 * card.place + 10
    # A point tells of half a second: of the job's first one nothing may be left that was read before.
    eventually(lambda: [least(node, i) for i in (1, 2)] == [20.0, 30.0])
    job_id = on_cards(node, "sleep", "600")
    eventually(lambda: len(history(node, job_id=job_id, metrics=["gpuUtil"]).get(("gpuUtil", None), [])) > 5)
    before = time.time()
    found = history(node, job_id=job_id)
    assert {card for metric, card in found if metric == "gpuUtil"} == {None, 1, 2}
    assert {(p.mean, p.least, p.most) for p in found["gpuUtil", 1]} == {(20.0, 20.0, 20.0)}
    assert found["gpuUtil", None][-1].mean == 25.0
    eventually(lambda: ("cpuUsage", None) in history(node, job_id=job_id))
    assert {card for metric, card in history(node, metrics=["power"])} == {None, 0, 1, 2, 3}
    assert set(history(node, card=3)) >= {("gpuUtil", 3), ("gpuMemUsage", 3), ("power", 3)}
    # The card is one of those that tell what their parts do, from the second look at its health on.
    eventually(lambda: {("gpuSmUtil", 3), ("gpuTensorUtil", 3), ("gpuDramUtil", 3)} <= set(history(node, card=3)))
    node.kill(15)  # what is noted is written at the end
    node.restart()
    again = eventually(lambda: history(node, job_id=job_id).get(("gpuUtil", 1)))
    assert any(p.at.ToSeconds() <= before for p in again)
    # The job goes on being sampled, and what it was before counts.
    eventually(lambda: any(p.at.ToSeconds() > before for p in history(node, job_id=job_id)["gpuUtil", 1]))
    eventually(lambda: of_job(node, job_id).card_utilization == pytest.approx(25.0))
    eventually(lambda: [r.processes for r in of_job(node, job_id).ranks] == [1, 1])
    node.stop(job_id, grace_s=0)
    assert of_job(node, job_id).card_utilization == pytest.approx(25.0)
    assert list(of_job(node, job_id).ranks) == []
    assert ("gpuUtil", 2) in history(node, job_id=job_id)


@pytest.mark.skipif(
    os.uname().machine not in ("x86_64", "aarch64"), reason="the number of exit(2) is unknown to muster"
)
def test_a_rank_whose_first_thread_has_ended_before_the_others_is_none_that_has_exited(node: Daemon):
    """The kernel calls it a zombie."""
    number = {"x86_64": 60, "aarch64": 93}[os.uname().machine]
    script = f"""if True:
        import ctypes, threading, time
        threading.Thread(target=time.sleep, args=(600,)).start()
        ctypes.CDLL(None).syscall({number}, 0)
    """
    job_id = node.run(sys.executable, "-c", script).job_id
    pid = eventually(lambda: next((rank.pid for rank in node.get(job_id).ranks), 0))
    stat = Path(f"/proc/{pid}/stat")
    eventually(lambda: stat.read_text().rpartition(")")[2].split()[0] == "Z")
    stream = node.telemetry.RecordTelemetry(telemetry_pb2.RecordTelemetryRequest(job_id=job_id), timeout=60)
    seen = (proc for answer in stream for proc in json.loads(answer.line)["procs"] if proc["pid"] == pid)
    assert [next(seen)["state"] for _ in range(2)][-1] == "S"
    stream.cancel()


@pytest.mark.slow
def test_records_are_streamed_until_the_job_ends(node: Daemon, cards: FakeCards):
    cards[1].util, cards[1].power_w = 77, 250.0
    job_id = on_cards(node, "sh", "-c", "echo hello; sleep 600")
    stream = node.telemetry.RecordTelemetry(telemetry_pb2.RecordTelemetryRequest(job_id=job_id), timeout=60)

    def has_all(record: dict[str, Any]) -> bool:
        """What is read more rarely, or only just began, comes with a later one."""
        card, workers = record["cards"][0], [p["state"] for p in record["procs"] if p["role"] == "worker"]
        return card["util"] == 77 and card["power_limit_w"] and workers == ["S", "S"] and sum(said(record)) == 12

    def said(record: dict[str, Any]) -> Iterator[int]:
        return (size or 0 for size in record["log_bytes"].values())

    record = next(found for answer in stream if has_all(found := json.loads(answer.line)))
    assert len(record["procs"]) == 4
    expected = ["t", "job", "procs", "cards", "log_bytes", "net_bytes", "nodes", "log_lines"]
    assert [name for name in record if not name.startswith("job_net_")] == expected  # a card of it may idle
    assert (record["job"], record["log_bytes"]) == (job_id, {"0": 6, "1": 6})
    assert abs(record["t"] - time.time()) < 30
    job = node.get(job_id)
    ranks = {(p["pid"], p["start"], p["rank"]) for p in record["procs"] if p["role"] == "rank"}
    assert ranks == {(r.pid, r.start_ticks, r.rank) for r in job.ranks}
    assert {(p["rank"], p["state"]) for p in record["procs"] if p["role"] == "worker"} == {(0, "S"), (1, "S")}
    assert all(p["wchar"] is not None for p in record["procs"])
    one = record["cards"][0]
    assert (one["index"], one["kind"], one["util"], one["power_w"], one["rank"]) == (1, "nvidia", 77, 250, 0)
    node.stop(job_id, grace_s=0)
    assert all(json.loads(answer.line)["job"] == job_id for answer in stream)  # and it ends


@pytest.mark.slow
def test_records_go_into_a_file_and_over_a_reload_into_another(node: Daemon, tmp_path: Path):
    path, other = tmp_path / "records.jsonl", tmp_path / "other.jsonl"
    job_id = on_cards(node, "sleep", "600")
    text = node.config.read_text()
    for each in (path, other):
        node.config.write_text(text.replace("[telemetry]", f'[telemetry]\nrecord = "{each}"'))
        os.kill(node.pid, 1)
        eventually(lambda each=each: each.exists() and each.read_text().count("\n") > 2, 60)  # type: ignore[misc]
    assert {json.loads(line)["job"] for line in other.read_text().splitlines()} == {job_id}


def test_ranks_that_a_launcher_makes_are_found(node: Daemon, tmp_path: Path):
    script = tmp_path / "launch.py"
    script.write_text(
        "import os, subprocess, sys, time\n"
        "if 'RANK' not in os.environ:\n"
        "    for i in range(2):\n"
        "        env = dict(os.environ, RANK=str(i), LOCAL_RANK=str(i))\n"
        "        subprocess.Popen([sys.executable, __file__], env=env)\n"
        "time.sleep(600)\n"
    )
    # A stand-in for torchrun: what counts is a process that makes others and gives them numbers.
    program = tmp_path / "torchrun"
    program.write_text(f'#!/bin/sh\nexec python3 {script} "$@"\n')
    program.chmod(0o755)
    spec = job_pb2.JobSpec(
        command=["python3", "train.py"],
        cards=job_pb2.CardRequest(indices=[2, 3]),
        boot="torchrun",
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}"},
    )
    job_id = node.jobs.Start(job_pb2.StartRequest(spec=spec), timeout=60).job.job_id
    node.until_running(job_id)
    ranks = eventually(lambda: len(of_job(node, job_id).ranks) == 2 and of_job(node, job_id).ranks)
    assert [(r.rank, r.device, r.processes) for r in ranks] == [(0, 2, 1), (1, 3, 1)]
    assert of_job(node, job_id).processes == 3


def test_bad_questions_are_refused_by_field(node: Daemon):
    assert "'gpuutil': is not a metric: the metrics are cpuUsage" in refused(node, metrics=["gpuutil"])
    assert "card: 9: the cards of this node are: 0, 1, 2, 3" in refused(node, card=9)
    assert "card: together with job_id" in refused(node, job_id="a", card=1)
    ask = telemetry_pb2.GetHistoryRequest()
    ask.start.FromSeconds(1_900_000_000)
    ask.end.FromSeconds(1_800_000_000)
    assert "start: is not before the end" in refused(node, start=ask.start, end=ask.end)
    ask.step.FromMilliseconds(0)
    assert "step: 0 s: must be above 0" in refused(node, step=ask.step)
    ask.step.FromMilliseconds(10)
    assert "at most 20000 are allowed" in refused(node, step=ask.step)
    with pytest.raises(grpc.RpcError) as caught:
        history(node, job_id="no-such")
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    with pytest.raises(grpc.RpcError) as caught:
        now(node, "no-such")
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    with pytest.raises(grpc.RpcError) as caught:
        next(node.telemetry.RecordTelemetry(telemetry_pb2.RecordTelemetryRequest(job_id="no-such"), timeout=60))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def test_steps_are_as_asked_for(node: Daemon, cards: FakeCards):
    eventually(lambda: len(history(node, card=0).get(("power", 0), [])) >= 1)
    ask = telemetry_pb2.GetHistoryRequest(card=0, metrics=["power"])
    ask.step.FromSeconds(10)
    answer = node.telemetry.GetHistory(ask, timeout=60)
    assert answer.step.ToSeconds() == 10
    (series,) = answer.series
    assert all(point.at.ToSeconds() % 10 == 0 for point in series.points)
    times = [point.at.ToSeconds() for point in series.points]
    assert times == sorted(set(times))


def test_a_card_that_hangs_does_not_stop_the_others(node: Daemon, cards: FakeCards):
    cards[3].util = 33
    eventually(lambda: now(node).cards[3].reading.utilization == 33)
    cards[0].hang()
    try:
        cards[3].util = 66
        eventually(lambda: now(node).cards[3].reading.utilization == 66)
    finally:
        cards[0].clear()


def test_a_damaged_history_does_not_stop_the_daemon(node: Daemon):
    node.kill()
    (node.root.state / "telemetry.db").write_bytes(b"what is this? " * 1000)
    for end in ("-wal", "-shm"):
        (node.root.state / f"telemetry.db{end}").unlink(missing_ok=True)
    node.restart()
    eventually(lambda: len(now(node).cards) == 4, message="the cards are known again")
    eventually(lambda: history(node, card=0))
    assert list(node.root.state.glob("telemetry.db.damaged-*"))


@pytest.mark.slow
def test_who_watches_sees_what_is_now(make_daemon: Callable[..., Daemon], cards: FakeCards, tmp_path: Path) -> None:
    """The periods are long; somebody who asks again and again gets rates and temperatures all the same, and no more
    records are made for that."""
    records = tmp_path / "records"
    config = f'[telemetry]\nprocesses_s = 3600\nhealth_s = 3600\nrecord = "{records}"\n'
    daemon = make_daemon(config, cards.env)
    daemon.run("sh", "-c", "while :; do :; done", job_id="busy", ranks=0, cards=job_pb2.CardRequest(count=1))
    daemon.until_running("busy")
    eventually(lambda: [r for r in of_job(daemon, "busy").ranks if r.cpu > 0], message="its CPU is shown")
    cards[0].temp_c = 77
    eventually(lambda: now(daemon).cards[0].reading.temperature == 77, message="its temperature is shown")
    lines = [json.loads(line) for line in records.read_text().splitlines()]
    assert len([line for line in lines if line["job"] == "busy"]) == 1
