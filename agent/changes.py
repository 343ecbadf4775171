"""One way to tell tasks that something has changed."""

import anyio


class Changes:
    """Counts changes and wakes the tasks that wait for one. Belongs to one event loop.

    A task that takes `count` before it looks and then waits for a change `beyond` that misses none, however many tasks
    wait. Changes that come while nobody waits count as one.
    """

    __slots__ = ("_event", "count")

    def __init__(self) -> None:
        self.count = 0
        self._event = anyio.Event()

    def tell(self) -> None:
        """Something has changed."""
        self.count += 1
        self._event.set()
        self._event = anyio.Event()

    async def beyond(self, seen: int) -> int:
        """Returns the present count, as soon as it is not `seen`."""
        while self.count == seen:
            await self._event.wait()
        return self.count

    async def next(self) -> int:
        """Returns the count after the next change from now on."""
        return await self.beyond(self.count)
