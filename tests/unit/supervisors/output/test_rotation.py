"""Rotation of a log while it is written: what becomes of it when somebody dies, finds no room, or meddles."""

import errno
import itertools
import os
import random
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.supervisors.output import log_file, rotation, tee
from muster.supervisors.output.gaps import Counts
from muster.supervisors.output.log_compressor import compress
from muster.supervisors.output.log_layout import Folder
from muster.supervisors.output.log_reader import Reader
from muster.supervisors.output.log_removals import removals, remove
from muster.supervisors.output.log_segments import Piece, new_path, segment_path
from muster.supervisors.output.rotation import LINE, open_log, take_over
from muster.supervisors.output.tee import RankLog
from muster.supervisors.output.time_index import INDEX_RECORD
from tests.conftest import running
from tests.unit.supervision import fill, small_disk

US = (os.geteuid(), os.getegid())


class Bench:
    """A rank's FIFO with a writer, and its log, which is rotated after `limit` bytes."""

    def __init__(self, folder: Path, limit: int = LINE) -> None:
        self.limit, self.rotations = limit, 0
        self.folder, self.fifo = folder, folder / "fifo"
        self.path, self.index = folder / "log.txt", folder / "log.idx"
        tee.make_fifo(self.fifo, *US)
        self.rank = os.open(self.fifo, os.O_RDWR | os.O_NONBLOCK)
        self.counter = Counts(folder / "lost", folder / "ends", 1)
        self.written = b""
        self.log = self.open()

    def open(self) -> RankLog:
        return RankLog(
            self.fifo, self.path, self.index, US, self.counter, 0, limit=lambda: self.limit, rotated=self.count
        )

    def count(self) -> None:
        self.rotations += 1

    def write(self, data: bytes) -> None:
        """As the rank does, and drains it."""
        for start in range(0, len(data), 60_000):
            part = data[start : start + 60_000]
            assert os.write(self.rank, part) == len(part)
            assert self.log.drain_all(time.monotonic() + 60) == []
        self.written += data

    def again(self) -> None:
        """Another supervisor takes over."""
        self.log.close()
        self.log = self.open()

    def look(self) -> list[tuple[int, int]]:
        (layout,) = Folder(self.folder).look([self.path])
        return [(piece.start, piece.end) for piece in layout.pieces]

    def read(self, start: int = 0) -> bytes:
        with Reader(Folder(self.folder)) as reader:
            first, data = reader.stretch(self.path, start, 1 << 40)
            assert first == start
            return data

    def close(self) -> None:
        self.log.close()
        self.counter.close()
        os.close(self.rank)


@pytest.fixture(autouse=True)
def _look_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings, cuts and deletions are noticed with the next batch."""
    monkeypatch.setattr(tee, "INDEX_INTERVAL_S", 0.0)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.close()


def lines(count: int, first: int = 0) -> bytes:
    return b"".join(b"%015d\n" % n for n in range(first, first + count))


# --- where and when ---------------------------------------------------------------------------------------------------


def test_a_file_is_rotated_at_the_end_of_a_line(bench):
    bench.write(lines(4000) + b"the begin of a line")
    assert bench.look() == [(0, 64019)]
    bench.write(b" and its end\n" * 200 + b"not ended")
    [segment, live] = bench.look()
    assert bench.rotations == 1
    assert segment_path(bench.path, *segment).read_bytes().endswith(b"end\n")
    assert bench.path.read_bytes() == b"not ended"
    assert live == (segment[1], len(bench.written))
    assert bench.read() == bench.written
    assert bench.log.offset == len(bench.written)


def test_a_line_is_not_split_below_64_kib_and_is_above(bench):
    bench.write(b"first\n" + b"x" * (LINE - 1))
    assert bench.look() == [(0, 6), (6, LINE + 5)]
    bench.write(b"y")
    assert len(bench.look()) == 3, "a line of 64 KiB is not waited for any longer"
    bench.write(b"z" * 10)
    bench.log.mark("attempt 1")
    assert bench.read() == bench.written + b"\n[muster: attempt 1]\n", "the mark is a line though it was split"


def test_a_line_that_ends_with_the_file_leaves_an_empty_one(bench):
    bench.write(lines(4096))
    assert bench.look() == [(0, LINE), (LINE, LINE)]
    bench.log.mark("attempt 1 now")
    bench.again()
    bench.log.mark("attempt 1 later")
    assert bench.read() == bench.written + b"[muster: attempt 1 now]\n"


def test_a_setting_holds_for_a_file_that_is_written(bench):
    bench.limit = 0
    bench.write(lines(20_000))
    assert bench.rotations == 0
    bench.limit = 1 << 40
    bench.write(lines(1))
    assert bench.rotations == 0
    bench.limit = 100_000
    bench.write(lines(1))
    assert bench.rotations == 1
    bench.limit = 1
    bench.write(lines(100))
    assert bench.rotations == 1, "no file is so small that lines would have to be split"


def test_offsets_go_on_over_rotation_and_successors(bench):
    for n in range(30):
        bench.write(lines(1000, 1000 * n))
        if n % 4 == 0:
            bench.again()
        assert bench.log.offset == len(bench.written)
    assert bench.rotations > 5
    spans = bench.look()
    assert [start for start, _ in spans] == [0, *(end for _, end in spans[:-1])]
    assert bench.read() == bench.written
    offsets = [offset for offset, _ in INDEX_RECORD.iter_unpack(bench.index.read_bytes())]
    assert offsets == sorted(offsets)
    assert offsets[-1] > spans[-2][0]
    assert tee.tail(bench.path)[-1] == f"{29_999:015}"


def test_no_descriptor_is_left(bench):
    bench.write(b"makes the index\n")
    before = len(os.listdir("/proc/self/fd"))
    bench.write(lines(20_000))
    assert bench.rotations > 2
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_new_file_is_like_the_old_one(tmp_path):
    bench = Bench(tmp_path)
    try:
        mode = bench.path.stat().st_mode
        bench.write(lines(5000))
        segment = segment_path(bench.path, *bench.look()[0])
        assert bench.path.stat().st_mode == segment.stat().st_mode == mode
    finally:
        bench.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_the_new_file_belongs_to_the_jobs_user(tmp_path, monkeypatch):
    bench = Bench(tmp_path)
    try:
        bench.log.close()
        monkeypatch.setattr(sys.modules[__name__], "US", (65534, 65533))
        bench.log = bench.open()
        bench.write(lines(5000))
        for path in (bench.path, segment_path(bench.path, *bench.look()[0])):
            assert (path.stat().st_uid, path.stat().st_gid) == (65534, 65533)
    finally:
        bench.close()


# --- kills ------------------------------------------------------------------------------------------------------------


def _die_at(number: int) -> None:
    """In a child: kill -9 just before the `number`-th call that changes something."""
    calls = itertools.count()

    def deadly(call: Callable[..., object]) -> Callable[..., object]:
        def wrapped(*args: object, **how: object) -> object:
            if next(calls) == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **how)

        return wrapped

    for name in ("open", "write", "pwrite", "rename", "unlink", "ftruncate", "truncate", "splice", "close"):
        setattr(os, name, deadly(getattr(os, name)))


def _in_child(work: Callable[[], None]) -> bool:
    """Whether it came to its end rather than being killed."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    assert status in (0, signal.SIGKILL), status
    return status == 0


@pytest.mark.parametrize("rest", [b"", b"half a line"])
@pytest.mark.parametrize("twice", [False, True])
def test_killed_at_any_step_nothing_is_lost_or_doubled(tmp_path, rest, twice):
    """By kill -9 at each call that a rotation makes, and then perhaps at each that a successor makes."""
    rng = random.Random(7)
    for number in itertools.count():
        folder = tmp_path / str(number)
        folder.mkdir()
        bench = Bench(folder)
        bench.write(lines(3000))
        more = lines(2000, 3000) + rest
        assert os.write(bench.rank, more) == len(more)
        bench.written += more

        def work(bench: Bench = bench, number: int = number) -> None:
            _die_at(number)
            bench.log.drain_all(time.monotonic() + 60)

        whole = _in_child(work)
        if twice:

            def take_over(bench: Bench = bench) -> None:
                _die_at(rng.randrange(12))
                bench.again()
                bench.log.drain_all(time.monotonic() + 60)

            _in_child(take_over)
        (layout,) = Folder(folder).look([bench.path])
        assert bench.read() == bench.written[: layout.end], "a reader meanwhile sees no less and nothing else"
        assert layout.end >= 48_000
        bench.again()
        bench.log.drain_all(time.monotonic() + 60)
        assert bench.read() == bench.written
        bench.write(lines(5000, 5000))
        assert bench.read() == bench.written
        assert len(bench.look()) > 1
        assert not bench.path.with_name("log.txt.new").exists()
        sizes = [segment_path(bench.path, *span).stat().st_size for span in bench.look()[:-1]]
        assert sizes == [end - start for start, end in bench.look()[:-1]]
        bench.close()
        if whole:
            assert number > 8
            break


@pytest.mark.parametrize("step", range(4))
def test_killed_while_a_segment_is_removed_it_is_gone(bench, step):
    bench.write(lines(10_000))
    (layout,) = Folder(bench.folder).look([bench.path])
    first = layout.pieces[0]
    for _ in compress(bench.path, first):
        pass

    def work() -> None:
        _die_at(step + 2)
        remove(bench.path, first, "no room")

    _in_child(work)
    gone = bool(removals(bench.path))
    assert bench.look()[0][0] == (first.end if gone else 0)
    bench.again()
    assert Path(f"{first.path}.gz").exists() is not gone, "the next one puts away what is left of it"
    assert bench.log.offset == len(bench.written)


_DRAIN = """
import os, sys, time
from pathlib import Path
from muster.supervisors.output import tee
from muster.supervisors.output.gaps import Counts
from muster.supervisors.output.tee import RankLog
folder = Path(sys.argv[1])
tee.INDEX_INTERVAL_S = 0.0
us = os.geteuid(), os.getegid()
log = RankLog(folder / "fifo", folder / "log.txt", folder / "log.idx", us,
              Counts(folder / "lost", folder / "ends", 1), 0,
              limit=lambda: 65536)
os.write(1, b"ready\\n")
import select
poll = select.poll()
poll.register(log.fd, select.POLLIN)
while True:
    poll.poll()
    log.drain()
"""


def test_kills_at_random_moments_lose_and_double_nothing(bench):
    """One process after the other drains and rotates at full speed and is killed; a reader follows all the while."""
    bench.log.close()
    rng = random.Random(11)
    over, wrong, followed = threading.Event(), [], bytearray()
    written = threading.Event()
    count = 250_000

    def rank() -> None:
        poll = select.poll()
        poll.register(bench.rank, select.POLLOUT)
        for first in range(0, count, 200):
            while True:
                poll.poll(1000)
                try:
                    assert os.write(bench.rank, lines(200, first)) == 3200
                    break
                except BlockingIOError:
                    if over.is_set():
                        return
        written.set()

    def follow() -> None:
        folder = Folder(bench.folder)
        while True:
            last = over.is_set()
            with Reader(folder) as reader:
                while (read := reader.read(bench.path, len(followed), 1 << 17))[1]:
                    if read[0] != len(followed):
                        wrong.append(f"from {len(followed)} to {read[0]}")
                    followed.extend(read[1])
            if last:
                return

    threads = [threading.Thread(target=call) for call in (rank, follow)]
    for thread in threads:
        thread.start()
    try:
        kills = 0
        while not written.is_set() or kills < 10:
            with running([sys.executable, "-c", _DRAIN, bench.folder], stdout=subprocess.PIPE) as process:
                assert process.stdout is not None
                assert process.stdout.readline() == b"ready\n"
                written.wait(rng.random() * 0.1)  # the random moment itself
                process.kill()
            kills += 1
        bench.log = bench.open()
        bench.log.drain_all(time.monotonic() + 60)
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert wrong == []
    assert bytes(followed) == bench.read() == lines(count)
    assert len(bench.look()) > 25


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["open", "write", "rename"])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EACCES])
def test_what_cannot_be_rotated_is_written_on_and_tried_later(bench, monkeypatch, call, error):
    bench.write(lines(3000))
    real, tries = getattr(os, call), []

    def refuse(first: object, *args: Any, **how: Any) -> object:
        if "txt" in str(first) or (call == "write" and len(args[0]) > INDEX_RECORD.size and first != bench.rank):
            tries.append(first)
            raise OSError(error, os.strerror(error))
        return real(first, *args, **how)

    with monkeypatch.context() as patch:
        patch.setattr(os, call, refuse)
        bench.write(lines(3000, 3000) + b"the begin of a line")
        assert tries
        known = len(tries)
        bench.write(b", and its end\n")
        assert len(tries) == known, "not with each batch"
    assert bench.look() == [(0, 96_033)]
    assert sorted(os.listdir(bench.folder)) == ["ends", "fifo", "log.idx", "log.txt", "lost"]
    later = time.monotonic() + log_file.ROTATE_AGAIN_S
    monkeypatch.setattr(time, "monotonic", lambda: later)
    bench.write(lines(1, 7000))
    assert len(bench.look()) == 2
    assert bench.read() == bench.written


@pytest.mark.parametrize("back", [True, False])
def test_a_second_rename_that_is_refused_is_taken_back(bench, monkeypatch, back):
    bench.write(lines(3000))
    rename, calls = os.rename, []

    def refuse(source: str, target: str, **folders: int) -> None:
        calls.append((source, target))
        if len(calls) == 2 or (len(calls) == 3 and not back):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        rename(source, target, **folders)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", refuse)
        bench.write(lines(3000, 3000))
    bench.write(lines(3000, 6000))
    assert bench.read() == bench.written, "readers find it, whatever it is called"
    assert bench.log.offset == len(bench.written)
    bench.again()
    bench.write(lines(1, 9000))
    assert len(bench.look()) == 2
    assert bench.read() == bench.written


def swapped(folder: Path, names: list[str]) -> Path:
    """The folder is renamed, and another one with files of these names, which are somebody's, has its place."""
    away = folder.rename(folder.with_name("away"))
    folder.mkdir()
    for name in names:
        (folder / name).write_text(f"somebody's {name}")
    return away


def untouched(folder: Path, names: list[str]) -> bool:
    return {path.name: path.read_text() for path in folder.iterdir()} == {name: f"somebody's {name}" for name in names}


def test_a_folder_that_is_renamed_while_a_log_is_rotated(tmp_path, monkeypatch):
    """Nothing in the folder that has its name is renamed, removed or cut."""
    folder = tmp_path / "logs"
    folder.mkdir()
    log, data, away = folder / "log.txt", lines(100), list[Path]()
    fd, names, pread = open_log(log, US, os.O_RDWR), ["log.txt", "log.txt.new"], os.pread
    os.write(fd, data)

    def look(*args: int) -> bytes:
        if not away:
            away.append(swapped(folder, names))
        return pread(*args)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", look)
        made, cut = rotation.rotate(log, fd, 0, len(data), US)
    os.close(made)
    os.close(fd)
    assert untouched(folder, names)
    assert (away[0] / segment_path(log, 0, cut).name).read_bytes() == data


def test_a_folder_that_is_renamed_while_a_segment_is_compressed(tmp_path):
    folder = tmp_path / "logs"
    folder.mkdir()
    log, data = folder / "log.txt", lines(100)
    segment = segment_path(log, 0, len(data))
    segment.write_bytes(data)
    names = [segment.name, f"{segment.name}.gz.part"]
    work = compress(log, Piece(0, len(data), segment, 0))
    next(work)
    away = swapped(folder, names)
    for _ in work:
        pass
    assert untouched(folder, names)
    assert [path.name for path in away.iterdir()] == [f"{segment.name}.gz"]


def test_a_full_disk_is_a_gap_as_ever_and_rotation_waits(tmp_path, monkeypatch):
    monkeypatch.setattr(log_file, "ROTATE_AGAIN_S", 0.0)
    with small_disk(tmp_path / "disk", "300k") as disk:
        (disk / "sub").mkdir()
        bench = Bench(disk / "sub")
        bench.write(lines(3800))  # under the limit
        bench.again()
        fill(disk / "filler", leave=24 * 1024)
        more = (b"x" * 999 + b"\n") * 40
        assert os.write(bench.rank, more) == len(more)
        bench.log.drain_all(time.monotonic() + 60)
        assert bench.log.stalled
        assert len(bench.look()) == 1
        (disk / "filler").unlink()
        [gap] = bench.log.drain_all(time.monotonic() + 60)
        kept = bench.written + more[: len(more) - gap.bytes]
        bench.written = kept + (b"" if kept.endswith(b"\n") else b"\n") + gap.line().encode()
        bench.write(lines(2000))
        assert bench.rotations == 1
        assert bench.read() == bench.written
        bench.close()


# --- meddling ---------------------------------------------------------------------------------------------------------


def test_a_file_that_somebody_deletes_is_made_anew_and_the_loss_is_recorded(bench):
    bench.write(lines(5000))
    bench.write(lines(10))
    [segment, live] = bench.look()
    bench.path.unlink()
    bench.write(b"after\n")
    assert bench.look() == [segment, (80_160, 80_166)]
    [record] = removals(bench.path)
    assert (record.start, record.end) == live
    assert "deleted" in record.why
    assert bench.path.read_bytes() == b"after\n"
    assert bench.path.stat().st_mode & 0o777 == 0o640
    assert bench.log.offset == 80_166
    bench.again()
    assert bench.log.offset == 80_166
    assert [offset for offset, _ in INDEX_RECORD.iter_unpack(bench.index.read_bytes())][-1] == 80_160


def test_a_file_that_is_deleted_for_room_on_a_full_disk_gives_it(tmp_path):
    with small_disk(tmp_path / "disk", "300k") as disk:
        (disk / "sub").mkdir()
        bench = Bench(disk / "sub", limit=0)
        bench.write(lines(8000))
        fill(disk / "filler")
        assert os.write(bench.rank, lines(2000)) == 32_000
        bench.log.drain_all(time.monotonic() + 60)
        assert bench.log.stalled
        end = bench.log.offset
        bench.path.unlink()
        [gap] = bench.log.drain_all(time.monotonic() + 60)
        bench.write(b"after\n")
        assert not bench.log.stalled
        assert bench.path.read_bytes() == gap.line().encode() + b"after\n"
        assert [(r.start, r.end) for r in removals(bench.path)] == [(0, end)]
        bench.close()


def test_another_file_in_the_place_of_the_written_one_is_continued(bench):
    """As an editor saves."""
    bench.write(lines(100))
    bench.path.with_name("edited").write_bytes(b"edited\n")
    bench.path.with_name("edited").rename(bench.path)
    bench.write(b"after\n")
    assert bench.look() == [(1600, 1613)]
    assert bench.path.read_bytes() == b"edited\nafter\n"


def test_a_file_that_somebody_moved_away_is_recorded_and_nothing_of_another_is_written_over(bench):
    bench.write(lines(100))
    bench.path.rename(bench.folder / "moved")
    bench.path.write_bytes(b"not ours\n")
    bench.write(lines(5000))
    (record,) = removals(bench.path)
    assert (record.start, record.end, record.lost) == (0, 1600, True)
    assert (bench.folder / "moved").read_bytes() == lines(100)
    first = segment_path(bench.path, *bench.look()[0])
    assert first.read_bytes().startswith(b"not ours\n")


def test_what_is_planted_beside_a_log_is_no_way_out(tmp_path):
    other = tmp_path / "other"
    other.write_bytes(b"0123456789")
    (tmp_path / "folder").mkdir()
    log = tmp_path / "folder" / "log.txt"
    for plant in (os.symlink, os.link):
        plant(other, segment_path(log, 0, 5))
        log.write_bytes(b"x")
        assert take_over(log, Folder(log.parent).look([log])[0]) == 5
        segment_path(log, 0, 5).unlink()
        log.unlink()
        plant(other, log)
        somebody = os.geteuid() + 1, os.getegid() + 1
        with pytest.raises(OSError, match=r"symbolic links|another name"):
            open_log(log, somebody, os.O_RDWR)
        log.unlink()
    new_path(log).mkdir()
    assert take_over(log, Folder(log.parent).look([log])[0]) == 0
    os.mkfifo(log)
    with pytest.raises(OSError, match="is not a regular file"):
        open_log(log, (os.geteuid(), os.getegid()), os.O_RDWR)
    assert other.read_bytes() == b"0123456789"
    assert other.stat().st_uid == os.geteuid()


@pytest.mark.parametrize("size", [0, 7])
def test_a_file_that_somebody_cut_is_rotated_as_what_is_left(bench, size):
    bench.write(lines(5000))
    start = bench.look()[1][0]
    before = bench.path.read_bytes()
    os.truncate(bench.path, size)
    bench.write(lines(5000))
    assert bench.rotations == 2
    assert bench.read(start) == before[:size] + lines(5000)


# --- the job's limit --------------------------------------------------------------------------------------------------


def test_the_oldest_segments_of_all_logs_go_first(tmp_path):
    logs = [tmp_path / f"log{n}" for n in range(3)]
    for age, (number, start) in enumerate([(0, 0), (1, 0), (0, 100), (1, 100), (1, 200)]):
        path = segment_path(logs[number], start, start + 100)
        path.write_bytes(b"x" * 100)
        os.utime(path, (age, age))
    for log in logs:
        log.write_bytes(b"y" * 10)
    rotation.trim(Folder(tmp_path), logs, 530)
    assert [removals(log) for log in logs] == [[], [], []]
    rotation.trim(Folder(tmp_path), logs, 330)
    assert [[(r.start, r.end) for r in removals(log)] for log in logs] == [[(0, 100)], [(0, 100)], []]
    assert all("max_job_bytes" in r.why for log in logs for r in removals(log))
    rotation.trim(Folder(tmp_path), logs, 0)
    left = Folder(tmp_path).look(logs)
    assert [(found.begin, found.end) for found in left] == [(200, 210), (300, 310), (0, 10)]
    assert all(log.exists() for log in logs), "never the live file"
