"""Processes that a driver lists on a card, by what may be said of them here."""

import os
import subprocess

import pytest

from muster.probes.cards.reset import device_holders
from muster.probes.kernel import process


@pytest.fixture
def ended() -> int:
    """A pid that nobody has."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    return gone.pid


@pytest.mark.parametrize("host", [True, False])
def test_only_with_the_pids_of_the_host_a_process_that_is_not_here_has_ended(monkeypatch, ended, host):
    monkeypatch.setattr(process, "pids_are_the_kernels", lambda: host)
    pids = {os.getpid(), ended}
    assert [holder.pid for holder in device_holders.visible(pids)] == [os.getpid()]
    assert device_holders.unseen(pids) == (() if host else (ended,))
