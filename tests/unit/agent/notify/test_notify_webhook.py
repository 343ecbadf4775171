"""One POST: what the receiver gets, and what is made of its answer."""

import hashlib
import hmac
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from muster.agent.notify import webhook
from muster.agent.notify.notification import Item, NotificationRefused, NotTaken
from muster.agent.notify.webhook import WebhookTarget, post
from tests.unit.notify_receiver import Answer, Got, Receiver, nobody, serving
from tests.unit.waiting import until

ITEM = Item("0123456789abcdef-7", "hung", "job.hung", 1000.0, "job-1", "rank 3 hangs")
BODY = b'{"id": "0123456789abcdef-7"}'
LONG_S = 60.0


async def sent(url: str, timeout_s: float = LONG_S, **how: str) -> None:
    with anyio.fail_after(60):
        await post(WebhookTarget(url, timeout_s, **how), ITEM, BODY)


async def not_taken(url: str, timeout_s: float = LONG_S, **how: str) -> NotTaken:
    with pytest.raises(NotTaken) as caught:
        await sent(url, timeout_s, **how)
    assert "letmein" not in str(caught.value)
    return caught.value


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as found:
        yield found


async def test_what_the_receiver_gets(receiver: Receiver) -> None:
    await sent(receiver.url)
    (got,) = receiver.got
    assert got.path == "/hook?token=letmein" and got.raw == BODY
    assert got.headers["Content-Type"] == "application/json"
    assert got.headers["Host"] == f"127.0.0.1:{receiver.port}"
    assert got.headers["X-Muster-Event"] == "hung"
    assert got.headers["X-Muster-Id"] == "0123456789abcdef-7"
    assert abs(int(got.headers["X-Muster-Timestamp"]) - time.time()) < 100
    assert "X-Muster-Signature" not in got.headers


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
async def test_good_answers(receiver: Receiver, status: int) -> None:
    receiver.answer = lambda got: Answer(status)
    await sent(receiver.url)


@pytest.mark.parametrize("status", [301, 302, 303, 304, 401, 403, 404, 410, 429, 500, 502, 503])
async def test_it_is_tried_again_later(receiver: Receiver, status: int) -> None:
    receiver.answer = lambda got: Answer(status, {"Location": "/elsewhere"} if status in (301, 302, 303) else {})
    error = await not_taken(receiver.url)
    assert str(error).startswith(f"http://127.0.0.1:{receiver.port}: answered {status}")
    assert len(receiver.got) == 1


@pytest.mark.parametrize("status", [400, 413, 422])
async def test_it_is_never_wanted(receiver: Receiver, status: int) -> None:
    receiver.answer = lambda got: Answer(status)
    with pytest.raises(NotificationRefused, match=f"answered {status}"):
        await sent(receiver.url)


@pytest.mark.parametrize(
    ("text", "seconds"), [("17", 17.0), ("0", 0.0), ("-1", 0.0), ("soon", 0.0), ("9" * 40, 0.0), ("²", 0.0)]
)
async def test_the_receiver_says_when(receiver: Receiver, text: str, seconds: float) -> None:
    receiver.answer = lambda got: Answer(503, {"Retry-After": text})
    assert (await not_taken(receiver.url)).after == seconds


# --- the signature ----------------------------------------------------------------------------------------------------


async def test_it_is_signed_with_what_is_in_the_file_now(receiver: Receiver, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.touch(0o640)
    for secret in (b"first", b"second one"):
        file.write_bytes(secret + b"\n")
        await sent(receiver.url, secret_file=str(file))
        got = receiver.got[-1]
        signed = got.headers["X-Muster-Timestamp"].encode() + b"." + got.raw
        expected = "sha256=" + hmac.new(secret, signed, hashlib.sha256).hexdigest()
        assert got.headers["X-Muster-Signature"] == expected


async def test_without_its_secret_nothing_is_sent(receiver: Receiver, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    error = await not_taken(receiver.url, secret_file=str(file))
    assert str(error) == f"secret_file: {file}: cannot be read: No such file or directory"
    file.touch(0o600)
    assert "is empty" in str(await not_taken(receiver.url, secret_file=str(file)))
    file.write_text("letmein")
    file.chmod(0o644)
    error = await not_taken(receiver.url, secret_file=str(file))
    assert str(error) == f"secret_file: {file}: mode 0644 lets every user read or write it: run `chmod o= {file}`"
    file.chmod(0o600)
    file.write_text("letmein" * 1000)
    assert "over 4096 bytes" in str(await not_taken(receiver.url, secret_file=str(file)))
    assert "Is a directory" in str(await not_taken(receiver.url, secret_file=str(tmp_path)))
    os.mkfifo(tmp_path / "fifo", 0o600)
    assert "not a regular file" in str(await not_taken(receiver.url, secret_file=str(tmp_path / "fifo")))
    assert receiver.got == []


# --- receivers that are not well --------------------------------------------------------------------------------------


async def test_nobody_is_there() -> None:
    with nobody() as port:
        error = await not_taken(f"http://127.0.0.1:{port}/letmein")
        assert str(error) == f"http://127.0.0.1:{port}: Connection refused"


async def test_a_name_that_is_none() -> None:
    assert str(await not_taken("http://no-such-host.invalid/letmein")).startswith("http://no-such-host.invalid: ")
    assert "not a valid host name" in str(await not_taken(f"http://{'x' * 64}.invalid/letmein"))


async def test_who_does_not_answer_is_given_up(receiver: Receiver) -> None:
    receiver.open.clear()
    error = await not_taken(receiver.url, 0.1)
    assert "did not answer within 0.1 s (timeout_s in [notify])" in str(error)
    receiver.open.set()
    await sent(receiver.url)  # and its thread is gone, or this would be refused


async def test_who_answers_a_byte_at_a_time_is_given_up_as_well() -> None:
    """Each byte comes in time; all of them do not."""
    stop = threading.Event()

    def drip(listening: socket.socket) -> None:
        try:
            connection, _ = listening.accept()
        except OSError:  # nobody came in time
            return
        with connection:
            while not stop.wait(0.02):
                try:
                    connection.sendall(b"H")
                except OSError:
                    return

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=drip, args=(listening,))
        thread.start()
        try:
            await not_taken(f"http://127.0.0.1:{listening.getsockname()[1]}/", 0.3)
        finally:
            stop.set()
            listening.shutdown(socket.SHUT_RDWR)
            thread.join(60)


async def test_a_good_answer_whose_text_does_not_come_is_one(receiver: Receiver) -> None:
    receiver.answer = lambda got: Answer(200, {"Content-Length": "1000000"}, b"begins")
    await sent(receiver.url)


@pytest.mark.parametrize("said", [b"SSH-2.0-OpenSSH_9.2\r\n", b"HTTP/1.1 banana\r\n\r\n", b"", b"HTTP/1.1 200 OK"])
async def test_who_speaks_something_else(said: bytes) -> None:
    def speak(listening: socket.socket) -> None:
        connection, _ = listening.accept()
        with connection, connection.makefile("rb") as asked:
            while not asked.read1(65536).endswith(BODY):
                pass
            connection.sendall(said)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=speak, args=(listening,))
        thread.start()
        try:
            url = f"http://127.0.0.1:{listening.getsockname()[1]}/letmein"
            if said == b"HTTP/1.1 200 OK":  # cut off, but it has said so
                await sent(url)
            else:
                await not_taken(url)
        finally:
            thread.join(60)


async def test_a_call_that_never_comes_back_leaves_other_urls_alone(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resolver that hangs cannot be interrupted."""
    let_go, real = threading.Event(), socket.getaddrinfo

    def hang(host: str, *args: object, **kwargs: object) -> object:
        if host == "hangs.example":
            let_go.wait(60)
        return real(host, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    monkeypatch.setattr(webhook, "LINGER_S", 0.01)
    try:
        assert "did not answer" in str(await not_taken("http://hangs.example/letmein", 0.1))
        error = await not_taken("http://hangs.example/letmein")
        assert "an earlier call still hangs" in str(error)
        await sent(receiver.url)
    finally:
        let_go.set()


async def test_its_end_is_not_waited_for_when_the_daemon_ends(receiver: Receiver) -> None:
    receiver.open.clear()
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(sent, receiver.url)
            await until(lambda: receiver.got)
            tasks.cancel_scope.cancel()


# --- redirects --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [307, 308])
async def test_a_redirect_that_keeps_the_method_is_followed(receiver: Receiver, status: int, tmp_path: Path) -> None:
    def answer(got: Got) -> Answer:
        return Answer() if got.path == "/new" else Answer(status, {"Location": "/new"})

    secret = tmp_path / "secret"
    secret.touch(0o600)
    secret.write_text("s")
    receiver.answer = answer
    await sent(receiver.url, secret_file=str(secret))
    assert [(got.path, got.raw) for got in receiver.got] == [("/hook?token=letmein", BODY), ("/new", BODY)]
    assert "X-Muster-Signature" in receiver.got[1].headers


@pytest.mark.parametrize(
    ("location", "said"),
    [
        ("https://127.0.0.1/letmein", "redirects to https://127.0.0.1, another scheme"),
        ("file:///etc/letmein", "an invalid webhook URL"),
        ("http://[letmein", "does not speak HTTP"),
        ("", "drops the POST"),
    ],
)
async def test_redirects_that_are_not_followed(receiver: Receiver, location: str, said: str) -> None:
    receiver.answer = lambda got: Answer(307, {"Location": location})
    assert said in str(await not_taken(receiver.url))
    assert len(receiver.got) == 1


async def test_a_circle_of_redirects(receiver: Receiver) -> None:
    receiver.answer = lambda got: Answer(307, {"Location": "/again"})
    assert "more than 3 redirects" in str(await not_taken(receiver.url))
    assert len(receiver.got) == 4


# --- TLS and proxies --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Of 127.0.0.1, signed by itself: certificate and key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    folder = tmp_path_factory.mktemp("tls")
    made, key = folder / "own.pem", folder / "key.pem"
    ask = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=receiver"]
    names = ["-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*ask, *names, "-keyout", key, "-out", made], check=True, capture_output=True)
    return made, key


async def test_https_to_whom_is_trusted_only(certificate: tuple[Path, Path], tmp_path: Path) -> None:
    made, key = certificate
    with Receiver(tls=serving(made, key)) as receiver:
        assert "CERTIFICATE_VERIFY_FAILED" in str(await not_taken(receiver.url))
        missing = tmp_path / "none.pem"
        assert f"ca_file: cannot use {missing}" in str(await not_taken(receiver.url, ca_file=str(missing)))
        assert receiver.got == []
        await sent(receiver.url, ca_file=str(made))
        assert receiver.got[0].raw == BODY
        other_name = receiver.url.replace("127.0.0.1", "localhost")
        assert "CERTIFICATE_VERIFY_FAILED" in str(await not_taken(other_name, ca_file=str(made)))


async def test_a_proxy_is_used_if_the_settings_name_one(
    receiver: Receiver, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, key = certificate
    with Receiver() as proxy, Receiver(tls=serving(made, key)) as safe:
        await sent("http://receiver.invalid/hook?token=letmein", proxy=f"http://127.0.0.1:{proxy.port}")
        assert proxy.got[0].path == "http://receiver.invalid/hook?token=letmein"
        assert proxy.got[0].headers["Host"] == "receiver.invalid" and proxy.got[0].raw == BODY
        await sent(safe.url, proxy=f"http://127.0.0.1:{proxy.port}", ca_file=str(made))
        assert proxy.got[1].path == f"127.0.0.1:{safe.port}"
        assert safe.got[0].path == "/hook?token=letmein" and safe.got[0].raw == BODY
        with nobody() as port:
            for name in ("http_proxy", "https_proxy", "all_proxy"):
                monkeypatch.setenv(name, f"http://127.0.0.1:{port}")
            await sent(receiver.url)
    assert len(receiver.got) == 1
