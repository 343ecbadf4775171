"""The daemon of a standalone run, as long as it has not answered yet."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.agent.cli.client import standalone
from muster.agent.cli.client.interrupts import Interrupts
from muster.agent.cli.exits import CommandFailed
from muster.probes.kernel import process
from muster.supervisors.paths import Root
from muster.supervisors.system import lock


@pytest.fixture
def silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[standalone.Standalone]:
    """A daemon that begins and never listens."""
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nexec sleep 600\n")
    program.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(program))
    monkeypatch.setattr(standalone, "START_S", 0.0)
    read_end, write_end = os.pipe()
    own = standalone.Standalone(tmp_path, read_end, Interrupts())
    yield own
    own.process.kill()
    own.process.wait()
    os.close(read_end)
    os.close(write_end)


def test_a_daemon_that_does_not_answer_is_not_waited_for(silent):
    with pytest.raises(CommandFailed, match="did not answer within 0 s: see whether this machine is overloaded"):
        silent.wait_ready()


def test_the_time_for_which_it_waits_for_a_processor_does_not_count(silent, monkeypatch):
    waits = iter([standalone.CROWDED_S] * 20 + [0.0])
    monkeypatch.setattr(process, "waited_for_cpu", lambda pid: next(waits))
    with pytest.raises(CommandFailed):
        silent.wait_ready()
    assert not list(waits)


def test_a_nursery_that_waits_for_a_processor_is_waited_for(silent, tmp_path, monkeypatch):
    """The command's end says that nothing of it runs any more."""
    waits = iter([1.0, *[1.0 + standalone.CROWDED_S] * 5, 1.0])
    monkeypatch.setattr(process, "waited_for_cpu", lambda pid: next(waits))
    monkeypatch.setattr(lock, "holder", lambda path: silent.process.pid)
    monkeypatch.setattr(standalone, "TIDY_S", 0.0)
    monkeypatch.setattr(standalone, "LOOK_S", 0.001)
    standalone.wait_nursery(Root.under(tmp_path))
    assert not list(waits) and silent.process.poll() is None


def test_what_the_kernel_says_of_a_process(tmp_path):
    assert process.waited_for_cpu(os.getpid()) > 0.0
    assert process.waited_for_cpu(2**22 + 1) == 0.0
