import errno
import json
import os
import resource
import tempfile
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from muster.supervisors.model import journal
from muster.supervisors.model.journal import RESERVE, RESERVE_PER_RANK, Contents, Record, Writer
from muster.supervisors.supervision_errors import JournalDamaged
from tests.unit.supervision import fill, in_own_process, small_disk

EMPTY = Contents([], 0, torn=False)
SAMPLE: list[Record] = [
    {"t": 1.5, "kind": "accepted", "text": "ä\n\0"},
    {"kind": "checking"},
    {"kind": "ended", "i": 9},
]


def write(path: Path, records: list[Record]) -> int:
    """Writes a new journal; returns its size."""
    writer = Writer(path, EMPTY)
    writer.append(records)
    writer.close()
    return path.stat().st_size


def numbered(records: list[Record]) -> list[Record]:
    return [{"n": i} | record for i, record in enumerate(records)]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "journal"


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
_RECORD = st.dictionaries(st.text().filter(lambda key: key != "n"), _JSON, max_size=4)


@given(st.lists(st.lists(_RECORD, max_size=3), max_size=4))
@settings(deadline=None, max_examples=50)
def test_what_is_appended_is_read(batches):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "journal")
        writer = Writer(path, EMPTY)
        sizes = []
        for batch in batches:
            writer.append(batch, sync=False)
            sizes.append(writer.size)
        writer.close()
        records = [record for batch in batches for record in batch]
        assert journal.read(path) == Contents(numbered(records), path.stat().st_size, torn=False)
        assert writer.next_number == len(records)
        assert sizes == sorted(sizes)
        assert (sizes or [0])[-1] == path.stat().st_size


def test_a_line_is_a_checksum_a_space_and_an_object(path):
    write(path, SAMPLE)
    for i, line in enumerate(path.read_bytes().splitlines()):
        assert line[:9] == b"%08x " % zlib.crc32(line[9:])
        assert json.loads(line[9:]) == {"n": i} | SAMPLE[i]


def test_a_later_writer_goes_on_with_number_and_place(path):
    write(path, SAMPLE)
    writer = Writer(path, journal.read(path))
    assert (writer.next_number, writer.size) == (3, path.stat().st_size)
    writer.append([{"kind": "x"}])
    writer.close()
    assert journal.read(path).records == numbered([*SAMPLE, {"kind": "x"}])


def test_nothing_written_is_no_records(path):
    write(path, [])
    assert journal.read(path) == EMPTY
    with pytest.raises(FileNotFoundError):
        journal.read(path.parent / "missing")


def test_it_is_the_owners_alone_and_no_link(path):
    write(path, SAMPLE)
    assert path.stat().st_mode & 0o777 == 0o600
    link = path.parent / "link"
    link.symlink_to(path)
    with pytest.raises(OSError, match="symbolic link"):
        Writer(link, EMPTY)


# --- damage -----------------------------------------------------------------------------------------------------------


def test_a_torn_last_line_is_dropped_and_cut_off_by_the_next_writer(path):
    size = write(path, SAMPLE)
    data = path.read_bytes()
    last = data.rindex(b"\n", 0, -1) + 1
    for cut in range(last + 1, size):
        path.write_bytes(data[:cut])
        contents = journal.read(path)
        assert contents == Contents(numbered(SAMPLE[:2]), last, torn=True)
        assert path.stat().st_size == cut, "reading changes nothing"
        writer = Writer(path, contents)
        assert path.stat().st_size == last
        writer.append(SAMPLE[2:])
        writer.close()
        assert path.read_bytes() == data


@pytest.mark.parametrize("rest", [b"\0" * 4096, b"x", b"00000000 {}"])
def test_what_a_crash_leaves_behind_the_last_line_is_dropped(path, rest):
    size = write(path, SAMPLE)
    path.write_bytes(path.read_bytes() + rest)
    assert journal.read(path) == Contents(numbered(SAMPLE), size, torn=True)


def _lines() -> list[bytes]:
    return [journal.encode(record) for record in numbered(SAMPLE)]


def _where(line: int, byte: int, value: int) -> tuple[int, int]:
    """Position in the file and the mask that makes its byte `value`."""
    return sum(map(len, _lines()[:line])) + byte, _lines()[line][byte] ^ value


def _first_letter(line: int) -> int:
    return next(i for i, c in enumerate(_lines()[line][:8]) if chr(c) in "abcdef")


@given(st.integers(0, sum(map(len, _lines())) - 1), st.integers(1, 255))
@example(*_where(0, _first_letter(0), _lines()[0][_first_letter(0)] ^ 0x20))  # the checksum in capitals
@example(*_where(1, 20, ord("\n")))
@example(*_where(2, 20, ord("\n")))
@settings(deadline=None, max_examples=300)
def test_a_changed_byte_is_reported_with_its_line(position, mask):
    data = bytearray(b"".join(_lines()))
    line = data[:position].count(b"\n")
    data[position] ^= mask
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "journal")
        path.write_bytes(data)
        if position == len(data) - 1:  # the last newline: nothing tells that from a torn line
            assert journal.read(path).records == numbered(SAMPLE[:2])
            return
        with pytest.raises(JournalDamaged) as caught:
            journal.read(path)
    assert (caught.value.path, caught.value.line) == (str(path), line + 1)
    assert f"{path}: line {line + 1}: " in str(caught.value)


@pytest.mark.parametrize("start", [b" ", b"+"])
def test_a_checksum_is_eight_hexadecimal_digits_and_nothing_else(path, start):
    body = next(b for b in (b'{"n":0,"i":%d}' % i for i in range(1000)) if zlib.crc32(b) < 1 << 28)
    path.write_bytes(b"%08x %s\n" % (zlib.crc32(body), body))
    assert len(journal.read(path).records) == 1
    path.write_bytes(start + b"%07x %s\n" % (zlib.crc32(body), body))
    with pytest.raises(JournalDamaged):
        journal.read(path)


@pytest.mark.parametrize("body", [b"[1]", b"7", b"null", b"{", b"\xff", b'{"n":0', b""])
def test_what_is_no_object_is_damage_though_its_checksum_fits(path, body):
    path.write_bytes(b"%08x %s\n" % (zlib.crc32(body), body))
    with pytest.raises(JournalDamaged, match="line 1"):
        journal.read(path)


@pytest.mark.parametrize(
    ("numbers", "line"), [([1], 1), ([0, 0], 2), ([0, 2], 2), ([0, 1, 1], 3), ([None], 1), (["0"], 1), ([0, 1, 3], 3)]
)
def test_a_wrong_number_is_damage(path, numbers, line):
    path.write_bytes(b"".join(journal.encode({"n": n, "kind": "x"}) for n in numbers))
    with pytest.raises(JournalDamaged) as caught:
        journal.read(path)
    assert caught.value.line == line


def test_a_line_that_is_missing_or_doubled_is_damage(path):
    lines = _lines()
    for wrong, line in ((lines[1:], 1), ([lines[0], lines[2]], 2), ([lines[0], lines[0], *lines[1:]], 2)):
        path.write_bytes(b"".join(wrong))
        with pytest.raises(JournalDamaged) as caught:
            journal.read(path)
        assert caught.value.line == line


# --- reading on -------------------------------------------------------------------------------------------------------


def test_reading_goes_on_from_an_offset(path):
    write(path, SAMPLE)
    whole = journal.read(path)
    offset = 0
    for i, line in enumerate(_lines()):
        assert journal.read(path, offset, i) == Contents(whole.records[i:], whole.end, torn=False)
        offset += len(line)
    assert journal.read(path, offset, 3) == Contents([], whole.end, torn=False)


def test_reading_on_reports_the_line_of_the_file(path):
    write(path, SAMPLE)
    offset = len(_lines()[0])
    with pytest.raises(JournalDamaged) as caught:
        journal.read(path, offset, 2)
    assert caught.value.line == 3
    with pytest.raises(JournalDamaged) as caught:
        journal.read(path, offset + 1, 1)
    assert caught.value.line == 2


@pytest.mark.parametrize("step", [1, 7, 50])
def test_a_reader_during_an_append_sees_whole_records_in_order(path, monkeypatch, step):
    """The kernel may write in pieces; whatever piece a reader meets, it sees a beginning of what is appended."""
    writer = Writer(path, EMPTY)
    seen: list[int] = []
    pwrite = os.pwrite

    def in_pieces(fd: int, data: bytes, offset: int) -> int:
        contents = journal.read(path)
        assert contents.records == numbered(SAMPLE)[: len(contents.records)]
        seen.append(len(contents.records))
        return pwrite(fd, data[:step], offset)

    monkeypatch.setattr(os, "pwrite", in_pieces)
    writer.append(SAMPLE)
    monkeypatch.undo()
    writer.close()
    assert seen == sorted(seen)
    assert seen[0] == 0
    assert len(seen) >= sum(map(len, _lines())) / step
    assert journal.read(path).records == numbered(SAMPLE)


# --- the disk ---------------------------------------------------------------------------------------------------------


def test_records_are_on_the_disk_before_append_returns_unless_asked_otherwise(path, monkeypatch):
    synced: list[int] = []
    monkeypatch.setattr(os, "fdatasync", lambda _: synced.append(journal.read(path).end))
    writer = Writer(path, EMPTY)
    writer.append(SAMPLE, sync=False)
    assert synced == []
    writer.append(SAMPLE[:1])
    assert synced == [writer.size]
    writer.close()


def test_a_refused_sync_leaves_the_journal_as_it_was(path, monkeypatch):
    writer = Writer(path, EMPTY)
    writer.append(SAMPLE[:1])
    before = path.read_bytes()

    def refuse(fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fdatasync", refuse)
    with pytest.raises(OSError, match="Input/output"):
        writer.append(SAMPLE[1:])
    monkeypatch.undo()
    assert path.read_bytes() == before
    assert (writer.size, writer.next_number) == (len(before), 1)
    writer.append(SAMPLE[1:])
    writer.close()
    assert journal.read(path).records == numbered(SAMPLE)


def test_a_record_that_does_not_fit_leaves_the_journal_as_it_was(path):
    """By a limit on the size of files: partial write, then EFBIG. Needs no rights."""

    def work() -> Any:
        writer = Writer(path, EMPTY)
        writer.append(SAMPLE)
        before = writer.size
        resource.setrlimit(resource.RLIMIT_FSIZE, (before + 100, before + 100))
        with pytest.raises(OSError, match="too large") as caught:
            writer.append([{"kind": "small"}, {"kind": "big", "text": "x" * 200}])
        after = path.stat().st_size
        writer.append([{"kind": "small"}])
        return [caught.value.errno, before, after, writer.next_number]

    error, before, after, number = in_own_process(work)
    assert error == errno.EFBIG
    assert after == before
    assert number == 4
    assert journal.read(path).records == numbered([*SAMPLE, {"kind": "small"}])


def test_a_full_disk_leaves_the_journal_as_it_was(tmp_path):
    with small_disk(tmp_path / "disk", "64k") as disk:
        path, big = disk / "journal", {"kind": "big", "text": "x" * 30000}
        write(path, SAMPLE)
        writer = Writer(path, journal.read(path))
        fill(disk / "filler", leave=8192)
        with pytest.raises(OSError, match="No space left") as caught:
            writer.append([{"kind": "small"}, big])
        assert caught.value.errno == errno.ENOSPC
        assert path.stat().st_size == writer.size
        assert journal.read(path) == Contents(numbered(SAMPLE), writer.size, torn=False)
        (disk / "filler").unlink()
        writer.append([{"kind": "small"}, big])
        writer.close()
        assert journal.read(path).records == numbered([*SAMPLE, {"kind": "small"}, big])


# --- the reserve ------------------------------------------------------------------------------------------------------


def _room(path: Path) -> int:
    return path.stat().st_blocks * 512


@pytest.mark.parametrize("ranks", [1, 256])
def test_the_reserve_takes_room_and_leaves_the_size(path, ranks):
    size = write(path, SAMPLE)
    writer = Writer(path, journal.read(path))
    writer.reserve(ranks)
    assert _room(path) >= RESERVE + ranks * RESERVE_PER_RANK
    assert path.stat().st_size == size
    writer.close()
    assert journal.read(path).records == numbered(SAMPLE)


def _reserved(disk: Path) -> Writer:
    """A journal with its reserve on a disk that is full."""
    writer = Writer(disk / "journal", EMPTY)
    writer.append(SAMPLE)
    writer.reserve(8)
    fill(disk / "filler")
    with pytest.raises(OSError, match="No space left"), open(disk / "other", "wb", buffering=0) as file:
        file.write(b"x" * 4096)
    return writer


def _append_within_reserve(writer: Writer) -> None:
    """Half of what was set aside."""
    for _ in range(RESERVE // 2 // 1000):
        writer.append([{"kind": "x", "text": "x" * 950}])


def test_records_within_the_reserve_are_written_on_a_full_disk(tmp_path):
    with small_disk(tmp_path / "disk", "256k") as disk:
        writer = _reserved(disk)
        _append_within_reserve(writer)
        writer.close()


def test_the_reserve_holds_over_a_takeover(tmp_path):
    with small_disk(tmp_path / "disk", "256k") as disk:
        _reserved(disk).close()
        writer = Writer(disk / "journal", journal.read(disk / "journal"))
        _append_within_reserve(writer)
        writer.close()


def test_the_reserve_holds_when_a_torn_line_is_cut_off(tmp_path):
    """ftruncate(2) gives back what lies behind the end too."""
    with small_disk(tmp_path / "disk", "256k") as disk:
        _reserved(disk).close()
        path = disk / "journal"
        with open(path, "ab", buffering=0) as file:
            file.write(b"0000")
        writer = Writer(path, journal.read(path))
        fill(disk / "filler2")
        _append_within_reserve(writer)
        writer.close()


def test_the_reserve_holds_after_a_record_that_did_not_fit(tmp_path):
    with small_disk(tmp_path / "disk", "256k") as disk:
        writer = _reserved(disk)
        with pytest.raises(OSError, match="No space left"):
            writer.append([{"kind": "huge", "text": "x" * 2 * (RESERVE + 8 * RESERVE_PER_RANK)}])
        fill(disk / "filler2")
        _append_within_reserve(writer)
        writer.close()


def test_no_room_for_the_reserve_is_reported(tmp_path):
    with small_disk(tmp_path / "disk", "64k") as disk:
        writer = Writer(disk / "journal", EMPTY)
        writer.append(SAMPLE)
        with pytest.raises(OSError, match="No space left") as caught:
            writer.reserve(1)
        assert caught.value.errno == errno.ENOSPC
        writer.close()
        assert journal.read(disk / "journal").records == numbered(SAMPLE)
