"""Who may do what: sockets and their modes, roles, certificates, and what is written down of it."""

import contextlib
import grp
import json
import os
import pwd
import shutil
import signal
import socket
import ssl
import stat
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme
from cryptography import x509
from google.protobuf.descriptor import MethodDescriptor
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from muster import client
from muster.agent.api import access
from muster.v1 import (
    event_pb2,
    exec_pb2,
    exec_pb2_grpc,
    job_pb2,
    job_pb2_grpc,
    log_pb2,
    node_pb2,
    node_pb2_grpc,
    probe_pb2,
    telemetry_pb2,
)
from tests.conftest import Daemon, eventually, let_through
from tests.integration.install.test_daemon import musterd
from tests.ports import free_port
from tests.unit.agent.api.test_certificate import common, signed, write_key

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
CONTRACT = (event_pb2, exec_pb2, job_pb2, log_pb2, node_pb2, probe_pb2, telemetry_pb2)
METHODS: list[MethodDescriptor] = [
    method
    for module in CONTRACT
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]


def path_of(method: MethodDescriptor) -> str:
    return f"/{method.containing_service.full_name}/{method.name}"


def audit(daemon: Daemon, least: int = 0) -> list[dict[str, Any]]:
    """The lines, as soon as they are at least so many: an answer waits for its line, but not for long."""

    def lines() -> list[str]:
        log = daemon.root.audit_log
        return log.read_text().splitlines() if log.exists() else []

    eventually(lambda: len(lines()) >= least)
    return [json.loads(line) for line in lines()]


def outcome(channel: Any, path: str, *requests: bytes, timeout: float = 60) -> tuple[str, str]:
    """Status and reason of a call, whose first answer is enough."""
    call: Any = channel.stream_stream(path)(iter(requests or (b"",)), timeout=timeout)
    try:
        for _ in call:
            call.cancel()
            return "OK", ""
    except grpc.RpcError as error:
        return error.code().name, client.failure(error).reason
    return call.code().name, ""


# --- roles ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_call_is_a_look_or_refused_to_a_reader_and_written_down(shared: Daemon) -> None:
    assert len(METHODS) > 20
    with grpc.insecure_channel(f"unix:{shared.root.reader_socket}") as channel:
        offered = set(ProtoReflectionDescriptorDatabase(channel).get_services())
        ours = {name for name in offered if name.startswith("muster.")}
        assert ours == {method.containing_service.full_name for method in METHODS}
        assert offered - ours == {"grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}
        for method in METHODS:
            before = len(audit(shared))
            # A look may have nothing to tell yet: nothing is made of that.
            within_s = 5 if access.is_look(path_of(method)) else 60
            code, reason = outcome(channel, path_of(method), timeout=within_s)
            if access.is_look(path_of(method)):
                assert code in ("OK", "NOT_FOUND", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED"), (method.full_name, reason)
            else:
                assert (code, reason) == ("PERMISSION_DENIED", "ROLE_NOT_ALLOWED"), method.full_name
                [line] = audit(shared, before + 1)[before:]
                assert line["call"] == f"{method.containing_service.name}/{method.name}"
                assert (line["role"], line["answer"]) == ("reader", "PERMISSION_DENIED")
                assert str(shared.root.reader_socket) in line["who"]
    assert {path.removeprefix("/") for path in access.LOOKS} <= {path_of(method)[1:] for method in METHODS}


def test_the_command_line_of_a_reader(shared: Daemon) -> None:
    reader = ("--address", f"unix:{shared.root.reader_socket}")
    assert shared.cli("ps", *reader).returncode == 0
    refused = shared.cli("node", "drain", "no", *reader)
    assert refused.returncode == 5 and "needs the role operator" in refused.stderr


def test_what_is_done_is_written_down_and_what_is_looked_at_is_not(daemon: Daemon) -> None:
    daemon.run("sleep", "--help-me-hunter2", job_id="bad", env={"TOKEN": "hunter2"})
    daemon.wait("bad")
    daemon.run("sleep", "1000", job_id="x")
    daemon.until_running("x")
    assert daemon.cli("exec", "x", "--", "sh", "-c", "exit 3", "hunter2").returncode == 3
    assert daemon.channel is not None
    execs = exec_pb2_grpc.ExecServiceStub(daemon.channel)
    execs.RunCommand(exec_pb2.RunCommandRequest(job_id="x", argv=["cat", "/hunter2"], input=b"hunter2"), timeout=60)
    daemon.nodes.Drain(node_pb2.DrainRequest(reason="a test"), timeout=60, metadata=(("muster-caller", "bob@x"),))
    daemon.nodes.Undrain(node_pb2.UndrainRequest(), timeout=60)
    daemon.cli("ps"), daemon.cli("status", "x"), daemon.cli("node")
    daemon.stop("x", grace_s=0, reason="enough")
    with pytest.raises(grpc.RpcError):
        daemon.stop("nobody")
    with pytest.raises(grpc.RpcError):
        daemon.run("true", job_id="signed", code="http://h/c?sig=hunter2", outputs={"x": "no URL"})
    unnamed = daemon.run("true").job_id
    lines = audit(daemon, 11)
    told = [(line["call"].partition("/")[2], line.get("job_id", ""), line["answer"]) for line in lines]
    assert told == [
        ("Start", "bad", "OK"),
        ("Start", "x", "OK"),
        ("Exec", "x", "BEGUN"),
        ("Exec", "x", "OK"),
        ("RunCommand", "x", "OK"),
        ("Drain", "", "OK"),
        ("Undrain", "", "OK"),
        ("Stop", "x", "OK"),
        ("Stop", "nobody", "NOT_FOUND"),
        ("Start", "signed", "INVALID_ARGUMENT"),
        ("Start", unnamed, "OK"),
    ]
    by_call = {line["call"].partition("/")[2]: line for line in lines}
    assert by_call["Exec"]["program"] == "sh" and by_call["Exec"]["session_id"]
    assert (by_call["RunCommand"]["program"], by_call["Drain"]["reason"]) == ("cat", "a test")
    assert by_call["Drain"]["says"] == "bob@x" and by_call["Drain"]["role"] == "operator"
    assert "hunter2" not in daemon.root.audit_log.read_text()
    assert stat.S_IMODE(daemon.root.audit_log.stat().st_mode) == 0o640


# --- files ------------------------------------------------------------------------------------------------------------


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_modes_and_owners_of_sockets_and_state(daemon: Daemon) -> None:
    daemon.run("sleep", "1000", job_id="x", env={"TOKEN": "hunter2"})
    daemon.until_running("x")
    root = daemon.root
    assert (mode(root.socket), mode(root.reader_socket)) == (0o660, 0o660)
    assert mode(root.nursery_socket) & 0o177 == 0
    assert mode(root.job("x").control) & 0o177 == 0
    assert (mode(root.run), mode(root.state), mode(root.jobs)) == (0o755, 0o711, 0o711)
    passable = {root.state, root.jobs, root.job("x").folder, root.job("x").workspace}
    for path in [root.state, *root.state.rglob("*")]:
        if path.is_relative_to(root.job("x").workspace / "device0"):
            continue  # the job's own
        with contextlib.suppress(FileNotFoundError):  # one that is being replaced
            if path.is_dir():
                assert mode(path) == 0o711 if path in passable else mode(path) & 0o077 == 0, path
            elif path.is_file():
                assert mode(path) & 0o022 == 0, path
                assert path.lstat().st_uid == os.geteuid(), path
                if b"hunter2" in path.read_bytes():
                    assert mode(path) == 0o600, path


@as_root
def test_groups_and_modes_are_those_of_the_configuration(make_daemon: Callable[..., Daemon]) -> None:
    nogroup = grp.getgrgid(pwd.getpwnam("nobody").pw_gid).gr_name
    daemon = make_daemon(f'[socket]\nmode = "0600"\ngroup = ""\nreader_mode = "0666"\nreader_group = "{nogroup}"\n')
    assert (mode(daemon.root.socket), mode(daemon.root.reader_socket)) == (0o600, 0o666)
    assert daemon.root.reader_socket.stat().st_gid == grp.getgrnam(nogroup).gr_gid
    let_through(daemon.folder)
    assert as_nobody(daemon.root.socket) == "PermissionError"
    assert as_nobody(daemon.root.reader_socket) == "connected"
    assert as_nobody(daemon.root.nursery_socket) == "PermissionError"


def as_nobody(path: Path) -> str:
    """What comes of nobody's connecting to a socket."""
    code = (
        "import os, socket, sys\nos.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "try: socket.socket(socket.AF_UNIX).connect(sys.argv[1]); print('connected')\n"
        "except OSError as error: print(type(error).__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, timeout=30, check=True)
    return done.stdout.strip()


def test_there_need_be_no_reader_socket(make_daemon: Callable[..., Daemon]) -> None:
    assert not make_daemon("[socket]\nreader = false\n").root.reader_socket.exists()


# --- certificates -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pair:
    """Files of a certificate and its key."""

    certificate: Path
    key: Path

    def credentials(self, authority: Path) -> grpc.ChannelCredentials:
        return grpc.ssl_channel_credentials(
            authority.read_bytes(), self.key.read_bytes(), self.certificate.read_bytes()
        )


class Authority:
    """Signs, for the daemon and for its clients."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name
        self.ca = trustme.CA()
        self.file = folder / f"{name}.pem"
        self.ca.cert_pem.write_to_path(self.file)

    def pair(self, *names: str, days: float = 1, into: Pair | None = None) -> Pair:
        """`days`: until it is no longer valid; negative: since then. `into`: files that are replaced."""
        now = datetime.now(UTC)
        made = self.ca.issue_cert(*names, not_before=now - timedelta(days=30), not_after=now + timedelta(days=days))
        pair = into or Pair(*(self._folder / f"{self._name}-{names[0]}{days}.{end}" for end in ("crt", "key")))
        for blob, path in ((made.private_key_pem, pair.key), (made.cert_chain_pems[0], pair.certificate)):
            new = path.with_suffix(".new")
            blob.write_to_path(new)
            new.chmod(0o600)
            new.rename(path)
        return pair


class Listening:
    """A daemon that listens on TCP, too."""

    def __init__(self, folder: Path, make_daemon: Callable[..., Daemon]) -> None:
        self.authority = Authority(folder, "authority")
        self.other = Authority(folder, "other")
        self.own = self.authority.pair("localhost")
        self.operator = self.authority.pair("scheduler.example")
        self.port = free_port()
        self.tls = (
            f'[tls]\nlisten = "127.0.0.1:{self.port}"\ncertificate = "{self.own.certificate}"\nkey = "{self.own.key}"\n'
            f'client_authority = "{self.authority.file}"\n'
        )
        self.daemon = make_daemon(self.tls + 'operators = ["scheduler.example"]\nreaders = ["grafana.example"]\n')

    @property
    def address(self) -> str:
        return f"localhost:{self.port}"

    def channel(self, pair: Pair | None, authority: Path | None = None) -> grpc.Channel:
        authority = authority or self.authority.file
        credentials = pair.credentials(authority) if pair else grpc.ssl_channel_credentials(authority.read_bytes())
        return grpc.secure_channel(self.address, credentials, options=[("grpc.use_local_subchannel_pool", 1)])

    def cli(self, pair: Pair, *words: str, address: str = "", authority: Path | None = None) -> Any:
        files = ("--tls-cert", str(pair.certificate), "--tls-key", str(pair.key))
        where = ("--address", address or self.address, "--tls-ca", str(authority or self.authority.file))
        return self.daemon.cli(*where, *files, *words)

    def context(self, pair: Pair | None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.authority.file)
        context.set_alpn_protocols(["h2"])
        if pair is not None:
            context.load_cert_chain(pair.certificate, pair.key)
        return context

    def handshake(self, context: ssl.SSLContext) -> tuple[str, bytes]:
        """Version and the daemon's certificate; raises what ssl raises, also where the daemon hangs up behind it."""
        with (
            socket.create_connection(("127.0.0.1", self.port), 60) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as tls,
        ):
            if not tls.recv(1):
                raise ConnectionResetError("the daemon hung up")
            return tls.version() or "", tls.getpeercert(binary_form=True) or b""


@pytest.fixture
def listening(tmp_path: Path, make_daemon: Callable[..., Daemon]) -> Listening:
    return Listening(tmp_path, make_daemon)


def test_roles_are_those_of_the_names_in_certificates(listening: Listening) -> None:
    daemon, authority = listening.daemon, listening.authority
    get, start = "/muster.v1.NodeService/GetNode", "/muster.v1.JobService/Start"
    with listening.channel(listening.operator) as channel:
        spec = job_pb2.JobSpec(job_id="x", command=["true"])
        job = job_pb2_grpc.JobServiceStub(channel).Start(job_pb2.StartRequest(spec=spec), timeout=60).job
        assert job.job_id == "x"
    with listening.channel(authority.pair("grafana.example")) as channel:
        assert outcome(channel, get)[0] == "OK"
        assert outcome(channel, start) == ("PERMISSION_DENIED", "ROLE_NOT_ALLOWED")
    with listening.channel(authority.pair("mallory.example")) as channel:
        for path in (get, start, "/grpc.health.v1.Health/Check"):
            assert outcome(channel, path) == ("PERMISSION_DENIED", "NO_ROLE")
    lines = [(line["call"], line["role"], line["answer"]) for line in audit(daemon, 5)]
    assert lines == [
        ("JobService/Start", "operator", "OK"),
        ("JobService/Start", "reader", "PERMISSION_DENIED"),
        ("NodeService/GetNode", None, "PERMISSION_DENIED"),
        ("JobService/Start", None, "PERMISSION_DENIED"),
        ("Health/Check", None, "PERMISSION_DENIED"),
    ]
    assert "mallory.example" in audit(daemon)[-1]["who"] and "127.0.0.1" in audit(daemon)[-1]["who"]
    started = [event for event in daemon.event_list("x") if "certificate scheduler.example" in str(event)]
    assert started or "scheduler.example" in daemon.root.job("x").journal.read_text()

    # Names are read again with the configuration, also for connections that are there.
    with listening.channel(authority.pair("mallory.example")) as channel:
        assert outcome(channel, get)[1] == "NO_ROLE"
        daemon.config.write_text(daemon.config.read_text().replace("grafana.example", "mallory.example"))
        assert daemon.process is not None
        daemon.process.send_signal(signal.SIGHUP)
        eventually(lambda: outcome(channel, get)[0] == "OK")


def test_the_command_line_over_tcp(listening: Listening) -> None:
    operator, authority = listening.operator, listening.authority
    assert listening.cli(operator, "start", "--job-id", "x", "--", "sleep", "1000").returncode == 0
    listening.daemon.until_running("x")
    # The daemon may be on another node: the folder where this was typed need not exist there.
    assert (
        listening.daemon.get("x").spec.workdir == "" and os.getcwd() not in listening.daemon.cli("status", "x").stdout
    )
    done = listening.cli(operator, "exec", "x", "--", "sh", "-c", "echo hello; exit 4")
    assert (done.returncode, done.stdout) == (4, "hello\n")
    env = {
        "MUSTER_ADDRESS": listening.address,
        "MUSTER_TLS_CA": str(authority.file),
        "MUSTER_TLS_CERT": str(operator.certificate),
        "MUSTER_TLS_KEY": str(operator.key),
    }
    done = listening.daemon.cli("stop", "x", "--grace", "0s", env=env)
    assert done.returncode == 0, done.stderr
    done = listening.cli(authority.pair("grafana.example"), "report", "x", "-o", "json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["said"]["state"] == "STOPPED"
    done = listening.cli(authority.pair("grafana.example"), "rm", "x")
    assert done.returncode == 5 and "certificate grafana.example" in done.stderr


def test_what_the_command_line_says_of_certificates(listening: Listening, tmp_path: Path) -> None:
    authority, other = listening.authority, listening.other

    def said(pair: Pair, **more: Any) -> str:
        done = listening.cli(pair, "node", **more)
        assert done.returncode == 4 and not done.stdout, done
        return str(done.stderr)

    assert "rejected the certificate" in said(authority.pair("scheduler.example", days=-1))
    assert "rejected the certificate" in said(other.pair("scheduler.example"))
    assert "cannot verify its certificate" in said(listening.operator, authority=other.file)
    assert "127.0.0.1" in said(listening.operator, address=f"127.0.0.1:{listening.port}")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        assert "no process listens" in said(listening.operator, address=f"localhost:{free.getsockname()[1]}")
    mixed = Pair(listening.operator.certificate, listening.own.key)
    assert "do not work together" in said(mixed)
    missing = listening.cli(Pair(tmp_path / "none", listening.own.key), "node")
    assert missing.returncode == 2 and "--tls-cert" in missing.stderr and "does not exist" in missing.stderr
    bare = listening.daemon.cli("node", "--address", listening.address)
    assert bare.returncode == 2 and "give --tls-ca" in bare.stderr


async def test_the_client_speaks_to_no_daemon_without_a_certificate(listening: Listening) -> None:
    with pytest.raises(ValueError, match="requires a client certificate"):
        async with client.connect(listening.address):
            pass
    credentials = listening.operator.credentials(listening.authority.file)
    async with client.connect(listening.address, credentials=credentials) as muster:
        await muster.node.GetNode(node_pb2.GetNodeRequest(), timeout=60)


def test_the_blocking_client(listening: Listening) -> None:
    with pytest.raises(ValueError, match="requires a client certificate"), client.connect_blocking(listening.address):
        pass
    credentials = listening.operator.credentials(listening.authority.file)
    with client.connect_blocking(listening.address, "alice\n@login1", credentials) as muster:
        spec = job_pb2.JobSpec(job_id="x", command=["sleep", "1000"])
        assert muster.jobs.Start(job_pb2.StartRequest(spec=spec), timeout=60).job.job_id == "x"
        asked = muster.jobs.Stop.future(job_pb2.StopRequest(job_id="x"), timeout=60)
        assert "alice@login1" in asked.result().job.verdict.stopped_by
        with pytest.raises(grpc.RpcError) as caught:
            muster.jobs.Get(job_pb2.GetRequest(job_id="none"), timeout=60)
        assert client.failure(caught.value).reason == "JOB_NOT_FOUND"
    with client.connect_blocking(str(listening.daemon.root.socket)) as muster:
        assert [job.job_id for job in muster.jobs.List(job_pb2.ListRequest(), timeout=60).jobs] == ["x"]


@pytest.mark.parametrize("how", ["cut at NUL", "beside another name", "of another kind"])
def test_a_name_that_only_looks_like_an_operators_has_no_role(listening: Listening, tmp_path: Path, how: str) -> None:
    subject, others = {
        "cut at NUL": ("scheduler.example\0.mallory.example", ()),
        "beside another name": ("scheduler.example", (x509.DNSName("mallory.example"),)),
        "of another kind": ("mallory.example", (x509.UniformResourceIdentifier("scheduler.example"),)),
    }[how]
    pair = Pair(tmp_path / "mallory.crt", tmp_path / "mallory.key")
    pair.certificate.write_bytes(signed(common(subject), *others, by=listening.authority.ca))
    write_key(pair.key)
    with listening.channel(pair) as channel:
        assert outcome(channel, "/muster.v1.NodeService/GetNode") == ("PERMISSION_DENIED", "NO_ROLE")
    [line] = audit(listening.daemon, 1)
    assert "scheduler" not in line["who"] and line["role"] is None


@pytest.mark.parametrize("whose", ["nobody", "another authority", "expired", "not yet valid"])
def test_handshakes_that_are_refused(listening: Listening, whose: str) -> None:
    authority = listening.authority
    pair = {
        "nobody": lambda: None,
        "another authority": lambda: listening.other.pair("scheduler.example"),
        "expired": lambda: authority.pair("scheduler.example", days=-1),
        "not yet valid": lambda: _future(authority),
    }[whose]()
    with pytest.raises((ssl.SSLError, ConnectionResetError)):
        listening.handshake(listening.context(pair))
    with listening.channel(pair) as channel:
        assert outcome(channel, "/muster.v1.NodeService/GetNode")[0] == "UNAVAILABLE"
    assert audit(listening.daemon) == []


@pytest.mark.slow
def test_a_connection_that_outlives_its_certificate_has_no_role_any_more(listening: Listening, tmp_path: Path) -> None:
    """Nor has a session that is resumed: gRPC shows the certificate that was verified then."""
    pair = Pair(tmp_path / "short.crt", tmp_path / "short.key")
    write_key(pair.key)
    with contextlib.ExitStack() as stack:
        for good_for_s in (15, 60):  # a busy machine may take longer than the first to connect
            until = datetime.now(UTC) + timedelta(seconds=good_for_s)
            pair.certificate.write_bytes(signed(common("scheduler.example"), by=listening.authority.ca, until=until))
            channel = stack.enter_context(listening.channel(pair))
            first = outcome(channel, "/muster.v1.NodeService/GetNode")
            if first == ("OK", "") or datetime.now(UTC) < until:
                break
        assert first == ("OK", "")
        eventually(lambda: outcome(channel, "/muster.v1.NodeService/GetNode") != ("OK", ""), 100)
        assert outcome(channel, "/muster.v1.NodeService/GetNode") == ("PERMISSION_DENIED", "NO_ROLE")
    assert datetime.now(UTC) >= until.replace(microsecond=0)
    told = f"which expired at {until:%Y-%m-%dT%H:%M:%SZ}"
    eventually(lambda: told in audit(listening.daemon)[-1]["who"])


def _future(authority: Authority) -> Pair:
    now = datetime.now(UTC)
    made = authority.ca.issue_cert(
        "scheduler.example", not_before=now + timedelta(days=1), not_after=now + timedelta(days=2)
    )
    pair = Pair(authority.file.with_name("future.crt"), authority.file.with_name("future.key"))
    made.private_key_pem.write_to_path(pair.key)
    pair.key.chmod(0o600)
    made.cert_chain_pems[0].write_to_path(pair.certificate)
    return pair


def test_a_plain_client_gets_nothing(listening: Listening) -> None:
    with grpc.insecure_channel(listening.address) as channel:
        assert outcome(channel, "/muster.v1.NodeService/GetNode")[0] == "UNAVAILABLE"


@pytest.mark.slow
def test_a_silent_connection_is_closed(listening: Listening) -> None:
    with socket.create_connection(("127.0.0.1", listening.port), 60) as silent:
        assert silent.recv(1) == b""


def test_only_tls_1_3(listening: Listening) -> None:
    context = listening.context(listening.operator)
    assert listening.handshake(context)[0] == "TLSv1.3"
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.raises((ssl.SSLError, ConnectionResetError)):
        listening.handshake(context)


def test_certificates_are_read_again(listening: Listening) -> None:
    context = listening.context(listening.operator)
    first = listening.handshake(context)[1]
    with listening.channel(listening.operator) as channel:
        nodes = node_pb2_grpc.NodeServiceStub(channel)
        nodes.GetNode(node_pb2.GetNodeRequest(), timeout=60)

        listening.own.certificate.write_text("nonsense")
        assert listening.handshake(context)[1] == first
        eventually(lambda: "tls.not_reloaded" in listening.daemon.stderr.read_text())

        listening.authority.pair("localhost", into=listening.own)
        second = listening.handshake(context)[1]
        assert second != first
        nodes.GetNode(node_pb2.GetNodeRequest(), timeout=60)  # over the connection that is there

        # Another authority of clients: a connected client stays, a new connection is refused.
        listening.authority.file.rename(listening.authority.file.with_suffix(".was"))
        shutil.copy(listening.other.file, listening.authority.file)
        nodes.GetNode(node_pb2.GetNodeRequest(), timeout=60)
        with pytest.raises((ssl.SSLError, ConnectionResetError)):
            listening.handshake(context)
        context.load_cert_chain(*_files(listening.other.pair("scheduler.example")))
        assert listening.handshake(context)[1] == second


def test_a_key_that_everybody_may_read_is_refused(listening: Listening) -> None:
    own, context = listening.own, listening.context(listening.operator)
    before = listening.handshake(context)[1]
    listening.authority.pair("localhost", into=own)
    own.key.chmod(0o644)
    assert listening.handshake(context)[1] == before
    said = f"{own.key}: its mode 0644 lets everybody read or write the key: chmod 600 {own.key}"
    eventually(lambda: said in listening.daemon.stderr.read_text())
    done = musterd("--root", str(own.key.parent / "r"), "--config", str(listening.daemon.config))
    assert done.returncode == 1 and f"tls: {said}" in done.stderr.splitlines()[-1]
    own.key.chmod(0o600)
    assert listening.handshake(context)[1] != before


def test_trouble_with_the_daemons_certificate_is_a_warning(listening: Listening) -> None:
    authority, own, context = listening.authority, listening.own, listening.context(listening.operator)

    def said() -> str:
        done = listening.daemon.cli("node")
        assert done.returncode == 0, done.stderr
        return " ".join(done.stdout.split())

    assert f"tls: {own.certificate}: the certificate expires in 1.0 days, at 20" in said()
    own.key.write_text("no key")
    listening.handshake(context)
    assert f"tls: the previous certificate stays in use: {own.certificate}: does not match the key {own.key}" in said()
    authority.pair("localhost", days=-1, into=own)
    with pytest.raises(ssl.SSLError, match="expired"):
        listening.handshake(context)
    assert "stays in use" not in said() and f"tls: {own.certificate}: the certificate expired at 20" in said()
    authority.pair("localhost", days=8, into=own)
    own.certificate.write_bytes(own.certificate.read_bytes() + authority.file.read_bytes())  # a chain
    listening.handshake(context)
    assert "tls:" not in said()


def _files(pair: Pair) -> tuple[Path, Path]:
    return pair.certificate, pair.key


@pytest.mark.parametrize("broken", ["certificate", "key", "client_authority", "taken"])
def test_a_listener_that_cannot_be_made_is_refused(tmp_path: Path, broken: str) -> None:
    authority = Authority(tmp_path, "authority")
    own = authority.pair("localhost")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        files = {"certificate": own.certificate, "key": own.key, "client_authority": authority.file}
        if broken != "taken":
            files[broken].write_text("nonsense")
        lines = [f'{key} = "{path}"' for key, path in files.items()]
        config = tmp_path / "c.toml"
        config.write_text("\n".join(["[tls]", f'listen = "127.0.0.1:{port}"', *lines, 'operators = ["a"]']))
        checked = musterd("--root", str(tmp_path / "r"), "--config", str(config), "--check-config")
        assert not (tmp_path / "r").exists()
        done = musterd("--root", str(tmp_path / "r"), "--config", str(config))
    assert done.returncode == 1
    assert (f"127.0.0.1:{port}" if broken == "taken" else str(files[broken])) in done.stderr.splitlines()[-1]
    # Who listens there is no matter of the configuration: the daemon itself, mostly.
    said = (0, "") if broken == "taken" else (1, done.stderr.splitlines()[-1])
    assert (checked.returncode, checked.stderr.strip()) == said


@pytest.mark.parametrize("key", ["group", "reader_group"])
def test_a_group_that_is_not_there_is_refused_beforehand_too(tmp_path: Path, key: str) -> None:
    config = tmp_path / "c.toml"
    config.write_text(f'[socket]\n{key} = "nobody-made-it"\n')
    words = ("--root", str(tmp_path / "r"), "--config", str(config))
    checked, done = musterd(*words, "--check-config"), musterd(*words)
    assert (checked.returncode, done.returncode) == (1, 1) and not checked.stdout
    assert "no such group: 'nobody-made-it'" in checked.stderr and checked.stderr == done.stderr.splitlines(True)[-1]
    config.write_text(f'[socket]\n{key} = ""\n')
    checked = musterd(*words, "--check-config")
    assert (checked.returncode, checked.stdout) == (0, f"{config}: good\n"), checked.stderr
