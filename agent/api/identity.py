"""Who is at the other end of a unix socket. gRPC does not say it, so a second, plain socket does: a process that
connects to `identity.sock` gets a token for the user and process that the kernel names (SO_PEERCRED in unix(7)), and
sends it with each call, in the metadata `muster-token`.

A token says who calls, and gives no right of its own: that comes from the socket of the call. It is signed with a key
that only this daemon has, in its memory; so a token ends with the daemon, and after TOKEN_S. It is on no disk.

    $ socat - UNIX-CONNECT:/run/muster/identity.sock
    {"token": "WzEwMDAs...", "uid": 1000, "gid": 1000, "pid": 4242, "user": "alice", "expires_in_s": 300}
"""

import base64
import binascii
import hashlib
import hmac
import json
import pwd
import secrets
import socket
import struct
import time
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import SocketAttribute, SocketStream, TaskStatus

from muster.agent import threads
from muster.agent.errors import StartupError, TokenRefused
from muster.probes.kernel.dataclass import dataclass
from muster.supervisors.system import trust

#: Seconds for which a token is good.
TOKEN_S = 300.0
#: Seconds that a client has to take its token, and that the name of a user is looked for.
ANSWER_S, NAME_S = 2.0, 1.0
#: Seconds until another try to take a connection.
AGAIN_S = 0.2
#: Seconds for which the name of a user is remembered; and how many are.
_NAMES_S, _MOST_NAMES = 60.0, 1024
#: A longer token is none of ours.
_MAX_TOKEN = 1024
_UCRED = struct.Struct("3i")


@dataclass(frozen=True, slots=True)
class PeerProcess:
    """A process that connected. `pid`: 0 where its PID namespace cannot be seen from here; it names who asked, and is
    never signalled: numbers are used again. `user`: its number where it has no name."""

    uid: int
    gid: int
    pid: int
    user: str

    def __str__(self) -> str:
        numbers = f"uid {self.uid}, pid {self.pid}"
        return numbers if self.user == str(self.uid) else f"{self.user} ({numbers})"


class Tokens:
    """Makes tokens, and knows its own again."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

    def make(self, peer: PeerProcess) -> str:
        """A token for a process, good for TOKEN_S."""
        told = [peer.uid, peer.gid, peer.pid, peer.user, time.monotonic() + TOKEN_S]
        body = base64.urlsafe_b64encode(json.dumps(told).encode()).decode()
        return f"{body}.{self._signature(body)}"

    def peer(self, token: str) -> PeerProcess:
        """The process that a token was made for. Raises TokenRefused for one that is too old, or not ours."""
        body, _, signature = token[:_MAX_TOKEN].rpartition(".")
        if not body.isascii() or not hmac.compare_digest(signature.encode(), self._signature(body).encode()):
            raise TokenRefused("this daemon did not issue it, or has restarted since")
        try:
            uid, gid, pid, user, until = json.loads(base64.urlsafe_b64decode(body))
        except (binascii.Error, ValueError, TypeError):
            raise TokenRefused("musterd cannot read it") from None
        if time.monotonic() > until:
            raise TokenRefused(f"it is older than {TOKEN_S:g} s")
        return PeerProcess(uid, gid, pid, user)

    def _signature(self, body: str) -> str:
        return hmac.new(self._key, body.encode(), hashlib.sha256).hexdigest()


async def serve(path: Path, tokens: Tokens, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
    """Gives each process that connects its token, until cancelled. Raises StartupError."""
    try:
        # Everybody may ask who they are: the sockets of the calls say who may call.
        listener = await anyio.create_unix_listener(path, mode=0o666, backlog=1024)
    except OSError as error:
        raise StartupError(f"{path}: cannot listen on this socket: {error.strerror or error}") from error
    names, overflow = _UserNames(), trust.overflow_uid()

    async def answer(stream: SocketStream) -> None:
        async with stream:
            with anyio.move_on_after(ANSWER_S):
                try:
                    told = await _told(stream.extra(SocketAttribute.raw_socket), names, tokens, overflow)
                    await stream.send(json.dumps(told).encode() + b"\n")
                except (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
                    pass  # the client left

    async with listener, anyio.create_task_group() as tasks:
        task_status.started()
        while True:
            try:
                stream = await listener.accept()
            except (OSError, anyio.BrokenResourceError):
                # No descriptor is left, say. A client that gets no token calls without one.
                await anyio.sleep(AGAIN_S)
                continue
            tasks.start_soon(answer, stream)


async def _told(raw: socket.socket, names: "_UserNames", tokens: Tokens, overflow: int) -> dict[str, Any]:
    """The answer to who connected. Raises OSError."""
    pid, uid, gid = _UCRED.unpack(raw.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    if uid == overflow:
        # Everybody of another user namespace has this number, and a real user may have it, too.
        return {"error": f"uid {uid} stands for every user of another user namespace: it identifies nobody"}
    peer = PeerProcess(uid, gid, pid, await names.of(uid))
    told = {"uid": uid, "gid": gid, "pid": pid, "user": peer.user, "expires_in_s": TOKEN_S}
    return {"token": tokens.make(peer), **told}


class _UserNames:
    """Names of users, asked for in threads: a directory of users may be at the other end of a network."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[str, float]] = {}
        self._threads = threads.Pool(4, abandon_on_cancel=True)

    async def of(self, uid: int) -> str:
        """The user's number where there is no name, or none in time."""
        now = time.monotonic()
        name, until = self._known.get(uid, ("", 0.0))
        if now < until:
            return name
        found = ""
        with anyio.move_on_after(NAME_S):
            found = await self._threads.run(_name, uid)
        if not found:
            return str(uid)
        if len(self._known) >= _MOST_NAMES:
            self._known.clear()
        self._known[uid] = found, now + _NAMES_S
        return found


def _name(uid: int) -> str:
    try:
        name = pwd.getpwuid(uid).pw_name
    except (KeyError, OSError):
        return str(uid)
    # Where a name is read a number is one: a user who is called 0 is not to be taken for root.
    return str(uid) if name.isdigit() else name
