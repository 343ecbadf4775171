"""Turns of streams: one party does not keep another waiting."""

import anyio
import anyio.lowlevel
import pytest

from muster.agent.host import turns
from muster.agent.host.turns import PARTY, Party, Turns
from tests.unit.waiting import until

READERS, OTHERS, OPERATORS = Party("readers", True), Party("tls", True), Party("operators")


class Row:
    """Streams that want their turn, in the order in which they asked; `done` is the order in which they had it."""

    def __init__(self, of: Turns) -> None:
        self.turns = of
        self.done: list[str] = []

    async def have(self, party: Party, name: str, work: float = 0.0) -> None:
        PARTY.set(party)
        async with self.turns.turn():
            self.done.append(name)
            await anyio.sleep(work)


async def test_parties_have_their_turns_one_after_the_other() -> None:
    row = Row(Turns())
    async with anyio.create_task_group() as tasks, row.turns.turn():
        for number in range(5):
            tasks.start_soon(row.have, READERS, f"r{number}")
        await anyio.wait_all_tasks_blocked()
        tasks.start_soon(row.have, OPERATORS, "o0")
        tasks.start_soon(row.have, OPERATORS, "o1")
        await anyio.wait_all_tasks_blocked()
    assert row.done == ["r0", "o0", "r1", "o1", "r2", "r3", "r4"]


@pytest.mark.parametrize("pauses", [False, True])
async def test_a_caller_that_leaves_passes_the_turn_on(pauses: bool) -> None:
    row = Row(Turns(pauses=pauses))
    async with anyio.create_task_group() as tasks:
        async with row.turns.turn(), anyio.create_task_group() as leaving:
            leaving.start_soon(row.have, READERS, "cancelled while it waits")
            await anyio.wait_all_tasks_blocked()
            leaving.cancel_scope.cancel()
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as inner:
                inner.start_soon(row.have, READERS, "cancelled while it works", 600.0)
                await until(lambda: row.done)  # a pause comes before the turn
                tasks.start_soon(row.have, OTHERS, "next")
                scope.cancel()
    assert row.done == ["cancelled while it works", "next"]


async def test_a_turn_that_lasts_too_long_is_over_and_its_end_ends_no_other() -> None:
    """A client that does not read, say."""
    row = Row(Turns(pauses=True))
    reads = anyio.Event()
    running = most = 0

    async def stuck() -> None:
        async with row.turns.turn():
            await reads.wait()

    async def other() -> None:
        nonlocal running, most
        async with row.turns.turn():
            running += 1
            most = max(most, running)
            reads.set()
            await anyio.lowlevel.checkpoint()
            running -= 1

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stuck)
            await anyio.wait_all_tasks_blocked()
            for _ in range(20):
                tasks.start_soon(other)
    assert most == 1


async def test_behind_a_turn_of_readers_the_loop_is_free_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the machine is like, readers work at most half of the time."""
    monkeypatch.setattr(turns, "HOLD_S", 600.0)
    row = Row(Turns(pauses=True))
    began = anyio.current_time()
    async with anyio.create_task_group() as tasks:
        for number in range(4):
            tasks.start_soon(row.have, READERS, str(number), 0.02)
    assert anyio.current_time() - began >= 4 * 0.02 + 3 * 0.02
    assert row.done == ["0", "1", "2", "3"]


async def test_operators_send_without_a_turn() -> None:
    async def hold() -> None:
        PARTY.set(READERS)
        async with turns.sending():
            await anyio.sleep_forever()

    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(hold)
        await anyio.wait_all_tasks_blocked()
        with anyio.fail_after(60):
            async with turns.sending(), turns.sending():
                assert await turns.in_turn(lambda: 7) == 7
        tasks.cancel_scope.cancel()
