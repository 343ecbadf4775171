import contextlib
import errno
import fcntl
import itertools
import os
import re
import select
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.supervisors.output import gaps, tee
from muster.supervisors.output.gaps import Count, Counts, Gap, read_counts
from muster.supervisors.output.log_layout import Folder
from muster.supervisors.output.log_reader import Reader
from muster.supervisors.output.log_removals import removals
from muster.supervisors.output.tee import RankLog, tail
from muster.supervisors.output.time_index import INDEX_INTERVAL_S, INDEX_RECORD
from tests.unit.supervision import fill, small_disk

GAP = re.compile(rb"\[muster: (\d+) bytes lost \d\d:\d\d:\d\d-\d\d:\d\d:\d\d: ([^\]]+)\]\n")


class Bench:
    """A FIFO that a rank holds read-write, and the files that it is drained into."""

    def __init__(self, folder: Path, logs: Path | None = None) -> None:
        self.fifo, self.log, self.idx = folder / "fifo", (logs or folder) / "log", (logs or folder) / "idx"
        tee.make_fifo(self.fifo, os.geteuid(), os.getegid())
        self.rank = os.open(self.fifo, os.O_RDWR | os.O_NONBLOCK)
        self.folder = folder
        self.counter = self.counts()

    def counts(self) -> Counts:
        """As the next reader finds them."""
        return Counts(self.folder / "lost", self.folder / "ends", 2, None, self.folder / "run" / "sinks")

    def open(self) -> RankLog:
        return RankLog(self.fifo, self.log, self.idx, (os.geteuid(), os.getegid()), self.counter, 1)

    def lost(self) -> tuple[int, int]:
        """Bytes lost of this rank, and how many of them were told."""
        return self.counter[1].lost, self.counter[1].told

    def write(self, data: bytes) -> None:
        """As a rank does; `data` must fit into the FIFO."""
        assert os.write(self.rank, data) == len(data)

    def hang_up(self) -> None:
        if self.rank >= 0:
            os.close(self.rank)
        self.rank = -1

    def index(self) -> list[tuple[int, int]]:
        return list(INDEX_RECORD.iter_unpack(self.idx.read_bytes()))

    def __enter__(self) -> "Bench":
        return self

    def __exit__(self, *_: object) -> None:
        self.hang_up()
        self.counter.close()


@pytest.fixture
def bench(tmp_path) -> Iterator[Bench]:
    with Bench(tmp_path) as bench:
        yield bench


def soon() -> float:
    return time.monotonic() + 60


def refuse(error: int):
    def call(*_: object, **__: object) -> int:
        raise OSError(error, os.strerror(error))

    return call


# --- bytes ------------------------------------------------------------------------------------------------------------

_CHUNKS = st.lists(st.binary(min_size=1, max_size=3000) | st.sampled_from([b"\n", b"\0" * 5000, b"x" * 70000]))


@pytest.mark.parametrize("way", ["splice", "copy"])
@given(chunks=_CHUNKS, drains=st.lists(st.booleans()), successors=st.lists(st.booleans()))
@settings(deadline=None, max_examples=40)
def test_bytes_arrive_as_they_were_written(way, chunks, drains, successors):
    """For any writes and any drainer: with `successors` the RankLog in between is another one."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder, Bench(Path(folder)) as bench:
        if way == "copy":
            patch.setattr(os, "splice", refuse(errno.EINVAL))
        log = bench.open()
        pending = 0
        for chunk, drain, successor in itertools.zip_longest(chunks, drains, successors):
            if chunk:
                if pending + len(chunk) > 60_000:  # each write may begin a page of its own
                    assert log.drain_all(soon()) == []
                    pending = 0
                bench.write(chunk)
                pending += len(chunk)
            if drain:
                log.drain()
            if successor:
                log.close()
                log = bench.open()
        assert log.drain_all(soon()) == []
        assert not log.stalled
        log.close()
        assert bench.log.read_bytes() == b"".join(chunks)


@pytest.mark.parametrize("error", [errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_splice_is_copied_into(bench, monkeypatch, error):
    calls = []

    def splice(*args: object, **how: object) -> int:
        calls.append(args)
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, "splice", splice)
    log = bench.open()
    bench.write(b"a" * 100_000)
    log.drain()
    bench.write(b"b")
    log.drain()
    assert len(calls) == 1, "it is not asked again"
    assert not log.stalled
    log.close()
    assert bench.log.read_bytes() == b"a" * 100_000 + b"b"


def test_nothing_there_does_not_block(bench):
    log = bench.open()
    assert log.drain() is None
    assert log.drain_all(soon()) == []
    log.close()
    assert bench.log.read_bytes() == b""


def test_one_drain_moves_a_batch_at_most(bench, monkeypatch):
    monkeypatch.setattr(tee, "BATCH", 4096)
    log = bench.open()
    bench.write(b"x" * 10_000)
    log.drain()
    assert bench.log.stat().st_size == 4096
    log.drain_all(soon())
    log.close()
    assert bench.log.stat().st_size == 10_000


def test_drain_all_stops_at_its_deadline(bench):
    log = bench.open()
    bench.write(b"x")
    log.drain_all(time.monotonic() - 1)
    assert bench.log.stat().st_size == 0
    log.close()


@pytest.mark.parametrize("way", ["splice", "copy"])
def test_without_writers_there_is_nothing_to_read_and_no_end(bench, monkeypatch, way):
    """A rank that closes its streams may have children that write later; an end would keep the loop busy until then."""
    if way == "copy":
        monkeypatch.setattr(os, "splice", refuse(errno.EINVAL))
    log = bench.open()
    bench.write(b"one\n")
    bench.hang_up()
    log.drain_all(soon())
    poll = select.poll()
    poll.register(log.fd, select.POLLIN)
    assert poll.poll(0) == []
    log.drain()
    with open(bench.fifo, "wb", buffering=0) as late:
        late.write(b"two\n")
    assert poll.poll(0)
    log.drain()
    log.close()
    assert bench.log.read_bytes() == b"one\ntwo\n"


def test_an_existing_file_is_continued_at_its_end(bench):
    bench.log.write_bytes(b"before\n")
    log = bench.open()
    bench.write(b"after\n")
    log.drain()
    log.close()
    assert bench.log.read_bytes() == b"before\nafter\n"


def test_a_successor_keeps_what_the_dead_one_left_in_the_fifo(bench):
    first = bench.open()
    bench.write(b"one\n")
    first.drain()
    bench.write(b"two\n")
    first.close()
    bench.write(b"three\n")
    second = bench.open()
    second.drain_all(soon())
    second.close()
    assert bench.log.read_bytes() == b"one\ntwo\nthree\n"


@pytest.mark.parametrize("way", ["splice", "copy"])
@pytest.mark.parametrize("size", [0, 3])
@pytest.mark.parametrize("interval", [0.0, 3600.0])  # the next write comes behind a look, and before one
def test_a_file_that_somebody_cut_goes_on_at_its_end(bench, monkeypatch, way, size, interval):
    """As `: > file` and logrotate's copytruncate do: no hole of zeros, also for a rank that writes all the time."""
    if way == "copy":
        monkeypatch.setattr(os, "splice", refuse(errno.EINVAL))
    monkeypatch.setattr(tee, "INDEX_INTERVAL_S", interval)
    log = bench.open()
    bench.write(b"before\n" * 10)
    log.drain()
    os.truncate(bench.log, size)
    bench.write(b"one\n")
    log.drain()
    bench.write(b"two\n")
    log.drain()
    log.close()
    content = bench.log.read_bytes()
    assert b"\0" not in content
    assert content == b"one\ntwo\n"
    with Reader(Folder(bench.log.parent)) as reader:  # what is left of the rest is a segment, what is gone is recorded
        assert reader.stretch(bench.log, 0, size) == (0, b"before\n"[:size])
    (gone,) = removals(bench.log)
    assert (gone.start, gone.end, gone.lost) == (size, 70, True)


# --- the rank's side --------------------------------------------------------------------------------------------------

_RANK = """
import os, sys
fifo = os.open(sys.argv[1], os.O_RDWR)
for i in range(int(sys.argv[2])):
    line = b"line %07d\\n" % i
    assert os.write(fifo, line) == len(line)
    if i == 0:
        os.write(1, b"begun\\n")
os.write(1, b"done\\n")
sys.stdin.read()
"""


def test_a_rank_notices_nothing_when_readers_come_and_go(bench):
    """No SIGPIPE, no error, no byte lost, with a FIFO that is full in between."""
    lines = 100_000
    bench.hang_up()
    log = bench.open()
    with subprocess.Popen(
        [sys.executable, "-c", _RANK, str(bench.fifo), str(lines)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as rank:
        assert rank.stdout is not None
        assert rank.stdout.readline() == b"begun\n"
        poll = select.poll()
        poll.register(rank.stdout, select.POLLIN)
        deadline, rounds = soon(), 0
        while not poll.poll(0):
            assert time.monotonic() < deadline
            rounds += 1
            if rounds % 3 == 0:  # the supervisor dies; only the rank has the FIFO open now
                log.close()
                log = bench.open()
            log.drain()
        assert rank.stdout.readline() == b"done\n"
        rank.communicate(b"")
        assert rank.returncode == 0
    log.drain_all(soon())
    log.close()
    assert bench.log.read_bytes() == b"".join(b"line %07d\n" % i for i in range(lines))


def test_a_rank_is_not_held_up_by_a_disk_that_takes_nothing(bench, monkeypatch):
    """All of a full FIFO is read away each time, so that the rank can always write again."""
    monkeypatch.setattr(os, "splice", refuse(errno.EIO))
    log = bench.open()
    for _ in range(20):
        bench.write(b"x" * 65536)
        log.drain()
    assert log.stalled
    log.close()


def test_the_fifo_has_room_for_a_burst(bench):
    log = bench.open()
    assert fcntl.fcntl(log.fd, fcntl.F_GETPIPE_SZ) >= tee.FIFO_SIZE
    log.close()


def test_the_file_is_the_jobs_users_and_a_link_is_not_followed(bench, tmp_path):
    log = bench.open()
    log.close()
    assert bench.log.stat().st_mode & 0o777 == 0o640 & ~_umask()
    bench.log.unlink()
    bench.log.symlink_to(tmp_path / "elsewhere")
    log = bench.open()
    assert log.gap is not None
    assert "symbolic link" in log.gap.error
    log.close()
    assert not (tmp_path / "elsewhere").exists()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_files_of_another_user(tmp_path):
    fifo = tmp_path / "fifo"
    tee.make_fifo(fifo, 65534, 65534)
    tee.make_fifo(fifo, 65534, 65534)  # a successor finds it there
    counter = Counts(tmp_path / "lost", tmp_path / "ends", 1)
    log = RankLog(fifo, tmp_path / "log", tmp_path / "idx", (65534, 65534), counter, 0)
    writer = os.open(fifo, os.O_WRONLY)
    os.write(writer, b"line\n")  # the index is made with the first output
    os.close(writer)
    log.drain()
    log.close()
    counter.close()
    for name in ("fifo", "log", "idx"):
        stat = (tmp_path / name).stat()
        assert (stat.st_uid, stat.st_gid) == (65534, 65534), name
    assert fifo.is_fifo()
    assert fifo.stat().st_mode & 0o777 == 0o600


# --- the index --------------------------------------------------------------------------------------------------------


def test_the_index_says_from_where_on_bytes_are_of_which_time(bench, monkeypatch):
    clock = iter(range(1_000, 2_000))
    monkeypatch.setattr(tee, "INDEX_INTERVAL_S", 0.0)
    monkeypatch.setattr(time, "time_ns", lambda: next(clock) * 10**9)
    log = bench.open()
    for data in (b"a", b"bb", b"ccc"):
        bench.write(data)
        log.drain()
    log.close()
    log = bench.open()
    bench.write(b"dddd")
    log.drain()
    log.close()
    assert bench.index() == [(0, 1000 * 10**9), (1, 1001 * 10**9), (3, 1002 * 10**9), (6, 1003 * 10**9)]


def test_the_index_is_sparse_and_rises(bench, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    log = bench.open()
    begin = time.time_ns()
    for _ in range(50):
        bench.write(b"0123456789")
        log.drain()
        now[0] += INDEX_INTERVAL_S / 9.5
    log.close()
    entries = bench.index()
    assert [offset for offset, _ in entries] == [0, 100, 200, 300, 400]
    assert begin <= entries[0][1]
    assert entries == sorted(entries)


def test_nothing_drained_is_not_noted(bench):
    log = bench.open()
    log.drain()
    log.drain_all(soon())
    log.close()
    assert not bench.idx.exists()


def test_a_torn_index_record_is_cut_off_by_the_successor(bench):
    bench.log.write_bytes(b"12345")
    bench.idx.write_bytes(INDEX_RECORD.pack(0, 7) + b"torn")
    log = bench.open()
    bench.write(b"x")
    log.drain()
    log.close()
    assert [offset for offset, _ in bench.index()] == [0, 5]


def test_an_index_that_somebody_deleted_is_made_anew(bench, monkeypatch):
    """Within about a second: it is not looked with each record."""
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def write(at: float, data: bytes) -> None:
        now[0] = at
        bench.write(data)
        log.drain()

    log = bench.open()
    write(1000.0, b"a")
    write(1000.5, b"bb")
    files = len(os.listdir("/proc/self/fd"))
    bench.idx.unlink()
    write(1001.0, b"ccc")
    assert not bench.idx.exists()
    write(1002.0, b"dddd")
    write(1002.5, b"e")
    assert [offset for offset, _ in bench.index()] == [6, 10]
    assert len(os.listdir("/proc/self/fd")) == files
    log.close()
    assert bench.log.read_bytes() == b"abbcccdddde"


@pytest.mark.parametrize("interval", [0.0, 60.0])  # it is noticed by a look, and between two
@pytest.mark.parametrize("size", [0, 3, 20])
@pytest.mark.parametrize("way", ["write", "successor"])
def test_the_index_of_a_file_that_somebody_cut_rises(bench, monkeypatch, interval, size, way):
    monkeypatch.setattr(tee, "INDEX_INTERVAL_S", 0.0)
    log = bench.open()
    for _ in range(4):
        bench.write(b"0123456789")
        log.drain()
    before = bench.index()
    monkeypatch.setattr(tee, "INDEX_INTERVAL_S", interval)
    os.truncate(bench.log, size)
    cut = time.time_ns()
    if way == "successor":  # while it was cut, nobody had it
        log.close()
        log = bench.open()
    bench.write(b"a")
    log.drain()
    log.close()
    after = bench.index()
    assert after[:-1] == before
    assert after[-1][0] == 40
    assert after[-1][1] >= cut


# --- gaps -------------------------------------------------------------------------------------------------------------


def test_a_gap_is_reported_in_one_line():
    since = time.mktime((2024, 2, 3, 4, 5, 6, 0, 0, -1))
    gap = Gap(since, "No space left on device", errno.ENOSPC, 4711, since + 61)
    assert gap.line() == "[muster: 4711 bytes lost 04:05:06-04:06:07: No space left on device]\n"


@pytest.mark.parametrize("way", ["splice", "copy"])
@pytest.mark.parametrize("newline", [True, False])
def test_a_full_disk_costs_counted_bytes_and_writing_resumes_by_itself(tmp_path, monkeypatch, way, newline):
    if way == "copy":
        monkeypatch.setattr(os, "splice", refuse(errno.EINVAL))
    with small_disk(tmp_path / "disk", "64k") as disk, Bench(tmp_path, disk) as bench:
        fill(disk / "filler", leave=20 * 1024)
        log = bench.open()
        line = b"0123456789abcde\n" if newline else b"0123456789abcdef"
        data = line * (100_000 // len(line))
        bench.write(data[:1600])
        log.drain_all(soon())  # makes the first record of the index, while there is room
        bench.write(data[1600:])
        began = time.time()
        assert log.drain_all(soon()) == []
        assert log.stalled
        kept = bench.log.stat().st_size
        assert 1600 < kept <= 20 * 1024
        bench.write(data)  # the rank goes on
        log.drain_all(time.monotonic() + 60)
        assert log.stalled

        (disk / "filler").unlink()
        assert log.drain() is None, "it is not tried all the time"
        monkeypatch.setattr(log, "retry_at", 0.0)
        bench.write(b"after\n")
        (gap,) = log.drain_all(soon())
        assert not log.stalled
        log.close()

        lost = 2 * len(data) - kept
        assert (gap.bytes, gap.error) == (lost, "No space left on device")
        assert began - 1 <= gap.since <= gap.until <= time.time()
        middle = b"" if data[:kept].endswith(b"\n") else b"\n"
        assert bench.log.read_bytes() == data[:kept] + middle + gap.line().encode() + b"after\n"
        (told,) = GAP.findall(bench.log.read_bytes())
        assert told == (b"%d" % lost, b"No space left on device")
        offsets = [offset for offset, _ in bench.index()]
        assert offsets == sorted(offsets)
        assert offsets[0] == 0


def test_a_gap_stays_open_while_its_line_does_not_fit(tmp_path):
    with small_disk(tmp_path / "disk", "64k") as disk, Bench(tmp_path, disk) as bench:
        fill(disk / "filler", leave=8192)
        log = bench.open()
        bench.write(b"x" * 65536)
        log.drain_all(time.monotonic() + 60)
        size = bench.log.stat().st_size
        assert log.resume(force=True) is None
        assert log.stalled
        assert bench.log.stat().st_size == size
        gap = log.abandon()
        assert gap is not None
        assert gap.bytes == 65536 - size
        assert gap.until >= gap.since
        assert not log.stalled
        assert log.abandon() is None
        log.close()


def test_an_error_that_passed_before_anything_was_lost_leaves_no_line(bench, monkeypatch):
    log = bench.open()
    with monkeypatch.context() as patch:
        patch.setattr(os, "splice", refuse(errno.EIO))
        bench.write(b"kept\n")
        assert log.drain() is None
        assert log.stalled
    assert log.resume(force=True) is None
    assert not log.stalled
    log.drain()
    log.close()
    assert bench.log.read_bytes() == b"kept\n"
    assert bench.lost() == (0, 0)


def test_gaps_of_different_times_each_have_a_line(bench, monkeypatch):
    splice = os.splice
    log = bench.open()
    gaps = []
    for error in (errno.ENOSPC, errno.EIO):
        monkeypatch.setattr(os, "splice", refuse(error))
        bench.write(b"lost")
        log.drain()
        log.drain()
        monkeypatch.setattr(os, "splice", splice)
        gaps.append(log.resume(force=True))
        bench.write(b"kept\n")
        log.drain()
    log.close()
    assert [g and (g.bytes, g.error) for g in gaps] == [(4, "No space left on device"), (4, "Input/output error")]
    kept = GAP.sub(b"<gap>", bench.log.read_bytes())
    assert kept == b"<gap>kept\n<gap>kept\n"


@pytest.mark.parametrize("way", ["splice", "copy"])
def test_a_successor_tells_the_gap_of_one_that_was_killed(bench, monkeypatch, way):
    """What was thrown away by then is counted in a file, with the time since when."""
    monkeypatch.setattr(os, "splice", refuse(errno.ENOSPC if way == "splice" else errno.EINVAL))
    first = bench.open()
    if way == "copy":
        monkeypatch.setattr(os, "pwrite", _refuse_for(bench.log, os.pwrite))
    began = time.time()
    bench.write(b"x" * 100)
    while not bench.lost()[0]:
        first.drain()
    assert bench.lost() == (100, 0)
    first.close()  # killed: no line, no word
    monkeypatch.undo()

    second = bench.open()
    assert second.stalled
    bench.write(b"after\n")
    (gap,) = second.drain_all(soon())
    assert gap.bytes == 100
    assert began <= gap.since <= gap.until
    assert bench.lost() == (100, 100)
    second.close()
    third = bench.open()
    assert not third.stalled
    third.close()
    assert bench.log.read_bytes() == gap.line().encode() + b"after\n"


def _refuse_for(log: Path, pwrite: Callable[[int, bytes, int], int]) -> Callable[[int, bytes, int], int]:
    """A pwrite(2) that finds no room for the output, but all the room for the rest."""

    def call(fd: int, data: bytes, offset: int) -> int:
        if os.readlink(f"/proc/self/fd/{fd}") == str(log):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return pwrite(fd, data, offset)

    return call


def test_a_gap_that_only_the_journal_can_tell_of_is_reported_once(bench, monkeypatch):
    monkeypatch.setattr(os, "splice", refuse(errno.ENOSPC))
    log = bench.open()
    bench.write(b"x" * 100)
    log.drain()
    log.drain()
    gap = log.abandon()
    assert gap is not None
    assert (gap.bytes, gap.error, bench.lost()) == (100, "No space left on device", (100, 100))
    log.close()
    monkeypatch.undo()
    log = bench.open()
    assert not log.stalled
    log.close()


def test_ranks_are_counted_apart_and_counts_that_are_on_disk_are_kept(tmp_path):
    lost, ends = tmp_path / "lost", tmp_path / "ends"
    counts = Counts(lost, ends, 3)
    assert [counts[i] for i in range(3)] == [Count()] * 3
    known = Count(7, 3, 1.5, 100, errno.ENOSPC)
    counts[1].lost, counts[1].told, counts[1].since, counts[1].end, counts[1].number = 7, 3, 1.5, 100, errno.ENOSPC
    counts.store(1)
    counts.close()
    counts = Counts(lost, ends, 4)
    assert [counts[i] for i in range(4)] == [Count(), known, Count(), Count()]
    assert read_counts(lost, ends) == [Count(), known, Count(), Count()]
    counts.close()
    assert (lost.stat().st_size, ends.stat().st_size) == (4 * 24, 4 * 16)


def test_counts_go_to_a_supervisor_of_the_first_release_and_back(tmp_path):
    """It knows the file `lost` alone: 24 bytes for each rank."""
    lost, ends = tmp_path / "lost", tmp_path / "ends"
    lost.write_bytes(struct.pack("<QQdQQd", 0, 0, 0.0, 9, 4, 2.5))
    counts = Counts(lost, ends, 2)
    assert [counts[0], counts[1]] == [Count(), Count(9, 4, 2.5)]
    counts[0].lost, counts[0].since = 5, 1.0
    counts.store(0)
    counts.close()
    assert lost.read_bytes() == struct.pack("<QQdQQd", 5, 0, 1.0, 9, 4, 2.5)


def test_counts_that_cannot_be_stored_live_in_memory_and_are_stored_later(tmp_path, monkeypatch):
    lost, ends = tmp_path / "lost", tmp_path / "ends"
    lost.mkdir()
    counts = Counts(lost, ends, 1)
    counts[0].lost = 5
    counts.store(0)
    lost.rmdir()
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 10)
    counts.store(0)
    counts.close()
    assert read_counts(lost, ends) == [Count(5)]


@pytest.mark.parametrize("when", ["opened", "written"])
def test_counts_that_cannot_be_stored_outlive_their_supervisor_elsewhere(tmp_path, monkeypatch, when):
    """In the run folder, until the state folder takes them again."""
    lost, ends = tmp_path / "lost", tmp_path / "ends"
    spare = tmp_path / "run" / "j.lost", tmp_path / "run" / "j.ends"
    spare[0].parent.mkdir()
    if when == "opened":
        lost.mkdir()
    counts = Counts(lost, ends, 2, spare)
    if when == "written":
        write, file = os.pwrite, lost.stat()

        def refused(fd, data, offset):
            if os.path.samestat(os.fstat(fd), file):
                raise OSError(errno.EROFS, os.strerror(errno.EROFS))
            return write(fd, data, offset)

        monkeypatch.setattr(os, "pwrite", refused)
    counts[0].lost, counts[1].lost = 5, 7
    for slot in range(2):
        counts.store(slot)
    counts[1].lost = 9
    counts.store(1)
    counts.close()  # as a kill leaves it
    assert read_counts(lost, ends, spare) == [Count(5), Count(9)]
    counts = Counts(lost, ends, 2, spare)
    assert [counts[0], counts[1]] == [Count(5), Count(9)]
    monkeypatch.undo()
    if when == "opened":
        lost.rmdir()
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 10)
    counts[0].lost = 6
    counts.store(0)
    counts.close()
    assert read_counts(lost, ends) == [Count(6), Count(9)]
    assert not any(path.exists() for path in spare)


def test_a_file_that_cannot_be_opened_is_a_gap_that_a_successor_goes_on_with(bench, monkeypatch):
    monkeypatch.setattr(tee, "RETRY_S", 0.0)
    bench.log.mkdir()
    log = bench.open()
    bench.write(b"x" * 100)
    log.drain()
    log.close()
    log = bench.open()
    assert log.gap is not None
    assert (log.gap.error, log.gap.bytes) == ("Is a directory", 100)
    bench.write(b"y" * 11)
    log.drain()
    bench.log.rmdir()
    bench.write(b"after\n")
    log.drain()
    log.close()
    found = GAP.match(bench.log.read_bytes())
    assert found is not None
    assert (int(found[1]), found[2]) == (111, b"Is a directory")
    assert bench.log.read_bytes().endswith(b"]\nafter\n")


@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
def test_another_logs_file_under_our_name_is_never_written(bench, monkeypatch, known):
    """Somebody removed the log before its first byte, and put another name of a neighbour's file in its place, which
    may be a segment by now; then its supervisor died. `unknown`: the counts could not be kept either."""
    monkeypatch.setattr(tee, "RETRY_S", 0.0)
    neighbour = bench.folder / "neighbour.0-9"
    neighbour.write_bytes(b"neighbour")
    bench.open().close()
    if not known:
        for name in ("lost", "ends"):
            (bench.folder / name).unlink()
    bench.counter = bench.counts()
    bench.log.unlink()
    os.link(neighbour, bench.log)
    log = bench.open()
    assert log.gap is not None
    assert log.gap.number == errno.EMLINK
    if not known:
        assert "is another name of neighbour.0-9" in log.gap.error
    bench.write(b"x" * 10)
    log.drain()
    assert neighbour.read_bytes() == b"neighbour"
    bench.log.unlink()
    bench.write(b"after\n")
    log.drain()
    log.close()
    assert neighbour.read_bytes() == b"neighbour"
    found = GAP.match(bench.log.read_bytes())
    assert found is not None
    assert int(found[1]) == 10
    assert bench.log.read_bytes().endswith(b"]\nafter\n")


def test_what_was_taken_is_recorded_also_if_another_logs_file_stays_in_its_place(bench):
    neighbour = bench.folder / "neighbour"
    neighbour.write_bytes(b"neighbour")
    log = bench.open()
    bench.write(b"12345")
    log.drain()
    log.close()
    bench.log.unlink()
    os.link(neighbour, bench.log)
    log = bench.open()
    assert log.taken, "its successor tells while it lasts"
    log.abandon()
    log.close()
    assert [(gone.start, gone.end, gone.lost) for gone in removals(bench.log)] == [(0, 5, True)]


def test_a_copy_that_a_backup_linked_elsewhere_hinders_no_successor(bench):
    log = bench.open()
    bench.write(b"first\n")
    log.drain()
    log.close()
    (bench.folder / "backup").mkdir()
    os.link(bench.log, bench.folder / "backup" / "log")
    for name in ("lost", "ends"):
        (bench.folder / name).unlink()
    bench.counter = bench.counts()
    log = bench.open()
    bench.write(b"second\n")
    log.drain()
    log.close()
    assert bench.log.read_bytes() == b"first\nsecond\n"


# --- the last lines ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"", ()),
        (b"one", ("one",)),
        (b"one\ntwo\n", ("one", "two")),
        (b"".join(b"%d\n" % i for i in range(30)), tuple(str(i) for i in range(10, 30))),
        (b"\xff\n", ("\ufffd",)),
        (b"x" * 5000, ("x" * 4096,)),
        (b"x" * 5000 + b"\nlast\n", ("last",)),
    ],
)
def test_tail(tmp_path, content, lines):
    path = tmp_path / "log"
    path.write_bytes(content)
    assert tail(path) == lines


def test_tail_of_nothing(tmp_path):
    assert tail(tmp_path / "missing") == ()
    assert tail(tmp_path) == ()


# --- lines of muster's own --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("before", "between"), [(b"", b""), (b"line\n", b""), (b"no end", b"\n")])
def test_a_mark_is_a_line_behind_the_existing_text(bench, before, between):
    """Between two attempts: what comes behind it is the next one's."""
    log = bench.open()
    bench.write(before or b"x")
    log.drain_all(soon())
    if not before:
        os.truncate(bench.log, 0)
        log.close()
        log = bench.open()
    log.mark("attempt 1")
    size = log.offset
    assert size == bench.log.stat().st_size + (not before)
    bench.write(b"after\n")
    log.drain_all(soon())
    assert log.offset == size + 6
    log.close()
    assert bench.log.read_bytes() == before + between + b"[muster: attempt 1]\nafter\n"


def test_where_a_file_ends_is_known_over_successors(bench):
    """It tells readers where one attempt ends and the next begins."""
    log = bench.open()
    assert log.offset == 0
    bench.write(b"12345")
    log.drain_all(soon())
    assert log.offset == 5
    log.close()
    log = bench.open()
    assert log.offset == 5
    log.close()


def test_a_mark_that_does_not_fit_leaves_nothing(tmp_path):
    with small_disk(tmp_path / "disk", "64k") as disk, Bench(tmp_path, disk) as bench:
        log = bench.open()
        bench.write(b"x" * 4090 + b"\n")
        log.drain_all(soon())
        fill(disk / "filler")
        log.mark("an attempt with a name that is longer than what is left of the page")
        assert log.offset == 4091
        log.close()
        assert bench.log.read_bytes() == b"x" * 4090 + b"\n", "and no half of it"


def test_a_mark_that_is_refused_does_not_stop_the_output(bench, monkeypatch):
    log = bench.open()
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", refuse(errno.EIO))
        log.mark("attempt 1")
    bench.write(b"after\n")
    log.drain_all(soon())
    log.close()
    assert bench.log.read_bytes() == b"after\n"


# --- killed in a gap --------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """SIGKILL, as far as this process can play it: nothing more is done."""


def killed_at(patch: pytest.MonkeyPatch, step: int, behind: bool) -> None:
    """The process dies right before, or behind, its call number `step` of those that change something."""
    calls, thread = itertools.count(1), threading.get_ident()

    def wrap(real: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            now = threading.get_ident() == thread and next(calls) == step
            if now and not behind:
                raise Killed
            try:
                return real(*args, **options)
            finally:
                if now:
                    raise Killed

        return call

    for name in ("splice", "read", "pwrite", "ftruncate", "unlink"):
        patch.setattr(os, name, wrap(getattr(os, name)))


@pytest.mark.parametrize("way", ["sink", "full", "no sink"])
@pytest.mark.parametrize("behind", [False, True], ids=["before", "behind"])
def test_killed_at_any_step_of_a_gap_each_byte_is_counted_once(tmp_path, monkeypatch, way, behind):
    monkeypatch.setattr(gaps, "HELD", 100)
    for step in itertools.count(1):
        folder = tmp_path / str(step)
        folder.mkdir()
        with Bench(folder) as bench:
            if way == "no sink":
                (folder / "run").write_text("in its place")
            bench.log.mkdir()
            written, ended = 0, False
            with contextlib.suppress(Killed), pytest.MonkeyPatch.context() as patch:
                log = bench.open()
                if way == "full":
                    patch.setattr(os, "splice", refuse(errno.ENOSPC))
                killed_at(patch, step, behind)
                for size in (70, 80, 90):
                    bench.write(b"x" * size)
                    written += size
                    log.drain()
                bench.log.rmdir()
                log.resume(force=True)
                bench.write(b"after\n")
                written += 6
                log.drain_all(soon())
                ended = True
            if bench.log.is_dir():
                bench.log.rmdir()
            bench.counter = bench.counts()
            log = bench.open()
            log.drain_all(soon())
            data = bench.log.read_bytes()
            kept = GAP.sub(b"", data)
            lost = sum(int(found[1]) for found in GAP.finditer(data))
            if way == "sink":
                assert lost + len(kept) == written, (step, data)
            else:  # the read that it was killed behind is not counted
                assert written - lost - len(kept) in (0, 6, 70, 80, 90), (step, data)
            assert bench.lost() == (lost, lost)
            log.close()
            if ended:
                assert step > 10
                return
