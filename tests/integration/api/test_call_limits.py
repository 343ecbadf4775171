"""Limits of calls: what is over one is refused with the reason, and keeps nobody else out."""

import contextlib
import os
import resource
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import grpc
import pytest
from google.protobuf.message import Message

from muster import client
from muster.agent.api.server import MAX_STREAMS, connections
from muster.agent.api.slots import MAX_CALLS, MAX_UNTAKEN
from muster.agent.config.schema import LimitsTable
from muster.v1 import (
    event_pb2,
    event_pb2_grpc,
    job_pb2,
    job_pb2_grpc,
    log_pb2,
    log_pb2_grpc,
    node_pb2,
    node_pb2_grpc,
    telemetry_pb2,
)
from tests.conftest import BIN, Daemon, eventually, running


def refusal(call: Callable[[], Any]) -> tuple[str, str]:
    """Status and reason."""
    with pytest.raises(grpc.RpcError) as caught:
        call()
    assert isinstance(caught.value, grpc.Call)
    return caught.value.code().name, client.failure(caught.value).reason


def test_the_size_of_a_message(make_daemon: Callable[..., Daemon]) -> None:
    daemon = make_daemon("[limits]\nmax_message_bytes = 65536\n")
    big = job_pb2.JobSpec(job_id="x", command=["true"], env={"A": "a" * 70000})
    with pytest.raises(grpc.RpcError) as caught:
        daemon.jobs.Start(job_pb2.StartRequest(spec=big), timeout=60)
    assert isinstance(caught.value, grpc.Call)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "65536" in (caught.value.details() or "")
    # What counts is what becomes of it: 50 MiB that are 50 KiB on the wire.
    big = job_pb2.JobSpec(job_id="x", command=["true"], env={"A": "a" * (50 << 20)})
    with pytest.raises(grpc.RpcError) as caught:
        daemon.jobs.Start(job_pb2.StartRequest(spec=big), timeout=60, compression=grpc.Compression.Gzip)
    assert isinstance(caught.value, grpc.Call)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert not list(daemon.root.jobs.iterdir())
    daemon.run("true", job_id="x")  # over the same connection
    daemon.wait("x")


def test_jobs_and_ranks(make_daemon: Callable[..., Daemon]) -> None:
    daemon = make_daemon("[jobs]\nmax_jobs = 2\nmax_ranks = 3\n")
    for name in "ab":
        daemon.run("sleep", "1000", job_id=name)
    assert refusal(lambda: daemon.run("true", job_id="c")) == ("RESOURCE_EXHAUSTED", "TOO_MANY_JOBS")
    daemon.stop("a", grace_s=0)
    daemon.run("true", job_id="c")
    daemon.wait("c")
    with pytest.raises(grpc.RpcError) as caught:
        daemon.run("true", job_id="d", ranks=4)
    assert client.failure(caught.value).violations == [("ranks", "4: this node allows at most 3")]


def test_streams_of_each_kind_have_a_number_of_their_own(make_daemon: Callable[..., Daemon]) -> None:
    daemon = make_daemon("[limits]\nmax_followers = 2\nmax_watchers = 2\n")
    daemon.run("sleep", "1000", job_id="x")
    daemon.until_running("x")
    kinds = {
        "logs": lambda: daemon.logs.ReadLogs(log_pb2.ReadLogsRequest(job_id="x", follow=True)),
        "events": lambda: daemon.events.Watch(event_pb2.WatchRequest(from_oldest=True)),
        "records": lambda: daemon.telemetry.RecordTelemetry(telemetry_pb2.RecordTelemetryRequest()),
    }
    held: list[Any] = []
    for make in kinds.values():
        ours = [make(), make()]
        told: list[tuple[str, str]] = []

        def refused(make: Callable[[], Any] = make, ours: list[Any] = ours, told: list[tuple[str, str]] = told) -> bool:
            """Its turn may come before theirs, as they have said nothing yet: then one of those is refused."""
            ours[:] = [one if one.is_active() else make() for one in ours]
            call = make()
            timer = threading.Timer(1, call.cancel)
            timer.start()
            try:
                for _ in call:
                    pass
            except grpc.RpcError as error:
                told.append((error.code().name, client.failure(error).reason))
            timer.cancel()
            return bool(told) and told[-1][0] != "CANCELLED"

        eventually(refused)
        held += ours
        assert told[-1] == ("RESOURCE_EXHAUSTED", "TOO_MANY_STREAMS")
    assert daemon.stop("x", grace_s=0).ended
    for call in held:
        call.cancel()


def muster(path: Path, *args: str) -> "contextlib.AbstractContextManager[subprocess.Popen[str]]":
    """A command that goes on, over a socket."""
    command: list[str | Path] = [BIN / "muster", "--address", f"unix:{path}", *args]
    return running(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def line(stream: IO[str] | None) -> str:
    """The next one."""
    assert stream is not None
    return stream.readline()


def opened(kind: str, path: Path, count: int, stack: contextlib.ExitStack) -> None:
    """So many streams over a socket, on 8 connections, each of which has its first message."""
    for number in range(8):
        options = [("grpc.use_local_subchannel_pool", 1)]
        channel = stack.enter_context(grpc.insecure_channel(f"unix:{path}", options=options))
        for _ in range(number, count, 8):
            if kind == "logs":
                request = log_pb2.ReadLogsRequest(job_id="x", follow=True, tail_lines=1)
                call: Any = log_pb2_grpc.LogServiceStub(channel).ReadLogs(request)
            else:
                call = event_pb2_grpc.EventServiceStub(channel).Watch(event_pb2.WatchRequest())
            stack.callback(call.cancel)
            next(call)


@pytest.mark.slow
def test_readers_that_take_all_their_slots_leave_operators_unaffected(daemon: Daemon) -> None:
    """256 watches and 256 followers of a job that writes all the time."""
    script = "while True: print('x' * 100, flush=True); time.sleep(0.01)"
    daemon.run(sys.executable, "-c", f"import time\n{script}", job_id="x", ranks=2)
    eventually(lambda: all(daemon.output(daemon.get("x"), rank) for rank in range(2)))
    with contextlib.ExitStack() as stack:
        opened("logs", daemon.root.reader_socket, 256, stack)
        opened("events", daemon.root.reader_socket, 256, stack)
        refused = stack.enter_context(muster(daemon.root.reader_socket, "logs", "-f", "x"))
        run = daemon.cli("run", "--job-id", "y", "--ranks", "2", "--", "sh", "-c", "echo here $RANK")
        assert (run.returncode, sorted(run.stdout.splitlines())) == (0, ["[rank 0] here 0", "[rank 1] here 1"])
        done = daemon.cli("exec", "x", "--", "echo", "there")
        assert (done.returncode, done.stdout) == (0, "there\n")
        for command in (("logs", "-f", "--tail", "1", "x"), ("events", "-f")):
            with muster(daemon.root.socket, *command) as operator:
                assert line(operator.stdout)
        assert "waiting for a free slot" in line(refused.stderr)


def test_a_command_that_waits_for_a_slot_says_so_and_goes_on(make_daemon: Callable[..., Daemon]) -> None:
    daemon = make_daemon("[limits]\nmax_followers = 1\nmax_watchers = 1\n[exec]\nmax_streams = 1\n")
    daemon.run("sh", "-c", "echo first; exec sleep 1000", job_id="x")
    eventually(lambda: daemon.output(daemon.get("x")))
    commands = {
        "readers of logs": ("logs", "-f", "x"),
        "watchers of events": ("events", "-f", "x"),
        "commands and sessions": ("exec", "x", "--", "echo", "first"),
    }
    with contextlib.ExitStack() as stack:
        with contextlib.ExitStack() as taken:
            opened("logs", daemon.root.socket, 1, taken)
            opened("events", daemon.root.socket, 1, taken)
            session = taken.enter_context(muster(daemon.root.socket, "exec", "x", "--", "sh", "-c", "echo; sleep 1000"))
            assert line(session.stdout)
            waiting = {
                what: stack.enter_context(muster(daemon.root.socket, *command)) for what, command in commands.items()
            }
            for what, process in waiting.items():
                told = f"waiting for a free slot: {daemon.root.socket} serves 1 {what}, its limit; no action needed"
                assert line(process.stderr) == f"muster: {told}\n"
            assert all(process.poll() is None for process in waiting.values())
        for what, process in waiting.items():
            assert line(process.stderr).startswith("muster: got a slot after "), what
            assert line(process.stdout).strip(), what


def test_calls_that_look_keep_nobody_from_doing(daemon: Daemon) -> None:
    daemon.run("sleep", "1000", job_id="x")
    daemon.until_running("x")
    with grpc.insecure_channel(f"unix:{daemon.root.reader_socket}") as channel:
        jobs = job_pb2_grpc.JobServiceStub(channel)

        def wait() -> Any:
            return jobs.Wait.future(job_pb2.WaitRequest(job_id="x"))

        waiting = [wait() for _ in range(MAX_CALLS)]

        def refused() -> bool:
            """Its turn may come before that of the last of them, which is refused then."""
            waiting[:] = [wait() if call.done() else call for call in waiting]
            try:
                jobs.Get(job_pb2.GetRequest(job_id="x"), timeout=60)
            except grpc.RpcError as error:
                assert client.failure(error).reason == "TOO_MANY_STREAMS"
                return True
            return False

        eventually(refused)
        assert daemon.get("x").job_id == "x"  # another listener has a number of its own
        assert daemon.stop("x", grace_s=0).ended
        assert all(call.result(timeout=60).ended for call in waiting)


def frame(kind: int, flags: int, stream: int, data: bytes = b"") -> bytes:
    """Of HTTP/2."""
    return struct.pack(">I", len(data))[1:] + struct.pack(">BBI", kind, flags, stream) + data


def call_frames(number: int, path: str, request: Message | None = None) -> bytes:
    """A call as the client of a connection begins it; without `request` it never gets one."""
    fields = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "x", "te": "trailers"}
    fields["content-type"] = "application/grpc"
    pairs = [(name.encode(), value.encode()) for name, value in fields.items()]
    head = b"".join(bytes([0, len(name)]) + name + bytes([len(value)]) + value for name, value in pairs)
    begun = frame(1, 4, 2 * number + 1, head)  # HEADERS, and all of them
    if request is None:
        return begun
    data = request.SerializeToString()
    return begun + frame(0, 1, 2 * number + 1, struct.pack(">BI", 0, len(data)) + data)


@contextlib.contextmanager
def one_who_takes_nothing(path: Path) -> Iterator[socket.socket]:
    """A client whose window has no room: whatever is answered waits for it. What comes besides is thrown away."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(path))
        sock.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, struct.pack(">HI", 4, 0)))

        def drain() -> None:
            with contextlib.suppress(OSError):
                while sock.recv(1 << 16):
                    pass

        drainer = threading.Thread(target=drain)
        drainer.start()
        try:
            yield sock
        finally:
            sock.shutdown(socket.SHUT_RDWR)
            drainer.join()


@pytest.mark.parametrize("what", ["calls", "bytes"])
def test_answers_that_nobody_takes_are_counted(make_daemon: Callable[..., Daemon], what: str) -> None:
    daemon = make_daemon()
    if what == "bytes":
        labels = {f"{number:0256}": "x" * 256 for number in range(64)}
        for number in range(8):
            daemon.run("true", job_id=f"x{number}", labels=labels)
    request: Message = job_pb2.ListRequest(page_size=1000) if what == "bytes" else node_pb2.GetNodeRequest()
    path = "/muster.v1.JobService/List" if what == "bytes" else "/muster.v1.NodeService/GetNode"
    with grpc.insecure_channel(f"unix:{daemon.root.reader_socket}") as channel:
        nodes = node_pb2_grpc.NodeServiceStub(channel)

        def refused() -> str:
            try:
                nodes.GetNode(node_pb2.GetNodeRequest(), timeout=60)
            except grpc.RpcError as error:
                told = client.failure(error)
                # While over 1000 calls wait to be taken up at all, gRPC itself sends some away.
                assert told.reason in ("TOO_MANY_STREAMS", "CANCELLED")
                return told.message if told.reason == "TOO_MANY_STREAMS" else ""
            return ""

        with one_who_takes_nothing(daemon.root.reader_socket) as sock:
            for number in range(MAX_CALLS + 100 if what == "calls" else MAX_UNTAKEN // 100_000):
                sock.sendall(call_frames(number, path, request))
            said = eventually(refused)
            assert str(MAX_UNTAKEN if what == "bytes" else MAX_CALLS) in said
            assert daemon.get("x0" if what == "bytes" else daemon.run("true").job_id)
        eventually(lambda: not refused())


@pytest.mark.parametrize("listener", ["readers", "operators"])
def test_a_flood_of_connections_leaves_descriptors_for_the_daemon(daemon: Daemon, listener: str) -> None:
    """And for operators, where it is others' flood."""
    descriptors = resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE)[0]
    most = connections(LimitsTable(), listener == "operators", descriptors)
    path = daemon.root.reader_socket if listener == "readers" else daemon.root.socket
    with contextlib.ExitStack() as stack:
        held = []
        for _ in range(2 * most):
            held.append(stack.enter_context(socket.socket(socket.AF_UNIX)))
            held[-1].settimeout(60)
            held[-1].connect(str(path))

        def hung_up(sock: socket.socket) -> bool:
            try:
                return not sock.recv(1)
            except ConnectionResetError:
                return True

        assert hung_up(held[-1])
        assert len(os.listdir(f"/proc/{daemon.pid}/fd")) < most + 200
        if listener == "readers":
            daemon.connect()  # a new one of the operator's
        daemon.run("true", job_id="x")
        daemon.wait("x")


def test_calls_of_one_connection_that_never_go_on(daemon: Daemon) -> None:
    with one_who_takes_nothing(daemon.root.reader_socket) as sock:
        before = memory(daemon)
        for number in range(20 * MAX_STREAMS):  # 2 KiB each, where they are kept
            sock.sendall(call_frames(number, "/muster.v1.NodeService/GetNode"))
        daemon.run("true", job_id="x")
        daemon.wait("x")
        assert memory(daemon) - before < 60 << 20


def memory(daemon: Daemon) -> int:
    """Bytes."""
    [line] = [line for line in Path(f"/proc/{daemon.pid}/status").read_text().splitlines() if "VmRSS" in line]
    return int(line.split()[1]) << 10


def test_a_flood_of_calls_delays_a_stop_but_does_not_keep_it_out(daemon: Daemon) -> None:
    daemon.run("sleep", "1000", job_id="x")
    daemon.until_running("x")
    over = threading.Event()
    answered = [0] * 4

    def ask(number: int) -> None:
        with grpc.insecure_channel(f"unix:{daemon.root.reader_socket}") as channel:
            stubs = (job_pb2_grpc.JobServiceStub(channel), log_pb2_grpc.LogServiceStub(channel))
            while not over.is_set():
                calls = [stubs[0].Get.future(job_pb2.GetRequest(job_id="x"), timeout=60) for _ in range(32)]
                for call in calls:
                    call.result()
                answered[number] += len(calls)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(len(answered))]
    for thread in threads:
        thread.start()
    try:
        eventually(lambda: all(answered))
        before = sum(answered)
        began = time.monotonic()
        assert daemon.stop("x", grace_s=0).ended
        print(f"Stop took {time.monotonic() - began:.3f} s among {sum(answered) - before} calls of Get")
    finally:
        over.set()
        for thread in threads:
            thread.join()


@pytest.mark.slow
@pytest.mark.parametrize("command", [("ps",), ("status", "x"), ("logs", "-f", "x"), ("events", "-f", "x")])
def test_a_command_that_gets_no_connection_says_so_and_goes_on(
    make_daemon: Callable[..., Daemon], command: tuple[str, ...]
) -> None:
    daemon = make_daemon("[limits]\nmax_connections = 6\n")
    daemon.run("sh", "-c", "echo first; exec sleep 1000", job_id="x")
    eventually(lambda: daemon.output(daemon.get("x")))
    path = daemon.root.reader_socket
    with contextlib.ExitStack() as stack:
        with contextlib.ExitStack() as taken:
            for _ in range(6):
                sock = taken.enter_context(socket.socket(socket.AF_UNIX))
                sock.connect(str(path))
                assert sock.recv(1), "it has a connection"
            waiting = stack.enter_context(muster(path, *command))
            assert line(waiting.stderr) == (
                f"muster: waiting for a free slot: {path} serves 6 connections, its limit (max_connections in "
                "[limits]); no action needed\n"
            )
            assert waiting.poll() is None
            # The operators' socket has connections of its own.
            assert "x" in daemon.cli("ps").stdout
        assert line(waiting.stderr).startswith("muster: got a slot after ")
        assert line(waiting.stdout).strip()


@pytest.mark.slow
def test_a_refused_connection_names_the_limit(make_daemon: Callable[..., Daemon]) -> None:
    daemon = make_daemon("[limits]\nmax_connections = 8\n")
    daemon.run("sleep", "1000", job_id="x")
    path = daemon.root.reader_socket
    with contextlib.ExitStack() as taken:
        opened("events", path, 8, taken)
        with muster(path, "ps") as refused:
            told = refused.communicate(timeout=90)[1]
            assert refused.returncode == 5, told
        assert "it is at its limit of 8: try again, or raise max_connections in [limits]" in told.splitlines()[-1]
        assert "broke" not in told and "kill" not in told


@pytest.mark.parametrize("command", [("ps",), ("logs", "x"), ("events", "x")])
def test_a_command_is_hung_up_on_while_the_other_clients_leave(
    daemon: Daemon, tmp_path: Path, command: tuple[str, ...]
) -> None:
    daemon.run("echo", "hi", job_id="x")
    daemon.wait("x")
    with full_once(tmp_path / "s", daemon.root.socket) as path, muster(path, *command) as asked:
        out, told = asked.communicate(timeout=60)
        assert (asked.returncode, told) == (0, ""), told
        assert command[0] == "ps" or "hi" in out or "job." in out


@contextlib.contextmanager
def full_once(path: Path, behind: Path) -> Iterator[Path]:
    """A socket that hangs up on its first connection, and hands each later one to the socket `behind` it."""
    with contextlib.ExitStack() as sockets:
        listener = sockets.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(str(path))
        listener.listen()
        threads: list[threading.Thread] = []

        def start(target: Callable[..., None], *args: socket.socket) -> None:
            threads.append(threading.Thread(target=target, args=args))
            threads[-1].start()

        def copy(source: socket.socket, target: socket.socket) -> None:
            with contextlib.suppress(OSError):
                while data := source.recv(65536):
                    target.sendall(data)
            for end in (source, target):
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

        def serve() -> None:
            with contextlib.suppress(OSError):
                listener.accept()[0].close()
                while True:
                    near = sockets.enter_context(listener.accept()[0])
                    far = sockets.enter_context(socket.socket(socket.AF_UNIX))
                    far.connect(str(behind))
                    start(copy, near, far)
                    start(copy, far, near)

        start(serve)
        try:
            yield path
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            for thread in threads:
                thread.join()
