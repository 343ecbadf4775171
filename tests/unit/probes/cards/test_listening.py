"""The thread that waits for a driver's events."""

import threading
import time

import anyio
import anyio.to_thread

from muster.probes.cards.listening import Listening


class Driver:
    """A driver whose wait is over once it is `let`; `inside`: somebody waits."""

    def __init__(self):
        self.let, self.inside = threading.Event(), threading.Event()

    def wait_events(self, timeout_s):
        self.inside.set()
        self.let.wait(60)
        self.inside.clear()
        return []


async def heard(listening, driver):
    """Somebody has begun to listen, and is not there any more."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(listening.next, driver)
        assert await anyio.to_thread.run_sync(driver.inside.wait, 60)
        tasks.cancel_scope.cancel()


async def test_after_a_close_nobody_is_in_the_library():
    listening, driver = Listening(), Driver()
    await heard(listening, driver)
    threading.Timer(0.05, driver.let.set).start()
    await listening.close(60)
    assert driver.let.is_set() and not driver.inside.is_set()


async def test_a_close_does_not_wait_for_a_library_that_hangs():
    listening, driver = Listening(), Driver()
    await heard(listening, driver)
    began = time.monotonic()
    await listening.close(0.05)
    assert time.monotonic() - began < 30 and driver.inside.is_set()
    driver.let.set()


async def test_a_close_where_nobody_ever_listened():
    await Listening().close(60)
