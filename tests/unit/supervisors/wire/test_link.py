import os
import socket
from collections.abc import Callable
from typing import Any

import pytest

from muster.supervisors.system.loop import Loop
from muster.supervisors.wire import messages as wire
from muster.supervisors.wire.link import FDS, NurseryLink, pair
from tests.unit.supervision import in_own_process, until


class Nursery:
    """The other end: reads when it likes."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.heard: list[wire.Message] = []
        self.fds: list[int] = []
        #: What came of its words at the supervisor's end.
        self.told: list[tuple[int, int]] = []

    def listen(self) -> bool:
        """Takes one message, if there is one."""
        try:
            data, fds, _, _ = socket.recv_fds(self.sock, wire.MAX_LINE * 2, FDS)
        except BlockingIOError:
            return False
        self.fds += fds
        if data:
            self.heard.append(wire.decode(data))
        return bool(data)

    def listen_to_all(self) -> None:
        while self.listen():
            pass


def linked(story: Callable[[Loop, NurseryLink, Nursery], Any]) -> Any:
    def work() -> Any:
        ours, theirs = pair()
        loop = Loop(lambda _: None)
        nursery = Nursery(ours)
        link = NurseryLink(loop, theirs)
        link.on_ended = lambda pid, status: nursery.told.append((pid, status))
        return story(loop, link, nursery)

    return in_own_process(work)


def turn(loop: Loop) -> None:
    """One batch of the loop at least."""
    loop.later(0.001, loop.stop)
    loop.run()


def test_messages_keep_their_borders_and_their_order():
    def story(loop: Loop, link: NurseryLink, nursery: Nursery) -> Any:
        link.tell("ready")
        link.tell("ranks", pids=[1, 2])
        link.tell("reap", pid=1)
        link.tell("done")
        nursery.listen_to_all()
        return nursery.heard

    assert linked(story) == [
        {"op": "ready"}, {"op": "ranks", "pids": [1, 2]}, {"op": "reap", "pid": 1}, {"op": "done"},
    ]  # fmt: skip


def _lasts(count: int) -> list[bool]:
    messages = -(-count // FDS)
    return [i == messages - 1 for i in range(messages)]


@pytest.mark.parametrize("count", [0, 1, FDS, FDS + 1, 3 * FDS])
def test_descriptors_come_as_many_as_they_are(count):
    def story(loop: Loop, link: NurseryLink, nursery: Nursery) -> Any:
        read, _ = os.pipe()
        link.hold([read] * count)
        nursery.listen_to_all()
        same = all(os.fstat(fd).st_ino == os.fstat(read).st_ino for fd in nursery.fds)
        return [len(nursery.fds), [m["last"] for m in nursery.heard], same]

    assert linked(story) == [count, _lasts(count), True]


def test_the_biggest_job_fits_into_one_message():
    def story(loop: Loop, link: NurseryLink, nursery: Nursery) -> Any:
        pids = list(range(4194304 - 4096, 4194304))  # pid_max of 64-bit Linux; spec.MAX_RANKS
        link.tell("ranks", pids=pids)
        nursery.listen_to_all()
        return nursery.heard[0]["pids"] == pids

    assert linked(story) is True


def test_a_nursery_that_does_not_read_holds_nobody_up_and_misses_nothing():
    def story(loop: Loop, link: NurseryLink, nursery: Nursery) -> Any:
        for i in range(5000):
            link.tell("reap", pid=i)
        turn(loop)
        waiting = len(link.queue)
        heard = 0
        while heard < 5000:
            nursery.listen_to_all()
            turn(loop)
            assert len(nursery.heard) > heard, "the loop sends on when there is room"
            heard = len(nursery.heard)
        return [waiting > 0, [m["pid"] for m in nursery.heard] == list(range(5000)), len(link.queue)]

    assert linked(story) == [True, True, 0]


def test_what_the_nursery_says_of_ended_ranks_is_heard():
    def story(loop: Loop, link: NurseryLink, nursery: Nursery) -> Any:
        for word in (
            {"op": "ended", "pid": 7, "status": 0x700},
            {"op": "later"},
            {"op": "ended", "pid": 8, "status": 9},
        ):
            nursery.sock.send(wire.encode(word))
        nursery.sock.close()
        turn(loop)
        return nursery.told

    assert linked(story) == [[7, 0x700], [8, 9]]


def test_an_idle_link_does_not_keep_the_loop_busy():
    def story(loop: Loop, link: NurseryLink, nursery: Nursery) -> Any:
        link.tell("ready")
        batches = [0]

        def count() -> None:
            batches[0] += 1

        loop.after = count
        loop.later(0.05, loop.stop)
        loop.run()
        nursery.sock.close()
        loop.later(0.05, loop.stop)
        loop.run()
        return batches[0]

    assert linked(story) < 10


def test_a_dead_nursery_gets_nothing_and_the_job_goes_on():
    def story(loop: Loop, link: NurseryLink, nursery: Nursery) -> Any:
        nursery.sock.close()
        link.tell("ready")
        turn(loop)
        link.hold([0])
        link.tell("done")
        turn(loop)
        return len(link.queue)

    assert linked(story) == 0


def test_a_nursery_that_goes_while_much_is_waiting():
    def story(loop: Loop, link: NurseryLink, nursery: Nursery) -> Any:
        for i in range(5000):
            link.tell("reap", pid=i)
        nursery.sock.close()
        turn(loop)
        link.tell("done")
        return len(link.queue)

    assert linked(story) == 0


def test_descriptors_may_be_closed_as_soon_as_they_were_told():
    """A log that is put away while the nursery is slow must not cost it the messages behind."""

    def story(loop: Loop, link: NurseryLink, nursery: Nursery) -> Any:
        while not link.queue:
            link.tell("reap", pid=1)
        read, _ = os.pipe()
        inode = os.fstat(read).st_ino
        link.hold([read])
        os.close(read)
        link.tell("done")

        def last() -> bool:
            nursery.listen_to_all()
            turn(loop)
            return bool(nursery.heard[-1]["op"] == "done")

        until(last, "the word 'done'", seconds=1)
        return [os.fstat(fd).st_ino == inode for fd in nursery.fds]

    assert linked(story) == [True]
