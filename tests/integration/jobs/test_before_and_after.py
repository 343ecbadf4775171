"""What runs before the ranks and after them: requirements, pre_start, epilog."""

import os
import signal
import sys
import zipfile
from pathlib import Path
from typing import Any

import grpc
import pytest

from muster.v1 import job_pb2
from tests.conftest import Daemon, alive, eventually


def start(daemon: Daemon, command: tuple[str, ...] = ("true",), **fields: Any) -> None:
    spec = job_pb2.JobSpec(**({"job_id": "x", "command": command} | fields))
    spec.restart_backoff.FromMilliseconds(10)
    daemon.jobs.Start(job_pb2.StartRequest(spec=spec), timeout=60)


def script(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def job_log(job: Any) -> str:
    return Path(job.log_path).read_text()


PRINT = ("sh", "-c", 'echo "$NEW|$SPEC|${GONE-unset}|$RANK"')


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "ma-pre-start.sh",
            'echo "hello from pre-start"\nexport NEW="a b" SPEC=changed RANK=77\nunset GONE\nLOCAL=x\n',
        ),
        ("early.sh", 'echo "hello from pre-start"\nexport NEW="a b" SPEC=changed\nunset GONE\nexit 0\n'),
        (
            "ma-pre-start.py",
            "import os\nprint('hello from pre-start')\n"
            "os.environ.update(NEW='a b', SPEC='changed')\ndel os.environ['GONE']\nimport sys; sys.exit(0)\n",
        ),
    ],
)
def test_a_pre_start_sets_the_environment_of_the_ranks(daemon: Daemon, tmp_path: Path, name: str, text: str) -> None:
    env = {"SPEC": "from the spec", "GONE": "still here"}
    start(daemon, PRINT, ranks=2, pre_start=script(tmp_path / name, text), env=env)
    job = daemon.wait("x")
    assert job.state == job_pb2.JOB_STATE_SUCCEEDED, job.verdict
    assert [daemon.output(job, rank).decode() for rank in (0, 1)] == [f"a b|changed|unset|{rank}\n" for rank in (0, 1)]
    assert "hello from pre-start\n" in job_log(job)
    assert "hello from pre-start" in daemon.cli("logs", "x", "--job").stdout
    daemon.until_put_away("x")


def test_a_pre_start_that_fails_starts_no_rank(daemon: Daemon, tmp_path: Path) -> None:
    start(
        daemon, ("touch", str(tmp_path / "ran")), pre_start=script(tmp_path / "p.sh", "echo no disk today\nexit 23\n")
    )
    job = daemon.wait("x")
    assert (job.state, job.verdict.exit_code) == (job_pb2.JOB_STATE_FAILED, 23)
    assert f"pre_start {tmp_path}/p.sh exited with code 23; no rank was started" in job.verdict.summary
    assert "no disk today" in job.verdict.last_lines
    assert job.verdict.recommendation == job_pb2.RECOMMENDATION_FAIL
    assert not (tmp_path / "ran").exists()
    daemon.until_put_away("x")


@pytest.mark.parametrize("field", ["pre_start", "requirements", "epilog"])
@pytest.mark.parametrize("name", ["none.sh", ".", "none/p.sh"])
def test_a_file_that_does_not_exist_is_refused(daemon: Daemon, tmp_path: Path, field: str, name: str) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        start(daemon, ("true",), **{field: str(tmp_path / name)})
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    said = refused.value.details() or ""
    assert field in said and "give a file that exists on this node" in said


def test_a_pre_start_that_is_removed_before_it_runs(daemon: Daemon, tmp_path: Path) -> None:
    path = script(tmp_path / "p.sh", f"rm {tmp_path}/p.sh\n")
    start(daemon, ("sh", "-c", "exit 1"), pre_start=path, max_restarts=1)
    job = daemon.wait("x")
    assert job.state == job_pb2.JOB_STATE_FAILED
    assert "p.sh" in job.verdict.summary and "no rank was started" in job.verdict.summary


@pytest.mark.slow
def test_a_pre_start_that_never_ends_is_ended(daemon: Daemon, tmp_path: Path) -> None:
    text = f"trap '' TERM\necho $$ >{tmp_path}/pid\nwhile true; do sleep 0.1; done\n"
    for limit in (0.5, 5, 50):  # in which a busy machine may not let it begin
        job_id = f"x-{limit:g}"
        spec = job_pb2.JobSpec(job_id=job_id, command=("true",), pre_start=script(tmp_path / "p.sh", text))
        spec.pre_start_timeout.FromMilliseconds(round(1000 * limit))
        daemon.jobs.Start(job_pb2.StartRequest(spec=spec), timeout=60)
        job = daemon.wait(job_id)
        assert f"did not end within {limit:g} s" in job.verdict.summary
        if (tmp_path / "pid").exists():
            break
    assert not alive(int((tmp_path / "pid").read_text()))
    daemon.until_put_away(job_id)


@pytest.mark.slow
def test_a_pre_start_that_leaves_children_is_an_error(daemon: Daemon, tmp_path: Path) -> None:
    text = f"setsid sh -c 'echo $$ >{tmp_path}/pid; exec sleep 1000' >/dev/null 2>&1 &\n"
    text += f"while [ ! -s {tmp_path}/pid ]; do sleep 0.01; done\n"
    start(daemon, pre_start=script(tmp_path / "p.sh", text))
    job = daemon.wait("x")
    pid = int((tmp_path / "pid").read_text())
    assert job.state == job_pb2.JOB_STATE_FAILED
    assert (
        "left 1 process(es) running, and muster ended them" in job.verdict.summary and str(pid) in job.verdict.summary
    )
    assert not alive(pid)


def test_a_stop_ends_a_pre_start(daemon: Daemon, tmp_path: Path) -> None:
    start(daemon, pre_start=script(tmp_path / "p.sh", f"touch {tmp_path}/here; sleep 1000"))
    eventually((tmp_path / "here").exists)
    job = eventually(lambda: (found := daemon.get("x")).step and found)
    assert (job.state, job.step) == (job_pb2.JOB_STATE_PREPARING, "pre_start")
    daemon.stop("x")
    job = daemon.wait("x")
    assert (job.state, job.verdict.exit_code) == (job_pb2.JOB_STATE_STOPPED, 143)


@pytest.mark.slow
def test_a_pre_start_runs_before_each_attempt(daemon: Daemon, tmp_path: Path) -> None:
    text = f"echo $MUSTER_ATTEMPT >>{tmp_path}/attempts; export SEEN=$MUSTER_ATTEMPT\n"
    command = ("sh", "-c", "echo $SEEN; [ $MUSTER_ATTEMPT = 1 ]")
    start(daemon, command, pre_start=script(tmp_path / "p.sh", text), max_restarts=3)
    job = daemon.wait("x")
    assert job.state == job_pb2.JOB_STATE_SUCCEEDED
    assert (tmp_path / "attempts").read_text() == "0\n1\n"
    assert [line for line in daemon.output(job).decode().splitlines() if "[" not in line] == ["0", "1"]


@pytest.mark.slow
@pytest.mark.parametrize("who", ["daemon", "supervisor", "nursery"])
def test_a_pre_start_survives_any_death(daemon: Daemon, tmp_path: Path, who: str) -> None:
    text = f"echo once >>{tmp_path}/runs\nwhile [ ! -e {tmp_path}/go ]; do sleep 0.01; done\nexport NEW=found\n"
    start(daemon, PRINT, pre_start=script(tmp_path / "p.sh", text))
    eventually((tmp_path / "runs").exists)
    if who == "daemon":
        daemon.kill()
        daemon.restart()
    else:
        os.kill(daemon.supervisor_pid("x") if who == "supervisor" else daemon.nursery_pid(), signal.SIGKILL)
    (tmp_path / "go").touch()
    job = daemon.wait("x")
    assert job.state == job_pb2.JOB_STATE_SUCCEEDED, job.verdict
    assert (tmp_path / "runs").read_text() == "once\n"
    assert daemon.output(job).decode().startswith("found|")


@pytest.mark.skipif(os.geteuid() != 0, reason="starting as another user needs root")
def test_steps_run_as_the_jobs_user(open_daemon: Daemon) -> None:
    daemon = open_daemon
    who = script(daemon.folder / "who.sh", 'echo "step as $(id -un) in $HOME, umask $(umask)"\nexport FROM=pre\n')
    start(daemon, ("sh", "-c", "echo $FROM $(id -un)"), user="nobody", pre_start=who, epilog=who)
    job = daemon.wait("x")
    assert job.state == job_pb2.JOB_STATE_SUCCEEDED, job.verdict
    assert daemon.output(job) == b"pre nobody\n"
    assert job_log(job).count("step as nobody in /nonexistent, umask 0022\n") == 2


# --- requirements -----------------------------------------------------------------------------------------------------


def wheel(folder: Path, version: str) -> Path:
    """A package of one module, made without a build tool and installed without a network."""
    path = folder / f"musterpkg-{version}-py3-none-any.whl"
    info = f"musterpkg-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("musterpkg.py", f"VERSION = {version!r}\n")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: musterpkg\nVersion: {version}\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", f"musterpkg.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    return path


@pytest.mark.slow
def test_requirements_are_installed_for_this_job_alone(daemon: Daemon, tmp_path: Path) -> None:
    needs = script(tmp_path / "pip-requirements.txt", f"{wheel(tmp_path, '1.5')}\n")
    command = (
        sys.executable,
        "-c",
        "import musterpkg, os; print(musterpkg.VERSION, os.environ['PYTHONPATH'].split(':')[1:])",
    )
    start(daemon, command, requirements=needs, env={"PYTHONPATH": "/mine"})
    job = daemon.wait("x", 120)
    assert job.state == job_pb2.JOB_STATE_SUCCEEDED, (job.verdict, job_log(job))
    assert daemon.output(job) == b"1.5 ['/mine']\n"
    assert "Successfully installed musterpkg-1.5" in job_log(job)
    start(daemon, (sys.executable, "-c", "import musterpkg"), job_id="y")
    assert daemon.wait("y").verdict.exit_code == 1


def test_requirements_that_cannot_be_installed(daemon: Daemon, tmp_path: Path) -> None:
    needs = script(tmp_path / "r.txt", "./no-such-package-1.0-py3-none-any.whl\n")
    start(daemon, (sys.executable, "-c", "pass"), requirements=needs)
    job = daemon.wait("x", 120)
    assert job.state == job_pb2.JOB_STATE_FAILED
    assert f"requirements {needs} exited with code 1; no rank was started" in job.verdict.summary
    assert any("no-such-package" in line for line in job.verdict.last_lines)


# --- epilog -----------------------------------------------------------------------------------------------------------


def epilog(tmp_path: Path, more: str = "") -> str:
    return script(tmp_path / "epilog.sh", f'echo "$MUSTER_STATE $MUSTER_EXIT_CODE" >>{tmp_path}/told\n{more}')


@pytest.mark.parametrize(
    ("command", "told"),
    [(("true",), "SUCCEEDED 0"), (("sh", "-c", "exit 9"), "FAILED 9"), (("no-such-program",), "FAILED 127")],
)
def test_an_epilog_runs_after_every_kind_of_end(
    daemon: Daemon, tmp_path: Path, command: tuple[str, ...], told: str
) -> None:
    start(daemon, command, ranks=2, epilog=epilog(tmp_path))
    daemon.wait("x")
    assert (tmp_path / "told").read_text() == f"{told}\n"
    daemon.until_put_away("x")


def test_an_epilog_runs_after_a_stop_and_after_a_failed_pre_start(daemon: Daemon, tmp_path: Path) -> None:
    start(daemon, ("sleep", "1000"), epilog=epilog(tmp_path))
    eventually(lambda: daemon.get("x").state == job_pb2.JOB_STATE_RUNNING)
    daemon.stop("x")
    daemon.wait("x")
    start(daemon, job_id="y", pre_start=script(tmp_path / "p.sh", "exit 3"), epilog=epilog(tmp_path))
    daemon.wait("y")
    assert (tmp_path / "told").read_text() == "STOPPED 143\nFAILED 3\n"


def test_an_epilog_runs_behind_ranks_that_had_to_be_killed(daemon: Daemon, tmp_path: Path) -> None:
    spec = job_pb2.JobSpec(job_id="x", epilog=epilog(tmp_path, "sleep 1\necho whole\n"))
    spec.command.extend(("sh", "-c", f"trap '' TERM; touch {tmp_path}/on; while true; do sleep 0.05; done"))
    spec.grace_steps.add().FromMilliseconds(100)
    daemon.jobs.Start(job_pb2.StartRequest(spec=spec), timeout=60)
    eventually((tmp_path / "on").exists)
    daemon.stop("x")
    job = daemon.wait("x")
    assert (tmp_path / "told").read_text() == "STOPPED 137\n"
    assert "whole\n" in job_log(job) and not job.warnings


def test_an_epilog_that_fails_is_a_warning_only(daemon: Daemon, tmp_path: Path) -> None:
    start(daemon, epilog=epilog(tmp_path, "exit 4\n"))
    job = daemon.wait("x")
    assert job.state == job_pb2.JOB_STATE_SUCCEEDED
    assert [w for w in job.warnings if "exited with code 4" in w]


def test_an_epilog_that_never_ends_is_ended(daemon: Daemon, tmp_path: Path) -> None:
    spec = job_pb2.JobSpec(job_id="x", command=("true",), epilog=epilog(tmp_path, "sleep 1000\n"))
    spec.epilog_timeout.FromMilliseconds(500)
    daemon.jobs.Start(job_pb2.StartRequest(spec=spec), timeout=60)
    job = daemon.wait("x")
    assert job.state == job_pb2.JOB_STATE_SUCCEEDED
    assert [w for w in job.warnings if "did not end within 0.5 s" in w]


def test_a_stop_ends_an_epilog_and_changes_no_verdict(daemon: Daemon, tmp_path: Path) -> None:
    start(daemon, ("sh", "-c", "exit 6"), epilog=epilog(tmp_path, "sleep 1000\n"))
    eventually((tmp_path / "told").exists)
    daemon.stop("x")
    job = daemon.wait("x")
    assert (job.state, job.verdict.exit_code) == (job_pb2.JOB_STATE_FAILED, 6)


@pytest.mark.slow
@pytest.mark.parametrize("who", ["daemon", "supervisor", "nursery"])
def test_an_epilog_runs_once_over_any_death(daemon: Daemon, tmp_path: Path, who: str) -> None:
    start(
        daemon, ("sh", "-c", "exit 6"), epilog=epilog(tmp_path, f"while [ ! -e {tmp_path}/go ]; do sleep 0.01; done\n")
    )
    eventually((tmp_path / "told").exists)
    if who == "daemon":
        daemon.kill()
        daemon.restart()
    else:
        os.kill(daemon.supervisor_pid("x") if who == "supervisor" else daemon.nursery_pid(), signal.SIGKILL)
    (tmp_path / "go").touch()
    job = daemon.wait("x")
    assert (job.state, job.verdict.exit_code) == (job_pb2.JOB_STATE_FAILED, 6)
    assert (tmp_path / "told").read_text() == "FAILED 6\n" and not job.warnings
