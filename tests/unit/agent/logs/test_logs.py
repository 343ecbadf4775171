"""Reading the files of ranks."""

import functools
import gc
import os
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.agent.api.services import log_service as service
from muster.agent.changes import Changes
from muster.agent.errors import InvalidRequest, JournalUnreadable, LogUnreadable, OffsetOutOfRange
from muster.agent.logs import log_reading
from muster.supervisors.model import lifecycle
from muster.supervisors.model.lifecycle import Rank
from muster.supervisors.model.states import State
from muster.supervisors.output.log_compressor import compress
from muster.supervisors.output.log_removals import remove
from muster.supervisors.output.log_segments import segment_path
from muster.supervisors.output.time_index import INDEX_RECORD
from muster.supervisors.paths import Root
from muster.v1 import log_pb2
from tests.unit.waiting import until

SECOND = 1_000_000_000


def rank_file(folder, rank, data=None, index=(), torn=b""):
    file = log_reading.RankLogFile(rank, folder / f"{rank}.txt", folder / f"{rank}.idx")
    if data is not None:
        file.path.write_bytes(data)
    if index is not None:
        file.index.write_bytes(b"".join(INDEX_RECORD.pack(*record) for record in index) + torn)
    return file


def append(path, data):
    with open(path, "ab") as out:
        out.write(data)


async def read_all(files, positions=None):
    sizes = await log_reading.sizes_of(files)
    merge = log_reading.Merge(files, positions or dict.fromkeys(sizes, 0))
    chunks = []
    if merge.begin(sizes):
        while batch := await merge.batch():
            assert sum(len(chunk.data) for chunk in batch) <= log_reading.BATCH_BYTES + log_reading.CHUNK
            chunks += batch
    return chunks


async def test_one_file_comes_in_chunks_with_offset_and_time(tmp_path):
    data = os.urandom(300_000)
    file = rank_file(tmp_path, 0, data, [(0, 10), (150_000, 20), (400_000, 30)])
    chunks = await read_all([file])
    assert b"".join(chunk.data for chunk in chunks) == data
    position = 0
    for chunk in chunks:
        assert chunk.offset == position
        assert len(chunk.data) <= log_reading.CHUNK
        assert chunk.time == (10 if position < 150_000 else 20)
        position += len(chunk.data)


async def test_several_files_are_merged_by_time(tmp_path):
    first = rank_file(tmp_path, 0, b"aaacc", [(0, 1), (3, 3)])
    second = rank_file(tmp_path, 1, b"bbbdd", [(0, 2), (3, 4)])
    chunks = await read_all([first, second])
    assert [(c.rank, c.data, c.time) for c in chunks] == [
        (0, b"aaa", 1),
        (1, b"bbb", 2),
        (0, b"cc", 3),
        (1, b"dd", 4),
    ]


@pytest.mark.parametrize("index", [None, ()])
async def test_without_an_index_there_is_no_time(tmp_path, index):
    file = rank_file(tmp_path, 0, b"text", index)
    (chunk,) = await read_all([file])
    assert (chunk.data, chunk.time) == (b"text", None)


async def test_a_torn_index_record_is_ignored(tmp_path):
    file = rank_file(tmp_path, 0, b"abcdef", [(0, 1), (3, 2)], torn=INDEX_RECORD.pack(5, 9)[:11])
    assert [(c.data, c.time) for c in await read_all([file])] == [(b"abc", 1), (b"def", 2)]
    assert log_reading.offset_since(file, 9 * SECOND, 6) == 6


async def test_an_index_whose_offsets_fall_back_loses_no_byte(tmp_path):
    file = rank_file(tmp_path, 0, b"0123456789", [(0, 1), (8, 2), (2, 3), (2, 3), (6, 4), (90, 5)])
    assert b"".join(c.data for c in await read_all([file])) == b"0123456789"


@given(
    files=st.lists(st.lists(st.tuples(st.binary(min_size=1, max_size=40), st.integers(0, 5)), max_size=8), max_size=4),
    skips=st.lists(st.integers(0, 200), min_size=4, max_size=4),
)
@settings(deadline=None)
def test_a_merge_loses_and_doubles_nothing_and_keeps_the_order(tmp_path_factory, files, skips):
    folder = tmp_path_factory.mktemp("logs")
    made, positions, contents = [], {}, {}
    for rank, pieces in enumerate(files):
        data, index, when = b"", [], 0
        for piece, later in pieces:
            when += later
            index.append((len(data), when))
            data += piece
        made.append(rank_file(folder, rank, data, index))
        contents[rank] = data
        positions[rank] = min(skips[rank], len(data))
    chunks = anyio.run(read_all, made, positions)
    assert [c.time for c in chunks] == sorted(c.time for c in chunks)
    for rank, data in contents.items():
        assert b"".join(c.data for c in chunks if c.rank == rank) == data[positions[rank] :]


async def test_many_small_segments_stay_small_batches(tmp_path):
    index = [(i * 10, i) for i in range(3000)]
    file = rank_file(tmp_path, 0, b"x" * 30_000, index)
    chunks = await read_all([file])
    assert len(chunks) == 3000
    assert [c.time for c in chunks] == list(range(3000))


async def test_reading_in_the_middle_finds_its_time(tmp_path):
    file = rank_file(tmp_path, 0, b"x" * 30_000, [(i * 10, i) for i in range(3000)])
    chunks = await read_all([file], {0: 25_005})
    assert (chunks[0].offset, len(chunks[0].data), chunks[0].time) == (25_005, 5, 2500)


async def test_more_files_than_are_held_open(tmp_path):
    count = 100
    files = [rank_file(tmp_path, rank, b"ab", [(0, rank), (1, 1000 + rank)]) for rank in range(count)]
    before = len(os.listdir("/proc/self/fd"))
    chunks = await read_all(files)
    assert [c.rank for c in chunks] == [*range(count), *range(count)]
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    ("data", "lines", "expected"),
    [
        (b"", 3, b""),
        (b"a\nb\nc\n", 0, b""),
        (b"a\nb\nc\n", 1, b"c\n"),
        (b"a\nb\nc", 1, b"c"),
        (b"a\nb\nc\n", 2, b"b\nc\n"),
        (b"a\nb\nc\n", 3, b"a\nb\nc\n"),
        (b"a\nb\nc\n", 99, b"a\nb\nc\n"),
        (b"\n\n\n", 2, b"\n\n"),
        (b"no newline", 1, b"no newline"),
        (b"first\n" + b"x" * 200_000 + b"\n", 1, b"x" * 200_000 + b"\n"),
        (b"first\n" + b"x" * (log_reading.CHUNK - 1) + b"\n", 1, b"x" * (log_reading.CHUNK - 1) + b"\n"),
        (b"first\n" + b"x" * log_reading.CHUNK, 1, b"x" * log_reading.CHUNK),
    ],
)
async def test_lines_from_the_end(tmp_path, data, lines, expected):
    file = rank_file(tmp_path, 0, data)
    assert data[await log_reading.tail_offset(file, lines, len(data)) :] == expected


async def test_lines_from_the_end_over_several_steps(tmp_path, monkeypatch):
    monkeypatch.setattr(log_reading, "TAIL_STEP", 100)
    data = b"".join(b"line %d\n" % i for i in range(500))
    file = rank_file(tmp_path, 0, data)
    for lines in (1, 37, 499, 500, 501):
        expected = b"".join(data.splitlines(keepends=True)[-lines:])
        assert data[await log_reading.tail_offset(file, lines, len(data)) :] == expected


async def test_a_huge_file_is_read_from_the_end_at_once(tmp_path):
    file = rank_file(tmp_path, 0, b"")
    size = 100 << 30  # sparse
    os.truncate(file.path, size - 4)
    append(file.path, b"\nab\n")
    with anyio.fail_after(60):
        assert await log_reading.tail_offset(file, 1, size) == size - 3
    chunks = await read_all([file], {0: size - 3})
    assert chunks[0].data == b"ab\n"


def test_since(tmp_path):
    file = rank_file(tmp_path, 0, b"x" * 100, [(0, 10 * SECOND), (40, 20 * SECOND), (70, 30 * SECOND)])
    assert log_reading.offset_since(file, 0, 100) == 0
    assert log_reading.offset_since(file, 20 * SECOND, 100) == 40
    # Bytes of a record may be 100 ms younger than it says.
    assert log_reading.offset_since(file, 20 * SECOND + 50_000_000, 100) == 40
    assert log_reading.offset_since(file, 21 * SECOND, 100) == 70
    assert log_reading.offset_since(file, 31 * SECOND, 100) == 100
    assert log_reading.offset_since(file, 30 * SECOND, 60) == 60  # the file is shorter than its index says


def test_since_before_an_index_that_was_made_anew_leaves_nothing_out(tmp_path):
    file = rank_file(tmp_path, 0, b"0123456789", [(4, 5 * SECOND), (8, 6 * SECOND)])
    assert log_reading.offset_since(file, 4 * SECOND, 10) == 0
    assert log_reading.offset_since(file, 6 * SECOND, 10) == 8
    assert log_reading.offset_until(file, 4 * SECOND, 10) == 4


def test_since_without_an_index_goes_by_the_files_own_time(tmp_path):
    file = rank_file(tmp_path, 0, b"xyz", None)
    os.utime(file.path, ns=(0, 50 * SECOND))
    assert log_reading.offset_since(file, 40 * SECOND, 3) == 0
    assert log_reading.offset_since(file, 60 * SECOND, 3) == 3
    assert log_reading.offset_since(rank_file(tmp_path, 1, None, None), 1, 0) == 0


async def test_where_reading_begins(tmp_path):
    files = [rank_file(tmp_path, r, b"a\nb\nc\n", [(0, SECOND), (2, 2 * SECOND)]) for r in range(3)]
    sizes = await log_reading.sizes_of(files)
    assert await log_reading.starts(files, sizes, {1: 5}, 1, None) == {0: 4, 1: 5, 2: 4}
    assert await log_reading.starts(files, sizes, {}, 3, 2 * SECOND) == {0: 2, 1: 2, 2: 2}
    assert await log_reading.starts(files, sizes, {}, None, None) == {0: 0, 1: 0, 2: 0}
    with pytest.raises(OffsetOutOfRange, match=r"rank 2: offset 7 .* at byte 6"):
        await log_reading.starts(files, sizes, {2: 7}, None, None)


async def test_a_file_that_shrank_is_reported_and_read_on_from_its_new_end(tmp_path):
    file = rank_file(tmp_path, 0, b"0123456789", [(0, 1)])
    merge = log_reading.Merge([file], {0: 0})
    assert merge.begin({0: 10})
    assert [c.data for c in await merge.batch()] == [b"0123456789"]
    file.path.write_bytes(b"abc")
    assert merge.begin({0: 3})
    (chunk,) = await merge.batch()
    assert (chunk.truncated, chunk.offset, chunk.data) == (True, 3, b"")
    assert await merge.batch() == []
    assert not merge.begin({0: 3})
    file.path.write_bytes(b"abcdef")
    append(file.index, INDEX_RECORD.pack(3, 7))
    assert merge.begin({0: 6})
    assert [(c.offset, c.data, c.time) for c in await merge.batch()] == [(3, b"def", 7)]


@pytest.mark.parametrize("kept", [0, 1, 2])
@pytest.mark.parametrize("shrinks", ["before it is told", "behind it"])
async def test_a_follower_of_a_file_that_was_cut_goes_on_by_an_index_that_was_cut(tmp_path, kept, shrinks):
    """The supervisor cuts it with the next output, which may be before or after a look that tells of the cut; and the
    index may have as many records then as before."""
    records = [(0, 1), (4, 2), (8, 3)]
    file = rank_file(tmp_path, 0, b"0123456789", records)
    merge = log_reading.Merge([file], {0: 0})
    assert merge.begin({0: 10})
    assert len(await merge.batch()) == 3
    file.path.write_bytes(b"abcde")
    if shrinks == "before it is told":
        os.truncate(file.index, kept * INDEX_RECORD.size)
    assert merge.begin({0: 5})
    (chunk,) = await merge.batch()
    assert (chunk.truncated, chunk.offset) == (True, 5)
    os.truncate(file.index, kept * INDEX_RECORD.size)
    append(file.index, INDEX_RECORD.pack(5, 7) + INDEX_RECORD.pack(6, 8) + INDEX_RECORD.pack(7, 9))
    append(file.path, b"fgh")
    assert merge.begin({0: 8})
    assert [(c.data, c.time) for c in await merge.batch()] == [(b"f", 7), (b"g", 8), (b"h", 9)]


async def test_a_follower_notices_an_index_that_is_another(tmp_path):
    """It was deleted and made anew, or cut and written again between two looks."""
    file = rank_file(tmp_path, 0, b"0123", [(0, 1), (2, 2)])
    merge = log_reading.Merge([file], {0: 0})
    merge.begin({0: 4})
    assert len(await merge.batch()) == 2
    append(file.path, b"4567")
    file.index.write_bytes(INDEX_RECORD.pack(4, 5) + INDEX_RECORD.pack(6, 6))
    merge.begin({0: 8})
    assert [(c.data, c.time) for c in await merge.batch()] == [(b"45", 5), (b"67", 6)]


async def test_sizes_that_are_older_than_what_was_read_are_no_truncation(tmp_path):
    """A follower's first look and the common look at the files run side by side."""
    file = rank_file(tmp_path, 0, b"0123456789")
    merge = log_reading.Merge([file], {0: 0})
    assert merge.begin({0: 10})
    assert len(await merge.batch()) == 1
    merge.begin({0: 6})
    assert await merge.batch() == []
    file.path.write_bytes(b"0123456789ab")
    assert merge.begin({0: 12})
    assert [(c.offset, c.data) for c in await merge.batch()] == [(10, b"ab")]


# --- rotated ---------------------------------------------------------------------------------------------------------


def rotate(file, cut, start=0):
    """The first bytes of the live file, which begins at `start`, into a segment."""
    data = file.path.read_bytes()
    segment_path(file.path, start, start + cut).write_bytes(data[:cut])
    file.path.write_bytes(data[cut:])


def pack(file, number):
    for _ in compress(file.path, log_reading.look([file])[0].pieces[number]):
        pass


async def test_a_rotated_file_is_read_as_if_it_had_not_been(tmp_path):
    data = b"".join(b"line %d\n" % i for i in range(40_000))
    file = rank_file(tmp_path, 0, data, [(0, 10), (150_000, 20), (300_000, 30)])
    for start in (0, 100_000, 200_000):
        rotate(file, 100_000, start)
    pack(file, 1)
    assert file.size() == len(data)
    chunks = await read_all([file])
    assert b"".join(chunk.data for chunk in chunks) == data
    position = 0
    for chunk in chunks:
        assert (chunk.offset, chunk.time) == (position, 10 * min(position // 150_000 + 1, 3))
        position += len(chunk.data)
    for lines in (1, 5000, 15_000, 25_000, 39_999, 40_000, 50_000):
        expected = b"".join(data.splitlines(keepends=True)[-lines:])
        assert data[await log_reading.tail_offset(file, lines, len(data)) :] == expected
    chunks = await read_all([file], {0: 199_990})
    assert b"".join(chunk.data for chunk in chunks) == data[199_990:]


@given(
    files=st.lists(st.lists(st.tuples(st.binary(min_size=1, max_size=40), st.integers(0, 5)), max_size=8), max_size=3),
    cuts=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 50), st.booleans()), max_size=8),
    skips=st.lists(st.integers(0, 200), min_size=3, max_size=3),
)
@settings(deadline=None)
def test_a_merge_over_rotated_files_loses_and_doubles_nothing(tmp_path_factory, files, cuts, skips):
    folder = tmp_path_factory.mktemp("logs")
    made, positions, contents, starts = [], {}, {}, {}
    for rank, pieces in enumerate(files):
        data, index, when = b"", [], 0
        for piece, later in pieces:
            when += later
            index.append((len(data), when))
            data += piece
        made.append(rank_file(folder, rank, data, index))
        contents[rank], starts[rank] = data, 0
        positions[rank] = min(skips[rank], len(data))
    for rank, cut, packed in cuts:
        if rank < len(made) and cut < len(contents[rank]) - starts[rank]:
            rotate(made[rank], cut, starts[rank])
            starts[rank] += cut
            if packed:
                pack(made[rank], -2)
    chunks = anyio.run(read_all, made, positions)
    assert [c.time for c in chunks] == sorted(c.time for c in chunks)
    for rank, data in contents.items():
        assert b"".join(c.data for c in chunks if c.rank == rank) == data[positions[rank] :]


async def test_what_was_removed_is_passed_over_and_an_offset_in_it_refused(tmp_path):
    data = b"".join(b"%07d\n" % i for i in range(100))
    file = rank_file(tmp_path, 0, data, [(0, SECOND), (400, 2 * SECOND)])
    for start in (0, 200, 400):
        rotate(file, 200, start)
    first, second, *_ = log_reading.look([file])[0].pieces
    merge = log_reading.Merge([file], {0: 0})
    remove(file.path, first, "old")
    assert file.size() == 800
    sizes = await log_reading.sizes_of([file])
    assert await log_reading.starts([file], sizes, {}, None, None) == {0: 200}
    assert await log_reading.starts([file], sizes, {}, 1000, None) == {0: 200}
    assert await log_reading.starts([file], sizes, {}, None, 0) == {0: 200}
    assert await log_reading.starts([file], sizes, {0: 200}, None, None) == {0: 200}
    with pytest.raises(
        OffsetOutOfRange, match=r"rank 0: offset 199 is before the first stored byte: begin at 200; the log ends at 800"
    ) as refused:
        await log_reading.starts([file], sizes, {0: 199}, None, None)
    assert refused.value.metadata() == {"rank": "0", "begin": "200", "end": "800"}

    assert merge.begin({0: 800})
    remove(file.path, second, "old")
    chunks = [chunk for batch in [await merge.batch()] for chunk in batch]
    assert [(c.offset, c.data, c.truncated) for c in chunks] == [(400, data[400:600], False), (600, data[600:], False)]
    assert await merge.batch() == []


async def test_what_was_removed_up_to_the_end_of_a_round_ends_it(tmp_path):
    file = rank_file(tmp_path, 0, b"x" * 500)
    rotate(file, 300)
    merge = log_reading.Merge([file], {0: 0})
    remove(file.path, log_reading.look([file])[0].pieces[0], "old")
    assert merge.begin({0: 100})
    assert await merge.batch() == []
    assert not merge.begin({0: 100}), "an attempt of which nothing is kept is over"
    assert merge.begin({0: 500})
    assert [(c.offset, c.data) for c in await merge.batch()] == [(300, b"x" * 200)]


async def test_a_rotation_between_two_batches_is_not_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr(log_reading, "BATCH_BYTES", 1)
    data = os.urandom(5 * log_reading.CHUNK)
    file = rank_file(tmp_path, 0, data)
    merge = log_reading.Merge([file], {0: 0})
    assert merge.begin({0: len(data)})
    found = []
    for step in range(9):
        found += await merge.batch()
        if step == 1:
            rotate(file, 4 * log_reading.CHUNK)
        if step == 2:
            pack(file, 0)
    assert b"".join(c.data for c in found) == data
    assert not any(c.truncated for c in found)


async def test_a_huge_log_with_many_segments_is_read_from_the_end_at_once(tmp_path):
    file = rank_file(tmp_path, 0, None, None)
    for number in range(100):  # sparse
        path = segment_path(file.path, number << 30, (number + 1) << 30)
        path.touch()
        os.truncate(path, 1 << 30)
    append(file.path, b"\nab\n")
    size = file.size()
    assert size == (100 << 30) + 4
    with anyio.fail_after(60):
        assert await log_reading.tail_offset(file, 1, size) == size - 3
    chunks = await read_all([file], {0: (99 << 30) + (1 << 30) - 2})
    assert b"".join(c.data for c in chunks) == b"\0\0\nab\n"


async def test_looking_at_many_files_does_not_read_the_folder_again(tmp_path, monkeypatch):
    files = [rank_file(tmp_path, rank, b"ab") for rank in range(100)]
    rotate(files[0], 1)
    os.utime(tmp_path, (5, 5))
    await log_reading.sizes_of(files)
    listed, listdir = [], os.listdir

    def count(path):
        listed.append(path)
        return listdir(path)

    monkeypatch.setattr(os, "listdir", count)
    for _ in range(20):
        append(files[0].path, b"c")
        sizes = await log_reading.sizes_of(files)
        merge = log_reading.Merge(files, dict.fromkeys(sizes, 0))
        assert merge.begin(sizes)
        while await merge.batch():
            pass
    assert sizes == {0: 22} | dict.fromkeys(range(1, 100), 2)
    assert listed == []


def test_until(tmp_path):
    file = rank_file(tmp_path, 0, b"x" * 100, [(0, 10 * SECOND), (40, 20 * SECOND), (70, 30 * SECOND)])
    assert log_reading.offset_until(file, 9 * SECOND, 100) == 0
    assert log_reading.offset_until(file, 10 * SECOND, 100) == 40
    assert log_reading.offset_until(file, 20 * SECOND - 1, 100) == 40
    assert log_reading.offset_until(file, 29 * SECOND, 100) == 70
    assert log_reading.offset_until(file, 30 * SECOND, 100) == 100
    assert log_reading.offset_until(file, 29 * SECOND, 50) == 50
    assert log_reading.offset_until(rank_file(tmp_path, 1, b"xyz", None), 1, 3) == 3
    assert log_reading.offset_until(rank_file(tmp_path, 2, b"xyz", []), 1, 3) == 3


# --- the service -----------------------------------------------------------------------------------------------------


class FakeRegistry:
    def __init__(self, entry):
        self.entry = entry
        self.waits = 0
        self.changed = Changes()

    async def get(self, job_id):
        return self.entry

    def known(self, job_id):
        return self.entry

    async def wait_change(self, entry):
        self.waits += 1
        await self.changed.next()

    async def wait_explained(self, entry):
        pass

    def move(self, state):
        self.entry.job.state = state
        if state.final:
            self.entry.job.verdict = lifecycle.Verdict(0, "all well")
        self.changed.tell()


class FakeContext:
    """Takes what is written; blocks in `write` while `held`."""

    def __init__(self):
        self.messages = []
        self.free = anyio.Event()
        self.free.set()

    async def write(self, message):
        await self.free.wait()
        self.messages.append(message)

    def data(self, rank=None):
        return b"".join(m.data for m in self.messages if rank is None or m.rank == rank)


@pytest.fixture
def world(tmp_path):
    root = Root.under(tmp_path)
    root.log.mkdir()
    job = lifecycle.Job(state=State.RUNNING, accepted_at=1.0, ranks=[Rank(4 + i, i, i) for i in range(2)])
    entry = SimpleNamespace(
        job_id="j", job=job, damaged="", paths=root.job("j"), explained=None, lacks_explanation=False
    )
    registry = FakeRegistry(entry)
    server: Any = SimpleNamespace(registry=registry, root=root)
    paths = {rank.rank: root.rank_log("j", rank.rank, rank.device) for rank in job.ranks}
    return SimpleNamespace(root=root, entry=entry, registry=registry, paths=paths, service=service.LogService(server))


async def test_a_snapshot_ends_though_the_job_runs(world):
    append(world.paths[4], b"one\n")
    context = FakeContext()
    await world.service.ReadLogs(log_pb2.ReadLogsRequest(job_id="j"), context)
    assert context.data() == b"one\n"
    last = context.messages[-1]
    assert last.eof
    assert not last.HasField("verdict")
    assert last.state == 4


async def test_following_waits_for_files_and_ends_with_the_job(world):
    context = FakeContext()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(world.service.ReadLogs, log_pb2.ReadLogsRequest(job_id="j", follow=True), context)
        await anyio.sleep(0.05)
        append(world.paths[4], b"a" * 100_000)
        await until(lambda: len(context.data(4)) == 100_000)
        append(world.paths[5], b"b")
        await until(lambda: context.data(5) == b"b")
        append(world.paths[5], b"last words")
        world.registry.move(State.SUCCEEDED)
        await until(lambda: context.messages and context.messages[-1].eof)
    assert context.data(5) == b"blast words"
    assert context.messages[-1].verdict.summary == "all well"
    assert sum(m.eof for m in context.messages) == 1


async def test_an_end_that_comes_while_a_follower_reads_is_not_missed(world):
    """No change of the job comes after its end: a follower that only waits for one would wait for ever."""
    append(world.paths[4], b"x")
    context = FakeContext()
    context.free = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(world.service.ReadLogs, log_pb2.ReadLogsRequest(job_id="j", follow=True), context)
        await anyio.sleep(0.05)
        world.registry.move(State.FAILED)
        append(world.paths[4], b"y")
        context.free.set()
        await until(lambda: context.messages and context.messages[-1].eof)
    assert context.data() == b"xy"


async def test_a_follower_that_does_not_read_holds_nobody_up_and_one_looks_for_all(world):
    stuck, quick = FakeContext(), FakeContext()
    stuck.free = anyio.Event()
    append(world.paths[4], b"x")
    request = log_pb2.ReadLogsRequest(job_id="j", follow=True)

    def has(count):
        return len(quick.data(5)) == count

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(world.service.ReadLogs, request, stuck)
        tasks.start_soon(world.service.ReadLogs, request, quick)
        for i in range(5):
            append(world.paths[5], b"%d" % i)
            await until(functools.partial(has, i + 1))
        assert len(world.service.watchers) == 1
        assert stuck.messages == []
        tasks.cancel_scope.cancel()
    gc.collect()  # a cancelled task is in a cycle with its traceback
    assert len(world.service.watchers) == 0


async def test_a_follower_that_leaves_while_looking_is_replaced(world):
    first, second = FakeContext(), FakeContext()
    request = log_pb2.ReadLogsRequest(job_id="j", follow=True)
    async with anyio.create_task_group() as tasks:
        with anyio.move_on_after(0.1):
            async with anyio.create_task_group() as inner:
                tasks.start_soon(world.service.ReadLogs, request, second)
                inner.start_soon(world.service.ReadLogs, request, first)
        append(world.paths[4], b"after")
        await until(lambda: second.data() == b"after")
        tasks.cancel_scope.cancel()


async def test_each_waits_for_something_of_its_own_and_one_looks_for_all(tmp_path, monkeypatch):
    """A follower's `until`, and events, come however long another follower of the same silent job waits."""
    watcher = log_reading.Watcher([rank_file(tmp_path, 0, b"")], anyio.sleep_forever, lambda: False)
    await watcher.wait(0)
    seen, looks, asked = watcher.generation, 0, [0] * 20
    sizes_of = log_reading.sizes_of

    async def count(files):
        nonlocal looks
        looks += 1
        return await sizes_of(files)

    monkeypatch.setattr(log_reading, "sizes_of", count)

    def patient(number):
        asked[number] += 1
        return False

    def looked(times):
        return looks >= times

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            for number in range(len(asked)):
                tasks.start_soon(watcher.wait, seen, functools.partial(patient, number))
            await until(lambda: all(asked))
            for more in (2, 4):
                await watcher.wait(seen, functools.partial(looked, more))
                assert looks == more
            tasks.cancel_scope.cancel()
    assert watcher.generation == seen
    assert min(asked) >= 4 and max(asked) <= 6, "asked behind each look, and looked once for all"


async def test_reading_goes_on_at_offsets(world):
    world.registry.move(State.STOPPED)
    append(world.paths[4], b"0123456789")
    append(world.paths[5], b"abcdef")
    context = FakeContext()
    await world.service.ReadLogs(log_pb2.ReadLogsRequest(job_id="j", offsets={4: 7}), context)
    assert (context.data(4), context.data(5)) == (b"789", b"abcdef")


async def test_what_cannot_be_read_is_refused(world):
    def read(**fields):
        return world.service.ReadLogs(log_pb2.ReadLogsRequest(job_id="j", **fields), FakeContext())

    with pytest.raises(InvalidRequest, match="ranks: 9: the ranks of this job on this node are 4 to 5"):
        await read(ranks=[9])
    with pytest.raises(InvalidRequest, match=r"offsets\[5\]"):
        await read(ranks=[4], offsets={5: 0})
    with pytest.raises(OffsetOutOfRange):
        await read(offsets={4: 1}, follow=True)
    world.entry.damaged, world.entry.unread = "journal: line 2: the checksum does not fit", True
    with pytest.raises(JournalUnreadable, match="line 2"):
        await read()


async def test_a_file_that_cannot_be_read_is_named(world):
    segment_path(world.paths[4], 0, 5).symlink_to("/etc/hostname")
    with pytest.raises(LogUnreadable, match=r"job 'j': .*j-proc-rank-4-device-0\.txt"):
        await world.service.ReadLogs(log_pb2.ReadLogsRequest(job_id="j"), FakeContext())


async def test_a_cut_file_is_reported_to_a_follower(world):
    append(world.paths[4], b"0123456789")
    context = FakeContext()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(world.service.ReadLogs, log_pb2.ReadLogsRequest(job_id="j", follow=True), context)
        await until(lambda: context.data() == b"0123456789")
        os.truncate(world.paths[4], 2)
        await until(lambda: context.messages[-1].truncated)
        assert context.messages[-1].offset == 2
        append(world.paths[4], b"more")
        await until(lambda: context.data() == b"0123456789more")
        tasks.cancel_scope.cancel()
