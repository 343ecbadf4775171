"""The supervisor that waits gets no job while it rehearses one."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.supervisors.job import supervisor
from muster.supervisors.nursery import standby
from muster.supervisors.nursery.standby import Standby
from muster.supervisors.paths import Root
from muster.supervisors.system.loop import Loop
from tests.conftest import eventually


@pytest.fixture
def loop() -> Iterator[Loop]:
    """Without what it leaves to a process that ends with it."""
    before = signal.getsignal(signal.SIGCHLD)
    yield Loop(lambda error: pytest.fail(str(error)))
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, before)


def test_it_is_given_a_job_once_it_waits(tmp_path: Path, loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    root, goes_on = Root.under(tmp_path), tmp_path / "goes on"
    os.mkfifo(goes_on)
    monkeypatch.setattr(standby, "rehearse", lambda _: goes_on.read_text())  # in the child: until somebody writes
    waiting = Standby(root, loop, owned=False)
    loop.later(0.0, loop.stop)
    loop.run()
    pid = waiting.pid
    assert pid
    assert waiting.take("job") is None, "it rehearses: a job does not wait for that"
    assert waiting.pid == pid, "the next one may have it"
    goes_on.write_text("")
    given = eventually(lambda: waiting.take("job"))
    assert given.pid == pid and waiting.pid == 0
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == supervisor.UNUSABLE, "it has taken it, and there is no such job"
    given.close()
