"""A daemon that holds its socket and does not answer: commands name the process and the remedy."""

import os
import resource
import signal

import pytest

from tests.conftest import Daemon


def expect_remedy(daemon: Daemon, *words: str) -> None:
    done = daemon.cli("stop", "--grace", "1s", "job")
    assert done.returncode == 4, done
    for text in (f"musterd (pid {daemon.pid})", "jobs continue", *words):
        assert text in done.stderr, done.stderr


@pytest.mark.slow
def test_a_stopped_daemon(daemon: Daemon) -> None:
    daemon.run("sleep", "3600", job_id="job")
    daemon.until_running("job")
    os.kill(daemon.pid, signal.SIGSTOP)
    try:
        expect_remedy(daemon, "is stopped (SIGSTOP)", f"kill -CONT {daemon.pid}")
    finally:
        os.kill(daemon.pid, signal.SIGCONT)
    assert daemon.cli("stop", "--grace", "1s", "job").returncode == 0


@pytest.mark.slow
def test_one_far_below_what_it_has_open(daemon: Daemon) -> None:
    daemon.run("sleep", "3600", job_id="job")
    daemon.until_running("job")
    resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (8, 8))
    try:
        expect_remedy(daemon, f"prlimit --pid {daemon.pid} --nofile=")
    finally:
        daemon.kill()  # not everybody may raise its limit again; the next one has its own
        daemon.start()
    assert daemon.cli("stop", "--grace", "1s", "job").returncode == 0
