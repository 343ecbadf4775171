"""What those who follow a journal are sent by its supervisor."""

from pathlib import Path
from typing import Any

from muster.supervisors.model import journal
from muster.supervisors.wire import messages
from tests.unit.sessions import Node


def _watched(sock: Any, known: int) -> dict[str, Any]:
    sock.sendall(messages.encode({"op": "watch", "from": known}))
    lines = messages.Lines()
    while (line := lines.next()) is None:
        lines.add(sock.recv(4096))
    return messages.decode(line)


def test_the_first_watcher_need_not_read_the_journal(tmp_path: Path):
    node = Node(tmp_path)
    try:
        job = node.start("sleep", "1000")
        written = journal.read(job.paths.journal).records
        accepted = len(journal.encode(written[0]))
        first = _watched(job.connect(), accepted)
        assert first["behind"] == accepted and first["size"] == job.paths.journal.stat().st_size
        assert [record["kind"] for record in first["records"]] == ["taken", "preparing", "spawned", "running"]
        assert first["records"] == written[1:]
        assert "records" not in _watched(job.connect(), accepted), "they are kept for one"
        job.hang_up()
    finally:
        node.close()


def test_a_watcher_that_has_read_up_to_elsewhere_gets_the_size_alone(tmp_path: Path):
    node = Node(tmp_path)
    try:
        job = node.start("sleep", "1000")
        told = _watched(job.connect(), 1)
        assert told["size"] == job.paths.journal.stat().st_size and "records" not in told
        job.hang_up()
    finally:
        node.close()
