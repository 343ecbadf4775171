"""gpu-check on a host with NVIDIA cards: device nodes of our own, and a library of C in the place of the driver's."""

import ctypes
import json
import shutil
import subprocess

import pytest

from muster.v1 import job_pb2
from tests.conftest import eventually
from tests.integration.box import Boxed, mounted, muster

FAILED, SUCCEEDED = job_pb2.JOB_STATE_FAILED, job_pb2.JOB_STATE_SUCCEEDED
CARDS = 4
#: Does what the file FAKE_NVML says, read at each call: a line is a function, a card (-1: none) and a code, or `wait`:
#: it waits for another text in the file, having made FAKE_NVML.waits.
NVML = r"""
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int told(const char *function, int card)
{
    char line[128], name[32], code[32], path[4096];
    int number, found = 0, waits;
    do {
        FILE *file = fopen(getenv("FAKE_NVML"), "r");
        waits = 0;
        while (file && fgets(line, sizeof line, file))
            if (sscanf(line, "%31s %d %31s", name, &number, code) == 3 && !strcmp(name, function) && number == card) {
                waits = !strcmp(code, "wait");
                found = atoi(code);
            }
        if (file)
            fclose(file);
        if (waits) {
            snprintf(path, sizeof path, "%s.waits", getenv("FAKE_NVML"));
            close(open(path, O_CREAT | O_WRONLY, 0600));
            usleep(5000);
        }
    } while (waits);
    return found;
}

int nvmlInitWithFlags(unsigned flags) { return told("init", -1); }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) { return "an error"; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device)
{
    *device = (void *)(long)(index + 1);
    return index < 4 ? told("handle", (int)index) : 2;
}

int nvmlDeviceGetUUID(void *device, char *uuid, unsigned length)
{
    snprintf(uuid, length, "GPU-%ld", (long)device - 1);
    return told("uuid", (int)(long)device - 1);
}

int nvmlDeviceGetMemoryInfo(void *device, void *memory) { return told("memory", (int)(long)device - 1); }
"""
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


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """The folder of a libnvidia-ml.so.1."""
    if not (compiler := shutil.which("cc")):
        pytest.skip("needs a C compiler (cc) for a library in libnvidia-ml.so.1's place")
    folder = tmp_path_factory.mktemp("nvml")
    (folder / "nvml.c").write_text(NVML)
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", folder / "libnvidia-ml.so.1", folder / "nvml.c"],
        check=True,
    )
    return folder


class Host:
    """A host with cards. `says` steers its driver, `env` is for a program that is to find it."""

    def __init__(self, folder, library, cards):
        self.steer = folder / "steer"
        self.says()
        self.waits = folder / "steer.waits"
        self.env = {"LD_LIBRARY_PATH": str(library), "FAKE_NVML": str(self.steer)}
        (folder / "dev").mkdir()
        self.prefix = mounted(DEV.format(dev=folder / "dev", cards=" ".join(map(str, cards))))

    def says(self, *lines):
        """Replaces the file as a whole: it is read all the time."""
        new = self.steer.with_name("steer.new")
        new.write_text("".join(f"{line}\n" for line in lines))
        new.rename(self.steer)

    def check(self, *args, **env):
        done = muster(self.prefix, "check", "-o", "json", "gpu-check", *args, **{**self.env, **env})
        assert done.stdout, done.stderr
        (found,) = json.loads(done.stdout)["checks"]
        return done.returncode, found


@pytest.fixture
def make_host(tmp_path, library):
    return lambda cards=range(CARDS): Host(tmp_path, library, cards)


@pytest.fixture
def host(make_host):
    return make_host()


def test_all_cards_that_there_are_answer(host):
    code, found = host.check()
    assert (code, found["status"], found["code"]) == (0, "OK", "CARDS_OK")
    assert found["reason"] == "cards 0-3: there, and answering"
    assert found["observed"] == "nvidia: 4 of 4 cards answer (0 GPU-0, 1 GPU-1, 2 GPU-2, 3 GPU-3)"


def test_a_card_that_was_lost(host):
    host.says("memory 2 15")
    code, found = host.check()
    assert (code, found["status"], found["code"], found["action"]) == (2, "CRITICAL", "CARDS_NO_ANSWER", "DRAIN")
    assert found["reason"].startswith("card 2: NVML says GPU is lost (15)")
    assert host.check("--cards", "0,1,3")[0] == 0
    assert host.check("--cards", "2")[0] == 0  # the first two
    assert host.check("--cards", "2,")[0] == 2  # card 2


def test_a_card_that_is_missing(make_host):
    host = make_host((0, 1, 2))
    assert host.check()[0] == 0
    code, found = host.check("--cards", "4")
    assert (code, found["code"], found["reason"][:26]) == (2, "CARDS_TOO_FEW", "3 cards found, 4 wanted: i")
    code, found = host.check("--cards", "1,3")
    assert (code, found["code"]) == (2, "CARDS_MISSING")
    assert found["reason"] == "card 3: not there; this host shows cards 0-2"


def test_a_card_that_the_driver_has_under_another_number(make_host):
    """A container that was given card 5 of a host: its node is nvidia5, and its number is 0."""
    code, found = make_host((5,)).check()
    assert (code, found["code"]) == (2, "CARDS_NO_ANSWER")
    assert "card 5: NVML says Invalid Argument (2): the driver has no card of this number" in found["reason"]


def test_a_driver_in_trouble(host):
    host.says("init -1 18")
    code, found = host.check()
    assert (code, found["code"]) == (2, "CARDS_DRIVER_FAILED")
    assert found["reason"].startswith("cards 0-3: NVML says RM has detected an NVML/RM version mismatch (18)")


def test_without_the_drivers_library(host):
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        code, found = host.check(LD_LIBRARY_PATH="")
        assert (code, found["code"]) == (2, "CARDS_LIBRARY_MISSING")
        assert "libnvidia-ml.so.1 is not found" in found["reason"]
    else:
        pytest.skip("this host has NVIDIA's driver")


def test_a_driver_that_hangs_is_unknown_and_keeps_no_command(host):
    host.says("memory 1 wait", "handle 3 15")
    code, found = host.check("--cards", "0,1", "--set", "deadline_s=2")
    assert (code, found["status"], found["code"]) == (3, "UNKNOWN", "PROBE_TIMED_OUT")
    assert found["reason"] == "card 1: no answer within 1.9 s"
    code, found = host.check("--set", "deadline_s=2")
    assert (code, found["code"]) == (2, "CARDS_NO_ANSWER")
    assert "card 3: NVML says GPU is lost (15)" in found["reason"] and "card 1: no answer" in found["reason"]


# --- a daemon ---------------------------------------------------------------------------------------------------------

CONFIG = """
[checks]
root_min_gb = 0
shm_min_gb = 0
disk_free_percent = 0
cache_path = ""
host_files = ""
"""


@pytest.fixture
def daemon(host, tmp_path_factory):
    daemon = Boxed(tmp_path_factory.mktemp("root"), CONFIG + "deadline_s = 20.0\n", host.prefix, **host.env)
    yield daemon.start()
    host.says()
    daemon.close()


def start(daemon, *command, **cards):
    return daemon.run(*command, ranks=0, cards=job_pb2.CardRequest(**cards)).job_id


def test_a_job_gets_cards_that_answer(daemon, host):
    host.says("memory 3 15")
    job_id = start(daemon, "printenv", "CUDA_VISIBLE_DEVICES", indices=[1, 2])
    job = daemon.wait(job_id)
    assert job.state == SUCCEEDED and daemon.output(job) == b"1,2\n"
    found = daemon.checks(job_id)["gpu-check"]
    assert found.observed == "nvidia: 2 of 2 cards answer (1 GPU-1, 2 GPU-2)"


def test_a_job_is_refused_a_card_that_does_not_answer(daemon, host, tmp_path):
    host.says("memory 1 15")
    job = daemon.wait(start(daemon, "touch", str(tmp_path / "mark"), count=2))
    assert job.state == FAILED and not (tmp_path / "mark").exists()
    found = daemon.checks(job.job_id)["gpu-check"]
    assert (found.status, found.code) == ("CRITICAL", "CARDS_NO_ANSWER")
    assert found.reason.startswith("card 1: NVML says GPU is lost (15)")
    # The library stays in the daemon: what it says now counts, not what it said then.
    host.says()
    assert daemon.wait(start(daemon, "true", count=2)).state == SUCCEEDED


def test_a_card_that_hangs_hangs_neither_the_daemon_nor_other_jobs(daemon, host):
    host.says("memory 0 wait")
    waiting = start(daemon, "true", indices=[0])
    eventually(host.waits.exists, 60)
    assert daemon.wait(start(daemon, "true", indices=[1])).state == SUCCEEDED
    assert daemon.get(waiting).state == job_pb2.JOB_STATE_CHECKING
    assert daemon.wait(waiting).state == SUCCEEDED
    found = daemon.checks(waiting)["gpu-check"]
    assert (found.status, found.code) == ("UNKNOWN", "PROBE_TIMED_OUT")
    # A second thread is not given to a driver that still hangs.
    again = daemon.checks(daemon.wait(start(daemon, "true", indices=[0])).job_id)["gpu-check"]
    assert again.status == "UNKNOWN" and "an earlier call still hangs" in again.reason
    assert daemon.kill(15) == 0


def test_a_daemon_without_the_drivers_library_refuses_jobs_with_cards_only(host, tmp_path_factory):
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        daemon = Boxed(tmp_path_factory.mktemp("root"), CONFIG, host.prefix).start()
    else:
        pytest.skip("this host has NVIDIA's driver")
    try:
        job = daemon.wait(start(daemon, "true", count=1))
        assert job.state == FAILED
        assert daemon.checks(job.job_id)["gpu-check"].code == "CARDS_LIBRARY_MISSING"
        assert daemon.wait(daemon.run("true").job_id).state == SUCCEEDED
    finally:
        daemon.close()
