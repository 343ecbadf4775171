"""The log folder is kept: what goes for want of room, what is handed over, and what nobody has to wait for."""

import fcntl
import functools
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from muster.agent import threads
from muster.agent.config.schema import Config, LogsTable
from muster.agent.events.event_store import Event, EventStore
from muster.agent.host import state_file
from muster.agent.jobs import log_ownership
from muster.agent.jobs.ended.collected_logs import CollectedLogs
from muster.agent.jobs.ended.ended_index import EndedJobs
from muster.agent.jobs.ended.ended_row import Ended
from muster.agent.jobs.entry import Entry
from muster.agent.logs import log_keeping, log_upload
from muster.agent.logs.log_keeping import LogKeeping
from muster.supervisors.model.lifecycle import Job, Rank, Verdict
from muster.supervisors.model.spec import JobSpec
from muster.supervisors.model.states import State
from muster.supervisors.output import gzip_members, log_removals, log_segments
from muster.supervisors.paths import Root
from muster.supervisors.system.settings_file import SettingsFile
from tests.small_disk import fill, needs_root, small_disk
from tests.unit.waiting import until

HOUR = 3600.0
#: A process that has a lock, as a supervisor has.
HOLD = "import fcntl, sys; f = open(sys.argv[1], 'r+'); fcntl.lockf(f, 2); print(1, flush=True); sys.stdin.read()"


class Jobs:
    """In the place of the registry."""

    def __init__(self, root: Root) -> None:
        self.all: dict[str, Entry] = {}
        self.ended = EndedJobs(root, threads.Pool(1))
        self.ended.indexed.set()

    def add(self, entry: Entry) -> None:
        self.all[entry.job_id] = entry
        if entry.state.final:
            self.ended.add(entry)

    def live(self) -> list[Entry]:
        return [entry for entry in self.all.values() if not entry.state.final]

    def job(self, job_id: str) -> Entry | Ended | None:
        return next((entry for entry in self.live() if entry.job_id == job_id), None) or self.ended.row(job_id)

    async def get(self, job_id: str) -> Entry:
        return self.all[job_id]

    @asynccontextmanager
    async def alone(self, job_id: str) -> AsyncIterator[None]:
        yield


class Node:
    """A log folder that is kept, with jobs that need no processes."""

    def __init__(self, root: Root, events: EventStore) -> None:
        self.root, self.events, self.jobs = root, events, Jobs(root)
        self.logs = LogsTable(keep_days=0, min_free_percent=0)
        jobs: Any = self.jobs
        self.collected = CollectedLogs(root.collected_logs)
        self.keeping = LogKeeping(root, lambda: Config(logs=self.logs), events, jobs, self.collected)

    def job(self, job_id: str, ended_h: float | None, data: bytes = b"x" * 1000, **env: str) -> Entry:
        """Ended so many hours ago; None: it runs."""
        job = Job(State.RUNNING if ended_h is None else State.SUCCEEDED, accepted_at=1.0)
        job.ended_at = time.time() - ended_h * HOUR if ended_h is not None else 0.0
        job.verdict = Verdict(0, "all ranks ended with 0") if ended_h is not None else None
        job.ranks = [Rank(0, 0, 0)]
        paths = self.root.job(job_id)
        paths.folder.mkdir(parents=True)
        entry = Entry(job_id, JobSpec(job_id, ("true",), env=env), job, paths)
        self.log(job_id).write_bytes(data)
        self.jobs.add(entry)
        self.events.append([(None, Event(time.time(), "job.accepted", job_id))])
        return entry

    def log(self, job_id: str) -> Path:
        return self.root.rank_log(job_id, 0, 0)

    async def until(self, condition: Callable[[], Any], **logs: Any) -> None:
        """With these settings; it looks again and again."""
        self.logs = replace(self.logs, **logs)

        def met() -> Any:
            self.keeping.reload()
            return condition()

        await until(met)

    async def told(self, kind: str, count: int = 0) -> list[Any]:
        """Events, once there are so many."""
        with anyio.fail_after(60):
            while True:
                cursor = self.events.newest_cursor()
                found = [event for event, _ in await self.events.read(None, 1000) if event.kind == kind]
                if len(found) >= count:
                    return found
                await self.events.wait_beyond(cursor)


@asynccontextmanager
async def kept(folder: Path) -> AsyncIterator[Node]:
    root = Root.under(folder)
    for each in (root.run, root.log, root.jobs, root.events):
        each.mkdir(parents=True, exist_ok=True)
    events = await EventStore.open(root.events, 1 << 20)
    node = Node(root, events)
    try:
        async with anyio.create_task_group() as tasks:
            await tasks.start(events.run)
            await tasks.start(node.keeping.run)
            yield node
            tasks.cancel_scope.cancel()
    finally:
        await events.close()


# --- what goes --------------------------------------------------------------------------------------------------------


@needs_root
@pytest.mark.parametrize("full", [False, True])
async def test_a_disk_that_fills_up(tmp_path: Path, full: bool) -> None:
    with small_disk(Root.under(tmp_path).log, "4m"):
        async with kept(tmp_path) as node:
            for job_id, ended_h in (("second", 2), ("first", 3), ("third", 1), ("live", None)):
                node.job(job_id, ended_h, bytes(900_000))
            if full:
                fill(node.root.log)
            await node.until(lambda: not node.log("second").exists(), min_free_percent=40.0)
            await node.until(lambda: not node.keeping.trouble)
            assert node.log("live").exists() and node.log("third").exists()
            assert [event.job_id for event in await node.told("logs.removed", 2)] == ["first", "second"]
            (record,) = log_removals.removals(node.log("first"))
            assert (record.start, record.end) == (0, 900_000)
            assert "min_free_percent" in record.why


async def test_all_logs_of_the_node_within_a_limit(tmp_path: Path) -> None:
    async with kept(tmp_path) as node:
        node.job("first", 2, bytes(100_000))
        node.job("second", 1, bytes(100_000))
        await node.until(lambda: not node.log("first").exists(), max_node_bytes=150_000)
        assert node.log("second").exists()


async def test_what_was_inflated_for_readers_is_given_back(tmp_path: Path) -> None:
    packed = tmp_path / "a.gz"
    packed.write_bytes(gzip_members.pack(b"x" * 1000, 6))
    async with kept(tmp_path / "node") as node:
        assert gzip_members.unpack(packed, 0, 1000, 1000) == b"x" * 1000
        await node.until(lambda: gzip_members.held() == (0, 0))


async def test_a_folder_that_several_jobs_share_goes_with_the_last(tmp_path: Path) -> None:
    async with kept(tmp_path) as node:
        node.job("first", 48, MA_VJ_NAME="ma-job-1")
        node.job("second", 1, MA_VJ_NAME="ma-job-1")
        folder = node.root.log / "modelarts-job-1"
        folder.mkdir()
        (folder / "plog").write_bytes(b"x")
        await node.until(lambda: not node.log("first").exists(), keep_days=1.0)
        assert folder.exists() and node.log("second").exists()
        await node.until(lambda: not folder.exists(), keep_days=0.01)


async def test_a_removal_that_fails_is_reported(tmp_path: Path) -> None:
    async with kept(tmp_path) as node:
        node.job("job", 48)
        log_segments.removed_path(node.log("job")).mkdir()
        await node.until(lambda: any("remove" in text for text in node.keeping.trouble), keep_days=1.0)
        log_segments.removed_path(node.log("job")).rmdir()
        node.log("job").write_bytes(b"x")
        await node.until(lambda: not node.keeping.trouble)


async def test_a_job_is_kept_until_its_journal_can_be_trusted_or_its_supervisor_is_gone(tmp_path: Path) -> None:
    async with kept(tmp_path) as node:
        entry = node.job("job", 48)
        entry.give_up("its journal is damaged")
        node.jobs.add(entry)
        entry.paths.lock.touch()
        os.utime(node.log("job"), (1.0, 1.0))
        node.job("other", 48)
        command = [sys.executable, "-c", HOLD, str(entry.paths.lock)]
        async with await anyio.open_process(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            await process.stdout.receive()
            await node.until(lambda: not node.log("other").exists(), keep_days=1.0)
            assert node.log("job").exists()
            process.kill()
        await node.until(lambda: not node.log("job").exists())


# --- handing over -----------------------------------------------------------------------------------------------------


def program(folder: Path, body: str) -> tuple[str, ...]:
    path = folder / "program"
    path.write_text(f"#!/bin/sh\ncd {folder}\n{body}\n")
    path.chmod(0o755)
    return (str(path),)


async def test_segments_go_when_they_were_taken(tmp_path: Path) -> None:
    """A running job is kept within its limit without losing what nobody has yet."""
    async with kept(tmp_path) as node:
        node.job("job", None)
        log = node.log("job")
        first, second = (log_segments.segment_path(log, start, start + 1000) for start in (0, 1000))
        first.write_bytes(bytes(1000))
        taker = program(tmp_path, "[ -e open ] && cat > new && mv new taken.$(ls taken.* 2>/dev/null | wc -l)")
        await node.until(
            lambda: node.keeping.trouble, upload=taker, compress="off", max_job_bytes=1100, max_file_bytes=1000
        )
        assert first.exists()
        # Its supervisor must not remove it, but has to rotate early enough for it. A look may be under way meanwhile.
        await node.until(lambda: SettingsFile(node.root.settings).now.logs.rotate_for_bytes == 1100)
        assert SettingsFile(node.root.settings).now.logs.max_job_bytes == 0
        (tmp_path / "open").touch()
        second.write_bytes(bytes(1000))
        monotonic = anyio.current_time()
        for lot in node.keeping.uploads.lots.values():
            lot.due = monotonic
        await node.until((tmp_path / "taken.0").exists)
        said = json.loads((tmp_path / "taken.0").read_text())
        assert (said["state"], said["ended"]) == ("RUNNING", False)
        assert str(first) in [each["path"] for each in said["files"]]
        await node.until(lambda: not second.exists())
        assert not first.exists() and log.exists()
        assert [(record.start, record.end, record.why) for record in log_removals.removals(log)] == [
            (0, 2000, "the job's logs may have 1100 bytes (max_job_bytes)")
        ]


async def test_a_backlog_of_segments_does_not_keep_others_from_being_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed: list[Path] = []
    gates = [anyio.Event() for _ in range(3)]

    async def pack(_: LogKeeping, path: Path) -> None:
        if not await anyio.Path(path).exists():  # a look saw it while it was compressed
            return
        packed.append(path)
        await gates[len(packed) - 1].wait()
        await anyio.Path(path).rename(f"{path}.gz")

    monkeypatch.setattr(LogKeeping, "pack", pack)
    async with kept(tmp_path) as node:
        node.job("job", None)
        paths = [log_segments.segment_path(node.log("job"), start, start + 1000) for start in range(0, 4000, 1000)]
        for path in paths[1:]:
            path.write_bytes(bytes(1000))
        paths[0].with_name(f"{paths[0].name}.gz").write_bytes(b"packed before")
        await node.until(lambda: packed)
        taker = program(tmp_path, "cat > in.new; mv in.new in; while [ ! -e open ]; do sleep 0.01; done")
        lots = node.keeping.uploads.lots
        await node.until(lambda: lots["job"].segments == [paths[0].name], upload=taker)
        assert not (tmp_path / "in").exists(), "not while another file of the job is compressed"
        [said] = node.keeping.work
        assert re.fullmatch(rf"compresses {paths[1].name} since \d+ s; 3 segment\(s\) left, 0 MB", said)
        gates[0].set()
        await until((tmp_path / "in").exists)
        # With the one that is compressed by now, if a look that was under way has seen it.
        taken = [file["path"] for file in json.loads((tmp_path / "in").read_text())["files"]]
        assert taken in ([f"{paths[0]}.gz"], [f"{paths[0]}.gz", f"{paths[1]}.gz"])
        assert len(packed) == 1, "and none is compressed while it is taken"
        assert node.keeping.work == ["the upload program has the files of job"]
        (tmp_path / "open").touch()
        gates[1].set()
        gates[2].set()
        await until(lambda: len(packed) == 3)
        assert packed == paths[1:], "compressing goes on then, at once"


async def test_what_another_compresses_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that an earlier daemon has begun, and that goes on beside this one."""
    monkeypatch.setattr(log_keeping, "LOOK_S", 0.1)
    async with kept(tmp_path) as node:
        node.job("job", None)
        first, second = (log_segments.segment_path(node.log("job"), start, start + 1000) for start in (0, 1000))
        first.write_bytes(bytes(1000))
        second.write_bytes(bytes(1000))
        taker = program(tmp_path, "cat > new && mv new taken.$(ls taken.* 2>/dev/null | wc -l)")
        lock = os.open(first, os.O_RDONLY)
        fcntl.flock(lock, fcntl.LOCK_EX)
        await node.until((tmp_path / "taken.0").exists, upload=taker)
        (taken,) = json.loads((tmp_path / "taken.0").read_text())["files"]
        assert taken["path"] == f"{second}.gz"
        os.close(lock)
        await node.until((tmp_path / "taken.1").exists)
        (taken,) = json.loads((tmp_path / "taken.1").read_text())["files"]
        assert taken["path"] == f"{first}.gz"
        assert not node.keeping.trouble


@pytest.mark.parametrize("ended", [False, True])
async def test_a_segment_that_is_compressed_while_files_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: bool
) -> None:
    of_job = log_ownership.of_job

    def compressed_meanwhile(*args: Any) -> Any:
        found = of_job(*args)
        segment.rename(f"{segment}.gz")
        return found

    async with kept(tmp_path) as node:
        entry = node.job("job", 1 if ended else None)
        segment = log_segments.segment_path(node.log("job"), 0, 1000)
        segment.write_bytes(bytes(1000))
        monkeypatch.setattr(log_ownership, "of_job", compressed_meanwhile)
        listed = log_upload.listed_files(node.root, entry, None if ended else {segment.name}, set())
    assert str(segment) in [file["path"].removesuffix(".gz") for file in listed]


async def test_only_what_was_listed_counts_as_taken(tmp_path: Path) -> None:
    async with kept(tmp_path) as node:
        entry = node.job("job", None)
        there, gone = (log_segments.segment_path(node.log("job"), start, start + 1000) for start in (1000, 0))
        there.write_bytes(bytes(1000))
        await node.until(lambda: True, upload=program(tmp_path, "cat > new && mv new taken"), compress="off")
        node.keeping.uploads.rotated(entry, [gone.name, there.name])
        await node.until(lambda: node.keeping.uploads.taken(entry.job_id))
        assert node.keeping.uploads.taken(entry.job_id) == [there.name]
        await node.until(lambda: not node.keeping.uploads.busy("job"))
        assert not log_upload.wants(node.keeping.uploads.lots["job"]), "it is not looked for again and again"


async def test_at_most_so_many_at_once(tmp_path: Path) -> None:
    async with kept(tmp_path) as node:
        for i in range(5):
            node.job(f"job-{i}", 1)
        taker = program(tmp_path, 'touch "in.$MUSTER_JOB_ID"; while [ ! -e open ]; do sleep 0.01; done')
        await node.until(lambda: len(list(tmp_path.glob("in.*"))) == log_upload.AT_ONCE, upload=taker)
        with anyio.move_on_after(0.3):
            await node.until(lambda: len(list(tmp_path.glob("in.*"))) > log_upload.AT_ONCE)
            raise AssertionError("more than allowed at once")
        (tmp_path / "open").touch()
        await node.until(lambda: all(entry.paths.uploaded.exists() for entry in node.jobs.all.values()))


async def test_it_is_left_alone_for_longer_after_each_failure(tmp_path: Path) -> None:
    async with kept(tmp_path) as node:
        node.job("job", 1)
        tried = anyio.current_time()
        await node.until(lambda: node.keeping.trouble, upload=program(tmp_path, "exit 1"))
        (lot,) = node.keeping.uploads.lots.values()
        #: Seconds that are left when we look, and those since the try began: each wait is between the two.
        left, since = [], []

        def failed(failures: int) -> bool:
            return lot.failures >= failures and not lot.busy

        for failures in range(1, 16):
            await node.until(functools.partial(failed, failures))
            left.append(lot.due - anyio.current_time())
            since.append(lot.due - tried)
            lot.due, tried = 0.0, anyio.current_time()
            node.keeping.uploads.wake()
        assert since[0] > 2 and left[0] <= 5 and since[3] > left[0]
        assert all(wait <= log_upload.MAX_RETRY_S for wait in left) and since[-1] > 1000
        assert len(await node.told("logs.upload_failed")) == 1, "the same reason is told once"


async def test_what_a_program_says_at_its_end_is_reported_however_much_it_says(tmp_path: Path) -> None:
    async with kept(tmp_path) as node:
        node.job("job", 1)
        noise = f"i=0; while [ $i -lt 40000 ]; do echo '{'words ' * 8}' >&2; i=$((i+1)); done"
        await node.until(lambda: node.keeping.trouble, upload=program(tmp_path, f"{noise}; echo no bucket >&2; exit 4"))
        (event,) = await node.told("logs.upload_failed")
        assert "exited with code 4: " in event.message and event.message.endswith("no bucket")
        assert len(event.message) < 1000


async def test_the_event_of_taken_files_comes_before_their_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A daemon that finds the note does not tell of it again."""
    told: list[bool] = []
    write = state_file.write

    def noted(path: Path, value: Any, **options: Any) -> None:
        if path.name == "uploaded":
            told.append(any(b"logs.uploaded" in each.read_bytes() for each in node.root.events.glob("*.log")))
        write(path, value, **options)

    monkeypatch.setattr(state_file, "write", noted)
    async with kept(tmp_path) as node:
        entry = node.job("job", 1.0)
        await node.until(entry.paths.uploaded.exists, upload=program(tmp_path, "cat > /dev/null"), compress="off")
        assert told == [True]


async def test_a_daemon_that_is_killed_behind_a_removal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The next one tells of it, and no other one."""
    removed: list[str] = []

    def killed(event: Event) -> None:
        removed.append(event.attributes["bytes"])
        raise RuntimeError("killed")

    async with kept(tmp_path) as node:
        monkeypatch.setattr(node.events, "tell", killed)
        node.job("old", 1.0)
        await node.until(lambda: removed, keep_days=0.001)
        assert not node.log("old").exists() and not await node.told("logs.removed")
    for _ in range(2):
        async with kept(tmp_path) as node:
            (event,) = await node.told("logs.removed", 1)
            assert event.attributes["bytes"] == removed[0] and "keep_days" in event.message
            await until(lambda: not node.root.removing.exists())
