"""The audit log on a disk that takes half a line."""

import json
import os
from pathlib import Path

import pytest

from muster.agent.api.audit import Audit


def test_half_a_line_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "audit.log"
    audit = Audit(path)
    audit.write({"call": "first"})
    with monkeypatch.context() as full:
        write = os.write
        # As a disk does with its last bytes.
        full.setattr("muster.agent.api.audit.os.write", lambda fd, data: write(fd, data[:10]))
        audit.write({"call": "second"})
    audit.write({"call": "third"})
    assert [json.loads(line)["call"] for line in path.read_text().splitlines()] == ["first", "third"]


def test_no_text_makes_a_line_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    audit = Audit(path)
    audit.write({"says": 'x\n{"call": "forged"}\r\u2028\x85\x1b[2J'})
    assert path.read_bytes().count(b"\n") == 1 and path.read_text().strip().isprintable()
    assert "forged" in json.loads(path.read_text())["says"]
