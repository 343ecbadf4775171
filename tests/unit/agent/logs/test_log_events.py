import re
import time

import anyio
import pytest

from muster.agent.errors import InvalidRequest
from muster.agent.events.event_store import Event, EventStore
from muster.agent.logs.log_events import PAGE, EventLines

T = 1_700_000_000


@pytest.fixture
async def store(tmp_path):
    store = await EventStore.open(tmp_path, 1 << 20)
    yield store
    await store.close()


def event(at: float, kind: str = "job.warning", job_id: str = "x", **fields):
    return None, Event(T + at, kind, job_id, **fields)


async def told(lines: EventLines, when: int | None = None) -> list[str]:
    """Without the local time."""
    found = []
    while some := await lines.take(when):
        found += [re.sub(r"^\S+ ", "", line.decode()) for line, _, _ in some]
    return found


async def test_only_what_the_jobs_log_does_not_say(store):
    store.append(
        [
            event(0, "job.accepted", message="accepted"),
            event(1, "job.checked"),
            event(2, "rank.exited"),
            event(2, "job.warning", message="two\nlines"),
            event(3, "job.hung", job_id="another"),
            event(3, "job.stopping", attributes={"cause": "requested"}),
            event(4, "job.stopping", attributes={"cause": "max_runtime"}, message="its time limit was reached"),
            event(5, "job.ended"),
            event(6, "node.drained", job_id=""),
        ]
    )
    mine = ["job.accepted: accepted\n", "job.warning: two lines\n", "job.stopping: its time limit was reached\n"]
    assert await told(EventLines(store, "x", "")) == mine
    node = await told(EventLines(store, "", ""))
    assert node == [f"x {line}" for line in mine[:2]] + ["another job.hung: \n", f"x {mine[2]}", "node.drained: \n"]


async def test_a_line_has_the_local_time(store):
    store.append([event(0.25, message="so")])
    [(line, at, _)] = await EventLines(store, "x", "").take()
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(T))
    assert (line, at) == (f"{stamp}.250 job.warning: so\n".encode(), (T * 1000 + 250) * 1_000_000)


async def test_by_time(store):
    store.append([event(i, message=str(i)) for i in range(10)])
    lines = EventLines(store, "x", "", since=(T + 2) * 10**9, until=(T + 7) * 10**9)
    assert await told(lines, (T + 3) * 10**9) == ["job.warning: 2\n", "job.warning: 3\n"]
    assert lines.more
    assert await told(lines) == [f"job.warning: {i}\n" for i in range(4, 8)]
    assert not lines.more


async def test_many_come_in_pages_and_a_cursor_goes_on_behind_each(store):
    store.append([event(i, message=str(i), job_id="x" if i % 3 else "y") for i in range(3 * PAGE)])
    lines, seen = EventLines(store, "x", ""), []
    while some := await lines.take():
        assert len(some) <= PAGE
        seen += some
        lines = EventLines(store, "x", some[-1][2])  # as after a lost connection
    assert [line.split()[-1] for line, _, _ in seen] == [b"%d" % i for i in range(3 * PAGE) if i % 3]


async def test_the_last_ones(store):
    store.append([event(i, message=str(i)) for i in range(2 * PAGE)])
    for count in (0, 1, 5):
        lines = EventLines(store, "x", "")
        await lines.last(count)
        assert await told(lines) == [f"job.warning: {i}\n" for i in range(2 * PAGE - count, 2 * PAGE)]
    store.append([event(i, message="later") for i in range(8)])
    assert len(await told(lines)) == 8


async def test_what_comes_later_is_seen(store):
    store.append([event(0)])
    lines = EventLines(store, "x", "")
    assert len(await told(lines)) == 1
    bookmark = lines.cursor
    store.append([event(1, job_id="y")])
    assert lines.more
    assert await told(lines) == []
    store.append([event(2, message="later")])
    assert await told(lines) == ["job.warning: later\n"]
    assert await told(EventLines(store, "x", bookmark)) == ["job.warning: later\n"]


async def test_what_is_no_longer_kept_is_passed_over(tmp_path):
    store = await EventStore.open(tmp_path, 1 << 14)
    store.append([event(0, message="first")])
    early = EventLines(store, "x", "")
    [(_, _, cursor)] = await early.take()
    async with anyio.create_task_group() as tasks:
        await tasks.start(store.run)
        while store.oldest_cursor().endswith("-0"):
            store.append([event(1, message="x" * 200) for _ in range(20)])
            await anyio.sleep(0.01)
        tasks.cancel_scope.cancel()
    store.append([event(2, message="last")])
    assert (await told(EventLines(store, "x", cursor)))[-1] == "job.warning: last\n"
    await store.close()


async def test_a_cursor_that_is_none_is_refused(store):
    with pytest.raises(InvalidRequest, match="cursor"):
        await EventLines(store, "x", "nonsense").take()
