"""The daemon's end of a session, beside a supervisor that has just exited."""

import socket
from pathlib import Path

import anyio
import pytest

from muster.agent.link.connection import LinkLost
from muster.agent.link.exec_link import SessionLink, Started
from muster.supervisors.wire import frames


async def test_the_end_is_received_from_a_session_that_is_gone_by_the_time_of_the_acknowledgement(short_tmp: Path):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(short_tmp / "s"))
        listener.listen()
        async with await anyio.connect_unix(short_tmp / "s") as stream:
            with listener.accept()[0] as theirs:
                theirs.sendall(frames.FROM_SESSION.encode(frames.EXITED, data=b"{}"))
            link = SessionLink(stream, Started(1, "s", 0, 2, False, 0, 0, 0), b"")
            with anyio.fail_after(60):
                await link.acknowledge(100, 0)
                assert [frame.kind for frame in await link.receive()] == [frames.EXITED]
                with pytest.raises(LinkLost):
                    await link.receive()
