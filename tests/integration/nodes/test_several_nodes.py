"""`muster run --hosts`: one job on several nodes, which are daemons of this machine."""

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from muster.client import Gang, GangNotStarted, GangPart, connect_blocking
from muster.client.gang import labels_of
from muster.v1 import job_pb2
from tests.conftest import BIN, FINAL, Daemon, alive, eventually
from tests.fakes import build

#: Says where it runs, and waits.
WAITS = 'echo "rank $RANK of $WORLD_SIZE on node $GROUP_RANK"; exec sleep 1000'

#: The same, and ends well when it is asked to end.
SAVES = 'trap "exit 0" TERM; echo "rank $RANK of $WORLD_SIZE on node $GROUP_RANK"; sleep 1000 & wait'


@pytest.fixture(scope="module")
def all_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Daemon]]:
    made = [Daemon(tmp_path_factory.mktemp("n")) for _ in range(3)]
    yield [daemon.start() for daemon in made]
    for daemon in made:
        daemon.close()


@pytest.fixture
def nodes(all_nodes: list[Daemon]) -> Iterator[list[Daemon]]:
    """Of all tests, which leave no job behind."""
    yield all_nodes
    for node in all_nodes:
        for job in jobs(node):
            node.stop(job.job_id, grace_s=0)
            node.jobs.Delete(job_pb2.DeleteRequest(job_id=job.job_id), timeout=60)


@pytest.fixture
def own_nodes(make_daemon: Callable[..., Daemon]) -> list[Daemon]:
    """Of one test, which ends daemons."""
    return [make_daemon() for _ in range(3)]


def hosts(nodes: list[Daemon]) -> list[str]:
    return ["--hosts", ",".join(node.address for node in nodes)]


def muster(*words: str, **fields: Any) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([BIN / "muster", *words], capture_output=True, text=True, timeout=120, check=False, **fields)


@contextmanager
def running(*words: str) -> Iterator["subprocess.Popen[str]"]:
    with subprocess.Popen(
        [BIN / "muster", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def said_by_all(process: "subprocess.Popen[str]", count: int) -> list[str]:
    """The first lines of its output, sorted."""
    assert process.stdout is not None
    return sorted(process.stdout.readline().rstrip("\n") for _ in range(count))


def said_until(process: "subprocess.Popen[str]", text: str) -> str:
    """What it says on stderr, up to the line with this text."""
    assert process.stderr is not None
    told = ""
    while text not in told:
        line = process.stderr.readline()
        assert line, told
        told += line
    return told


def jobs(node: Daemon) -> list[Any]:
    return list(node.jobs.List(job_pb2.ListRequest(), timeout=60).jobs)


def ended(nodes: list[Daemon], job_id: str) -> list[Any]:
    """The parts, once all have ended."""
    eventually(lambda: all(node.get(job_id).state in FINAL for node in nodes), 60, f"all parts of {job_id} have ended")
    return [node.get(job_id) for node in nodes]


def test_one_job_on_three_nodes(nodes: list[Daemon], tmp_path: Path) -> None:
    says = 'echo "$RANK of $WORLD_SIZE, $GROUP_RANK of $GROUP_WORLD_SIZE at $MASTER_ADDR in $PWD"'
    done = muster("run", "-v", *hosts(nodes), "--ranks", "2", "--job-id", "j", "--", "sh", "-c", says, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        f"[node{rank // 2}/{rank}] {rank} of 6, {rank // 2} of 3 at 127.0.0.1 in {tmp_path}" for rank in range(6)
    ]
    assert "job j runs on node0, node1, node2" in done.stderr and "job j SUCCEEDED on 3 nodes" in done.stderr
    parts = [node.get("j") for node in nodes]
    assert len({part.master_port for part in parts}) == 1
    assert [part.spec.labels["muster-gang-part"] for part in parts] == ["0", "1", "2"]


def test_a_part_that_fails_stops_the_others_and_gives_the_verdict(nodes: list[Daemon]) -> None:
    fails = "if [ $RANK = 1 ]; then echo boom; exit 7; fi; exec sleep 1000"
    done = muster("run", *hosts(nodes), "--job-id", "j", "--grace", "1s", "--", "sh", "-c", fails)
    assert done.returncode == 7
    assert "job j FAILED: node1: rank 1 (device 0) exited with code 7" in done.stderr
    (advised,) = re.findall(r"\(muster (why j --address \S+)\)", done.stderr)
    assert "rank 1 (device 0) exited with code 7" in muster(*advised.split()).stdout
    states = [part.state for part in ended(nodes, "j")]
    assert states == [job_pb2.JOB_STATE_STOPPED, job_pb2.JOB_STATE_FAILED, job_pb2.JOB_STATE_STOPPED]
    assert "node1: rank 1 (device 0) exited with code 7" in nodes[0].get("j").verdict.summary


def test_a_restart_is_one_of_all_parts(nodes: list[Daemon]) -> None:
    fails = 'echo "try $TORCHELASTIC_RESTART_COUNT"; [ $RANK != 2 ] || exit 3; exec sleep 1000'
    words = ["--max-restarts", "2", "--restart-backoff", "10ms", "--grace", "1s", "--", "sh", "-c", fails]
    done = muster("run", *hosts(nodes), "--job-id", "j", *words)
    assert done.returncode == 3, done.stderr
    assert "restart 2 of 2 on all 3 nodes" in done.stderr
    assert re.findall(r"\[node2/2\] try (\d)", done.stdout) == ["0", "1", "2"]
    assert [job.job_id for job in jobs(nodes[0])] == ["j.r2", "j.r1", "j"]


def test_what_succeeded_or_was_stopped_or_is_out_of_time_is_not_restarted(nodes: list[Daemon]) -> None:
    words = [*hosts(nodes), "--max-restarts", "2", "--restart-backoff", "0s", "--grace", "60s"]
    done = muster("run", *words, "--job-id", "good", "--", "true")
    assert (done.returncode, done.stderr) == (0, "")
    late = muster("run", *words, "--job-id", "late", "--max-runtime", "200ms", "--", "sleep", "1000")
    assert late.returncode == 124 and "restart" not in late.stderr
    with running("run", *words, "--job-id", "ended", "--", "sh", "-c", WAITS) as run:
        said_by_all(run, 3)
        nodes[1].stop("ended", reason="enough")
        _, told = run.communicate(timeout=60)
    assert run.returncode == 143 and "enough" in told and "restart" not in told
    assert sorted(job.job_id for job in jobs(nodes[0])) == ["ended", "good", "late"]


def test_a_part_of_an_earlier_job_of_this_id_refuses_the_start(nodes: list[Daemon], tmp_path: Path) -> None:
    words = ["run", *hosts(nodes), "--job-id", "j", "--master-port", "25001", "--", "touch"]
    assert muster(*words, str(tmp_path / "began")).returncode == 0
    nodes[1].jobs.Delete(job_pb2.DeleteRequest(job_id="j"), timeout=60)
    (tmp_path / "began").unlink()
    again = muster(*words, str(tmp_path / "began"))
    assert again.returncode == 5 and "has a part of this id already" in again.stderr
    assert not (tmp_path / "began").exists() and not jobs(nodes[1])


def test_taken_up_again_after_its_end_it_blames_the_part_that_failed_first(nodes: list[Daemon]) -> None:
    writes = 'if [ $RANK = 1 ]; then seq 60000; exit 7; fi; trap "exit 1" TERM; sleep 1000 & wait'
    with running("run", *hosts(nodes), "--job-id", "j", "--grace", "1s", "--", "sh", "-c", writes) as run:
        run.communicate(timeout=60)
        assert run.returncode == 7
    again = muster("run", "--attach", "j", *hosts(nodes))
    assert again.returncode == 7 and "FAILED: node1: rank 1" in again.stderr


def test_output_that_nobody_reads_does_not_keep_the_others_running(nodes: list[Daemon]) -> None:
    floods = "yes abcdefgh | head -c 3000000; [ $RANK != 1 ] || exit 5; exec sleep 1000"
    with running("run", *hosts(nodes), "--job-id", "j", "--grace", "1s", "--", "sh", "-c", floods) as run:
        eventually(lambda: all(jobs(node) for node in nodes), 60, "all parts are there")
        ended(nodes, "j")
        _, told = run.communicate(timeout=100)
    assert run.returncode == 5, told


@pytest.mark.slow
def test_a_daemon_that_is_silent_for_a_minute_ends_the_job_on_the_others_and_then_its_own(
    own_nodes: list[Daemon],
) -> None:
    with running("run", *hosts(own_nodes), "--job-id", "j", "--", "sh", "-c", WAITS) as run:
        said_by_all(run, 3)
        os.kill(own_nodes[1].pid, signal.SIGSTOP)
        try:
            told = said_until(run, "trying to stop the part there")
        finally:
            os.kill(own_nodes[1].pid, signal.SIGCONT)
        _, rest = run.communicate(timeout=100)
    assert run.returncode == 125 and "LOST: node1: the daemon has not answered for 60 s" in told
    assert "node1: its part is being stopped" in rest and "may still run" not in rest
    assert all(part.state == job_pb2.JOB_STATE_STOPPED for part in ended(own_nodes, "j"))


@pytest.mark.slow
def test_a_daemon_that_is_away_when_the_job_fails_gets_the_order_to_stop_later(own_nodes: list[Daemon]) -> None:
    with running("run", *hosts(own_nodes), "--job-id", "j", "--grace", "1s", "--", "sh", "-c", WAITS) as run:
        said_by_all(run, 3)
        own_nodes[1].kill()
        os.kill(own_nodes[0].rank_pid("j"), signal.SIGKILL)
        said_until(run, "node1: cannot be stopped now, trying again")
        own_nodes[1].restart()
        _, told = run.communicate(timeout=100)
    assert run.returncode == 137 and "FAILED: node0: rank 0 (device 0) was killed by SIGKILL" in told
    assert ended(own_nodes, "j")[1].state == job_pb2.JOB_STATE_STOPPED


@pytest.mark.parametrize("trouble", ["conflict", "unfit"])
def test_it_starts_everywhere_or_nowhere(nodes: list[Daemon], tmp_path: Path, trouble: str) -> None:
    """No rank of any node begins."""
    command = ["--", "sh", "-c", f"touch {tmp_path}/began.$RANK; exec sleep 1000"]
    words = ["--job-id", "j"]
    if trouble == "conflict":
        nodes[2].run("sleep", "1000", job_id="j")
    else:
        words += ["--cards", "1"]
    before = [jobs(node) for node in nodes[:2]]
    done = muster("run", *hosts(nodes), *words, *command)
    assert done.returncode == 5, done.stderr
    assert "job j was not started on any node" in done.stderr
    assert trouble == "unfit" or "node2: " in done.stderr
    assert "May still exist" not in done.stderr
    assert [jobs(node) for node in nodes[:2]] == before
    assert not list(tmp_path.glob("began.*"))


@pytest.mark.slow
def test_where_a_daemon_does_not_answer_nothing_is_started(own_nodes: list[Daemon], tmp_path: Path) -> None:
    own_nodes[2].kill()
    done = muster("run", *hosts(own_nodes), "--job-id", "j", "--", "touch", str(tmp_path / "began"))
    assert done.returncode == 4, done.stderr
    assert "job j was not started on any node: node2: no daemon answers" in done.stderr
    assert not any(jobs(node) for node in own_nodes[:2]) and not (tmp_path / "began").exists()


@pytest.mark.parametrize(
    ("number", "name", "script", "code"),
    [(signal.SIGINT, "Ctrl-C", WAITS, 143), (signal.SIGTERM, "SIGTERM", SAVES, 0)],
    ids=["Ctrl-C", "SIGTERM"],
)
def test_a_signal_stops_all_parts(
    nodes: list[Daemon], number: signal.Signals, name: str, script: str, code: int
) -> None:
    with running("run", *hosts(nodes), "--job-id", "j", "--grace", "60s", "--", "sh", "-c", script) as run:
        assert said_by_all(run, 3) == [f"[node{i}/{i}] rank {i} of 3 on node {i}" for i in range(3)]
        run.send_signal(number)
        _, told = run.communicate(timeout=60)
    assert run.returncode == code, told  # of the ranks, as on one node
    assert all(part.state == job_pb2.JOB_STATE_STOPPED for part in ended(nodes, "j"))
    assert f"{name}: stopping the job" in told


def test_a_signal_for_ranks_reaches_those_of_all_nodes(nodes: list[Daemon], tmp_path: Path) -> None:
    script = f"trap 'echo saved' USR1; echo up; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done"
    with running("run", *hosts(nodes), "--job-id", "j", "--", "sh", "-c", script) as run:
        said_by_all(run, len(nodes))
        run.send_signal(signal.SIGUSR1)
        said = said_by_all(run, len(nodes))
        (tmp_path / "go").touch()
        _, told = run.communicate(timeout=60)
    assert run.returncode == 0 and sorted(line.split()[-1] for line in said) == ["saved"] * len(nodes)
    for number in range(len(nodes)):
        assert f"muster: node{number}: SIGUSR1 sent to rank {number}" in told


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_between_the_start_and_the_output_stops_all_parts(nodes: list[Daemon], number: signal.Signals) -> None:
    """The command says that the job runs, and nobody reads that yet."""
    read_end, write_end = os.pipe()
    fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, 4096)
    os.write(write_end, bytes(4096))
    words = ["run", "-v", *hosts(nodes), "--job-id", "j", "--", "sh", "-c", WAITS]
    with subprocess.Popen([BIN / "muster", *words], stdout=subprocess.PIPE, stderr=write_end) as run:
        os.close(write_end)
        try:
            eventually(lambda: "pipe" in Path(f"/proc/{run.pid}/wchan").read_text(), 60, "it waits for its reader")
            run.send_signal(number)
            with open(read_end, "rb") as told:
                said = told.read()
            assert run.wait(60) == 143, said
        finally:
            run.kill()
    assert all(part.state == job_pb2.JOB_STATE_STOPPED for part in ended(nodes, "j")), said


def test_a_command_that_is_killed_leaves_the_job_and_another_takes_it_up(nodes: list[Daemon]) -> None:
    with running("run", *hosts(nodes), "--job-id", "j", "--", "sh", "-c", WAITS) as run:
        said_by_all(run, 3)
        run.kill()
    with running("run", "--attach", "j", *hosts(nodes[::-1])) as again:
        assert len(said_by_all(again, 3)) == 3
        pid = nodes[1].rank_pid("j")
        os.kill(pid, signal.SIGKILL)
        _, told = again.communicate(timeout=60)
    assert again.returncode == 137, told
    assert "killed by SIGKILL" in told or "SIGKILL" in told
    assert not alive(pid)
    ended(nodes, "j")


@pytest.mark.slow
def test_a_daemon_that_restarts_is_no_failure(own_nodes: list[Daemon], tmp_path: Path) -> None:
    go = tmp_path / "go"
    waits = f"echo here; until [ -e {go} ]; do sleep 0.05; done; echo there"
    with running("run", *hosts(own_nodes), "--job-id", "j", "--", "sh", "-c", waits) as run:
        said_by_all(run, 3)
        own_nodes[1].kill()
        own_nodes[1].restart()
        go.touch()
        out, told = run.communicate(timeout=100)
    assert run.returncode == 0, told
    assert sorted(out.splitlines()) == [f"[node{i}/{i}] there" for i in range(3)]


def test_parts_of_different_sizes_are_not_started(nodes: list[Daemon], tmp_path: Path) -> None:
    """As `--cards all` makes them where a node lacks a card."""
    with ExitStack() as stack:
        parts = []
        for part, node in enumerate(nodes):
            spec = job_pb2.JobSpec(
                job_id="j",
                command=["touch", f"{tmp_path}/began"],
                ranks=1 if part == 2 else 2,
                node_rank=part,
                node_count=3,
                master_addr="127.0.0.1",
                master_port=25_003,
            )
            parts.append(GangPart(f"n{part}", stack.enter_context(connect_blocking(node.address)), spec))
        with pytest.raises(GangNotStarted, match=r"^n2: its number of ranks is 1, and that of n0 is 2: "):
            Gang(parts).start()
    assert not any(jobs(node) for node in nodes) and not (tmp_path / "began").exists()


class _Interrupted:
    """A call in the middle of which somebody presses Ctrl-C, once."""

    def __init__(self, call: Any) -> None:
        self._call, self._came = call, False

    def future(self, *words: Any, **fields: Any) -> Any:
        made = self._call.future(*words, **fields)
        if self._came:
            return made
        self._came = True
        return SimpleNamespace(result=self._interrupt, cancel=made.cancel)

    def _interrupt(self) -> None:
        raise KeyboardInterrupt


@pytest.mark.parametrize("call", ["Start", "Stop"])
def test_an_interrupted_start_leaves_nothing_and_ends_no_job_of_others(nodes: list[Daemon], call: str) -> None:
    """Ctrl-C comes while the parts are started, or while those are ended that were."""
    nodes[2].run("sleep", "1000", job_id="j")
    nodes[2].until_running("j")
    with ExitStack() as stack:
        clients = [stack.enter_context(connect_blocking(node.address)) for node in nodes]
        spec = job_pb2.JobSpec(job_id="j", command=["true"])
        parts = [GangPart(f"n{part}", client, spec) for part, client in enumerate(clients)]
        setattr(clients[0].jobs, call, _Interrupted(getattr(clients[0].jobs, call)))
        gang = Gang(parts)
        with pytest.raises(KeyboardInterrupt):
            gang.start()
    assert [len(jobs(node)) for node in nodes] == [0, 0, 1]
    assert nodes[2].get("j").state == job_pb2.JOB_STATE_RUNNING
    assert (gang.begun, gang.left) == (False, "")


def test_a_start_whose_command_died_in_it_is_taken_up_again(nodes: list[Daemon]) -> None:
    """It had released one part."""
    for part, node in enumerate(nodes):
        marks = labels_of("j", part, 3, 0)
        node.run("echo", f"part {part}", job_id="j", hold=True, labels=marks, node_rank=part, node_count=3,
                 master_addr="127.0.0.1", master_port=25_002)  # fmt: skip
    eventually(lambda: all(node.get("j").awaits_release for node in nodes), 60, "all wait")
    nodes[1].jobs.Release(job_pb2.ReleaseRequest(job_id="j"), timeout=60)
    again = muster("run", "--attach", "j", *hosts(nodes))
    assert again.returncode == 0, again.stderr
    assert sorted(again.stdout.splitlines()) == [f"[node{part}/{part}] part {part}" for part in range(3)]


def test_a_held_job_begins_when_it_is_released_and_not_before(daemon: Daemon) -> None:
    daemon.run("echo", "begun", job_id="j", hold=True)
    eventually(lambda: daemon.get("j").awaits_release, 60, "it waits")
    daemon.kill()
    daemon.restart()
    eventually(lambda: daemon.get("j").awaits_release, 60, "it still waits")
    assert not daemon.get("j").HasField("started_at")
    daemon.jobs.Release(job_pb2.ReleaseRequest(job_id="j"), timeout=60)
    job = daemon.wait("j")
    assert job.state == job_pb2.JOB_STATE_SUCCEEDED and not job.awaits_release
    assert daemon.output(job, 0) == b"begun\n"
    daemon.jobs.Release(job_pb2.ReleaseRequest(job_id="j"), timeout=60)  # without effect


def test_a_held_job_that_nobody_releases_ends(daemon: Daemon) -> None:
    daemon.run("true", job_id="j", hold=True, ready_timeout={"nanos": 100_000_000})
    job = daemon.wait("j")
    assert job.state == job_pb2.JOB_STATE_FAILED and "was not released within 0.1 s" in job.verdict.summary
    assert job.verdict.recommendation == job_pb2.RECOMMENDATION_RETRY_HERE


def test_a_held_job_can_be_stopped(daemon: Daemon) -> None:
    daemon.run("true", job_id="j", hold=True)
    eventually(lambda: daemon.get("j").awaits_release, 60, "it waits")
    daemon.stop("j")
    assert daemon.get("j").state == job_pb2.JOB_STATE_STOPPED


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--hosts", "unix:/a,unix:/a", "--", "true"], "named twice"),
        (["--hosts", "", "--", "true"], "names no host"),
        (["--hosts", "a:99999", "--", "true"], "--hosts: "),
        (["--hosts", "a", "--", "true"], "TCP needs a certificate"),
        (["--hosts", "unix:/a", "--hosts-file", "x", "--", "true"], "give only one"),
        (["--hosts", "unix:/a", "--standalone", "--", "true"], "not together with --hosts"),
        (["--hosts", "unix:/a", "--node-rank", "1", "--", "true"], "--hosts already names the nodes"),
        (["--hosts-file", "/nonexistent", "--", "true"], "cannot read /nonexistent"),
        (["--hosts", "a@unix:/x,a@unix:/y", "--", "true"], "the name 'a' is given twice"),
        (["--hosts", "a@unix:/x,b@unix:/x", "--", "true"], "is given twice"),
        (["--hosts", "unix:/x", "--job-id", "x" * 126, "--max-restarts", "1", "--", "true"], "at most 128"),
        (["--attach", "j", "--hosts", "unix:/a", "--max-restarts", "1"], "--max-restarts: not with --attach"),
        (["--attach", "j"], "--attach needs --hosts"),
        (
            [
                "--standalone",
                "--nodes",
                "a,b",
                "--node-rank",
                "0",
                "--master-port",
                "9",
                "--max-restarts",
                "1",
                "--",
                "true",
            ],
            "--max-restarts 1: would start the ranks of this node again and not those of the other node",
        ),
        (["--attach", "j", "--hosts", "unix:/a", "--", "true"], "--attach takes no command"),
    ],
)
def test_wrong_options(words: list[str], told: str) -> None:
    done = muster("run", *words)
    assert done.returncode == 2 and told in done.stderr, done.stderr


def test_a_file_of_hosts(nodes: list[Daemon], tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text(f"# my nodes\n\nfirst@{nodes[0].address}\nsecond@{nodes[1].address}  # the other\n")
    done = muster(
        "run", "--hosts-file", str(file), "--master-addr", "127.0.0.1", "--", "sh", "-c", "echo $VC_WORKER_HOSTS"
    )
    assert sorted(done.stdout.splitlines()) == ["[first/0] first,second", "[second/1] first,second"], done.stderr


# --- why --------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_why_names_the_node_that_failed_first(own_nodes: list[Daemon]) -> None:
    fails = (
        'if [ $RANK = 2 ]; then echo "RuntimeError: CUDA error: an illegal memory access was encountered"; exit 1; fi'
    )
    command = ["--", "sh", "-c", f"{fails}; exec sleep 1000"]
    muster("run", "-q", *hosts(own_nodes), "--job-id", "j", "--grace", "1s", "--max-restarts", "1", *command)
    own_nodes[0].kill()
    done = muster("why", "j", *hosts(own_nodes))
    assert done.stdout.startswith("job j: first failed rank 2 on node2 at "), done.stdout + done.stderr
    assert "a GPU kernel accessed memory" in done.stdout.splitlines()[0]
    assert "node0: no daemon at" in done.stdout and "node1: STOPPED" in done.stdout
    found = json.loads(muster("why", "j", *hosts(own_nodes), "-o", "json").stdout)
    assert [one["node"] for one in found["first"]] == ["node2"]
    assert found["first"][0]["report"]["jobId"] == "j.r1"
    for word in ("why", "report"):
        unknown = muster(word, "none", *hosts(own_nodes))
        assert unknown.returncode == 3 and "no report of job none" in unknown.stderr
    done = muster("report", "j", *hosts(own_nodes), "-o", "json")
    assert done.returncode == 0 and "the report lacks a node: node0: no daemon at" in done.stderr, done.stderr
    report = json.loads(done.stdout)
    assert report["jobId"] == "j.r1" and report["node"] == "node1, node2"
    assert report["said"]["headline"].startswith("First failed node2: ")
    assert "of 3 nodes of the job 1 have no report here" in report["unknown"]


#: Gives what it runs an /etc of its own, in which all programs have a library loaded first.
PRELOADED = """
mount -t tmpfs tmpfs "$1" && mkdir "$1/upper" "$1/work" && cp "$2" "$2.offset" "$1" &&
echo "$1/${2##*/}" > "$1/upper/ld.so.preload" &&
mount -t overlay overlay -o "lowerdir=/etc,upperdir=$1/upper,workdir=$1/work" /etc && shift 2 && exec "$@"
"""


def with_clock(folder: Path, ahead: int) -> list[str | Path]:
    """What runs a command whose clock, and that of all that it starts, is so many seconds ahead of this machine's."""
    (folder / "own").mkdir(parents=True)
    try:
        library = Path(shutil.copy(build.library("clock"), folder))
    except build.NoCompiler as error:
        pytest.skip(str(error))
    Path(f"{library}.offset").write_bytes(ahead.to_bytes(8, "little", signed=True))
    command: list[str | Path] = ["unshare", "-m", "sh", "-c", PRELOADED, "sh", folder / "own", library]
    tried = subprocess.run([*command, "true"], capture_output=True, text=True, timeout=60, check=False)
    if tried.returncode:
        pytest.skip(f"needs mounts of its own: {tried.stderr}")
    return command


def test_why_finds_the_replicas_of_a_torchx_app(nodes: list[Daemon]) -> None:
    """Each is a job with an id of its own, and a node may have several."""
    for replica, (node, script) in enumerate(
        ((nodes[0], "exec sleep 1000"), (nodes[0], "exit 7"), (nodes[1], "exit 0"))
    ):
        node.run("sh", "-c", script, job_id=f"app-{replica}", labels={"torchx-app": "app"}, node_rank=0)
    nodes[0].run("true", job_id="other", labels={"torchx-app": "app"})  # anybody may write a label
    nodes[0].wait("app-1")
    nodes[0].stop("app-0", grace_s=0)
    nodes[1].wait("app-2")
    found = json.loads(muster("why", "app", "-o", "json", *hosts(nodes)).stdout)
    (first,) = found["first"]
    assert (first["node"], first["report"]["verdict"]["exitCode"]) == ("node0", 7)
    others = [(one["node"], (one["report"] or {}).get("state")) for one in found["others"]]
    assert sorted(others, key=str) == [
        ("node0", "JOB_STATE_STOPPED"),
        ("node1", "JOB_STATE_SUCCEEDED"),
        ("node2", None),
    ]


@pytest.mark.slow
def test_why_compares_the_clocks_of_the_nodes(make_daemon: Callable[..., Daemon], tmp_path: Path) -> None:
    """By the nodes' own times the one that failed last was the first, twelve seconds before the other."""
    late, early = (make_daemon(by=with_clock(tmp_path / str(ahead), ahead)) for ahead in (-5, 7))
    late.run("sh", "-c", f"until [ -e {tmp_path}/go ]; do sleep 0.02; done; sleep 1; exit 3", job_id="j")
    early.run("sh", "-c", "exit 3", job_id="j")
    early.wait("j")
    (tmp_path / "go").touch()
    ends = [node.wait("j").ended_at.ToNanoseconds() for node in (late, early)]
    assert ends[0] < ends[1]
    done = muster("why", "j", *hosts([late, early]))
    assert done.stdout.startswith("job j: first failed rank 0 on node1 at "), done.stdout + done.stderr
    assert re.search(r"the clock of node1 is [67]\.\d s ahead of this node's", done.stdout)
    assert re.search(r"the clock of node0 is [45]\.\d s behind this node's", done.stdout)
