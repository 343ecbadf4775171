"""Losses of the daemon's own logs: of its stderr, of audit.log, and a nursery.log that nobody can open."""

import contextlib
import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import BIN, Daemon, eventually

METRICS = '[metrics]\nlisten = "unix:{}"\n'


def conditions(daemon: Daemon, path: Any) -> list[Any]:
    found = json.loads(daemon.cli("node", "-o", "json").stdout)
    return [one for one in found.get("conditions", []) if one.get("device") == str(path)]


def warnings(daemon: Daemon) -> list[str]:
    found: list[str] = json.loads(daemon.cli("node", "-o", "json").stdout).get("warnings", [])
    return found


@pytest.mark.slow
def test_lines_that_the_audit_log_lacks_are_counted_and_told(daemon: Daemon) -> None:
    log = daemon.root.audit_log
    daemon.run("true", job_id="before")
    log.rename(log.with_name("aside"))
    log.mkdir()
    for number in range(3):
        daemon.run("true", job_id=f"lost{number}")

    def told() -> list[Any]:
        return [event for event in daemon.event_list() if event.kind == "node.audit_lost"]

    # It looks every few seconds, perhaps between two of the calls; of what came later an event tells a minute later.
    (one,) = eventually(lambda: [one for one in conditions(daemon, log) if "lacks 3 line(s)" in one["reason"]])
    assert one["code"] == "DAEMON_DEGRADED", one
    assert any(str(log) in text and "lacks 3 line(s)" in text for text in warnings(daemon))
    eventually(lambda: sum(int(event.attributes["lines"]) for event in told()) == 3, 120)
    assert all(str(log) in event.message for event in told())
    log.rmdir()
    daemon.run("true", job_id="behind")
    eventually(lambda: log.is_file() and "behind" in log.read_text())
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert (lines[0]["call"], lines[0]["lines"]) == ("LOST", 3) and [line.get("job_id") for line in lines] == [
        None,
        "behind",
    ]
    eventually(lambda: not [text for text in warnings(daemon) if str(log) in text])


@pytest.mark.slow
@pytest.mark.parametrize("made", ["folder", "link"])
def test_a_nursery_log_that_cannot_be_opened(daemon: Daemon, made: str) -> None:
    daemon.run("true", job_id="before")
    daemon.wait("before")
    log = daemon.root.nursery_log

    def put_in_place() -> bool:
        log.unlink(missing_ok=True)
        with contextlib.suppress(FileExistsError):  # the nursery was quicker with a new one
            log.mkdir() if made == "folder" else log.symlink_to("elsewhere")
            return True
        return False

    eventually(put_in_place)
    eventually(lambda: conditions(daemon, log))
    assert any(str(log) in text and "cannot be opened" in text for text in warnings(daemon))
    daemon.run("true", job_id="behind")
    assert daemon.wait("behind").verdict.exit_code == 0
    log.rmdir() if made == "folder" else log.unlink()
    eventually(lambda: not [text for text in warnings(daemon) if str(log) in text])


def test_a_daemon_whose_own_log_cannot_be_written(short_tmp: Path) -> None:
    daemon = Daemon(short_tmp)
    daemon.musterd = ("sh", "-c", 'exec "$0" "$@" 2>/dev/full', BIN / "musterd")
    try:
        daemon.start()
        daemon.run("true", job_id="a")
        assert daemon.wait("a").verdict.exit_code == 0
        (text,) = eventually(lambda: [text for text in warnings(daemon) if text.startswith("stderr: ")])
        assert "No space left on device; the daemon's log lacks" in text
        assert daemon.kill(signal.SIGTERM) == 0
    finally:
        daemon.close()
