"""Searches pieces of logs with several processes: the command itself, and as many as there are more CPUs.

The others are a help and nothing more. One that cannot be started, has died or does not answer costs time: what it was
given is searched by the command. What was found comes through memory that they share, a byte each way says where, so a
process that is killed leaves no half of an answer, and none that waits for the command holds up the command.
"""

import contextlib
import fcntl
import marshal
import os
import select
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import muster
from muster.agent.logs.line_filter import LineMatch
from muster.agent.logs.pieces import piece_search
from muster.agent.logs.pieces.piece_search import HEADER, READY, Found, Piece

#: Other processes at most: beyond that the command, which writes what they find, is the slowest.
MOST_WORKERS = 7
#: Pieces that each of them has at a time, so that it need not wait for the next; and results that the command holds.
_GIVEN, _OWN = 2, 2
#: How long the command waits for a piece that another process has: so many seconds, or so many times as long as the
#: longest of its own took.
PATIENCE_S, PATIENCE_PIECES = 1.0, 20.0
#: What a process runs; the arguments are the folder of our package and those of `main`.
_PROGRAM = (
    "import sys; sys.path.append(sys.argv[1]); from muster.agent.logs.pieces import piece_search;"
    "piece_search.main(int(sys.argv[2]), int(sys.argv[3]))"
)


class _Task:
    """A piece on its way."""

    def __init__(self, piece: Piece, place: int = 0) -> None:
        """`place`: in the memory, of one that another process has."""
        self.piece, self.place = piece, place
        self.done = self.lost = False
        self.found: Found | None = None


class _Worker:
    """A process that searches. `places`: those that are free, once it can search; `tasks`: what it has, by place."""

    def __init__(self, memory: int, size: int, places: tuple[int, ...]) -> None:
        """Raises OSError."""
        self.all_places = places
        self.places: list[int] = []
        self.tasks: dict[int, _Task] = {}
        # Whatever it does, also in the middle of an expression that takes years: it ends with the command, because the
        # kernel sends this signal when nobody holds the other end any more.
        ends, self._life = os.pipe()
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-B", "-c", _PROGRAM, _our_folder(), str(memory), str(size)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=ends, pass_fds=(memory,), bufsize=0,
            )  # fmt: skip
        except BaseException:
            os.close(self._life)
            os.close(ends)
            raise
        with contextlib.suppress(OSError):
            fcntl.fcntl(ends, fcntl.F_SETOWN, self.process.pid)
            fcntl.fcntl(ends, fcntl.F_SETSIG, signal.SIGKILL)
            fcntl.fcntl(ends, fcntl.F_SETFL, os.O_ASYNC)
        os.close(ends)
        assert self.process.stdin is not None and self.process.stdout is not None
        self.asks, self.answers = self.process.stdin.fileno(), self.process.stdout.fileno()

    def kill(self) -> None:
        """Waits for its end, but not for a disk that hangs."""
        self.process.kill()
        os.close(self._life)
        for end in (self.process.stdin, self.process.stdout):
            assert end is not None
            end.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(PATIENCE_S)


class SearchPool:
    """The command and its helpers. Helpers live until `close`."""

    def __init__(self, match: LineMatch, *, block: int, piece: int) -> None:
        """`block`: bytes that are read at once; `piece`: bytes of the largest piece. Starts nothing yet."""
        self._match, self._block = match, block
        self._size = HEADER + piece
        self._memory = -1
        #: By the descriptor of their answers.
        self.workers: dict[int, _Worker] = {}
        #: Pieces that they have searched.
        self.helped = 0
        #: Processes that were started or tried to; all that may be, where one has failed.
        self._started = 0
        self._poll = select.poll()
        #: Seconds that the longest of the command's own pieces took.
        self._longest = 0.0

    def start(self, count: int) -> None:
        """Has so many processes, if they can be started and none has failed before."""
        try:
            while self._started < min(count, MOST_WORKERS):
                first = 1 + self._started * _GIVEN
                self._started += 1
                if self._memory < 0:
                    self._memory = os.memfd_create("muster-logs")
                    settings = piece_search.settings(self._match, self._block)
                    if not sys.executable or len(settings) > self._size:
                        raise OSError
                    piece_search.put(self._memory, settings, 0)
                os.ftruncate(self._memory, (first + _GIVEN) * self._size)
                worker = _Worker(self._memory, self._size, tuple(range(first, first + _GIVEN)))
                self.workers[worker.answers] = worker
                self._poll.register(worker.answers, select.POLLIN)
        except (OSError, AttributeError):
            self._started = MOST_WORKERS  # the command goes on with those that there are

    def close(self) -> None:
        """Ends the other processes."""
        for worker in list(self.workers.values()):
            self._drop(worker)
        if self._memory >= 0:
            os.close(self._memory)
            self._memory = -1

    def results(self, pieces: Iterator[Piece]) -> Iterator[tuple[Piece, Found | None]]:
        """What is found in each piece, in order; None: see piece_search.search."""
        tasks: deque[_Task] = deque()
        more = True
        while more or tasks:
            for worker in list(self.workers.values()):
                while more and worker.places:
                    piece = next(pieces, None)
                    if piece is None:
                        more = False
                    else:
                        tasks.append(self._give(worker, piece))
            self._collect(0)
            if tasks and (tasks[0].done or tasks[0].lost):
                task = tasks.popleft()
                if task.lost:
                    self._search(task)
                yield task.piece, task.found
            elif more and sum(not task.place for task in tasks) < _OWN:
                piece = next(pieces, None)
                if piece is None:
                    more = False
                else:
                    tasks.append(_Task(piece))
                    self._search(tasks[-1])
            elif tasks:
                self._await(tasks[0])

    def _search(self, task: _Task) -> None:
        began = time.monotonic()
        task.found = piece_search.search(task.piece, self._match, self._block)
        self._longest = max(self._longest, time.monotonic() - began)
        task.done = True

    def _give(self, worker: _Worker, piece: Piece) -> _Task:
        task = _Task(piece, worker.places.pop())
        data = marshal.dumps(piece)
        if len(data) > HEADER:
            task.lost = True
            worker.places.append(task.place)
            return task
        try:
            piece_search.put(self._memory, data, task.place * self._size)
            worker.tasks[task.place] = task
            os.write(worker.asks, bytes([task.place]))
        except OSError:
            task.lost = True
            self._drop(worker)
        return task

    def _await(self, task: _Task) -> None:
        """Until it was searched, or is to be searched by the command."""
        until = time.monotonic() + max(PATIENCE_S, PATIENCE_PIECES * self._longest)
        while not (task.done or task.lost):
            if (left := until - time.monotonic()) <= 0:
                self._drop(next(each for each in self.workers.values() if each.tasks.get(task.place) is task))
            else:
                self._collect(left)

    def _collect(self, seconds: float) -> None:
        """Takes answers, the first of which it awaits for so long."""
        if not self.workers:
            return
        for fd, _ in self._poll.poll(seconds * 1000):
            worker = self.workers[fd]
            try:
                answers = os.read(fd, 64)
                for number in answers:
                    if number == READY[0]:
                        worker.places = list(worker.all_places)
                    else:
                        self._take(worker, number)
            except (OSError, KeyError):
                answers = b""
            if not answers:
                self._drop(worker)

    def _take(self, worker: _Worker, place: int) -> None:
        """What a process found. Raises OSError."""
        at = place * self._size
        sizes = marshal.loads(os.pread(self._memory, HEADER, at))
        task = worker.tasks.pop(place)
        if sizes is not None:
            head, lines, tail = (self._get(at + HEADER + sum(sizes[:n]), size) for n, size in enumerate(sizes))
            task.found = head, [lines] if lines else [], tail
        task.done = True
        worker.places.append(place)
        self.helped += 1

    def _get(self, position: int, size: int) -> bytes:
        data = os.pread(self._memory, size, position) if size else b""
        if len(data) != size:
            raise OSError
        return data

    def _drop(self, worker: _Worker) -> None:
        """Ends a process. The command searches what it has, and starts no other."""
        self._started = MOST_WORKERS
        if self.workers.pop(worker.answers, None) is None:
            return
        self._poll.unregister(worker.answers)
        for task in worker.tasks.values():
            task.lost = not task.done
        worker.places = []
        worker.kill()


def helpers() -> int:
    """How many other processes can search at the same time."""
    return min(len(os.sched_getaffinity(0)) - 1, MOST_WORKERS)


def _our_folder() -> str:
    """Where our package is."""
    return str(Path(muster.__file__).parents[1])
