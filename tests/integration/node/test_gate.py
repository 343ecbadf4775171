"""`muster check --gate` and `muster node --fit`: what a scheduler's health check gets from the daemon."""

import json
import os
import signal
import subprocess
from collections.abc import Callable

import pytest

from muster.v1 import node_pb2
from tests.conftest import Daemon, eventually

#: What the machine that runs the tests is like says nothing here.
CONFIG = """
[health]
skip = "kernel-log,storage,kernel,memory-errors,oom,disk-free,mounts,nfs,d-state,zombies,pids,file-descriptors,ib"
"""


@pytest.fixture
def fit(make_daemon: Callable[..., Daemon]) -> Daemon:
    """A daemon whose checks have all had their turn."""
    daemon = make_daemon(CONFIG)
    eventually(lambda: not daemon.nodes.GetNode(node_pb2.GetNodeRequest(), timeout=60).node.pending_checks, 60)
    return daemon


def asked(daemon: Daemon, *options: str) -> tuple[int, str]:
    """Two seconds, the default, may be too few on a busy machine."""
    done = gate(daemon, *options)
    return done.returncode, done.stdout


def gate(daemon: Daemon, *options: str) -> "subprocess.CompletedProcess[str]":
    return daemon.cli("check", "--gate", "--within", "60s", *options)


def fits(daemon: Daemon) -> int:
    """The exit code of `muster node --fit`, which has no such option."""
    code = 2

    def known() -> bool:
        nonlocal code
        code = daemon.cli("node", "--fit").returncode
        return code != 2

    eventually(known)
    return code


@pytest.mark.slow
def test_a_fit_node(fit: Daemon) -> None:
    assert asked(fit) == (0, "fit\n")
    assert asked(fit, "--format", "nhc") == (0, "")
    assert asked(fit, "--format", "npd") == (0, "fit\n")
    assert asked(fit, "--format", "prolog") == (0, "")
    shown = json.loads(asked(fit, "-o", "json")[1])
    assert (shown["fit"], shown["status"], shown["why"]) == (True, "fit", [])
    assert fits(fit) == 0


@pytest.mark.parametrize(("code", "expected"), [("FS_SPACE_LOW", 0), ("FS_NOT_MOUNTED", 1)])
@pytest.mark.slow
def test_a_condition_counts_by_its_status(fit: Daemon, code: str, expected: int) -> None:
    """WARN is fit, CRITICAL is not."""
    assert fit.cli("check", "inject", code).returncode == 0
    exit_code, said = asked(fit)
    assert exit_code == expected
    assert said.startswith(f"not fit: {code}: ") if expected else said == "fit\n"
    if expected:
        assert fits(fit) == 1
        assert asked(fit, "--format", "nhc")[1].startswith(f"muster: {code}: ")
        npd = asked(fit, "--format", "npd")
        assert npd[0] == 1 and len(npd[1].encode()) <= 80 and npd[1].startswith(f"not fit: {code}")
        prolog = gate(fit, "--format", "prolog")
        assert (prolog.returncode, prolog.stdout) == (1, "") and f"not fit: {code}" in prolog.stderr
        assert json.loads(asked(fit, "--format", "json")[1])["conditions"][0]["code"] == code


@pytest.mark.slow
def test_a_drained_node_is_not_fit_but_its_checks_may_be(fit: Daemon) -> None:
    fit.cli("node", "drain", "a new\ncable")
    code, said = asked(fit)
    assert code == 1 and said.startswith("not fit: drained by ") and said.count("\n") == 1
    assert "a new" in said and fits(fit) == 1
    # This is how a repair is checked before the return to service.
    assert fit.cli("check", "--gate", "recovery").returncode == 0
    fit.cli("node", "undrain")
    assert asked(fit) == (0, "fit\n")


def test_until_the_first_looks_are_done_it_is_unknown(make_daemon: Callable[..., Daemon]) -> None:
    """With the checks switched off that lasts."""
    daemon = make_daemon('[health]\npolicy = "off"\n')
    code, said = asked(daemon)
    assert code == 2 and said.startswith("unknown: checks without a result: ")
    prolog = gate(daemon, "--format", "prolog")
    assert prolog.returncode == 0 and "unknown: " in prolog.stderr
    assert json.loads(asked(daemon, "--format", "json")[1])["fit"] is None


@pytest.mark.slow
def test_without_an_answer_it_is_unknown(fit: Daemon) -> None:
    os.kill(fit.pid, signal.SIGSTOP)
    try:
        code, said = asked(fit, "--within", "500ms")
        assert code == 2 and said.startswith("unknown: the daemon at ") and "did not answer within 0.5 s" in said
    finally:
        os.kill(fit.pid, signal.SIGCONT)
    fit.kill()
    code, said = asked(fit, "--within", "200ms")
    assert code == 2 and said.startswith("unknown: no daemon at ")
    assert fit.cli("node", "--fit").returncode == 2
    assert fit.cli("check", "--gate", "--now", "recovery").returncode == 0


@pytest.mark.slow
def test_contradictory_options_are_refused(fit: Daemon) -> None:
    for options in (
        ("--format", "npd", "mounts", "--gate"),
        ("--format", "nhc"),
        ("--gate", "--now", "--format", "line"),
    ):
        done = fit.cli("check", *options)
        assert done.returncode == 2 and "--gate alone" in done.stderr
    assert fit.cli("node", "--fit", "undrain").returncode == 2
    done = fit.cli("check", "--gate", "--within", "0s")
    assert done.returncode == 2 and "--within: 0s is too short for an answer: give 100ms or more" in done.stderr, done
