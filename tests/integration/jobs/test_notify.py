"""A daemon that tells: of its jobs, to whom the configuration and the jobs name; over its own end."""

import hashlib
import hmac
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from muster.v1 import job_pb2, node_pb2
from tests.conftest import BIN, Daemon, eventually
from tests.ports import free_port
from tests.unit.notify_receiver import Answer, Got, Receiver

MakeDaemon = Callable[..., Daemon]
#: A try that takes longer is repeated, and then the receiver has two.
PATIENT = "timeout_s = 120\n"
SECRET = b"open sesame"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as found:
        yield found


def warnings(daemon: Daemon) -> list[str]:
    node = daemon.nodes.GetNode(node_pb2.GetNodeRequest(), timeout=60).node
    return [text for text in node.warnings if text.startswith("notify")]


def signature(got: Got, secret: bytes) -> str:
    signed = got.headers["X-Muster-Timestamp"].encode() + b"." + got.raw
    return "sha256=" + hmac.new(secret, signed, hashlib.sha256).hexdigest()


def notify(url: str, *events: str, secret: str = "") -> job_pb2.Notify:
    return job_pb2.Notify(webhook=url, events=events, secret=secret)


def test_a_failure_is_reported_to_all_subscribers(make_daemon: MakeDaemon, receiver: Receiver, tmp_path: Path) -> None:
    secret, out = tmp_path / "secret", tmp_path / "out"
    secret.touch(0o600)
    secret.write_bytes(SECRET + b"\n")
    daemon = make_daemon(
        f'[notify]\nwebhook = "{receiver.url}"\nsecret_file = "{secret}"\n{PATIENT}'
        f'command = ["/bin/sh", "-c", "cat > $0.new; echo $MUSTER_EVENT >> $0.new; mv $0.new $0", "{out}"]\n'
    )
    with Receiver() as own:
        env = {"PASSWORD": "not to be told"}
        daemon.run("sh", "-c", "exit 7", job_id="bad", env=env, notify=notify(own.url))
        daemon.run("true", job_id="good", notify=notify(own.url, "started", "ended", secret="the job's own"))
        for job_id in ("bad", "good"):
            daemon.wait(job_id)
        eventually(lambda: receiver.got and len(own.got) >= 5 and out.exists())
    (got,) = receiver.got
    assert (got.body["event"], got.body["job"]) == ("failed", "bad")
    assert got.body["attributes"]["exit_code"] == "7"
    assert got.headers["X-Muster-Signature"] == signature(got, SECRET)
    for one in own.got:  # by the job's own secret or by none, never by the node's
        expected = signature(one, b"the job's own") if one.body["job"] == "good" else None
        assert one.headers.get("X-Muster-Signature") == expected
    assert "the job's own" not in str(daemon.get("good")) and not daemon.get("good").spec.notify.secret
    told = [(body["job"], body["event"]) for body in own.bodies]
    assert [event for job, event in told if job == "bad"] == ["started", "failed", "explained"]
    assert [event for job, event in told if job == "good"] == ["started", "ended"]
    assert out.read_text().endswith("failed\n")
    assert not any(b"not to be told" in got.raw for got in [*receiver.got, *own.got])
    assert warnings(daemon) == []


def test_a_job_that_ends_while_daemon_and_receiver_are_down_is_reported_later(make_daemon: MakeDaemon) -> None:
    port = free_port()  # where nobody listens
    daemon = make_daemon(f'[notify]\nwebhook = "http://127.0.0.1:{port}/hook?token=letmein"\n{PATIENT}')
    daemon.run("sh", "-c", "exit 3", job_id="first")
    daemon.wait("first")
    eventually(lambda: warnings(daemon))
    (said,) = warnings(daemon)
    assert f"http://127.0.0.1:{port}: Connection refused" in said and "letmein" not in said
    go = daemon.folder / "go"
    daemon.run("sh", "-c", f"until test -e {go}; do sleep 0.05; done; exit 4", job_id="second")
    daemon.until_running("second")
    daemon.kill(signal.SIGKILL)
    go.touch()
    eventually(lambda: not daemon.supervisor_pid("second"))
    with Receiver(port=port) as receiver:
        daemon.restart()
        eventually(lambda: len(receiver.got) >= 2)
        assert [(body["job"], body["attributes"]["exit_code"]) for body in receiver.bodies] == [
            ("first", "3"),
            ("second", "4"),
        ]
        eventually(lambda: not warnings(daemon))
    assert "letmein" not in daemon.stderr.read_text()


def test_a_job_names_its_webhook_on_the_command_line(
    make_daemon: MakeDaemon, receiver: Receiver, tmp_path: Path
) -> None:
    (tmp_path / "url").write_text(receiver.url + "\n")
    daemon = make_daemon(f"[notify]\n{PATIENT}")
    told = ["--notify-webhook", f"@{tmp_path}/url", "--notify-events", "failed,stopped"]
    for job_id, code in (("good", "0"), ("bad", "9")):
        assert daemon.cli("start", "--job-id", job_id, *told, "--", "sh", "-c", f"exit {code}").returncode == 0
        daemon.wait(job_id)
    eventually(lambda: receiver.got)
    assert [(body["job"], body["event"]) for body in receiver.bodies] == [("bad", "failed")]
    bad = daemon.cli("start", "--notify-webhook", receiver.url, "--notify-events", "hang", "--", "true")
    assert bad.returncode == 2 and "--notify-events: 'hang' is not an event" in bad.stderr


def test_a_daemon_of_one_job_tells_its_end_before_its_own() -> None:
    """There is no next daemon that would. The receiver is slow: when it has answered the first, all is over."""
    for _ in range(3):  # it has 10 s to answer, which a busy machine may not give it
        if (told := told_by_a_daemon_of_one_job()) == ["started", "failed"]:
            break
    assert told == ["started", "failed"]


def told_by_a_daemon_of_one_job() -> list[str]:
    """The first two events."""
    with tempfile.TemporaryDirectory(prefix="m-", dir="/tmp", ignore_cleanup_errors=True) as folder:

        def slowly(got: Got) -> Answer:
            eventually(lambda: any("owner.gone" in log.read_text() for log in Path(folder).glob("*/musterd.log")))
            return Answer()

        with Receiver(slowly) as receiver:
            words = ["run", "--standalone", "--skip-check", "--notify-webhook", receiver.url]
            done = subprocess.run(
                [str(BIN / "muster"), *words, "--", "sh", "-c", "exit 6"],
                env=os.environ | {"TMPDIR": folder},
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert done.returncode == 6, done.stderr
            return [body["event"] for body in receiver.bodies][:2]


def test_a_reload_names_another_receiver(make_daemon: MakeDaemon, receiver: Receiver) -> None:
    with Receiver() as before:
        daemon = make_daemon(f'[notify]\nwebhook = "{before.url}"\n{PATIENT}')
        daemon.run("false", job_id="one")
        eventually(lambda: before.got)
        text = daemon.config.read_text()
        daemon.config.write_text(
            text.replace(before.url, receiver.url).replace("[notify]", '[notify]\nevents = ["ended"]')
        )
        assert daemon.process is not None
        daemon.process.send_signal(signal.SIGHUP)
        eventually(lambda: daemon.stderr.read_text().count("config.loaded") >= 1)
        daemon.run("true", job_id="two")
        eventually(lambda: receiver.got)
    assert [body["job"] for body in before.bodies] == ["one"]
    assert [(body["job"], body["event"]) for body in receiver.bodies] == [("two", "ended")]


@pytest.mark.parametrize(
    ("asked", "field", "said"),
    [
        (notify("ftp://h/letmein"), "notify.webhook", "'ftp' is not a supported scheme"),
        (notify("http://me:letmein@h/"), "notify.webhook", "must not have a user"),
        (notify("http://h/", "failed", "hang"), "notify.events", "'hang' is not an event that muster posts"),
        (notify("http://h/", "node_condition"), "notify.events", "'node_condition' is not an event"),
        (notify("", "failed"), "notify.events", "needs notify.webhook"),
        (notify("", secret="letmein"), "notify.secret", "needs notify.webhook"),
        (notify("http://h/", secret="letmein\n"), "notify.secret", "one line of text"),
    ],
)
def test_a_bad_webhook_is_refused(shared: Daemon, asked: job_pb2.Notify, field: str, said: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        shared.run("true", notify=asked)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    details = caught.value.details() or ""
    assert f"{field}: " in details and said in details and "letmein" not in details


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('webhook = "h/x"', "notify.webhook: "),
        ('events = ["hang"]', "notify.events: 'hang' is not an event that muster posts"),
        ('command = ["tell"]', "notify.command: 'tell'"),
        ("timeout_s = 0", "notify.timeout_s: "),
        ('webhok = "http://h"', "unknown key 'notify.webhok': did you mean 'notify.webhook'?"),
    ],
)
def test_a_bad_table_is_refused(tmp_path: Path, line: str, said: str) -> None:
    from muster.agent.config import loading
    from muster.agent.errors import StartupError

    path = tmp_path / "musterd.toml"
    path.write_text(f"[notify]\n{line}\n")
    with pytest.raises(StartupError, match="musterd") as caught:
        loading.load(path)
    assert said in str(caught.value)
