import threading
import time

import anyio
import pytest

from muster.probes.calls.call_threads import Answer, CallFailure, CallThreads, Late
from tests.conftest import eventually


@pytest.fixture
def crew():
    crew = CallThreads("test crew")
    yield crew
    crew.close()


class Gate:
    """A call that waits until it is let through; `entered` is set once it waits."""

    def __init__(self, value="through"):
        self.value = value
        self.entered, self.open = threading.Event(), threading.Event()
        self.calls = 0
        self.began = 0.0

    def __call__(self):
        self.calls += 1
        self.began = time.monotonic()
        self.entered.set()
        assert self.open.wait(60)
        return self.value


async def test_one_thread_makes_all_calls(crew, monkeypatch):
    monkeypatch.setattr("muster.probes.calls.call_threads.PATIENCE_S", 60.0)  # however slow this machine is
    seen = set()

    def call(key):
        seen.add(threading.get_ident())
        return key * 10

    for _ in range(3):
        outcomes = await crew.run({key: lambda key=key: call(key) for key in range(64)}, 60)
        assert outcomes == {key: Answer(key * 10) for key in range(64)}
    assert len(seen) == 1 and crew.threads == 1 and not crew.busy


async def test_what_a_call_raises_is_its_own(crew):
    outcomes = await crew.run({"bad": lambda: 1 // 0, "good": lambda: 1}, 60)
    assert isinstance(outcomes["bad"], CallFailure) and isinstance(outcomes["bad"].error, ZeroDivisionError)
    assert outcomes["good"] == Answer(1)


async def test_a_call_that_hangs_keeps_a_thread_and_nothing_else(crew):
    gate, asked = Gate(), set()
    for limit in (1.0, 5.0, 30.0):  # the longer ones for a machine so busy that nobody answers within the first
        began = time.monotonic()
        outcomes = await crew.run({0: gate, 1: lambda: asked.add(1), 2: lambda: asked.add(2)}, limit)
        if outcomes[1] == outcomes[2] == Answer(None):
            break
    assert isinstance(outcomes[0], Late) and gate.calls == 1
    assert (outcomes[0].running_s or 0) >= began + limit - gate.began > 0
    assert outcomes[1] == outcomes[2] == Answer(None) and asked == {1, 2}
    # It has had its time: from now on it holds nobody up.
    with anyio.fail_after(60):
        outcomes = await crew.run({0: gate, 1: lambda: "there"}, 1.0)
    assert isinstance(outcomes[0], Late) and outcomes[1] == Answer("there")
    assert gate.calls == 1 and crew.busy
    gate.open.set()
    eventually(lambda: not crew.busy)
    gate.value = "again"
    assert (await crew.run({0: gate}, 60))[0] == Answer("again")
    assert eventually(lambda: crew.threads == 1)


async def test_who_has_more_time_waits_for_a_slow_call(crew):
    gate = Gate("slow")
    outcomes = await crew.run({0: gate}, 0.05)
    assert isinstance(outcomes[0], Late)
    threading.Timer(0.3, gate.open.set).start()
    assert (await crew.run({0: lambda: "second"}, 60))[0] == Answer("second")


async def test_all_hang_and_there_are_no_more_threads_than_keys(crew):
    gates = {key: Gate() for key in range(64)}
    try:
        outcomes = await crew.run(gates, 2.0)
        assert all(isinstance(outcome, Late) for outcome in outcomes.values())
        assert crew.threads <= 65
        for _ in range(3):
            await crew.run(gates, 0.6)
            await crew.run(dict(gates), 2.0)
        assert crew.threads <= 65 and all(gate.calls <= 1 for gate in gates.values())
    finally:
        for gate in gates.values():
            gate.open.set()
    eventually(lambda: crew.threads == 1)


async def test_two_kinds_of_calls_for_one_key_come_after_each_other(crew):
    gate, order = Gate(), []
    async with anyio.create_task_group() as group:

        async def first():
            await crew.run({"card": gate}, 60)
            order.append("first")

        async def second():
            await crew.run({"card": lambda: order.append("asked second")}, 60)

        group.start_soon(first)
        await anyio.to_thread.run_sync(gate.entered.wait, 60)
        group.start_soon(second)
        # Others are served meanwhile.
        assert (await crew.run({"other": lambda: 1}, 60))["other"] == Answer(1)
        assert order == []
        gate.open.set()
    assert "asked second" in order


async def test_a_cancelled_caller_takes_back_what_was_not_begun(crew):
    gate, asked = Gate(), []
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as group:
            group.start_soon(crew.run, {"card": gate}, 60)
            await anyio.to_thread.run_sync(gate.entered.wait, 60)
            group.start_soon(crew.run, {"card": lambda: asked.append(1)}, 60)
            await anyio.wait_all_tasks_blocked()
            scope.cancel()
    gate.open.set()
    assert (await crew.run({"card": lambda: 2}, 60))["card"] == Answer(2)
    assert asked == []


async def test_no_thread_to_be_had(crew, monkeypatch):
    def refuse(self):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        assert await crew.run({0: lambda: 1}, 0.2) == {0: Late(None)}
    assert await crew.run({0: lambda: 1}, 60) == {0: Answer(1)}


async def test_an_idle_thread_ends_when_the_pool_is_closed(crew):
    await crew.run({0: lambda: 1}, 60)
    assert [t for t in threading.enumerate() if t.name == "test crew" and t.daemon]
    crew.close()
    eventually(lambda: crew.threads == 0)


def test_a_call_that_hangs_outlives_the_loop_and_harms_nobody():
    crew, gate = CallThreads("test crew"), Gate()

    async def main():
        await crew.run({0: gate}, 0.05)

    anyio.run(main)
    gate.open.set()
    eventually(lambda: not crew.busy)
    crew.close()
    eventually(lambda: crew.threads == 0)


@pytest.mark.slow
async def test_a_call_may_ask_for_others_of_which_one_hangs(crew):
    """It is given the answers that there are in time; the one that hangs is asked nothing more until it is through."""
    gate, asked, began = Gate(), [], []

    def within(limit_s):
        began.append(time.monotonic())
        return crew.ask({"a": gate, "b": lambda: asked.append("b"), "c": lambda: 1 // 0}, limit_s)

    outcome = (await crew.run({"whole": lambda: within(4.0)}, 60))["whole"]
    assert isinstance(outcome, Answer)
    assert isinstance(outcome.value["a"], Late)
    assert (outcome.value["a"].running_s or 0) >= began[0] + 4.0 - gate.began > 0
    assert outcome.value["b"] == Answer(None) and isinstance(outcome.value["c"], CallFailure)
    outcome = (await crew.run({"whole": lambda: within(4.0)}, 60))["whole"]
    assert isinstance(outcome, Answer) and isinstance(outcome.value["a"], Late)
    assert gate.calls == 1 and asked == ["b", "b"]
    gate.open.set()
    eventually(lambda: not crew.busy)
    outcome = (await crew.run({"whole": lambda: within(60.0)}, 60))["whole"]
    assert isinstance(outcome, Answer) and outcome.value["a"] == Answer("through")
    eventually(lambda: crew.threads == 1)


async def test_a_call_that_asks_waits_for_no_patience(crew, monkeypatch):
    """There is a thread for what it asks at once: the one that asks makes none of it."""
    monkeypatch.setattr("muster.probes.calls.call_threads.PATIENCE_S", 600.0)
    with anyio.fail_after(60):
        outcome = (await crew.run({"whole": lambda: crew.ask({n: lambda n=n: n for n in range(64)}, 600.0)}, 600.0))[
            "whole"
        ]
    assert isinstance(outcome, Answer) and len(outcome.value) == 64
