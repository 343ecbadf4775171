"""Many followers of one job's output, each on a connection of its own, in a process of their own.

    python -m benchmarks.followers ADDRESS JOB COUNT SECONDS

Each reads for so many seconds, as fast as it gets chunks; then prints {"bytes": [per follower], "failures": [...]}.
"""

import asyncio
import json
import sys
import time

import grpc
from grpc import aio

from muster.v1 import log_pb2, log_pb2_grpc

#: Within this all streams are open, in seconds, before the clock starts.
_OPEN_S = 60.0


class Follower:
    """One stream; checks that no byte is missing or doubled."""

    def __init__(self, address: str, job_id: str) -> None:
        self._channel = aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])
        request = log_pb2.ReadLogsRequest(job_id=job_id, ranks=[0], follow=True)
        self._stream = log_pb2_grpc.LogServiceStub(self._channel).ReadLogs(request)
        self.bytes = 0
        self.failure = ""
        self.begun = asyncio.Event()

    async def follow(self) -> None:
        """Until it is cancelled, fails, or the output ends."""
        try:
            async for chunk in self._stream:
                if chunk.offset != self.bytes and not chunk.eof:
                    self.failure = f"a chunk at {chunk.offset} where {self.bytes} was next"
                    return
                self.bytes += len(chunk.data)
                self.begun.set()
        except aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.CANCELLED:
                self.failure = f"{error.code().name}: {error.details()}"
        finally:
            self.begun.set()
            await self._channel.close()


async def main(address: str, job_id: str, count: int, seconds: float) -> None:
    """See above."""
    followers = [Follower(address, job_id) for _ in range(count)]
    tasks = [asyncio.create_task(follower.follow()) for follower in followers]
    begin = time.perf_counter()
    # In this time all must have begun to get output; one that has not is a failure.
    begun = [asyncio.create_task(follower.begun.wait()) for follower in followers]
    await asyncio.wait(begun, timeout=_OPEN_S)
    opened = time.perf_counter() - begin
    for follower in followers:
        if not follower.begun.is_set():
            follower.failure = f"got nothing within {_OPEN_S:g} s"
    before = sum(follower.bytes for follower in followers)
    begin = time.perf_counter()
    await asyncio.sleep(seconds)
    took = time.perf_counter() - begin
    rate = (sum(follower.bytes for follower in followers) - before) / took
    for task in [*tasks, *begun]:
        task.cancel()
    await asyncio.gather(*tasks, *begun, return_exceptions=True)
    print(
        json.dumps(
            {
                "opened_s": opened,
                "bytes_per_s": rate,
                "bytes": [follower.bytes for follower in followers],
                "failures": [follower.failure for follower in followers if follower.failure],
            }
        )
    )


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])))
