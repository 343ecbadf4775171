"""`muster report`: which job, format and file; of what is on disk, whole or damaged, with a daemon or without."""

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from muster.agent.cli.client import knowing
from muster.agent.cli.client.address import Address
from muster.agent.report import on_disk as disk
from muster.agent.report import writing
from muster.agent.report.several import merging
from muster.supervisors.paths import Root
from scripts import sample_reports
from tests.conftest import BIN, Daemon, eventually
from tests.standalone import Run
from tests.unit.supervision import fill, small_disk

MUSTER = str(BIN / "muster")
ROOT = os.geteuid() == 0
MakeDaemon = Callable[..., Daemon]


class Node:
    """Folders of a node whose daemon is down."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.root = folder, Root.under(folder)
        self.env = {name: value for name, value in os.environ.items() if not name.startswith("MUSTER_")}
        self.env |= {"MUSTER_RUNS": str(folder / "runs"), "NO_COLOR": "1", "MUSTER_ROOT": str(folder)}

    def report(self, *words: str, **options: Any) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [MUSTER, "report", *words], env=self.env, capture_output=True, text=True, timeout=100, check=False,
            cwd=self.folder, **options,
        )  # fmt: skip

    def found(self, job: str, form: str = "json") -> Any:
        """The report as the command makes it, in this process."""
        text = anyio.run(sample_reports.reported, self.folder, job, form)
        return json.loads(text) if form == "json" else text


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("node")
    anyio.run(sample_reports.failed, folder)
    return folder


@pytest.fixture
def node(made: Path, tmp_path: Path) -> Node:
    shutil.copytree(made, tmp_path / "n")
    return Node(tmp_path / "n")


JOB = "llama-7b-pretrain"
SUMMARY = "rank 3 (device 3) exited with code 1; 7 other ranks were stopped"


def test_the_default_is_a_file_in_this_folder(node: Node) -> None:
    done = node.report(JOB)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{JOB}-report.html\n", "")
    text = (node.folder / f"{JOB}-report.html").read_text()
    assert SUMMARY in text
    # Nothing outside it is asked for.
    assert not re.search(r"(?:src|href|url\()\s*=?\s*[\"']?(?:https?:|//)", text)


@pytest.mark.parametrize("name", ["a.html", "a.HTM", "a.md", "a.json", "a.yaml"])
def test_the_suffix_of_a_file_chooses_the_format(node: Node, name: str) -> None:
    assert node.report(JOB, "-o", name).stdout == f"{name}\n"
    text = (node.folder / name).read_text()
    begin = {"a.md": "# llama", "a.json": '{\n  "jobId"', "a.yaml": "jobId: llama"}.get(name, "<!DOCTYPE html>")
    assert text.startswith(begin)
    assert SUMMARY in text


def test_a_format_is_printed(node: Node) -> None:
    done = node.report(JOB, "-o", "json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["version"] == 1 and found["jobId"] == JOB
    said = found["said"]
    assert isinstance(said, dict) and said["headline"] == SUMMARY and said["recommendation"] == "RETRY_ELSEWHERE"
    assert f"headline: {SUMMARY}" in node.report(JOB, "-o", "yaml").stdout
    assert node.report(JOB, "-o", "html").stdout.startswith("<!DOCTYPE html>")
    assert not list(node.folder.glob("*.html"))


def test_the_keys_are_those_of_the_reference_page(node: Node) -> None:
    text = Path("docs/reference/report.md").read_text()
    named = set(re.findall(r"`(\w+)`", text))
    found = node.found(JOB)
    keys = set(found)
    for part in ("said", "axis"):
        value = found[part]
        assert isinstance(value, dict)
        keys |= set(value)
    for part in ("attempts", "ranks", "events", "plots", "checks", "cards"):
        value = found[part]
        assert isinstance(value, list) and isinstance(value[0], dict)
        keys |= set(value[0])
    assert keys - named == set()


@pytest.mark.parametrize("output", ["a.txt", "a", "csv", "."])
def test_another_suffix_is_refused(node: Node, output: str) -> None:
    done = node.report(JOB, "-o", output)
    assert done.returncode == 2
    assert ".html, .md, .json or .yaml" in done.stderr


@pytest.mark.slow
def test_a_report_of_the_node_tells_what_runs_and_all_that_is_damaged(daemon: Daemon) -> None:
    daemon.run("sleep", "1000", job_id="runs", ranks=2)
    daemon.until_running("runs")
    daemon.run("false", job_id="fails")
    daemon.wait("fails")
    assert daemon.cli("node", "drain", "a look").returncode == 0
    found = json.loads(daemon.cli("report", "--node", "-o", "json").stdout)
    jobs = {job["jobId"]: (job["state"], job["look"], job["end"] is None) for job in found["jobs"]}
    assert jobs == {"runs": ("RUNNING", "running", True), "fails": ("FAILED", "failed", False)}
    assert [(bar["end"], bar["text"].partition(" drained ")[2]) for bar in found["drains"]] == [
        (None, "the node: a look")
    ]
    assert (
        found["headline"].startswith("The node is drained; ")
        and "2 jobs in 3 days, 1 of them failed" in found["headline"]
    )
    # Of a node that is new, the pictures leave out the days of which nothing is known.
    assert found["axis"]["end"] - found["axis"]["begin"] < 12 * 3600
    named = set(re.findall(r"`(\w+)`", Path("docs/reference/report.md").read_text()))
    assert set(found) | set(found["jobs"][0]) <= named
    assert daemon.cli("report", "--node", "runs").returncode == daemon.cli("report").returncode == 2
    daemon.stop("runs", grace_s=0)
    daemon.kill()
    # Without a daemon, of what is left.
    root = daemon.root
    (root.state / "telemetry.db").write_bytes(b"x" * 5000)
    (root.state / "telemetry.db-wal").unlink(missing_ok=True)
    (root.state / "node.json").write_bytes(b"{")
    journal = root.job("fails").journal
    journal.write_bytes(journal.read_bytes()[:20] + b"\n" + journal.read_bytes()[21:])
    segment = next(path for path in root.events.glob("*.log") if path.stat().st_size)
    segment.write_bytes(segment.read_bytes()[:-30] + b"\0\xff\n")
    done = daemon.cli("report", "--node", "-o", "json")
    assert done.returncode == 0, done.stderr
    missing = "\n".join(json.loads(done.stdout)["unknown"])
    for part in ("telemetry.db", "node.json", "job fails: ", "of the events"):
        assert part in missing, part


def test_the_files_of_several_nodes_become_one_report(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    one = node.found(JOB)
    one["nodeCount"] = 3
    other = json.loads(json.dumps(one).replace("node-17", "node-18"))
    other |= {"nodeRank": 1, "unknown": ["the log is missing"]}
    # It ends two seconds later, since its peer is lost; its clock, and its steps, are others.
    other["said"]["cause"]["kind"] = "peer"
    other["said"]["headline"] = "rank 8 (device 0) exited with code 1"
    for rank in other["ranks"] + other["rankBars"]:
        rank["rank"] += 8
    other["axis"] |= {"begin": one["axis"]["begin"] + 600.0, "end": one["axis"]["end"] + 600.0}
    for name, value in (("b.json", other), ("a.json", one)):
        (node.folder / name).write_text(json.dumps(value))
    done = node.report("--merge", "b.json", "a.json", "-o", "json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["node"] == "node-17, node-18" and found["said"]["headline"] == f"First failed node-17: {SUMMARY}"
    assert [rank["rank"] for rank in found["ranks"]] == list(range(16)) and len(found["rankBars"]) == 16
    assert found["facts"]["on node-18"] == "FAILED: rank 8 (device 0) exited with code 1"
    assert {"node-18: the log is missing", "of 3 nodes of the job 1 have no report here"} <= set(found["unknown"])
    assert any("clocks of the nodes were not compared" in text for text in found["unknown"])
    # The readings of both, on one axis: of the second node those of its first ten minutes are earlier by its clock.
    (util,) = [plot for plot in found["plots"] if plot["name"] == "utilization"]
    names = [series["name"] for series in util["series"]]
    assert len(names) == 16 and names[0].startswith("node-17: card 0") and names[15].startswith("node-18: card 7")
    (before,) = [plot for plot in one["plots"] if plot["name"] == "utilization"]
    axis = found["axis"]
    assert axis["count"] <= 481 and axis["end"] - axis["begin"] >= one["axis"]["end"] - one["axis"]["begin"] + 600.0
    for series, was in ((util["series"][0], before["series"][0]), (util["series"][8], before["series"][0])):
        for name, choose in (("least", min), ("most", max)):
            values = [[v for v in given[name] if v is not None] for given in (series, was)]
            assert choose(values[0]) == choose(values[1])
    shift = [next(n for n, v in enumerate(util["series"][place]["mean"]) if v is not None) for place in (0, 8)]
    assert abs((shift[1] - shift[0]) * axis["step"] - 600.0) <= 2 * axis["step"]
    both = [merging.read(node.folder / name) for name in ("a.json", "b.json")]
    assert "node-18: rank" in writing.text(merging.merged(both), writing.MARKDOWN)
    assert "node-18: card 7" in writing.text(merging.merged(both), writing.HTML)
    with pytest.raises(merging.NotMergeable, match="of the same node"):
        merging.merged([both[0], both[0]])
    (node.folder / "c.json").write_text("{}")
    for name, why in (("c.json", "is not a report"), ("none.json", "cannot be read")):
        with pytest.raises(merging.NotMergeable, match=f"{name}: {why}"):
            merging.read(node.folder / name)
    # A pipe is read until its writer closes it; one without a writer, and a device, are refused.
    read, write = os.pipe()
    with subprocess.Popen(["cat", "a.json"], cwd=node.folder, stdout=write):
        os.close(write)
        assert merging.read(Path(f"/dev/fd/{read}")) == both[0]
    os.close(read)
    os.mkfifo(node.folder / "pipe")
    monkeypatch.setattr(merging, "WRITER_S", 0.01)
    for path, why in ((node.folder / "pipe", "nobody writes into this pipe"), (Path("/dev/zero"), "is neither a file")):
        with pytest.raises(merging.NotMergeable, match=why):
            merging.read(path)


def test_a_job_is_named_by_its_folder_too(node: Node) -> None:
    for place in (str(node.root.job(JOB).folder), str(node.folder), f"{node.folder}/state/jobs/{JOB}/"):
        done = subprocess.run(
            [MUSTER, "report", place, "-o", "json"],
            env=node.env | {"MUSTER_ROOT": "/none"}, capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert json.loads(done.stdout)["said"]["headline"] == SUMMARY
        assert json.loads(done.stdout)["plots"]


@pytest.mark.parametrize("job", ["other", "../jobs", "/none/at/all", "/etc", "", "a" * 300, "-1x"])
def test_a_job_that_does_not_exist(node: Node, job: str) -> None:
    done = node.report("--", job)
    assert done.returncode == 3, done.stderr
    assert done.stderr.startswith("muster: ") and "Traceback" not in done.stderr
    assert not list(node.folder.glob("*report*"))


def test_nothing_is_changed(node: Node) -> None:
    def state() -> dict[str, tuple[int, int]]:
        return {str(p): (p.stat().st_mtime_ns, p.stat().st_size) for p in node.root.state.rglob("*") if p.is_file()}

    before = state()
    assert node.found(JOB)["plots"]
    assert state() == before


def test_the_same_sentences_as_why_and_status(daemon: Daemon) -> None:
    daemon.run("sh", "-c", "echo 'OSError: [Errno 28] No space left on device'; exit 3", job_id="x")
    daemon.explained("x")
    env = os.environ | {"MUSTER_ROOT": str(daemon.folder)}

    def muster(*words: str) -> str:
        return subprocess.run([MUSTER, *words], env=env, capture_output=True, text=True, check=True).stdout

    why = json.loads(muster("why", "x", "-o", "json"))
    found = json.loads(muster("report", "x", "-o", "json"))
    assert found["said"]["headline"] == why["headline"]
    assert found["said"]["cause"]["text"] == why["cause"]["text"]
    assert found["said"]["nextSteps"] == why["nextSteps"]
    status = muster("status", "x")
    assert found["said"]["headline"] in status
    assert f"{found['said']['recommendation']}: {found['said']['reason']}" in status


def test_a_running_job_and_one_that_never_started(daemon: Daemon) -> None:
    daemon.run("sleep", "1000", job_id="runs")
    daemon.until_running("runs")
    env = os.environ | {"MUSTER_ROOT": str(daemon.folder)}
    done = subprocess.run([MUSTER, "report", "runs", "-o", "json"], env=env, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["said"]["state"] == "RUNNING"
    assert found["attempts"][0]["end"] is None
    daemon.run("/no/such/command", job_id="never")
    daemon.wait("never")
    done = subprocess.run(
        [MUSTER, "report", "never", "-o", "html"], env=env, capture_output=True, text=True, check=True
    )
    assert "/no/such/command" in done.stdout


# --- damage -----------------------------------------------------------------------------------------------------------


def _cut(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def test_a_report_names_a_cut_journal_and_shows_the_rest(node: Node) -> None:
    _cut(node.root.job(JOB).journal)
    found = node.found(JOB)  # a torn last line is dropped: the job has not ended
    said = found["said"]
    assert isinstance(said, dict) and said["state"] != "FAILED"
    journal = node.root.job(JOB).journal
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(lines[0] + b"deadbeef nothing\n" + b"".join(lines[2:]))
    said = node.found(JOB)["said"]
    assert isinstance(said, dict) and said["state"] == "LOST"
    assert str(journal) in str(said["headline"]) and str(journal) in str(node.found(JOB)["unknown"])


@pytest.mark.parametrize("what", ["missing", "empty", "garbage", "cut", "later", "folder"])
def test_a_report_names_a_history_that_cannot_be_read(node: Node, what: str) -> None:
    path = node.root.state / "telemetry.db"
    if what == "missing":
        path.unlink()
    elif what == "folder":
        path.unlink()
        path.mkdir()
    elif what == "cut":
        _cut(path)
    elif what == "later":
        import sqlite3

        with sqlite3.connect(path) as database:
            database.execute("PRAGMA user_version = 99")
        database.close()
    else:
        path.write_bytes(b"" if what == "empty" else b"x" * 5000)
    found = node.found(JOB)
    if what == "cut" and found["plots"]:
        return  # what was asked for lies in the first half
    assert found["plots"] == []
    assert sum("telemetry" in str(text) for text in found["unknown"]) == 1
    assert "There are no readings" in node.found(JOB, "html")


def test_damaged_events_and_a_missing_folder(node: Node) -> None:
    (segment,) = [path for path in node.root.events.glob("*.log") if path.stat().st_size]
    data = segment.read_bytes()
    segment.write_bytes(data[:200] + b"\0\xff\n" + data[200:-7])
    found = node.found(JOB)
    assert found["events"] and "of the events cannot be read" in str(found["unknown"])
    node.root.config.write_text("[jobs]\nmax_jobs = 'many'\n")
    shutil.rmtree(node.root.events)
    found = node.found(JOB)
    assert "the configuration cannot be used" in str(found["unknown"])
    assert found["events"] == [] and "cannot read the events" in str(found["unknown"])
    for path in node.root.log.iterdir():
        path.unlink()
    for path in node.root.job(JOB).folder.glob("stacks*"):
        path.write_bytes(b"{")
    (node.root.job(JOB).folder / "stacks-1.json").write_bytes(b"{")
    found = node.found(JOB)
    assert found["said"] and "stacks-1.json: stacks that cannot be read" in str(found["unknown"])


def test_a_clock_that_jumped(node: Node, tmp_path: Path) -> None:
    job = sample_reports.SampleJob(node.folder, "jumped", sample_reports.spec_of("jumped", ("true",)), 0, 2)
    job.begin(5000)
    job.ends(-90_000, 0, "EXITED", 0)
    job.ends(9_000_000, 1, "EXITED", 0)
    job.over(-80_000, "SUCCEEDED", summary="fine")
    shutil.rmtree(node.root.events)
    node.root.events.mkdir()
    anyio.run(job.finish)
    found = node.found("jumped")
    axis = found["axis"]
    assert isinstance(axis, dict) and axis["count"] <= 481 and axis["begin"] < axis["end"]
    assert "the clock of the node went back by 106d04h or more" in str(found["unknown"])
    assert "<svg" in node.found("jumped", "html")


# --- files ------------------------------------------------------------------------------------------------------------


def test_a_full_disk_leaves_the_file_before(node: Node, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "64k") as disk:
        file = disk / "a.html"
        file.write_text("before")
        fill(disk / "full")
        done = node.report(JOB, "-o", str(file))
        assert done.returncode == 1
        assert done.stderr == f"muster: cannot write {file}: No space left on device: name another file with -o\n"
        assert file.read_text() == "before"
        assert sorted(path.name for path in disk.iterdir()) == ["a.html", "full"]


def test_a_file_that_cannot_be_written(node: Node) -> None:
    for file in ("/none/a.html", "/proc/a.html"):
        done = node.report(JOB, "-o", file)
        assert done.returncode == 1 and done.stderr.startswith(f"muster: cannot write {file}: ")
    (node.folder / "dir.html").mkdir()
    assert node.report(JOB, "-o", "dir.html").returncode == 1


def test_a_pipe_is_written_to_and_not_replaced(node: Node) -> None:
    done = node.report(JOB, "-o", "/dev/stdout")
    assert done.returncode == 0 and done.stdout.startswith("<!DOCTYPE html>")


@pytest.mark.skipif(not ROOT, reason="needs root, to be another user")
def test_what_only_the_daemon_may_read_is_its_to_give(node: Node) -> None:
    node.root.state.chmod(0o700)
    address = Address(node.root.socket)
    read_end, write_end = os.pipe()
    if (pid := os.fork()) == 0:  # this interpreter, whose files other users need not reach
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        for what in (lambda: knowing.on_disk(address, JOB), lambda: disk.job(node.root, JOB)):
            try:
                os.write(write_end, f"{what()}\n".encode())
            except Exception as error:
                os.write(write_end, f"{error}\n".encode())
        os._exit(0)
    os.close(write_end)
    with open(read_end) as told:
        lines = told.read().splitlines()
    os.waitpid(pid, 0)
    assert lines == ["None", f"{node.root.job(JOB).folder}: permission denied"]


# --- by itself --------------------------------------------------------------------------------------------------------


def ran(folder: Path, script: str, *options: str, **env: str) -> "subprocess.CompletedProcess[str]":
    (folder / "tmp").mkdir(exist_ok=True)
    alone = {name: value for name, value in os.environ.items() if not name.startswith("MUSTER_")}
    alone |= {"TMPDIR": str(folder / "tmp"), "MUSTER_RUNS": str(folder / "runs"), "NO_COLOR": "1"} | env
    words = ["run", "--standalone", "--skip-check", "--job-id", "x", *options, "--", "sh", "-c", script]
    return subprocess.run([MUSTER, *words], env=alone, capture_output=True, text=True, timeout=100, check=False)


def _named(done: "subprocess.CompletedProcess[str]") -> Path | None:
    found = re.search(r"^muster: the report of the job is (.*)$", done.stderr, re.MULTILINE)
    return Path(found[1]) if found else None


def test_a_failed_standalone_run_writes_its_report_and_names_it(short_tmp: Path) -> None:
    done = ran(short_tmp, "echo hello; exit 3", SECRET="hunter2")
    assert done.returncode == 3
    file = _named(done)
    assert file is not None and file.name == "x-muster-0.html"
    text = file.read_text()
    assert "exited with code 3" in text and "hello" in text and "hunter2" not in text and "SECRET" in text
    assert str(file.with_name("x-proc-rank-0-device-0.txt")) in text, "the log as it lies there now"
    # The kept run can be reported later, by its name and by its folder.
    env = os.environ | {"MUSTER_RUNS": str(short_tmp / "runs"), "MUSTER_ROOT": str(short_tmp / "none")}
    for job in ("x", str(short_tmp / "runs" / "x")):
        later = subprocess.run(
            [MUSTER, "report", job, "-o", "md"], env=env, capture_output=True, text=True, check=False
        )
        assert later.returncode == 0, later.stderr
        assert "exited with code 3" in later.stdout


def test_where_runs_are_not_kept_and_where_logs_stay(short_tmp: Path) -> None:
    file = _named(ran(short_tmp, "exit 3", MUSTER_RUNS=""))
    assert file is not None and file.exists()
    logs = short_tmp / "logs"
    file = _named(ran(short_tmp, "exit 3", "--log-dir", str(logs)))
    assert file == logs / "x-muster-0.html" and file.exists()
    # A later run of the same id that succeeds: nobody takes the report for its own.
    failed_at = int(file.stat().st_mtime)
    assert _named(ran(short_tmp, "true", "--log-dir", str(logs))) is None
    assert [path.name for path in logs.glob("*.html")] == [f"x-muster-0.{failed_at}.html"]


def test_a_link_in_the_place_of_the_report_is_replaced_and_not_followed(short_tmp: Path) -> None:
    logs, precious = short_tmp / "logs", short_tmp / "precious"
    logs.mkdir()
    precious.write_text("mine")
    (logs / "x-muster-0.html").symlink_to(precious)
    assert ran(short_tmp, "exit 3", "--log-dir", str(logs)).returncode == 3
    assert precious.read_text() == "mine"
    assert "exited with code 3" in (logs / "x-muster-0.html").read_text()
    assert not (logs / "x-muster-0.html").is_symlink()
    assert not [path.name for path in logs.iterdir() if path.name.startswith(".")]


def test_a_report_that_cannot_be_written_costs_no_exit_code(short_tmp: Path) -> None:
    (short_tmp / "logs" / "x-muster-0.html").mkdir(parents=True)
    done = ran(short_tmp, "exit 3", "--log-dir", str(short_tmp / "logs"))
    assert done.returncode == 3
    assert f"cannot write the report of this job into {short_tmp}/logs: Is a directory" in done.stderr


def test_no_report_of_a_run_that_succeeded_or_was_stopped(short_tmp: Path) -> None:
    assert _named(ran(short_tmp, "true")) is None
    run = Run(short_tmp, "echo up; while :; do sleep 0.1; done")
    run.wait_up()
    run.send("client", number=signal.SIGINT)
    _, _, told = run.end()
    assert not [line for line in told if "report" in line]
    assert not list(short_tmp.rglob("*.html"))


def _matching(folder: Path, pattern: str) -> list[Path]:
    return list(folder.glob(pattern)) if folder.exists() else []


def test_musterd_writes_the_report_of_each_failed_job(make_daemon: MakeDaemon, tmp_path: Path) -> None:
    folder = tmp_path / "reports"
    daemon = make_daemon(f'[why]\nreport_dir = "{folder}"\nreports_kept = 2\n')
    daemon.run("sh", "-c", "echo late words; exit 4", job_id="bad")
    daemon.run("true", job_id="good")
    daemon.wait("bad")
    daemon.wait("good")
    (file,) = eventually(partial(_matching, folder, "bad-*.html"))
    text = eventually(lambda: text if "late words" in (text := file.read_text()) else "")
    assert "exited with code 4" in text
    assert file.stat().st_mode & 0o777 == 0o640
    assert not list(folder.glob("good*"))
    for name in ("bad2", "bad3"):
        daemon.run("false", job_id=name)
        daemon.wait(name)
        eventually(partial(_matching, folder, f"{name}-*.html"))
    eventually(lambda: len(list(folder.iterdir())) == 2)


def test_a_report_that_cannot_be_written_is_a_warning_of_the_job(make_daemon: MakeDaemon, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    daemon = make_daemon(f'[why]\nreport_dir = "{tmp_path}/file/x"\n')
    daemon.run("false", job_id="bad")
    daemon.wait("bad")
    env = os.environ | {"MUSTER_ROOT": str(daemon.folder)}

    def status() -> str:
        return subprocess.run([MUSTER, "status", "bad"], env=env, capture_output=True, text=True, check=True).stdout

    assert eventually(lambda: text if "report cannot be written" in (text := status()) else "")
