"""A driver's library that ends the daemon which calls it."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from muster.agent.node import driver_crashes
from muster.probes.kernel import process
from tests.conftest import BIN, Daemon, alive, eventually
from tests.fakes import FakeCards
from tests.fakes.card import FakeCard

CALL = "nvmlDeviceGetPowerUsage"


@pytest.fixture
def cards(tmp_path: Path) -> Iterator[FakeCards]:
    with FakeCards.for_test(tmp_path / "cards", "nvidia", 2) as made:
        yield made


def crash(daemon: Daemon, card: FakeCard) -> None:
    card.crash(CALL)
    assert daemon.process is not None
    assert daemon.process.wait(60) == -signal.SIGSEGV
    daemon.process = None


def test_a_driver_that_crashes_the_daemon_twice_is_left_alone_and_jobs_can_be_stopped(
    make_daemon: Callable[..., Daemon], cards: FakeCards
) -> None:
    daemon = make_daemon("", cards.env)
    daemon.run("sleep", "3600", job_id="job")
    daemon.until_running("job")
    pid = daemon.rank_pid("job")
    crash(daemon, cards[1])
    cards[1].clear()
    daemon.start()  # once may be an accident
    assert f"NVML crashed musterd in {CALL}, before this one" in daemon.cli("events").stdout
    assert "DRIVER_FAILED" not in daemon.cli("node").stdout
    crash(daemon, cards[1])
    daemon.start()  # with a library that would crash this one, too
    refused = daemon.cli("run", "--cards", "1", "--", "true")
    assert refused.returncode == 5 and f"NVML crashed musterd in {CALL}, the last of 2 times in a row" in refused.stderr
    assert alive(pid)
    daemon.stop("job", grace_s=1)
    assert not alive(pid)
    assert daemon.process is not None and daemon.process.poll() is None


def test_a_check_that_a_driver_crashes_names_the_call_and_checks_the_rest(
    make_daemon: Callable[..., Daemon], cards: FakeCards
) -> None:
    daemon = make_daemon("", cards.env)
    daemon.kill()
    cards[1].crash("nvmlDeviceGetUUID")
    checked = daemon.cli("check", "-o", "json", "--active")
    assert checked.returncode == 2, checked.stderr
    assert "Segmentation fault" in checked.stderr and "in nvmlDeviceGetUUID" in checked.stderr
    found = {one["item"]: one for one in json.loads(checked.stdout)["checks"]}
    said = "NVML crashed `muster check` in nvmlDeviceGetUUID (SIGSEGV)"
    assert found["gpu-check"]["status"] == "CRITICAL" and found["gpu-check"]["reason"].startswith(said)
    assert {"dns", "ulimit", "disk-free"} <= found.keys(), "what needs no driver is checked"
    of_cards = {"ecc", "row-remap", "clocks", "temperature", "nvlink", "recovery", "inventory"}
    assert not [one for one in found.values() if one["item"] in of_cards and one["status"] == "OK"]


@pytest.mark.parametrize("whole_group", [False, True], ids=["alone", "group"])
@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_check_that_is_ended_leaves_nothing(
    tmp_path: Path, cards: FakeCards, by: signal.Signals, whole_group: bool
) -> None:
    config = tmp_path / "patient.toml"
    config.write_text("[cards]\ndriver_deadline_s = 60\n[checks]\ndeadline_s = 60\n")
    cards[1].hang("nvmlDeviceGetUUID")
    env = os.environ | cards.env | {"MUSTER_ROOT": str(tmp_path / "no-daemon")}
    with subprocess.Popen(
        [BIN / "muster", "check", "--config", config], env=env, start_new_session=True, stdout=subprocess.DEVNULL
    ) as checking:
        eventually(cards[1].waits_in, message="the card is asked")
        (child,) = psutil.Process(checking.pid).children()
        (os.killpg if whole_group else os.kill)(checking.pid, by)
        # Where it takes a while to end, it gets the signal of the group a second time.
        assert checking.wait(60) in ((130, -by) if by is signal.SIGINT else (-by,))
    eventually(lambda: not alive(child.pid), message="the process that asks the driver has ended")


def test_the_driver_is_opened_again_when_the_pause_is_over(
    make_daemon: Callable[..., Daemon], cards: FakeCards
) -> None:
    daemon = make_daemon("", cards.env)
    daemon.kill()
    text = f"NVML crashed musterd in {CALL}"
    left = {"boot": process.boot_id(), "crashes": 2, "at": time.time() - driver_crashes.FIRST_S + 3, "text": text}
    daemon.root.driver_crashes.write_text(json.dumps(left))
    daemon.root.driver_crashes.chmod(0o600)
    daemon.start()
    eventually(lambda: "NVIDIA" in daemon.cli("node").stdout, message="the cards are listed")
    done = daemon.cli("run", "--cards", "1", "--", "true")
    assert done.returncode == 0, done.stderr
