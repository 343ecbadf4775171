"""Work in threads, where the node has none to give for a while."""

import threading

import anyio
import pytest

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
