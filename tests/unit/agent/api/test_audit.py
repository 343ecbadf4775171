"""The audit log on a disk that takes half a line."""

import json
import os
import threading
from pathlib import Path

import pytest

from muster.agent.api import audit as audit_module
from muster.agent.api.audit import Audit
from muster.agent.api.own_logs import OwnLogs
from muster.agent.events.event_store import EventStore
from muster.agent.exposition import Page
from muster.probes.checks.result import CheckResult
from muster.supervisors.paths import Root
from muster.supervisors.system import trust
from tests.unit.waiting import until


def test_half_a_line_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "audit.log"
    audit = Audit(path)
    audit.write({"call": "first"})
    audit.settle(60)
    with monkeypatch.context() as full:
        write = os.write
        # As a disk does with its last bytes.
        full.setattr("muster.agent.api.audit.os.write", lambda fd, data: write(fd, data[:10]))
        audit.write({"call": "second"})
        audit.settle(60)
    audit.write({"call": "third"})
    audit.settle(60)
    assert [json.loads(line)["call"] for line in path.read_text().splitlines()] == ["first", "LOST", "third"]


async def test_what_it_lacks_is_a_condition_a_metric_and_an_event_a_minute(tmp_path: Path) -> None:
    root = Root.under(tmp_path)
    root.audit_log.mkdir(parents=True)
    root.events.mkdir(parents=True)
    audit = Audit(root.audit_log)
    found: list[CheckResult] = []
    store = await EventStore.open(root.events, 1 << 20, boot_id="one")
    logs = OwnLogs(root, audit, store, found.append)
    try:
        for count in range(1, 4):
            audit.write({"call": "one"})
            logs.look()
            logs.tell()
            assert f"lacks {count} line(s)" in found[-1].reason and found[-1].device == str(root.audit_log)
            page = Page()
            logs.fill(page)
            assert f"muster_audit_lines_lost_total {count}" in page.text().decode()
        (event,) = [event for event, _ in await store.read(None, 10) if event.kind == "node.audit_lost"]
    finally:
        await store.close()
    assert event.attributes == {"lines": "1", "total": "1"}


def test_no_text_makes_a_line_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    audit = Audit(path)
    audit.write({"says": 'x\n{"call": "forged"}\r\u2028\x85\x1b[2J'})
    audit.settle(60)
    assert path.read_bytes().count(b"\n") == 1 and path.read_text().strip().isprintable()
    assert "forged" in json.loads(path.read_text())["says"]


async def test_a_disk_that_does_not_answer_holds_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "audit.log"
    audit = Audit(path)
    answers, open_logs = threading.Event(), trust.open_logs

    def waiting(folder: Path) -> int:
        assert answers.wait(60)
        return open_logs(folder)

    monkeypatch.setattr(trust, "open_logs", waiting)
    monkeypatch.setattr(audit_module, "STUCK_S", 1e-9)
    monkeypatch.setattr(audit_module, "MAX_WAITING", 2)
    for name in ("first", "second", "third", "fourth"):
        audit.write({"call": name})
    await until(lambda: "does not answer" in audit.trouble)
    assert "2 line(s) wait" in audit.trouble and "2 are only in the daemon's log" in audit.trouble
    assert audit.lost == 2
    answers.set()
    audit.settle(60)
    audit.write({"call": "fifth"})
    audit.settle(60)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["call"], line.get("lines")) for line in lines] == [
        ("first", None), ("second", None), ("LOST", 2), ("fifth", None),
    ]  # fmt: skip
    assert not audit.trouble
