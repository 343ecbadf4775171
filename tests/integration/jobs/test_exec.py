"""Commands in a job's ranks, over gRPC and pipes."""

import fcntl
import getpass
import os
import queue
import signal
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

from muster import client
from muster.v1 import exec_pb2, exec_pb2_grpc
from tests.conftest import BIN, Daemon, alive, eventually, running

MUSTER = str(BIN / "muster")
FOREVER = ("sleep", "100000")


def execs(daemon: Daemon) -> Any:
    assert daemon.channel is not None
    return exec_pb2_grpc.ExecServiceStub(daemon.channel)


def command(daemon: Daemon, *argv: str, job_id: str = "j", **fields: Any) -> Any:
    return execs(daemon).RunCommand(exec_pb2.RunCommandRequest(job_id=job_id, argv=argv, **fields), timeout=60)


def sessions(daemon: Daemon, job_id: str = "j") -> list[Any]:
    return list(execs(daemon).ListSessions(exec_pb2.ListSessionsRequest(job_id=job_id), timeout=60).sessions)


def refusal(error: "pytest.ExceptionInfo[grpc.RpcError]") -> tuple[str, str]:
    return error.value.code().name, client.failure(error.value).reason


class Stream:
    """One Exec call, message by message."""

    def __init__(self, daemon: Daemon, timeout: float = 60, **first: Any) -> None:
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.call = execs(daemon).Exec(iter(self._requests.get, None), timeout=timeout)
        if first:
            self.send(**first)

    def send(self, **message: Any) -> None:
        self._requests.put(exec_pb2.ExecRequest(**message))

    def close(self) -> None:
        self._requests.put(None)

    def read(self) -> Any:
        return next(self.call)

    def until(self, kind: str) -> Any:
        while True:
            answer = self.read()
            if answer.WhichOneof("message") == kind:
                self.last = answer
                return getattr(answer, kind)

    def output(self, size: int, stderr: bool = False) -> bytes:
        """The next bytes of one stream."""
        data = b""
        while len(data) < size:
            written = self.until("output")
            if written.stderr == stderr:
                data += written.data
        return data

    def rest(self) -> tuple[bytes, Any]:
        """All output that is still to come, and the end; each chunk is acknowledged."""
        data, ends = b"", [0, 0]
        for answer in self.call:
            if answer.HasField("exited"):
                self.close()
                return data, answer.exited
            if answer.HasField("output"):
                data += answer.output.data
                ends[answer.output.stderr] = answer.output.offset + len(answer.output.data)
                self.send(ack=exec_pb2.ExecAck(stdout_offset=ends[0], stderr_offset=ends[1]))
        raise AssertionError("the stream ended without `exited`")

    def gone(self) -> "pytest.ExceptionInfo[grpc.RpcError]":
        """The error with which it ends."""
        with pytest.raises(grpc.RpcError) as error:
            while True:
                self.read()
        return error


def start(*argv: str, job_id: str = "j", **fields: Any) -> dict[str, Any]:
    return {"start": exec_pb2.ExecStart(job_id=job_id, argv=argv, **fields)}


def typed(data: bytes, offset: int = 0, close: bool = False) -> dict[str, Any]:
    return {"input": exec_pb2.ExecInput(offset=offset, data=data, close=close)}


@pytest.fixture(scope="module")
def node(shared: Daemon) -> Daemon:
    """A daemon with the job j of two ranks."""
    shared.run(*FOREVER, job_id="j", ranks=2, env={"COLOUR": "blue"}, limits={"nofile": 517})
    shared.until_running("j")
    return shared


def muster(daemon: Daemon, *args: str, **options: Any) -> "subprocess.CompletedProcess[bytes]":
    env = dict(os.environ, MUSTER_ROOT=str(daemon.folder), NO_COLOR="1")
    return subprocess.run([MUSTER, "exec", *args], env=env, capture_output=True, timeout=60, check=False, **options)


def background(daemon: Daemon, *args: str, **options: Any) -> Any:
    """With it a Popen; stdout and stderr are pipes."""
    env = dict(os.environ, MUSTER_ROOT=str(daemon.folder), NO_COLOR="1")
    pipes: dict[str, Any] = {
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
    } | options
    return running([MUSTER, "exec", *args], env=env, **pipes)


# --- conformance ------------------------------------------------------------------------------------------------------


def test_a_command_writes_and_ends(node):
    done = muster(node, "j", "--", "bash", "-c", "echo hello; echo oops >&2")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"hello\n", b"oops\n")


@pytest.mark.parametrize(
    ("script", "code"), [("exit 7", 7), ("kill -9 $$", 137), ("kill -TERM $$", 143), ("exit 255", 255)]
)
def test_the_exit_code_is_the_commands(node, script, code):
    done = muster(node, "j", "--", "sh", "-c", script)
    assert (done.returncode, done.stdout, done.stderr) == (code, b"", b"")
    answer = command(node, "sh", "-c", script)
    assert answer.exited.exit_code == code
    assert answer.exited.signal == (code - 128 if code in (137, 143) else 0)


@pytest.mark.parametrize(("program", "code"), [("no-such-program-anywhere", 127), ("/etc/passwd", 126)])
def test_a_command_that_cannot_run_is_126_or_127_with_a_word(node, program, code):
    done = muster(node, "j", "--", program)
    assert done.returncode == code
    assert program.encode() in done.stderr
    assert done.stderr.count(b"\n") == 1


def test_it_runs_in_the_ranks_environment_folder_limits_and_cgroup(node):
    pid = node.get("j").ranks[1].pid
    script = "echo $RANK $WORLD_SIZE $COLOUR $MORE; pwd; ulimit -n; cat /proc/self/cgroup; umask"
    done = muster(node, "-r", "1", "-e", "MORE=less", "j", "--", "sh", "-c", script)
    words, folder, files, *cgroup, umask = done.stdout.decode().splitlines()
    assert words == "1 2 blue less"
    assert folder == os.readlink(f"/proc/{pid}/cwd")
    assert files == "517"
    assert "\n".join(cgroup) == Path(f"/proc/{pid}/cgroup").read_text().strip()
    assert int(umask, 8) == 0o022
    assert muster(node, "-w", "/usr", "j", "--", "pwd").stdout == b"/usr\n"


def test_the_first_rank_of_the_node_is_the_default(node):
    assert muster(node, "j", "--", "sh", "-c", "echo $RANK").stdout == b"0\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts jobs of other users")
def test_it_runs_as_the_ranks_user(open_daemon):
    open_daemon.run(*FOREVER, job_id="j", user="nobody")
    open_daemon.until_running("j")
    answer = command(open_daemon, "sh", "-c", "id -un; echo into > /dev/stderr")
    assert (answer.stdout, answer.stderr) == (b"nobody\n", b"into\n")


@pytest.mark.slow
def test_without_input_stdin_is_empty_and_with_it_its_end_is_passed_on(node):
    assert muster(node, "j", "--", "cat", input=b"not wanted").stdout == b""
    assert muster(node, "-i", "j", "--", "cat", input=b"a\0b").stdout == b"a\0b"
    assert muster(node, "-i", "j", "--", "wc", "-c", stdin=subprocess.DEVNULL).stdout.strip() == b"0"


def test_a_closed_stdin_is_an_empty_one(node):
    done = subprocess.run(
        ["sh", "-c", f"exec {MUSTER} exec -i j -- wc -c <&-"],
        env=dict(os.environ, MUSTER_ROOT=str(node.folder)), capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, b"0", b"")


def test_a_command_that_does_not_read_its_input_ends_all_the_same(node, tmp_path):
    file = tmp_path / "big"
    file.write_bytes(bytes(5_000_000))
    with open(file, "rb") as stdin:
        assert muster(node, "-i", "j", "--", "sh", "-c", "head -c 10 | wc -c; exit 3", stdin=stdin).returncode == 3


def test_20_megabytes_go_through_cat_byte_for_byte(node, tmp_path):
    data = os.urandom(20_000_000)
    (tmp_path / "in").write_bytes(data)
    with (
        open(tmp_path / "in", "rb") as stdin,
        open(tmp_path / "out", "wb") as stdout,
        background(node, "-i", "j", "--", "cat", stdin=stdin, stdout=stdout) as process,
    ):
        assert process.communicate(timeout=60)[1] == b""
    assert process.returncode == 0
    assert (tmp_path / "out").read_bytes() == data


def test_stdout_and_stderr_stay_apart_and_come_in_order(node):
    script = "for i in 1 2 3; do echo out$i; echo err$i >&2; done"
    stream = Stream(node, **start("sh", "-c", script))
    stream.until("started")
    seen = {False: b"", True: b""}
    for answer in stream.call:
        if answer.HasField("exited"):
            stream.close()
            break
        assert answer.output.offset == len(seen[answer.output.stderr])
        seen[answer.output.stderr] += answer.output.data
    assert seen == {False: b"out1\nout2\nout3\n", True: b"err1\nerr2\nerr3\n"}
    assert list(stream.call) == []


def test_signals_reach_the_command_each_of_them(node):
    script = (
        'n=0; trap "n=\\$((n+1)); echo \\$n; [ \\$n -lt 2 ] || exit 40" INT; echo ready; while :; do sleep 0.02; done'
    )
    with background(node, "j", "--", "sh", "-c", script) as process:
        assert process.stdout.readline() == b"ready\n"
        for seen in (b"1\n", b"2\n"):
            process.send_signal(signal.SIGINT)
            assert process.stdout.readline() == seen
        assert process.wait(timeout=60) == 40


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_that_ends_the_command_ends_the_client_with_its_code(node, number):
    with background(node, "j", "--", "sh", "-c", "ulimit -c 0; echo ready; exec sleep 1000") as process:
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(number)
        assert process.wait(timeout=60) == 128 + number


def test_ctrl_z_suspends_the_client_alone(node):
    script = "echo $$; while :; do echo x; sleep 0.02; done"
    # In a group of its own with us for a parent: SIGTSTP stops nobody in an orphaned group, which ours may be.
    with background(node, "j", "--", "sh", "-c", script, process_group=0) as process:
        pid = int(process.stdout.readline())
        process.send_signal(signal.SIGTSTP)
        eventually(lambda: state(process.pid) == "T")
        assert state(pid) not in "TZX"
        process.send_signal(signal.SIGCONT)
        assert process.stdout.readline() == b"x\n"
        process.send_signal(signal.SIGTERM)
        process.stdout.read()
        assert process.wait(timeout=60) == 143


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_slow_reader_gets_all_and_one_that_leaves_ends_the_command_quietly(node):
    with background(node, "j", "--", "sh", "-c", "seq 1 300000") as process:
        eventually(lambda: process.poll() is None and unread(process.stdout) >= 65536)
        assert process.stdout.read() == b"".join(b"%d\n" % i for i in range(1, 300_001))
        assert process.wait(timeout=60) == 0
    with background(node, "j", "--", "sh", "-c", "echo $$; exec yes") as process:
        pid = int(process.stdout.readline())
        process.stdout.close()
        assert process.wait(timeout=60) == 141
        assert process.stderr.read() == b""
    eventually(lambda: not alive(pid))


def unread(pipe: Any) -> int:
    return int(struct.unpack("i", fcntl.ioctl(pipe.fileno(), termios.FIONREAD, b"\0" * 4))[0])


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"argv": []}, "argv"),
        ({"argv": [""]}, "argv[0]"),
        ({"argv": ["a\0b"]}, "argv[0]"),
        ({"argv": ["true", "x" * 200_000]}, "argv[1]"),
        ({"argv": ["true"] + ["x" * 100_000] * 11}, "argv"),
        ({"argv": ["true"], "rank": 7}, "rank"),
        ({"argv": ["true"], "tty": True}, "tty"),
        ({"argv": ["true"], "workdir": "here"}, "workdir"),
        ({"argv": ["true"], "env": {"a=b": "c"}}, "env['a=b']"),
        ({"argv": ["true"], "env": {"MUSTER_NONCE": "c"}}, "env['MUSTER_NONCE']"),
        ({"argv": ["true"], "window": exec_pb2.WindowSize(rows=65536)}, "window.rows"),
        ({"argv": ["true"], "time_limit": {"seconds": -1}}, "time_limit"),
    ],
)
def test_a_bad_start_is_refused_and_names_the_field(node, fields, field):
    stream = Stream(node, start=exec_pb2.ExecStart(job_id="j", **fields))
    error = stream.gone()
    assert refusal(error) == ("INVALID_ARGUMENT", "INVALID_REQUEST")
    assert [name for name, _ in client.failure(error.value).violations] == [field]


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ({"signal": 0}, "signal"),
        ({"signal": 32}, "signal"),
        ({"window": exec_pb2.WindowSize(columns=70_000)}, "window.columns"),
        (typed(b"x", offset=5), "input.offset"),
        (typed(b"x" * 65_537), "input.data"),
        ({"ack": exec_pb2.ExecAck(stdout_offset=1)}, "ack.stdout_offset"),
        (start("true"), "start"),
        ({}, "message"),
    ],
)
def test_a_bad_message_ends_the_stream_and_not_the_session(node, message, field):
    stream = Stream(node, **start("sleep", "1000", stdin=True))
    started = stream.until("started")
    stream.send(**message)
    error = stream.gone()
    assert [name for name, _ in client.failure(error.value).violations] == [field]
    assert alive(started.pid)
    execs(node).EndSession(exec_pb2.EndSessionRequest(job_id="j", session_id=started.session_id))
    eventually(lambda: not alive(started.pid))


def test_input_behind_its_end_is_refused(node):
    stream = Stream(node, **start("cat", stdin=True))
    stream.until("started")
    stream.send(**typed(b"x", close=True))
    stream.send(**typed(b"y", offset=1))
    # The command may have ended by then; else it is the field that is named.
    answers = []
    try:
        answers = list(stream.call)
    except grpc.RpcError as error:
        assert client.failure(error).violations[0][0] == "input"
    else:
        assert answers[-1].exited.exit_code == 0


def test_more_input_than_a_window_ahead_is_refused(node):
    stream = Stream(node, **start("sleep", "1000", stdin=True))
    stream.until("started")
    for i in range(40):
        stream.send(**typed(bytes(65536), offset=i * 65536))
    assert client.failure(stream.gone().value).violations[0][0] == "input"


def test_garbage_is_refused(node):
    raw = node.channel.stream_stream("/muster.v1.ExecService/Exec")
    with pytest.raises(grpc.RpcError) as error:
        list(raw(iter([b"\xff\xff garbage"]), timeout=60))
    assert refusal(error) == ("INVALID_ARGUMENT", "INVALID_REQUEST")


def test_the_first_message_must_say_what(node):
    stream = Stream(node, signal=2)
    assert refusal(stream.gone())[0] == "INVALID_ARGUMENT"
    stream = Stream(node)
    stream.close()
    assert refusal(stream.gone())[0] == "INVALID_ARGUMENT"


def test_windows_of_0_and_65535_are_windows(node):
    window = exec_pb2.WindowSize(rows=0, columns=65535)
    stream = Stream(node, **start("stty", "size", tty=True, stdin=True, window=window))
    stream.until("started")
    assert stream.rest()[0] == b"0 65535\r\n"


def test_what_is_not_there_is_reported(node, make_daemon):
    assert refusal(Stream(node, **start("true", job_id="no-such-job")).gone()) == ("NOT_FOUND", "JOB_NOT_FOUND")
    for session in ("nope", "", "no\n\0pe", "x" * 100_000):
        gone = Stream(node, attach=exec_pb2.ExecAttach(job_id="j", session_id=session)).gone()
        assert refusal(gone) == ("NOT_FOUND", "SESSION_NOT_FOUND")
        with pytest.raises(grpc.RpcError) as error:
            execs(node).EndSession(exec_pb2.EndSessionRequest(job_id="j", session_id=session))
        assert refusal(error) == ("NOT_FOUND", "SESSION_NOT_FOUND")
    done = muster(node, "no-such-job", "--", "true")
    assert (done.returncode, done.stdout) == (3, b"")


@pytest.mark.slow
def test_a_job_or_a_rank_that_does_not_run_is_refused(daemon):
    daemon.run("true", job_id="over")
    daemon.wait("over")
    assert refusal(Stream(daemon, **start("true", job_id="over")).gone()) == ("FAILED_PRECONDITION", "RANK_NOT_RUNNING")
    done = muster(daemon, "over", "--", "true")
    assert done.returncode == 5
    assert b"has ended (SUCCEEDED)" in done.stderr
    # A script before the ranks: they are not there yet.
    script = daemon.folder / "pre.sh"
    script.write_text("sleep 1000\n")
    daemon.run("true", job_id="early", pre_start=str(script))
    eventually(lambda: daemon.get("early").step)
    error = Stream(daemon, **start("true", job_id="early")).gone()
    assert refusal(error) == ("FAILED_PRECONDITION", "RANK_NOT_RUNNING")
    assert "PREPARING" in str(error.value.details())
    daemon.stop("early", grace_s=0)
    # One of two ranks has ended.
    daemon.run("sh", "-c", "[ $RANK = 0 ] || sleep 1000", job_id="half", ranks=2)
    eventually(lambda: daemon.get("half").ranks[0].outcome)
    error = Stream(daemon, **start("true", job_id="half", rank=0)).gone()
    assert refusal(error) == ("FAILED_PRECONDITION", "RANK_NOT_RUNNING")
    assert command(daemon, "true", job_id="half", rank=1).exited.exit_code == 0


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["-t", "j", "--", "sh"], "-it"),
        (["-it", "j", "--", "sh"], "not a terminal"),
        (["j"], "JOB or COMMAND is missing"),
        (["j", "-i", "--", "sh"], "put options before"),
        (["j", "--", ""], "argv[0]"),
        (["--attach", "s", "--end", "s", "j"], "one of them"),
        (["--end", "s"], "JOB is missing"),
        (["--detach-keys", "ctrl-ü", "j", "--", "sh"], "ctrl-"),
        (["-w", "here", "j", "--", "sh"], "workdir"),
    ],
)
def test_wrong_usage_is_2_and_says_what_is_right(node, args, said):
    done = muster(node, *args, stdin=subprocess.DEVNULL)
    assert (done.returncode, done.stdout) == (2, b"")
    assert said in done.stderr.decode()


# --- sessions ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_detach_attach_list_end(node):
    done = muster(node, "-i", "--detach", "j", "--", "sh", "-c", "echo before; cat; echo behind")
    ident = done.stdout.decode().strip()
    (listed,) = (one for one in sessions(node) if one.session_id == ident)
    assert (listed.session_id, listed.command, listed.detached, listed.attached) == (ident, "sh", True, False)
    shown = muster(node, "--list").stdout.decode()
    assert ident in shown and "detached" in shown and "behind" not in shown
    done = muster(node, "-i", "--attach", ident, "j", input=b"typed\n")
    assert (done.returncode, done.stdout) == (0, b"before\ntyped\nbehind\n")
    ident = muster(node, "--detach", "j", "--", "sh", "-c", "head -c 3000000 /dev/zero; exit 6").stdout.decode().strip()
    eventually(lambda: [one for one in sessions(node) if one.session_id == ident and one.HasField("exited")])
    done = muster(node, "--attach", ident, "j")
    gone = 3_000_000 - len(done.stdout)
    assert (done.returncode, gone) == (6, 3_000_000 - (1 << 20))
    assert f"skipping the first {gone} bytes of output: shown before, or no longer stored" in done.stderr.decode()
    ident = muster(node, "--detach", "j", "--", *FOREVER).stdout.decode().strip()
    with background(node, "--attach", ident, "j") as process:
        eventually(lambda: [one for one in sessions(node) if one.session_id == ident and one.attached])
        assert muster(node, "--end", ident, "j").returncode == 0
        assert process.wait(timeout=60) == 143
    assert muster(node, "--end", ident, "j").returncode in (0, 3)
    assert muster(node, "-o", "json", "--list", "j").stdout.startswith(b"{")


def test_a_client_that_attaches_takes_the_session_over(node):
    first = Stream(node, **start("cat", stdin=True))
    started = first.until("started")
    first.send(**typed(b"one"))
    assert first.output(3) == b"one"
    second = Stream(node, attach=exec_pb2.ExecAttach(job_id="j", session_id=started.session_id))
    again = second.until("started")
    assert (again.input_offset, again.stdout_offset) == (3, 0)
    assert "another client" in first.until("left").message
    first.close()
    assert list(first.call) == []
    assert second.output(3) == b"one"
    # What was had already is passed over, a part of it too.
    second.send(**typed(b"one two", close=True))
    data, exited = second.rest()
    assert (data, exited.exit_code) == (b" two", 0)


def test_a_client_that_only_says_start_gets_all_and_the_input_is_closed(node):
    answers = list(execs(node).Exec(iter([exec_pb2.ExecRequest(**start("sh", "-c", "cat; seq 1 500000", stdin=True))])))
    data = b"".join(answer.output.data for answer in answers if answer.HasField("output"))
    assert data == b"".join(b"%d\n" % i for i in range(1, 500_001))
    assert answers[-1].exited.exit_code == 0


@pytest.mark.slow
@pytest.mark.parametrize("timeout", [60, 5])
def test_a_call_that_is_cut_off_is_not_one_that_ends_its_requests(node, timeout):
    """Otherwise a client that comes back finds the input closed, and output taken that nobody had."""

    def begun(timeout: float) -> tuple[list[Stream], list[str]]:
        script = "echo hello; cat; echo over"
        streams = [Stream(node, timeout, **start("sh", "-c", script, stdin=True)) for _ in range(5)]
        try:
            found = [stream.until("started").session_id for stream in streams]
            for stream in streams:
                assert stream.output(6) == b"hello\n"
        except grpc.RpcError as error:  # a busy machine takes longer until they are there
            if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED or timeout >= 60:
                raise
            return begun(2 * timeout)
        return streams, found

    cut, ids = begun(timeout)
    for stream in cut:
        if timeout == 60:
            stream.call.cancel()
        stream.gone()
    eventually(lambda: all(not s.attached for s in sessions(node) if s.session_id in ids))
    for session in ids:
        attach = exec_pb2.ExecAttach(job_id="j", session_id=session, stdout_offset=0)
        stream = Stream(node, attach=attach)
        stream.until("started")
        stream.send(**typed(b"more\n", close=True))
        assert stream.rest()[0] == b"hello\nmore\nover\n"


def test_output_waits_for_acknowledgements(node):
    stream = Stream(node, **start("head", "-c", "3000000", "/dev/zero"))
    stream.until("started")
    got = 0
    while got < 1 << 20:
        got += len(stream.until("output").data)
    assert got == 1 << 20
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def listen() -> None:
        for answer in stream.call:
            answers.put(answer)

    threading.Thread(target=listen, daemon=True).start()
    with pytest.raises(queue.Empty):
        answers.get(timeout=0.5)
    stream.send(ack=exec_pb2.ExecAck(stdout_offset=got))
    while got < 2 << 20:
        got += len(answers.get(timeout=60).output.data)
    stream.send(ack=exec_pb2.ExecAck(stdout_offset=got))
    while (answer := answers.get(timeout=60)).HasField("output"):
        got += len(answer.output.data)
    assert (got, answer.exited.exit_code) == (3_000_000, 0)
    stream.close()


def test_a_session_has_a_time_limit(node):
    done = muster(node, "--time-limit", "300ms", "j", "--", *FOREVER)
    assert done.returncode == 143
    assert b"time" in done.stderr


@pytest.mark.slow
def test_an_abandoned_session_is_ended(make_daemon):
    daemon = make_daemon("[exec]\nabandoned_s = 1\n")
    daemon.run(*FOREVER, job_id="j")
    daemon.until_running("j")
    with background(daemon, "j", "--", "sh", "-c", "echo $$; exec sleep 1000") as process:
        pid = int(process.stdout.readline())
        process.kill()
        eventually(lambda: not alive(pid))
    left = muster(daemon, "-d", "j", "--", *FOREVER).stdout.decode().strip()
    time.sleep(1.5)  # longer than abandoned_s: a session that was left on purpose is not abandoned
    eventually(lambda: [one.session_id for one in sessions(daemon) if not one.HasField("exited")] == [left])


def test_a_session_ends_with_its_job_and_says_so(daemon):
    daemon.run(*FOREVER, job_id="j")
    daemon.until_running("j")
    script = 'trap "" HUP TERM; echo $$; while :; do sleep 0.05; done'
    with background(daemon, "j", "--", "sh", "-c", script) as process:
        pid = int(process.stdout.readline())
        daemon.stop("j", grace_s=0.2)
        process.wait(timeout=60)
        assert process.returncode == 137
        assert b"ended with the ranks of the job" in process.stderr.read()
    assert not alive(pid)
    assert daemon.wait("j").state


def test_a_dead_supervisor_takes_its_sessions_along_and_that_is_reported(daemon):
    daemon.run(*FOREVER, job_id="j")
    daemon.until_running("j")
    with background(daemon, "j", "--", "sh", "-c", "echo $$; exec sleep 1000") as process:
        pid = int(process.stdout.readline())
        os.kill(daemon.supervisor_pid("j"), signal.SIGKILL)
        assert process.wait(timeout=60) == 125
        assert b"died with its supervisor" in process.stderr.read()
    eventually(lambda: not alive(pid))
    assert command(daemon, "echo", "x").stdout == b"x\n"
    assert daemon.get("j").ranks[0].pid


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_20_megabytes_both_ways_over_ends_of_the_daemon(daemon, tmp_path, number):
    daemon.run(*FOREVER, job_id="j")
    daemon.until_running("j")
    data = os.urandom(20_000_000)
    out = tmp_path / "out"
    ended_twice = threading.Event()

    def give(stdin: Any) -> None:
        with stdin:
            stdin.write(data[:-1])
            ended_twice.wait(60)
            stdin.write(data[-1:])

    with (
        open(out, "wb") as stdout,
        background(daemon, "-i", "j", "--", "cat", stdin=subprocess.PIPE, stdout=stdout) as process,
    ):
        giver = threading.Thread(target=give, args=[process.stdin])
        giver.start()
        for part in (2_000_000, 9_000_000):
            eventually(partial(lambda size: out.stat().st_size > size, part))
            daemon.kill(number)
            daemon.restart()
        ended_twice.set()
        giver.join()
        said = process.stderr.read().decode()
        process.wait(timeout=60)
    assert process.returncode == 0, said
    assert out.stat().st_size == len(data)
    assert out.read_bytes() == data
    assert said.count("attaching to session") == said.count("attached to session") == 2


def test_nobody_waits_for_a_daemon_that_is_gone_longer_than_he_wants(daemon):
    daemon.run(*FOREVER, job_id="j")
    daemon.until_running("j")
    with background(daemon, "j", "--", "sh", "-c", "echo $$; exec sleep 1000") as process:
        pid = int(process.stdout.readline())
        daemon.kill()
        assert b"attaching to" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130
        assert b"--attach" in process.stderr.read()
    assert alive(pid)


# --- limits -----------------------------------------------------------------------------------------------------------


def test_streams_are_counted_and_stop_is_not_kept_out(make_daemon):
    daemon = make_daemon("[exec]\nmax_streams = 5\n")
    daemon.run(*FOREVER, job_id="j")
    daemon.until_running("j")
    # Those that say nothing count, too.
    silent = [Stream(daemon) for _ in range(2)]
    open_streams = [Stream(daemon, **start(*FOREVER)) for _ in range(3)]
    for stream in open_streams:
        stream.until("started")
    refused = [Stream(daemon, **start(*FOREVER)) for _ in range(100)]
    for stream in refused:
        error = stream.gone()
        assert refusal(error) == ("RESOURCE_EXHAUSTED", "TOO_MANY")
        assert "5" in str(error.value.details())
    assert refusal_of_command(daemon) == "TOO_MANY"
    assert daemon.stop("j", grace_s=0).ended
    for stream in silent:
        stream.close()


def refusal_of_command(daemon: Daemon) -> str:
    with pytest.raises(grpc.RpcError) as error:
        command(daemon, "true")
    return refusal(error)[1]


def test_sessions_of_a_job_are_counted(make_daemon):
    daemon = make_daemon("[exec]\nmax_sessions = 2\n")
    daemon.run(*FOREVER, job_id="j")
    daemon.until_running("j")
    first = [Stream(daemon, **start(*FOREVER)) for _ in range(2)]
    idents = [stream.until("started").session_id for stream in first]
    error = Stream(daemon, **start("true")).gone()
    assert refusal(error) == ("RESOURCE_EXHAUSTED", "TOO_MANY")
    assert client.facts(error.value) == {"what": "sessions of job 'j'", "limit": "2"}
    assert "max_sessions in [exec]" in client.failure(error.value).message
    execs(daemon).EndSession(exec_pb2.EndSessionRequest(job_id="j", session_id=idents[0]))
    assert first[0].rest()[1].signal == signal.SIGTERM
    assert command(daemon, "true").exited.exit_code == 0


@pytest.mark.slow
def test_200_sessions_leave_nothing_behind(daemon):
    daemon.run(*FOREVER, job_id="j")
    daemon.until_running("j")
    supervisor = daemon.supervisor_pid("j")

    def one(tty: bool) -> None:
        stream = Stream(daemon, **start("sh", "-c", "echo x", tty=tty, stdin=True))
        stream.until("started")
        assert stream.rest()[1].exit_code == 0
        assert list(stream.call) == []

    def held() -> dict[str, int]:
        found = {name: len(os.listdir(f"/proc/{pid}/fd")) for name, pid in (("d", daemon.pid), ("s", supervisor))}
        found["pty"] = int(Path("/proc/sys/kernel/pty/nr").read_text())
        found["zombies"] = sum(1 for pid in children(supervisor) if not alive(pid))
        return found

    for tty in (False, True):
        one(tty)
    before = held()
    for i in range(200):
        one(bool(i % 2))
    after = eventually(lambda: (now := held()) and all(now[k] <= before[k] for k in ("d", "s", "zombies")) and now)
    assert after["pty"] <= before["pty"] + 20  # others on this machine use some, too
    eventually(lambda: sessions(daemon) == [])


def children(pid: int) -> Iterator[int]:
    yield from map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())


# --- commands of schedulers -------------------------------------------------------------------------------------------


def test_run_command_gives_output_and_end(node):
    answer = command(node, "sh", "-c", "cat; echo err >&2; exit 3", input=b"given", env={"A": "b"})
    assert (answer.stdout, answer.stderr, answer.exited.exit_code) == (b"given", b"err\n", 3)
    assert (answer.stdout_cut, answer.stderr_cut, answer.timed_out) == (0, 0, False)
    big = os.urandom(1 << 20)
    assert command(node, "cat", input=big, output_limit=1 << 20).stdout == big


def test_run_command_cuts_output_and_counts_what_it_cut(node):
    answer = command(node, "sh", "-c", "head -c 5000000 /dev/zero; printf 12345 >&2", output_limit=3)
    assert (answer.stdout, answer.stdout_cut) == (bytes(3), 4_999_997)
    assert (answer.stderr, answer.stderr_cut) == (b"123", 2)
    assert len(command(node, "head", "-c", "100000", "/dev/zero").stdout) == 64 << 10


def test_run_command_ends_what_takes_too_long(node):
    for limit in (0.3, 3, 30):  # in which a busy machine may not let it begin
        asked = {"seconds": int(limit), "nanos": round(limit % 1 * 1e9)}
        answer = command(node, "sh", "-c", "echo begun; exec sleep 1000", time_limit=asked)
        assert (answer.timed_out, answer.exited.signal) == (True, signal.SIGTERM)
        assert answer.exited.message == f"it reached its time limit of {limit:g} s"
        if answer.stdout:
            break
    assert answer.stdout == b"begun\n"


def test_run_command_ends_with_its_call(node, tmp_path):
    note = tmp_path / "pid"
    argv = ["sh", "-c", f"echo $$ > {note}.new; mv {note}.new {note}; exec sleep 1000"]
    call = execs(node).RunCommand.future(exec_pb2.RunCommandRequest(job_id="j", argv=argv))
    pid = int(eventually(lambda: note.exists() and note.read_text()))
    call.cancel()
    eventually(lambda: not alive(pid))
    eventually(lambda: pid not in [one.pid for one in sessions(node)])


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"input": bytes((1 << 20) + 1)}, "input"),
        ({"output_limit": (1 << 20) + 1}, "output_limit"),
        ({"time_limit": {"seconds": 3601}}, "time_limit"),
        ({"time_limit": {}}, "time_limit"),
    ],
)
def test_run_command_has_limits(node, fields, field):
    with pytest.raises(grpc.RpcError) as error:
        command(node, "true", **fields)
    assert [name for name, _ in client.failure(error.value).violations] == [field]


def test_events_tell_of_sessions_without_their_arguments(node):
    secret = "hunter2"
    done = muster(node, "-e", f"TOKEN={secret}", "j", "--", "/bin/sh", "-c", f"echo {secret}; exit 4")
    assert (done.returncode, done.stdout.strip()) == (4, secret.encode())
    eventually(lambda: [e for e in node.event_list("j") if e.attributes.get("exit_code") == "4"])
    begun = [event for event in node.event_list("j") if event.kind == "job.exec"][-1]
    (ended,) = (e for e in node.event_list("j") if e.kind == "job.exec_ended" and e.attributes["exit_code"] == "4")
    assert begun.attributes["command"] == "sh"
    assert begun.attributes["session"] == ended.attributes["session"]
    assert begun.attributes["by"].startswith(getpass.getuser()) and "pid " in begun.attributes["by"]
    assert secret not in "".join(map(str, node.event_list("j")))
    assert secret not in node.stderr.read_text()


def test_the_end_of_a_session_is_one_event_for_any_number_of_clients(node):
    """And it comes with the first of them."""
    ident = muster(node, "--detach", "j", "--", "sh", "-c", "exit 5").stdout.decode().strip()
    eventually(lambda: [one for one in sessions(node) if one.session_id == ident and one.HasField("exited")])

    def ends() -> list[Any]:
        found = [e for e in node.event_list("j") if e.kind == "job.exec_ended"]
        return [e for e in found if e.attributes["session"] == ident]

    assert not ends()
    for _ in range(3):
        assert muster(node, "--attach", ident, "j").returncode == 5
    assert len(eventually(ends)) == 1
