import errno
import os
import re
import select
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from muster.probes.kernel import process
from muster.supervisors.model.job_logs import job_line, job_log_files
from muster.supervisors.model.ledger import Ledger
from muster.supervisors.model.lifecycle import Job, Rank
from muster.supervisors.model.replay import apply
from muster.supervisors.model.states import JOB
from muster.supervisors.output import tee
from muster.supervisors.output.job_output import GAP_AGAIN_S, Output
from muster.supervisors.output.log_file import LogFile
from muster.supervisors.output.log_layout import Folder
from muster.supervisors.output.log_removals import removals
from muster.supervisors.paths import Root
from muster.supervisors.system import settings_file
from muster.supervisors.system.loop import Loop
from muster.supervisors.system.settings_file import LogSettings, SupervisorSettings

LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3} \[muster\] ")
US = (os.geteuid(), os.getegid())
PWRITE = os.pwrite


class Desk:
    """An `Output` whose loop we are: what it asks for is done when we say so."""

    def __init__(self, folder: Path, ranks: int = 2) -> None:
        self.root = Root.under(folder)
        self.paths = self.root.job("j")
        self.paths.folder.mkdir(parents=True, exist_ok=True)
        self.root.log.mkdir(exist_ok=True)
        self.job = Job(node_rank=3, ranks=[Rank(4 + i, i, i) for i in range(ranks)])
        self.records: list[dict[str, Any]] = []
        self.callbacks: dict[int, Callable[[], None]] = {}
        self.behind_them: list[Callable[[], None]] = []
        self.figures: list[list[tuple[int, float, int]]] = []
        #: How often room was to be made for descriptors.
        self.room = 0
        self.output = Output(self.root, "j", cast(Loop, self), cast(Ledger, self), self.figures.append, self.make_room)

    def successor(self) -> "Desk":
        """Takes the job over: of what this one knew there are the records and the files."""
        self.output.close()
        desk = Desk(self.root.log.parent)
        desk.job, desk.records = self.job, self.records
        return desk.open(fresh=False)

    # as the loop

    def add(self, fd: int, callback: Callable[[], None]) -> None:
        self.callbacks[fd] = callback

    def remove(self, fd: int) -> None:
        self.callbacks.pop(fd, None)

    def behind(self, callback: Callable[[], None]) -> None:
        self.behind_them.append(callback)

    def later(self, seconds: float, callback: Callable[[], None]) -> None:
        assert seconds >= 0

    # as the ledger

    def owe(self, *records: dict[str, Any], **_: bool) -> None:
        self.records += records
        for record in records:
            apply(self.job, {"n": len(self.records), "t": time.time()} | record)

    # as the reserve of descriptors

    def make_room(self) -> None:
        self.room += 1

    # for the tests

    def open(self, fresh: bool = True) -> "Desk":
        self.output.open_job(US)
        self.output.make_fifos(self.job.ranks, US)
        self.output.open(self.job.ranks, US, fresh=fresh)
        return self

    def drain(self) -> None:
        for callback in list(self.callbacks.values()):
            callback()
        while self.behind_them:
            self.behind_them.pop()()

    def write(self, rank: int, data: bytes) -> None:
        fd = os.open(self.paths.fifo(rank), os.O_WRONLY | os.O_NONBLOCK)
        assert os.write(fd, data) == len(data)
        os.close(fd)

    def log(self, rank: int) -> Path:
        return self.root.rank_log("j", rank, rank - 4)

    @property
    def job_log(self) -> str:
        self.drain()
        return self.root.job_log("j", 3).read_text()


@pytest.fixture
def desk(tmp_path) -> Iterator[Desk]:
    made = Desk(tmp_path)
    yield made
    made.output.close()


# --- the job's own log ------------------------------------------------------------------------------------------------


def test_the_log_of_a_node_has_the_name_of_modelarts_log_of_a_worker(tmp_path):
    log, index = job_log_files(Root.under(tmp_path), "j", 3)
    assert (log, index) == (tmp_path / "log" / "j-muster-3.log", tmp_path / "log" / "j-muster-3.idx")


def test_a_line_of_muster_is_one_line_with_its_time():
    before = time.time()
    line = job_line("a\nb\r\nc\u2028d\x0be")
    assert line.endswith(" [muster] a b c d e\n")
    assert line.count("\n") == 1, "what follows a break would pass for the job's own"
    assert LINE.match(line)
    stamp = time.mktime(time.strptime(line[:19], "%Y-%m-%dT%H:%M:%S")) + float(line[19:23])
    assert before - 0.001 <= stamp <= time.time()


def test_lines_of_muster_and_output_of_steps_keep_their_order(desk):
    desk.open()
    step = os.open(desk.paths.job_fifo, os.O_WRONLY)
    desk.output.say("pre_start: begins")
    os.write(step, b"from the step\n")
    desk.output.say("pre_start: is done")
    os.close(step)
    lines = desk.job_log.splitlines()
    assert [LINE.sub("", line) for line in lines] == ["pre_start: begins", "from the step", "pre_start: is done"]


def test_the_job_log_goes_on_where_the_daemon_left_it(desk):
    desk.root.job_log("j", 3).write_text("of the checks\n")
    desk.output.open_job(US)
    desk.output.open_job(US)
    desk.output.say("more")
    assert desk.job_log.startswith("of the checks\n")
    assert len(desk.job_log.splitlines()) == 2


def test_a_step_that_floods_the_log_does_not_hold_us_up(desk):
    desk.open()
    step = os.open(desk.paths.job_fifo, os.O_WRONLY | os.O_NONBLOCK)
    flood = 0
    try:
        while True:
            flood += os.write(step, b"x" * 4095 + b"\n")
    except BlockingIOError:
        pass
    desk.output.say("is stopped")
    os.close(step)
    desk.drain()
    text = desk.job_log
    assert text.count("x") == flood - flood // 4096
    assert text.endswith("[muster] is stopped\n")


@pytest.mark.parametrize("length", [10, 4000, 5000, 100_000])
def test_a_long_line_is_cut_and_is_a_line(desk, length):
    """In one piece, so that nobody's output gets into the middle of it."""
    desk.open()
    desk.output.say("é" * length)
    desk.output.say("next")
    lines = desk.job_log.splitlines()
    assert [LINE.sub("", line)[:1] for line in lines] == ["é", "n"]
    assert len(lines[0].encode()) < select.PIPE_BUF + 4


def test_before_there_is_a_log_nothing_is_reported(desk):
    desk.output.say("nobody hears")
    assert desk.output.fds() == []


def test_what_the_job_log_lost_is_reported_as_the_jobs(desk, monkeypatch):
    desk.open()
    desk.output.say("one")
    with monkeypatch.context() as patch:
        patch.setattr(os, "splice", _full)
        patch.setattr(os, "pwrite", _full)
        desk.drain()
        desk.output.say("two")
        desk.drain()
    desk.output.drain()
    desk.output.commit_gaps()
    (record,) = desk.records
    assert (record["kind"], record["rank"], record["error"]) == ("lost_bytes", JOB, "No space left on device")
    assert record["bytes"] == record["total"] > 0
    assert not record["open"]
    desk.output.commit_gaps()
    assert len(desk.records) == 1, "told once"


def _full(*_: object, **__: object) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_an_open_gap_is_recorded_from_its_first_byte_on_and_then_ever_more_rarely(desk, monkeypatch):
    """All records of a rank add up to what it lost."""
    desk.open()
    now = [time.monotonic()]
    with monkeypatch.context() as patch:
        patch.setattr(os, "splice", _full)
        patch.setattr(os, "pwrite", _full)
        patch.setattr(time, "monotonic", lambda: now[0])
        patch.setattr(process, "uptime", lambda: now[0])
        desk.write(4, b"x" * 1000)
        desk.drain()
        desk.output.commit_gaps()
        assert desk.records == [], "refused, but nothing was thrown away yet"
        for _ in range(60 * 24):
            desk.write(4, b"y" * 10)
            desk.drain()
            desk.drain()
            desk.output.commit_gaps()
            now[0] += 60
    assert [record["bytes"] for record in desk.records[:4]] == [1010, 10, 20, 40]
    assert len(desk.records) <= 12, "the journal's reserve is small"
    assert {(record["rank"], record["open"]) for record in desk.records} == {(4, True)}
    desk.output.drain()
    desk.output.commit_gaps()
    assert (desk.records[-1]["open"], desk.records[-1]["total"]) == (False, 1000 + 10 * 60 * 24)
    assert sum(record["bytes"] for record in desk.records) == 1000 + 10 * 60 * 24


def _lose(desk: Desk, rank: int, data: bytes) -> None:
    desk.write(rank, data)
    desk.drain()
    desk.drain()
    desk.output.commit_gaps()


def test_successors_keep_to_the_pause_between_two_records_of_a_gap(desk, monkeypatch):
    """A supervisor that crashes again and again tells of a gap no more often than another."""
    desk.open()
    now = process.uptime()
    monkeypatch.setattr(process, "uptime", lambda: now)
    monkeypatch.setattr(os, "splice", _full)
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: _full())
    _lose(desk, 4, b"x" * 1000)
    desk.paths.lost.unlink()  # nor could that be kept
    desk.paths.ends.unlink()
    for _ in range(5):
        desk = desk.successor()
        _lose(desk, 4, b"y" * 10)
        assert desk.figures[-1] == [(4, desk.job.gaps[4].since, 1010)], "of what went before only the records told"
        assert len(desk.records) == 1
    now += GAP_AGAIN_S
    _lose(desk, 4, b"z" * 10)
    assert [record["bytes"] for record in desk.records] == [1000, 20]
    assert desk.records[-1]["total"] == 1020


def test_watchers_get_what_open_gaps_lose_each_second(desk, monkeypatch):
    desk.open()
    now = time.monotonic()
    with monkeypatch.context() as patch:
        patch.setattr(os, "splice", _full)
        patch.setattr(os, "pwrite", _full)
        patch.setattr(time, "monotonic", lambda: now)
        _lose(desk, 4, b"x" * 1000)
        _lose(desk, 4, b"y" * 10)
        assert [gaps[0][2] for gaps in desk.figures] == [1000], "not with every byte"
        now += 1
        desk.output.commit_gaps()
        assert [gaps[0][2] for gaps in desk.figures] == [1000, 1010]
    desk.output.drain()
    desk.output.commit_gaps()
    assert desk.figures[-1] == [], "at once"


def test_a_gap_that_was_closed_while_the_journal_took_no_record_is_closed_by_the_successor(desk, monkeypatch):
    desk.open()
    with monkeypatch.context() as patch:
        patch.setattr(os, "splice", _full)
        patch.setattr(os, "pwrite", lambda fd, data, at: _full() if len(data) > 30 else PWRITE(fd, data, at))
        _lose(desk, 4, b"x" * 1000)
        _lose(desk, 4, b"y" * 10)
    desk.output.drain()  # and killed before it could tell
    assert desk.job.gaps.keys() == {4}
    desk = desk.successor()
    desk.output.commit_gaps()
    assert not desk.job.gaps
    last = desk.records[-1]
    assert (last["open"], last["bytes"], last["total"]) == (False, 10, 1010)
    assert b"[muster: 1010 bytes lost " in desk.log(4).read_bytes()
    desk.successor().output.commit_gaps()
    assert desk.records[-1] is last, "told once"


def test_a_job_that_ends_inside_a_gap_leaves_the_line_to_others(desk, monkeypatch):
    desk.open()
    with monkeypatch.context() as patch:
        patch.setattr(os, "splice", _full)
        patch.setattr(os, "pwrite", _full)
        desk.write(4, b"x" * 1000)
        desk.drain()
        desk.drain()
        desk.output.drain()
        desk.output.commit_gaps()
        assert [record["open"] for record in desk.records] == [True], "another attempt may come"
        desk.output.drain(last=True)
    desk.output.commit_gaps()
    assert not desk.records[-1]["open"]
    assert desk.records[-1]["line"].startswith("[muster: 1000 bytes lost ")


def _in_its_place(log: Path, what: str) -> None:
    if what == "folder":
        log.mkdir()
    else:
        log.symlink_to("/dev/null")


@pytest.mark.parametrize("what", ["folder", "link"])
@pytest.mark.parametrize("who", ["the same supervisor", "a successor"])
def test_a_log_with_something_in_its_place_is_a_gap_of_that_rank_alone(desk, tmp_path, monkeypatch, what, who):
    monkeypatch.setattr(tee, "INDEX_INTERVAL_S", 0.0)
    monkeypatch.setattr(tee, "RETRY_S", 0.0)
    desk.open()
    desk.write(4, b"before\n")
    desk.drain()
    desk.log(4).unlink()
    _in_its_place(desk.log(4), what)
    if who == "a successor":
        desk.output.close()
        desk = Desk(tmp_path).open(fresh=False)
    desk.write(4, b"lost\n")
    desk.write(5, b"kept\n")
    for _ in range(3):
        desk.drain()
    desk.output.commit_gaps()
    record, warning = desk.records
    assert (record["rank"], record["bytes"], record["open"]) == (4, 5, True)
    assert record["error"] in ("Is a directory", "Too many levels of symbolic links")
    assert "the log of rank 4: somebody deleted the file" in warning["text"]
    assert desk.log(5).read_bytes() == b"kept\n"
    desk.log(4).rmdir() if what == "folder" else desk.log(4).unlink()
    desk.write(4, b"after\n")
    for _ in range(3):
        desk.drain()
    desk.output.commit_gaps()
    assert re.fullmatch(rb"\[muster: 5 bytes lost [^\n]*\]\nafter\n", desk.log(4).read_bytes())
    *_, closed = desk.records
    assert not closed["open"]
    (gone,) = removals(desk.log(4))
    assert (gone.start, gone.end, gone.lost) == (0, 7, True)
    desk.output.close()


def test_a_log_that_was_moved_is_written_on_while_nothing_can_take_its_place(desk, monkeypatch):
    """A folder of logs that is moved away and back loses nothing."""
    monkeypatch.setattr(tee, "INDEX_INTERVAL_S", 0.0)
    desk.open()
    desk.write(4, b"one\n")
    desk.drain()
    away = desk.root.log.with_name("away")
    desk.root.log.rename(away)
    desk.write(4, b"two\n")
    desk.drain()
    desk.output.commit_gaps()
    (record,) = desk.records
    assert record["kind"] == "warning"
    assert "output continued in its files" in record["text"]
    away.rename(desk.root.log)
    desk.write(4, b"three\n")
    desk.drain()
    assert desk.log(4).read_bytes() == b"one\ntwo\nthree\n"
    assert removals(desk.log(4)) == []


def test_a_log_deleted_right_before_its_supervisor_dies_is_recorded_as_lost(desk, tmp_path):
    desk.open()
    desk.write(4, b"x" * 5000)
    desk.drain()
    desk.log(4).unlink()
    desk.output.close()
    desk = Desk(tmp_path).open(fresh=False)
    desk.write(4, b"after\n")
    desk.drain()
    (gone,) = removals(desk.log(4))
    assert (gone.start, gone.end, gone.lost) == (0, 5000, True)
    assert desk.log(4).read_bytes() == b"after\n"
    assert desk.output.ends()[4] == 5006
    desk.output.close()


# --- the ranks' -------------------------------------------------------------------------------------------------------


def test_each_rank_has_a_file_of_its_own(desk):
    desk.open()
    desk.write(4, b"four\n")
    desk.write(5, b"five\n")
    desk.drain()
    assert (desk.log(4).read_text(), desk.log(5).read_text()) == ("four\n", "five\n")
    assert desk.output.ends() == {4: 5, 5: 5}
    assert len(desk.output.fds()) == 3, "the job's log is held by others too"


def test_attempts_are_kept_apart_in_the_same_files(desk):
    desk.open()
    desk.write(4, b"of the first")
    desk.output.drain()
    assert desk.output.ends() == {4: 12, 5: 0}
    fds = desk.output.fds()
    desk.open(fresh=False)
    assert desk.output.fds() == fds, "nothing is opened twice"
    desk.output.mark(desk.job.ranks, "attempt 1")
    desk.write(4, b"of the second\n")
    desk.drain()
    assert desk.log(4).read_text() == "of the first\n[muster: attempt 1]\nof the second\n"
    assert desk.log(5).read_text() == "[muster: attempt 1]\n"
    assert "attempt 1" not in desk.job_log, "which has lines that say more"


def test_a_successor_goes_on_with_the_existing_files(desk, tmp_path):
    desk.open()
    desk.write(4, b"one\n")
    desk.drain()
    held = [os.open(desk.paths.fifo(rank), os.O_RDWR | os.O_NONBLOCK) for rank in (4, 5)]
    desk.output.close()
    desk.write(4, b"two\n")  # while nobody drains
    os.unlink(desk.paths.fifo(5))  # drained to its end and put away
    second = Desk(tmp_path)
    second.output.open_job(US)
    second.output.open(second.job.ranks, US, fresh=False)
    assert second.output.ends() == {4: 4}
    second.drain()
    assert second.log(4).read_text() == "one\ntwo\n"
    second.output.close()
    for fd in held:
        os.close(fd)


def test_a_successor_of_one_that_had_put_everything_away_opens_no_rank(desk):
    desk.output.open_job(US)
    assert desk.output.open(desk.job.ranks, US, fresh=False) == desk.output.fds()
    assert desk.output.ends() == {}


def test_whose_the_output_is(desk):
    """By what is there: the job's user may not be known at this moment."""
    assert desk.output.owner(desk.job.ranks) is None
    os.mkfifo(desk.paths.job_fifo)
    assert desk.output.owner(desk.job.ranks) == US
    if os.geteuid() == 0:
        os.mkfifo(desk.paths.fifo(5))
        os.chown(desk.paths.fifo(5), 65534, 65533)
        assert desk.output.owner(desk.job.ranks) == (65534, 65533)


def test_fifos_are_the_jobs_users_alone(desk):
    desk.output.make_fifos(desk.job.ranks, US)
    for rank in (4, 5):
        found = desk.paths.fifo(rank).stat()
        assert stat.S_ISFIFO(found.st_mode)
        assert stat.S_IMODE(found.st_mode) == 0o600


def test_what_is_closed_is_no_longer_looked_at(desk):
    before = len(os.listdir("/proc/self/fd"))
    desk.open()
    desk.output.say("x")
    desk.output.close()
    assert (desk.callbacks, desk.output.fds()) == ({}, [])
    assert len(os.listdir("/proc/self/fd")) == before


# --- large logs -------------------------------------------------------------------------------------------------------

LINES = b"x" * 63 + b"\n"


def flood(desk: Desk, rank: int, count: int) -> None:
    """Lines of 64 bytes into a rank's log."""
    fd = os.open(desk.paths.fifo(rank), os.O_WRONLY | os.O_NONBLOCK)
    for start in range(0, count, 900):
        data = LINES * min(900, count - start)
        assert os.write(fd, data) == len(data)
        desk.drain()
    os.close(fd)


def spans(desk: Desk, rank: int) -> list[tuple[int, int]]:
    (layout,) = Folder(desk.root.log).look([desk.log(rank)])
    return [(piece.start, piece.end) for piece in layout.pieces]


@pytest.fixture
def busy(desk, monkeypatch) -> Desk:
    """Files are looked at with each batch, and so are the settings."""
    monkeypatch.setattr(tee, "INDEX_INTERVAL_S", 0.0)
    monkeypatch.setattr(settings_file, "LOOK_S", 0.0)
    desk.paths.folder.mkdir(parents=True, exist_ok=True)
    return cast(Desk, desk)


def limit(busy: Desk, **logs: int) -> None:
    """As the daemon's configuration says it."""
    settings_file.write(busy.root.settings, SupervisorSettings(LogSettings(**logs)))


def test_files_are_rotated_as_the_settings_say(busy):
    limit(busy, max_file_bytes=1 << 17)
    busy.open()
    flood(busy, 4, 5000)
    flood(busy, 5, 10)
    assert len(spans(busy, 4)) == 3
    assert len(spans(busy, 5)) == 1
    assert busy.output.ends() == {4: 320_000, 5: 640}, "an attempt ends where all of its output ends"
    limit(busy, max_file_bytes=0)
    flood(busy, 4, 5000)
    assert len(spans(busy, 4)) == 3
    busy.output.close()
    second = Desk(busy.root.log.parent)
    second.open(fresh=False)
    assert second.output.ends() == {4: 640_000, 5: 640}
    second.output.close()


def test_the_jobs_own_log_is_rotated_too(busy):
    limit(busy, max_file_bytes=1 << 16)
    busy.open()
    for n in range(1200):
        busy.output.say(f"{n:06} " + "y" * 60)
    busy.drain()
    (layout,) = Folder(busy.root.log).look([busy.root.job_log("j", 3)])
    assert len(layout.segments) == 1
    busy.output.say("the end")
    assert busy.job_log.endswith("the end\n")


def test_a_job_gives_up_its_oldest_output_for_its_limit(busy):
    limit(busy, max_job_bytes=1 << 20)
    busy.open()
    flood(busy, 5, 5000)
    for _ in range(5):
        flood(busy, 4, 10_000)
        on_disk = sum(p.stat().st_size for p in busy.root.log.iterdir() if p.suffix not in (".idx", ".removed"))
        assert on_disk <= 1 << 20
    first, last = spans(busy, 4)[0], spans(busy, 4)[-1]
    assert first[0] > 1 << 20
    assert last[1] == 5 * 640_000
    assert spans(busy, 5)[-1][1] == 320_000
    assert len(spans(busy, 5)) == 1, "another rank's are older"
    assert busy.output.ends() == {4: 3_200_000, 5: 320_000}


def test_where_another_removes_it_is_rotated_early_enough_and_all_is_kept(busy):
    """With a program that takes segments the daemon keeps the limit, of what was taken."""
    limit(busy, rotate_for_bytes=1 << 20)
    busy.open()
    flood(busy, 4, 30_000)
    found = spans(busy, 4)
    assert len(found) > 4
    assert max(end - start for start, end in found) < 1 << 19
    assert (found[0][0], found[-1][1]) == (0, 30_000 * 64)


def test_room_is_made_for_a_file_that_cannot_be_opened_without_descriptors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    def refused(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(LogFile, "open", refused)
    lacking = Desk(tmp_path / "lacking").open()
    assert lacking.room > 0
    error = OSError(errno.EACCES, os.strerror(errno.EACCES))
    assert Desk(tmp_path / "denied").open().room == 0, "descriptors mend no other error"
