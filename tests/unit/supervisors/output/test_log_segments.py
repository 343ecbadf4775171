"""The files of a log, and reading them at offsets of all its output."""

import errno
import gzip
import itertools
import json
import os
import random
import subprocess
import threading
import time
import tracemalloc
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.supervisors.output import gzip_members, log_segments
from muster.supervisors.output.gzip_members import BLOCK, BLOCKS, MEMBER, MEMBERS
from muster.supervisors.output.log_compressor import compress
from muster.supervisors.output.log_layout import Folder, Layout
from muster.supervisors.output.log_reader import Reader
from muster.supervisors.output.log_removals import record_removal, removals, remove
from muster.supervisors.output.log_segments import Piece, companions, put_aside, removed_path, segment_path


def data(start: int, end: int) -> bytes:
    """The output of a rank of which every byte tells where it is."""
    first = start // 16
    return b"".join(b"%015d\n" % n for n in range(first, end // 16 + 1))[start - first * 16 :][: end - start]


def segment(log: Path, start: int, end: int, behind: bytes = b"") -> Piece:
    path = segment_path(log, start, end)
    path.write_bytes(data(start, end) + behind)
    return Piece(start, end, path, start)


def layout(log: Path) -> Layout:
    return Folder(log.parent).look([log])[0]


def spans(log: Path) -> list[tuple[int, int]]:
    return [(piece.start, piece.end) for piece in layout(log).pieces]


def read(log: Path, offset: int = 0, count: int = 1 << 30) -> dict[int, bytes]:
    """What there is, by where it begins: several where something is missing in between."""
    found: dict[int, bytes] = {}
    start = -1
    with Reader(Folder(log.parent)) as reader:
        while True:
            first, some = reader.read(log, offset, count)
            if not some:
                return found
            if first != offset or start < 0:
                start = first
            found[start] = found.get(start, b"") + some
            offset = first + len(some)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log.txt"


# --- which files there are --------------------------------------------------------------------------------------------


def test_names_sort_as_their_offsets_do(log):
    assert segment_path(log, 5, 1 << 30).name == "log.txt.0000000000000005-0000001073741824"
    names = [segment_path(log, start, start + 1).name for start in (9, 10, 99, 10**15)]
    assert names == sorted(names)
    beyond = segment(log, 10**17, 10**17 + 3)
    assert spans(log) == [(beyond.start, beyond.end)]


def test_a_log_that_was_never_rotated_begins_at_nothing(log):
    assert (layout(log), read(log)) == (Layout((), 0), {})
    log.write_bytes(b"")
    assert (layout(log).begin, layout(log).end) == (0, 0)
    log.write_bytes(data(0, 100))
    assert (spans(log), read(log)) == ([(0, 100)], {0: data(0, 100)})
    assert read(log, 40, 7) == {40: data(40, 100)}
    assert read(log, 100) == read(log, 101) == {}


def test_a_folder_that_is_not_there_has_no_logs(tmp_path):
    assert layout(tmp_path / "none" / "log") == Layout((), 0)


def test_the_live_file_begins_where_the_segments_end(log):
    segment(log, 0, 50)
    segment(log, 50, 75)
    log.write_bytes(data(75, 90))
    found = layout(log)
    assert (spans(log), found.begin, found.end) == ([(0, 50), (50, 75), (75, 90)], 0, 90)
    assert [piece.path for piece in found.segments] == [segment_path(log, 0, 50), segment_path(log, 50, 75)]
    assert read(log, 0, 7) == {0: data(0, 90)}
    assert read(log, 49, 2) == {49: data(49, 90)}
    assert found.pieces[-1].inode == log.stat().st_ino


def test_another_log_with_a_longer_name_has_segments_of_its_own(log):
    other = log.with_name("log.txt.old")
    segment(other, 0, 5)
    log.with_name("log.txt.12-34").write_bytes(b"someone's")
    log.with_name("log.txt.0000000000000000-0000000000000009.bak").write_bytes(b"someone's")
    log.write_bytes(b"x")
    assert spans(log) == [(0, 1)]
    assert spans(other) == [(0, 5)]


@pytest.mark.parametrize("behind", [b"", b"more than its name says"])
def test_the_name_of_a_segment_counts_not_its_size(log, behind):
    segment(log, 0, 50, behind)
    log.write_bytes(data(50, 60))
    assert read(log) == {0: data(0, 60)}


def test_killed_between_two_renames_the_rest_is_behind_the_segment(log):
    segment(log, 0, 50, data(50, 60))
    found = layout(log)
    assert (spans(log), found.end, read(log)) == ([(0, 50), (50, 60)], 60, {0: data(0, 60)})
    assert found.segments == (), "it may not be compressed: the rest would be gone"
    segment_path(log, 0, 50).rename(segment_path(log, 20, 50))
    segment(log, 0, 20)
    assert [piece.end for piece in layout(log).segments] == [20]


def test_without_a_live_file_the_end_is_that_of_the_last_segment(log):
    segment(log, 0, 50)
    assert (layout(log).end, [p.end for p in layout(log).segments]) == (50, [50])


def test_the_piece_with_a_byte_and_the_one_before_it(log):
    for start, end in ((10, 20), (20, 30), (50, 60)):
        segment(log, start, end)
    found = layout(log)

    def first(piece: Piece | None) -> int | None:
        return piece.start if piece else None

    assert [first(found.find(n)) for n in (0, 10, 19, 20, 30, 59, 60)] == [10, 10, 10, 20, 50, 50, None]
    assert [first(found.before(n)) for n in (10, 11, 20, 21, 50, 51, 99)] == [None, 10, 10, 20, 20, 50, 50]


def test_all_files_of_a_log_but_the_live_one(log):
    mine = {segment(log, 0, 5).path, removed_path(log), log.with_name("log.txt.new")}
    mine |= {Path(f"{segment_path(log, 5, 9)}{end}") for end in (".gz", ".gz.part")}
    for path in [*mine, log, log.with_name("log2.txt"), log.with_name("log2.txt.new"), log.with_name("log.txt.idx")]:
        path.touch()
    assert set(companions(log.parent, {"log.txt"})) == {("log.txt", path) for path in mine}


# --- what was removed -------------------------------------------------------------------------------------------------


def test_a_removal_is_recorded_before_it_happens(log, monkeypatch):
    first, second = segment(log, 0, 50), segment(log, 50, 75)
    log.write_bytes(data(75, 90))
    began = time.time()
    remove(log, first, "no room")
    assert spans(log) == [(50, 75), (75, 90)]
    assert (layout(log).begin, read(log)) == (50, {50: data(50, 90)})
    [record] = removals(log)
    assert (record.start, record.end, record.why) == (0, 50, "no room")
    assert began - 1 <= record.at <= time.time() + 1

    def killed(*_: object, **__: object) -> None:
        raise OSError(errno.EACCES, "killed here")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", killed)
        with pytest.raises(OSError, match="killed here"):
            remove(log, second, "no room")
    assert second.path.exists()
    assert spans(log) == [(75, 90)], "what is recorded counts as gone"
    assert removed_path(log).stat().st_mode & 0o007 == 0


def test_with_all_removed_the_offsets_go_on(log):
    remove(log, segment(log, 0, 50), "old")
    assert (layout(log).begin, layout(log).end) == (50, 50)
    log.write_bytes(data(50, 60))
    assert read(log) == {50: data(50, 60)}


def test_a_hole_is_passed_over(log):
    segment(log, 0, 50)
    record_removal(log, 50, 80, "somebody deleted it")
    segment(log, 80, 90)
    log.write_bytes(data(90, 99))
    assert spans(log) == [(0, 50), (80, 90), (90, 99)]
    assert read(log) == {0: data(0, 50), 80: data(80, 99)}
    with Reader(Folder(log.parent)) as reader:
        assert reader.stretch(log, 40, 50) == (40, data(40, 50))
        assert reader.stretch(log, 40, 60) == (60, b"")
        assert reader.stretch(log, 40, 85) == (80, data(80, 85))
        assert reader.stretch(log, 85, 1000) == (85, data(85, 99))


def test_a_removal_of_the_live_file_alone_moves_its_successor(log):
    record_removal(log, 0, 80, "somebody deleted it")
    log.write_bytes(data(80, 90))
    assert (spans(log), read(log)) == ([(80, 90)], {80: data(80, 90)})


def test_records_that_are_none_are_left_out(log):
    segment(log, 10, 20)
    whole = json.dumps({"start": 0, "end": 10, "at": 1.5, "why": "old"}).encode()
    removed_path(log).write_bytes(b'\n{"start": 5}\nnull\n[]\n\xff\n' + whole + b'\n{"start": 10, "end"')
    assert [(r.start, r.end) for r in removals(log)] == [(0, 10)]
    record_removal(log, 10, 20, "behind one that was torn")
    assert [(r.start, r.end) for r in removals(log)] == [(0, 10), (10, 20)]


def test_a_record_that_finds_no_room_leaves_no_half(log, monkeypatch):
    record_removal(log, 0, 10, "old")
    before, write = removed_path(log).read_bytes(), os.pwrite
    for start, why in ((10, "old"), (10, "another"), (15, "old")):
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", lambda fd, line, place: write(fd, line[:9], place))
            with pytest.raises(OSError, match="No space"):
                record_removal(log, start, 20, why)
        assert removed_path(log).read_bytes() == before


def test_what_goes_bit_by_bit_stays_one_record(log):
    for n in range(0, 10_000_000, 1_000_000):
        record_removal(log, n, n + 1_000_000, "old")
    record_removal(log, 10_000_000, 10_000_005, "another")
    record_removal(log, 10_000_007, 10_000_009, "another")
    assert [(r.start, r.end, r.last) for r in removals(log)] == [
        (0, 10_000_000, 9_000_000),
        (10_000_000, 10_000_005, 10_000_000),
        (10_000_007, 10_000_009, 10_000_007),
    ]
    assert len(removed_path(log).read_text().splitlines()) == 3


def test_what_is_no_file_of_ours_is_no_record(log, tmp_path):
    other = tmp_path / "other"
    other.write_text(json.dumps({"start": 0, "end": 10, "at": 1.5, "why": "old"}) + "\n")
    for make in (lambda path: path.symlink_to(other), os.mkdir, os.mkfifo):
        make(removed_path(log))
        assert removals(log) == []
        removed_path(log).rmdir() if removed_path(log).is_dir() else removed_path(log).unlink()


def test_a_segment_that_is_removed_with_its_job_while_it_is_compressed_does_not_come_back(log):
    piece = segment(log, 0, 50)
    for _ in compress(log, piece):
        piece.path.unlink()  # with all of its job, and so with no record
    assert os.listdir(log.parent) == []


def test_a_compressed_segment_of_its_user_takes_no_memory(log):
    """Whatever its user writes into it."""
    packed = Path(f"{segment_path(log, 0, 50)}.gz")
    packed.write_bytes(gzip_members.pack(bytes(64 << 20), 6))
    tracemalloc.start()
    with pytest.raises(OSError, match="damaged"):
        read(log)
    packed.write_bytes(packed.read_bytes()[:16] + b"\xff\xff\xff\xff")
    os.truncate(packed, 1 << 33)
    with pytest.raises(OSError, match="damaged"):
        read(log)
    assert tracemalloc.get_traced_memory()[1] < 16 << 20
    tracemalloc.stop()


# --- compressed -------------------------------------------------------------------------------------------------------


def drain(steps) -> list[int]:
    return list(steps)


@given(size=st.integers(1, 5000), kind=st.sampled_from(["text", "random"]))
@settings(deadline=None, max_examples=40)
def test_what_is_compressed_is_read_at_any_offset(tmp_path_factory, size, kind):
    log = tmp_path_factory.mktemp("packed") / "log"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gzip_members, "MEMBER", 512)
        content = data(100, 100 + size) if kind == "text" else random.Random(size).randbytes(size)
        path = segment_path(log, 100, 100 + size)
        path.write_bytes(content)
        os.utime(path, (5, 5))
        path.chmod(0o640)
        [piece] = layout(log).pieces
        assert drain(compress(log, piece)) == [*range(512, size, 512), size]
        packed = Path(f"{path}.gz")
        assert not path.exists()
        assert (packed.stat().st_mtime, packed.stat().st_mode & 0o777) == (5, 0o640)
        assert gzip.decompress(packed.read_bytes()) == content
        [piece] = layout(log).pieces
        assert (piece.packed, piece.start, piece.end) == (True, 100, 100 + size)
        for offset in {100, 100 + size // 2, 99 + size}:
            assert read(log, offset, 300) == {offset: content[offset - 100 :]}


def test_zcat_reads_what_is_compressed(log):
    piece = segment(log, 0, 2 * MEMBER + 12345)
    drain(compress(log, piece))
    packed = Path(f"{piece.path}.gz")
    assert subprocess.run(["zcat", packed], capture_output=True, check=True).stdout == data(0, piece.end)
    assert packed.stat().st_size < piece.end / 2
    subprocess.run(["gzip", "-t", packed], check=True)


@pytest.fixture
def inflated(monkeypatch) -> list[int]:
    """One for each member that is inflated."""
    found = []
    make = zlib.decompressobj

    def count(bits: int) -> object:
        found.append(bits)
        return make(bits)

    monkeypatch.setattr(zlib, "decompressobj", count)
    return found


def test_a_reader_hops_to_the_member_that_it_needs(log, inflated):
    piece = segment(log, 0, 6 * MEMBER)
    drain(compress(log, piece))
    with Reader(Folder(log.parent)) as reader:
        place = 5 * MEMBER + 17
        for n in range(16):
            assert reader.read(log, place + n * 1000, 1000)[1] == data(place + n * 1000, place + n * 1000 + 1000)
    assert len(inflated) == 1, "what is read in pieces is inflated once"


@pytest.mark.parametrize(("logs", "times"), [(17, 1), (40, 2)])
def test_many_logs_that_are_read_by_turns_are_not_inflated_for_each_piece(log, inflated, logs, times):
    """As ranks are that are merged by time. Of few a member is inflated once, of many once for each of its blocks."""
    piece = segment(log, 0, MEMBER)
    drain(compress(log, piece))
    packed = Path(f"{piece.path}.gz")
    others = [log.with_name(f"other-{n}") for n in range(logs)]
    for other in others:
        os.link(packed, f"{segment_path(other, 0, MEMBER)}.gz")
    size = 2000
    with Reader(Folder(log.parent)) as reader:
        for place in range(0, 2 * BLOCK - size, size):
            for other in others:
                _, found = reader.read(other, place, size)
                assert found == data(place, place + len(found))
    assert len(inflated) == times * logs
    members, blocks = gzip_members.held()
    assert members <= MEMBERS and blocks <= BLOCKS


def test_a_compression_that_is_stopped_leaves_nothing(log):
    piece = segment(log, 0, 3 * MEMBER)
    steps = compress(log, piece)
    next(steps)
    part = Path(f"{piece.path}.gz.part")
    assert part.exists()
    assert read(log, 0, MEMBER) == {0: data(0, piece.end)}
    steps.close()
    assert os.listdir(log.parent) == [piece.path.name]
    part.write_bytes(b"of one that was killed")
    drain(compress(log, piece))
    assert os.listdir(log.parent) == [f"{piece.path.name}.gz"]


def test_a_segment_that_is_removed_while_it_is_compressed_does_not_come_back(log):
    piece = segment(log, 0, 2 * MEMBER)
    steps = compress(log, piece)
    next(steps)
    record_removal(log, 0, piece.end, "no room")
    drain(steps)
    assert os.listdir(log.parent) == [removed_path(log).name]


def test_a_segment_that_somebody_cut_is_not_compressed(log):
    piece = segment(log, 0, 2 * MEMBER)
    os.truncate(piece.path, 5)
    with pytest.raises(OSError, match="shorter than its name"):
        drain(compress(log, piece))
    assert os.listdir(log.parent) == [piece.path.name]
    log.write_bytes(data(piece.end, piece.end + 9))
    assert read(log) == {0: data(0, 5), piece.end: data(piece.end, piece.end + 9)}, "the rest is passed over"


@pytest.mark.parametrize("backwards", [False, True])
def test_killed_between_the_last_two_steps_of_compression_the_plain_one_counts(log, monkeypatch, backwards):
    """So it is compressed again, and one of both does not stay for the rest of the job."""
    piece = segment(log, 0, 100)
    drain(compress(log, piece))
    segment(log, 0, 100)
    log.write_bytes(data(100, 110))
    names = sorted(os.listdir(log.parent), reverse=backwards)
    with monkeypatch.context() as patch:
        patch.setattr(log_segments, "names", lambda _: names)
        found = layout(log)
    assert [(each.path, each.packed) for each in found.pieces] == [(piece.path, False), (log, False)]
    assert read(log) == {0: data(0, 110)}
    drain(compress(log, found.segments[0]))
    assert sorted(os.listdir(log.parent)) == [log.name, f"{piece.path.name}.gz"]
    assert read(log) == {0: data(0, 110)}
    segment(log, 0, 100)
    remove(log, layout(log).segments[0], "no room")
    assert sorted(os.listdir(log.parent)) == [log.name, removed_path(log).name]


@pytest.mark.parametrize("place", [0, 1, 10, 13, 16, 21, -3, -7])
def test_a_damaged_segment_is_named(log, place):
    piece = segment(log, 0, 100)
    drain(compress(log, piece))
    packed = Path(f"{piece.path}.gz")
    content = bytearray(packed.read_bytes())
    content[place] ^= 0x55
    packed.write_bytes(content)
    with pytest.raises(OSError, match=r"is damaged.*0100\.gz"):
        read(log)


# --- while others change it -------------------------------------------------------------------------------------------


def test_a_reader_goes_on_when_files_are_renamed_and_compressed_under_it(log):
    log.write_bytes(data(0, 3000))
    folder = Folder(log.parent)
    with Reader(folder) as reader:
        assert reader.read(log, 0, 1000) == (0, data(0, 1000))
        log.rename(segment_path(log, 0, 2900))
        log.write_bytes(data(2900, 3500))
        os.truncate(segment_path(log, 0, 2900), 2900)
        assert reader.read(log, 1000, 1000) == (1000, data(1000, 2000))
        assert reader.read(log, 2950, 1000)[1] == data(2950, 3500), "no end is seen where none is"
    with Reader(folder) as reader:
        assert reader.layout(log).end == 3500
        drain(compress(log, reader.layout(log).pieces[0]))
        assert reader.read(log, 100, 1000) == (100, data(100, 1100))
    with Reader(folder) as reader:
        assert reader.layout(log).end == 3500
        remove(log, reader.layout(log).pieces[0], "no room")
        assert reader.read(log, 100, 1000) == (2900, data(2900, 3500))


def test_a_look_that_finds_nothing_changed_reads_no_folder(log, monkeypatch):
    segment(log, 0, 50)
    log.write_bytes(b"x")
    old = time.time() - 10
    os.utime(log.parent, (old, old))
    folder = Folder(log.parent)
    assert folder.look([log])[0].end == 51
    listed: list[Path] = []
    names = log_segments.names

    def count(path: Path) -> Iterator[str]:
        listed.append(path)
        return names(path)

    monkeypatch.setattr(log_segments, "names", count)
    for n in range(100):
        with open(log, "ab") as file:
            file.write(b"y")
        assert folder.look([log])[0].end == 52 + n
    assert listed == []
    many = [log.with_name(f"log{n}") for n in range(50)]
    for other in many:
        other.write_bytes(b"z")
    assert [found.end for found in folder.look([log, *many])] == [151] + [1] * 50
    assert len(listed) == 2, "one reading, done twice, serves all"


def test_a_look_at_a_folder_of_many_files_takes_no_memory_for_their_names(log):
    for number in range(5000):
        log.with_name(f"{number:0100}.txt").touch()
    folder = Folder(log.parent)
    tracemalloc.start()
    try:
        folder.look([log])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 200_000, "a list of them has 800 KB"


def test_a_rotation_that_the_time_of_the_folder_does_not_tell_is_seen(log):
    """As where a server's clock is behind."""
    log.write_bytes(data(0, 10))
    os.utime(log.parent, (5, 5))
    folder = Folder(log.parent)
    assert folder.look([log])[0].end == 10
    log.rename(segment_path(log, 0, 10))
    log.write_bytes(data(10, 15))
    os.utime(log.parent, (5, 5))
    assert folder.look([log])[0].end == 15


def test_a_change_right_behind_a_look_is_seen(log):
    """Within one tick of the clock that folders go by, and with the live file's inode used again."""
    folder = Folder(log.parent)
    log.write_bytes(data(0, 10))
    for n in range(100):
        start = 10 * n
        assert folder.look([log])[0].end == start + 10
        path = segment_path(log, start, start + 10)
        log.rename(path)
        drain(compress(log, Piece(start, start + 10, path, start), level=1))
        log.write_bytes(data(start + 10, start + 20))
    assert read(log) == {0: data(0, 1010)}


def test_a_live_file_that_is_absent_in_two_rotations_is_not_taken_for_absent(log, monkeypatch):
    """A look falls into two rotations: before it reads the names the first has no live file yet, behind them the next
    has none any more. The bytes of the file in between were in no layout."""
    log.write_bytes(data(0, 10))
    lstat, looks = os.lstat, itertools.count()

    def between_rotations(path: Path) -> os.stat_result:
        n = next(looks)
        if n < 2:
            log.rename(segment_path(log, 10 * n, 10 * n + 10))
        try:
            return lstat(path)
        finally:
            if n == 0:
                log.write_bytes(data(10, 20))

    monkeypatch.setattr(os, "lstat", between_rotations)
    assert Folder(log.parent).look([log])[0].end == 20


@pytest.mark.parametrize("packs", [False, True])
def test_readers_see_the_right_bytes_over_all_changes_of_the_files(log, packs):
    """One writes and rotates as a supervisor does, one compresses and removes; who reads gets what belongs there."""
    size, rounds, step = 4000, 250, 100
    log.write_bytes(b"")
    done, wrong, most = threading.Event(), [], [0]
    folder = Folder(log.parent)

    def follow() -> None:
        place = end = 0
        while True:
            over = done.is_set()
            with Reader(folder) as reader:
                now = reader.layout(log).end
                if now < end:
                    wrong.append(f"the end went from {end} back to {now}")
                end = now
                while place < end:
                    first, some = reader.read(log, place, min(1500, end - place))
                    if not some:
                        break
                    if some != data(first, first + len(some)):
                        wrong.append(f"{some[:40]!r} at {first}")
                    place = first + len(some)
            most[0] = max(most[0], place)
            if over or wrong:
                return

    def tend() -> None:
        while not done.is_set():
            found = folder.look([log])[0].segments
            try:
                for piece in found[-3:]:
                    if packs and not piece.packed:
                        drain(compress(log, piece, level=1))
                for piece in found[:-40]:
                    remove(log, piece, "no room")
            except OSError as error:
                if error.errno != errno.ENOENT:
                    wrong.append(repr(error))

    threads = [threading.Thread(target=call) for call in (follow, follow, follow, tend)]
    for thread in threads:
        thread.start()
    try:
        end = start = 0
        for n in itertools.count():
            if n == rounds or wrong:
                break
            with open(log, "ab", buffering=0) as file:
                for _ in range(size // step):
                    file.write(data(end, end + step))
                    end += step
                cut = end - 24
                new = log.with_name("log.txt.new")
                new.write_bytes(data(cut, end))
                log.rename(segment_path(log, start, cut))
                new.rename(log)
                os.ftruncate(file.fileno(), cut - start)
                start = cut
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert wrong == []
    assert most[0] == end


# --- files of an earlier job ------------------------------------------------------------------------------------------


def test_an_empty_file_is_not_set_aside(tmp_path):
    log, index = tmp_path / "log", tmp_path / "idx"
    put_aside([(log, index)])
    log.touch()
    put_aside([(log, index)])
    assert os.listdir(tmp_path) == ["log"]
    log.write_text("x")
    index.write_text("y")
    os.utime(log, (7, 7))
    put_aside([(log, index)])
    assert sorted(os.listdir(tmp_path)) == ["idx.7", "log.7"]


def test_what_was_rotated_away_is_set_aside_with_its_log(tmp_path):
    log, other, index = tmp_path / "log", tmp_path / "log2", tmp_path / "idx"
    log.touch()
    other.write_text("x")
    index.write_text("i")
    segment_path(log, 0, 3).write_text("abc")
    record_removal(log, 0, 3, "test")
    segment_path(log, 3, 5).write_text("de")
    for path in tmp_path.iterdir():
        os.utime(path, (8, 8))
    put_aside([(log, index), (tmp_path / "log2", tmp_path / "idx2")])
    put_aside([(log, index), (tmp_path / "log2", tmp_path / "idx2")])
    aside = tmp_path / "log.8"
    (kept,) = Folder(tmp_path).look([aside])
    assert [(p.start, p.end) for p in kept.pieces] == [(3, 5), (5, 5)]
    assert {p.name for p in tmp_path.iterdir()} >= {"log.8", "log2.8", "idx.8", "log.8.removed"}
    assert Folder(tmp_path).look([log])[0].end == 0
    log.write_text("y")
    os.utime(log, (8, 8))
    put_aside([(log, index)])
    assert (tmp_path / "log.8+").read_text() == "y"


def test_all_that_is_left_of_an_earlier_job_is_set_aside(tmp_path):
    log, index = tmp_path / "log", tmp_path / "idx"
    record_removal(log, 0, 9, "test")  # all of it was removed
    os.utime(removed_path(log), (8, 8))
    put_aside([(log, index)])
    assert os.listdir(tmp_path) == ["log.8.removed"]
    segment_path(log, 9, 12).write_text("abc")  # somebody removed the rest
    os.utime(segment_path(log, 9, 12), (8, 8))
    log.touch()
    index.write_text("i")  # times of output that is not there would be taken for those of the next
    os.utime(log, (8, 8))
    os.utime(index, (8, 8))
    put_aside([(log, index)])
    assert sorted(os.listdir(tmp_path)) == [
        "idx.8+", "log.8+", "log.8+.0000000000000009-0000000000000012", "log.8.removed"
    ]  # fmt: skip
    assert Folder(tmp_path).look([log])[0].end == 0
