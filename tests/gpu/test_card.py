"""A node with a real NVIDIA card: what muster says of it is what nvidia-smi says, and jobs get it and give it back."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from muster.v1 import job_pb2, node_pb2
from tests.conftest import BIN, eventually
from tests.gpu.conftest import on_card, smi, torch_python, worker


def card(node):
    """Card 0 as the daemon has it now."""
    return whole(node).cards[0]


def whole(node):
    return node.nodes.GetNode(node_pb2.GetNodeRequest(), timeout=30).node


def start(node, job_id, *command, **fields):
    return node.run(*command, job_id=job_id, ranks=0, cards=job_pb2.CardRequest(count=1), **fields)


def busy(node, job_id):
    """The card once the job keeps it busy; at once an error where the job has ended, with its output."""

    def found():
        job = node.get(job_id)
        assert job.state != job_pb2.JOB_STATE_FAILED, node.output(job).decode()
        return (c := card(node)).reading.utilization >= 90 and c

    return eventually(found, 90, "the card is busy")


def never_ends(node, job_id):
    """Returns once its kernel that never ends has begun."""

    def begun():
        job = node.get(job_id)
        assert job.state != job_pb2.JOB_STATE_FAILED, node.output(job).decode()
        return b"never ends" in node.output(job)

    eventually(begun, 120, "the kernel runs")


def test_the_card_is_the_one_that_nvidia_smi_shows(node, real):
    shown = json.loads(node.cli("node", "-o", "json").stdout)["cards"][0]
    assert (shown["uuid"], shown["model"]) == (real.uuid, real.model)
    assert real.bus_id.lower().endswith(shown["busId"].lower())
    assert int(shown["memoryBytes"]) >> 20 == pytest.approx(real.memory_mib, abs=1)
    assert os.path.exists(shown["deviceNode"])
    driver, power_limit, mig = smi("driver_version", "power.limit", "mig.mode.current")
    reading = eventually(lambda: card(node).reading if card(node).reading.power_watts else None)
    assert whole(node).driver_version == driver
    assert reading.power_limit_watts == pytest.approx(float(power_limit), abs=1)
    assert shown["mig"] == (mig == "Enabled")


def test_the_check_finds_the_card_present(real):
    done = subprocess.run(
        [BIN / "muster", "check", "-o", "json"], capture_output=True, text=True, timeout=120, check=False
    )
    checks = {(c["item"], c["card"]): c for c in json.loads(done.stdout)["checks"]}
    assert checks["gpu-check", None]["status"] == "OK"
    assert real.uuid in checks["gpu-check", None]["observed"]
    assert checks["gpu-lost", 0]["status"] == "OK"


def test_a_job_under_load(node, real, tmp_path):
    """Utilization, power, memory and the process of the rank; nobody else gets the card."""
    start(node, "load", *worker("matmul"))
    assert busy(node, "load").job_id == "load"
    pid = node.rank_pid("load")
    eventually(lambda: pid in [p.pid for p in card(node).reading.processes], message="the rank is seen on the card")
    assert pid in on_card()
    watts, used = (float(word) for word in smi("power.draw", "memory.used"))
    reading = eventually(lambda: (r := card(node).reading).power_watts > 1.5 * real.idle_watts and r)
    assert reading.power_watts == pytest.approx(watts, rel=0.25)
    assert reading.memory_used_bytes / (1 << 20) == pytest.approx(used, abs=200)

    if int(smi("compute_cap")[0].partition(".")[0]) >= 9:
        parts = eventually(lambda: (a := card(node).reading.activity).HasField("tensor") and a)
        assert parts.tensor > 20 and parts.sm > 50

    refused = node.cli("start", "--cards", "1", "--", "true")
    assert refused.returncode == 5 and "held by load" in refused.stderr

    top = node.cli("top", "-n", "2").stdout
    assert "load" in top and str(pid) in top
    page = scraped(tmp_path / "metrics.sock")
    assert f'muster_card_leased{{card="0",uuid="{real.uuid}"' in page
    assert "muster_driver_up" in page

    node.stop("load", grace_s=2)
    assert not on_card()
    assert not card(node).job_id


def scraped(path: Path) -> str:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(30)
        connection.connect(str(path))
        connection.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        return b"".join(iter(lambda: connection.recv(1 << 16), b"")).decode()


def test_a_kernel_that_never_ends_is_stopped_and_the_card_is_free(node, tell):
    start(node, "spin", *worker("hang", 1))
    never_ends(node, "spin")
    busy(node, "spin")
    began = time.monotonic()
    assert node.cli("stop", "spin", "--grace", "2").returncode == 0
    tell(f"a job with a kernel that never ends is gone, its card free, after {time.monotonic() - began:.2f} s")
    assert not on_card()
    assert node.get("spin").state == job_pb2.JOB_STATE_STOPPED


def test_the_card_outlives_a_killed_daemon(node):
    start(node, "kept", *worker("matmul"))
    busy(node, "kept")
    pid = node.rank_pid("kept")
    assert pid in on_card()
    node.kill()
    assert pid in on_card()
    node.restart()
    assert node.get("kept").state == job_pb2.JOB_STATE_RUNNING
    assert card(node).job_id == "kept"
    node.stop("kept", grace_s=0)


def test_a_stranger_on_the_card(node):
    """A program that no job started: the check names it, and it is left alone."""
    with subprocess.Popen(worker("matmul"), stdout=subprocess.DEVNULL) as stranger:
        try:
            eventually(on_card, 90, "the stranger is on the card")

            def found():
                done = node.cli("check", "leftovers", "-o", "json")
                return [c for c in json.loads(done.stdout)["checks"] if str(stranger.pid) in c["reason"]]

            (one,) = eventually(found, 60, "the check names it")
            assert (one["card"], one["code"]) in ((0, "NODE_PENDING"), (0, "GPU_LEFTOVER_PROCESS"))
            assert stranger.poll() is None
        finally:
            stranger.kill()


def test_more_memory_than_the_card_has(node):
    start(node, "full", *worker("oom"))
    job = node.explained("full")
    assert job.state == job_pb2.JOB_STATE_FAILED
    assert "cuda-out-of-memory" in node.cli("why", "full").stdout


def test_a_fault_of_a_kernel_is_an_event_and_a_cause(node):
    start(node, "fault", *worker("fault"))
    job = node.explained("fault")
    assert job.state == job_pb2.JOB_STATE_FAILED
    why = node.cli("why", "fault").stdout
    signature, xid = ("cuda-device-assert", 43) if torch_python() else ("cuda-illegal-access", 31)
    assert signature in why
    assert f"GPU_XID_APPLICATION: Xid {xid}" in why
    # The program's own fault is nothing against the card.
    assert not whole(node).conditions


#: The rule of a day in seconds: everything ten times as fast.
FAST = """
[hang]
period_s = 6
window_s = 30
suspect_s = 30
suspect_soon_s = 6
proof_s = 15
stacks_apart_s = 2
hung_s = 60
active_s = 3
established_s = 18
dark_s = 15
"""


def test_a_kernel_that_spins_is_a_hang(make_node, tell):
    """Steady work with a line of log each half second, then a kernel that never ends: SUSPECT, then HUNG."""
    node = make_node(FAST)
    start(node, "hang", *worker("hang", 25))
    never_ends(node, "hang")
    began = time.monotonic()

    def seen(kind):
        return [e for e in node.event_list("hang") if e.kind == kind]

    eventually(lambda: seen("job.suspected_hang"), 120, "it is SUSPECT")
    suspect = time.monotonic() - began
    eventually(lambda: seen("job.hung"), 240, "it is HUNG")
    tell(f"ten times as fast: SUSPECT {suspect:.0f} s, HUNG {time.monotonic() - began:.0f} s after the kernel began")
    assert "rank 0" in node.cli("why", "hang").stdout
    node.stop("hang", grace_s=0)


def test_what_the_daemon_costs(node, tell):
    """Nothing is asserted: the figures go to the summary."""
    start(node, "cost", *worker("matmul"))
    busy(node, "cost")

    def cpu():
        stat = Path(f"/proc/{node.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")

    before, began = cpu(), time.monotonic()
    time.sleep(20)  # nobody may ask it anything meanwhile
    spent, took = cpu() - before, time.monotonic() - began
    memory = dict(line.split(":") for line in Path(f"/proc/{node.pid}/smaps_rollup").read_text().splitlines()[1:])
    tell(
        f"daemon: {100 * spent / took:.2f} % of a core with one busy card, PSS {int(memory['Pss'].split()[0]) >> 10} MB"
    )
    node.stop("cost", grace_s=0)


@pytest.mark.parametrize("test", ["compute", "memory", "transfer"])
def test_an_active_test_of_the_card(real, test, tell):
    command = [sys.executable, "-m", "muster.probes.active.card_program", test, real.bus_id, "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    said = json.loads(done.stdout)
    assert (done.returncode, said["wrong"]) == (0, 0), said
    tell(f"{test}: {', '.join(f'{name} {value:.1f}' for name, value in said['measured'].items())}")
