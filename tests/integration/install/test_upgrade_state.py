"""What a release of before, a newer one, or a fault of the disk left in the state folder, under the daemon of today."""

import contextlib
import json
import re
import signal
import sqlite3
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from muster.agent.host import state_folder
from muster.agent.jobs import explained
from muster.agent.node import node_file
from muster.agent.notify import backlog
from muster.agent.reset import reset_file
from muster.agent.telemetry.history import history_db
from muster.probes.hang import resumable
from muster.supervisors import PROTOCOL
from muster.supervisors.model import journal
from muster.v1 import job_pb2, log_pb2, node_pb2, telemetry_pb2
from tests.conftest import FINAL, Daemon, eventually
from tests.integration.install.old_release import LAST, Node, Release, nodes
from tests.unit.notify_receiver import Receiver

DOCS = Path(__file__).parents[3] / "docs/guides/upgrade.md"
MakeNode = Callable[..., Node]
#: These jobs ended on the day the fixture was made, so age or a full disk would remove them.
KEEP = "[jobs]\nkeep_ended_days = 0\n[logs]\nkeep_days = 0\nmin_free_percent = 0\n"

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def make_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeNode]:
    """Nodes with the state and the logs that the last release left."""
    with nodes(lambda: tmp_path_factory.mktemp("root")) as make:

        def left(config: str = "") -> Node:
            node = make(KEEP + config)
            with tarfile.open(LAST / "state.tar.xz") as archive:
                archive.extractall(node.folder, filter="data")
            as_of_a_minute_ago(node)
            return node

        yield left


def as_of_a_minute_ago(node: Node) -> None:
    """History has an hour of single readings, and what waited to be told is dropped after a day."""
    waits = json.loads((node.root.state / "notify.json").read_text())
    with contextlib.closing(sqlite3.connect(node.root.state / "telemetry.db")) as database:
        (newest,) = database.execute("SELECT max(at) FROM fresh").fetchone()
        by = int(time.time() - newest) - 60
        database.execute("UPDATE series SET last = last + ?, born = born + ? * (born > 0)", (by, by))
        # A place in the ring is the time in seconds modulo its length: it was sampled each second.
        database.execute("UPDATE fresh SET at = at + ?, slot = (slot + ?) % 3600", (by, by))
        database.commit()
    for item in waits["waiting"]["webhook"]:
        item["time"] += by
    (node.root.state / "notify.json").write_text(json.dumps(waits))


def sha_of_logs(node: Node) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in node.root.log.glob("*-proc-rank-*.txt")}


@pytest.mark.slow
def test_what_the_last_release_left_is_all_there(make_node: MakeNode) -> None:
    receiver = Receiver()
    node = make_node(f'[notify]\nwebhook = "{receiver.url}"\n')
    logs, began_at = sha_of_logs(node), time.time()
    node.start_new()
    # Jobs, how they ended and why; the one that ran when the node went down is lost.
    states = {job.job_id: job_pb2.JobState.Name(job.state)[10:] for job in (node.wait("interrupted"), *listed(node))}
    failed = dict.fromkeys(("failed", "signalled", "absent", "restarted"), "FAILED")
    assert states == {"good": "SUCCEEDED", "stopped": "STOPPED", "interrupted": "LOST"} | failed
    shown = node.cli("ps", "-a")
    assert shown.returncode == 0 and all(name in shown.stdout for name in states)
    codes = {job.job_id: job.verdict.exit_code for job in listed(node)}
    assert (codes["failed"], codes["signalled"], codes["absent"], codes["restarted"]) == (3, 139, 127, 4)
    assert "rank 1" in node.cli("why", "failed").stdout and "enough" in node.cli("why", "stopped").stdout
    assert node.get("good").spec.labels == {"team": "vision"} and node.get("restarted").attempt == 1

    # Their output, byte for byte.
    assert {name: data for name, data in sha_of_logs(node).items() if name in logs} == logs
    assert node.cli("logs", "good", "-r", "0").stdout == "to stdout\nto stderr\n"
    first = node.cli("logs", "restarted", "-r", "0", "--attempt", "0").stdout
    assert first.startswith("0\n") and "\n1\n" not in first and "1\n" in node.cli("logs", "restarted").stdout
    assert "exited with code 3" in node.cli("logs", "failed", "--job").stdout

    # Events, once each, with the cursors of before.
    kinds = [event.kind for event in node.event_list("good")]
    assert kinds.count("job.accepted") == kinds.count("job.ended") == 1 and kinds.count("rank.exited") == 2
    epoch = (node.root.events / "epoch").read_text().strip()
    began = node.cli("events", "--cursor", f"{epoch}-1", "-o", "json")
    assert began.returncode == 0 and '"good"' in began.stdout, began.stderr

    # The node: its drain, its history, and what waited to be sent.
    drained = node.cli("run", "--", "true")
    assert drained.returncode != 0 and "a fan is loud" in drained.stderr
    request = telemetry_pb2.GetHistoryRequest()
    request.start.FromNanoseconds(int((began_at - 600) * 1e9))
    request.end.FromNanoseconds(int(began_at * 1e9))
    assert node.telemetry.GetHistory(request, timeout=60).series
    eventually(lambda: {body["job"] for body in receiver.bodies} >= set(failed))
    receiver.close()

    # And it goes on.
    node.cli("node", "undrain")
    node.run("sh", "-c", "echo new", job_id="new")
    assert node.wait("new").state == job_pb2.JOB_STATE_SUCCEEDED
    assert node.cli("rm", "failed").returncode == 0 and not node.root.job("failed").folder.exists()
    assert not [text for text in warnings(node) if "damaged" in text]


def listed(node: Node) -> list[job_pb2.Job]:
    return list(node.jobs.List(job_pb2.ListRequest(page_size=100), timeout=60).jobs)


def warnings(node: Node) -> list[str]:
    return list(node.nodes.GetNode(node_pb2.GetNodeRequest(), timeout=60).node.warnings)


#: Whatever is in these can be done without: nothing of a job, of its output or of a drain.
LESS = (
    "faults.json", "settings.json", "telemetry.db", "events/marks", "jobs/good/hang.json", "jobs/good/worker.json",
    "jobs/good/uploaded", "jobs/good/explained.json", "jobs/good/stacks-1.json", "jobs/good/lost", "jobs/good/unborn",
)  # fmt: skip


@pytest.mark.parametrize(
    "rubbish",
    [
        b"",
        b"\xff\xfe\x00{",
        b'{"version": 1, ',
        b'["a", 1]',
        b'{"boot": "\xc3\x28", "cursor": "\xc3\x28", "untold": "\xc3\x28"}',
    ],
    ids=["empty", "binary", "torn", "other", "no-utf8"],
)
def test_rubbish_keeps_no_daemon_from_starting(make_node: MakeNode, rubbish: bytes) -> None:
    node = make_node()
    for name in (*LESS, "node.json", "notify.json"):
        (node.root.state / name).write_bytes(rubbish)
    (segment,) = node.root.events.glob("*.log")
    segment.write_bytes(segment.read_bytes() + rubbish + b"\n")
    for path in node.root.log.glob("good-*.idx"):
        path.write_bytes(rubbish)
    (node.root.log / "good-proc-rank-0-device-0.txt.removed").write_bytes(rubbish)
    node.start_new()
    assert len(listed(node)) == 7
    assert node.cli("logs", "good", "-r", "0").stdout == "to stdout\nto stderr\n"
    assert node.cli("why", "good").returncode == 0
    # What may be wanted is set aside, and somebody is told.
    for name in ("node.json", "notify.json"):
        (aside,) = node.root.state.glob(f"{name}.damaged-*")
        assert aside.read_bytes() == rubbish
        assert [text for text in warnings(node) if aside.name in text], warnings(node)
    node.run("true", job_id="new")
    assert node.wait("new").state == job_pb2.JOB_STATE_SUCCEEDED


@pytest.mark.slow
@pytest.mark.parametrize("name", ["version", "node.json", "notify.json"])
def test_a_newer_format_is_refused_and_left_alone(make_node: MakeNode, name: str) -> None:
    node = make_node()
    path = node.root.state / name
    old = path.read_text()
    # Whatever else there is in it is of another kind than today.
    newer = "muster-state 2\n" if name == "version" else '{"version": 2, "drain": 1, "waiting": [], "cursor": {}}'
    path.write_text(newer)
    with pytest.raises(AssertionError, match=r"musterd ended with 1"):
        node.start_new()
    said = node.stderr.read_text()
    assert said.startswith(f"musterd: {path}: was written by a newer musterd (version ")
    assert "2" in said and "nothing was changed: use the newer musterd, or " in said and "Traceback" not in said
    assert path.read_text() == newer
    path.write_text(old)
    node.start_new()
    assert len(listed(node)) == 7


def test_newer_formats_that_can_be_done_without(make_node: MakeNode) -> None:
    node = make_node()
    database = node.root.state / "telemetry.db"
    with contextlib.closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA user_version = 99")
    before = database.read_bytes()
    hang = {"attempt": [0.0, 0], "state": {"version": 99}, "found": {"verdict": "BORED"}, "more": 1}
    (node.root.job("interrupted").folder / "hang.json").write_text(json.dumps(hang))
    (node.root.state / "settings.json").write_text('{"version": 9, "logs": {"max_file_bytes": "1 GiB", "more": 1}}')
    (node.root.state / "faults.json").write_text('{"version": 9, "cards": {"x": 1}}')
    node.start_new()
    (aside,) = node.root.state.glob("telemetry.db.damaged-*")
    assert aside.read_bytes() == before
    reads = f"is of format 99, this version reads {history_db.FORMAT}"
    assert [text for text in warnings(node) if reads in text], warnings(node)
    assert len(listed(node)) == 7


def test_fields_of_a_newer_release_are_passed_over(make_node: MakeNode) -> None:
    """In each file and record where a release may add some without raising a version."""
    node = make_node()
    more = {"of_a_newer_release": {"a": [1]}}
    for name in ("node.json", "notify.json", "faults.json", "events/marks"):
        path = node.root.state / name
        path.write_text(json.dumps(json.loads(path.read_text()) | more))
    for job in node.root.jobs.iterdir():
        spec = job / "spec.json"
        spec.write_text(json.dumps(json.loads(spec.read_text()) | more))
        records = journal.read(job / "journal").records
        for record in records:
            record |= more
            for part in ("verdict", "usage"):
                if part in record:
                    record[part] |= more
        (job / "journal").write_bytes(b"".join(journal.encode(record) for record in records))
    node.start_new()
    node.wait("interrupted")
    assert not [text for text in warnings(node) if "damaged" in text]
    assert {job.state for job in listed(node)} <= FINAL
    assert node.get("failed").verdict.exit_code == 3
    assert node.get("failed").ranks[1].usage.read_chars
    drained = node.cli("run", "--", "true")
    assert "a fan is loud" in drained.stderr


def test_a_journal_of_another_format_costs_nobody_else_anything(make_node: MakeNode) -> None:
    node = make_node()
    contents = {}
    for name, format_ in (("good", journal.FORMAT - 1), ("failed", journal.FORMAT + 1)):
        path = node.root.job(name).journal
        first, *records = journal.read(path).records
        contents[path] = b"".join(journal.encode(record) for record in (first | {"format": format_}, *records))
        path.write_bytes(contents[path])
    node.start_new()
    told = warnings(node)
    for format_ in (journal.FORMAT - 1, journal.FORMAT + 1):
        text = f"journal of format {format_}, this version reads {journal.FORMAT}"
        assert [one for one in told if text in one], told
    assert node.get("stopped").state == job_pb2.JOB_STATE_STOPPED and len(listed(node)) == 7
    assert all(path.read_bytes() == data for path, data in contents.items())


@pytest.mark.slow
def test_the_way_back_with_rotated_logs(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The last release knows no rotation: it shows what is in the live file, and loses nothing of the rest."""
    last = Release(LAST / "packages.tar.xz", tmp_path)
    lines = "i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i+1)); done; sleep 2; "
    wait = "until [ -e go ]; do sleep 0.05; done; echo last; exit 6"
    with nodes(lambda: tmp_path_factory.mktemp("root")) as make:
        node = make()
        plain, text = node.config.read_text(), "".join(f"line {i}\n" for i in range(20000))
        node.config.write_text(plain + "[logs]\nmax_file_bytes = 65536\n")
        node.start_new()
        node.run("sh", "-c", lines + wait, job_id="job")
        node.until_running("job")
        eventually(lambda: list(node.root.log.glob("job-proc-rank-0-device-0.txt.*")), 60)
        eventually(lambda: _ends_with(node, b"line 19999\n"), 60)
        node.kill(signal.SIGTERM)

        # A setting that it does not know is refused by its name: --check-config says so beforehand.
        with pytest.raises(AssertionError, match=r"ended with 1"):
            node.start_old(last)
        assert "unknown key 'logs'" in node.stderr.read_text()
        node.config.write_text(plain)
        node.start_old(last)
        shown = node.cli("logs", "job")
        assert shown.returncode == 0 and text.endswith(shown.stdout) and len(shown.stdout) < 70000, shown.stderr
        (node.root.job("job").workspace / "device0" / "go").touch()
        assert node.wait("job").verdict.exit_code == 6
        node.kill(signal.SIGTERM)

        node.start_new()
        whole = node.cli("logs", "job")
        assert whole.stdout == text + "last\n", whole.stderr


def _ends_with(node: Daemon, text: bytes) -> bool:
    request = log_pb2.ReadLogsRequest(job_id="job", tail_lines=1)
    return any(text in message.SerializeToString() for message in node.logs.ReadLogs(request, timeout=60))


def test_the_table_in_the_docs_is_that_of_the_code() -> None:
    rows = re.findall(r"^\| `([^`]+)` \|[^|]*\| (\d+) \|", DOCS.read_text(), re.M)
    assert {name: int(number) for name, number in rows} == {
        "<state>/version": int(state_folder.VERSION.split()[1]),
        "jobs/<id>/journal": journal.FORMAT,
        "jobs/<id>/hang.json": resumable.VERSION,
        "jobs/<id>/explained.json": explained.VERSION,
        "<state>/node.json": node_file.VERSION,
        "<state>/reset.json": reset_file.VERSION,
        "<state>/notify.json": backlog.VERSION,
        "<state>/telemetry.db": history_db.FORMAT,
        "jobs/<id>/control": PROTOCOL,
    }
