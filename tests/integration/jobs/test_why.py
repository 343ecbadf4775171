"""`muster why` through a real daemon: each kind of end, with real processes and with cards that a test makes sick."""

import importlib.util
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.v1 import job_pb2, node_pb2, telemetry_pb2
from tests.conftest import Daemon, eventually
from tests.fakes import FakeCards
from tests.integration.driver_events import until_heard

#: The kernel's log of the machine that runs the tests is not the cards'.
CONFIG = """
[health]
skip = "kernel-log,storage,kernel,memory-errors,oom,disk-free,mounts,nfs,d-state,zombies,pids,file-descriptors,ib"
clear_looks = 1
[telemetry]
readings_s = 0.1
processes_s = 0.2
"""
#: Rank 1 writes what a rank writes that has no memory left, and ends; rank 0 waits for it and is ended for it.
OUT_OF_MEMORY = """
import os, time
print("step 1 loss 2.31", flush=True)
if os.environ["RANK"] == "1":
    raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.15 GiB")
time.sleep(600)
"""


def page(daemon: Daemon, job_id: str) -> str:
    done = daemon.cli("why", job_id)
    assert done.returncode == 0, done.stderr
    return done.stdout


def cause(daemon: Daemon, job_id: str) -> tuple[str, str, str]:
    """Kind, signature and confidence."""
    found = daemon.why(job_id)["cause"]
    return found["kind"], found["signature"], found["confidence"]


def ended(daemon: Daemon, *command: str, job_id: str = "x", **fields: Any) -> Any:
    daemon.run(*command, job_id=job_id, **fields)
    return daemon.wait(job_id)


def test_what_the_first_failed_rank_wrote(shared: Daemon) -> None:
    ended(shared, sys.executable, "-c", OUT_OF_MEMORY, job_id="oom", ranks=2)
    assert cause(shared, "oom") == ("memory", "cuda-out-of-memory", "high")
    found = shared.why("oom")
    assert found["cause"]["rank"] == 1 and found["cause"]["line"].startswith("RuntimeError: CUDA out of memory")
    assert found["cause"]["seconds"] <= 0  # as the time index of its log tells
    assert found["verdict"]["victims"] == [0] and found["firstFailure"]["rank"] == 1
    text = page(shared, "oom")
    assert text.startswith("oom: FAILED at ")
    for words in ("Probable cause (high confidence, cuda-out-of-memory)", "Victims: rank 0", "  | step 1 loss 2.31"):
        assert words in text
    kinds = [row["kind"] for row in found["timeline"]]
    assert kinds[0] == "job.running" and "rank.exited" in kinds and kinds[-1] == "job.ended"


def test_the_root_is_in_the_output_of_a_victim(shared: Daemon, tmp_path: Path) -> None:
    """Rank 0 gives up on rank 1, which has run out of memory and does not end."""
    script = (
        'if [ $RANK = 1 ]; then echo "torch.OutOfMemoryError: CUDA out of memory. Tried"; touch there; sleep 600; fi\n'
        "while [ ! -e there ]; do sleep 0.01; done\n"
        'echo "[rank0]:[E1] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9)"; kill -ABRT $$'
    )
    ended(shared, "sh", "-c", script, job_id="peer", ranks=2, workdir=str(tmp_path))
    found = shared.why("peer")
    assert found["firstFailure"]["rank"] == 1
    assert (found["cause"]["signature"], found["cause"]["rank"]) == ("cuda-out-of-memory", 1)


@pytest.mark.parametrize(
    ("job_id", "script", "expected"),
    [
        ("code", "exit 3", ("unknown", "", "none")),
        ("segv", "kill -SEGV $$", ("job", "", "low")),
        ("kill", "kill -KILL $$", ("unknown", "", "low")),
        ("child", "sh -c 'kill -BUS $$'", ("job", "bus-error", "high")),  # the shell says so
        ("nospace", "echo 'OSError: [Errno 28] No space left on device'; exit 1", ("storage", "no-space", "high")),
        ("args", "echo 'train.py: error: unrecognized arguments: --x'; exit 2", ("job", "usage", "high")),
    ],
)
def test_how_a_process_can_end(shared: Daemon, job_id: str, script: str, expected: tuple[str, str, str]) -> None:
    # The trap keeps the shell, whose exit code is then that of a shell.
    ended(shared, "bash", "-c", f"trap : USR1; {script}", job_id=job_id)
    assert cause(shared, job_id) == expected
    assert f"{job_id}: FAILED" in page(shared, job_id)


def test_a_command_that_is_not_there(shared: Daemon) -> None:
    ended(shared, "no-such-program", job_id="nothere")
    kind, _, confidence = cause(shared, "nothere")
    assert (kind, confidence) == ("job", "certain")
    assert "no-such-program" in page(shared, "nothere")


def test_a_success_and_an_unknown_job(shared: Daemon) -> None:
    ended(shared, "true", job_id="fine")
    found = shared.why("fine")
    assert found["cause"] is None and found["firstFailure"] is None and found["verdict"]["exitCode"] == 0
    # Nothing but that, and perhaps a reading of telemetry.
    lines = page(shared, "fine").splitlines()
    assert len(lines) == 3 or lines[4].startswith("Telemetry of the "), lines
    assert shared.cli("why", "nobody").returncode == 3


def test_a_stop_and_a_job_that_runs(shared: Daemon) -> None:
    shared.run("sleep", "600", job_id="stopped")
    shared.until_running("stopped")
    assert page(shared, "stopped").splitlines()[1] == "  it has not ended; no problem is known"
    assert shared.why("stopped")["endedAt"] is None
    shared.stop("stopped", reason="enough of it")
    assert cause(shared, "stopped") == ("stop", "", "certain")
    assert "enough of it" in page(shared, "stopped")


def test_what_a_running_job_wrote_lately(shared: Daemon) -> None:
    shared.run("sh", "-c", "echo 'OSError: [Errno 122] Disk quota exceeded'; exec sleep 600", job_id="lately")
    shared.until_running("lately")
    eventually(lambda: shared.output(shared.get("lately")))
    found = eventually(lambda: shared.why("lately")["cause"])
    assert (found["signature"], found["confidence"]) == ("disk-quota", "low")
    shared.stop("lately", grace_s=0)


def test_its_time_was_over(shared: Daemon) -> None:
    spec = job_pb2.JobSpec(job_id="late", command=["sleep", "600"])
    spec.max_runtime.FromMilliseconds(100)
    shared.jobs.Start(job_pb2.StartRequest(spec=spec), timeout=60)
    shared.wait("late")
    assert "max_runtime 0.1 s" in shared.why("late")["cause"]["text"]


def test_attempts_that_ended_in_the_same_way(shared: Daemon) -> None:
    spec = job_pb2.JobSpec(job_id="again", command=["sh", "-c", "cat /nonexistent/$MUSTER_ATTEMPT; exit 1"], ranks=1)
    spec.command[2] = "echo \"FileNotFoundError: '/x/$MUSTER_ATTEMPT'\"; exit 1"
    spec.max_restarts = 2
    spec.restart_backoff.FromMilliseconds(10)
    shared.jobs.Start(job_pb2.StartRequest(spec=spec), timeout=60)
    shared.wait("again")
    found = shared.why("again")
    assert found["cause"]["line"] == "FileNotFoundError: '/x/2'"
    assert [past["cause"]["line"] for past in found["pastAttempts"]] == [f"FileNotFoundError: '/x/{n}'" for n in (0, 1)]
    assert "attempts 0-1 ended in the same way" in found["repeated"]
    text = page(shared, "again")
    assert "Attempts before (2 of 2 restarts used):" in text
    # The last lines are those of the last attempt.
    assert text.count("  | FileNotFoundError") == 2


def test_a_script_before_the_ranks(shared: Daemon, tmp_path: Path) -> None:
    script = tmp_path / "pre.sh"
    script.write_text("echo 'curl: (6) Could not resolve host: data.example'\nexit 6\n")
    ended(shared, "true", job_id="pre", pre_start=str(script))
    found = shared.why("pre")
    assert found["cause"]["signature"] == "name-resolution" and found["cause"]["rank"] is None
    assert "pre_start failed: a host's name could not be resolved" in page(shared, "pre")


def test_a_node_that_is_not_fit(make_daemon: Callable[..., Daemon]) -> None:
    daemon = make_daemon()
    daemon.config.write_text('[checks]\nroot_min_gb = 1000000000\n[health]\npolicy = "off"\n')
    daemon.kill()
    daemon.restart()
    ended(daemon, "true")
    found = daemon.why("x")
    assert (found["cause"]["kind"], found["cause"]["confidence"]) == ("admission", "certain")
    assert [check["item"] for check in found["checks"] if check["status"] == "CRITICAL"] == ["disk-size root"]
    assert "disk-size root" in page(daemon, "x")


def test_over_a_restart_of_the_daemon(daemon: Daemon) -> None:
    daemon.run("sh", "-c", "echo 'OSError: [Errno 5] Input/output error'; sleep 0.2; exit 1", job_id="x")
    daemon.until_running("x")
    daemon.kill()
    daemon.restart()
    daemon.wait("x")
    assert cause(daemon, "x") == ("storage", "io-error", "high")


def test_the_rank_of_a_worker_of_which_the_launcher_tells_only_the_process(
    make_daemon: Callable[..., Daemon], tmp_path: Path
) -> None:
    """Muster has seen which rank that process was."""
    daemon = make_daemon("[telemetry]\nprocesses_s = 0.2\n")
    said = (Path(__file__).parents[2] / "fixtures" / "launchers" / "msrun-code.txt").read_text()
    go = tmp_path / "go"
    script = f"""
import os, subprocess, sys
work = "import os, sys, time\\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.02)\\nsys.exit(9)"
workers = [
    subprocess.Popen([sys.executable, "-c", work, {str(go)!r} + n], env=os.environ | {{"RANK_ID": n, "RANK_SIZE": "3"}})
    for n in "012"
]
workers[1].wait()
print({said!r}.replace("22372", str(workers[1].pid)), end="", flush=True)
for one in workers:
    one.kill()
sys.exit(1)
"""
    daemon.run(sys.executable, "-c", script, job_id="x", boot="command", ranks=3)
    request = telemetry_pb2.GetTelemetryRequest(job_id="x")
    eventually(lambda: [job for job in daemon.telemetry.GetTelemetry(request, timeout=60).jobs if len(job.ranks) == 3])
    Path(f"{go}1").touch()
    daemon.wait("x")
    told = "rank 1 exited with code 9, as msrun reports"
    assert daemon.explained("x").verdict.cause == told and daemon.why("x")["cause"]["text"] == told
    daemon.kill()
    daemon.restart()
    assert daemon.why("x")["cause"]["text"] == told


def test_a_damaged_journal(daemon: Daemon) -> None:
    ended(daemon, "false")
    daemon.kill()
    journal = daemon.root.job("x").journal
    data = journal.read_bytes()
    journal.write_bytes(data[:200].replace(b"{", b"[") + data[200:])
    daemon.restart()
    assert "journal" in daemon.get("x").warnings[0]
    found = daemon.why("x")
    assert found["state"] == "JOB_STATE_LOST" and "journal" in found["damaged"]
    assert (found["cause"]["kind"], found["cause"]["confidence"]) == ("muster", "none")
    assert "rank.exited" in [row["kind"] for row in found["timeline"]]  # the events tell it still
    assert "damaged" in page(daemon, "x")


def test_what_cannot_be_had_is_reported(daemon: Daemon) -> None:
    job = ended(daemon, "sh", "-c", "echo 'No space left on device'; exit 1")
    Path(job.ranks[0].log_path).unlink()
    text = page(daemon, "x")
    assert "Not known:" in text and f"{Path(job.ranks[0].log_path).name}: no longer exists" in text


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.timeout(300)
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs PyTorch: examples/ddp/requirements.txt")
def test_a_real_collective_in_which_one_rank_does_not_take_part(daemon: Daemon) -> None:
    script = (
        "import datetime, time, torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo', timeout=datetime.timedelta(seconds=5))\n"
        "dist.all_reduce(torch.ones(1))\n"
        "if dist.get_rank() == 1: time.sleep(600)\n"
        "dist.all_reduce(torch.ones(1))\n"
    )
    daemon.run(sys.executable, "-c", script, job_id="x", ranks=2)
    daemon.wait("x", 240)
    found = daemon.why("x")
    assert (found["firstFailure"]["rank"], found["verdict"]["victims"]) == (0, [1])
    assert (found["cause"]["signature"], found["cause"]["kind"]) == ("gloo-peer-gone", "peer")


# --- cards ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def cards(tmp_path: Path) -> Iterator[FakeCards]:
    with FakeCards.for_test(tmp_path / "cards", "nvidia", 4) as made:
        yield made


@pytest.fixture
def on_cards(make_daemon: Callable[..., Daemon], cards: FakeCards) -> Daemon:
    daemon = make_daemon(CONFIG, cards.env)
    eventually(lambda: len(daemon.nodes.GetNode(node_pb2.GetNodeRequest(), timeout=60).node.cards) == len(cards))
    return daemon


def conditions(daemon: Daemon) -> set[tuple[str, str]]:
    node = daemon.nodes.GetNode(node_pb2.GetNodeRequest(), timeout=60).node
    return {(condition.code, condition.device) for condition in node.conditions}


def start(daemon: Daemon, *command: str, indices: tuple[int, ...] = (1, 2)) -> Any:
    wanted = job_pb2.CardRequest(indices=list(indices))
    spec = job_pb2.JobSpec(job_id="x", command=command, cards=wanted)
    daemon.jobs.Start(job_pb2.StartRequest(spec=spec), timeout=60)
    return daemon.until_running("x")


def test_a_card_that_fell_off_the_bus(on_cards: Daemon, cards: FakeCards) -> None:
    job = start(on_cards, "sleep", "600")
    until_heard(on_cards, cards, 0)
    cards.xid(1, 79)
    eventually(lambda: ("GPU_OFF_BUS", "card 1") in conditions(on_cards))
    # While it runs one is told what is wrong.
    assert cause(on_cards, "x")[0] == "node"
    os.kill(job.ranks[0].pid, signal.SIGABRT)
    on_cards.wait("x")
    assert cause(on_cards, "x") == ("node", "", "high")
    found = on_cards.why("x")
    assert "card 1: GPU_OFF_BUS: Xid 79" in found["cause"]["text"]
    assert any("Reboot" in step for step in found["nextSteps"])
    grave = [row for row in found["timeline"] if row["grave"]]
    assert [(row["card"], row["code"]) for row in grave] == [(1, "GPU_OFF_BUS")] and grave[0]["seconds"] < 0
    assert "Recommendation: RETRY_ELSEWHERE" in page(on_cards, "x")


def test_a_card_of_another_job_is_not_blamed(on_cards: Daemon, cards: FakeCards) -> None:
    job = start(on_cards, "sleep", "600", indices=(1,))
    until_heard(on_cards, cards, 0)
    cards.xid(3, 79)
    eventually(lambda: ("GPU_OFF_BUS", "card 3") in conditions(on_cards))
    os.kill(job.ranks[0].pid, signal.SIGABRT)
    on_cards.wait("x")
    found = on_cards.why("x")
    assert found["cause"]["kind"] == "job" and not any(row["card"] == 3 for row in found["timeline"])


@pytest.mark.slow
def test_telemetry_of_the_time_before(on_cards: Daemon, cards: FakeCards) -> None:
    cards[1].util, cards[2].util = 100, 100
    job = start(on_cards, "sleep", "600")

    def curves() -> dict[int, list[float]]:
        series = on_cards.why("x")["telemetry"]["series"]
        return {s["card"]: [v for v in s["utilization"] if v is not None] for s in series if s["card"] is not None}

    eventually(lambda: all(100 in values for values in curves().values()) and len(curves()) == 2)
    cards[2].util = 0
    # For so long that the remark stays where the steps become twice as long meanwhile.
    eventually(lambda: on_cards.why("x")["telemetry"]["remarks"] and curves()[2][-10:] == [0] * 10)
    os.kill(job.ranks[0].pid, signal.SIGABRT)
    on_cards.wait("x")
    found = on_cards.why("x")["telemetry"]
    assert [series["rank"] for series in found["series"] if series["card"] is not None] == [0, 1]
    assert found["remarks"] == ["card 2 (rank 1) stayed idle at the end while the others were busy"]
    text = page(on_cards, "x")
    assert "UTILIZATION" in text and "card 2  1" in text
