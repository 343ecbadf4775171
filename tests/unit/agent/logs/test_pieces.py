"""What is found in pieces, by several processes, is what one process shows that reads output from its beginning."""

import os
import re
import select
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from itertools import cycle, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.agent.cli.client import follow, pattern_parts
from muster.agent.cli.client.calls import DaemonConnection
from muster.agent.logs import labels, line_filter, log_reading, logs_in_place
from muster.agent.logs.line_filter import LineFilter, LineMatch
from muster.agent.logs.log_reading import RankLogFile
from muster.agent.logs.logs_in_place import LogsInPlace
from muster.agent.logs.pieces import piece_search, search_pool
from muster.agent.logs.pieces.piece_search import Found, Piece
from muster.agent.logs.pieces.search_pool import SearchPool
from muster.supervisors.output.log_compressor import compress
from muster.supervisors.output.log_removals import remove
from muster.supervisors.output.log_segments import segment_path
from muster.v1 import job_pb2, log_pb2

PATTERNS = ["", "a", "ab", "b+a", "^a", "a$", "^$", "a.b", "a|bb", "é", "\ufffd", "nowhere", "[ab]x", "a\r", "k"]
PIECES = [
    *(b"a", b"b", b"x", b"ab", b"A", b"k", b"\n", b"\n", b"\n", b"\r\n", b" ", b"\xc3\xa9", b"\xc3"),
    *(b"\xe2\x84\xaa", b"\xff", b"\x00", b"bbbbbbbb", b"x" * 12, b"a" + b"x" * 20, b"\n" + b"x" * 23 + b"\n"),
]
#: Bytes of a block, a piece and a long line, where they are small.
BLOCK, PIECE, LONG = 16, 64, 24
#: Seconds to wait for what must come.
SOON = 60

pieces_of_lines = st.lists(st.sampled_from(PIECES), min_size=60, max_size=200).map(b"".join)


def match_of(pattern: str, *, ignore_case: bool = False, filtered: bool = True) -> LineMatch:
    compiled = re.compile(pattern, re.IGNORECASE if ignore_case else 0)
    wanted = pattern_parts.wanted_lines(compiled) if filtered else None
    if wanted is None:
        return LineMatch(compiled)
    parts = [tuple(each.parts) for each in wanted.any_of]
    return LineMatch(compiled, LineFilter(parts, ignore_case=wanted.ignore_case))


def job(*paths: Path) -> job_pb2.Job:
    return job_pb2.Job(ranks=[job_pb2.Rank(rank=rank, log_path=str(path)) for rank, path in enumerate(paths)])


def named(rank: int, begin: int, end: int) -> log_pb2.ReadLogsResponse:
    return log_pb2.ReadLogsResponse(rank=rank, offset=begin, next_offset=end, in_file=True)


class Answers:
    """A daemon that names output, once, and says each time what it was asked for."""

    def __init__(self, job: job_pb2.Job, messages: list[log_pb2.ReadLogsResponse]) -> None:
        self.logs = self.jobs = SimpleNamespace(ReadLogs=None, Get=None)
        self.met, self.asked = True, list[log_pb2.ReadLogsRequest]()
        self._job, self._messages = job, messages

    def stream(self, _: object, request: log_pb2.ReadLogsRequest) -> Iterator[log_pb2.ReadLogsResponse]:
        self.asked.append(log_pb2.ReadLogsRequest.FromString(request.SerializeToString()))
        messages, self._messages = self._messages, []
        for message in messages:
            yield log_pb2.ReadLogsResponse.FromString(message.SerializeToString())
        yield log_pb2.ReadLogsResponse(eof=True)

    def patiently(self, *_: object) -> job_pb2.GetResponse:
        return job_pb2.GetResponse(job=self._job)


def read(
    found: job_pb2.Job,
    messages: list[log_pb2.ReadLogsResponse],
    match: LineMatch,
    *,
    searched: bool,
    **how: Any,
) -> tuple[list[bytes], list[log_pb2.ReadLogsRequest]]:
    """What is shown, notes included, and what the daemon was asked for."""
    out: list[bytes] = []
    answers = Answers(found, messages)
    sink = labels.LabelledLines(out.append, grep=match, **how)
    logs = LogsInPlace(found)
    if searched:
        logs.search(match, sink, follow=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(follow, "note", lambda text: out.append(b"muster: " + text.encode() + b"\n"))
        try:
            follow.read(
                cast(DaemonConnection, answers),
                log_pb2.ReadLogsRequest(job_id="x", folder=log_pb2.LogFolder()),
                sink,
                logs,
            )
        finally:
            logs.close()
    return [b"".join(out)], answers.asked


def rotate(file: RankLogFile, size: int, *, packed: bool) -> None:
    """The first bytes of the live file become a segment."""
    layout = log_reading.look([file])[0]
    start = layout.pieces[-1].start
    data = file.path.read_bytes()
    segment_path(file.path, start, start + size).write_bytes(data[:size])
    file.path.write_bytes(data[size:])
    if packed:
        for _ in compress(file.path, log_reading.look([file])[0].pieces[-2]):
            pass


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (line_filter, labels, piece_search):
        monkeypatch.setattr(module, "MAX_LINE", LONG)
    monkeypatch.setattr(logs_in_place, "BLOCK", BLOCK)
    monkeypatch.setattr(logs_in_place, "PIECE", PIECE)


@pytest.fixture
def helped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three processes help from the first byte on, in pieces of two small blocks."""
    monkeypatch.setattr(search_pool, "helpers", lambda: 3)
    monkeypatch.setattr(logs_in_place, "HELPED", 1)
    monkeypatch.setattr(logs_in_place, "BLOCK", 8192)
    monkeypatch.setattr(logs_in_place, "PIECE", 2 * 8192)


# --- the same bytes ---------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small")
@given(
    ranks=st.lists(pieces_of_lines, min_size=1, max_size=2),
    cuts=st.lists(st.tuples(st.integers(0, 1), st.integers(1, 300), st.booleans()), max_size=3),
    gone=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 2)), max_size=2),
    parts=st.lists(st.integers(0, 600), max_size=3),
    pattern=st.sampled_from(PATTERNS),
    ignore_case=st.booleans(),
    filtered=st.booleans(),
    how=st.tuples(st.booleans(), st.booleans(), st.booleans()),
)
@settings(deadline=None, max_examples=200)
def test_pieces_show_what_blocks_show(tmp_path_factory, ranks, cuts, gone, parts, pattern, ignore_case, filtered, how):
    """Also long lines, what was rotated, compressed or removed, and the place at which the daemon would go on."""
    folder = tmp_path_factory.mktemp("logs")
    files = [RankLogFile(rank, folder / f"{rank}.txt", folder / f"{rank}.idx") for rank in range(len(ranks))]
    for file, data in zip(files, ranks, strict=True):
        file.path.write_bytes(data)
    for rank, cut, packed in cuts:
        if rank < len(files) and cut < files[rank].path.stat().st_size:
            rotate(files[rank], cut, packed=packed)
    for rank, number in gone:
        if rank < len(files) and number < len(segments := log_reading.look([files[rank]])[0].segments):
            remove(files[rank].path, segments[number], "to make room")
    messages = []
    for rank, data in enumerate(ranks):
        bounds = sorted({0, len(data), *(min(part, len(data)) for part in parts)})
        messages += [named(rank, begin, end) for begin, end in pairwise(bounds)]
    label, timestamps, several = how
    shown = [
        read(
            job(*(file.path for file in files)), messages,
            match_of(pattern, ignore_case=ignore_case, filtered=filtered),
            searched=searched, label=label and several, timestamps=timestamps, several=several,
        )
        for searched in (False, True)
    ]  # fmt: skip
    assert shown[0] == shown[1]


LINES = b"".join(b"%d: a line of some words, %s\n" % (n, b"needle" if n % 7 == 0 else b"hay") for n in range(40_000))


@pytest.mark.usefixtures("helped")
@pytest.mark.parametrize("pattern", ["needle", "", "nowhere", r"[05]: .*needle$", "NEEDLE", "x{9}"])
def test_processes_show_what_blocks_show(tmp_path, pattern):
    """Long lines, bytes that are not UTF-8, a carriage return, a compressed segment and a removed one among them."""
    data = LINES[:700_000] + b"x" * 200_000 + b"\n\xff needle\r\nn\xc3\xa9edle\n" + LINES[700_000:] + b"needle"
    file = RankLogFile(0, tmp_path / "0.txt", tmp_path / "0.idx")
    file.path.write_bytes(data)
    rotate(file, 300_000, packed=True)
    rotate(file, 200_000, packed=False)
    rotate(file, 10_000, packed=False)
    remove(file.path, log_reading.look([file])[0].segments[1], "to make room")
    messages = [named(0, 0, 100), named(0, 100, 600_000), named(0, 600_000, len(data))]
    shown = [
        read(
            job(file.path), messages, match_of(pattern, ignore_case=pattern.isupper()), searched=searched,
            label=True, several=True,
        )
        for searched in (False, True)
    ]  # fmt: skip
    assert shown[0] == shown[1]


@pytest.mark.usefixtures("helped")
def test_what_is_not_in_place_any_more_is_asked_for_from_the_byte_on(tmp_path):
    path = tmp_path / "0.txt"
    path.write_bytes(LINES[:150_000])
    [shown], asked = read(job(path), [named(0, 0, 200_000)], match_of("needle"), searched=True, label=False)
    assert [(request.HasField("folder"), dict(request.offsets)) for request in asked] == [
        (True, {}),
        (False, {0: 150_000}),
    ]
    assert shown.splitlines() == [line for line in LINES[:150_000].splitlines() if b"needle" in line]


# --- processes --------------------------------------------------------------------------------------------------------


def in_file(path: Path, size: int) -> list[Piece]:
    end = path.stat().st_size
    inode = path.stat().st_ino
    return [(str(path), inode, False, 0, end, at, min(end, at + size)) for at in range(0, end, size)]


def pool_of(match: LineMatch, count: int) -> SearchPool:
    pool = SearchPool(match, block=8192, piece=32768)
    pool.start(count)
    return pool


def until(pool: SearchPool, pieces: list[Piece], enough: Callable[[], bool]) -> list[tuple[Piece, Found | None]]:
    """What is found in pieces, over and over again, until it is enough."""

    def more() -> Iterator[Piece]:
        for piece in cycle(pieces):
            if enough():
                return
            yield piece

    return list(pool.results(more()))


def pidfds(pids: list[int]) -> list[int]:
    return [os.pidfd_open(pid) for pid in pids]


def have_ended(fds: list[int]) -> None:
    for fd in fds:
        assert select.select([fd], [], [], SOON)[0], "a process did not end"
        os.close(fd)


def same(found: Found | None) -> tuple[bytes, bytes, bytes] | None:
    return None if found is None else (found[0], b"".join(found[1]), found[2])


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "0.txt"
    path.write_bytes(LINES[:400_000])
    return path


@pytest.mark.parametrize("what", ["nothing", "killed", "stopped"])
def test_all_pieces_come_in_order_whatever_becomes_of_a_process(log, monkeypatch, what):
    monkeypatch.setattr(search_pool, "PATIENCE_S", 0.3)
    match = match_of("needle")
    expected = {piece: same(piece_search.search(piece, match, 8192)) for piece in in_file(log, 32768)}
    pool = pool_of(match, 2)
    faults = [worker for worker in list(pool.workers.values())[:1] if what != "nothing"]
    processes = [worker.process for worker in pool.workers.values()]
    harmed = list[int]()

    def enough() -> bool:
        if pool.helped < 30:
            return False
        for worker in faults:
            if worker.tasks and not harmed:
                harmed.append(pool.helped)
                os.kill(worker.process.pid, signal.SIGSTOP if what == "stopped" else signal.SIGKILL)
        return not faults or (bool(harmed) and pool.helped > harmed[0] + 30)

    found = until(pool, list(expected), enough)
    order = list(expected)
    assert [piece for piece, _ in found] == [order[n % len(order)] for n in range(len(found))]
    assert all(same(each) == expected[piece] for piece, each in found)
    pool.close()
    assert all(process.returncode is not None for process in processes)


def test_without_a_process_it_is_searched_all_the_same(log, monkeypatch):
    match = match_of("needle")
    pieces = in_file(log, 32768)
    expected = [(piece, same(piece_search.search(piece, match, 8192))) for piece in pieces]
    for program in ("", "/nowhere/python", "/bin/false", "/bin/cat"):
        monkeypatch.setattr(sys, "executable", program)
        pool = pool_of(match, 2)
        assert [(piece, same(found)) for piece, found in pool.results(iter(pieces))] == expected, program
        pool.close()


def test_a_piece_that_cannot_be_read_is_none(log, tmp_path):
    [first, *_] = in_file(log, 32768)
    match = match_of("needle")
    path, inode, packed, base, behind, begin, end = first
    for bad in (
        (str(tmp_path / "gone"), 0, packed, base, behind, begin, end),
        (path, inode + 1, packed, base, behind, begin, end),
        (path, inode, packed, base, behind, begin, 10 * end * 10),
        (path, inode, True, base, behind, begin, end),
        (str(tmp_path), 0, packed, base, behind, begin, end),
    ):
        assert piece_search.search(bad, match, 8192) is None


def test_processes_have_their_pipes_and_the_memory_and_nothing_else(log):
    kept = os.open(log, os.O_RDONLY)
    os.set_inheritable(kept, True)
    pool = pool_of(match_of("needle"), 1)
    until(pool, in_file(log, 32768), lambda: pool.helped > 2)
    [worker] = pool.workers.values()
    open_there = {os.readlink(f"/proc/{worker.process.pid}/fd/{fd}").partition(":")[0] for fd in range(3)}
    numbers = sorted(map(int, os.listdir(f"/proc/{worker.process.pid}/fd")))
    pool.close()
    os.close(kept)
    assert open_there == {"pipe"}
    assert len([number for number in numbers if number > 2]) <= 2, "the memory, and a log that is being searched"
    assert kept not in numbers


COMMAND = """
    import os, re, sys, time
    from muster.agent.logs.line_filter import LineMatch
    from muster.agent.logs.pieces import search_pool
    from muster.agent.logs.pieces.search_pool import SearchPool
    # The command itself searches nothing, and waits for the others however slow the machine is.
    search_pool._OWN, search_pool.PATIENCE_S = 0, 600
    path = sys.argv[1]
    size, inode = os.stat(path).st_size, os.stat(path).st_ino
    pool = SearchPool(LineMatch(re.compile(sys.argv[2])), block=65536, piece=65536)
    pool.start(2)
    def pieces():
        while not all(worker.places or worker.tasks for worker in pool.workers.values()):
            yield "", 0, False, 0, 0, 0, 1
        yield path, inode, False, 0, size, 0, size
        yield path, inode, False, 0, size, 0, size
        print(*[worker.process.pid for worker in pool.workers.values()], flush=True)
        time.sleep(600)
    list(pool.results(pieces()))
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("what", ["at rest", "searching without end", "stopped"])
def test_no_process_stays_behind_a_command_that_ends(tmp_path, how, what):
    path = tmp_path / "0.txt"
    path.write_bytes(b"first\n" + b"a" * 60 + b"b\nlast\n")
    pattern = "(a+)+$" if what == "searching without end" else "a"
    command = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(COMMAND), str(path), pattern],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert command.stdout is not None
    pids = [int(pid) for pid in command.stdout.readline().split()]
    assert len(pids) == 2
    fds = pidfds(pids)
    if what == "stopped":
        os.kill(pids[0], signal.SIGSTOP)
    command.send_signal(how)
    command.wait(SOON)
    command.stdout.close()
    have_ended(fds)
