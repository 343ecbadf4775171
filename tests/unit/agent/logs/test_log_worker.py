"""The lines of all ranks in one file, each once."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.agent import threads
from muster.agent.jobs.entry import Entry
from muster.agent.logs.line_filter import MAX_LINE
from muster.agent.logs.log_reading import Chunk
from muster.agent.logs.log_worker import RankLines, WorkerLog, style_of
from muster.supervisors.model.lifecycle import Job, Rank
from muster.supervisors.model.spec import JobSpec
from muster.supervisors.model.states import JOB, State
from muster.supervisors.paths import Root
from tests.small_disk import needs_root, small_disk
from tests.unit.waiting import until


def entry_of(folder: Path, ranks: int = 2) -> tuple[Root, Entry]:
    root = Root.under(folder)
    job = Job(State.RUNNING, accepted_at=1.0)
    job.ranks = [Rank(i, i, i) for i in range(ranks)]
    paths = root.job("job")
    paths.folder.mkdir(parents=True)
    root.log.mkdir(exist_ok=True)
    return root, Entry("job", JobSpec("job", ("true",)), job, paths)


def put(root: Root, rank: int, data: bytes) -> None:
    with open(root.rank_log("job", rank, rank), "ab") as file:
        file.write(data)


def end(entry: Entry) -> None:
    entry.job.state, entry.job.ended_at = State.SUCCEEDED, time.time()
    entry.wake()


def worker(root: Root, entry: Entry, style: str = "labelled") -> WorkerLog:
    return WorkerLog(root, entry, lambda: style, threads.Pool(2))


# --- lines ------------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 2), st.text("ab\n", max_size=9)), max_size=20), st.integers(0, 20))
def test_each_line_once_whole_and_over_restarts(writes: list[tuple[int, str]], restart: int) -> None:
    lines, out, sizes = RankLines({}), b"", dict.fromkeys(range(3), 0)
    texts = dict.fromkeys(range(3), b"")
    for number, (rank, text) in enumerate(writes):
        if number == restart:
            lines = RankLines(dict(lines.offsets))
            for each, whole in texts.items():  # what was held is read again
                start = lines.offsets.get(each, 0)
                if whole[start:]:
                    out += lines.take(Chunk(each, start, whole[start:]), labelled=True)
        texts[rank] += text.encode()
        out += lines.take(Chunk(rank, sizes[rank], text.encode()), labelled=True)
        sizes[rank] += len(text)
    out += lines.finish(labelled=True)
    for rank, whole in texts.items():
        label = b"[rank %d] " % rank
        mine = [line.removeprefix(label) for line in out.split(b"\n") if line.startswith(label)]
        assert mine == (whole.removesuffix(b"\n").split(b"\n") if whole else [])
        assert lines.offsets.get(rank, 0) == len(whole)


def test_a_line_without_end_goes_in_pieces() -> None:
    lines = RankLines({})
    assert lines.take(Chunk(0, 0, b"x" * (MAX_LINE - 1)), labelled=False) == b""
    assert lines.take(Chunk(0, MAX_LINE - 1, b"x"), labelled=False) == b"x" * MAX_LINE + b"\n"
    assert lines.take(Chunk(0, MAX_LINE, b"y\n"), labelled=False) == b"y\n"
    assert lines.take(Chunk(1, 0, b"x" * MAX_LINE), labelled=False) == b"x" * MAX_LINE + b"\n"
    assert lines.take(Chunk(1, MAX_LINE, b"\nz\n"), labelled=False) == b"z\n", "its end alone makes no line"


def test_what_is_not_there_any_more_joins_no_lines() -> None:
    lines = RankLines({})
    lines.take(Chunk(0, 0, b"before"), labelled=False)
    assert lines.take(Chunk(0, 100, b"behind\n"), labelled=False) == b"before\nbehind\n"
    assert lines.take(Chunk(0, 10, b"cut\n"), labelled=False) == b"cut\n"
    assert lines.offsets == {0: 14}


def test_the_jobs_own_log() -> None:
    assert RankLines({}).take(Chunk(JOB, 0, b"checked\n"), labelled=True) == b"[job] checked\n"


# --- the file ---------------------------------------------------------------------------------------------------------


async def test_a_log_after_a_kill_is_cut_to_what_is_known(tmp_path: Path) -> None:
    root, entry = entry_of(tmp_path)
    put(root, 0, b"one\ntwo\nthr")
    put(root, 1, b"alpha\n")
    log = root.worker_log("job", 0)
    log.write_bytes(b"[rank 0] one\n[rank 1] alpha\n[rank 0] tw")
    entry.paths.worker.write_text(json.dumps({"size": 13, "offsets": {"0": 4}, "done": False}))
    end(entry)
    put(root, 0, b"ee")
    assert await worker(root, entry).run()
    assert sorted(log.read_bytes().splitlines()) == [
        b"[rank 0] one",
        b"[rank 0] three",
        b"[rank 0] two",
        b"[rank 1] alpha",
    ]
    assert json.loads(entry.paths.worker.read_text())["done"]
    before = log.stat().st_mtime_ns
    assert await worker(root, entry).run()
    assert log.stat().st_mtime_ns == before


async def test_the_file_of_an_earlier_job_is_set_aside(tmp_path: Path) -> None:
    root, entry = entry_of(tmp_path)
    log = root.worker_log("job", 0)
    log.write_bytes(b"of another\n")
    put(root, 0, b"mine\n")
    end(entry)
    assert await worker(root, entry, "plain").run()
    assert log.read_bytes() == b"mine\n"
    assert [path.read_bytes() for path in root.log.glob("job-worker-0.log.*")] == [b"of another\n"]


async def test_a_file_that_the_platform_writes_stays_its_own(tmp_path: Path) -> None:
    root, entry = entry_of(tmp_path)
    entry.spec = replace(entry.spec, env={"MA_VJ_NAME": "ma-job-1"})
    root.log.rename(tmp_path / "platform")
    root.log.symlink_to(tmp_path / "platform")
    log = root.worker_log("job", 0)
    log.write_bytes(b"of the platform\n")
    put(root, 0, b"mine\n")
    end(entry)
    assert await worker(root, entry, "auto").run()
    assert log.read_bytes() == b"of the platform\n"
    assert not list(root.log.glob("job-worker-0.log.*"))


async def test_the_file_of_an_earlier_job_of_this_name_is_nobody_elses(tmp_path: Path) -> None:
    root, entry = entry_of(tmp_path)
    entry.spec = replace(entry.spec, boot="command", env={"MA_VJ_NAME": "ma-job-1"})
    log = root.worker_log("job", 0)
    log.write_bytes(b"of an earlier one\n")
    put(root, 0, b"mine\n")
    end(entry)
    assert await worker(root, entry, "auto").run()
    assert log.read_bytes() == b"mine\n"


@pytest.mark.parametrize(
    ("setting", "boot", "env", "style"),
    [
        ("auto", "ranks", {}, "off"),
        ("auto", "torchrun", {}, "off"),
        ("auto", "command", {}, "plain"),
        ("auto", "ranks", {"MA_VJ_NAME": "ma-job-1"}, "plain"),
        ("auto", "ranks", {"RANK_TABLE_FILE": "/x"}, "plain"),
        ("off", "command", {"MA_VJ_NAME": "ma-job-1"}, "off"),
        ("labelled", "ranks", {}, "labelled"),
    ],
)
def test_which_jobs_have_one(setting: str, boot: str, env: dict[str, str], style: str) -> None:
    assert style_of(setting, JobSpec("j", ("true",), boot=boot, env=env)) == style


async def test_a_job_that_ended_long_ago_gets_none(tmp_path: Path) -> None:
    root, entry = entry_of(tmp_path)
    put(root, 0, b"x\n")
    end(entry)
    entry.job.ended_at -= 100_000
    assert await worker(root, entry).run()
    assert not root.worker_log("job", 0).exists()


async def test_nothing_is_left_of_a_job_that_is_deleted(tmp_path: Path) -> None:
    root, entry = entry_of(tmp_path)
    put(root, 0, b"x\n")
    log = root.worker_log("job", 0)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(worker(root, entry).run)
            await until(log.exists)
            log.unlink()
            entry.paths.folder.rename(tmp_path / "gone")
            put(root, 0, b"y\n")
            end(entry)
    assert not log.exists()


async def test_switched_off_and_on_again(tmp_path: Path) -> None:
    root, entry = entry_of(tmp_path)
    put(root, 0, b"one\n")
    style = ["plain"]
    log = root.worker_log("job", 0)
    mine = WorkerLog(root, entry, lambda: style[0], threads.Pool(2))
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(mine.run)
            await until(log.exists)
            style[0] = "off"
            entry.wake()
    put(root, 0, b"two\n")
    end(entry)
    assert await worker(root, entry, "plain").run()
    assert log.read_bytes() == b"one\ntwo\n"


@contextmanager
def leased(path: Path) -> Iterator[None]:
    """With another process that holds a lease on a file, as its owner may, and does not heed that it is to end."""
    script = (
        "import fcntl, os, signal, sys\n"
        "signal.signal(signal.SIGIO, signal.SIG_IGN)\n"
        "fcntl.fcntl(os.open(sys.argv[1], os.O_RDWR), fcntl.F_SETLEASE, fcntl.F_WRLCK)\n"
        "print(flush=True)\n"
        "sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", script, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"\n"
        yield
        holder.communicate()


async def test_a_lease_on_it_holds_up_no_thread(tmp_path: Path) -> None:
    root, entry = entry_of(tmp_path)
    log = root.worker_log("job", 0)
    log.write_bytes(b"one\n")
    entry.paths.worker.write_text(json.dumps({"size": 4, "offsets": {"0": 4}, "done": False}))
    put(root, 0, b"one\ntwo\n")
    end(entry)
    mine = worker(root, entry, "plain")
    with anyio.fail_after(40):  # an open() that waits does so for 45 s (fs.lease-break-time)
        async with anyio.create_task_group() as tasks:
            with leased(log):
                tasks.start_soon(mine.run)
                await until(lambda: "the worker log of job job has been waiting" in mine.trouble)
    assert log.read_bytes() == b"one\ntwo\n"


async def test_a_lease_does_not_hold_up_what_is_stored(tmp_path: Path) -> None:
    root, entry = entry_of(tmp_path)
    log = root.worker_log("job", 0)
    log.write_bytes(b"one\n")
    entry.paths.worker.write_text(json.dumps({"size": 4, "offsets": {"0": 4}, "done": False}))
    put(root, 0, b"one\n")
    end(entry)
    before = time.monotonic()
    with leased(log):
        assert await worker(root, entry, "plain").run()
        assert time.monotonic() - before < 40, "open() waited for the lease to be broken"


@needs_root
async def test_a_full_disk_is_waited_for(tmp_path: Path) -> None:
    root = Root.under(tmp_path)
    with small_disk(root.log, "1m"):
        root, entry = entry_of(tmp_path)
        data = b"".join(b"line %d\n" % i for i in range(40_000))
        put(root, 0, data)
        ballast = root.log / "ballast"
        ballast.write_bytes(bytes(300_000))
        mine = worker(root, entry, "plain")
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(mine.run)
                await until(lambda: "No space left on device; the worker log of job job has been" in mine.trouble)
                ballast.unlink()
                end(entry)
        assert mine.trouble == ""
        assert root.worker_log("job", 0).read_bytes() == data
