"""The examples do what their page says: they are what a newcomer tries first."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from muster.v1 import job_pb2
from tests.conftest import BIN, Daemon, alive, eventually

EXAMPLES = Path(__file__).parents[3] / "examples"
TRAIN = (sys.executable, str(EXAMPLES / "train.py"))


@pytest.mark.slow
def test_make_run(tmp_path: Path) -> None:
    env = dict(os.environ, PATH=f"{BIN}:{os.environ['PATH']}", TMPDIR=str(tmp_path))
    env.pop("MUSTER_ROOT", None)
    done = subprocess.run(
        ["bash", str(EXAMPLES / "run.sh")], env=env, capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "All is as expected." in done.stdout
    assert "First failure: rank 2" in done.stdout


@pytest.mark.slow
def test_a_stopped_job_saves_a_checkpoint_and_the_next_resumes(daemon: Daemon, tmp_path: Path) -> None:
    options = ("--steps", "100000", "--step-time", "0.01", "--checkpoint", str(tmp_path))
    daemon.run(*TRAIN, *options, job_id="first", ranks=3)
    eventually(lambda: b"step 3/" in daemon.output(daemon.get("first")), 60)
    job = daemon.stop("first", grace_s=30).job
    assert (job.state, job.ranks[0].exit_code) == (job_pb2.JOB_STATE_STOPPED, 143)
    assert b"checkpoint saved at step" in daemon.output(job)
    daemon.run(*TRAIN, *options, job_id="second", ranks=3)
    eventually(lambda: b"resum" in daemon.output(daemon.get("second")).lower(), 60)
    daemon.stop("second", grace_s=30)


def test_leaked_children_are_ended(daemon: Daemon) -> None:
    daemon.run(*TRAIN, "--steps", "3", "--leak-child", job_id="leak", ranks=2)
    job = daemon.wait("leak")
    notes = list(daemon.root.job("leak").workspace.glob("device*/leaked-rank-*.pid"))
    assert len(notes) == 2 and job.state == job_pb2.JOB_STATE_SUCCEEDED
    assert not any(alive(int(note.read_text())) for note in notes)


def test_a_job_file(daemon: Daemon) -> None:
    done = daemon.cli("start", "-f", str(EXAMPLES / "job.toml"), "--workdir", str(EXAMPLES.parent), "--job-id", "file")
    assert done.returncode == 0, done.stderr
    daemon.stop("file", grace_s=0)
