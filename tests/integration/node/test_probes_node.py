"""The pre-checks of nodes that are not fit, by `muster check` and by a real daemon that is to start a job there."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from muster.v1 import job_pb2
from tests.conftest import eventually
from tests.integration.box import Boxed, mounted, muster

FAILED, SUCCEEDED = job_pb2.JOB_STATE_FAILED, job_pb2.JOB_STATE_SUCCEEDED
#: The host of the tests must not have a say: its own disks, names and adapters.
NEUTRAL = """
[checks]
root_min_gb = 0
shm_min_gb = 0
disk_free_percent = 0
cache_path = ""
host_files = ""
ulimits = "never"
deadline_s = 60.0
"""
OFF = [f"--set={key}" for key in re.findall(r"^(\w+ = .*)$", NEUTRAL, re.MULTILINE)]
OFF = [option.replace(" = ", "=").replace('"', "") for option in OFF]


@pytest.fixture
def boxed(tmp_path_factory):
    """Makes daemons behind a prefix, and ends them with the test."""
    made = []

    def make(config, prefix=(), **env):
        daemon = Boxed(tmp_path_factory.mktemp("root"), config, prefix, **env)
        made.append(daemon)
        return daemon.start()

    yield make
    for daemon in made:
        daemon.close()


def told(done):
    """Exit code, and results by item, of `muster check -o json`."""
    assert done.stdout, done.stderr
    return done.returncode, {check["item"]: check for check in json.loads(done.stdout)["checks"]}


def refused(daemon, mark, recommendation=job_pb2.RECOMMENDATION_RETRY_ELSEWHERE, **spec):
    """A job that would leave a mark, and must not have been started; its checks by item."""
    job_id = daemon.run("touch", str(mark), **spec).job_id
    job = daemon.wait(job_id)
    assert job.state == FAILED and job.verdict.exit_code == 125
    assert "nothing was started" in job.verdict.summary
    assert job.verdict.recommendation == recommendation
    assert not mark.exists()
    assert all(rank.pid == 0 for rank in job.ranks) and not job.started_at.seconds
    return daemon.checks(job_id)


# --- small disks ------------------------------------------------------------------------------------------------------


@pytest.fixture
def small(tmp_path):
    """In here /dev/shm and the folder `cache` have 8 MB each."""
    cache = tmp_path / "cache"
    cache.mkdir()
    mount = "mount -t tmpfs -o size=8m tmpfs"
    return mounted(f"{mount} /dev/shm\n{mount} '{cache}'"), cache


def test_check_of_small_disks(small):
    prefix, cache = small
    code, found = told(muster(prefix, "check", "-o", "json", "disk-size", "--set", f"cache_path={cache}"))
    assert code == 2
    for item in ("disk-size shm", "disk-size cache"):
        assert (found[item]["status"], found[item]["code"]) == ("CRITICAL", "DISK_SIZE_TOO_SMALL")
        assert "8.0 MB" in found[item]["observed"] and found[item]["action"] == "DRAIN"
    # Another path and another threshold, by hand.
    lower = ("--set", f"cache_path={cache}", "--set", "cache_min_gb=0.007", "--set", "shm_min_gb=0.007")
    code, found = told(muster(prefix, "check", "-o", "json", "disk-size shm", "disk-size cache", *lower))
    assert code == 0 and {check["code"] for check in found.values()} == {"DISK_OK"}
    code, found = told(muster(prefix, "check", "-o", "json", "disk-size root", "--set", f"root_path={cache}"))
    assert code == 2 and found["disk-size root"]["code"] == "DISK_SIZE_TOO_SMALL"


def test_a_path_that_is_not_there(tmp_path):
    path = f"cache_path={tmp_path}/none"
    code, found = told(muster((), "check", "-o", "json", "disk-size cache", "--set", path))
    assert (code, found["disk-size cache"]["code"]) == (0, "DISK_PATH_ABSENT")
    required = ("--set", "cache_required=true")
    code, found = told(muster((), "check", "-o", "json", "disk-size cache", "--set", path, *required))
    assert (code, found["disk-size cache"]["code"]) == (2, "DISK_PATH_REQUIRED")


def test_a_job_on_small_disks(small, boxed, tmp_path):
    prefix, cache = small
    daemon = boxed(NEUTRAL.replace("shm_min_gb = 0", "").replace('""', f"'{cache}'", 1), prefix)
    found = refused(daemon, tmp_path / "mark")
    assert [item for item, check in found.items() if check.status == "CRITICAL"] == [
        "disk-size shm",
        "disk-size cache",
    ]


def test_the_log_of_a_job_on_a_small_disk(small, boxed, tmp_path):
    """One line per item with its result and seconds; no restart is left at the end."""
    prefix, _ = small
    daemon = boxed(NEUTRAL.replace("shm_min_gb = 0", ""), prefix)
    refused(daemon, tmp_path / "mark", job_id="job", max_restarts=1, restart_backoff={"nanos": 1000})
    log = daemon.job_log("job")
    shm = (
        r"item: disk-size shm, result: CRITICAL \(DISK_SIZE_TOO_SMALL\), \d+\.\d{3} s: /dev/shm: its file system has 8"
    )
    assert len(re.findall(shm, log)) == 2
    for item in ("dns", "disk-size root", "disk-size cache", "ulimit", "gpu-check"):
        assert len(re.findall(rf"item: {item}, result: (OK|NOT_APPLICABLE) ", log)) == 2
    assert log.rstrip().endswith("pre-check failed (item: disk-size shm): error,exiting")
    assert log.count("error,exiting") == 1


def test_with_the_policy_warn_it_is_only_told(small, boxed):
    prefix, _ = small
    daemon = boxed(NEUTRAL.replace("shm_min_gb = 0", 'policy = "warn"'), prefix)
    job_id = daemon.run("true").job_id
    assert daemon.wait(job_id).state == SUCCEEDED
    assert daemon.checks(job_id)["disk-size shm"].status == "CRITICAL"


# --- names ------------------------------------------------------------------------------------------------------------

#: Nobody sends from or to there but these tests; each worker has its own.
SERVER = f"127.53.{os.getpid() // 250 % 250}.{os.getpid() % 250 + 1}"


@pytest.fixture
def resolver(tmp_path):
    """In here the only name server is SERVER, asked once for half a minute."""
    conf = tmp_path / "resolv.conf"
    conf.write_text(f"nameserver {SERVER}\noptions timeout:30 attempts:1\n")
    if "dns" not in Path("/etc/nsswitch.conf").read_text():
        pytest.skip("this host asks no name server (/etc/nsswitch.conf)")
    return mounted(f"mount --bind '{conf}' /etc/resolv.conf")


@pytest.fixture
def silent():
    """A name server that never answers."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.bind((SERVER, 53))
        except OSError as error:
            pytest.skip(f"cannot listen on {SERVER}:53: {error.strerror}")
        yield sock


def test_check_of_names_without_a_name_server(resolver):
    check = ("check", "-o", "json", "dns", "--set", "host_files=", "--hosts")
    code, found = told(muster(resolver, *check, "localhost,worker-1.example"))
    assert (code, found["dns"]["code"]) == (2, "DNS_SERVER_FAILED")
    assert "worker-1.example" in found["dns"]["reason"] and "localhost" not in found["dns"]["reason"]
    code, found = told(muster(resolver, *check, "localhost,127.0.0.1"))
    assert (code, found["dns"]["code"]) == (0, "DNS_OK")


@pytest.mark.slow
def test_a_name_server_that_never_answers_is_unknown(resolver, silent, tmp_path):
    (tmp_path / "volcano").mkdir()
    (tmp_path / "volcano" / "worker.host").write_text("worker-0.example\nlocalhost\n")
    folder = f"host_files={tmp_path}/volcano"
    code, found = told(muster(resolver, "check", "-o", "json", "dns", "--set", folder, "--set", "deadline_s=8"))
    assert (code, found["dns"]["status"], found["dns"]["code"]) == (3, "UNKNOWN", "PROBE_TIMED_OUT")
    assert "worker-0.example: no answer within" in found["dns"]["reason"]
    assert found["dns"]["observed"] == "2 names, 0 do not resolve, 1 are unknown"


def test_a_job_whose_nodes_do_not_resolve(resolver, boxed, tmp_path):
    daemon = boxed(NEUTRAL, resolver)
    spec = {"nodes": ["localhost", "worker-1.example"], "master_port": 1234}
    found = refused(daemon, tmp_path / "mark", **spec)
    assert found["dns"].code == "DNS_SERVER_FAILED" and "worker-1.example" in found["dns"].reason


@pytest.mark.slow
def test_a_name_server_that_never_answers_refuses_no_job(resolver, silent, boxed):
    daemon = boxed(NEUTRAL.replace("deadline_s = 60", "deadline_s = 8"), resolver)
    job_id = daemon.run("true", nodes=["localhost", "worker-1.example"], master_port=1234).job_id
    assert daemon.wait(job_id).state == SUCCEEDED
    found = daemon.checks(job_id)
    assert (found["dns"].status, found["dns"].code) == ("UNKNOWN", "PROBE_TIMED_OUT")
    assert found["disk-size root"].code == "DISK_OK"


# --- limits -----------------------------------------------------------------------------------------------------------

LIMITS = NEUTRAL.replace('ulimits = "never"', 'ulimits = "always"\npolicy = "warn"')
#: What a rank prints: its soft limits as the check words them.
SHOW = """
import resource as r
def show(name, number, unit, suffix):
    soft = r.getrlimit(number)[0]
    return f"{name} unlimited" if soft == r.RLIM_INFINITY else f"{name} {soft // unit}{suffix}"
print(", ".join((
    show("max locked memory", r.RLIMIT_MEMLOCK, 1024, " KB"),
    show("open files", r.RLIMIT_NOFILE, 1, ""),
    show("stack size", r.RLIMIT_STACK, 1024, " KB"),
    show("max user processes", r.RLIMIT_NPROC, 1, ""),
)))
"""
LOW = ["prlimit", "--nofile=512:1024", "--memlock=65536:131072", "--stack=4194304:8388608", "--nproc=20000:30000"]
#: Root as in a container: without the right to raise a hard limit.
UNPRIVILEGED = ["setpriv", "--bounding-set=-sys_resource"]


@pytest.fixture
def low():
    """Limits so low as no test's own are, which everybody may set."""
    return LOW


def show(daemon, **spec):
    """What a rank says that it has, and what the check said before."""
    job_id = daemon.run("python3", "-c", SHOW, **spec).job_id
    job = daemon.wait(job_id)
    assert job.state == SUCCEEDED, job.verdict
    return daemon.output(job).decode().strip(), daemon.checks(job_id)["ulimit"]


@pytest.mark.parametrize(
    "limits",
    [
        {},
        {"nofile": 700},
        {"nofile": 1024, "memlock_bytes": 131072, "stack_bytes": 8388608, "nproc": 30000},
        {"memlock_bytes": 0, "nproc": 25000},
    ],
    ids=["none of its own", "nofile", "up to the hard limits", "memlock and nproc"],
)
def test_ranks_get_the_limits_that_the_check_told(boxed, limits):
    daemon = boxed(LIMITS, LOW)
    rank, check = show(daemon, limits=job_pb2.Limits(**limits))
    assert check.observed == rank
    assert (check.status, check.code) == ("CRITICAL", "ULIMIT_TOO_LOW")
    assert f"open files {limits.get('nofile', 512)}," in rank


def test_check_tells_the_limits_of_the_daemons_ranks_and_without_one_the_shells(boxed, tmp_path):
    daemon = boxed(LIMITS, LOW)
    rank, _ = show(daemon)
    check = ("check", "-o", "json", "ulimit", "--set", "ulimits=always")
    code, found = told(muster((), *check, MUSTER_ROOT=str(daemon.folder)))
    assert (code, found["ulimit"]["observed"]) == (2, rank)
    assert f"the nursery, pid {daemon.nursery_pid()}" in found["ulimit"]["reason"]
    other = ["prlimit", "--nofile=300:300"]
    code, found = told(muster(other, *check, MUSTER_ROOT=str(tmp_path)))
    assert code == 2 and "open files 300," in found["ulimit"]["observed"]
    assert "inherited from this process" in found["ulimit"]["reason"]


def test_root_has_what_its_job_asks_for(boxed):
    tried = "import resource as r; r.setrlimit(r.RLIMIT_CORE, (0, 0)); r.setrlimit(r.RLIMIT_CORE, (1, 1))"
    if subprocess.run([sys.executable, "-c", tried], stderr=subprocess.DEVNULL, check=False).returncode:
        pytest.skip("needs the right to raise a hard limit (CAP_SYS_RESOURCE)")
    daemon = boxed(LIMITS, LOW)
    rank, check = show(daemon, limits=job_pb2.Limits(nofile=5000, memlock_bytes=-1, nproc=-1))
    assert (
        check.observed
        == rank
        == "max locked memory unlimited, open files 5000, stack size 4096 KB, " + ("max user processes unlimited")
    )


def test_a_limit_that_the_daemon_cannot_give(boxed, tmp_path):
    """Refused under `enforce`; and where it is only told, the start finds the same."""
    prefix = [*LOW, *UNPRIVILEGED]
    if muster(UNPRIVILEGED, "check", "--list").returncode:
        pytest.skip("setpriv cannot drop a capability here")
    asked = {"limits": job_pb2.Limits(nofile=5000)}
    daemon = boxed(NEUTRAL.replace('"never"', '"infiniband"\ninfiniband_path = "/none"'), prefix)
    found = refused(daemon, tmp_path / "mark", job_pb2.RECOMMENDATION_FAIL, **asked)["ulimit"]
    assert (found.code, found.action) == ("ULIMIT_NOT_ALLOWED", "INVESTIGATE")
    assert "nofile: the job asks for 5000, but the hard limit is 1024" in found.reason
    job_id = daemon.run("touch", str(tmp_path / "mark"), skip_check=True, **asked).job_id
    job = daemon.wait(job_id)
    assert job.state == FAILED and not (tmp_path / "mark").exists()


def test_ranks_of_an_older_nursery_get_its_limits(boxed):
    """The unit was changed and the daemon started anew, while a job kept the nursery."""
    daemon = boxed(LIMITS, LOW)
    daemon.run("sleep", "300", job_id="keeps-the-nursery")
    daemon.until_running("keeps-the-nursery")
    nursery = daemon.nursery_pid()
    daemon.kill(signal.SIGTERM)
    daemon.prefix = ["prlimit", "--nofile=600:1024", "--memlock=262144:262144", "--stack=2097152:8388608"]
    daemon.start()
    assert daemon.nursery_pid() == nursery
    rank, check = show(daemon)
    assert rank.startswith("max locked memory 64 KB, open files 512, stack size 4096 KB")
    assert check.observed == rank


# --- custom checks ----------------------------------------------------------------------------------------------------


@pytest.fixture
def custom(tmp_path):
    folder = tmp_path / "checks"
    folder.mkdir(mode=0o755)

    def put(name, text):
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
        return f'{NEUTRAL}custom_dir = "{folder}"\n'

    return put


@pytest.mark.parametrize("end", ["exit 1", "exit 3", "exit 77", "kill -9 $$"])
def test_a_custom_check_that_is_not_critical_refuses_no_job(custom, boxed, end):
    daemon = boxed(custom("mine", f"echo it is so\n{end}"))
    assert daemon.wait(daemon.run("true").job_id).state == SUCCEEDED


def test_a_critical_custom_check_refuses_a_job(custom, boxed, tmp_path):
    daemon = boxed(custom("mine", "echo no link; exit 2"))
    found = refused(daemon, tmp_path / "mark")["custom mine"]
    assert (found.code, found.reason) == ("CUSTOM_CRITICAL", "no link")


@pytest.mark.slow
def test_a_check_that_hangs_is_unknown_and_stops_nobody(custom, boxed, tmp_path):
    """While it hangs, another job is started and ends; when its deadline is over, its own job is."""
    began = tmp_path / "began"
    daemon = boxed(custom("hang", f"touch {began}\nexec sleep 300").replace("deadline_s = 60", "deadline_s = 30"))
    daemon.run("true", job_id="waits")
    eventually(began.exists, 60)
    assert daemon.wait(daemon.run("true", skip_check=True).job_id).state == SUCCEEDED
    assert daemon.get("waits").state == job_pb2.JOB_STATE_CHECKING
    assert daemon.wait("waits").state == SUCCEEDED
    found = daemon.checks("waits")
    assert (found["custom hang"].status, found["custom hang"].code) == (
        "UNKNOWN",
        "PROBE_TIMED_OUT",
    )
