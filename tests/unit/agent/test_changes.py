"""How tasks learn of changes."""

import anyio

from muster.agent.changes import Changes


async def test_a_change_wakes_all_who_wait() -> None:
    changes, seen = Changes(), list[int]()

    async def wait() -> None:
        seen.append(await changes.next())

    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        assert seen == []
        changes.tell()
    assert seen == [1, 1, 1]


async def test_a_change_before_the_wait_is_not_missed() -> None:
    changes = Changes()
    before = changes.count
    changes.tell()
    changes.tell()
    with anyio.fail_after(60):
        assert await changes.beyond(before) == 2


async def test_who_waits_for_the_next_one_is_not_woken_by_those_before() -> None:
    changes = Changes()
    changes.tell()
    with anyio.move_on_after(0) as over:
        await changes.next()
    assert over.cancelled_caught
