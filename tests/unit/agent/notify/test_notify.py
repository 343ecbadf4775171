"""From events to receivers: real ones, that fail, are slow, go away and come back; over ends of the daemon."""

import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from structlog.testing import capture_logs

from muster.agent.config.notify_settings import NotifyTable
from muster.agent.events.event_store import Event, EventStore
from muster.agent.notify import sender
from muster.agent.notify.sender import Notifier
from muster.supervisors.model.rules.notify_rules import EVENTS
from muster.supervisors.paths import Root
from tests.conftest import eventually
from tests.unit.notify_receiver import Answer, Parts, Receiver, ended, nobody
from tests.unit.waiting import until

DOCS = Path(__file__).parents[4] / "docs"
#: A try may take this long where a test is not about that.
LONG_S = 60.0


@pytest.fixture
def root(tmp_path: Path) -> Root:
    found = Root.under(tmp_path)
    found.events.mkdir(parents=True)
    return found


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as found:
        yield found


def table(**values: object) -> NotifyTable:
    return NotifyTable(**({"timeout_s": LONG_S, "retry_max_s": 0.05} | values))  # type: ignore[arg-type]


@asynccontextmanager
async def daemon(root: Root, parts: Parts) -> AsyncIterator[tuple[EventStore, Notifier]]:
    """The parts of a daemon that matter here; the block's end is the daemon's."""
    store = await EventStore.open(root.events, 1 << 20, boot_id="one")
    try:
        notifier = Notifier(root, parts, store, parts)
        await notifier.load()
        async with anyio.create_task_group() as tasks:
            await tasks.start(notifier.run)
            yield store, notifier
            tasks.cancel_scope.cancel()
    finally:
        await store.close()


def waiting(root: Root) -> dict[str, list[dict[str, str]]] | None:
    """What waits for whom, as it is on the disk; None while nothing is."""
    path = root.state / "notify.json"
    found: dict[str, list[dict[str, str]]] | None = json.loads(path.read_text())["waiting"] if path.exists() else None
    return found


def tell(store: EventStore, *events: Event) -> None:
    store.append([(None, event) for event in events])


async def test_only_what_was_asked_for_is_reported(root: Root, receiver: Receiver) -> None:
    parts = Parts(table(webhook=receiver.url))
    async with daemon(root, parts) as (store, notifier):
        tell(
            store,
            Event(time.time(), "job.running", "job-1", message="goes"),
            ended("done", "SUCCEEDED"),
            Event(time.time(), "node.condition", message="warm", attributes={"status": "WARN"}),
            Event(time.time(), "node.condition", message="hot", attributes={"status": "CRITICAL", "card": "2"}),
            ended("broken"),
        )
        await until(lambda: len(receiver.got) >= 2)
        assert notifier.trouble == []
    assert [(body["event"], body["message"]) for body in receiver.bodies] == [
        ("node_condition", "hot"),
        ("failed", "broken"),
    ]
    broken = receiver.bodies[1]
    assert (broken["job"], broken["node"]) == ("job-1", socket.gethostname())
    assert broken["id"] == receiver.got[1].headers["X-Muster-Id"]
    assert broken["attributes"]["recommendation"] == "RETRY_HERE"


async def test_a_failure_is_reported_once_also_to_receivers_of_ends(root: Root, receiver: Receiver) -> None:
    with Receiver() as ends:
        parts = Parts(table(webhook=receiver.url, events=EVENTS))
        parts.add_job("job-1", ends.url, ("ended",))
        async with daemon(root, parts) as (store, _):
            tell(store, ended("one"), ended("two", "SUCCEEDED"), ended("three", "STOPPED"))
            await until(lambda: len(receiver.got) >= 3 and len(ends.got) >= 3)
    assert [body["event"] for body in receiver.bodies] == ["failed", "ended", "stopped"]
    assert [body["event"] for body in ends.bodies] == ["ended", "ended", "ended"]


async def test_a_jobs_webhook_gets_its_own_events_and_unsigned(root: Root, receiver: Receiver, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.touch(0o600)
    secret.write_text("s")
    with Receiver() as own:
        parts = Parts(table(webhook=receiver.url, secret_file=str(secret), events=("hung",)))
        parts.add_job("job-1", own.url)
        parts.add_job("job-2")
        async with daemon(root, parts) as (store, _):
            tell(
                store,
                Event(time.time(), "job.running", "job-1", message="goes"),
                Event(time.time(), "node.condition", message="hot", attributes={"status": "CRITICAL"}),
                Event(time.time(), "job.hung", "job-2", message="another's"),
                Event(time.time(), "job.hung", "job-1", message="hangs"),
                ended("was deleted meanwhile", job="job-3"),
                ended("broken"),
            )
            await until(lambda: len(receiver.got) >= 2 and len(own.got) >= 3)
    assert own.messages == ["goes", "hangs", "broken"]
    assert receiver.messages == ["another's", "hangs"]
    assert not any("X-Muster-Signature" in got.headers for got in own.got)
    assert all("X-Muster-Signature" in got.headers for got in receiver.got)


async def test_the_input_of_the_command(root: Root, tmp_path: Path) -> None:
    out = tmp_path / "out"
    script = 'cat >> "$1"; echo " $MUSTER_EVENT $MUSTER_JOB_ID $MUSTER_STATE" >> "$1"'
    parts = Parts(table(command=("/bin/sh", "-c", script, "sh", str(out))))
    async with daemon(root, parts) as (store, _):
        tell(store, ended("one"), ended("two"))
        await until(lambda: out.exists() and out.read_text().count("\n") == 2)
    first, second = out.read_text().splitlines()
    assert '"message":"one"' in first and first.endswith("} failed job-1 FAILED")
    assert '"message":"two"' in second


# --- receivers that are not well --------------------------------------------------------------------------------------


async def test_what_fails_is_tried_again_in_order_until_it_is_taken(root: Root, receiver: Receiver) -> None:
    answers = iter([500, 503, 404])
    receiver.answer = lambda got: Answer(next(answers, 204))
    async with daemon(root, Parts(table(webhook=receiver.url))) as (store, notifier):
        tell(store, ended("one"), ended("two"))
        await until(lambda: len(receiver.got) >= 5)
        await until(lambda: not notifier.trouble)
    assert receiver.messages == ["one", "one", "one", "one", "two"]
    assert len({body["id"] for body in receiver.bodies}) == 2


async def test_a_missing_receiver_is_reported_and_gets_all_when_it_is_back(root: Root) -> None:
    with nobody() as port, capture_logs() as logged:
        parts = Parts(table(webhook=f"http://127.0.0.1:{port}/letmein"))
        async with daemon(root, parts) as (store, notifier):
            tell(store, ended("one"), ended("two"))
            await until(lambda: notifier.trouble)
            (said,) = notifier.trouble
            assert "letmein" not in str(logged) and "notify.not_taken" in str(logged)
            assert said.startswith(f"notify: webhook: http://127.0.0.1:{port}: Connection refused; tried ")
            assert said.endswith("2 event(s) wait") and "letmein" not in said
            with Receiver() as receiver:
                parts.notify = table(webhook=receiver.url)
                await until(lambda: len(receiver.got) >= 2)
                await until(lambda: not notifier.trouble)
            assert receiver.messages == ["one", "two"]


async def test_a_refused_one_does_not_hold_the_next_ones_up(root: Root, receiver: Receiver) -> None:
    receiver.answer = lambda got: Answer(422 if b"poison" in got.raw else 204)
    async with daemon(root, Parts(table(webhook=receiver.url))) as (store, notifier):
        tell(store, ended("poison"), ended("two"))
        await until(lambda: len(receiver.got) >= 2)
        assert receiver.messages == ["poison", "two"]
        (said,) = notifier.trouble
        assert said.startswith("notify: 1 event(s) for the webhook were dropped: the receiver refused them")


async def test_a_dead_receiver_delays_nobody_else(root: Root, receiver: Receiver, tmp_path: Path) -> None:
    out = tmp_path / "out"
    receiver.open.clear()  # takes the request, and never answers
    with Receiver() as dead, Receiver() as alive:
        dead.open.clear()
        parts = Parts(table(webhook=receiver.url, command=("/bin/sh", "-c", 'cat >> "$0"; echo >> "$0"', str(out))))
        parts.add_job("job-1", dead.url)
        parts.add_job("job-2", alive.url)
        async with daemon(root, parts) as (store, _):
            for i in range(3):
                tell(store, ended(f"{i}", job="job-1"), ended(f"{i}", job="job-2"))
            await until(lambda: len(alive.got) >= 3 and out.exists() and out.read_text().count("\n") == 6)
            assert alive.messages == ["0", "1", "2"]
            assert (len(receiver.got), len(dead.got)) == (1, 1)


async def test_many_dead_webhooks_of_jobs_take_turns(
    root: Root, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than are posted to at the same time; and the node's own does not wait for them."""
    monkeypatch.setattr(sender, "JOBS_AT_ONCE", 2)
    with Receiver() as dead, capture_logs() as logged:
        dead.open.clear()
        parts = Parts(table(webhook=receiver.url, timeout_s=0.2))
        for i in range(6):
            parts.add_job(f"job-{i}", f"{dead.url}&{i}")
        async with daemon(root, parts) as (store, notifier):
            tell(store, *(ended(f"{i}", job=f"job-{i}") for i in range(6)))
            await until(lambda: {*"012345"} <= set(receiver.messages))
            await until(lambda: len({got.path for got in dead.got}) == 6)
            await until(
                lambda: any(t.startswith("notify: 6 webhook(s) of jobs accept nothing") for t in notifier.trouble)
            )
            assert "letmein" not in str(notifier.trouble)
            assert "letmein" not in str(logged) and "a job's webhook http://127.0.0.1" in str(logged)
            dead.open.set()
            await until(lambda: not notifier.trouble)


async def test_only_so_many_wait_and_that_is_reported(root: Root) -> None:
    with nobody() as port:
        parts = Parts(table(webhook=f"http://127.0.0.1:{port}/", keep=3))
        async with daemon(root, parts) as (store, notifier):
            for i in range(10):
                tell(store, ended(f"{i}"))
            await until(lambda: any("7 event(s) for the webhook were dropped" in text for text in notifier.trouble))
            with Receiver() as receiver:
                parts.notify = table(webhook=receiver.url, keep=3)
                await until(lambda: len(receiver.got) >= 3)
                await until(lambda: not any("take" in text for text in notifier.trouble))
            # The first one was perhaps on its way when the others came.
            assert receiver.messages[-2:] == ["8", "9"] and len(receiver.got) == 3


async def test_what_is_too_old_is_not_told(root: Root, receiver: Receiver) -> None:
    parts = Parts(table(webhook=receiver.url, max_age_s=3600.0))
    async with daemon(root, parts) as (store, notifier):
        tell(store, ended("of yesterday", at=time.time() - 86_400), ended("new"))
        await until(lambda: receiver.got)
        assert receiver.messages == ["new"]
        assert "1 event(s) for the webhook were dropped: they were older than 3600 s" in notifier.trouble[0]


async def test_the_receiver_says_how_long_it_is_left_alone(root: Root, receiver: Receiver) -> None:
    """As long as it likes, up to retry_max_s; without its wish the first try again comes within a second."""
    answers = iter([Answer(429, {"Retry-After": "3600"})])
    receiver.answer = lambda got: next(answers, Answer())
    async with daemon(root, Parts(table(webhook=receiver.url, retry_max_s=3.0))) as (store, _):
        tell(store, ended("one"))
        await until(lambda: len(receiver.got) >= 2)
        first, second = receiver.got
        assert second.at - first.at > 2.0


# --- settings ---------------------------------------------------------------------------------------------------------


async def test_nothing_is_reported_where_nobody_is_named_and_nothing_later_of_before(
    root: Root, receiver: Receiver
) -> None:
    parts = Parts()
    async with daemon(root, parts) as (store, notifier):
        tell(store, ended("before"))
        with Receiver() as own:  # it is told of behind the other
            parts.add_job("job-2", own.url)
            tell(store, ended("probe", job="job-2"))
            await until(lambda: own.got)
        parts.notify = table(webhook=receiver.url)
        tell(store, ended("after"))
        await until(lambda: receiver.got)
        assert receiver.messages == ["after"] and notifier.trouble == []


async def test_a_receiver_that_is_left_out_of_the_settings_is_forgotten(
    root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "NOTICE_S", 0.01)
    with nobody() as port:
        parts = Parts(table(webhook=f"http://127.0.0.1:{port}/", retry_max_s=3600.0))
        async with daemon(root, parts) as (store, notifier):
            tell(store, ended("one"))
            await until(lambda: notifier.trouble)
            parts.notify = table()
            await until(lambda: not notifier.trouble)
            await until(lambda: waiting(root) == {})


async def test_a_receiver_that_is_left_alone_is_tried_at_once_with_other_settings(
    root: Root, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "NOTICE_S", 0.01)
    monkeypatch.setattr(sender, "FIRST_RETRY_S", 3600.0)
    with nobody() as port:
        parts = Parts(table(webhook=f"http://127.0.0.1:{port}/", retry_max_s=3600.0))
        async with daemon(root, parts) as (store, notifier):
            tell(store, ended("one"))
            await until(lambda: notifier.trouble)
            parts.notify = table(webhook=receiver.url)
            await until(lambda: receiver.messages == ["one"])


# --- over ends of the daemon ------------------------------------------------------------------------------------------


async def test_over_a_restart_nothing_is_missed_and_nothing_is_reported_twice(root: Root, receiver: Receiver) -> None:
    with nobody() as port:
        parts = Parts(table(webhook=receiver.url))
        parts.add_job("job-1", f"http://127.0.0.1:{port}/hook?token=letmein")
        async with daemon(root, parts) as (store, notifier):
            tell(store, ended("one"))
            await until(
                lambda: notifier.trouble and list(waiting(root) or {}) == [parts.jobs["job-1"].spec.notify_webhook]
            )
    assert receiver.messages == ["one"]
    # Something happens that the next daemon tells as it starts.
    store = await EventStore.open(root.events, 1 << 20, boot_id="one")
    tell(store, ended("two"))
    await store.close()
    # The job is deleted meanwhile: its webhook is remembered.
    with Receiver(port=port) as own:
        parts.jobs.clear()
        async with daemon(root, parts) as (store, notifier):
            await until(lambda: len(receiver.got) >= 2 and own.got)
            tell(store, ended("three"))
            await until(lambda: len(receiver.got) >= 3)
            await until(lambda: not notifier.trouble)
        assert own.messages == ["one"]
    assert receiver.messages == ["one", "two", "three"]


async def test_after_a_kill_what_was_not_noted_is_reported_again_with_the_same_id(
    root: Root, receiver: Receiver
) -> None:
    parts = Parts(table(webhook=receiver.url))
    file = root.state / "notify.json"
    async with daemon(root, parts) as (store, _):
        tell(store, ended("one"))
        await until(lambda: waiting(root) == {})
        before = file.read_bytes()
        tell(store, ended("two"))
        await until(lambda: len(receiver.got) >= 2)
    file.write_bytes(before)  # as a kill right behind the answer would have left it
    async with daemon(root, parts):
        await until(lambda: len(receiver.got) >= 3)
    assert receiver.messages == ["one", "two", "two"]
    assert receiver.bodies[1] == receiver.bodies[2]


async def test_the_first_daemon_of_all_does_not_tell_history(root: Root, receiver: Receiver) -> None:
    store = await EventStore.open(root.events, 1 << 20, boot_id="one")
    tell(store, ended("long ago"))
    await store.close()
    async with daemon(root, Parts(table(webhook=receiver.url))) as (store, _):
        tell(store, ended("now"))
        await until(lambda: receiver.got)
    assert receiver.messages == ["now"]


async def test_a_missing_history_is_reported(root: Root, receiver: Receiver) -> None:
    parts = Parts(table(webhook=receiver.url))
    async with daemon(root, parts) as (store, _):
        tell(store, ended("one"))
        await until(lambda: waiting(root) == {})
    for path in root.events.iterdir():
        path.unlink()
    async with daemon(root, parts) as (store, notifier):
        assert "events were dropped before they were sent" in notifier.trouble[0]
        tell(store, ended("two"))
        await until(lambda: len(receiver.got) >= 2)
    assert receiver.messages == ["one", "two"]


async def test_a_file_that_cannot_be_written_keeps_nothing_from_being_told(root: Root, receiver: Receiver) -> None:
    (root.state / ".notify.json.new").mkdir()
    async with daemon(root, Parts(table(webhook=receiver.url))) as (store, notifier):
        tell(store, ended("one"), ended("two"))
        await until(lambda: len(receiver.got) >= 2)
        await until(lambda: notifier.trouble)
        assert "notify.json: cannot be written" in notifier.trouble[0]
    assert receiver.messages == ["one", "two"]


# --- what is documented -----------------------------------------------------------------------------------------------


@pytest.fixture
def documented(tmp_path: Path) -> Iterator[tuple[str, Path, Path]]:
    """The receiver of docs/guides/notify.md: its URL, its secret, what it prints."""
    (code,) = re.findall(r"```python\n(.*?)```", (DOCS / "guides/notify.md").read_text(), re.DOTALL)
    secret, printed = tmp_path / "notify.secret", tmp_path / "printed"
    secret.touch(0o600)
    secret.write_text("open sesame\n")
    with nobody() as port:
        pass
    for there, here in (("/etc/muster/notify.secret", str(secret)), ("8080", str(port))):
        assert code.count(there) == 1
        code = code.replace(there, here)
    with open(printed, "wb") as out:
        process = subprocess.Popen([sys.executable, "-c", code], stdout=out, stderr=subprocess.DEVNULL)
    try:
        eventually(lambda: listens(port), message="the example listens")
        yield f"http://127.0.0.1:{port}/", secret, printed
    finally:
        process.kill()
        process.wait(60)


def listens(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


async def test_the_receiver_of_the_documentation(root: Root, documented: tuple[str, Path, Path]) -> None:
    url, secret, printed = documented
    parts = Parts(table(webhook=url))
    async with daemon(root, parts) as (store, notifier):
        tell(store, ended("it is signed"))
        await until(lambda: any("answered 401" in text for text in notifier.trouble))  # not yet
        assert printed.read_text() == ""
        parts.notify = table(webhook=url, secret_file=str(secret))
        await until(lambda: printed.read_text() == "it is signed\n")
        await until(lambda: not notifier.trouble)


def test_the_documentation_has_each_event() -> None:
    page = (DOCS / "guides/notify.md").read_text()
    events = re.findall(r"^\| `(\w+)` \| [a-z]", page, re.MULTILINE)
    assert events == list(EVENTS)
