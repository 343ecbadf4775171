"""Secrets are planted wherever muster is given one, and looked for in everything that it writes or answers."""

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from muster.v1 import (
    event_pb2,
    exec_pb2,
    exec_pb2_grpc,
    job_pb2,
    log_pb2,
    node_pb2,
    probe_pb2,
    telemetry_pb2,
)
from tests.conftest import Daemon, alive, eventually
from tests.unit.notify_receiver import Answer, Receiver

#: Every secret has this in it, and then where it was planted.
MARK = "hunter2-"


def planted(where: str) -> str:
    return f"{MARK}{where}"


def told(text: bytes, of: str) -> None:
    """Fails where a secret is."""
    at = text.find(MARK.encode())
    assert at < 0, f"{of}: {text[max(0, at - 200) : at + 100]!r}"


def texts_of_processes() -> Iterator[tuple[int, str, bytes]]:
    for name in os.listdir("/proc"):
        for file in ("cmdline", "environ"):
            if name.isdigit():
                with contextlib.suppress(OSError):
                    yield int(name), file, Path(f"/proc/{name}/{file}").read_bytes()


def refusals(daemon: Daemon, execs: exec_pb2_grpc.ExecServiceStub) -> Iterator[tuple[str, grpc.RpcError]]:
    """Requests that are wrong, near a secret."""
    spec = {"job_id": "bad", "command": ["true"]}
    wrong: list[dict[str, Any]] = [
        {"env": {"A": planted("nul") + "\0"}},
        {"env": {"A=B": planted("name")}},
        {"env": {"A": planted("huge") + "x" * 200_000}},
        {"env": {"A": planted("env")}, "workdir": "relative"},
        {"notify": {"webhook": f"https://example.com/{planted('path')} with space"}},
        {"notify": {"webhook": f"gopher://u:{planted('user')}@example.com/"}},
        {"notify": {"webhook": f"https://example.com:{planted('port')}/"}},
        {"notify": {"webhook": f"https://example.com/?{planted('query')}", "events": ["nonsense"]}},
    ]
    for fields in wrong:
        with contextlib.suppress(TypeError):
            notify = fields.pop("notify", None)
            request = job_pb2.StartRequest(spec=job_pb2.JobSpec(**(spec | fields)))
            if notify:
                request.spec.notify.CopyFrom(type(request.spec.notify)(**notify))
            yield str(fields or notify), _error(lambda request=request: daemon.jobs.Start(request, timeout=60))
    # The same id with another environment: what differs is a secret.
    request = job_pb2.StartRequest(spec=job_pb2.JobSpec(job_id="x", command=["true"], env={"A": planted("conflict")}))
    yield "conflict", _error(lambda: daemon.jobs.Start(request, timeout=60))
    for asked in (
        exec_pb2.RunCommandRequest(job_id="x", argv=["true"], env={"A=B": planted("exec-name")}),
        exec_pb2.RunCommandRequest(job_id="x", argv=["true"], env={"A": planted("exec-nul") + "\0"}),
        exec_pb2.RunCommandRequest(job_id="x", argv=["true", planted("exec-argv") + "\0"]),
        exec_pb2.RunCommandRequest(job_id="none", argv=["true", planted("exec-argv")], input=planted("in").encode()),
    ):
        yield str(asked), _error(lambda asked=asked: execs.RunCommand(asked, timeout=60))


def _error(call: Any) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return caught.value


def answers(daemon: Daemon, execs: exec_pb2_grpc.ExecServiceStub) -> Iterator[tuple[str, Any]]:
    """Everything that can be asked for."""
    yield "Get", daemon.jobs.Get(job_pb2.GetRequest(job_id="x"))
    yield "List", daemon.jobs.List(job_pb2.ListRequest())
    yield "GetReport", daemon.jobs.GetReport(job_pb2.GetReportRequest(job_id="x"))
    yield "GetStacks", daemon.jobs.GetStacks(job_pb2.GetStacksRequest(job_id="x", kept=True))
    yield "GetNode", daemon.nodes.GetNode(node_pb2.GetNodeRequest())
    yield "ListChecks", daemon.probes.ListChecks(probe_pb2.ListChecksRequest())
    yield "GetTelemetry", daemon.telemetry.GetTelemetry(telemetry_pb2.GetTelemetryRequest())
    yield "ListSessions", execs.ListSessions(exec_pb2.ListSessionsRequest())
    yield "Watch", list(daemon.events.Watch(event_pb2.WatchRequest(from_oldest=True, no_follow=True)))
    yield "ReadLogs", daemon.read_logs("x", job_log=log_pb2.JOB_LOG_INCLUDED)
    for words in (["status", "x"], ["ps", "-a", "-o", "json"], ["why", "x"], ["events"], ["exec", "--list"]):
        done = daemon.cli(*words)
        yield " ".join(words), done.stdout + done.stderr


@pytest.mark.slow
def test_no_secret_is_shown_anywhere(make_daemon: Any, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.touch(0o600)
    secret.write_text(planted("secret-file"))
    with Receiver(lambda got: Answer(500)) as receiver:
        daemon: Daemon = make_daemon(
            '[daemon]\nlog_level = "debug"\nlog_format = "json"\n[telemetry]\nprocesses_s = 0.5\n'
            f'[notify]\nwebhook = "{receiver.url}?token={planted("webhook")}"\nsecret_file = "{secret}"\n'
            'events = ["started", "ended", "failed", "stopped"]\n',
            env={"DAEMON_SECRET": planted("daemon")},
        )
        assert daemon.channel is not None
        execs = exec_pb2_grpc.ExecServiceStub(daemon.channel)
        before = tmp_path / "before.sh"
        before.write_text(f"export EXPORTED={planted('exported')}\n")
        notify = job_pb2.JobSpec().notify
        notify.webhook = f"{receiver.url}?token={planted('of-the-job')}"
        notify.secret = planted("signs-for-the-job")
        env = {"TOKEN": planted("env"), "HF_TOKEN": planted("hf")}
        script = "trap 'exit 3' TERM; while :; do sleep 0.1; done"
        daemon.run("sh", "-c", script, job_id="x", env=env, pre_start=str(before), notify=notify, ranks=2)
        daemon.until_running("x")

        # Arguments are visible in process lists; here they are secrets all the same, for all that muster writes.
        asked = exec_pb2.RunCommandRequest(
            job_id="x",
            argv=["sh", "-c", "cat >/dev/null", planted("argv")],
            env={"E": planted("exec-env")},
            input=planted("input").encode(),
        )
        assert execs.RunCommand(asked, timeout=60).exited.exit_code == 0
        failed = exec_pb2.RunCommandRequest(job_id="x", argv=["/no/such/program", planted("argv")])
        with contextlib.suppress(grpc.RpcError):
            execs.RunCommand(failed, timeout=60)
        detached = exec_pb2.ExecRequest(
            start=exec_pb2.ExecStart(
                job_id="x", argv=["sh", "-c", "exec sleep 1000", "a"], env={"E": planted("session")}, detached=True
            )
        )
        list(execs.Exec(iter([detached]), timeout=60))
        daemon.cli("stacks", "x")
        for name, error in refusals(daemon, execs):
            told(repr(error).encode() + str(error.trailing_metadata()).encode(), f"the refusal of {name}")
        for name, answer in answers(daemon, execs):
            told(str(answer).encode(), f"{name} of a running job")
        told_by_processes(daemon)

        daemon.kill()
        daemon.start()
        execs = exec_pb2_grpc.ExecServiceStub(daemon.channel)
        daemon.stop("x", grace_s=5)
        eventually(lambda: len(receiver.got) >= 4, message="notifications that are not taken")
        for name, answer in answers(daemon, execs):
            told(str(answer).encode(), f"{name} of an ended job")
        for got in receiver.got:
            told(got.raw + str(got.headers).encode(), "a notification")  # its path has the token, by its nature
    daemon.kill(15)

    told(daemon.stderr.read_bytes(), "the daemon's log")
    for path in [*daemon.root.log.rglob("*"), *daemon.root.run.rglob("*")]:
        with contextlib.suppress(FileNotFoundError):  # of a nursery that ends
            if path.is_file():
                told(path.read_bytes(), str(path))
    kept = set()
    for path in daemon.root.state.rglob("*"):
        if path.is_file() and MARK.encode() in path.read_bytes():
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
            kept.add(path.name)
    # What has to be kept, for the next supervisor and the next daemon; and nothing else.
    assert kept <= {"spec.json", "exports", "notify.json", "journal"}, kept
    told(daemon.root.job("x").journal.read_bytes(), "the journal")


def told_by_processes(daemon: Daemon) -> None:
    """A command line is there for everybody; an environment for the process' own user, and the job's is the job's."""
    ours = {daemon.pid, daemon.nursery_pid(), daemon.supervisor_pid("x")}
    assert all(alive(pid) for pid in ours)
    for pid, file, text in texts_of_processes():
        if file == "cmdline" and pid != os.getpid():
            told(text, f"the command line of {pid}")
        elif pid in ours:
            told(text.replace(planted("daemon").encode(), b""), f"the environment of {pid}")
        elif MARK.encode() in text and b"MUSTER_NONCE" in text:
            told(text[text.find(b"DAEMON_SECRET") :][:60] if b"DAEMON_SECRET" in text else b"", f"a rank, {pid}")
            assert planted("webhook").encode() not in text and planted("of-the-job").encode() not in text
