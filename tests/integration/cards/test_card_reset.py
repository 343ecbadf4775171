"""`muster node reset` on fake cards, whose nvidia-smi refuses a card that anybody has open, as the real one does."""

import json
import os
import shutil
import signal
import subprocess
import time

import pytest

from muster.probes.kernel import process
from muster.v1 import node_pb2, probe_pb2
from tests.conftest import BIN, eventually
from tests.fakes import build
from tests.fakes.card import LOST
from tests.fakes.cards import FakeCards
from tests.integration.driver_events import until_heard

STEPS = [
    "drain", "jobs", "close", "persistence-off", "holders", "reset", "open", "persistence-on", "check", "active",
    "undrain",
]  # fmt: skip
CONFIG = "[active]\nseconds = 0.01\n[health]\n"


@pytest.fixture
def cards(tmp_path):
    with FakeCards.for_test(tmp_path / "cards", "nvidia", 4) as made:
        made.install_nvidia_smi()
        shutil.copy(build.library("cuda"), made.folder)
        yield made
        made.restore()


def reset(daemon, *args):
    """The exit code, and (step, status, text) of each message."""
    done = daemon.cli("node", "reset", *args, "-o", "json")
    told = [json.loads(line) for line in done.stdout.splitlines()]
    return done.returncode, [(it["step"], it["status"], it.get("text", "")) for it in told], done.stderr


def node(daemon):
    return daemon.nodes.GetNode(node_pb2.GetNodeRequest(), timeout=60).node


def conditions(daemon):
    return {(c.code, c.device) for c in node(daemon).conditions if c.device.startswith("card ")}


def look(daemon, *items):
    """Has the daemon look now."""
    daemon.probes.RunChecks(probe_pb2.RunChecksRequest(items=items), timeout=60)
    return conditions(daemon)


def came_out(told):
    return {step: status for step, status, _ in told if status not in ("begun", "waiting")}


@pytest.mark.slow
def test_a_sick_card_comes_back(make_daemon, cards):
    daemon = make_daemon(CONFIG, cards.env)
    eventually(lambda: len(node(daemon).cards) == 4)
    cards[2].remapped_pending = True
    until_heard(daemon, cards, 0)
    cards.xid(2, 46)
    eventually(lambda: ("GPU_XID_RESET", "card 2") in conditions(daemon))
    assert ("GPU_ROW_REMAP_PENDING", "card 2") in look(daemon, "row-remap")
    code, told, notes = reset(daemon, "2")
    assert code == 0, (told, notes)
    assert list(came_out(told)) == STEPS
    assert {*came_out(told).values()} == {"done", "completed"}, told
    assert cards.resets == 1
    bus = cards[2].bus_id
    assert cards.program_calls == [
        f"nvidia-smi -pm 0 -i {bus}", f"nvidia-smi --gpu-reset -i {bus}", f"nvidia-smi -pm 1 -i {bus}"
    ]  # fmt: skip
    assert not conditions(daemon) and not node(daemon).HasField("drain")
    # The events tell the same, and the listener hears the card again.
    assert "reset of card 2 is complete" in daemon.cli("events").stdout
    assert daemon.cli("run", "--cards", "2,", "--", "true").returncode == 0
    # Nothing is reported to who has not opened the driver yet.
    eventually(lambda: cards.xid(2, 46) or ("GPU_XID_RESET", "card 2") in conditions(daemon))


@pytest.mark.slow
def test_a_job_is_waited_for_or_stopped_and_no_new_one_begins(make_daemon, cards):
    daemon = make_daemon(CONFIG, cards.env)
    eventually(lambda: len(node(daemon).cards) == 4)
    assert daemon.cli("start", "--job-id", "long", "--cards", "1,", "--", "sleep", "1000").returncode == 0
    code, told, notes = reset(daemon, "1", "--wait", "0s")
    assert code == 1 and came_out(told).get("jobs") == "given up"
    assert "job long holds card 1" in notes and "in service as before" in notes
    assert not node(daemon).HasField("drain") and not cards.resets
    command = [BIN / "muster", "--root", daemon.folder, "node", "reset", "1"]
    waiting = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    eventually(lambda: node(daemon).HasField("drain"))
    refused = daemon.cli("start", "--cards", "1,", "--", "true").stderr
    assert "reset of card 1; a card is being reset: wait for the end" in refused and "undrain" not in refused
    assert [card.index for card in node(daemon).cards if "being reset by" in card.reserved] == [1]
    assert "being reset by" in daemon.cli("node", "reset", "1").stderr
    assert daemon.cli("node", "reset", "2").returncode == 5
    assert "wait for its end" in daemon.cli("node", "undrain").stderr
    # The reset goes on without its client, and ends when somebody says so.
    waiting.kill()
    waiting.wait()
    assert node(daemon).HasField("drain")
    assert daemon.cli("node", "reset", "--cancel").returncode == 0
    eventually(lambda: not node(daemon).HasField("drain"))
    # It takes jobs a moment before the reset is over.
    eventually(lambda: daemon.cli("node", "reset", "--cancel").returncode == 5)
    code, told, notes = reset(daemon, "1", "--stop", "--no-active")
    assert code == 0, (told, notes)
    assert came_out(told).get("active") == "skipped" and cards.resets == 1
    assert daemon.cli("wait", "long").returncode == 143


@pytest.mark.slow
def test_a_failure_puts_back_what_was_changed_or_says_how(make_daemon, cards):
    daemon = make_daemon(CONFIG, cards.env)
    eventually(lambda: len(node(daemon).cards) == 4)
    assert daemon.cli("start", "--job-id", "held", "--cards", "1,", "--", "sleep", "1000").returncode == 0
    # Somebody else's drain stays.
    assert daemon.cli("node", "drain", "new cables").returncode == 0
    # A reset that changes nothing tells of it.
    code, told, notes = reset(daemon, "1", "--wait", "0s")
    assert code == 1 and "nothing was changed, and the node stays drained (new cables)" in notes
    cards.fail("nvidia-smi", 4)
    code, told, notes = reset(daemon, "0")
    assert code == 1 and came_out(told).get("reset") == "given up"
    assert "ended with 4" in notes and "as root" in notes and "muster node undrain" in notes
    assert node(daemon).drain.reason == "new cables" and "(new cables)" in notes
    assert {"reset": "given up", "persistence-on": "skipped"}.items() <= came_out(told).items()
    # Whoever lifts that drain can see what was left, and also after another musterd has begun.
    failed = "the reset of card 0 failed: nvidia-smi ended with 4"
    daemon.kill(signal.SIGTERM)
    daemon.restart()
    eventually(lambda: len(node(daemon).cards) == 4)
    assert any(failed in text and "node reset 0" in text for text in node(daemon).warnings)
    assert node(daemon).drain.reason == "new cables"
    cards.clear("nvidia-smi")
    # Of another card there is none meanwhile, whose end would pass for this one's.
    code, told, notes = reset(daemon, "1", "--wait", "0s")
    assert code == 5 and "the reset of card 0 " in notes and "is open" in notes and "muster node undrain" in notes
    assert any(failed in text for text in node(daemon).warnings)
    # A card that is wrong after it stays out of service.
    (cards.folder / "cuda.plan").write_text(f"{cards[0].bus_id} wrong 1\n")
    assert daemon.cli("node", "undrain").returncode == 0
    code, told, notes = reset(daemon, "0")
    assert code == 1 and came_out(told).get("active") == "given up", (told, notes)
    assert "ACTIVE_WRONG_RESULT" in notes and "ACTIVE_WRONG_RESULT" in node(daemon).drain.reason
    assert cards[0].persistence and cards.resets == 1
    # Nor does a reset of another card end the drain of one that failed.
    assert reset(daemon, "1", "--wait", "0s")[0] == 5
    assert "ACTIVE_WRONG_RESULT" in node(daemon).drain.reason
    # The next one that succeeds takes the node into service again.
    (cards.folder / "cuda.plan").write_text("")
    assert daemon.cli("check", "clear", "ACTIVE_WRONG_RESULT").returncode == 0
    assert reset(daemon, "0")[0] == 0
    assert not node(daemon).HasField("drain") and not node(daemon).warnings


@pytest.mark.slow
def test_a_card_that_no_job_gets_is_not_back(make_daemon, cards):
    daemon = make_daemon(CONFIG, cards.env)
    eventually(lambda: len(node(daemon).cards) == 4)
    # A driver that crashes on a card that nobody uses is no reason to leave the tests out.
    (cards.folder / "cuda.plan").write_text("segv 1\n")
    code, told, notes = reset(daemon, "2")
    assert code == 1 and came_out(told).get("active") == "given up", (told, notes)
    assert "SIGSEGV ended it" in notes and ("ACTIVE_FAILED", "card 2") in conditions(daemon)
    # Without them, what they found last time still holds.
    (cards.folder / "cuda.plan").write_text("")
    code, told, notes = reset(daemon, "2", "--no-active")
    assert code == 1 and {"active": "skipped", "undrain": "given up"}.items() <= came_out(told).items(), (told, notes)
    assert "still CRITICAL: card 2: ACTIVE_FAILED" in notes and node(daemon).HasField("drain")
    assert reset(daemon, "2")[0] == 0
    assert not node(daemon).HasField("drain") and not conditions(daemon)


@pytest.mark.slow
def test_tests_of_a_drain_that_a_reset_has_broken_off_are_made_behind_it(make_daemon, cards):
    daemon = make_daemon("[active]\nseconds = 0.0177\nin_drain = true\n[health]\n", cards.env)
    eventually(lambda: len(node(daemon).cards) == 4)
    (cards.folder / "cuda.plan").write_text("hang 1\n")
    assert daemon.cli("node", "drain", "a repair").returncode == 0

    def testing():
        return subprocess.run(["pgrep", "-f", r"card_program .* 0\.0177$"], capture_output=True, check=False).stdout

    eventually(testing)
    code, told, notes = reset(daemon, "1", "--no-active")
    assert code == 0, (told, notes)
    (cards.folder / "cuda.plan").write_text("")
    eventually(lambda: "tested while the node is drained: cards 0-3: all is well" in daemon.cli("events").stdout)


def test_what_cannot_be_reset_is_refused_and_nothing_changes(make_daemon, cards):
    cards[1].virtualization = 2
    cards[2].mig, cards[2].mig_count = 1, 2
    daemon = make_daemon(CONFIG, cards.env)
    eventually(lambda: len(node(daemon).cards) == 6)
    cards[3].lose(LOST)
    assert ("GPU_LOST", "card 3") in look(daemon, "gpu-lost")
    for card, why in (("1", "vGPU"), ("2", "MIG mode"), ("1200", "MIG instance"), ("3", "--force"), ("9", "cards of")):
        done = daemon.cli("node", "reset", card)
        assert done.returncode == 5 and why in done.stderr, done.stderr
    cards[0].mig = 1  # while the daemon runs
    done = daemon.cli("node", "reset", "0")
    assert done.returncode == 5 and "it is in MIG mode" in done.stderr, done.stderr
    cards[0].mig = 0
    assert not node(daemon).HasField("drain") and not cards.program_calls
    os.unlink(cards.folder / "bin/nvidia-smi")
    assert "not found in PATH" in daemon.cli("node", "reset", "0").stderr


@pytest.mark.slow
def test_a_daemon_that_dies_in_the_middle(make_daemon, cards):
    daemon = make_daemon(CONFIG, cards.env)
    eventually(lambda: len(node(daemon).cards) == 4)
    cards[0].persistence = False
    cards.hang("nvidia-smi")
    command = [BIN / "muster", "--root", daemon.folder, "node", "reset", "3"]
    client = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    eventually(lambda: "nvidia-smi" in cards.waits_in())
    daemon.kill()
    out, err = client.communicate(timeout=60)
    assert client.returncode and "muster node" in err, (out, err)
    daemon.restart()
    found = node(daemon)
    assert "interrupted in the step persistence-off" in found.drain.reason
    # Not even for who asks: an open driver blocks the reset.
    daemon.probes.RunChecks(probe_pb2.RunChecksRequest(items=["row-remap"]), timeout=60)
    assert cards.state.all.sessions == 0
    assert any("muster node reset 3" in text for text in found.warnings)
    cards.clear("nvidia-smi")
    # Once the first program has ended, the mode is on again and the driver is open.
    eventually(lambda: [it.model for it in node(daemon).cards] == [cards[0].model] * 4 and cards[3].persistence)
    assert not cards[0].persistence
    # Refused until what the first daemon left is put in order.
    code, told, notes = eventually(lambda: (it := reset(daemon, "3"))[0] != 5 and it)
    assert code == 0, (told, notes)
    assert not node(daemon).HasField("drain") and not node(daemon).warnings
    state = json.loads((daemon.folder / "state/reset.json").read_text())
    assert not state.get("current") and not state["drain"]


@pytest.mark.slow
def test_no_program_begins_that_the_next_musterd_would_not_know_of(make_daemon, cards):
    daemon = make_daemon(CONFIG, cards.env)
    eventually(lambda: len(node(daemon).cards) == 4)
    cards.hang("nvidia-smi")  # it turns persistence mode off
    command = [BIN / "muster", "--root", daemon.folder, "node", "reset", "3"]
    client = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    eventually(lambda: "nvidia-smi" in cards.waits_in())
    # From now on the file cannot be written: there is a folder in its place.
    daemon.root.reset.unlink()
    (daemon.root.reset / "full").mkdir(parents=True)
    cards.clear("nvidia-smi")
    _, err = client.communicate(timeout=60)
    assert client.returncode == 1 and "nothing was changed, and the node is in service as before" in err
    assert not cards.resets and cards[3].persistence and not node(daemon).HasField("drain")
    shutil.rmtree(daemon.root.reset)
    assert reset(daemon, "3")[0] == 0


def ends(daemon):
    return [e.attributes["status"] for e in daemon.event_list() if e.kind == "node.reset" and "complete" in e.message]


@pytest.mark.slow
def test_a_daemon_that_dies_behind_the_last_step(make_daemon, cards):
    """All was done but to write that it is over, or to tell of it: the node takes jobs, and it is told once."""
    daemon = make_daemon(CONFIG, cards.env)
    eventually(lambda: len(node(daemon).cards) == 4)
    assert reset(daemon, "2")[0] == 0 and ends(daemon) == ["completed"]
    daemon.kill()
    (segment,) = daemon.root.events.glob("*.log")
    lines = segment.read_bytes().splitlines(keepends=True)
    segment.write_bytes(b"".join(line for line in lines if b"is complete" not in line))
    for _ in range(2):
        daemon.start()
        assert ends(daemon) == ["completed"] and not node(daemon).HasField("drain")
        daemon.kill()
    state = json.loads(daemon.root.reset.read_text())
    of_card = {"card": 2, "uuid": cards[2].uuid, "bus_id": cards[2].bus_id, "together": [2]}
    began = {
        "by": "musterd",
        "since": time.time(),
        "boot": process.boot_id(),
        "step": "undrain",
        "code": "GPU_XID_RESET",
    }
    unfinished = {"current": of_card | began, "drain": "reset of card 2", "ended": None}
    daemon.root.reset.write_text(json.dumps(state | unfinished))
    for _ in range(2):
        daemon.start()
        assert ends(daemon) == ["completed"] * 2
        assert not node(daemon).HasField("drain") and not node(daemon).warnings
        daemon.kill()
        assert json.loads(daemon.root.reset.read_text())["given_up"] == {}, "it did not fail"


@pytest.fixture
def hanging(cards):
    """Cards without persistence mode, so that the program which hangs is the one that resets."""
    for card in cards:
        card.persistence = False
    cards.hang("nvidia-smi")
    return cards


def begin_reset(daemon, cards, card, program="nvidia-smi"):
    """A client of a reset whose program has begun, and hangs."""
    eventually(lambda: len(node(daemon).cards) == 4)
    command = [BIN / "muster", "--root", daemon.folder, "node", "reset", card]
    client = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    eventually(lambda: program in cards.waits_in())
    return client


@pytest.mark.slow
def test_the_drain_of_an_operator_during_a_reset_stays(make_daemon, hanging):
    daemon = make_daemon(CONFIG, hanging.env)
    client = begin_reset(daemon, hanging, "2")
    assert daemon.cli("node", "drain", "fire in rack 7").returncode == 0
    hanging.fail("nvidia-smi", 3)  # instead of hanging
    _, err = client.communicate(timeout=60)
    assert client.returncode == 1 and "stays drained by" in err and "fire in rack 7" in err
    assert node(daemon).drain.reason == "fire in rack 7"
    assert any("reset of card 2 failed" in text for text in node(daemon).warnings)
    hanging.clear("nvidia-smi")
    code, told, notes = reset(daemon, "2")
    assert code == 0 and told[-1][2].endswith("stays drained: fire in rack 7"), (told, notes)
    assert node(daemon).drain.reason == "fire in rack 7" and not node(daemon).warnings


@pytest.mark.slow
def test_a_card_that_does_not_come_back_keeps_its_ids(make_daemon, hanging):
    daemon = make_daemon(CONFIG + "[reset]\nreturn_s = 3\n", hanging.env)
    client = begin_reset(daemon, hanging, "2")
    hanging[2].fail("*", LOST)
    hanging.clear("nvidia-smi")
    _, err = client.communicate(timeout=60)
    assert client.returncode == 1 and "`muster node reset 2 --force` tries again" in err
    # What it was is known, although the driver tells nothing of it now.
    done = daemon.cli("node", "reset", "2")
    assert done.returncode == 5 and "fell off the bus" in done.stderr and "--force" in done.stderr
    hanging[2].clear()
    code, told, notes = reset(daemon, hanging[2].uuid, "--force")
    assert code == 0, (told, notes)
    assert hanging.resets == 2 and not node(daemon).warnings


@pytest.mark.slow
def test_the_number_of_a_card_that_is_gone_after_its_reset_means_no_other(make_daemon, hanging):
    daemon = make_daemon(CONFIG + "[reset]\nreturn_s = 3\n", hanging.env)
    bus = hanging[2].bus_id
    client = begin_reset(daemon, hanging, "1")
    hanging[1].remove()  # the card behind it has its number now
    hanging.clear("nvidia-smi")
    client.communicate(timeout=60)
    assert client.returncode == 1
    eventually(lambda: len(node(daemon).cards) == 3)
    for again in ("1", "2", bus):
        code, told, notes = reset(daemon, again, "--force")
        assert code == 5 and "muster node undrain" in notes, (told, notes)
    assert "lists no such card any more: reboot the node" in daemon.cli("node", "reset", "1").stderr
    asked = [call for call in hanging.program_calls if "--gpu-reset" in call]
    assert asked == [f"nvidia-smi --gpu-reset -i {hanging[1].bus_id}"] and node(daemon).HasField("drain")
    # It comes back: its number is its own again.
    hanging[1].insert()
    code, told, notes = reset(daemon, "1")
    assert code == 0, (told, notes)
    assert hanging.program_calls[-2] == f"nvidia-smi --gpu-reset -i {hanging[1].bus_id}"
    assert not node(daemon).HasField("drain") and not node(daemon).warnings


@pytest.mark.slow
def test_a_program_that_outlives_its_daemon_is_killed_in_time(make_daemon, hanging):
    daemon = make_daemon(CONFIG + "[reset]\nprogram_s = 1000\n", hanging.env)
    client = begin_reset(daemon, hanging, "3")
    daemon.kill()
    client.communicate(timeout=60)
    pid, start = json.loads((daemon.folder / "state/reset.json").read_text())["current"]["program"]
    daemon.restart()
    for command in ("undrain",), ("reset", "3"):
        done = daemon.cli("node", *command)
        assert done.returncode == 5 and f"pid {pid}) still runs" in done.stderr, done.stderr
    assert process.open_pidfd(pid, start) is not None
    # Its time counts from its start.
    daemon.config.write_text(daemon.config.read_text().replace("program_s = 1000", "program_s = 0.1"))
    daemon.process.send_signal(signal.SIGHUP)
    eventually(lambda: (stat := process.read_stat(pid)) is None or stat.start != start or stat.ended)
    said = f"(pid {pid}) of the reset of card 3 did not end within 0.1 s"
    eventually(lambda: said in daemon.cli("events").stdout)
    assert "interrupted in the step reset" in node(daemon).drain.reason
    eventually(lambda: daemon.cli("node", "undrain").returncode == 0)
    assert not node(daemon).warnings and not hanging.resets


@pytest.mark.slow
def test_a_card_is_reset_by_itself_for_named_codes(make_daemon, cards):
    daemon = make_daemon(CONFIG + '[reset]\ncodes = ["GPU_XID_RESET"]\nmost_a_day = 1\n', cards.env)
    eventually(lambda: len(node(daemon).cards) == 4)
    until_heard(daemon, cards, 0)
    cards.xid(1, 46)
    eventually(lambda: cards.resets == 1 and not node(daemon).HasField("drain"))
    eventually(lambda: not conditions(daemon))
    done = daemon.cli("events", "-o", "json").stdout
    assert "codes in [reset]" in done
    # Once a day is enough.
    state = json.loads((daemon.folder / "state/reset.json").read_text())
    assert len(state["past"][cards[1].uuid]) == 1
    # Which is said, as long as the card needs another.
    eventually(lambda: cards.xid(1, 46) or ("GPU_XID_RESET", "card 1") in conditions(daemon))
    why = "card 1 was reset 1 times within 24 hours (most_a_day in [reset]); `muster node reset 1` does"
    eventually(lambda: any(text.endswith(why) for text in node(daemon).warnings))
    assert cards.resets == 1
    assert reset(daemon, "1")[0] == 0
    eventually(lambda: not node(daemon).warnings)
    # Nor is one whose instances it would end, also if it got them since it was listed.
    cards[2].mig = 1
    eventually(lambda: cards.xid(2, 46) or any("it is in MIG mode" in text for text in node(daemon).warnings))
    assert cards.resets == 2


@pytest.mark.slow
def test_a_card_with_what_an_ended_job_left_is_reset_by_itself(make_daemon, cards):
    """After a fault that ends a job, its memory often stays without a process."""
    daemon = make_daemon(CONFIG + '[reset]\ncodes = ["GPU_XID_RESET"]\n[cards]\nrelease_timeout_s = 0.5\n', cards.env)
    eventually(lambda: len(node(daemon).cards) == 4)
    until_heard(daemon, cards, 0)
    assert daemon.cli("start", "--job-id", "one", "--cards", "2,", "--", "sleep", "1000").returncode == 0
    cards.xid(2, 46)
    eventually(lambda: ("GPU_XID_RESET", "card 2") in conditions(daemon))
    cards[2].mem_used += 8 << 30
    assert daemon.cli("stop", "one").returncode == 1
    eventually(lambda: cards.resets == 1 and not node(daemon).HasField("drain"))
    eventually(lambda: ("GPU_XID_RESET", "card 2") not in conditions(daemon))


@pytest.mark.slow
def test_ascend_chips_go_together(make_daemon, tmp_path):
    with FakeCards.for_test(tmp_path / "npus", "ascend", 4) as npus:
        daemon = make_daemon(CONFIG + "[reset]\nsettle_s = 0\n", npus.env)
        eventually(lambda: len(node(daemon).cards) == 4)
        npus[2].error(0x80C78008)
        assert ("NPU_FAULT_RESET", "card 2") in look(daemon, "npu-errors")
        code, told, notes = reset(daemon, "2")
        assert code == 0, (told, notes)
        assert "reset of cards 0-3 is complete" in told[-1][2]
        assert not conditions(daemon)
        npus.restore()


@pytest.mark.slow
def test_all_chips_that_go_along_must_be_free_before_and_answer_after(make_daemon, tmp_path):
    with FakeCards.for_test(tmp_path / "npus", "ascend", 4) as npus:
        daemon = make_daemon(CONFIG + "[reset]\nsettle_s = 0\nreturn_s = 1\n", npus.env)
        eventually(lambda: len(node(daemon).cards) == 4)
        stranger = subprocess.Popen(["sleep", "1000"])
        npus[3].hold(stranger.pid, 1 << 30)
        code, told, notes = reset(daemon, "0")
        stranger.kill()
        stranger.wait()
        assert code == 1 and came_out(told).get("holders") == "given up", (told, notes)
        assert f"pid {stranger.pid} (sleep)" in notes and not node(daemon).HasField("drain")
        npus.hang("npu-smi")
        client = begin_reset(daemon, npus, "0", "npu-smi")
        npus[2].fail("*", -8012)
        npus.clear("npu-smi")
        _, err = client.communicate(timeout=60)
        assert client.returncode == 1 and "card 2" in err and "stays drained" in err, err
        assert npus.resets == 1 and node(daemon).HasField("drain")
        npus[2].clear()
        assert reset(daemon, "0")[0] == 0 and not node(daemon).HasField("drain")
        npus.restore()


@pytest.mark.slow
def test_what_the_driver_does_not_tell_after_a_reset_is_not_over(make_daemon, cards):
    daemon = make_daemon(CONFIG, cards.env)
    eventually(lambda: len(node(daemon).cards) == 4)
    cards[1].sram_uncorrected = 1
    assert ("GPU_ECC_SRAM_UNCORRECTED", "card 1") in look(daemon, "ecc")
    for count in ("SramEccErrorStatus", "MemoryErrorCounter", "TotalEccErrors"):
        cards[1].fail(f"nvmlDeviceGet{count}", 999)
    code, told, notes = reset(daemon, "1")
    assert code == 1 and came_out(told).get("check") == "given up", (told, notes)
    assert "GPU_ECC_SRAM_UNCORRECTED" in notes and "stays drained" in notes
    assert ("GPU_ECC_SRAM_UNCORRECTED", "card 1") in conditions(daemon)
    cards[1].clear()
    assert reset(daemon, "1")[0] == 0 and not conditions(daemon)


@pytest.mark.slow
def test_what_is_left_of_an_ended_job_does_not_keep_its_card_from_the_reset(make_daemon, cards):
    """Memory that no process holds: the remedy that muster names is the reset."""
    daemon = make_daemon(CONFIG + "[cards]\nrelease_timeout_s = 1\n", cards.env)
    eventually(lambda: len(node(daemon).cards) == 4)
    assert daemon.cli("start", "--job-id", "one", "--cards", "2,", "--", "sleep", "1000").returncode == 0
    cards[2].mem_used += 8 << 30
    done = daemon.cli("stop", "one")
    assert done.returncode == 1 and "muster node reset 2" in done.stderr, done.stderr
    code, told, notes = reset(daemon, "2", "--wait", "0s", "--no-active")
    assert code == 0, (told, notes)
    assert any(step == "jobs" and "still in use" in said for step, _, said in told)
    # Who can be ended is named, and the card is left as it is.
    stranger = subprocess.Popen(["sleep", "1000"])
    cards[2].hold(stranger.pid, 1 << 30)
    code, told, notes = reset(daemon, "2", "--wait", "0s")
    stranger.kill()
    stranger.wait()
    assert code == 1 and f"pid {stranger.pid} (sleep)" in notes and "in service as before" in notes, notes
    assert cards.resets == 1


@pytest.mark.slow
def test_a_stop_that_does_not_end_the_job_is_waited_for_no_longer_than_asked(make_daemon, cards):
    daemon = make_daemon(CONFIG, cards.env)
    eventually(lambda: len(node(daemon).cards) == 4)
    stubborn = ("sh", "-c", "trap '' TERM; while :; do sleep 1; done")
    assert daemon.cli("start", "--job-id", "deaf", "--cards", "2,", "--grace", "1h", "--", *stubborn).returncode == 0
    code, told, notes = reset(daemon, "2", "--stop", "--wait", "1s")
    assert code == 1 and came_out(told).get("jobs") == "given up", (told, notes)
    assert "its stop did not end it" in notes and "muster show deaf" in notes
    assert not node(daemon).HasField("drain")


@pytest.mark.slow
def test_an_exit_code_of_0_alone_is_no_reset(make_daemon, cards):
    daemon = make_daemon(CONFIG, cards.env)
    eventually(lambda: len(node(daemon).cards) == 4)
    program = cards.folder / "bin/nvidia-smi"
    program.write_text("#!/bin/sh\necho 'Unable to reset this GPU. Treating as warning and moving on.'\n")
    code, told, notes = reset(daemon, "1")
    assert code == 1 and came_out(told).get("reset") == "given up", (told, notes)
    assert "does not say that it worked: Unable to reset this GPU" in notes and "stays drained" in notes


@pytest.mark.slow
def test_a_job_that_ends_while_the_driver_is_closed_keeps_its_card_until_the_driver_is_asked(make_daemon, hanging):
    daemon = make_daemon(CONFIG + "[cards]\nrelease_timeout_s = 0.5\n", hanging.env)
    eventually(lambda: len(node(daemon).cards) == 4)
    assert daemon.cli("start", "--job-id", "other", "--cards", "1,", "--", "sleep", "1000").returncode == 0
    client = begin_reset(daemon, hanging, "3")
    hanging[1].hold(1 << 22, 1 << 30, lives=False)  # a process that the driver does not let go
    done = daemon.cli("stop", "other")
    assert done.returncode == 1 and "card 1: its holder" in done.stderr, done.stderr
    assert "musterd has closed the driver for the reset of card 3" in done.stderr
    hanging.clear("nvidia-smi")
    _, err = client.communicate(timeout=60)
    assert client.returncode == 0, err
    assert node(daemon).cards[1].job_id == "other"
    hanging[1].processes = []
    eventually(lambda: not node(daemon).cards[1].job_id)


OWN = CONFIG + '[reset]\ncodes = ["GPU_XID_RESET"]\n'


@pytest.fixture
def stranger():
    """A process of no job."""
    found = subprocess.Popen(["sleep", "1000"])
    yield found
    found.kill()
    found.wait()


def warned(daemon, *words):
    return next((text for text in node(daemon).warnings if all(word in text for word in words)), "")


@pytest.mark.slow
def test_a_card_that_somebody_uses_is_not_reset_by_itself_until_it_is_free(make_daemon, cards, stranger):
    """Nor is the node drained for it, or the try counted."""
    daemon = make_daemon(OWN, cards.env)
    eventually(lambda: len(node(daemon).cards) == 4)
    until_heard(daemon, cards, 0)
    cards[1].hold(stranger.pid, 1 << 30)
    eventually(lambda: any(card.reading.processes for card in node(daemon).cards if card.index == 1))
    cards.xid(1, 46)
    said = "musterd resets card 1 for GPU_XID_RESET as soon as no other process uses it"
    eventually(lambda: warned(daemon, said, f"pid {stranger.pid} (sleep)"), message=lambda: str(node(daemon)))
    told = [event for event in daemon.event_list() if event.kind in ("node.reset", "node.drained")]
    assert not told and not cards.resets
    stranger.kill()
    stranger.wait()
    cards[1].processes = []
    eventually(lambda: cards.resets == 1 and not node(daemon).warnings and not node(daemon).HasField("drain"))


@pytest.mark.slow
def test_a_reset_that_cannot_begin_is_tried_again_later_and_does_not_count(make_daemon, cards):
    daemon = make_daemon(OWN + "most_a_day = 1\n", cards.env)
    eventually(lambda: len(node(daemon).cards) == 4)
    until_heard(daemon, cards, 0)
    state = daemon.folder / "state/reset.json"
    state.mkdir()  # nothing can be written there: the reset stops before it has changed anything
    cards.xid(1, 46)
    said = "musterd resets card 1 for GPU_XID_RESET again 1m00s after the last try, which failed"
    eventually(lambda: warned(daemon, said), message=lambda: str(node(daemon)))
    assert not cards.resets and not node(daemon).HasField("drain")
    # An operator need not wait.
    state.rmdir()
    assert reset(daemon, "1")[0] == 0
    eventually(lambda: not node(daemon).warnings)
    assert json.loads(state.read_text())["past"] == {}


@pytest.mark.slow
def test_a_reset_by_itself_that_failed_is_not_repeated_behind_an_undrain(make_daemon, cards):
    daemon = make_daemon(OWN, cards.env)
    eventually(lambda: len(node(daemon).cards) == 4)
    until_heard(daemon, cards, 0)
    cards.fail("nvidia-smi", 1)
    cards.xid(1, 46)
    eventually(lambda: node(daemon).HasField("drain") and "failed" in node(daemon).drain.reason)
    assert daemon.cli("node", "undrain").returncode == 0
    said = "musterd does not reset a card for GPU_XID_RESET by itself: the reset of card 1 failed"
    eventually(lambda: warned(daemon, said, "and the node was undrained; `muster node reset 1` does"))
    # Nor by the next musterd.
    daemon.kill()
    cards.state.all.sessions = 0  # the kernel closes the driver of who was killed, which the fake does not see
    daemon.restart()
    eventually(lambda: warned(daemon, said))
    assert not node(daemon).HasField("drain")
    cards.clear("nvidia-smi")
    code, told, notes = reset(daemon, "1")
    assert (code, cards.resets) == (0, 1), (told, notes)
    eventually(lambda: not node(daemon).warnings)
    # It is over with the condition: another one is reset again.
    until_heard(daemon, cards, 0)
    eventually(lambda: cards.xid(1, 46) or cards.resets == 2)


@pytest.mark.slow
def test_a_reset_by_itself_says_for_which_job_it_waits(make_daemon, cards):
    daemon = make_daemon(OWN, cards.env)
    eventually(lambda: len(node(daemon).cards) == 4)
    until_heard(daemon, cards, 0)
    assert daemon.cli("start", "--job-id", "one", "--cards", "2,", "--", "sleep", "1000").returncode == 0
    cards.xid(2, 46)
    said = "musterd resets card 2 for GPU_XID_RESET as soon as no job holds it, or a card that goes with it"
    eventually(lambda: warned(daemon, said, "job one (card 2)"))
    daemon.stop("one", grace_s=0)
    eventually(lambda: cards.resets == 1 and not node(daemon).warnings)
