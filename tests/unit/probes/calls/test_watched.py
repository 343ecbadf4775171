import threading

import anyio
import pytest

from muster.probes.calls import watched
from tests.unit.waiting import until


async def test_result_and_error_come_back():
    assert await watched.call("sum", lambda: 1 + 1) == 2
    with pytest.raises(ZeroDivisionError):
        await watched.call("division", lambda: 1 // 0)


async def test_an_abandoned_call_is_not_made_again_until_it_returns():
    release, runs = threading.Event(), []

    def hang():
        runs.append(1)
        release.wait(30)

    with anyio.move_on_after(0.1) as scope:
        await watched.call("hang", hang)
    assert scope.cancelled_caught
    with pytest.raises(watched.StillHanging, match="hang"):
        await watched.call("hang", hang)
    release.set()
    with anyio.fail_after(60):
        while True:
            try:
                await watched.call("hang", hang)
                break
            except watched.StillHanging:
                await anyio.sleep(0.01)
    assert len(runs) == 2


async def test_a_thread_whose_call_has_returned_makes_the_next_one():
    async def used(name):
        return await watched.call(name, lambda: (threading.get_ident(), threading.current_thread().name))

    found = [await used(f"call {number}") for number in range(20)]
    assert {name for _, name in found} == {f"probe call {number}" for number in range(20)}
    assert len({ident for ident, _ in found}) <= 2  # one may not rest yet when the next call comes


async def test_a_thread_that_hangs_makes_no_other_call_and_a_few_rest():
    release, idents = threading.Event(), []

    def hang():
        idents.append(threading.get_ident())
        release.wait(60)

    async with anyio.create_task_group() as tasks:
        for number in range(8):
            tasks.start_soon(watched.call, f"hang {number}", hang)
        await until(lambda: len(idents) == 8)
        other = await watched.call("other", threading.get_ident)
        release.set()
    assert len(set(idents)) == 8 and other not in idents
    await until(lambda: sum(thread.ident in idents for thread in threading.enumerate()) <= watched.RESTING)


async def test_a_thread_that_nobody_wants_ends(monkeypatch):
    monkeypatch.setattr(watched, "REST_S", 0.05)
    ident = await watched.call("once", threading.get_ident)
    await until(lambda: all(thread.ident != ident for thread in threading.enumerate()))
    assert await watched.call("again", lambda: 1) == 1


async def test_a_call_that_can_be_ended_leaves_nothing():
    release = threading.Event()
    with anyio.move_on_after(0.05):
        await watched.call("wait", lambda: release.wait(30), on_cancel=release.set, linger_s=5)
    assert await watched.call("wait", lambda: "again") == "again"


def test_a_hanging_call_does_not_keep_the_process_from_ending(monkeypatch):
    monkeypatch.setattr(watched, "REST_S", 0.05)
    release = threading.Event()

    async def main():
        with anyio.move_on_after(0.05):
            await watched.call("loop", lambda: release.wait(30))

    anyio.run(main)
    (thread,) = [t for t in threading.enumerate() if t.name == "probe loop"]
    assert thread.daemon
    release.set()  # it finds the loop closed, and says nothing
    thread.join(60)
    assert not thread.is_alive()


async def test_no_thread_to_be_had_is_an_oserror(monkeypatch):
    def refuse(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    release, errors = threading.Event(), []

    async def call(name):
        try:
            await watched.call(name, lambda: release.wait(60))
        except OSError as error:
            errors.append(str(error))
            release.set()

    async with anyio.create_task_group() as tasks:
        for number in range(watched.RESTING + 1):  # some may rest from before
            tasks.start_soon(call, f"thread {number}")
    assert errors and "can't start new thread" in errors[0]
