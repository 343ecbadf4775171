"""How long the gate waits for the daemon."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from muster.agent.cli.client.address import Address
from muster.agent.cli.fitness import gate
from muster.client import own_token


@pytest.fixture
def silent(tmp_path: Path) -> Iterator[Address]:
    """A daemon that takes connections and answers nothing, as one that is stopped."""
    with ExitStack() as stack:
        path = tmp_path / "muster.sock"
        for each in (path, own_token.beside(path)):
            sock = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            sock.bind(str(each))
            sock.listen(8)
        yield Address(path)


@pytest.mark.timeout(60)
def test_the_token_is_waited_for_within_the_time_of_the_call(silent: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_token, "ANSWER_S", 3600.0)
    assert gate.ask(silent, 0.2).code == gate.UNKNOWN
