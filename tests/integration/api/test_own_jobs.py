"""Who is at the other end of a unix socket, and users who reach their own jobs only."""

import asyncio
import contextlib
import gzip
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from muster import client
from muster.v1 import (
    event_pb2,
    exec_pb2,
    exec_pb2_grpc,
    job_pb2,
    job_pb2_grpc,
    log_pb2,
    node_pb2,
    probe_pb2,
    telemetry_pb2,
)
from tests.conftest import BIN, Daemon, eventually, let_through
from tests.integration.api.test_access import METHODS, Listening, audit, listening, outcome, path_of

__all__ = ["listening"]  # a fixture

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
#: Users without names, so that every machine has them.
ALICE, BOB = 41_001, 41_002
_ASK = """
import os, socket, sys
os.chdir(os.path.dirname(sys.argv[2]))  # on the way there may be folders of the tests' own
os.setgroups([]), os.setgid(int(sys.argv[1])), os.setuid(int(sys.argv[1]))
with socket.socket(socket.AF_UNIX) as sock:
    sock.connect(os.path.basename(sys.argv[2]))
    print(os.getpid(), sock.makefile().read())
"""


class User:
    """Calls as a user of the node does, by its token."""

    def __init__(self, daemon: Daemon, uid: int) -> None:
        command = [sys.executable, "-c", _ASK, str(uid), str(daemon.root.identity_socket)]
        pid, _, text = subprocess.run(command, capture_output=True, text=True, check=True).stdout.partition(" ")
        self.pid, self.told = int(pid), json.loads(text)
        self.metadata: tuple[tuple[str, str], ...] = (("muster-token", self.told.get("token", "")),)
        self.name = str(self.told.get("user", ""))

    def __call__(self, method: Any, request: Any) -> Any:
        return method(request, timeout=60, metadata=self.metadata)

    def refused(self, method: Any, request: Any) -> str:
        """The reason of a call that fails."""
        with pytest.raises(grpc.RpcError) as error:
            answer = self(method, request)
            if not hasattr(answer, "DESCRIPTOR"):
                list(answer)
        return client.failure(error.value).reason


@pytest.fixture
def owned(make_daemon: Callable[..., Daemon]) -> Daemon:
    daemon = make_daemon("[access]\nown_jobs_only = true\n")
    let_through(daemon.folder)
    return daemon


@pytest.fixture
def alice(owned: Daemon) -> User:
    return User(owned, ALICE)


@pytest.fixture
def root(owned: Daemon) -> User:
    return User(owned, 0)


def spec(job_id: str, *command: str, **fields: Any) -> job_pb2.StartRequest:
    return job_pb2.StartRequest(spec=job_pb2.JobSpec(job_id=job_id, command=command or ("sleep", "1000"), **fields))


@pytest.fixture
def jobs(owned: Daemon, alice: User, root: User) -> Iterator[None]:
    root(owned.jobs.Start, spec("roots"))
    root(owned.jobs.Start, spec("bobs", "sh", "-c", "echo secret; exec sleep 1000", user=str(BOB)))
    alice(owned.jobs.Start, spec("alices", "sh", "-c", "echo mine; id -u; exec sleep 1000"))
    for job in ("roots", "bobs", "alices"):
        until_running(owned, root, job)
    until_written(owned, "bobs", b"secret\n")
    until_written(owned, "alices", f"mine\n{ALICE}\n".encode())
    yield
    root = User(owned, 0)  # the daemon may be another one by now
    for job in ("roots", "bobs", "alices"):
        root(owned.jobs.Stop, job_pb2.StopRequest(job_id=job, grace=Duration()))


def until_written(daemon: Daemon, job: str, output: bytes) -> None:
    log = daemon.root.rank_log(job, 0, 0)
    eventually(lambda: log.exists() and log.read_bytes() == output, message=f"{job} has written")


def until_running(daemon: Daemon, user: User, job: str) -> None:
    eventually(lambda: state(daemon, user, job) == job_pb2.JOB_STATE_RUNNING, 60, f"{job} runs")


def state(daemon: Daemon, user: User, job: str) -> "job_pb2.JobState.ValueType":
    return user(daemon.jobs.Get, job_pb2.GetRequest(job_id=job)).job.state  # type: ignore[no-any-return]


# --- who ------------------------------------------------------------------------------------------------------------


def test_a_token_names_the_user_and_the_process(daemon: Daemon) -> None:
    alice = User(daemon, ALICE)
    assert alice.told | {"token": ""} == {
        "token": "",
        "uid": ALICE,
        "gid": ALICE,
        "pid": alice.pid,
        "user": str(ALICE),
        "expires_in_s": 300.0,
    }
    daemon.run("sleep", "1000", job_id="x")
    daemon.until_running("x")
    stopped = alice(daemon.jobs.Stop, job_pb2.StopRequest(job_id="x"))
    who = f"uid {ALICE}, pid {alice.pid}"
    assert stopped.job.verdict.summary == f"stopped by {who}"
    line = audit(daemon, 2)[-1]
    assert (line["who"], line["uid"], line["gid"], line["pid"]) == (
        f"{who} by {daemon.root.socket}",
        ALICE,
        ALICE,
        alice.pid,
    )
    [event] = [
        answer.event
        for answer in daemon.events.Watch(
            event_pb2.WatchRequest(job_id="x", from_oldest=True, no_follow=True), timeout=60
        )
        if answer.event.kind == "job.stopping"
    ]
    assert who in event.message


def test_what_a_client_claims_stands_behind_who_it_is(daemon: Daemon) -> None:
    alice = User(daemon, ALICE)
    alice.metadata += (("muster-caller", "root (muster, pid 1)"),)
    daemon.run("sleep", "1000", job_id="x")
    daemon.until_running("x")
    stopped = alice(daemon.jobs.Stop, job_pb2.StopRequest(job_id="x"))
    expected = f"stopped by uid {ALICE}, pid {alice.pid}, calling itself 'root (muster, pid 1)'"
    assert stopped.job.verdict.summary == expected


def test_the_command_line_shows_its_token(daemon: Daemon) -> None:
    daemon.run("sleep", "1000", job_id="x")
    assert daemon.cli("stop", "x").returncode == 0
    line = audit(daemon, 2)[-1]
    assert line["uid"] == 0 and line["says"] == f"root (muster, pid {line['pid']})"


def test_the_clients_show_their_tokens_with_every_kind_of_call(owned: Daemon) -> None:
    watch = event_pb2.WatchRequest(from_oldest=True, no_follow=True)
    run = exec_pb2.ExecRequest(start=exec_pb2.ExecStart(job_id="none", argv=["id"]))
    with client.connect_blocking(owned.address) as blocking:
        blocking.jobs.Start(spec("x"), timeout=60)
        assert list(blocking.events.Watch(watch, timeout=60))
        with pytest.raises(grpc.RpcError) as error:
            list(blocking.execs.Exec(iter([run]), timeout=60))
        assert client.failure(error.value).reason == "JOB_NOT_FOUND"

    async def stop() -> None:
        async with client.connect(owned.address, "the tests") as muster:
            assert [answer async for answer in muster.events.Watch(watch, timeout=60)]
            call = muster.execs.Exec(iter([run]), timeout=60)
            with pytest.raises(grpc.RpcError) as error:
                [answer async for answer in call]
            assert client.failure(error.value).reason == "JOB_NOT_FOUND"
            await muster.jobs.Stop(job_pb2.StopRequest(job_id="x", grace=Duration()), timeout=60)

    asyncio.run(stop())
    lines = eventually(lambda: len(found := [line for line in audit(owned) if line["answer"] == "OK"]) >= 2 and found)
    assert [(line["uid"], line["pid"]) for line in lines] == [(0, os.getpid())] * 2


@pytest.mark.parametrize("token", ["x", "x.y", "é.y", "." * 100, "W10=.", "a" * 5000], ids=range(6))
def test_a_token_that_is_none_is_refused_with_its_own_reason(daemon: Daemon, token: str) -> None:
    user = User(daemon, 0)
    user.metadata = (("muster-token", token.encode("ascii", "ignore").decode()),)
    assert user.refused(daemon.jobs.List, job_pb2.ListRequest()) == "TOKEN_REFUSED"


def test_a_token_changed_by_a_letter_is_refused(daemon: Daemon) -> None:
    user = User(daemon, 0)
    token = user.told["token"]
    for at in (0, 10, len(token) - 1):
        other = "A" if token[at] != "A" else "B"
        user.metadata = (("muster-token", token[:at] + other + token[at + 1 :]),)
        assert user.refused(daemon.jobs.List, job_pb2.ListRequest()) == "TOKEN_REFUSED"


def test_a_token_ends_with_its_daemon_and_the_command_line_gets_another(daemon: Daemon) -> None:
    user = User(daemon, 0)
    daemon.run("sh", "-c", "echo here; exec sleep 1000", job_id="x")
    daemon.until_running("x")
    follower = subprocess.Popen(
        [BIN / "muster", "logs", "-f", "x"],
        env=os.environ | {"MUSTER_ROOT": str(daemon.folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert follower.stdout is not None and follower.stdout.readline() == b"here\n"
        daemon.kill()
        daemon.restart()
        assert user.refused(daemon.jobs.List, job_pb2.ListRequest()) == "TOKEN_REFUSED"
        daemon.stop("x", grace_s=0)
        assert follower.wait(60) == 0, follower.stderr.read() if follower.stderr else ""
    finally:
        follower.kill()
        follower.communicate()


def test_who_sees_the_socket_gets_a_token(daemon: Daemon) -> None:
    """From the first moment: the name of who calls has one form, whenever the call is made."""
    daemon.kill()
    for path in (daemon.root.socket, daemon.root.identity_socket):
        path.unlink(missing_ok=True)
    begins = threading.Thread(target=daemon.restart)
    begins.start()
    while begins.is_alive() and not daemon.root.socket.exists():
        pass
    there = daemon.root.identity_socket.exists()
    begins.join()
    assert there


def test_who_connects_and_never_reads_keeps_nobody_from_a_token(daemon: Daemon) -> None:
    silent = [socket.socket(socket.AF_UNIX) for _ in range(200)]
    try:
        for sock in silent:
            sock.connect(str(daemon.root.identity_socket))
        assert User(daemon, 0).told["uid"] == 0
    finally:
        for sock in silent:
            sock.close()


def test_a_user_of_another_user_namespace_gets_no_token(daemon: Daemon) -> None:
    told = User(daemon, 65534).told
    assert "token" not in told and "identifies nobody" in told["error"]


def test_the_command_says_why_it_got_no_token(owned: Daemon) -> None:
    """The answer is that to a user of another user namespace, whom not every machine has for a test."""
    path = owned.root.identity_socket
    path.unlink()
    with socket.socket(socket.AF_UNIX) as identity:
        identity.bind(str(path))
        identity.listen()

        def answer() -> None:
            with contextlib.suppress(OSError):
                while True:
                    with identity.accept()[0] as caller:
                        caller.sendall(b'{"error": "uid 65534 identifies nobody"}\n')

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            words = [str(BIN / "muster"), "--address", f"unix:{owned.root.socket}", "ps"]
            done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
        finally:
            identity.shutdown(socket.SHUT_RDWR)
            thread.join()
    assert done.returncode == 5
    assert done.stderr == "muster: musterd cannot tell which user you are: uid 65534 identifies nobody\n"


# --- own jobs -------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("jobs")
def test_a_user_reaches_their_own_job_and_no_other(owned: Daemon, alice: User) -> None:
    assert owned.channel is not None
    execs = exec_pb2_grpc.ExecServiceStub(owned.channel)
    run = exec_pb2.RunCommandRequest
    assert state(owned, alice, "alices") == job_pb2.JOB_STATE_RUNNING
    assert alice(execs.RunCommand, run(job_id="alices", argv=["id", "-u"])).stdout == f"{ALICE}\n".encode()
    request = log_pb2.ReadLogsRequest(job_id="alices")

    def output() -> bytes:
        return b"".join(answer.data for answer in alice(owned.logs.ReadLogs, request))

    eventually(lambda: output() == f"mine\n{ALICE}\n".encode())

    def start(job: str) -> Iterator[exec_pb2.ExecRequest]:
        return iter([exec_pb2.ExecRequest(start=exec_pb2.ExecStart(job_id=job, argv=["id"], detached=True))])

    whole = job_pb2.GetReportRequest(job_id="alices", whole=True)
    report = json.loads(gzip.decompress(alice(owned.jobs.GetReport, whole).whole))
    assert report["jobId"] == "alices" and "bobs" not in json.dumps(report)
    list(alice(execs.Exec, start("alices")))
    for job in ("bobs", "roots"):
        for method, asked in (
            (owned.jobs.Get, job_pb2.GetRequest(job_id=job)),
            (owned.jobs.Stop, job_pb2.StopRequest(job_id=job)),
            (owned.jobs.Wait, job_pb2.WaitRequest(job_id=job)),
            (owned.jobs.Signal, job_pb2.SignalRequest(job_id=job, signal="KILL", force=True)),
            (owned.jobs.Delete, job_pb2.DeleteRequest(job_id=job, force=True)),
            (owned.jobs.GetReport, job_pb2.GetReportRequest(job_id=job)),
            (owned.jobs.GetReport, job_pb2.GetReportRequest(job_id=job, whole=True)),
            (owned.jobs.GetStacks, job_pb2.GetStacksRequest(job_id=job)),
            (owned.logs.ReadLogs, log_pb2.ReadLogsRequest(job_id=job)),
            (owned.events.Watch, event_pb2.WatchRequest(job_id=job)),
            (owned.telemetry.GetHistory, telemetry_pb2.GetHistoryRequest(job_id=job)),
            (owned.telemetry.GetTelemetry, telemetry_pb2.GetTelemetryRequest(job_id=job)),
            (owned.telemetry.RecordTelemetry, telemetry_pb2.RecordTelemetryRequest(job_id=job)),
            (execs.RunCommand, run(job_id=job, argv=["id"])),
            (execs.Exec, start(job)),
            (execs.ListSessions, exec_pb2.ListSessionsRequest(job_id=job)),
            (execs.EndSession, exec_pb2.EndSessionRequest(job_id=job, session_id="x")),
        ):
            assert alice.refused(method, asked) == "NOT_YOUR_JOB", (job, asked)
    eventually(lambda: audit(owned)[-1]["answer"] == "PERMISSION_DENIED")


@pytest.mark.usefixtures("jobs")
def test_lists_leave_out_what_is_not_the_callers(owned: Daemon, alice: User, root: User) -> None:
    def listed(user: User) -> set[str]:
        found = {job.job_id for job in user(owned.jobs.List, job_pb2.ListRequest()).jobs}
        running = job_pb2.ListRequest(states=[job_pb2.JOB_STATE_RUNNING])
        assert {job.job_id for job in user(owned.jobs.List, running).jobs} <= found
        return found

    def told(user: User) -> set[str]:
        request = event_pb2.WatchRequest(from_oldest=True, no_follow=True)
        return {answer.event.job_id for answer in user(owned.events.Watch, request) if answer.event.job_id}

    def printed(user: User) -> set[str]:
        request = log_pb2.ReadNodeLogsRequest(events=True)
        answers = list(user(owned.logs.ReadNodeLogs, request))
        text = b"".join(answer.output.data for answer in answers).decode()
        assert ("secret" in text) == (user is root)
        return {answer.job_id for answer in answers if answer.job_id} | {
            job for job in ("roots", "bobs", "alices") if f" {job} " in text
        }

    def used(user: User) -> set[str]:
        return {job.job_id for job in user(owned.telemetry.GetTelemetry, telemetry_pb2.GetTelemetryRequest()).jobs}

    for look in (listed, told, printed, used):
        assert look(root) == {"roots", "bobs", "alices"}, look
        assert look(alice) == {"alices"}, look
    for job in ("roots", "bobs", "alices"):
        root(owned.jobs.Stop, job_pb2.StopRequest(job_id=job, grace=Duration()))
    owned.kill()
    owned.restart()  # what has ended is read from disk
    alice, root = User(owned, ALICE), User(owned, 0)
    for look in (listed, told):
        assert look(root) == {"roots", "bobs", "alices"}, look
        assert look(alice) == {"alices"}, look


@pytest.mark.slow
def test_records_of_all_jobs_are_those_of_the_callers(make_daemon: Callable[..., Daemon]) -> None:
    daemon = make_daemon("[access]\nown_jobs_only = true\n[telemetry]\nprocesses_s = 0.2\n")
    let_through(daemon.folder)
    alice, root = User(daemon, ALICE), User(daemon, 0)
    root(daemon.jobs.Start, spec("roots"))
    alice(daemon.jobs.Start, spec("alices"))

    def recorded(user: User) -> Iterator[str]:
        for answer in user(daemon.telemetry.RecordTelemetry, telemetry_pb2.RecordTelemetryRequest()):
            yield json.loads(answer.line)["job"]

    of_root = recorded(root)
    assert {next(of_root) for _ in range(10)} == {"roots", "alices"}
    of_alice = recorded(alice)
    assert {next(of_alice) for _ in range(10)} == {"alices"}
    for job in ("roots", "alices"):
        root(daemon.jobs.Stop, job_pb2.StopRequest(job_id=job, grace=Duration()))


@pytest.mark.slow
def test_every_other_call_is_for_admins(owned: Daemon, alice: User) -> None:
    """Also one that will be added."""
    assert owned.channel is not None
    channel = grpc.intercept_channel(owned.channel, _Token(alice.metadata))
    free = {"GetNode", "ListChecks", "List", "Start", "Watch", "ReadNodeLogs", "ListSessions", "GetTelemetry", "Exec"}
    named = {
        "Get",
        "Stop",
        "Wait",
        "Delete",
        "GetReport",
        "GetStacks",
        "ReadLogs",
        "RunCommand",
        "EndSession",
        "Release",
        "Signal",
    }
    for method in METHODS:
        # No record is of the caller's: nothing comes.
        code, reason = outcome(channel, path_of(method), timeout=3 if method.name == "RecordTelemetry" else 60)
        if method.name == "RecordTelemetry":
            assert code == "DEADLINE_EXCEEDED"
        elif method.name in free | {"GetHistory"}:
            assert reason in ("", "INVALID_REQUEST", "OK"), method.full_name
        elif method.name in named:
            assert reason == "INVALID_REQUEST", method.full_name
        else:
            assert (code, reason) == ("PERMISSION_DENIED", "NOT_YOUR_JOB"), method.full_name


class _Token(grpc.StreamStreamClientInterceptor):
    def __init__(self, metadata: Any) -> None:
        self._metadata = metadata

    def intercept_stream_stream(self, continuation: Any, details: Any, requests: Any) -> Any:
        return continuation(details._replace(metadata=self._metadata), requests)


def test_users_start_jobs_as_themselves_only(owned: Daemon, alice: User) -> None:
    answer = alice(owned.jobs.Start, spec("j", "true"))
    assert answer.job.spec.user == str(ALICE)
    assert alice(owned.jobs.Start, spec("j", "true")).already_existed
    assert alice(owned.jobs.Start, spec("j", "true", user=str(ALICE))).already_existed
    for fields in ({"user": "root"}, {"user": "0"}, {"user": str(BOB)}, {"nice": -5}):
        assert alice.refused(owned.jobs.Start, spec("k", "true", **fields)) == "NOT_YOUR_JOB", fields
    assert alice.refused(owned.jobs.Get, job_pb2.GetRequest(job_id="k")) == "JOB_NOT_FOUND"


def test_users_do_not_undo_the_hardening_of_the_node(owned: Daemon, alice: User) -> None:
    for fields in ({"no_new_privs": "no"}, {"capabilities": ["kill"]}, {"limits": {"pids": 1 << 22}}):
        assert alice.refused(owned.jobs.Start, spec("k", "true", **fields)) == "NOT_YOUR_JOB", fields
    more = {"no_new_privs": "yes", "capabilities": ["none"], "private_tmp": "no", "limits": {"pids": 100}}
    assert alice(owned.jobs.Start, spec("k", "true", **more)).job.hardening.no_new_privs


def test_users_learn_nothing_of_files_that_they_cannot_see(owned: Daemon, alice: User, tmp_path: Path) -> None:
    """Whether they exist or not, and whatever is in them; and root opens no device for a user."""
    hidden, link, own = tmp_path / "hidden", tmp_path / "link", tmp_path / "own"
    hidden.mkdir(mode=0o700)
    for path in (hidden / "profile", own):
        path.write_text('{"defaultAction": "SCMP_ACT_ALLOW"}')
    link.symlink_to(hidden / "profile")
    let_through(tmp_path)
    answers = set()
    named = ("seccomp", "workdir", "pre_start", "requirements", "epilog", "staging_credentials")
    for name in (hidden / "profile", hidden / "none", link):
        said: list[dict[str, Any]] = [{field: str(name)} for field in named]
        for fields in (*said, {"read_only": [str(name)]}):
            with pytest.raises(grpc.RpcError) as caught:
                alice(owned.jobs.Start, spec("k", "true", **fields))
            answers.add(str(caught.value.details()).partition(f"{str(name)!r}: ")[2])
    assert len(answers) == 1 and "cannot see such a file" in answers.pop()
    own.chmod(0o600)
    assert alice.refused(owned.jobs.Start, spec("k", "true", seccomp=str(own))) == "INVALID_REQUEST"
    keys = {"code": f"file://{tmp_path}/code", "staging_credentials": str(own)}
    with pytest.raises(grpc.RpcError, match=f"belongs to uid 0: chown it to the job's user, {ALICE}"):
        alice(owned.jobs.Start, spec("k", "true", **keys))
    own.chmod(0o644)
    assert alice(owned.jobs.Start, spec("k", "true", seccomp=str(own))).job.hardening.seccomp == str(own)
    device = tmp_path / "device"
    os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(10, 130))  # a watchdog
    with pytest.raises(grpc.RpcError, match="is not a file"):
        alice(owned.jobs.Start, spec("l", "true", seccomp=str(device)))


def test_a_certificate_stands_for_a_user(listening: Listening) -> None:
    daemon = listening.daemon
    let_through(daemon.folder)
    table = f'certificates = ["{ALICE}.example={ALICE}"]\nadmins = ["certificate:scheduler.example"]\n'
    names = f'operators = ["scheduler.example", "{ALICE}.example", "stranger.example"]\n'
    daemon.config.write_text(f"{daemon.config.read_text()}[access]\nown_jobs_only = true\n{table}")
    daemon.config.write_text(daemon.config.read_text().replace('operators = ["scheduler.example"]\n', names))
    daemon.kill()
    daemon.restart()

    def start(name: str, job_id: str) -> str:
        pair = listening.authority.pair(name)
        with listening.channel(pair) as channel:
            jobs = job_pb2_grpc.JobServiceStub(channel)
            try:
                return str(jobs.Start(spec(job_id, "sleep", "1000"), timeout=60).job.spec.user)
            except grpc.RpcError as error:
                return client.failure(error).reason

    assert start("scheduler.example", "roots") == ""
    assert start(f"{ALICE}.example", "alices") == str(ALICE)
    assert start("stranger.example", "x") == "NOT_YOUR_JOB"
    mine = listening.authority.pair(f"{ALICE}.example")
    stopped = listening.cli(mine, "stop", "--grace", "0", "roots")
    assert stopped.returncode == 5 and "job roots belongs to the user of musterd" in stopped.stderr
    assert listening.cli(mine, "ps", "-q").stdout.split() == ["alices"]
    for job in ("roots", "alices"):
        User(daemon, 0)(daemon.jobs.Stop, job_pb2.StopRequest(job_id=job, grace=Duration()))


@pytest.mark.usefixtures("jobs")
def test_a_start_tells_nothing_of_another_users_job(owned: Daemon, alice: User, root: User) -> None:
    with pytest.raises(grpc.RpcError) as error:
        alice(owned.jobs.Start, spec("bobs", "true", env={"PIN": "1"}))
    assert client.failure(error.value).reason == "NOT_YOUR_JOB"
    assert client.facts(error.value) == {} and "env" not in client.failure(error.value).message


def test_an_id_that_was_another_users_begins_anew(owned: Daemon, alice: User, root: User) -> None:
    bob = User(owned, BOB)
    bob(owned.jobs.Start, spec("again", "true"))
    eventually(lambda: state(owned, bob, "again") == job_pb2.JOB_STATE_SUCCEEDED, 60, "it has ended")
    bob(owned.jobs.Delete, job_pb2.DeleteRequest(job_id="again"))
    alice(owned.jobs.Start, spec("again", "true"))
    eventually(lambda: state(owned, alice, "again") == job_pb2.JOB_STATE_SUCCEEDED, 60, "it has ended")
    watch = event_pb2.WatchRequest(job_id="again", from_oldest=True, no_follow=True)
    kinds = [answer.event.kind for answer in alice(owned.events.Watch, watch) if answer.event.kind]
    assert kinds.count("job.accepted") == 1 and kinds.count("job.ended") == 1
    assert [answer.event.kind for answer in root(owned.events.Watch, watch)].count("job.accepted") == 2


def test_a_refused_session_names_its_job_in_the_audit_log(owned: Daemon, alice: User, root: User) -> None:
    root(owned.jobs.Start, spec("roots"))
    assert owned.channel is not None
    execs = exec_pb2_grpc.ExecServiceStub(owned.channel)
    start = exec_pb2.ExecRequest(start=exec_pb2.ExecStart(job_id="roots", argv=["id"]))
    assert alice.refused(execs.Exec, iter([start])) == "NOT_YOUR_JOB"
    line = audit(owned, 2)[-1]
    assert (line["job_id"], line["uid"]) == ("roots", ALICE)
    root(owned.jobs.Stop, job_pb2.StopRequest(job_id="roots", grace=Duration()))


def test_a_daemon_that_is_silent_for_a_moment_still_knows_who_calls(owned: Daemon) -> None:
    os.kill(owned.pid, signal.SIGSTOP)
    waker = threading.Timer(2.0, os.kill, (owned.pid, signal.SIGCONT))
    waker.start()
    try:
        done = owned.cli("ps")
    finally:
        waker.join()
    assert done.returncode == 0, done.stderr


def test_a_caller_who_shows_no_token_sees_the_node_alone(owned: Daemon) -> None:
    nobody = User(owned, 0)
    nobody.metadata = ()
    assert nobody(owned.nodes.GetNode, node_pb2.GetNodeRequest()).node.hostname
    assert nobody.refused(owned.jobs.List, job_pb2.ListRequest()) == "IDENTITY_NEEDED"
    assert nobody.refused(owned.jobs.Start, spec("j")) == "IDENTITY_NEEDED"
    assert nobody.refused(owned.probes.RunChecks, probe_pb2.RunChecksRequest()) == "IDENTITY_NEEDED"


def test_admins_reach_all(make_daemon: Callable[..., Daemon]) -> None:
    daemon = make_daemon(f'[access]\nown_jobs_only = true\nadmins = ["{BOB}"]\n')
    alice, bob = User(daemon, ALICE), User(daemon, BOB)
    alice(daemon.jobs.Start, spec("alices"))
    bob(daemon.jobs.Stop, job_pb2.StopRequest(job_id="alices", grace=Duration()))
    bob(daemon.nodes.Drain, node_pb2.DrainRequest(reason="a test"))
    assert alice.refused(daemon.nodes.Undrain, node_pb2.UndrainRequest()) == "NOT_YOUR_JOB"
