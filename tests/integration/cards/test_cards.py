"""Jobs on cards: who gets which, what ranks are bound to, when a card is free again, and what a sick one does."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from muster import client
from muster.v1 import job_pb2, node_pb2, probe_pb2, telemetry_pb2
from tests.conftest import Daemon, alive, eventually, running
from tests.fakes import FakeCards
from tests.fakes.models import MODELS
from tests.integration.driver_events import until_heard

#: Health is looked at often, so that no test waits long for it.
CONFIG = """
[cards]
release_timeout_s = 0.3
[telemetry]
health_s = 0.2
holders_s = 0.2
processes_s = 0.2
[health]
clear_looks = 1
look_deadline_s = 10
"""
GIB = 1 << 30


@pytest.fixture
def cards(tmp_path: Path) -> Iterator[FakeCards]:
    with FakeCards.for_test(tmp_path / "cards", "nvidia", 8) as made:
        yield made


@pytest.fixture
def daemon(make_daemon: Callable[..., Daemon], cards: FakeCards) -> Daemon:
    return make_daemon(CONFIG, cards.env)


def start(daemon: Daemon, *command: str, job_id: str = "", **cards: Any):
    spec = job_pb2.JobSpec(job_id=job_id, command=command, cards=job_pb2.CardRequest(**cards))
    return daemon.jobs.Start(job_pb2.StartRequest(spec=spec), timeout=60).job


def refused(daemon: Daemon, **cards: Any) -> tuple[str, str]:
    with pytest.raises(grpc.RpcError) as caught:
        start(daemon, "true", **cards)
    known = client.failure(caught.value)
    return known.reason, known.message


def devices(job) -> list[int]:
    return [rank.device for rank in job.ranks]


def node(daemon: Daemon):
    return daemon.nodes.GetNode(node_pb2.GetNodeRequest(), timeout=60).node


def test_the_cards_are_reported_with_what_is_known_of_them(daemon: Daemon, cards: FakeCards):
    cards[3].util = 97
    found = eventually(lambda: [c for c in node(daemon).cards if c.reading.utilization == 97 and c.reading.temperature])
    assert [card.index for card in found] == [3]
    card = found[0]
    assert card.kind == "nvidia" and card.uuid == cards[3].uuid and card.bus_id == cards[3].bus_id
    assert card.memory_bytes == cards[3].mem_total and card.health == "OK" and not card.job_id
    assert card.numa_node == 1 or card.numa_node == 0
    assert len(node(daemon).cards) == 8 and node(daemon).accelerator == "nvidia"


def test_a_job_gets_cards_that_are_close(daemon: Daemon, cards: FakeCards):
    listed = eventually(lambda: len(found := node(daemon).cards) == 8 and found)
    by_node = {card.index: card.numa_node for card in listed}
    first = start(daemon, "sleep", "100", count=1)
    four = start(daemon, "sleep", "100", count=4)
    assert len({by_node[i] for i in devices(four)}) == 1
    assert not set(devices(first)) & set(devices(four))
    assert by_node[devices(first)[0]] not in {by_node[i] for i in devices(four)}


@pytest.mark.slow
def test_a_card_that_hangs_is_taken_last_and_the_job_says_why(make_daemon: Callable[..., Daemon], cards: FakeCards):
    daemon = make_daemon(CONFIG.replace("[cards]", "[cards]\ndriver_deadline_s = 2"), cards.env)
    eventually(lambda: len(node(daemon).cards) == 8)
    cards[0].hang()
    eventually(lambda: [card.index for card in node(daemon).cards if card.health == "UNKNOWN"] == [0])
    assert devices(start(daemon, "sleep", "100", count=4)) == [4, 5, 6, 7]
    assert devices(start(daemon, "sleep", "100", count=3)) == [1, 2, 3]
    last = start(daemon, "sleep", "100", count=1)
    assert devices(last) == [0]
    warnings = eventually(lambda: list(daemon.get(last.job_id).warnings))
    assert warnings[0].startswith("card 0: it does not answer") or warnings[0].startswith("card 0: DRIVER_HANG")
    assert "no better one of its model is free" in warnings[0]

    def told() -> list[str]:
        return [e.message for e in daemon.event_list() if e.kind == "job.warning" and e.job_id == last.job_id]

    eventually(told)
    assert told() == warnings
    assert "no better one" in daemon.cli("status", last.job_id).stdout


@pytest.mark.slow
def test_a_job_gets_all_cards_however_many_they_are(make_daemon: Callable[..., Daemon], cards: FakeCards):
    cards[5].become(MODELS["NVIDIA H200"])
    daemon = make_daemon(CONFIG, cards.env)
    eventually(lambda: len({c.model for c in node(daemon).cards if c.model}) == 2)
    asked = ("start", "--job-id", "all", "--cards", "all", "--max-restarts", "1", "--", "sleep", "100")
    assert daemon.cli(*asked).stdout == "all\n"
    assert devices(daemon.get("all")) == list(range(8))
    [text] = eventually(lambda: daemon.get("all").warnings)
    assert "different models" in text
    assert "card 0 is held by job all" in daemon.cli("start", "--cards", "all", "--", "true").stderr
    # The same request finds its job, also after a restart, and one that says eight is another.
    daemon.kill()
    daemon.restart()
    assert daemon.cli(*asked).stdout == "all\n"
    done = daemon.cli("start", "--job-id", "all", "--cards", "8", "--max-restarts", "1", "--", "sleep", "100")
    assert (done.returncode, "cards" in done.stderr) == (5, True)
    os.kill(daemon.rank_pid("all", 3), signal.SIGKILL)
    eventually(lambda: daemon.get("all").attempt == 1 and daemon.get("all").ranks[7].pid)
    assert devices(daemon.get("all")) == list(range(8))
    assert json.loads(daemon.cli("status", "all", "-o", "json").stdout)["spec"]["cards"]["all"] is True


def test_a_job_gets_cards_of_one_model(make_daemon: Callable[..., Daemon], cards: FakeCards):
    for place in (0, 2, 4):
        cards[place].become(MODELS["NVIDIA H200"])
    daemon = make_daemon(CONFIG, cards.env)
    models = eventually(lambda: len({c.model for c in node(daemon).cards if c.model}) == 2 and node(daemon).cards)
    old, new = models[0].model, models[1].model
    reason, message = refused(daemon, count=6)
    assert reason == "NO_SUCH_CARD"
    assert f"3 of {old}, 5 of {new}" in message
    first = start(daemon, "sleep", "100", count=3)
    assert len({models[i].model for i in devices(first)}) == 1
    both = [next(i for i in range(8) if models[i].model == name and i not in devices(first)) for name in (old, new)]
    mixed = start(daemon, "sleep", "100", indices=both)
    warnings = eventually(lambda: list(daemon.get(mixed.job_id).warnings))
    assert "different models" in warnings[0] and old in warnings[0] and new in warnings[0]


def test_a_rank_is_bound_to_the_cpus_near_its_card(make_daemon: Callable[..., Daemon], cards: FakeCards):
    mine = sorted(os.sched_getaffinity(0))
    if len(mine) < 2:
        pytest.skip("needs two CPUs")
    for card in cards:
        card.cpus = [mine[0]] if card.numa_node == 0 else [mine[1]]
    command = (
        sys.executable,
        "-c",
        "import os; print(sorted(os.sched_getaffinity(0)), os.environ['CUDA_DEVICE_ORDER'])",
    )
    daemon = make_daemon(CONFIG, cards.env)
    job = daemon.wait(start(daemon, *command, count=8).job_id)
    near = {card.index: card.cpus for card in node(daemon).cards}
    for rank in job.ranks:
        assert rank.cpus == near[rank.device]
        assert daemon.output(job, rank.local_rank) == f"[{rank.cpus}] PCI_BUS_ID\n".encode()
    assert "CPUS" in daemon.cli("status", job.job_id).stdout

    unbound = make_daemon(CONFIG.replace("[cards]", '[cards]\nbind_cpus = "none"'), cards.env)
    job = unbound.wait(start(unbound, *command, count=1).job_id)
    assert job.ranks[0].cpus == ""
    assert unbound.output(job) == f"{mine} PCI_BUS_ID\n".encode()


def test_a_stop_returns_when_the_cards_are_free(daemon: Daemon, cards: FakeCards):
    job = start(daemon, "sleep", "100", job_id="j", indices=[2])
    running = daemon.until_running("j")
    cards[2].hold(running.ranks[0].pid, 4 * GIB, lives=True)
    stopped = daemon.stop("j").job
    assert stopped.cards_free and not list(stopped.held_by)
    assert devices(start(daemon, "true", indices=[2])) == [2]
    assert not job.cards_free


@pytest.fixture
def outsider(daemon: Daemon) -> Iterator[subprocess.Popen[bytes]]:
    """A process that no stop ends: not of the job, and begun after it."""
    start(daemon, "sleep", "100", job_id="j", indices=[1, 2])
    daemon.until_running("j")
    with running(["sleep", "1000"]) as process:
        yield process
        process.kill()


@pytest.mark.slow
def test_a_process_left_on_a_card_is_named_and_the_card_is_not_given_away(
    daemon: Daemon, cards: FakeCards, outsider: subprocess.Popen[bytes]
):
    cards[2].hold(outsider.pid, 4 * GIB)
    stopped = daemon.cli("stop", "j")
    assert stopped.returncode == 1
    assert f"process {outsider.pid} (sleep) of user" in stopped.stderr and "of no job" in stopped.stderr
    job = daemon.get("j")
    assert job.state == job_pb2.JOB_STATE_STOPPED and not job.cards_free
    assert f"process {outsider.pid}" in job.held_by[0] and "4.0 GiB" in job.held_by[0]
    reason, message = refused(daemon, indices=[2])
    assert reason == "CARD_BUSY" and f"process {outsider.pid}" in message
    clean = start(daemon, "true", indices=[1]).job_id
    eventually(lambda: daemon.get(clean).cards_free)
    assert 2 not in devices(start(daemon, "true", count=7))
    assert [e.kind for e in daemon.event_list("j")].count("job.cards_held") == 1
    held = next(card for card in node(daemon).cards if card.index == 2)
    assert held.job_id == "j" and str(outsider.pid) in held.held_by
    # The next daemon knows it, too.
    daemon.kill(signal.SIGKILL)
    daemon.restart()
    eventually(lambda: daemon.get("j").held_by)
    assert refused(daemon, indices=[2])[0] == "CARD_BUSY"
    outsider.kill()
    outsider.wait()
    eventually(lambda: daemon.get("j").cards_free, 60)
    assert devices(start(daemon, "true", indices=[2])) == [2]
    assert "job.cards_free" in [e.kind for e in daemon.event_list("j")]


@pytest.mark.slow
def test_a_card_that_becomes_free_while_no_daemon_runs(
    daemon: Daemon, cards: FakeCards, outsider: subprocess.Popen[bytes]
):
    """Whoever was told that it is held is told that it is free."""
    cards[2].hold(outsider.pid, 4 * GIB)
    assert not daemon.stop("j").job.cards_free
    daemon.kill()
    outsider.kill()
    outsider.wait()
    for _ in range(2):
        daemon.start()
        eventually(daemon.root.job("j").cards_free.exists)
        told = [event.kind for event in daemon.event_list("j") if event.kind.startswith("job.cards_")]
        assert told == ["job.cards_held", "job.cards_free"]
        daemon.kill()
        daemon.root.job("j").cards_free.unlink()  # as if it had been killed before it wrote that


@pytest.mark.slow
def test_memory_that_nobody_is_named_for_keeps_the_card(daemon: Daemon, cards: FakeCards):
    eventually(lambda: [c for c in node(daemon).cards if c.index == 5 and c.reading.HasField("memory_used_bytes")])
    start(daemon, "sleep", "100", job_id="j", indices=[5])
    daemon.until_running("j")
    before = cards[5].mem_used
    cards[5].mem_used = before + 3 * GIB
    held = daemon.stop("j").job
    assert "3.0 GiB of its memory are still in use" in held.held_by[0]
    assert refused(daemon, indices=[5])[0] == "CARD_BUSY"
    cards[5].mem_used = before
    eventually(lambda: daemon.get("j").cards_free, 60)


def test_what_was_on_a_card_before_the_job_does_not_keep_it(daemon: Daemon, cards: FakeCards):
    with running(["sleep", "1000"]) as monitor:
        cards[1].hold(monitor.pid, GIB)
        start(daemon, "sleep", "100", job_id="j", indices=[1])
        daemon.until_running("j")
        assert daemon.stop("j").job.cards_free
        monitor.kill()


def test_a_start_waits_for_cards_that_are_being_freed(make_daemon: Callable[..., Daemon], cards: FakeCards):
    daemon = make_daemon(CONFIG.replace("release_timeout_s = 0.3", "release_timeout_s = 60"), cards.env)
    start(daemon, "sleep", "100", job_id="j", count=8)
    daemon.until_running("j")
    with running(["sleep", "1000"]) as slow:
        cards[0].hold(slow.pid, GIB)
        request = job_pb2.StopRequest(job_id="j")
        request.timeout.FromMilliseconds(1)
        daemon.jobs.Stop(request, timeout=60)
        eventually(lambda: daemon.get("j").state == job_pb2.JOB_STATE_STOPPED)
        waiting = daemon.jobs.Start.future(
            job_pb2.StartRequest(
                spec=job_pb2.JobSpec(job_id="next", command=["true"], cards=job_pb2.CardRequest(count=8))
            ),
            timeout=60,
        )
        assert not daemon.get("j").cards_free
        slow.kill()
    assert len(waiting.result().job.ranks) == 8


def test_a_stop_finds_a_job_whose_start_nobody_waits_for_any_more(make_daemon: Callable[..., Daemon], cards: FakeCards):
    """The caller of the start has gone, and the daemon finishes the start all the same."""
    daemon = make_daemon(CONFIG.replace("release_timeout_s = 0.3", "release_timeout_s = 60"), cards.env)
    start(daemon, "sleep", "100", job_id="j", count=8)
    daemon.until_running("j")
    with running(["sleep", "1000"]) as slow:
        cards[0].hold(slow.pid, GIB)
        request = job_pb2.StopRequest(job_id="j")
        request.timeout.FromMilliseconds(1)
        daemon.jobs.Stop(request, timeout=60)
        eventually(lambda: daemon.get("j").state == job_pb2.JOB_STATE_STOPPED)
        spec = job_pb2.JobSpec(job_id="next", command=["sleep", "1000"], cards=job_pb2.CardRequest(count=8))
        given_up = daemon.jobs.Start.future(job_pb2.StartRequest(spec=spec), timeout=60)
        assert not daemon.get("j").cards_free  # so the daemon has got the start, too
        given_up.cancel()
        stopped = daemon.jobs.Stop.future(job_pb2.StopRequest(job_id="next"), timeout=60)
        assert not daemon.get("j").cards_free
        slow.kill()
    assert stopped.result().ended
    assert daemon.get("next").state == job_pb2.JOB_STATE_STOPPED


def condition(daemon: Daemon, code: str, device: str = ""):
    """The first with this code, of any device where none is given."""
    return next((c for c in node(daemon).conditions if c.code == code and device in ("", c.device)), None)


@pytest.mark.slow
def test_a_lost_card_refuses_jobs_and_enters_the_verdict(daemon: Daemon, cards: FakeCards):
    start(daemon, "sh", "-c", "while [ ! -e /proc/$PPID/none ]; do sleep 0.05; done", job_id="j", indices=[3])
    job = daemon.until_running("j")
    other = start(daemon, "sleep", "100", job_id="other", indices=[4])
    cards[3].lose()
    found = eventually(lambda: condition(daemon, "GPU_LOST"), 60)
    assert found.device == "card 3" and found.card == 3 and found.status == "CRITICAL" and not found.injected
    # What runs is left alone.
    assert daemon.get("j").state == daemon.get("other").state == job_pb2.JOB_STATE_RUNNING
    reason, message = refused(daemon, count=7)
    assert reason == "CARD_BUSY"
    os.kill(job.ranks[0].pid, signal.SIGABRT)
    ended = daemon.wait("j")
    assert ended.verdict.recommendation == job_pb2.RECOMMENDATION_RETRY_ELSEWHERE
    assert "card 3" in ended.verdict.recommendation_reason and "isolate the node" in ended.verdict.recommendation_reason
    reason, message = refused(daemon, indices=[3])
    assert reason == "NODE_UNHEALTHY" and "card 3" in message and "GPU_LOST" in message
    assert 3 not in devices(start(daemon, "true", count=6))
    # The fault of a card is not that of a job on another.
    os.kill(daemon.rank_pid("other"), signal.SIGABRT)
    assert daemon.wait("other").verdict.recommendation == job_pb2.RECOMMENDATION_FAIL
    assert other.job_id == "other"
    assert daemon.cli("start", "--cards", "3,", "--", "true").returncode == 5


def test_an_xid_right_before_the_end_enters_the_verdict(daemon: Daemon, cards: FakeCards):
    """The rank dies first: that is how it looks on a real node."""
    start(daemon, "sleep", "100", job_id="j", indices=[6])
    job = daemon.until_running("j")
    until_heard(daemon, cards, 0)
    os.kill(job.ranks[0].pid, signal.SIGBUS)
    cards.xid(6, 79)
    daemon.wait("j")  # what comes a moment after that changes its verdict
    elsewhere = job_pb2.RECOMMENDATION_RETRY_ELSEWHERE
    verdict = eventually(lambda: (v := daemon.get("j").verdict).recommendation == elsewhere and v)
    assert "79" in verdict.recommendation_reason
    assert any(e.kind == "node.event" and e.attributes["number"] == "79" for e in daemon.event_list())


@pytest.mark.slow
def test_an_xid_behind_the_end_changes_the_verdict(daemon: Daemon, cards: FakeCards):
    start(daemon, "sleep", "100", job_id="j", indices=[6])
    job = daemon.until_running("j")
    os.kill(job.ranks[0].pid, signal.SIGABRT)
    ended = daemon.explained("j")
    assert ended.verdict.recommendation == job_pb2.RECOMMENDATION_FAIL
    until_heard(daemon, cards, 0)
    cards.xid(6, 79)
    elsewhere = job_pb2.RECOMMENDATION_RETRY_ELSEWHERE
    verdict = eventually(lambda: (v := daemon.get("j").verdict).recommendation == elsewhere and v, 60)
    assert "Xid 79" in verdict.cause
    was = [e.attributes.get("was") for e in daemon.event_list("j") if e.kind == "job.explained"]
    assert was == [None, "FAIL"]


def test_an_xid_of_the_application_is_no_fault_of_the_node(daemon: Daemon, cards: FakeCards):
    start(daemon, "sleep", "100", job_id="j", indices=[6])
    job = daemon.until_running("j")
    until_heard(daemon, cards, 6)
    os.kill(job.ranks[0].pid, signal.SIGABRT)
    assert daemon.wait("j").verdict.recommendation == job_pb2.RECOMMENDATION_FAIL
    assert [c for c in node(daemon).conditions if c.card == 6 and c.status == "CRITICAL"] == []
    start(daemon, "true", indices=[6])


@pytest.mark.slow
def test_a_driver_that_hangs_is_a_finding_and_the_daemon_answers(make_daemon: Callable[..., Daemon], cards: FakeCards):
    daemon = make_daemon(CONFIG.replace("[cards]", "[cards]\ndriver_deadline_s = 0.5"), cards.env)
    eventually(lambda: all(c.reading.HasField("utilization") for c in node(daemon).cards))
    cards[2].hang()
    # On a busy machine another one may be that slow, too, for a moment.
    found = eventually(lambda: condition(daemon, "DRIVER_HANG", "card 2"), 60)
    assert found.status == "UNKNOWN"
    cards[3].util = 42
    others = eventually(lambda: [c for c in node(daemon).cards if c.reading.utilization == 42])
    assert [c.index for c in others] == [3]
    sick = next(c for c in node(daemon).cards if c.index == 2)
    assert not sick.reading.HasField("utilization") and sick.health == "UNKNOWN"
    # UNKNOWN is no reason to refuse a job.
    job = start(daemon, "true", indices=[2])
    assert daemon.wait(job.job_id).state == job_pb2.JOB_STATE_SUCCEEDED
    cards[2].clear()
    eventually(lambda: condition(daemon, "DRIVER_HANG") is None, 60)
    eventually(lambda: all(c.reading.HasField("utilization") for c in node(daemon).cards))


@pytest.mark.slow
def test_drained_by_hand(daemon: Daemon):
    start(daemon, "sleep", "100", job_id="j", count=1)
    daemon.until_running("j")
    shown = daemon.cli("node", "drain", "new", "riser")
    assert shown.returncode == 0 and "new riser" in shown.stdout
    reason, message = refused(daemon, count=1)
    assert reason == "NODE_DRAINING" and "new riser" in message
    daemon.kill(signal.SIGKILL)
    daemon.restart()
    assert node(daemon).drain.reason == "new riser"
    assert daemon.get("j").state == job_pb2.JOB_STATE_RUNNING
    assert daemon.cli("run", "--", "true").returncode == 5
    assert daemon.cli("node", "undrain").returncode == 0
    assert not node(daemon).HasField("drain")
    start(daemon, "true", count=1)
    kinds = [e.kind for e in daemon.event_list()]
    assert kinds.count("node.drained") == kinds.count("node.undrained") == 1


def test_a_drill_acts_as_a_real_condition_and_is_marked(daemon: Daemon):
    made = daemon.cli("check", "inject", "GPU_ROW_REMAP_FAILED", "--card", "1")
    assert made.returncode == 0 and "GPU_ROW_REMAP_FAILED" in made.stdout
    found = condition(daemon, "GPU_ROW_REMAP_FAILED")
    assert found.injected and found.card == 1 and found.status == "CRITICAL"
    reason, message = refused(daemon, indices=[1])
    assert reason == "NODE_UNHEALTHY" and "drill" in message
    assert "drill" in daemon.cli("node").stdout
    assert daemon.cli("check", "clear", "GPU_ROW_REMAP_FAILED", "card 2").returncode == 3
    assert daemon.cli("check", "clear", "GPU_ROW_REMAP_FAILED", "card 1").returncode == 0
    assert condition(daemon, "GPU_ROW_REMAP_FAILED") is None
    start(daemon, "true", indices=[1])
    assert daemon.cli("check", "inject", "NO_SUCH_CODE").returncode == 2


@pytest.mark.slow
def test_a_driver_that_is_unloaded_and_back(daemon: Daemon, cards: FakeCards):
    eventually(lambda: all(c.reading.HasField("utilization") for c in node(daemon).cards))
    cards.unload()
    eventually(lambda: not any(c.reading.HasField("utilization") for c in node(daemon).cards), 60)
    assert len(node(daemon).cards) == 8, "the node has them all the same"
    cards.load()
    eventually(lambda: all(c.reading.HasField("utilization") for c in node(daemon).cards), 60)


def test_cards_of_another_kind(make_daemon: Callable[..., Daemon], tmp_path: Path):
    with FakeCards.for_test(tmp_path / "npus", "ascend", 4) as npus:
        daemon = make_daemon(CONFIG, npus.env)
        npus[1].util = 88
        found = eventually(lambda: [c for c in node(daemon).cards if c.reading.utilization == 88])
        assert [c.index for c in found] == [1] and found[0].kind == "ascend"
        job = start(daemon, "sh", "-c", "echo $ASCEND_RT_VISIBLE_DEVICES", indices=[1, 2])
        assert daemon.output(daemon.wait(job.job_id)) == b"1,2\n"


def test_checks_on_demand(daemon: Daemon, cards: FakeCards):
    answer = daemon.probes.RunChecks(probe_pb2.RunChecksRequest(items=["gpu-lost"]), timeout=60)
    assert {r.status for r in answer.results} == {"OK"}
    cards[7].lose()
    answer = daemon.probes.RunChecks(probe_pb2.RunChecksRequest(items=["gpu-lost"]), timeout=60)
    assert [r.device for r in answer.results if r.status == "CRITICAL"] == ["card 7"]
    # At the next look, where this one took longer than a look may, or one that began before it ended behind it.
    assert eventually(lambda: condition(daemon, "GPU_LOST")).device == "card 7"
    by_hand = daemon.cli("check", "gpu-lost")
    assert by_hand.returncode == 2 and "GPU_LOST" in by_hand.stdout
    with pytest.raises(grpc.RpcError, match="no check named"):
        daemon.probes.RunChecks(probe_pb2.RunChecksRequest(items=["gpu-lots"]), timeout=60)


@pytest.mark.slow
def test_the_cards_of_a_job_with_a_damaged_journal_are_not_given_away_while_it_runs(daemon: Daemon, cards: FakeCards):
    """What became of it nobody knows; that its ranks are there, the supervisor's lock tells, and then the driver."""
    start(daemon, "sleep", "1000", job_id="j", indices=[2])
    rank = daemon.rank_pid("j")
    cards[2].hold(rank, 4 * GIB, lives=True)
    daemon.kill()
    journal = daemon.root.job("j").journal
    lines = journal.read_bytes().splitlines(keepends=True)
    lines[2] = lines[2].replace(b'"t":1', b'"t":2')  # as by a bad disk
    journal.write_bytes(b"".join(lines))
    daemon.restart()
    assert daemon.jobs.List(job_pb2.ListRequest(), timeout=60).jobs[0].state == job_pb2.JOB_STATE_LOST
    reason, message = refused(daemon, indices=[2])
    assert reason == "CARD_BUSY" and "journal is damaged" in message and str(daemon.supervisor_pid("j")) in message
    assert alive(rank)
    os.kill(daemon.supervisor_pid("j"), signal.SIGKILL)  # no other one can take it over
    eventually(lambda: not daemon.supervisor_pid("j") and str(rank) in refused(daemon, indices=[2])[1], 60)
    os.kill(rank, signal.SIGKILL)
    eventually(lambda: any(event.kind == "job.cards_free" for event in daemon.event_list("j")), 60)
    assert devices(start(daemon, "true", indices=[2])) == [2]


def test_top_shows_cards_and_ranks(daemon: Daemon, cards: FakeCards):
    cards[0].util = 73
    start(daemon, "sleep", "100", job_id="j", indices=[0, 1])
    job = daemon.until_running("j")
    cards[0].hold(job.ranks[0].pid, 2 * GIB)

    def shown() -> str:
        text = daemon.cli("top").stdout
        return text if "73%" in text and str(job.ranks[1].pid) in text else ""

    text = eventually(shown, 60)
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "JOB j  RUNNING" in text


@pytest.mark.slow
def test_nothing_is_left_when_the_daemon_ends(daemon: Daemon, cards: FakeCards):
    """A thread that hangs in the driver does not keep the daemon."""
    eventually(lambda: all(c.reading.HasField("utilization") for c in node(daemon).cards))
    cards.hang("*")
    eventually(cards.waits_in)
    pid = daemon.pid
    assert daemon.kill(signal.SIGTERM) == 0
    assert not alive(pid)
    cards.clear()


def test_a_lease_goes_with_its_card_when_the_driver_counts_anew(daemon: Daemon, cards: FakeCards) -> None:
    """A card was removed while the daemon was down: the others have other numbers, and a job runs on two of them."""
    assert devices(start(daemon, "sleep", "1000", job_id="job", indices=[4, 5])) == [4, 5]
    daemon.until_running("job")
    uuids = {cards[4].uuid, cards[5].uuid}
    daemon.kill()
    cards[0].remove()
    daemon.start()
    shown = eventually(lambda: uuids <= (found := {card.uuid: card for card in node(daemon).cards}).keys() and found)
    assert {card.index for uuid, card in shown.items() if uuid in uuids} == {3, 4}
    assert {shown[uuid].job_id for uuid in uuids} == {"job"}
    assert refused(daemon, indices=[3])[0] == refused(daemon, indices=[4])[0] == "CARD_BUSY"
    given = start(daemon, "sleep", "1000", job_id="other", count=4)
    assert not {3, 4} & set(devices(given))
    daemon.stop("job", grace_s=0)
    daemon.wait("job")
    eventually(lambda: not any(card.job_id == "job" for card in node(daemon).cards))


def counted_anew(daemon: Daemon, cards: FakeCards, job_id: str) -> None:
    """A job runs on the cards in places 4 and 5, which have the numbers 3 and 4 since a card was removed."""
    assert devices(start(daemon, "sleep", "1000", job_id=job_id, indices=[4, 5])) == [4, 5]
    daemon.until_running(job_id)
    count_anew(daemon, cards)


def count_anew(daemon: Daemon, cards: FakeCards) -> None:
    """A card with a lower number is removed, and musterd started again."""
    daemon.kill()
    cards[0].remove()
    daemon.start()
    there = {cards[4].uuid: 3, cards[5].uuid: 4, cards[6].uuid: 5}
    eventually(lambda: there.items() <= {card.uuid: card.index for card in node(daemon).cards}.items())


def test_what_is_read_of_a_job_is_of_its_cards_after_the_driver_counted_anew(daemon: Daemon, cards: FakeCards):
    counted_anew(daemon, cards, "j")
    for place in range(1, 8):
        cards[place].util = 10 * place

    def told() -> dict[int, float]:
        request = telemetry_pb2.RecordTelemetryRequest(job_id="j")
        stream = daemon.telemetry.RecordTelemetry(request, timeout=60)
        record = json.loads(next(stream).line)
        stream.cancel()
        return {card["index"]: card["util"] for card in record["cards"]}

    # By the numbers that the job has for them, as its ranks and logs do.
    eventually(lambda: told() == {4: 40, 5: 50}, 60)
    # A card that has a number which was the job's is nobody's.
    assert not next(card.job_id for card in node(daemon).cards if card.uuid == cards[6].uuid)
    assert devices(start(daemon, "true", indices=[5])) == [5]


def test_hardware_speaks_in_a_verdict_by_card_after_the_driver_counted_anew(daemon: Daemon, cards: FakeCards):
    counted_anew(daemon, cards, "j")
    # Of the card that has a number of the job's now: nothing against the job.
    until_heard(daemon, cards, 7)
    cards.xid(6, 79)
    eventually(lambda: condition(daemon, "GPU_OFF_BUS"), 60)
    job = daemon.get("j")
    os.kill(job.ranks[0].pid, signal.SIGABRT)
    ended = daemon.wait("j")
    assert ended.verdict.recommendation == job_pb2.RECOMMENDATION_FAIL, ended.verdict
    assert "GPU_OFF_BUS" not in daemon.cli("why", "j").stdout


def test_the_fault_of_a_jobs_card_enters_its_verdict_after_the_driver_counted_anew(daemon: Daemon, cards: FakeCards):
    counted_anew(daemon, cards, "j")
    until_heard(daemon, cards, 7)
    cards.xid(4, 79)
    eventually(lambda: condition(daemon, "GPU_OFF_BUS"), 60)
    job = daemon.get("j")
    os.kill(job.ranks[0].pid, signal.SIGABRT)
    ended = daemon.wait("j")
    assert ended.verdict.recommendation == job_pb2.RECOMMENDATION_RETRY_ELSEWHERE
    assert "card 4: Xid 79" in ended.verdict.recommendation_reason, "by the job's own number"
    assert "GPU_OFF_BUS" in daemon.cli("why", "j").stdout


def test_a_condition_goes_with_its_card_when_the_driver_counts_anew(daemon: Daemon, cards: FakeCards):

    def found_now() -> Any:
        cards.xid(6, 79)  # again and again: one that comes before the daemon listens is in the kernel's log alone
        return condition(daemon, "GPU_OFF_BUS")

    found = eventually(found_now, 60)
    assert found.card == 6
    eventually(lambda: cards[6].uuid in (daemon.root.state / "node.json").read_text().split('"inventory"')[0])
    daemon.kill()
    cards[0].remove()
    daemon.start()
    found = eventually(lambda: (c := condition(daemon, "GPU_OFF_BUS")) and c.card == 5 and c, 60)
    assert found.device == "card 5"
    assert refused(daemon, indices=[5])[0] == "NODE_UNHEALTHY"
    assert devices(start(daemon, "true", indices=[6])) == [6]


def test_a_stop_looks_at_the_jobs_cards_after_the_driver_counted_anew(daemon: Daemon, cards: FakeCards):
    counted_anew(daemon, cards, "j")
    with running(["sleep", "1000"]) as other:
        cards[6].mem_used += 3 * GIB
        cards[5].hold(other.pid, 4 * GIB)
        stopped = daemon.stop("j").job
        assert not stopped.cards_free and [text.partition(":")[0] for text in stopped.held_by] == ["card 4"]
        assert f"process {other.pid}" in stopped.held_by[0]
        assert devices(start(daemon, "true", indices=[5])) == [5]
        other.kill()


#: Tells on which cards it runs; the last attempt ends well.
TELLS = 'echo "$MUSTER_ATTEMPT: $CUDA_VISIBLE_DEVICES."; [ "$MUSTER_ATTEMPT" = 1 ] || exec sleep 1000'


def start_restarted(daemon: Daemon, job_id: str) -> Path:
    """A job on the cards 4 and 5 that is started again once. Returns the log of its first rank."""
    on = job_pb2.CardRequest(indices=[4, 5])
    spec = job_pb2.JobSpec(job_id=job_id, command=["sh", "-c", TELLS], cards=on, max_restarts=1)
    daemon.jobs.Start(job_pb2.StartRequest(spec=spec), timeout=60)
    daemon.until_running(job_id)
    log = daemon.root.log / f"{job_id}-proc-rank-0-device-4.txt"
    eventually(lambda: log.read_text() == "0: 4,5.\n")
    return log


@pytest.mark.slow
def test_a_restart_is_on_the_same_cards_after_the_driver_counted_anew(daemon: Daemon, cards: FakeCards):
    log = start_restarted(daemon, "j")
    pid = daemon.rank_pid("j")
    count_anew(daemon, cards)
    eventually((daemon.root.state / "jobs/j/cards.json").exists)
    daemon.kill()  # the supervisor does without it
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: log.read_text().endswith("\n1: 3,4.\n"), 60)
    daemon.start()
    ended = daemon.wait("j")
    assert ended.state == job_pb2.JOB_STATE_SUCCEEDED and devices(ended) == [4, 5]
    text = (daemon.root.log / "j-muster-0.log").read_text()
    assert "the driver renumbered the cards: card 4 is 3, 5 is 4 in this attempt" in text


@pytest.mark.slow
def test_a_restart_without_one_of_its_cards_is_left_to_another_node(daemon: Daemon, cards: FakeCards):
    log = start_restarted(daemon, "j")
    gone = cards[5].uuid
    daemon.kill()
    cards[5].remove()
    daemon.start()
    eventually((daemon.root.state / "jobs/j/cards.json").exists)
    assert [card.index for card in node(daemon).cards] == list(range(7)), "5 is another card now"
    os.kill(daemon.rank_pid("j"), signal.SIGKILL)
    ended = daemon.wait("j")
    assert ended.state == job_pb2.JOB_STATE_FAILED and ended.verdict.exit_code == 137
    assert f"the driver no longer lists card 5 ({gone}): attempt 1 was not started" in ended.verdict.summary
    assert ended.verdict.recommendation == job_pb2.RECOMMENDATION_RETRY_ELSEWHERE
    assert gone in ended.verdict.recommendation_reason
    assert log.read_text() == "0: 4,5.\n"


def test_what_an_ended_job_left_is_on_its_card_after_the_driver_counted_anew(daemon: Daemon, cards: FakeCards):
    start(daemon, "sleep", "1000", job_id="old", indices=[4])
    daemon.until_running("old")
    with running(["sleep", "1000"]) as other:
        cards[4].hold(other.pid, 4 * GIB)
        assert not daemon.stop("old").job.cards_free
        count_anew(daemon, cards)
        # The number that was the ended job's is another card's, and that one's job runs.
        assert devices(start(daemon, "sleep", "1000", job_id="new", indices=[4])) == [4]
        daemon.until_running("new")
        daemon.kill()
        daemon.start()
        eventually(
            lambda: {card.index: card.job_id for card in node(daemon).cards if card.job_id} == {3: "old", 4: "new"}
        )
        other.kill()
