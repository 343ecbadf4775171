"""Processes that a driver lists on a card, by what may be said of them here."""

import os
import subprocess

import pytest

from muster.probes.cards.accelerator import Holder
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
    cards = [[Holder(os.getpid(), 1 << 20), Holder(ended)], [Holder(os.getpid())]]
    listed = device_holders.listed(cards)
    assert [holder.pid for holder in listed.visible] == [os.getpid()]
    assert listed.unseen == (() if host else (ended,))
    assert [str(ended) in one for one in listed] == ([False] if host else [False, True])
