"""Work in threads, where the node has none to give for a while."""

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import anyio
import pytest
from anyio.abc import TaskGroup

from muster.agent import threads


@pytest.fixture
def none(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often no thread is to be had, from now on."""
    left = [0]
    start = threading.Thread.start

    def starts(thread: threading.Thread) -> None:
        if left[0]:
            left[0] -= 1
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", starts)
    return left


async def test_work_waits_for_a_thread(none: list[int]) -> None:
    none[0] = 3
    pool = threads.Pool(1)
    assert await pool.run(pow, 2, 5) == 32
    assert none[0] == 0 and await pool.run(pow, 2, 6) == 64


async def test_a_caller_that_cannot_wait_goes(none: list[int]) -> None:
    none[0] = 1 << 30
    with anyio.move_on_after(0.1) as scope:
        await threads.run(pow, 2, 5)
    assert scope.cancelled_caught
    none[0] = 0
    assert await threads.run(pow, 2, 5) == 32


async def test_what_the_work_raises_is_its_own(none: list[int]) -> None:
    calls = []

    def work() -> None:
        calls.append(1)
        raise RuntimeError("can't start new thread")

    with pytest.raises(RuntimeError, match="start new thread"):
        await threads.run(work)
    assert len(calls) == 1


async def test_what_must_not_wait_is_done_on_the_loop(none: list[int]) -> None:
    none[0] = 1 << 30
    with anyio.fail_after(60):
        at = await threads.run(threading.get_ident, here_after=0.1)
    assert at == threading.get_ident()
    none[0] = 0
    assert await threads.run(threading.get_ident, here_after=0.1) != threading.get_ident()


async def test_on_the_loop_too_what_the_work_raises_is_its_own(none: list[int]) -> None:
    none[0] = 1 << 30
    with anyio.fail_after(60), pytest.raises(ZeroDivisionError):
        await threads.run(divmod, 1, 0, here_after=0.1)


@asynccontextmanager
async def rounds() -> AsyncIterator[tuple[threads.Rounds, TaskGroup]]:
    made = threads.Rounds("looks")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(made.run)
        yield made, tasks
        tasks.cancel_scope.cancel()


class Heard(list[object]):
    """What looks have said."""

    def __init__(self) -> None:
        super().__init__()
        self.news = anyio.Event()

    def __call__(self, said: object) -> None:
        self.append(said)
        self.news.set()

    async def next(self) -> None:
        with anyio.fail_after(30):
            await self.news.wait()
        self.news = anyio.Event()


async def test_looks_of_a_round_are_made_again_and_again_in_a_thread():
    makers, heard = set(), Heard()

    def look() -> int:
        makers.add(threading.get_ident())
        return len(heard)

    async with rounds() as (made, tasks):
        for _ in range(20):
            tasks.start_soon(made.join, look, heard, lambda: 0.02)
        while len(heard) < 60:
            await heard.next()
    assert threading.get_ident() not in makers


async def test_a_look_that_hangs_holds_up_no_other():
    let_go, hangs, heard, late = threading.Event(), threading.Event(), Heard(), Heard()

    def hang() -> str:
        hangs.set()
        let_go.wait(60)
        return "after all"

    async with rounds() as (made, tasks):
        tasks.start_soon(made.join, hang, late, lambda: 0.05)
        await anyio.to_thread.run_sync(hangs.wait, 30)
        tasks.start_soon(made.join, lambda: "well", heard, lambda: 0.05)
        for _ in range(3):
            await heard.next()
        assert not late
        let_go.set()
        await late.next()  # its next look, as nobody waited for the one that hung


async def test_who_leaves_a_round_hears_nothing_more():
    heard, other = Heard(), Heard()
    async with rounds() as (made, tasks):
        tasks.start_soon(made.join, lambda: "other", other, lambda: 0.02)
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:
                group.start_soon(made.join, lambda: "mine", heard, lambda: 0.02)
                await heard.next()
                scope.cancel()
        count = len(heard)
        for _ in range(3):
            await other.next()
        assert len(heard) == count


@pytest.mark.parametrize("where", ["look", "take"])
async def test_a_defect_of_a_look_is_that_of_who_asked(where: str):
    heard = Heard()

    def fails(*_: object) -> None:
        raise ZeroDivisionError("a defect")

    look, take = (fails, heard) if where == "look" else (lambda: 1, fails)
    async with rounds() as (made, tasks):
        tasks.start_soon(made.join, lambda: "well", heard, lambda: 0.02)
        with pytest.raises(ZeroDivisionError), anyio.fail_after(30):
            await made.join(look, take, lambda: 0.02)
        heard.news = anyio.Event()
        await heard.next()  # the others go on


async def test_an_answer_that_comes_soon_is_waited_for(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(threads, "SOON_S", 60.0)
    thread, heard, makers = threads.InOrder("asked"), Heard(), set[int]()

    def piece(number: int) -> int:
        makers.add(threading.get_ident())
        return number

    for number in range(50):
        thread.ask(partial(piece, number), heard)
        while len(heard) == number:  # the thread may not have said yet that it is done with the one before
            await heard.next()
    assert heard == list(range(50)) and threading.get_ident() not in makers
    assert thread.settle(30)
    thread.ask(partial(piece, 50), heard)
    assert heard[-1] == 50, "it waits here, and in no turn of the loop"


async def test_an_answer_that_is_late_comes_in_a_later_turn():
    thread, heard, let_go = threads.InOrder("asked"), Heard(), threading.Event()

    def hang() -> str:
        let_go.wait(60)
        return "late"

    thread.ask(hang, heard)
    assert not heard
    let_go.set()
    await heard.next()
    assert heard == ["late"] and await thread.settled(30)
    thread.ask(lambda: "next", heard)
    assert heard == ["late"], "behind a late one nobody waits"
    await heard.next()
    assert heard == ["late", "next"]


async def test_an_answer_comes_when_there_is_a_thread_again(none: list[int]):
    none[0] = 1
    thread, heard = threads.InOrder("asked"), Heard()
    thread.ask(lambda: "after all", heard)
    assert not heard
    thread.poke()
    await heard.next()
    assert heard == ["after all"]


async def test_an_answer_that_comes_as_the_loop_gives_up_is_given_once(monkeypatch: pytest.MonkeyPatch):
    asking, let_go, heard = threading.get_ident(), threading.Event(), Heard()
    made = threading.Lock

    class Paused:
        """A lock behind which the loop's thread stands still until the other one is done."""

        def __init__(self) -> None:
            self._lock = made()
            self.acquire, self.release = self._lock.acquire, self._lock.release

        def __enter__(self) -> None:
            self._lock.acquire()

        def __exit__(self, *_: object) -> None:
            self._lock.release()
            if threading.get_ident() == asking and not let_go.is_set():
                monkeypatch.undo()
                let_go.set()
                assert thread.settle(30)

    thread = threads.InOrder("asked")
    thread.hand(lambda: None)
    assert thread.settle(30)
    monkeypatch.setattr(threading, "Lock", Paused)
    thread.ask(lambda: let_go.wait(30), heard)
    for _ in range(10):
        await anyio.lowlevel.checkpoint()
    assert heard == [True]


async def test_who_is_patient_waits_for_no_answer(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(threads, "SOON_S", 60.0)
    thread, heard = threads.InOrder("asked"), Heard()
    thread.ask(lambda: "later", heard, patient=True)
    assert not heard
    await heard.next()
    assert heard == ["later"]
