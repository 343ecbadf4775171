"""`muster logs` and its services against a real daemon: no byte lost or doubled by dead, slow or rude peers."""

import asyncio
import datetime
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio

from muster.agent.cli.client import follow
from muster.agent.cli.client.address import Address
from muster.agent.cli.client.calls import DaemonConnection
from muster.agent.logs import labels, logs_in_place
from muster.v1 import job_pb2, log_pb2, log_pb2_grpc
from tests.conftest import Daemon, eventually
from tests.integration.api.test_cli import MUSTER, environment, started

#: Writes numbered lines of many lengths, half of them in two pieces, some of them binary, until the file argv[1] is
#: there; then says in argv[2] followed by its rank how many they were. `line` of this module is what it writes.
WRITER = """
import os, sys, time
number = 0
while not os.path.exists(sys.argv[1]) or number < 1000:
    data = b"%s:%d:" % (os.environ["RANK"].encode(), number) + b"\\xff\\x00\\r" * (number * 7919 % 500) + b"\\n"
    cut = number * 31 % len(data)
    os.write(1, data[:cut])
    os.write(1, data[cut:])
    number += 1
    if number % 100 == 0:
        time.sleep(0.05)
with open(sys.argv[2] + os.environ["RANK"], "w") as file:
    file.write(str(number))
"""


def line(rank: int, number: int) -> bytes:
    return b"%d:%d:" % (rank, number) + b"\xff\x00\r" * (number * 7919 % 500) + b"\n"


class Writing:
    """A job of `ranks` that write until `end`."""

    def __init__(self, daemon: Daemon, folder: Path, job_id: str, ranks: int) -> None:
        self.daemon = daemon
        self.job_id = job_id
        self._enough = folder / f"{job_id}-enough"
        self._said = folder / f"{job_id}-said-"
        daemon.run("python3", "-c", WRITER, str(self._enough), str(self._said), job_id=job_id, ranks=ranks)
        self._ranks = ranks

    def end(self) -> list[bytes]:
        """What each rank has written."""
        self._enough.touch()
        self.daemon.wait(self.job_id)
        counts = [int(Path(f"{self._said}{rank}").read_text()) for rank in range(self._ranks)]
        return [b"".join(line(rank, number) for number in range(count)) for rank, count in enumerate(counts)]


class Reading:
    """`muster ARGS` whose stdout is read as it comes."""

    def __init__(self, daemon: Daemon, *args: str) -> None:
        self.process = subprocess.Popen(
            [MUSTER, *args],
            env=environment(daemon),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.data = bytearray()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        while data := os.read(self.process.stdout.fileno(), 1 << 20):
            self.data += data

    def more(self, count: int = 100_000) -> None:
        """Returns when so many bytes more have come."""
        goal = len(self.data) + count
        eventually(lambda: len(self.data) >= goal, 60, f"{count} bytes more; {self.process.poll()=}")

    def until(self, wanted: bytes) -> None:
        eventually(lambda: wanted in self.data, 60, f"{wanted!r} in {bytes(self.data[-500:])!r}")

    def end(self, kill: bool = False, expected: int = 0) -> bytes:
        """All of it, and stderr; killed first, or ended by itself with the code that is `expected`."""
        if kill:
            self.process.kill()
        code = self.process.wait(60)
        self._thread.join(60)
        assert self.process.stderr is not None
        self.stderr = self.process.stderr.read().decode()
        self.process.stdout.close()  # type: ignore[union-attr]
        self.process.stderr.close()
        assert kill or code == expected, self.stderr
        return bytes(self.data)


def request(**fields: Any) -> log_pb2.ReadLogsRequest:
    return log_pb2.ReadLogsRequest(job_id="x", follow=True, **fields)


def unlabelled(shown: bytes, label: bytes) -> bytes:
    """The lines behind a label."""
    prefix = b"[" + label + b"] "
    return b"".join(line[len(prefix) :] for line in shown.splitlines(True) if line.startswith(prefix))


def split(shown: bytes) -> bytes:
    """As `unlabelled` wants it: bytes.splitlines also splits at a carriage return."""
    return shown.replace(b"\r", b"\x01")


@pytest.fixture
def rotating(make_daemon: Callable[..., Daemon]) -> Daemon:
    return make_daemon("[logs]\nmax_file_bytes = 1048576\n")


def restart(daemon: Daemon, reading: Reading) -> None:
    daemon.kill(signal.SIGKILL)
    daemon.restart()
    reading.more()


# --- no byte lost or doubled ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_one_rank_is_followed_byte_for_byte_over_kills_of_the_daemon(rotating, tmp_path):
    writing = Writing(rotating, tmp_path, "x", 1)
    reading = Reading(rotating, "logs", "-f", "x")
    reading.more(1_500_000)
    for _ in range(3):
        restart(rotating, reading)
    [written] = writing.end()
    assert reading.end() == written
    # Nothing but that it waits, where a daemon is away for more than a second.
    assert all(line.startswith("muster: waiting up to 60 s for a daemon at ") for line in reading.stderr.splitlines())
    assert len(written) > 500_000
    assert list(rotating.root.log.glob("x-proc-rank-0-*.txt.*")), "it was rotated meanwhile"


@pytest.mark.slow
def test_several_ranks_are_followed_line_for_line_over_kills_of_the_daemon(rotating, tmp_path):
    writing = Writing(rotating, tmp_path, "x", 3)
    reading = Reading(rotating, "logs", "-f", "x")
    reading.more()
    for _ in range(2):
        restart(rotating, reading)
    os.kill(rotating.supervisor_pid("x"), signal.SIGKILL)
    reading.until(b"job.taken_over: a supervisor")
    written = writing.end()
    shown = split(reading.end())
    for rank in range(3):
        assert unlabelled(shown, b"rank %d" % rank) == split(written[rank])
    told = unlabelled(shown, b"muster").decode()
    assert [kind for kind in ("job.accepted", "job.taken_over") if told.count(kind) != 1] == []
    assert unlabelled(shown, b"job").count(b"SUCCEEDED") == 1
    assert sum(shown.count(b"[" + label) for label in (b"rank", b"muster", b"job")) >= shown.count(b"\n")


def test_nothing_is_lost_behind_a_tail_of_no_lines(daemon, tmp_path):
    """Nothing was shown yet when the daemon died: reading goes on where it was to begin all the same."""
    go = tmp_path / "go"
    script = f"echo before; while ! [ -e {go} ]; do sleep 0.02; done; echo first; sleep 1; echo last"
    daemon.run("sh", "-c", script, job_id="x")
    job = daemon.until_running("x")
    eventually(lambda: daemon.output(job) == b"before\n")
    begun = threading.Event()
    shown: list[bytes] = []

    class Noticed(DaemonConnection):
        def stream(self, method: Any, request: Any, **how: Any) -> Iterator[Any]:
            for message in super().stream(method, request, **how):
                yield message
                begun.set()

    def read() -> None:
        follow.read(connection, request(tail_lines=0), labels.Raw(shown.append))

    connection = Noticed(Address(daemon.root.socket))
    reader = threading.Thread(target=read)
    reader.start()
    assert begun.wait(60)
    daemon.kill(signal.SIGKILL)
    go.touch()
    eventually(lambda: daemon.output(job).startswith(b"before\nfirst\n"))
    daemon.restart()
    reader.join(60)
    connection.close()
    assert b"".join(shown) == b"first\nlast\n"


@pytest.mark.slow
def test_a_node_is_followed_over_a_kill_and_new_jobs_are(daemon, tmp_path):
    first = Writing(daemon, tmp_path, "first", 2)
    reading = Reading(daemon, "logs", "--node", "-f")
    reading.more()
    restart(daemon, reading)
    second = Writing(daemon, tmp_path, "second", 1)
    reading.until(b"[second/0] 0:999:")
    written = {"first": first.end(), "second": second.end()}
    daemon.run("echo", "new", job_id="third")
    for label in ("first/job", "second/job", "third/0"):
        reading.until(f"\n[{label}] ".encode())
    eventually(lambda: reading.data.count(b"SUCCEEDED: ") == 3)
    shown = split(reading.end(kill=True))
    for job_id, outputs in written.items():
        for rank, output in enumerate(outputs):
            assert unlabelled(shown, f"{job_id}/{rank}".encode()) == split(output)
        assert unlabelled(shown, f"{job_id}/job".encode()).count(b"SUCCEEDED") == 1
    told = unlabelled(shown, b"muster").decode()
    assert told.count("first job.accepted") == told.count("second job.accepted") == 1
    assert told.count("node.started") == 2


# --- what is shown ----------------------------------------------------------------------------------------------------


def until_indexed(daemon: Daemon, job_id: str, rank: int) -> None:
    """Returns once the time index knows of the rank's first output."""
    eventually(lambda: any(path.stat().st_size for path in daemon.root.log.glob(f"{job_id}-proc-rank-{rank}-*.idx")))


@pytest.fixture(scope="module")
def ended(shared: Daemon) -> Daemon:
    """With a job `two` of two ranks that has ended."""
    go = shared.folder / "two-go"
    script = f"echo one $RANK; until [ -e {go} ]; do sleep 0.02; done; sleep 0.5; "
    script += "echo two $RANK; head -c 200000 /dev/zero | tr '\\0' x; echo; printf end"
    shared.run("sh", "-c", script, ranks=2, job_id="two")
    shared.run("true", job_id="silent")
    for rank in range(2):
        until_indexed(shared, "two", rank)
    go.touch()  # what comes now is half a second younger for the time index, too, however late the supervisor reads
    shared.wait("two")
    shared.wait("silent")
    return shared


@pytest.mark.slow
def test_events_are_shown_among_several_ranks_only(ended):
    assert "\n[muster] " in "\n" + ended.cli("logs", "two").stdout
    for args in (["--no-events"], ["-r", "0"], ["-r", "0", "-r", "1"], ["--job"], ["--attempt", "0"], ["--no-label"]):
        assert "[muster] 20" not in ended.cli("logs", "two", *args).stdout
    assert "node.started" in ended.cli("logs", "--node").stdout
    assert "node.started" not in ended.cli("logs", "--node", "--no-events").stdout


def test_grep(ended):
    assert ended.cli("logs", "two", "--grep", "^TWO", "--ignore-case").stdout.split("\n")[:-1] in (
        ["[rank 0] two 0", "[rank 1] two 1"],
        ["[rank 1] two 1", "[rank 0] two 0"],
    )
    assert ended.cli("logs", "two", "-r", "0", "--grep", "xxx").stdout == "x" * 200_000 + "\n"
    assert ended.cli("logs", "two", "-r", "1", "--grep", "end$").stdout == "end\n"
    assert "SUCCEEDED" in ended.cli("logs", "two", "--grep", "SUCCEEDED").stdout
    assert ended.cli("logs", "two", "--grep", "nowhere").stdout == ""


def test_only_lines_that_may_match_travel(ended):
    """The daemon sends no other line, and says how far it has searched."""
    wanted = log_pb2.LineFilter(any_of=[log_pb2.LineParts(parts=[b"two", b"0"]), log_pb2.LineParts(parts=[b"end"])])
    *messages, last = ended.read_logs("two", lines=wanted)
    lines = {rank: b"".join(m.data for m in messages if m.rank == rank) for rank in range(2)}
    assert lines == {0: b"two 0\nend", 1: b"end"}
    for rank in ended.get("two").ranks:
        mine = [message for message in messages if message.rank == rank.rank]
        assert [message.offset for message in mine] == [0, *(message.next_offset for message in mine[:-1])]
        assert mine[-1].next_offset == Path(rank.log_path).stat().st_size
    assert last.eof
    # Behind the first line, in the middle of "two 0": the reader may have its beginning.
    messages = ended.read_logs("two", ranks=[0], offsets={0: 8}, lines=wanted)
    assert b"".join(message.data for message in messages) == b"o 0\nend"
    with pytest.raises(grpc.RpcError, match=r"lines.any_of\[0\].parts: 0 parts"):
        ended.read_logs("two", lines=log_pb2.LineFilter(any_of=[log_pb2.LineParts()]))


def test_a_reader_that_sees_the_files_gets_the_place_of_the_output(ended):
    """Where that is much: the rest travels."""
    [rank, _] = ended.get("two").ranks
    log = Path(rank.log_path)
    size = log.stat().st_size
    folder = logs_in_place.identity(log.parent)
    assert folder is not None
    named, last = ended.read_logs("two", folder=folder, ranks=[0], without_times=True)
    assert (named.in_file, named.data, named.offset, named.next_offset) == (True, b"", 0, size)
    assert last.eof
    [travels, _] = ended.read_logs("two", folder=folder, ranks=[0], without_times=True, offsets={0: size - 9})[-2:]
    assert (travels.in_file, travels.data) == (False, log.read_bytes()[-9:])
    folder.inode += 1
    *messages, last = ended.read_logs("two", folder=folder, ranks=[0])
    assert sum(len(message.data) for message in messages) == size


def test_what_is_read_in_place_and_cannot_be_any_more_is_read_by_the_daemon(ended, monkeypatch):
    """Where the files are seen and not, in the middle of reading: the same bytes."""
    whole = ended.cli("logs", "two", "-r", "0").stdout.encode()
    shown: list[bytes] = []
    seen = logs_in_place.LogsInPlace.read

    def half(self: logs_in_place.LogsInPlace, named: log_pb2.ReadLogsResponse, source: str) -> Iterator[Any]:
        for part, data in seen(self, named, source):
            part.next_offset = part.offset + len(data) // 2
            yield part, data[: len(data) // 2]
            raise logs_in_place.NotInPlace

    monkeypatch.setattr(logs_in_place.LogsInPlace, "read", half)
    asked = log_pb2.ReadLogsRequest(job_id="two", ranks=[0], without_times=True)
    connection = DaemonConnection(Address(ended.root.socket, True))
    place = logs_in_place.LogsInPlace.seen(ended.get("two"), asked)
    assert place is not None
    last = follow.read(connection, asked, labels.Raw(shown.append), place)
    connection.close()
    assert (b"".join(shown), last.eof, len(shown) > 1) == (whole, True, True)


@pytest.mark.slow
def test_a_search_is_followed_line_for_line_over_kills_of_the_daemon(rotating, tmp_path):
    writing = Writing(rotating, tmp_path, "x", 2)
    one = Reading(rotating, "logs", "-f", "x", "-r", "1", "--grep", "^1:[0-9]*7:")
    all_ranks = Reading(rotating, "logs", "-f", "x", "--grep", "(0|1):[0-9]*7:", "--no-events")
    node = Reading(rotating, "logs", "-f", "--node", "--grep", "(0|1):[0-9]*7:", "--no-events")
    one.more(300_000)
    for _ in range(2):
        rotating.kill(signal.SIGKILL)
        rotating.restart()
        for reading in (one, all_ranks, node):
            reading.more()
    written = writing.end()
    sought = [
        b"".join(line for line in split(each).splitlines(True) if re.match(rb"\d:\d*7:", line)) for each in written
    ]
    assert split(one.end()) == sought[1]
    shown = split(all_ranks.end())
    assert [unlabelled(shown, b"rank %d" % rank) for rank in range(2)] == sought
    eventually(lambda: [unlabelled(split(bytes(node.data)), b"x/%d" % rank) for rank in range(2)] == sought)
    node.end(kill=True)


def test_by_time(ended):
    whole = ended.cli("logs", "two", "-r", "0").stdout
    stamped = ended.cli("logs", "two", "-r", "0", "--timestamps").stdout.splitlines()
    assert [stamp[25:] + "\n" for stamp in stamped] == (whole + "\n").splitlines(True)
    assert all(re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z ", stamp) for stamp in stamped)
    first = datetime.datetime.fromisoformat(stamped[0].split()[0]) + datetime.timedelta(seconds=0.2)
    assert ended.cli("logs", "two", "-r", "0", "--until", first.isoformat()).stdout == "one 0\n"
    assert ended.cli("logs", "two", "-r", "0", "--until", "10m").stdout == ""
    assert ended.cli("logs", "two", "-r", "0", "--since", "10m", "--until", "0s").stdout == whole
    assert ended.cli("logs", "two", "--since", "2100-01-01T00:00:00Z").stdout == ""


@pytest.mark.parametrize("what", ["a link", "a folder", "nothing"])
def test_output_is_read_without_a_time_index(daemon: Daemon, what: str):
    """It may be deleted at any time, and somebody may have put something else there."""
    daemon.run("sh", "-c", "echo $RANK", ranks=2, job_id="x")
    daemon.wait("x")
    index = next(daemon.root.log.glob("x-proc-rank-1-*.idx"))
    index.unlink()
    if what == "a link":
        index.symlink_to("/etc/passwd")
    elif what == "a folder":
        index.mkdir()
    done = daemon.cli("logs", "x")
    assert done.returncode == 0 and {"[rank 0] 0", "[rank 1] 1"} < set(done.stdout.splitlines()), done
    done = daemon.cli("logs", "x", "-r", "1", "--since", "1h")
    assert (done.returncode, done.stdout) == (0, "1\n"), done


@pytest.mark.slow
def test_following_up_to_a_time_ends_before_the_job(daemon):
    daemon.run("sh", "-c", "echo here; sleep 3600", job_id="x")
    job = daemon.until_running("x")
    eventually(lambda: daemon.output(job) == b"here\n")
    until_indexed(daemon, "x", 0)
    soon = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 2))
    done = daemon.cli("logs", "-f", "x", "--until", soon)
    assert (done.returncode, done.stdout) == (0, "here\n")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "give a JOB, or --node"),
        (["two", "--node"], "not both"),
        (["--node", "-r", "0"], "--node shows all jobs"),
        (["--node", "--job"], "--node shows all jobs"),
        (["two", "--grep", "("], "not a regular expression"),
        (["two", "--ignore-case"], "needs --grep"),
        (["two", "--until", "soon"], "neither a duration"),
        (["two", "--since", "1m", "--until", "2m"], "is before `since`"),
        (["two", "-r", "7"], "the ranks of this job on this node are 0 to 1"),
    ],
)
def test_what_makes_no_sense_is_refused(ended, args, said):
    done = ended.cli("logs", *args)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


def test_a_job_that_never_wrote(ended):
    for args in ([], ["-f"], ["--tail", "5"], ["--since", "1h"], ["--timestamps", "--grep", "x"]):
        done = ended.cli("logs", "silent", *args)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_an_offset_beyond_the_end_says_where_that_is(ended):
    def failure(**fields: Any) -> tuple[grpc.StatusCode, str]:
        with pytest.raises(grpc.RpcError) as failed:
            ended.read_logs("two", **fields)
        assert isinstance(failed.value, grpc.Call)
        return failed.value.code(), failed.value.details() or ""

    size = Path(ended.get("two").ranks[0].log_path).stat().st_size
    code, text = failure(offsets={0: size + 5})
    assert code is grpc.StatusCode.OUT_OF_RANGE
    assert f"rank 0: offset {size + 5} is" in text
    assert f" {size}" in text
    code, text = failure(job_log=log_pb2.JOB_LOG_INCLUDED, job_offset=1 << 40)
    assert code is grpc.StatusCode.OUT_OF_RANGE
    assert "the job's own log: offset" in text
    assert failure(events=True, event_cursor="nonsense")[0] is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("how", ["truncated", "deleted"])
def test_a_file_that_a_user_takes_away_while_it_is_followed(daemon, tmp_path, how):
    go = tmp_path / "go"
    script = f"echo before; while ! [ -e {go} ]; do sleep 0.02; done; echo after"
    daemon.run("sh", "-c", script, job_id="x")
    job = daemon.until_running("x")
    reading = Reading(daemon, "logs", "-f", "x")
    reading.until(b"before\n")
    path = Path(job.ranks[0].log_path)
    if how == "truncated":
        os.truncate(path, 0)
        time.sleep(0.5)  # else it may have grown again before anybody looks
    else:
        path.unlink()
    eventually(lambda: daemon.cli("logs", "x").stdout == "")
    go.touch()
    shown = reading.end(expected=1)
    assert shown.startswith(b"before\n")
    if how == "truncated":
        assert shown == b"before\nafter\n"
    assert f"7 bytes of the output of rank 0 are missing: somebody {how} the file" in reading.stderr


def test_a_job_that_is_removed_while_it_is_followed(daemon):
    daemon.run("sh", "-c", "echo here; sleep 3600", job_id="x")
    with started(daemon, "logs", "-f", "x") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"here\n"
        assert daemon.cli("rm", "-f", "x").returncode == 0
        assert process.wait(60) in (0, 3)  # its end was seen, or it was gone by then


@pytest.mark.slow
def test_binary_output_and_a_line_of_100_mb_do_no_harm(daemon):
    script = "import os\nfor _ in range(1600): os.write(1, bytes(range(1, 9)) * 8192)\nos.write(1, b'\\nend\\n')"
    daemon.run("python3", "-c", script, ranks=2, job_id="x")
    daemon.wait("x", 120)
    long = bytes(range(1, 9)) * 8192 * 1600
    command = f"ulimit -v 4000000; exec {MUSTER} logs x --no-events --grep '^end|\\x01'"
    env = environment(daemon)
    done = subprocess.run(["sh", "-c", command], capture_output=True, env=env, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    for rank in (b"0", b"1"):
        prefix = b"[rank " + rank + b"] "
        mine = [line[len(prefix) :] for line in done.stdout.split(b"\n") if line.startswith(prefix)]
        assert mine[-1] == b"end"
        assert b"".join(mine[:-1]) == long


# --- slow, rude and many clients --------------------------------------------------------------------------------------


FLOOD = "import os\nwhile True: os.write(1, b'x' * 65535 + b'\\n')"


def memory(daemon: Daemon) -> int:
    """Bytes that the daemon has resident."""
    return int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{daemon.pid}/status").read_text())[1]) * 1024  # type: ignore[index]


@pytest.mark.slow
def test_followers_that_do_not_read_cost_nobody_anything(make_daemon):
    daemon = make_daemon("[logs]\nmax_job_bytes = 67108864\nmax_file_bytes = 8388608\n")
    daemon.run("python3", "-c", FLOOD, job_id="x")
    job = daemon.until_running("x")
    before = memory(daemon)
    stuck = [daemon.logs.ReadLogs(request()) for _ in range(50)]
    try:
        for stream in stuck:
            next(stream)  # open, and then no more
        read = 0
        for message in daemon.logs.ReadLogs(request(tail_lines=1)):
            read += len(message.data)
            if read > 50_000_000:
                break
        assert daemon.get("x").state == job.state
        assert daemon.stop("x", grace_s=0).ended
        assert memory(daemon) - before < 150 << 20
    finally:
        for stream in stuck:
            stream.cancel()


@pytest.mark.slow
def test_a_client_that_opens_1000_streams_is_limited_and_a_stop_gets_through(daemon):
    daemon.run("python3", "-c", "import time\nwhile True: print('x', flush=True); time.sleep(0.05)", job_id="x")
    daemon.until_running("x")
    streams = [daemon.logs.ReadLogs(request()) for _ in range(1000)]
    try:
        refused: list[tuple[grpc.StatusCode, str]] = []
        for stream in streams:
            try:
                next(stream)
            except grpc.RpcError as error:
                assert isinstance(error, grpc.Call)
                refused.append((error.code(), error.details() or ""))
        assert len(refused) == 1000 - 256
        assert {code for code, _ in refused} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
        assert f"too many readers of logs at {daemon.root.socket}: the limit is 256" in refused[0][1]
        assert daemon.get("x").state == job_pb2.JOB_STATE_RUNNING
        assert daemon.stop("x", grace_s=0).ended
        open_ones = [stream for stream in streams if stream.is_active()]
        for stream in open_ones:
            assert list(stream)[-1].eof
    finally:
        for stream in streams:
            stream.cancel()


def test_200_followers_all_get_everything(daemon):
    script = "import os, time\nfor i in range(100):\n os.write(1, b'%8d' % i * 1250 + b'\\n'); time.sleep(0.01)"
    daemon.run("python3", "-c", script, job_id="x")
    expected = b"".join(b"%8d" % i * 1250 + b"\n" for i in range(100))

    async def follow(channel: aio.Channel) -> bytes:
        data, last = bytearray(), None
        async for last in log_pb2_grpc.LogServiceStub(channel).ReadLogs(request()):
            assert last.eof or last.offset == len(data)
            data += last.data
        assert last is not None and last.verdict.summary
        return bytes(data)

    async def all_of_them() -> list[bytes]:
        channels = [
            aio.insecure_channel(daemon.address, options=[("grpc.use_local_subchannel_pool", 1)]) for _ in range(10)
        ]
        try:
            return await asyncio.wait_for(asyncio.gather(*[follow(channels[i % 10]) for i in range(200)]), 120)
        finally:
            for channel in channels:
                await channel.close()

    assert asyncio.run(all_of_them()) == [expected] * 200
