"""What the hang watch keeps of a job."""

import os
from pathlib import Path

import pytest

from muster.agent.hang import hang_watch


def test_nobody_else_can_read_it_from_its_first_byte_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "hang.json"
    path.with_suffix(".new").write_text("of a release before, and killed in the middle")
    modes = []
    rename = Path.rename

    def look(self: Path, target: Path) -> Path:
        modes.append(self.stat().st_mode & 0o777)
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", look)
    monkeypatch.setattr(Path, "chmod", lambda *_: pytest.fail("made with another mode"))
    before = os.umask(0)
    try:
        hang_watch._save(path, b"1")
        hang_watch._save(path, b"2")
    finally:
        os.umask(before)
    assert (path.read_bytes(), modes) == (b"2", [0o600, 0o600])
