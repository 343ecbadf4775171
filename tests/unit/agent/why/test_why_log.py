"""Searching the ends of logs: which part, when a line was written, which signs belong together, and what cannot be
read."""

import os
from pathlib import Path

import pytest

from muster.agent.logs.log_reading import RankLogFile
from muster.agent.why import log_signs
from muster.agent.why.log_signs import Searched, Sign, Wanted
from muster.agent.why.signatures import builtin
from muster.supervisors.output.time_index import INDEX_RECORD

SPACE, IMPORT = b"OSError: [Errno 28] No space left on device\n", b"ModuleNotFoundError: No module named 'x'\n"


@pytest.fixture
def log(tmp_path: Path) -> RankLogFile:
    return RankLogFile(3, tmp_path / "x-proc-rank-3-device-3.txt", tmp_path / "x-proc-rank-3-device-3.idx")


async def search(*wanted: Wanted) -> Searched:
    return await log_signs.search(wanted, builtin())


def names(signs: tuple[Sign, ...]) -> list[str]:
    return [sign.hit.signature.id for sign in signs]


def index(log: RankLogFile, *records: tuple[int, float]) -> None:
    """Bytes from this offset on were written at this time (seconds)."""
    log.index.write_bytes(b"".join(INDEX_RECORD.pack(offset, round(at * 1e9)) for offset, at in records))


async def test_signs_with_the_time_of_their_lines(log: RankLogFile) -> None:
    log.path.write_bytes(b"begin\n" + SPACE + b"more\n" + IMPORT)
    index(log, (0, 1000.0), (6, 1010.0), (6 + len(SPACE), 1020.0))
    found = await search(Wanted(3, log))
    assert [(sign.rank, sign.hit.signature.id, sign.at) for sign in found.signs] == [
        (3, "no-space", 1010.0),
        (3, "python-import", 1020.0),
    ]
    assert found.missing == ()


async def test_without_an_index_no_time_is_made_up(log: RankLogFile) -> None:
    log.path.write_bytes(SPACE)
    assert [sign.at for sign in (await search(Wanted(3, log))).signs] == [None]


async def test_only_the_end_is_searched(log: RankLogFile) -> None:
    log.path.write_bytes(SPACE + b"x\n" * 50_000 + IMPORT)
    index(log, (0, 1000.0), (len(SPACE) + 100_000, 2000.0))
    found = await search(Wanted(3, log, most=1000))
    assert [(sign.hit.signature.id, sign.at) for sign in found.signs] == [("python-import", 2000.0)]


KEY = b"Traceback (most recent call last):\n  File 'a.py', line 1, in <module>\n    f()\nKeyError: 'x'\n"


async def test_an_error_before_much_other_output_of_the_end_is_found(log: RankLogFile) -> None:
    before, after = b"step 1\n" * 1000, b"buffer 1 was written\n" * 10_000
    log.path.write_bytes(before + KEY + after)
    index(log, (0, 1000.0), (len(before), 1010.0), (len(before) + len(KEY), 1011.0))
    (sign,) = (await search(Wanted(3, log))).signs
    assert (sign.hit.signature.id, sign.hit.line, sign.at, sign.last) == (
        "python-exception",
        "KeyError: 'x'",
        1010.0,
        False,
    )


async def test_an_error_of_long_before_is_no_reason_of_the_end(log: RankLogFile) -> None:
    after = b"buffer 1 was written\n" * 10_000
    log.path.write_bytes(KEY + after)
    index(log, (0, 1000.0), (len(KEY), 1011.0), (len(KEY) + 1000, 1500.0))
    assert (await search(Wanted(3, log))).signs == ()


async def test_a_log_that_names_its_error_is_not_searched_further(log: RankLogFile) -> None:
    log.path.write_bytes(KEY + b"buffer 1 was written\n" * 10_000 + SPACE)
    index(log, (0, 1000.0))
    assert names((await search(Wanted(3, log))).signs) == ["no-space"]


async def test_colours_hide_no_error_and_move_no_time(log: RankLogFile) -> None:
    red, off = b"\x1b[1;31m", b"\x1b[0m"
    first = red + b"step 1" + off + b"\n" + b"OSError" + off + b": [Errno 28] No space " + red + b"left on device" + off
    second = b"\nModule" + red + b"NotFoundError: No module named 'x'" + off + b"\n"
    log.path.write_bytes(first + second)
    index(log, (0, 1000.0), (len(first) + 1, 1020.0))
    found = (await search(Wanted(3, log))).signs
    assert [(sign.hit.signature.id, sign.hit.line, sign.at) for sign in found] == [
        ("no-space", "OSError: [Errno 28] No space left on device", 1000.0),
        ("python-import", "ModuleNotFoundError: No module named 'x'", 1020.0),
    ]


@pytest.mark.parametrize(
    "reported",
    [
        b"Exception ignored in: <function _MultiProcessingDataLoaderIter.__del__ at 0x7f>\n",
        b"Error in atexit._run_exitfuncs:\n",
    ],
)
async def test_a_traceback_that_python_goes_on_from_ended_nothing(log: RankLogFile, reported: bytes) -> None:
    second = KEY.replace(b"KeyError: 'x'", b"ConnectionResetError: [Errno 104] Connection reset by peer")
    log.path.write_bytes(KEY + reported + second + b"OSError: [Errno 28] No space left on device\n")
    found = (await search(Wanted(3, log))).signs
    assert [(sign.hit.signature.id, sign.ignored, sign.before_end) for sign in found] == [
        ("python-exception", False, False),
        ("python-exception", True, False),
        ("connection-reset", True, False),
        ("no-space", False, False),
    ]


@pytest.mark.parametrize("prefix", [b"", b"[rank1]: "])
async def test_a_traceback_behind_a_progress_bar(log: RankLogFile, prefix: bytes) -> None:
    """The bar ends no line. An error that was survived before it is no cause."""
    raised = b"".join(prefix + line for line in KEY.splitlines(keepends=True))
    log.path.write_bytes(SPACE + b"shard skipped\n" + b"\r  3%|## | 3/90 [00:01<00:27,  3.2it/s]" + raised)
    found = (await search(Wanted(3, log))).signs
    assert [(sign.hit.signature.id, sign.hit.line, sign.before_end) for sign in found] == [
        ("no-space", SPACE.decode().strip(), True),
        ("python-exception", "KeyError: 'x'", False),
    ]


async def test_an_attempt_has_its_own_part(log: RankLogFile) -> None:
    log.path.write_bytes(SPACE + IMPORT)
    assert names((await search(Wanted(3, log, begin=len(SPACE)))).signs) == ["python-import"]
    assert names((await search(Wanted(3, log, end=len(SPACE)))).signs) == ["no-space"]
    assert names((await search(Wanted(3, log, begin=10_000))).signs) == []


async def test_the_first_line_is_whole_or_left_out(log: RankLogFile) -> None:
    log.path.write_bytes(b"x" * 100 + SPACE + IMPORT)
    # It would begin in the middle of the first line.
    assert names((await search(Wanted(3, log, most=len(SPACE) + len(IMPORT)))).signs) == ["python-import"]
    # Here it begins where the attempt does.
    assert names((await search(Wanted(3, log, begin=100))).signs) == ["no-space", "python-import"]


async def test_what_was_written_last_is_distinguished_from_what_was_before(log: RankLogFile) -> None:
    log.path.write_bytes(SPACE + b"step\n" * 10 + IMPORT)
    end = len(SPACE) + 50
    index(log, (0, 1000.0), (end, 1000.0 + log_signs.APART_S + 5))
    assert [sign.last for sign in (await search(Wanted(3, log))).signs] == [False, True]
    index(log, (0, 1000.0), (end, 1000.0 + log_signs.APART_S - 5))
    assert [sign.last for sign in (await search(Wanted(3, log))).signs] == [True, True]
    log.index.unlink()
    log.path.write_bytes(SPACE + b"step\n" * 4000 + IMPORT)
    assert [sign.last for sign in (await search(Wanted(3, log))).signs] == [False, True]


async def test_a_log_that_is_gone_or_unreadable_is_reported_and_the_others_are_searched(
    log: RankLogFile, tmp_path: Path
) -> None:
    log.path.write_bytes(SPACE)
    gone = RankLogFile(4, tmp_path / "gone.txt", tmp_path / "gone.idx")
    link = RankLogFile(5, tmp_path / "link.txt", tmp_path / "link.idx")
    link.path.symlink_to(log.path)  # never followed: the log's folder is the job's user's to write in
    found = await search(Wanted(4, gone), Wanted(5, link), Wanted(3, log))
    assert names(found.signs) == ["no-space"]
    assert [text.split(":")[0] for text in found.missing] == ["gone.txt", "link.txt"]


async def test_a_disk_that_does_not_answer_costs_no_more_than_its_time(
    log: RankLogFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = RankLogFile(4, log.path.with_name("stuck.txt"), log.index)
    log.path.write_bytes(SPACE)
    reading, writing = os.pipe()

    def stuck(one: Wanted, table: object, back_until: float) -> Searched:
        if one.file is pipe:
            os.read(reading, 1)  # until the test ends
        return real(one, table, back_until)  # type: ignore[arg-type]  # a table

    real = log_signs.search_file
    monkeypatch.setattr(log_signs, "search_file", stuck)
    monkeypatch.setattr(log_signs, "READ_S", 1.0)
    monkeypatch.setattr(log_signs, "SCAN_S", 1.0)
    try:
        found = await search(Wanted(3, log), Wanted(4, pipe))
        assert names(found.signs) == ["no-space"]
        assert "does not answer" in found.missing[0]
        # As long as that call hangs there is no other.
        assert "still hangs" in (await search(Wanted(3, log))).missing[0]
    finally:
        os.close(writing)
