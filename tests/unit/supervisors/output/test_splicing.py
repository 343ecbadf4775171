"""Splices of several ranks, with a second thread and without."""

import _thread
import contextlib
import errno
import os
import select
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from muster.supervisors.output import splicing
from muster.supervisors.output.splicing import FLOOD, MUCH, Splice, Splicer

RANKS = 6
BLOCK = 1 << 16


class Pipes:
    """A pipe and a file for each rank."""

    def __init__(self, folder: Path) -> None:
        self.pipes = [os.pipe2(os.O_NONBLOCK) for _ in range(RANKS)]
        self.files = [os.open(folder / str(rank), os.O_RDWR | os.O_CREAT) for rank in range(RANKS)]
        self.written = [b""] * RANKS

    def close(self) -> None:
        for fd in [*self.files, *(fd for pipe in self.pipes for fd in pipe)]:
            os.close(fd)

    def fill(self, number: int, size: int = BLOCK) -> None:
        for rank, (_, write) in enumerate(self.pipes):
            data = (b"%d %d " % (rank, number) * size)[:size]
            assert os.write(write, data) == size
            self.written[rank] += data

    def splices(self) -> list[Splice]:
        return [
            Splice(read, file, os.fstat(file).st_size, BLOCK, 0, due=False)
            for (read, _), file in zip(self.pipes, self.files, strict=True)
        ]

    def flood(self, splicer: Splicer, rounds: int = FLOOD + 1, size: int = BLOCK) -> None:
        for number in range(rounds):
            self.fill(number, size)
            splices = self.splices()
            splicer.run(splices)
            assert [(splice.moved, splice.error) for splice in splices] == [(size, None)] * RANKS

    def check(self) -> None:
        for file, written in zip(self.files, self.written, strict=True):
            assert os.pread(file, len(written) + 1, 0) == written


@pytest.fixture
def pipes(tmp_path: Path) -> Iterator[Pipes]:
    made = Pipes(tmp_path)
    yield made
    made.close()


@pytest.fixture
def splicer() -> Iterator[Splicer]:
    made = Splicer()
    yield made
    made.end()


def threads() -> set[str]:
    """All of this process, by the kernel. Those of earlier tests may be about to end."""
    return set(os.listdir("/proc/self/task"))


def test_a_flood_gets_a_second_thread_and_every_byte_its_place(pipes, splicer):
    before = threads()
    pipes.flood(splicer, FLOOD)
    assert not splicer.helped
    pipes.flood(splicer, 200)
    assert splicer.helped
    assert len(threads() - before) == 1
    pipes.check()


def test_little_output_gets_none(pipes, splicer):
    pipes.flood(splicer, 50, MUCH - 1)
    assert not splicer.helped
    pipes.check()


def test_an_empty_pipe_and_a_file_that_refuses_concern_their_log_alone(pipes, splicer):
    pipes.flood(splicer)
    assert splicer.helped
    pipes.fill(9)
    splices = pipes.splices()
    os.read(splices[1].source, BLOCK)  # now there is nothing
    read_only = os.open(f"/proc/self/fd/{splices[4].target}", os.O_RDONLY)
    splices[4].target = read_only
    splicer.run(splices)
    os.close(read_only)
    assert isinstance(splices[1].error, BlockingIOError)
    assert splices[4].error is not None and splices[4].error.errno == errno.EBADF
    assert [splice.moved for splice in splices] == [BLOCK, 0, BLOCK, BLOCK, 0, BLOCK]


def test_before_a_fork_the_thread_is_ended_and_comes_back(pipes, splicer):
    pipes.flood(splicer)
    assert splicer.helped
    pid = os.fork()
    if pid == 0:
        code = 1
        with contextlib.suppress(BaseException):
            alone = len(threads()) == 1 and not splicer.helped
            pipes.flood(splicer, 1)
            code = 0 if alone else 2
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert not splicer.helped
    for rank, file in enumerate(pipes.files):  # the child's round
        pipes.written[rank] = os.pread(file, 1 << 30, 0)
    pipes.flood(splicer)
    assert splicer.helped
    pipes.check()


def test_at_rest_it_is_ended(pipes, splicer, monkeypatch):
    monkeypatch.setattr(splicing, "REST_S", 600.0)
    pipes.flood(splicer)
    splicer.rest()
    assert splicer.helped  # just now there was a flood
    monkeypatch.setattr(splicing, "REST_S", 0.0)
    splicer.rest()
    assert not splicer.helped


@pytest.mark.parametrize("refusal", [RuntimeError("can't start new thread"), MemoryError()])
def test_where_no_thread_can_be_started_one_does_it_all(pipes, splicer, monkeypatch, refusal):
    def refuse(*_: object) -> None:
        raise refusal

    monkeypatch.setattr(_thread, "start_new_thread", refuse)
    pipes.flood(splicer, 20)
    assert not splicer.helped
    pipes.check()


def test_a_thread_that_never_begins_holds_nothing_up(pipes, splicer, monkeypatch):
    """Without memory, a new thread ends before its first instruction, and nobody learns it."""
    begun: list[Callable[[], None]] = []
    monkeypatch.setattr(_thread, "start_new_thread", lambda call, args: begun.append(lambda: call(*args)))
    monkeypatch.setattr(splicing, "BEGIN_S", 0.01)
    pipes.flood(splicer, 20)
    assert splicer.helped and begun
    splicer.end()
    assert not splicer.helped
    pipes.flood(splicer, 20)
    splicer.end()
    for late in begun:  # it returns at once
        late()
    monkeypatch.undo()
    pipes.flood(splicer, 20)
    assert splicer.helped
    pipes.check()


def test_a_thread_that_fails_leaves_its_splice_to_the_next_round(pipes, splicer, monkeypatch):
    pipes.flood(splicer, 50)
    first = threading.get_ident()
    run = Splice.run

    def fails(splice: Splice) -> None:
        if threading.get_ident() != first:
            raise MemoryError
        run(splice)

    monkeypatch.setattr(Splice, "run", fails)
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    for number in range(50):
        pipes.fill(number)
        while any(select.select([read], [], [], 0)[0] for read, _ in pipes.pipes):
            splicer.run(pipes.splices())
    splicer.end()
    pipes.check()
