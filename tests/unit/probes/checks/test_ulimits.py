import os
import re
import resource
import subprocess
import sys
from dataclasses import replace

import pytest

from muster.probes.checks import ulimits
from muster.probes.checks.result import Action, Code, Status
from muster.probes.checks.ulimits import Inherited, Limit
from muster.probes.kernel.process import read_stat
from tests.conftest import running

LIMITS = (
    Limit("memlock", resource.RLIMIT_MEMLOCK, "max locked memory", "l", 1024, 16000),
    Limit("nofile", resource.RLIMIT_NOFILE, "open files", "n", 1, 1_000_000),
    Limit("core", resource.RLIMIT_CORE, "core file size", "c", 1024, None),
)
MANY = 1_048_576
INFINITY = resource.RLIM_INFINITY


def had(memlock=INFINITY, nofile=MANY, hard_nofile=None, core=0, privileged=False):
    values = {
        resource.RLIMIT_MEMLOCK: (memlock, memlock),
        resource.RLIMIT_NOFILE: (nofile, hard_nofile or nofile),
        resource.RLIMIT_CORE: (core, core),
    }
    return Inherited(values, "the nursery, pid 7", privileged, nr_open=1 << 30)


async def check(inherited, when="always", path="/nonexistent", user="", **asked):
    return await ulimits.check(
        LIMITS, when=when, infiniband_path=str(path), user=user, asked=asked, read=lambda: inherited
    )


@pytest.mark.parametrize(
    ("memlock", "nofile", "status"),
    [
        (INFINITY, MANY, Status.OK),
        (16001 * 1024, 1_000_001, Status.OK),
        (16000 * 1024, MANY, Status.CRITICAL),
        (INFINITY, 1_000_000, Status.CRITICAL),
        (INFINITY, INFINITY, Status.OK),
    ],
)
async def test_each_limit_must_be_exceeded(memlock, nofile, status):
    assert (await check(had(memlock, nofile))).status is status


async def test_finding_names_limit_user_values_source_and_remedy():
    found = await check(had(64 * 1024, 1024, hard_nofile=MANY), user="alice")
    assert (found.code, found.action) == (Code.ULIMIT_TOO_LOW, Action.DRAIN)
    assert "user alice" in found.reason and "the nursery, pid 7" in found.reason
    assert "max locked memory (ulimit -l) 64 KB, more than 16000 KB needed" in found.reason
    assert "hard limit would allow 1048576: limits.nofile of the job" in found.reason
    assert "Limit...= in its systemd unit" in found.reason
    assert found.observed == "max locked memory 64 KB, open files 1024"
    assert found.threshold == "max locked memory > 16000 KB, open files > 1000000"


async def test_infiniband_decides_by_default(tmp_path):
    low = had(1024, 1024)
    assert (await check(low, "infiniband", tmp_path / "none")).code is Code.ULIMIT_NO_INFINIBAND
    assert (await check(low, "infiniband", tmp_path)).code is Code.ULIMIT_NO_INFINIBAND
    (tmp_path / "mlx5_0").mkdir()
    assert (await check(low, "infiniband", tmp_path)).code is Code.ULIMIT_TOO_LOW


async def test_always_and_never(tmp_path):
    low = had(1024, 1024)
    assert (await check(low, "always", tmp_path)).status is Status.CRITICAL
    (tmp_path / "mlx5_0").mkdir()
    assert (await check(low, "never", tmp_path, nofile=1 << 40)).code is Code.ULIMIT_OFF


# --- a job's own limits -----------------------------------------------------------------------------------------------


async def test_a_jobs_own_limit_counts_in_place_of_the_inherited_one():
    found = await check(had(memlock=64 * 1024, privileged=True), memlock=-1)
    assert (found.status, found.observed) == (Status.OK, "max locked memory unlimited, open files 1048576")
    found = await check(had(), nofile=4096)
    assert found.code is Code.ULIMIT_TOO_LOW
    assert "open files (ulimit -n) 4096, more than 1000000 needed (the job's own limits.nofile)" in found.reason
    assert "raise the job's own, or leave them out" in found.reason and "systemd" not in found.reason


@pytest.mark.parametrize("when", ["always", "infiniband"])
@pytest.mark.parametrize(
    ("asked", "privileged", "words"),
    [
        ({"nofile": MANY + 1}, False, f"nofile: the job asks for {MANY + 1}, but the hard limit is {MANY}"),
        ({"memlock": -1}, False, "memlock: the job asks for unlimited, but the hard limit is 20000 KB"),
        ({"core": 2048}, False, "core: the job asks for 2 KB, but the hard limit is 0 KB"),
        ({"nofile": -1}, True, "nofile: the job asks for unlimited, but the kernel allows at most 1073741824"),
        ({"nofile": (1 << 30) + 1}, True, "sysctl fs.nr_open"),
    ],
)
async def test_a_limit_that_the_job_cannot_have(when, asked, privileged, words):
    found = await check(had(memlock=20000 * 1024, privileged=privileged), when, **asked)
    assert (found.status, found.code) == (Status.CRITICAL, Code.ULIMIT_NOT_ALLOWED)
    assert found.action is Action.INVESTIGATE  # nothing is wrong with the node
    assert words in found.reason


@pytest.mark.parametrize("asked", [{"nofile": 1 << 30}, {"memlock": -1}, {"core": -1}])
async def test_who_may_raise_hard_limits_has_what_the_job_asks_for(asked):
    assert (await check(had(memlock=20000 * 1024, privileged=True), **asked)).status is Status.OK


@pytest.mark.parametrize("asked", [{"nofile": MANY}, {"memlock": 20000 * 1024}, {"core": 0}])
async def test_up_to_the_hard_limit_nobody_must_raise_anything(asked):
    assert (await check(had(memlock=20000 * 1024), **asked)).status is Status.OK


# --- what is inherited ------------------------------------------------------------------------------------------------


def sleeper(nofile, *words):
    """A process with these limits of open files, which says so when it is there; ends with its stdin."""
    program = f"import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, {nofile})\nprint(flush=True)\ninput()"
    process = subprocess.Popen([sys.executable, "-c", program, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    return process


@pytest.fixture
def start():
    started = []

    def start(soft, hard, *words):
        started.append(sleeper((soft, hard), *words))
        return started[-1].pid

    yield start
    for process in started:
        process.communicate(b"\n")


def test_of_a_process_as_the_kernel_tells():
    for number, values in ulimits.of_process(os.getpid()).items():
        assert values == resource.getrlimit(number)


def test_without_daemon_and_nursery_it_is_this_process():
    found = ulimits.inherited()
    assert found.values == ulimits.of_process(os.getpid())
    assert found.source == "this process"
    assert found.nr_open > 0


def test_a_nursery_that_this_daemon_started_gives_its_ranks_the_daemons_open_files(start):
    daemon = start(100, 200)
    nursery = start(150, 150)  # as an older one that was lowered from outside; it has raised its soft limit
    found = ulimits.inherited(daemon, nursery)
    assert found.values[resource.RLIMIT_NOFILE] == (100, 150)
    assert found.source == f"the nursery, pid {nursery}"


def test_of_an_older_nursery_open_files_are_unknown_unless_it_says(start):
    silent, telling = start(200, 200), start(200, 200, "--run", "/run", "--nofile", "150", "--log", "/log")
    wait_for_a_tick(telling)
    daemon = start(100, 200)
    assert ulimits.inherited(daemon, silent).values[resource.RLIMIT_NOFILE] == (None, 200)
    assert ulimits.inherited(daemon, telling).values[resource.RLIMIT_NOFILE] == (150, 200)
    assert "older than its daemon" in ulimits.inherited(daemon, silent).source


def start_of(pid):
    found = read_stat(pid)
    assert found is not None
    return found.start


def wait_for_a_tick(pid):
    """Until a process that is started now has a later start time than this one, in the kernel's ticks."""
    while True:
        with running(["sleep", "60"]) as child:
            later = start_of(child.pid) > start_of(pid)
            child.kill()
        if later:
            return


@pytest.mark.parametrize(
    ("hard", "status", "code"),
    [
        (1024, Status.CRITICAL, Code.ULIMIT_TOO_LOW),  # whatever the soft one is
        (MANY, Status.UNKNOWN, Code.ULIMIT_UNREADABLE),
    ],
)
async def test_a_soft_limit_that_is_not_known(hard, status, code):
    values = had().values | {resource.RLIMIT_NOFILE: (None, hard)}
    found = await check(replace(had(), values=values))
    assert (found.status, found.code) == (status, code)
    assert "open files not known" in found.observed
    found = await check(replace(had(privileged=True), values=values), nofile=MANY)
    assert found.status is Status.OK  # the job sets it, so that it does not matter


async def test_what_cannot_be_read_is_unknown():
    def gone():
        raise FileNotFoundError(2, "No such file or directory", "/proc/7/limits")

    found = await ulimits.check(LIMITS, when="always", infiniband_path="/x", user="", asked={}, read=gone)
    assert (found.status, found.code) == (Status.UNKNOWN, Code.ULIMIT_UNREADABLE)
    assert "/proc/7/limits" in found.reason


def test_a_table_that_is_not_understood(tmp_path, monkeypatch):
    (tmp_path / "limits").write_text("Limit Soft Hard\n")
    monkeypatch.setattr(ulimits, "Path", lambda _: tmp_path / "limits")
    with pytest.raises(ValueError, match="has no 'Max locked memory'"):
        ulimits.of_process(7)


@pytest.mark.parametrize(
    ("capabilities", "uid_map", "may"),
    [
        ("000001ffffffffff", "0 0 4294967295", True),
        ("00000000a80425fb", "0 0 4294967295", False),  # root of a container
        ("0000000000000000", "0 0 4294967295", False),
        ("000001ffffffffff", "0 1000 1", False),  # root of a user namespace
    ],
)
def test_who_may_raise_a_hard_limit(tmp_path, monkeypatch, capabilities, uid_map, may):
    (tmp_path / "status").write_text(f"Name:\tx\nCapPrm:\t{'f' * 16}\nCapEff:\t{capabilities}\n")
    (tmp_path / "uid_map").write_text(f"{uid_map.replace(' ', '          ')}\n")
    monkeypatch.setattr(ulimits, "Path", lambda path: tmp_path / re.sub(".*/", "", path))
    assert ulimits.may_raise(7) is may


def test_the_kernel_agrees_on_who_may():
    """Tries it, in a process of its own, against what the rule says of this one."""
    program = "import resource\nresource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n"
    program += "resource.setrlimit(resource.RLIMIT_CORE, (1, 1))\n"
    done = subprocess.run([sys.executable, "-c", program], stderr=subprocess.DEVNULL, check=False)
    assert (done.returncode == 0) == ulimits.may_raise(os.getpid())
