"""The daemon as PID 1: orphans of the whole container come to it, and it waits for them.

Mostly these are a container's own. Those of muster come only where a nursery, which is a subreaper, was killed: its
supervisors, and ranks whose supervisor was killed too. Such a rank stays a zombie until a successor has written down
how it ended: the zombie is the only record of that (ARCHITECTURE.md, "The zombie is the durable record").
"""

import os
from typing import TYPE_CHECKING

import anyio

from probes import children
from supervisors import process

if TYPE_CHECKING:
    from agent.registry import Registry

#: Seconds between two looks.
LOOK_S = 0.5


async def reap(registry: "Registry") -> None:
    """For ever."""
    seen: set[int] = set()
    while True:
        await anyio.sleep(LOOK_S)
        if children.any_ended():
            ended = {s.pid for s in process.all_stats().values() if s.ppid == os.getpid() and s.ended}
            live = (entry.job for entry in registry.live())
            kept = {rank.pid for job in live for rank in job.processes() if rank.outcome is None}
            # At the second look: the journal that tells of a rank may be read behind its end.
            children.reap((ended & seen) - kept)
            seen = ended
