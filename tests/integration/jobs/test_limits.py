"""Limits of ranks, their user, mask and priority; and who killed a rank."""

import contextlib
import functools
import os
import pwd
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.supervisors.system import oom
from muster.v1 import job_pb2
from tests.conftest import Daemon, eventually

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def limits_of(daemon: Daemon, **fields: Any) -> dict[str, tuple[int, int]]:
    """What a rank really has."""
    names = ("NOFILE", "MEMLOCK", "STACK", "CORE", "NPROC")
    code = f"import resource; print([resource.getrlimit(getattr(resource, 'RLIMIT_' + n)) for n in {names}])"
    daemon.run(sys.executable, "-c", code, job_id="x", **fields)
    job = daemon.wait("x")
    assert job.state == job_pb2.JOB_STATE_SUCCEEDED, job.verdict
    values = eval(daemon.output(job))
    return dict(zip((n.lower() for n in names), values, strict=True))


def test_limits_are_those_that_were_asked_for(daemon: Daemon) -> None:
    limits = job_pb2.Limits(nofile=333, stack_bytes=4 << 20, core_bytes=0, nproc=4321, memlock_bytes=65536)
    found = limits_of(daemon, limits=limits)
    assert found == {
        "nofile": (333, 333),
        "stack": (4 << 20, 4 << 20),
        "core": (0, 0),
        "nproc": (4321, 4321),
        "memlock": (65536, 65536),
    }
    shown = daemon.cli("status", "x").stdout
    assert "nofile 333" in shown


@as_root
def test_unlimited_and_above_the_daemons_own(daemon: Daemon) -> None:
    assert limits_of(daemon, limits=job_pb2.Limits(core_bytes=-1, stack_bytes=-1))["core"] == (-1, -1)


def test_a_limit_that_cannot_be_set_says_which(daemon: Daemon) -> None:
    daemon.run("true", job_id="x", limits=job_pb2.Limits(nofile=1 << 40))
    job = daemon.wait("x")
    assert job.state == job_pb2.JOB_STATE_FAILED
    assert "cannot set its limits" in job.verdict.summary and f"nofile {1 << 40}" in job.verdict.summary


def test_umask_and_nice(daemon: Daemon) -> None:
    daemon.run("sh", "-c", "umask; nice; touch made", job_id="x", umask=0o077, nice=5)
    job = daemon.wait("x")
    base = os.getpriority(os.PRIO_PROCESS, 0)
    assert daemon.output(job).decode().split() == ["0077", str(5 if base >= 0 else base + 5)]
    made = daemon.root.job("x").workspace / "device0" / "made"
    assert made.stat().st_mode & 0o777 == 0o600


@as_root
def test_a_job_of_another_user(open_daemon: Daemon) -> None:
    daemon = open_daemon
    nobody = pwd.getpwnam("nobody")
    daemon.run("sh", "-c", "id -un; id -G; echo $HOME $USER; touch made", job_id="x", user="nobody")
    job = daemon.wait("x")
    groups = " ".join(map(str, os.getgrouplist("nobody", nobody.pw_gid)))
    assert daemon.output(job).decode().splitlines() == ["nobody", groups, f"{nobody.pw_dir} nobody"]
    for path in (daemon.root.job("x").workspace / "device0" / "made", Path(job.ranks[0].log_path), Path(job.log_path)):
        assert path.stat().st_uid == nobody.pw_uid, path


def test_limits_without_a_cgroup_of_that_kind_are_a_warning(daemon: Daemon) -> None:
    daemon.run("true", job_id="x", limits=job_pb2.Limits(memory_bytes=1 << 30, cpus=1.5))
    job = daemon.wait("x")
    assert job.state == job_pb2.JOB_STATE_SUCCEEDED
    prepared = next((r for r in _records(daemon) if r["kind"] == "preparing"), {"cgroup": ""})
    folder, in_v1 = prepared["cgroup"], "memory" in prepared.get("v1_cgroups", {})
    if not in_v1 and not (folder and "memory" in Path(folder).parent.joinpath("cgroup.subtree_control").read_text()):
        assert [w for w in job.warnings if "not in force" in w]


def _records(daemon: Daemon) -> list[Any]:
    from muster.supervisors.model import journal

    return journal.read(daemon.root.job("x").journal).records


# --- who killed it ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def small_memory() -> Iterator[Path]:
    """A memory cgroup (v1 or v2) of 48 MiB; skips where there can be none."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "memory":
            base, limit = Path("/sys/fs/cgroup/memory" + path), "memory.limit_in_bytes"
        elif not controllers and Path(f"/sys/fs/cgroup{path}/cgroup.controllers").exists():
            base, limit = Path("/sys/fs/cgroup" + path), "memory.max"
        else:
            continue
        folder = base / f"muster-test-{os.getpid()}"
        try:
            folder.mkdir()
        except OSError:
            continue
        try:
            (folder / limit).write_text(str(48 << 20))
        except OSError:
            folder.rmdir()
            continue
        try:
            yield folder
        finally:
            eventually(functools.partial(_removed, folder))
        return
    pytest.skip("no memory cgroup can be made here")


def _removed(folder: Path) -> bool:
    with contextlib.suppress(OSError):
        folder.rmdir()
    return not folder.exists()


@as_root
@pytest.mark.skipif(oom.victims(0) is None, reason="needs the kernel's log")
def test_out_of_memory_is_distinguished_from_a_plain_sigkill(daemon: Daemon) -> None:
    with small_memory() as folder:
        greedy = f"open('{folder}/cgroup.procs', 'w').write('0'); x = [bytearray(1 << 20) for _ in range(500)]"
        daemon.run(sys.executable, "-c", greedy, job_id="x", ranks=1)
        job = daemon.wait("x")
    assert job.ranks[0].outcome == job_pb2.RANK_OUTCOME_OUT_OF_MEMORY, job.verdict
    assert job.verdict.exit_code == 137
    assert "out of memory" in job.verdict.summary
    assert job.verdict.recommendation == job_pb2.RECOMMENDATION_FAIL


@as_root
@pytest.mark.skipif(oom.victims(0) is None, reason="needs the kernel's log")
@pytest.mark.parametrize("parent", ["shell", "python"])
def test_a_process_below_a_rank_that_reaches_the_jobs_memory_limit(daemon: Daemon, parent: str) -> None:
    """Its parent exits with a code that does not tell; a shell prints "Killed", Python nothing."""
    greedy = "x = [bytearray(1 << 20) for _ in range(500)]"
    spawning = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {greedy!r}]); sys.exit(1)"
    command = [sys.executable, "-c", spawning]
    if parent == "shell":
        command = ["sh", "-c", f'"{sys.executable}" -c "{greedy}"; exit 1']
    daemon.run(*command, job_id="x", ranks=1, limits={"memory_bytes": 60 << 20})
    job = daemon.explained("x")
    if any("not in force" in warning for warning in job.warnings):
        pytest.skip("the limit is not in force here")
    assert (job.ranks[0].outcome, job.verdict.exit_code) == (job_pb2.RANK_OUTCOME_EXITED, 1), job
    assert re.search(
        r"out of memory: the kernel killed python\S* \(pid \d+\) of the job: .* limit of 60 MiB", job.verdict.summary
    ), job.verdict
    assert job.verdict.recommendation == job_pb2.RECOMMENDATION_FAIL
    assert "memory" in job.verdict.recommendation_reason and "limit of 60 MiB" in job.verdict.cause
    assert any("limit of 60 MiB" in event.message for event in daemon.event_list("x") if event.kind == "rank.exited")


def test_a_rank_killed_from_outside_is_distinguished_from_one_killed_by_muster(daemon: Daemon) -> None:
    daemon.run("sh", "-c", "[ $RANK = 1 ] && kill -9 $$; sleep 1000", job_id="x", ranks=3)
    job = daemon.wait("x")
    outcomes = [job_pb2.RankOutcome.Name(rank.outcome).removeprefix("RANK_OUTCOME_") for rank in job.ranks]
    assert outcomes == ["GANG_VICTIM", "SIGNALLED", "GANG_VICTIM"]
    assert "OOM killer sent it" in job.verdict.summary
    assert job.verdict.recommendation == job_pb2.RECOMMENDATION_RETRY_HERE


def test_training_modes_are_presets_that_status_shows(daemon: Daemon) -> None:
    daemon.run("sh", "-c", "echo $GLOG_v $MS_RDR_ENABLE", job_id="x", training_mode="diagnosis", env={"GLOG_v": "0"})
    job = daemon.wait("x")
    assert daemon.output(job) == b"0 1\n"  # the job's own variable wins
    shown = daemon.cli("status", "x").stdout
    assert "diagnosis" in shown and "MS_RDR_ENABLE=1" in shown


def test_modes_on_the_command_line(daemon: Daemon) -> None:
    done = daemon.cli("run", "--boot", "ranks", "--training-mode", "high_performance", "--", "sh", "-c", "echo $GLOG_v")
    assert (done.returncode, done.stdout) == (0, "3\n")
    done = daemon.cli("run", "--boot", "msrun", "--", "train.py")
    assert done.returncode == 127 and "mindspore" in done.stderr
