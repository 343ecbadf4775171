"""What a search finds is what a plain reader finds who looks at every line."""

import os
import re
from pathlib import Path

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.agent.cli.client import pattern_parts
from muster.agent.errors import InvalidRequest
from muster.agent.logs import labels, line_filter, line_search, log_reading, log_stream
from muster.agent.logs.line_filter import LineFilter, LineMatch
from muster.agent.logs.line_search import Search
from muster.agent.logs.log_reading import Chunk, Merge, RankLogFile
from muster.supervisors.output.log_compressor import compress
from muster.supervisors.output.log_removals import remove
from muster.supervisors.output.log_segments import segment_path
from muster.supervisors.output.time_index import INDEX_RECORD
from muster.v1 import log_pb2

PATTERNS = [
    "", "a", "[abx]", "ab", "b+a", "^a", "a$", "^$", "a.b", "a|bb", "(?:ab|ba)x", "a[^b]*x", r"\bx\b", "é", "É", "é.a",
    "\ufffd", "x{2}", "(?=a)x?a", "nowhere", "[ab]x", "(a)\\1", "a\r", "k", "(?i:A)b", "(?P<n>a)(?(n)b|x)", "a\nb",
    "(?>ab)", "x*?b",
]  # fmt: skip
PIECES = [
    b"a", b"b", b"x", b"ab", b"A", b"k", b"\n", b"\n", b"\r\n", b" ", b"\xc3\xa9", b"\xc3\x89", b"\xc3",
    b"\xe2\x84\xaa", b"\xff", b"\x00", b"bbbbbbbb",
]  # fmt: skip

Written = list[tuple[bytes, int]]


def a_file(folder: Path, rank: int, written: Written) -> RankLogFile:
    """`written`: pieces, each so much later than the one before."""
    file = RankLogFile(rank, folder / f"{rank}.txt", folder / f"{rank}.idx")
    data, index, when = b"", b"", 0
    for piece, later in written:
        when += later
        index += INDEX_RECORD.pack(len(data), when)
        data += piece
    file.path.write_bytes(data)
    file.index.write_bytes(index)
    return file


def rotate(file: RankLogFile, cut: int, start: int, *, packed: bool) -> None:
    data = file.path.read_bytes()
    segment_path(file.path, start, start + cut).write_bytes(data[:cut])
    file.path.write_bytes(data[cut:])
    if packed:
        for _ in compress(file.path, log_reading.look([file])[0].pieces[-2]):
            pass


async def chunks_of(reading: Merge | Search, rounds: list[dict[int, int]], *, ends: bool = True) -> list[Chunk]:
    """All of a history that is read as it grows. `ends`: behind the last round nothing comes."""
    chunks: list[Chunk] = []
    for number, sizes in enumerate(rounds, 1):
        if reading.begin(sizes, sizes if ends and number == len(rounds) else ()):
            while reading.left:
                chunks += await reading.batch()
    return chunks


def shown(chunks: list[Chunk], pattern: "re.Pattern[str]", *, several: bool) -> bytes:
    out: list[bytes] = []
    sink = labels.LabelledLines(
        out.append, label=several, timestamps=True, several=several, grep=LineMatch(pattern, filter_of(pattern))
    )
    behind: dict[int, int] = {}
    for chunk in chunks:
        source = f"rank {chunk.rank}"
        if chunk.offset > behind.get(chunk.rank, chunk.offset):
            sink.cut(source)
        behind[chunk.rank] = chunk.behind
        if chunk.data:
            sink.feed(source, chunk.data, (chunk.time or 0) / 1e9)
    sink.finish()
    return b"".join(out)


def filter_of(pattern: "re.Pattern[str]") -> LineFilter:
    """What the daemon makes of what the client asks it for; all lines, if it asks for nothing."""
    wanted = pattern_parts.wanted_lines(pattern)
    made = None if wanted is None else log_stream.filter_of(log_pb2.LineFilter.FromString(wanted.SerializeToString()))
    return LineFilter([(b"",)]) if made is None else made


def compiled(pattern: str, *, ignore_case: bool) -> "re.Pattern[str]":
    return re.compile(pattern, re.IGNORECASE if ignore_case else 0)


pieces = st.lists(st.sampled_from(PIECES), min_size=1, max_size=6).map(b"".join)
written = st.lists(st.tuples(pieces, st.integers(0, 3)), max_size=12)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block, a chunk and a batch are a few bytes, and so is a long line."""
    monkeypatch.setattr(line_search, "SMALL_BLOCK", 16)
    monkeypatch.setattr(line_search, "BLOCK", 16)
    monkeypatch.setattr(line_search, "SEARCH_BYTES", 40)
    monkeypatch.setattr(line_search, "CHUNK", 8)
    monkeypatch.setattr(line_search, "BATCH_CHUNKS", 3)


@pytest.mark.usefixtures("small")
@given(
    files=st.lists(written, min_size=1, max_size=3),
    cuts=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 50), st.booleans()), max_size=4),
    skips=st.lists(st.integers(0, 60), min_size=3, max_size=3),
    steps=st.lists(st.integers(0, 40), max_size=4),
    pattern=st.sampled_from(PATTERNS),
    ignore_case=st.booleans(),
)
@settings(deadline=None)
def test_of_several_ranks_the_same_lines_come_in_the_same_order(
    tmp_path_factory, files, cuts, skips, steps, pattern, ignore_case
):
    """Rotated, compressed, cut into blocks anywhere; as they grow."""
    folder = tmp_path_factory.mktemp("logs")
    made = [a_file(folder, rank, each) for rank, each in enumerate(files)]
    full = {file.rank: file.path.stat().st_size for file in made}
    starts = dict.fromkeys(full, 0)
    for rank, cut, packed in cuts:
        if rank < len(made) and cut < full[rank] - starts[rank]:
            rotate(made[rank], cut, starts[rank], packed=packed)
            starts[rank] += cut
    positions = {rank: min(skips[rank], size) for rank, size in full.items()}
    rounds: list[dict[int, int]] = []
    for step in steps:
        before = rounds[-1] if rounds else positions
        rounds.append({rank: min(full[rank], position + step) for rank, position in before.items()})
    rounds.append(full)
    expression = compiled(pattern, ignore_case=ignore_case)
    plain = anyio.run(chunks_of, Merge(made, positions), rounds)
    found = anyio.run(chunks_of, Search(made, positions, filter_of(expression)), rounds)
    # By which round it comes in the order of time differs, where a line is written over several: one round then.
    if steps:
        expected, seen = (sorted(shown(each, expression, several=True).split(b"\n")) for each in (plain, found))
    else:
        expected, seen = (shown(each, expression, several=True).split(b"\n") for each in (plain, found))
    assert seen == expected
    for rank, size in full.items():
        mine = [chunk for chunk in found if chunk.rank == rank]
        position = positions[rank]
        for chunk in mine:  # without a gap, so that a reader can go on behind any
            assert chunk.offset == position
            assert len(chunk.data) <= chunk.behind - chunk.offset
            position = chunk.behind
        assert position == size


@pytest.mark.usefixtures("small")
@given(
    each=written,
    steps=st.lists(st.integers(1, 30), max_size=4),
    pattern=st.sampled_from(PATTERNS),
    ignore_case=st.booleans(),
    breaks=st.lists(st.integers(0, 30), max_size=2),
)
@settings(deadline=None)
def test_long_lines_of_one_rank_stay_whole_and_their_first_bytes_decide(
    tmp_path_factory, each, steps, pattern, ignore_case, breaks
):
    """A line is long from 12 bytes on. Reading is broken off anywhere, and goes on behind what had come."""
    file = a_file(tmp_path_factory.mktemp("logs"), 0, each)
    size = file.path.stat().st_size
    rounds = [{0: min(size, sum(steps[: i + 1]))} for i in range(len(steps))] + [{0: size}]
    expression = compiled(pattern, ignore_case=ignore_case)
    with pytest.MonkeyPatch.context() as patch:
        for module in (labels, line_filter, line_search):
            patch.setattr(module, "MAX_LINE", 12)
        expected = shown(anyio.run(chunks_of, Merge([file], {0: 0}), rounds), expression, several=False)
        found: list[Chunk] = []
        for count in [*breaks, None]:
            position = found[-1].behind if found else 0
            lines = filter_of(expression)
            reading = Search([file], {0: position}, lines, resumed={0} if found else ())
            found += anyio.run(chunks_of, reading, rounds)[:count]
        assert shown(found, expression, several=False) == expected


@given(st.text(alphabet="abkísK\u212a\u0131\u0130\u017fé", max_size=6), st.sampled_from(PATTERNS), st.booleans())
@settings(deadline=None)
def test_no_line_that_matches_is_kept_back(text, pattern, ignore_case):
    expression = compiled(pattern, ignore_case=ignore_case)
    line = text.encode()
    if expression.search(text):
        assert filter_of(expression).view(line, len(line)).lines(0, len(line)) == line


def test_letters_that_only_ascii_can_match_where_case_is_ignored():
    """What LineFilter relies on: of all characters only i, k and s match one beyond ASCII."""
    beyond = "".join(chr(number) for number in range(0x80, 0x110000) if not 0xD800 <= number < 0xE000)
    more = {letter for letter in map(chr, range(0x80)) if re.search(re.escape(letter), beyond, re.IGNORECASE)}
    assert {letter.lower() for letter in more} == set("iks")


@pytest.mark.parametrize(
    ("pattern", "parts"),
    [
        ("needle", [["needle"]]),
        (r"step \d+7 ", [["step ", "7 "]]),
        ("error|warning", [["error"], ["warning"]]),
        ("a(?:b|c)d", [["abd"], ["acd"]]),
        (r"^\[rank \d\] loss=nan$", [["[rank ", "] loss=nan"]]),
        ("(foo)+bar", [["foo", "bar"]]),
        ("ab{3}c", [["abbbc"]]),
        ("ab{2,}c", [["abb", "c"]]),
        ("é", [["é"]]),
        ("[nN]an", [["nan"], ["Nan"]]),
        ("a(?i:b)c", [["a", "c"]]),
        ("a(?=b)bc", [["abc"]]),
        ("a(|b)c", [["abc"], ["ac"]]),
    ],
)
def test_what_is_asked_for(pattern, parts):
    wanted = pattern_parts.wanted_lines(re.compile(pattern))
    assert wanted is not None
    assert [[part.decode() for part in each.parts] for each in wanted.any_of] == sorted(parts)


@pytest.mark.parametrize(
    "pattern", ["", ".*", "[0-9]{6}", "a|", "(?!x)", "^$", "(?:a|b|c|dd?){5}.{100000}|x", "\ufffd"]
)
def test_a_pattern_that_may_match_any_line_asks_for_all(pattern):
    assert pattern_parts.wanted_lines(re.compile(pattern)) is None


@pytest.mark.parametrize(
    "pattern", ["x" * 5000, "(?:abc){500}", "a.b" * 40, "é" * 2000, "|".join(f"w{i}x" for i in range(40))]
)
def test_what_is_asked_for_is_never_refused(pattern):
    wanted = pattern_parts.wanted_lines(re.compile(pattern))
    assert wanted is None or log_stream.filter_of(wanted) is not None


@pytest.mark.parametrize(
    ("any_of", "said"),
    [
        ([[b"a"]] * 17, r"lines.any_of: 17 alternatives: at most 16"),
        ([[b"a"], []], r"lines.any_of\[1\].parts: 0 parts: give 1 to 16"),
        ([[b"a"] * 17], r"lines.any_of\[0\].parts: 17 parts: give 1 to 16"),
        ([[b"a" * 1025]], r"lines.any_of\[0\].parts: 1025 bytes: at most 1024"),
        ([[b"a", b""]], r"lines.any_of\[0\].parts: a part is empty"),
        ([[b"a\nb"]], r"lines.any_of\[0\].parts: a part is empty or contains a newline"),
    ],
)
def test_a_filter_that_makes_no_sense_is_refused(any_of, said):
    message = log_pb2.LineFilter(any_of=[log_pb2.LineParts(parts=parts) for parts in any_of])
    with pytest.raises(InvalidRequest, match=said):
        log_stream.filter_of(message)


@pytest.mark.parametrize("text", ["K", "\u212a", "x\u017f", "\u0130x", "i\u0131"])
@pytest.mark.parametrize("pattern", ["k", "[sS]", "x?i", "S|K|I", "ski"])
def test_what_is_beyond_ascii_may_match_where_case_is_ignored(text, pattern):
    expression = re.compile(pattern, re.IGNORECASE)
    line = text.encode()
    if expression.search(text):
        assert filter_of(expression).view(line, len(line)).lines(0, len(line)) == line


async def test_a_line_comes_when_it_is_complete_with_the_time_of_its_beginning(tmp_path):
    files = [a_file(tmp_path, 0, [(b"a nee", 1), (b"dle\n", 2)]), a_file(tmp_path, 1, [(b"b needle\n", 2)])]
    sizes = await log_reading.sizes_of(files)
    found = await chunks_of(Search(files, {0: 0, 1: 0}, LineFilter([(b"needle",)])), [sizes])
    assert [(chunk.data, chunk.time) for chunk in found] == [(b"b needle\n", 2), (b"a needle\n", 1)]


async def test_who_comes_back_in_the_middle_of_a_line_gets_the_rest_of_it(tmp_path):
    """Whatever that contains: the reader may have its beginning, which matched."""
    long = b"needle" + b"x" * (2 << 20)
    file = a_file(tmp_path, 0, [(long + b"\nother\nneedle again\n", 1)])
    sizes = await log_reading.sizes_of([file])
    lines = LineFilter([(b"needle",)])
    first, *rest = await chunks_of(Search([file], {0: 0}, lines), [sizes])
    found = await chunks_of(Search([file], {0: first.behind}, lines, resumed={0}), [sizes])
    assert b"".join(chunk.data for chunk in found) == b"".join(chunk.data for chunk in rest)
    assert first.data + b"".join(chunk.data for chunk in found) == long + b"\nneedle again\n"
    at_a_line = len(long) + 1
    found = await chunks_of(Search([file], {0: at_a_line}, lines, resumed={0}), [sizes])
    assert b"".join(chunk.data for chunk in found) == b"needle again\n"


async def test_of_many_lines_without_a_hit_only_the_position_comes(tmp_path):
    file = a_file(tmp_path, 0, [(b"nothing to see here\n" * 100_000, 1)])
    size = file.path.stat().st_size
    chunks = await chunks_of(Search([file], {0: 0}, LineFilter([(b"needle",)])), [{0: size}])
    assert chunks == [Chunk(0, 0, b"", None, next=size)]


async def test_every_other_line_in_large_chunks(tmp_path):
    lines = [b"%d odd\n" % i if i % 2 else b"%d even\n" % i for i in range(100_000)]
    file = a_file(tmp_path, 0, [(b"".join(lines), 1)])
    size = file.path.stat().st_size
    chunks = await chunks_of(Search([file], {0: 0}, LineFilter([(b"odd",)])), [{0: size}])
    assert b"".join(chunk.data for chunk in chunks) == b"".join(lines[1::2])
    assert len(chunks) < 2 * size // log_reading.CHUNK
    assert max(len(chunk.data) for chunk in chunks) <= log_reading.CHUNK


async def test_a_huge_line_without_the_word_is_passed_over_and_read_once(tmp_path):
    file = a_file(tmp_path, 0, [(b"x" * 3_000_000, 1), (b"needle\nneedle\n", 1), (b"needle again", 1)])
    size = file.path.stat().st_size
    reading = Search([file], {0: 0}, LineFilter([(b"needle",)]))
    found = await chunks_of(reading, [{0: 1_000_000}, {0: 2_000_000}], ends=False)
    assert found == []  # it may go on, and who comes back must see its beginning
    found = await chunks_of(reading, [{0: size}])
    assert b"".join(chunk.data for chunk in found) == b"needle\nneedle again"
    assert (found[0].offset, found[-1].behind) == (0, size)


async def test_output_that_was_removed_shows_as_a_gap_behind_what_was_searched(tmp_path):
    file = a_file(tmp_path, 0, [(b"one needle\nhalf", 1), (b"removed\n", 1), (b"two needle\n", 1)])
    rotate(file, 15, 0, packed=False)
    rotate(file, 8, 15, packed=False)
    for piece in [piece for piece in log_reading.look([file])[0].pieces if piece.start == 15]:
        remove(file.path, piece, "a test")
    size = file.size()
    found = await chunks_of(Search([file], {0: 0}, LineFilter([(b"needle",)])), [{0: size}])
    assert [(chunk.offset, chunk.data, chunk.behind) for chunk in found] == [
        (0, b"one needle\n", 11),
        (11, b"", 15),
        (23, b"two needle\n", 34),
    ]


async def test_a_file_that_shrank_is_reported_and_searched_on_from_its_new_end(tmp_path):
    file = a_file(tmp_path, 0, [(b"needle 1\nneedle 2\n", 1)])
    reading = Search([file], {0: 0}, LineFilter([(b"needle",)]))
    assert [chunk.data for chunk in await chunks_of(reading, [{0: 18}])] == [b"needle 1\nneedle 2\n"]
    os.truncate(file.path, 3)
    [cut] = await chunks_of(reading, [{0: 3}])
    assert (cut.truncated, cut.offset) == (True, 3)
    file.path.write_bytes(b"nee\nneedle 3\n")
    assert [chunk.data for chunk in await chunks_of(reading, [{0: 13}]) if chunk.data] == [b"needle 3\n"]


async def test_others_have_a_turn_between_two_batches(tmp_path, monkeypatch):
    """However much there is to search, one batch is bounded, whether or not it finds anything."""
    monkeypatch.setattr(line_search, "SEARCH_BYTES", 1 << 16)
    monkeypatch.setattr(line_search, "BLOCK", 1 << 16)
    size = 2_000_000
    file = a_file(tmp_path, 0, [(b"nothing to see here\n" * (size // 20), 1)])
    reading = Search([file], {0: 0}, LineFilter([(b"needle",)]))
    batches = 0
    reading.begin({0: size})
    while reading.left:
        await reading.batch()
        batches += 1
    assert batches >= size >> 17
