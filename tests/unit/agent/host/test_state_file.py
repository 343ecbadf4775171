"""Small files of the daemon: how they are replaced and read."""

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from muster.agent.errors import StartupError
from muster.agent.host import state_file
from muster.agent.host.state_file import Damaged


class Content(msgspec.Struct):
    version: int = 3
    words: list[str] = []


@pytest.mark.parametrize("synced", [True, False])
def test_nobody_else_can_read_it_from_its_first_byte_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, synced: bool
) -> None:
    path = tmp_path / "hang.json"
    modes = []
    rename = Path.rename

    def look(self: Path, target: Path) -> Path:
        modes.append(self.stat().st_mode & 0o777)
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", look)
    monkeypatch.setattr(Path, "chmod", lambda *_: pytest.fail("made with another mode"))
    before = os.umask(0)
    try:
        state_file.write(path, 1, synced=synced)
        state_file.write(path, 2, synced=synced)
    finally:
        os.umask(before)
    assert (path.read_bytes(), modes) == (b"2", [0o600, 0o600])
    assert os.listdir(tmp_path) == ["hang.json"]


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    state_file.write(path, Content(words=["a", "ü"]), indent=1)
    assert state_file.read(path, Content, 3) == Content(words=["a", "ü"])
    assert path.read_text().count("\n") > 3


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{", b"\xff", b'{"words": 1}', b'{"version": 2}', b'{"version": "x"}']
)
def test_what_cannot_be_understood_is_damaged(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(Damaged):
        state_file.read(path, Content, 3)
    aside = state_file.set_aside(path)
    assert not path.exists() and aside.read_bytes() == content


@pytest.mark.parametrize("rest", [{}, {"words": "of another kind"}])
def test_what_a_newer_daemon_wrote_is_left_alone(tmp_path: Path, rest: dict[str, Any]) -> None:
    path = tmp_path / "x.json"
    state_file.write(path, {"version": 4, **rest})
    with pytest.raises(
        StartupError, match=r"x\.json: was written by a newer musterd \(version 4, and this one reads 3\)"
    ):
        state_file.read(path, Content, 3)
    assert path.exists()
