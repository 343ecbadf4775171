"""cgroup v1: where a process is by the files of several systems, limits, and the end of all that is in a freezer."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.supervisors.launch.containment import Containment
from muster.supervisors.system import oom
from muster.supervisors.system.controllers import hierarchies, job_limits
from muster.supervisors.system.controllers.job_limits import JobLimits
from tests.unit.supervision import in_own_process, until

#: /proc/self/cgroup and mountinfo: CentOS 7 (v1), Ubuntu 20.04 (hybrid), Docker on v1 without and with a namespace of
#: cgroups, v2; expected are the folders of memory, cpu and freezer.
LAYOUTS = {
    "CentOS 7": (
        "11:memory:/system.slice/musterd.service\n4:cpuacct,cpu:/system.slice\n3:freezer:/\n",
        "25 24 0:22 / /sys/fs/cgroup ro,nosuid shared:9 - tmpfs tmpfs ro,mode=755\n"
        "30 25 0:27 / /sys/fs/cgroup/memory rw,nosuid shared:14 - cgroup cgroup rw,memory\n"
        "33 25 0:30 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:17 - cgroup cgroup rw,cpuacct,cpu\n"
        "34 25 0:31 / /sys/fs/cgroup/freezer rw,nosuid shared:18 - cgroup cgroup rw,freezer\n",
        ("memory/system.slice/musterd.service", "cpu,cpuacct/system.slice", "freezer"),
    ),
    "Ubuntu 20.04": (
        "9:memory:/user.slice/user-0.slice\n5:cpu,cpuacct:/user.slice\n2:freezer:/\n0::/user.slice/user-0.slice/a.scope\n",
        "29 25 0:26 / /sys/fs/cgroup/unified rw shared:10 - cgroup2 cgroup2 rw,nsdelegate\n"
        "38 25 0:35 / /sys/fs/cgroup/memory rw shared:19 - cgroup cgroup rw,memory\n"
        "39 25 0:36 / /sys/fs/cgroup/cpu,cpuacct rw shared:20 - cgroup cgroup rw,cpu,cpuacct\n"
        "40 25 0:37 / /sys/fs/cgroup/freezer rw shared:21 - cgroup cgroup rw,freezer\n",
        ("memory/user.slice/user-0.slice", "cpu,cpuacct/user.slice", "freezer"),
    ),
    "Docker": (
        "6:memory:/docker/4f1e/job\n5:cpu,cpuacct:/docker/4f1e\n4:freezer:/other\n",
        "703 695 0:35 /docker/4f1e /sys/fs/cgroup/memory ro master:19 - cgroup cgroup rw,memory\n"
        "704 695 0:36 /docker/4f1e /sys/fs/cgroup/cpu,cpuacct ro master:20 - cgroup cgroup rw,cpu,cpuacct\n"
        "705 695 0:37 /docker/4f1e /sys/fs/cgroup/freezer ro master:21 - cgroup cgroup rw,freezer\n",
        ("memory/job", "cpu,cpuacct", None),
    ),
    "a namespace of cgroups": (
        "6:memory:/\n5:cpu:/../other\n",
        "703 695 0:35 / /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"
        "704 695 0:36 / /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu\n",
        ("memory", None, None),
    ),
    "v2": ("0::/user.slice\n", "29 25 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", (None, None, None)),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYOUTS)
def test_where_a_process_is(tmp_path, name):
    own, mounts, expected = LAYOUTS[name]
    for folder in ("self", "77"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "cgroup").write_text(own)
    (tmp_path / "self/mountinfo").write_text(mounts)
    for controller, place in zip(("memory", "cpu", "freezer"), expected, strict=True):
        path = Path("/sys/fs/cgroup", place) if place is not None else None
        assert hierarchies.folder_of(controller, proc=tmp_path) == path
        assert hierarchies.folder_of(controller, 77, tmp_path) == path


def test_limits_as_v1_reads_them(tmp_path):
    """Memory without swap where the kernel counts swap; each in its own hierarchy, and the rest in v2."""
    memory, cpu, v2 = (tmp_path / name for name in ("memory", "cpu", "v2"))
    for folder in (memory, cpu, v2):
        folder.mkdir()
    (memory / "memory.memsw.limit_in_bytes").touch()
    (v2 / "pids.max").touch()
    folders = {"memory": str(memory), "cpu": str(cpu)}
    assert job_limits.set_limits(str(v2), folders, JobLimits(1e9, 0.5, 64)) == ""
    assert (memory / "memory.limit_in_bytes").read_text() == "1000000000"
    assert (memory / "memory.memsw.limit_in_bytes").read_text() == "1000000000"
    assert ((cpu / "cpu.cfs_quota_us").read_text(), (cpu / "cpu.cfs_period_us").read_text()) == ("50000", "100000")
    assert job_limits.pids_in_force(str(v2), folders) == 64
    (v2 / "pids.max").write_text("max\n")
    assert job_limits.pids_in_force(str(v2), folders) == job_limits.pids_in_force("", {}) == 0


def test_a_usual_limit_of_processes_is_not_missed():
    assert job_limits.set_limits("", {}, JobLimits(pids=100, usual_pids=True)) == ""
    assert "limit of pids is not in force" in job_limits.set_limits("", {}, JobLimits(pids=100))


def test_of_a_cgroup_that_has_processes_no_controller_is_handed_down(tmp_path):
    """The kernel would take cpu and pids there: no cgroup of a job could then have a process any more."""
    own, job = tmp_path / "own", tmp_path / "own" / "job"
    job.mkdir(parents=True)
    (own / "cgroup.type").write_text("domain\n")
    (own / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    (own / "cgroup.procs").write_text("77\n")
    said = job_limits.set_limits(str(job), {}, JobLimits(1e9, 0.5, 64))
    assert [f"limit of {name} is not in force" in said for name in ("memory", "cpu", "pids")] == [True] * 3, said
    assert not (own / "cgroup.subtree_control").exists() and list(job.iterdir()) == []
    (own / "cgroup.procs").write_text("")
    assert job_limits.set_limits(str(job), {}, JobLimits(pids=64)) == ""
    assert (own / "cgroup.subtree_control").read_text() == "+pids"


def test_kills_out_of_memory_as_v1_counts_them(tmp_path):
    (tmp_path / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    (tmp_path / "memory.limit_in_bytes").write_text("67108864\n")
    (tmp_path / "memory.max_usage_in_bytes").write_text("33554432\n")
    assert (oom.kills(str(tmp_path)), oom.limit_reached(str(tmp_path))) == (2, 0)
    (tmp_path / "memory.max_usage_in_bytes").write_text("67104768\n")
    assert oom.limit_reached(str(tmp_path)) == 64 << 20


# --- the kernel's own -------------------------------------------------------------------------------------------------


@pytest.fixture
def freezer() -> Iterator[Path]:
    folder = job_limits.make_folders(f"muster-test-{os.getpid()}", ["freezer"]).get("freezer")
    if not folder:
        pytest.skip("needs the freezer of cgroup v1, and rights there")
    yield Path(folder)
    until(lambda: _removed(Path(folder)), "the cgroup is empty")


def _removed(folder: Path) -> bool:
    job_limits.remove(folder)
    return not folder.exists()


#: One that lives for a moment, and leaves another one.
STORM = """
import os
while True:
    if os.fork():
        os._exit(0)
    os.setsid()
"""


def test_what_forks_all_the_time_ends_in_a_freezer(freezer):
    """It is no descendant of who kills it, has no mark, and never stays one process: the cgroup alone knows it."""
    enter = f"echo $$ > {freezer}/cgroup.procs; exec python3 -c '{STORM}'"
    with subprocess.Popen(["setsid", "sh", "-c", enter]) as storm:
        until(lambda: storm.poll() is not None, "the first one has left")

        def work() -> Any:
            job = Containment(str(freezer), list, "no nonce", adopted=True)
            before = job.gone()
            until(lambda: not job.kill(), "all killed")
            until(job.gone, "nothing is left")
            return before

        assert in_own_process(work) is False
    assert (freezer / "cgroup.procs").read_text() == ""
    assert (freezer / "freezer.state").read_text() == "THAWED\n"


def test_what_somebody_froze_ends_as_well(freezer):
    """A supervisor that was killed in the middle of its own kill, say."""
    with subprocess.Popen(["sh", "-c", f"echo $$ > {freezer}/cgroup.procs; exec sleep 600"]) as rank:
        until(lambda: b"sleep" in Path(f"/proc/{rank.pid}/cmdline").read_bytes(), "it is in the cgroup")
        (freezer / "freezer.state").write_text("FROZEN")
        job = Containment(str(freezer), list, "no nonce", adopted=True)
        until(lambda: not job.kill() or rank.poll() is not None, "it is killed")
        assert rank.wait(60) == -9


def test_folders_are_made_anew(freezer):
    """With what an earlier attempt left below; none where a process is left."""
    (freezer / "inner").mkdir()
    assert job_limits.make_folders(freezer.name, ["freezer", "no such controller"]) == {"freezer": str(freezer)}
    assert not (freezer / "inner").exists()
    with contextlib.suppress(OSError):
        freezer.rmdir()
