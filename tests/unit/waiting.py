"""Waiting for what sends no event: files, other threads, other tasks. The limit is for defects."""

from collections.abc import Callable
from typing import Any

import anyio

#: Seconds after which something that was to happen is said never to happen.
LIMIT_S = 60.0


async def until(look: Callable[[], Any], seconds: float = LIMIT_S) -> None:
    """Returns once `look` gives something true. Raises TimeoutError."""
    with anyio.fail_after(seconds):
        while not look():  # noqa: ASYNC110 - what is looked at sends no event
            await anyio.sleep(0.005)
