"""Entries of systemd's journal: what is a field, what people read, and that nobody waits for the journal."""

import io
import os
import socket
import tempfile
from pathlib import Path
from typing import Any

import pytest

from muster.agent.host import systemd


def fields(data: bytes) -> dict[str, str]:
    """As the journal reads a datagram."""
    found = {}
    while data:
        name, _, rest = data.partition(b"\n")
        size = int.from_bytes(rest[:8], "little")
        found[name.decode()] = rest[8 : 8 + size].decode()
        assert rest[8 + size : 9 + size] == b"\n"
        data = rest[9 + size :]
    return found


def entry(**told: Any) -> dict[str, str]:
    return fields(systemd.journal_entry(None, "info", told))


def test_facts_are_fields() -> None:
    found = entry(event="job.trouble", level="warning", job="a1", error="gone", nothing=None)
    assert found == {
        "MESSAGE": "job.trouble job=a1 error=gone",
        "PRIORITY": "4",
        "SYSLOG_IDENTIFIER": "musterd",
        "MUSTER_KIND": "job.trouble",
        "MUSTER_JOB": "a1",
        "MUSTER_ERROR": "gone",
    }


def test_text_is_what_people_read() -> None:
    assert entry(event="job.ended", text="it ended", job="a1")["MESSAGE"] == "job.ended: it ended job=a1"
    assert entry(event="x.defect", exception="Traceback\n  line")["MESSAGE"] == "x.defect\nTraceback\n  line"


def test_nothing_breaks_out_of_its_field() -> None:
    found = entry(event="k", **{"a=b\nPRIORITY": "1\nMUSTER_JOB=other", "ä" * 99: "\udc80"})
    assert found["MUSTER_A_B_PRIORITY"] == "1\nMUSTER_JOB=other"
    assert "MUSTER_JOB" not in found and found["PRIORITY"] == "6"
    assert all(len(name) <= 64 for name in found)
    assert len(entry(event="k", text="x" * 10**6)["MUSTER_TEXT"]) == 32 << 10


def test_what_the_journal_does_not_take_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        monkeypatch.setattr(systemd, "JOURNAL", f"{folder}/socket")
        journal = systemd.Journal()
        journal.info(systemd.journal_entry(None, "info", {"event": "lost"}))
        listener.bind(f"{folder}/socket")
        journal.info(systemd.journal_entry(None, "info", {"event": "there"}))
        journal.info(systemd.journal_entry(None, "info", {"event": "again"}))
        first, second = (fields(listener.recv(1 << 16)) for _ in range(2))
        journal.close()
    assert (first["MUSTER_KIND"], first["MUSTER_LEFT_OUT"]) == ("there", "1")
    assert (second["MUSTER_KIND"], second.get("MUSTER_LEFT_OUT")) == ("again", None)


def test_only_a_stream_that_leads_to_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(systemd, "JOURNAL", str(tmp_path))
    with open(tmp_path / "stderr", "w") as stream:
        there = os.fstat(stream.fileno())
        monkeypatch.setenv("JOURNAL_STREAM", f"{there.st_dev}:{there.st_ino}")
        assert systemd.journal_is_behind(stream)
        monkeypatch.setenv("JOURNAL_STREAM", f"{there.st_dev}:1")
        assert not systemd.journal_is_behind(stream)
    assert not systemd.journal_is_behind(io.StringIO())
