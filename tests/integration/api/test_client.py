"""The client library against a real daemon that is killed in the middle."""

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.client import CursorLost, MusterError, connect, connect_blocking
from muster.v1 import event_pb2, job_pb2
from tests.conftest import Daemon, eventually

#: Writes lines until the file of its argument exists.
PACED = 'i=0; until [ -e "$0" ]; do echo "line $i of rank $RANK"; i=$((i+1)); sleep 0.01; done'
FOREVER = ("sleep", "100000")
#: More than the windows of a session in both directions.
SENT = os.urandom(5 << 20)


def killed(daemon: Daemon) -> None:
    daemon.kill(signal.SIGKILL)
    daemon.restart()


class Copied:
    """What arrived of each rank."""

    def __init__(self) -> None:
        self.ranks: dict[int, bytes] = {}
        self.verdict: Any = None

    def take(self, message: Any) -> int:
        """How many bytes there are now."""
        if message.eof:
            self.verdict = message.verdict
        else:
            have = self.ranks.get(message.rank, b"")
            assert message.offset == len(have)
            self.ranks[message.rank] = have + message.data
        return min((len(data) for data in self.ranks.values()), default=0)


@pytest.mark.slow
async def test_logs_events_and_a_wait_over_two_kills(daemon: Daemon, tmp_path: Any) -> None:
    done = tmp_path / "done"
    copied, of_node, seen, cursors = Copied(), Copied(), [], set()
    async with connect(daemon.address) as muster:
        spec = job_pb2.JobSpec(job_id="j", command=["sh", "-c", PACED, str(done)], ranks=2)
        assert not (await muster.start(spec)).already_existed

        async def read() -> None:
            kill_at = [500, 1500, sys.maxsize]
            async for message in muster.read_logs("j", follow=True):
                if copied.take(message) > kill_at[0]:
                    kill_at.pop(0)
                    await asyncio.to_thread(killed, daemon)
                    if kill_at == [sys.maxsize]:
                        done.touch()

        async def watch() -> None:
            async for message in muster.watch(from_oldest=True, job_id="j"):
                assert message.cursor not in cursors or not message.HasField("event")
                cursors.add(message.cursor)
                seen.append(message.event)
                if message.event.kind == "job.ended":
                    return

        async def read_node() -> None:
            async for message in muster.read_node_logs(follow=True):
                if message.job_id and not message.output.job_log:
                    of_node.take(message.output)

        waiting, node = asyncio.create_task(muster.wait("j")), asyncio.create_task(read_node())
        await asyncio.gather(read(), watch())
        answer = await waiting
        await asyncio.to_thread(eventually, lambda: of_node.ranks == copied.ranks or node.done())
        node.cancel()
        assert answer.ended and answer.job.state == job_pb2.JOB_STATE_SUCCEEDED
        # Idempotent, also after the end.
        assert (await muster.start(spec)).already_existed
    job = daemon.get("j")
    assert copied.ranks == of_node.ranks == {rank: daemon.output(job, rank) for rank in (0, 1)}
    assert copied.verdict.summary == job.verdict.summary
    assert [event for event in seen if event.kind] == daemon.event_list("j")[: len(cursors)]


@pytest.mark.slow
def test_blocking_streams_over_the_end_of_daemon_and_supervisor(daemon: Daemon, tmp_path: Any) -> None:
    done = tmp_path / "done"
    copied = Copied()
    events: list[event_pb2.WatchResponse] = []
    with connect_blocking(daemon.address) as muster:
        muster.start(job_pb2.JobSpec(job_id="j", command=["sh", "-c", PACED, str(done)], ranks=2))
        watcher = threading.Thread(target=lambda: events.extend(until_ended(muster.watch(from_oldest=True))))
        watcher.start()
        faults: list[Callable[[], None]] = [
            lambda: os.kill(daemon.supervisor_pid("j"), signal.SIGKILL),
            lambda: killed(daemon),
        ]
        both = False
        for message in muster.read_logs("j", follow=True):
            if copied.take(message) > 500 and not both:
                both = True
                for fault in faults:
                    fault()
                eventually(lambda: daemon.get("j").takeovers == 1)
                done.touch()
        watcher.join(60)
        assert muster.wait("j").ended
    job = daemon.get("j")
    assert both and copied.ranks == {rank: daemon.output(job, rank) for rank in (0, 1)}
    assert [m.event for m in events if m.event.kind] == daemon.event_list()[: len(events)]
    assert len({m.cursor for m in events if m.event.kind}) == sum(m.HasField("event") for m in events)


def until_ended(messages: Iterator[event_pb2.WatchResponse]) -> Iterator[event_pb2.WatchResponse]:
    for message in messages:
        yield message
        if message.event.kind == "job.ended":
            return


@pytest.mark.slow
async def test_a_command_goes_on_over_two_kills(daemon: Daemon) -> None:
    daemon.run(*FOREVER, job_id="j")
    daemon.until_running("j")
    got = b""
    async with connect(daemon.address) as muster, muster.exec("j", ["cat"], stdin=True) as command:

        async def give() -> None:
            await command.write(SENT)
            await command.close_input()

        giving = asyncio.create_task(give())
        kills = [1 << 20, 3 << 20]
        async for part in command:
            got += part.data
            if kills and len(got) > kills[0]:
                kills.pop(0)
                await asyncio.to_thread(killed, daemon)
        await giving
        assert (got == SENT, command.exit_code, command.missing, kills) == (True, 0, 0, [])


@pytest.mark.slow
def test_a_blocking_command_goes_on_over_two_kills(daemon: Daemon) -> None:
    daemon.run(*FOREVER, job_id="j")
    daemon.until_running("j")
    got = b""
    with connect_blocking(daemon.address) as muster:
        with muster.exec("j", ["sh", "-c", "cat; exit 3"], stdin=True) as command:

            def give() -> None:
                command.write(SENT)
                command.close_input()

            giving = threading.Thread(target=give)
            giving.start()
            kills = [1 << 20, 3 << 20]
            for part in command:
                got += part.data
                if kills and len(got) > kills[0]:
                    kills.pop(0)
                    killed(daemon)
            giving.join(60)
            assert (got == SENT, command.exit_code, command.missing, kills) == (True, 3, 0, [])
        # What is left before its end is ended; what was detached goes on, and can be attached to.
        with muster.exec("j", FOREVER) as command:
            left = command.started.pid
        eventually(lambda: not os.path.exists(f"/proc/{left}"))
        with muster.exec("j", ["sh", "-c", "read x; echo got $x"], stdin=True) as command:
            kept = command.started.session_id
            command.detach()
        with muster.attach("j", kept) as command:
            command.write(b"it\n")
            assert b"".join(part.data for part in command) == b"got it\n"


@pytest.mark.slow
def test_a_session_whose_supervisor_died_with_the_daemon_is_reported(daemon: Daemon) -> None:
    daemon.run(*FOREVER, job_id="j")
    daemon.until_running("j")
    with (
        connect_blocking(daemon.address) as muster,
        muster.exec("j", ["cat"], stdin=True) as command,
        pytest.raises(MusterError) as caught,
    ):
        command.write(b"x")
        next(iter(command))
        os.kill(daemon.supervisor_pid("j"), signal.SIGKILL)
        killed(daemon)
        command.wait()
    assert caught.value.reason == "SESSION_NOT_FOUND"


async def test_errors_say_what_to_do(daemon: Daemon) -> None:
    async with connect(daemon.address) as muster:
        with pytest.raises(MusterError) as caught:
            await muster.start(job_pb2.JobSpec(job_id="x", command=["true"], ranks=9999))
        wrong = caught.value
        assert (wrong.reason, wrong.remedy) == ("INVALID_REQUEST", "correct the request")
        assert wrong.violations[0][0] == "ranks"
        daemon.run("true", job_id="x")
        with pytest.raises(MusterError) as caught:
            await muster.start(job_pb2.JobSpec(job_id="x", command=["false"]))
        assert (caught.value.reason, caught.value.answered) == ("JOB_ID_CONFLICT", True)
        assert caught.value.facts["job_id"] == "x" and "command" in caught.value.facts["fields"]
        daemon.wait("x")
        assert [job.job_id async for job in muster.list_jobs()] == ["x"]
        await muster.delete("x")
        with pytest.raises(MusterError, match="JOB_NOT_FOUND"):
            await muster.get("x")


def test_a_daemon_that_is_not_there_is_looked_for_and_a_job_starts_once(daemon: Daemon) -> None:
    daemon.kill()
    spec = job_pb2.JobSpec(job_id="j", command=["true"])
    with connect_blocking(daemon.address) as muster:
        with pytest.raises(MusterError) as caught:
            muster.start(spec, within_s=0.5)
        assert (caught.value.reason, caught.value.answered) == ("UNAVAILABLE", False)
        assert "no daemon answers" in str(caught.value)
        starter = threading.Thread(target=muster.start, args=(spec,))
        starter.start()
        daemon.restart()
        starter.join(60)
        assert muster.wait("j").job.state == job_pb2.JOB_STATE_SUCCEEDED
        # Without an id it may not be repeated: the caller is told at once.
        daemon.kill()
        with pytest.raises(MusterError, match="UNAVAILABLE"):
            muster.start(job_pb2.JobSpec(command=[sys.executable, "-V"]))


def keeps_its_time(seconds: float, call: Callable[[], object]) -> None:
    began = time.monotonic()
    with pytest.raises(MusterError) as caught:
        call()
    took = time.monotonic() - began
    assert not caught.value.answered
    assert took < seconds + 0.9, caught.value  # a try to get a token takes a second where nobody answers


@pytest.mark.slow
@pytest.mark.parametrize("there", [False, True], ids=["no daemon", "a stopped daemon"])
def test_a_daemon_that_does_not_answer_is_looked_for_as_long_as_asked(daemon: Daemon, there: bool) -> None:
    if there:
        os.kill(daemon.pid, signal.SIGSTOP)
    else:
        daemon.kill()

    async def asked(calls: list[Callable[[Any], Any]]) -> None:
        async with connect(daemon.address) as muster:
            for call in calls:
                began = time.monotonic()
                with pytest.raises(MusterError):
                    await call(muster)
                assert time.monotonic() - began < 2.9

    async def drained(messages: Any) -> None:
        async for _ in messages:
            pass

    try:
        with connect_blocking(daemon.address) as muster:
            keeps_its_time(2, lambda: muster.get("j", within_s=2))
            keeps_its_time(2, lambda: muster.wait("j", search_s=2))
            keeps_its_time(2, lambda: muster.stop("j", search_s=2))
            keeps_its_time(2, lambda: list(muster.read_logs("j", search_s=2)))
            keeps_its_time(2, lambda: list(muster.watch(search_s=2)))
            keeps_its_time(2, lambda: muster.exec("j", ["true"], search_s=2).__enter__())
        asyncio.run(
            asked(
                [
                    lambda muster: muster.get("j", within_s=2),
                    lambda muster: muster.wait("j", search_s=2),
                    lambda muster: drained(muster.read_logs("j", search_s=2)),
                    lambda muster: muster.exec("j", ["true"], search_s=2).__aenter__(),
                ]
            )
        )
    finally:
        if there:
            os.kill(daemon.pid, signal.SIGCONT)


@pytest.mark.slow
def test_a_wait_that_outlasts_the_search_goes_on(daemon: Daemon) -> None:
    daemon.run("sleep", "2", job_id="j")
    with connect_blocking(daemon.address) as muster:
        assert not muster.wait("j", timeout_s=0.3, search_s=20).ended
        assert muster.wait("j", search_s=1).ended  # in slices of half a second


def test_a_relative_path_is_a_socket(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path(daemon.address.removeprefix("unix:"))
    monkeypatch.chdir(path.parents[1])
    with connect_blocking(f"{path.parent.name}/{path.name}") as muster:
        assert muster.get_node().node.hostname
    with pytest.raises(ValueError, match="unix:PATH"), connect_blocking(path.name):
        pass


def test_a_lost_cursor_names_the_oldest(daemon: Daemon) -> None:
    with connect_blocking(daemon.address) as muster:
        with pytest.raises(CursorLost) as caught:
            list(muster.watch("0123456789abcdef-0", follow=False))  # of a history before this one
        assert list(muster.watch(caught.value.oldest, follow=False))
