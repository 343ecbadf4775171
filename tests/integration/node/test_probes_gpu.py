"""gpu-check on a host with NVIDIA cards, whose driver's library does as a test says."""

import json
import subprocess
import sys

import pytest

from muster.probes.node.node_checks import NodeSettings, catalogue
from muster.v1 import job_pb2
from tests.conftest import eventually
from tests.fakes import FakeCards
from tests.integration.box import Boxed, mounted, muster

FAILED, SUCCEEDED = job_pb2.JOB_STATE_FAILED, job_pb2.JOB_STATE_SUCCEEDED
CARDS = 4
#: The call that goes to the card itself.
MEMORY = "nvmlDeviceGetMemoryInfo_v2"
#: A /dev with what programs need, and with the nodes of the cards.
DEV = """
mount -t tmpfs -o mode=755 dev '{dev}'
for name in null zero full random urandom tty; do touch '{dev}'/$name; mount --bind /dev/$name '{dev}'/$name; done
mkdir '{dev}/shm' '{dev}/pts'
mount --rbind /dev/shm '{dev}/shm'
mount --rbind /dev/pts '{dev}/pts'
ln -s /proc/self/fd '{dev}/fd'
for card in {cards}; do mknod '{dev}'/nvidia$card c 195 $card; done
mknod '{dev}/nvidiactl' c 195 255
mount --rbind '{dev}' /dev
"""


@pytest.fixture
def cards(tmp_path):
    with FakeCards.for_test(tmp_path / "cards", "nvidia", CARDS) as cards:
        yield cards
        cards.restore()


@pytest.fixture
def nodes(tmp_path):
    """Put before a command it sees the nodes of two cards, and no library that belongs to them."""
    # In a process of its own: another test may have loaded a library of this name into this one.
    load = "import ctypes; ctypes.CDLL('libnvidia-ml.so.1')"
    if subprocess.run([sys.executable, "-c", load], capture_output=True, check=False).returncode == 0:
        pytest.skip("this host has NVIDIA's driver")
    (tmp_path / "dev").mkdir()
    return mounted(DEV.format(dev=tmp_path / "dev", cards="0 1"))


def check(*args, prefix=(), env=None, deadline_s=60):
    done = muster(prefix, "check", "-o", "json", "gpu-check", "--set", f"deadline_s={deadline_s}", *args, **(env or {}))
    assert done.stdout, done.stderr
    (found,) = json.loads(done.stdout)["checks"]
    return done.returncode, found


def uuids(cards, *indices):
    return ", ".join(f"{i} {cards[i].uuid}" for i in indices)


def test_all_cards_that_there_are_answer(cards):
    code, found = check(env=cards.env)
    assert (code, found["status"], found["code"]) == (0, "OK", "CARDS_OK")
    assert found["reason"] == "cards 0-3: present and answering"
    assert found["observed"] == f"nvidia: 4 of 4 cards answer ({uuids(cards, 0, 1, 2, 3)})"


@pytest.mark.slow
def test_a_card_that_was_lost(cards):
    cards[2].lose()
    code, found = check(env=cards.env)
    assert (code, found["status"], found["code"], found["action"]) == (2, "CRITICAL", "CARDS_NO_ANSWER", "DRAIN")
    assert found["reason"].startswith("card 2: NVML says GPU is lost (15)")
    assert check("--cards", "0,1,3", env=cards.env)[0] == 0
    assert check("--cards", "2", env=cards.env)[0] == 0  # the first two
    assert check("--cards", "2,", env=cards.env)[0] == 2  # card 2


def test_a_card_that_is_missing(cards):
    cards[3].remove()
    assert check(env=cards.env)[0] == 0
    code, found = check("--cards", "4", env=cards.env)
    assert (code, found["code"], found["reason"][:24]) == (2, "CARDS_TOO_FEW", "3 cards found, 4 wanted:")
    code, found = check("--cards", "1,3", env=cards.env)
    assert (code, found["code"]) == (2, "CARDS_MISSING")
    assert found["reason"] == "card 3: does not exist; this host shows cards 0-2"


def test_a_driver_in_trouble(cards):
    cards.fail("nvmlInitWithFlags", 18)
    code, found = check(env=cards.env)
    assert (code, found["code"]) == (2, "CARDS_DRIVER_FAILED")
    assert found["reason"].startswith("NVML says RM has detected an NVML/RM version mismatch (18)")


def test_cards_without_the_drivers_library(nodes):
    code, found = check(prefix=nodes)
    assert (code, found["code"]) == (2, "CARDS_LIBRARY_MISSING")
    assert found["reason"].startswith("cards 0-1: ") and "libnvidia-ml.so.1 is not found" in found["reason"]


@pytest.mark.slow
def test_a_driver_that_hangs_is_unknown_and_keeps_no_command(cards):
    cards[1].hang(MEMORY)
    code, found = check("--cards", "0,1", deadline_s=6, env=cards.env)
    assert (code, found["status"], found["code"]) == (3, "UNKNOWN", "PROBE_TIMED_OUT")
    assert found["reason"] == "card 1: no answer within 5.7 s"
    cards[3].lose()
    code, found = check(deadline_s=6, env=cards.env)
    assert (code, found["code"]) == (2, "CARDS_NO_ANSWER")
    assert "card 3: NVML says GPU is lost (15)" in found["reason"] and "card 1: no answer" in found["reason"]
    cards.restore()
    cards.hang("nvmlInitWithFlags")
    code, found = check(deadline_s=1, env=cards.env)
    assert (code, found["status"], found["code"]) == (3, "UNKNOWN", "PROBE_TIMED_OUT")


# --- a daemon ---------------------------------------------------------------------------------------------------------

CONFIG = """
[checks]
root_min_gb = 0
shm_min_gb = 0
disk_free_percent = 0
cache_path = ""
host_files = ""
"""
#: Without the node's own checks, which know the real kernel's log, and remember what was wrong with a card before.
UNJUDGED = f"""
[health]
policy = "off"
skip = "{",".join(check.item for check in catalogue(NodeSettings()))}"
"""


@pytest.fixture
def daemon(cards, tmp_path_factory):
    config = CONFIG + "deadline_s = 15.0\n" + UNJUDGED
    daemon = Boxed(tmp_path_factory.mktemp("root"), config, **cards.env)
    yield daemon.start()
    cards.restore()
    cards.clear()
    daemon.close()


def start(daemon, *command, **cards):
    return daemon.run(*command, ranks=0, cards=job_pb2.CardRequest(**cards)).job_id


def test_a_job_gets_cards_that_answer(daemon, cards):
    cards[3].lose()
    job_id = start(daemon, "printenv", "CUDA_VISIBLE_DEVICES", indices=[1, 2])
    job = daemon.wait(job_id)
    assert job.state == SUCCEEDED and daemon.output(job) == b"1,2\n"
    found = daemon.checks(job_id)["gpu-check"]
    assert found.observed == f"nvidia: 2 of 2 cards answer ({uuids(cards, 1, 2)})"


def test_a_job_is_refused_a_card_that_does_not_answer(daemon, cards, tmp_path):
    cards[1].lose()
    job = daemon.wait(start(daemon, "touch", str(tmp_path / "mark"), indices=[0, 1]))
    assert job.state == FAILED and not (tmp_path / "mark").exists()
    found = daemon.checks(job.job_id)["gpu-check"]
    assert (found.status, found.code) == ("CRITICAL", "CARDS_NO_ANSWER")
    assert found.reason.startswith("card 1: NVML says GPU is lost (15)")
    # The library stays in the daemon: what it says now counts, not what it said then.
    cards[1].back()
    assert daemon.wait(start(daemon, "true", indices=[0, 1])).state == SUCCEEDED


@pytest.mark.slow
def test_a_card_that_hangs_hangs_neither_the_daemon_nor_other_jobs(daemon, cards):
    cards[0].hang(MEMORY)
    waiting = start(daemon, "true", indices=[0])
    eventually(cards[0].waits_in, 60)
    assert daemon.wait(start(daemon, "true", indices=[1])).state == SUCCEEDED
    assert daemon.wait(waiting).state == SUCCEEDED
    found = daemon.checks(waiting)["gpu-check"]
    assert (found.status, found.code) == ("UNKNOWN", "PROBE_TIMED_OUT")
    assert "no answer within" in found.reason or "an earlier call still hangs" in found.reason
    # No second thread is given to a card that hangs.
    assert len(cards[0].waits_in()) == 1
    assert daemon.kill(15) == 0


def test_a_daemon_without_the_drivers_library_refuses_jobs_with_cards_only(nodes, tmp_path_factory):
    daemon = Boxed(tmp_path_factory.mktemp("root"), CONFIG + UNJUDGED, nodes).start()
    try:
        job = daemon.wait(start(daemon, "true", count=1))
        assert job.state == FAILED
        assert daemon.checks(job.job_id)["gpu-check"].code == "CARDS_LIBRARY_MISSING"
        assert daemon.wait(daemon.run("true").job_id).state == SUCCEEDED
    finally:
        daemon.close()
