"""What two threads write to one terminal."""

import threading

import pytest

from muster.agent.cli import printing


class Slow:
    """A terminal that takes output only when it may."""

    def __init__(self) -> None:
        self.begun, self.go = threading.Event(), threading.Event()
        self.got: list[tuple[int, bytes]] = []

    def passing(self, fd: int, data: bytes) -> None:
        if fd == 1:
            self.begun.set()
            assert self.go.wait(60)
        self.got.append((fd, data))


def test_a_message_beside_output_that_is_being_written_comes_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would end a line that has not begun, and an empty one would be left."""
    monkeypatch.setattr(printing, "is_terminal_of_stderr", lambda fd: True)
    monkeypatch.setattr(printing, "on_terminal", lambda: True)
    monkeypatch.setattr(printing, "WAIT_S", 60.0)
    terminal = Slow()
    printing.step_aside(terminal)
    try:
        output = threading.Thread(target=printing.write, args=(b"begin\n  5%",))
        message = threading.Thread(target=printing.note, args=("job x accepted",))
        output.start()
        assert terminal.begun.wait(60)
        message.start()
        message.join(0.2)  # it would be over by now, if it did not wait
        terminal.go.set()
        output.join(60)
        message.join(60)
    finally:
        printing.step_aside(None)
    assert terminal.got == [(1, b"begin\n  5%"), (2, b"\r\nmuster: job x accepted\n")]
