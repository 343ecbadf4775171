"""Who calls: the name that a call claims, and the token by which a daemon knows which user and process makes it
(docs/concepts/security.md, "Who calls"). Both are of the contract: clients ask for a token at `identity.sock`, beside
the socket of the calls. Nothing but the standard library.
"""

import json
import socket
import time
from pathlib import Path

#: Seconds that the daemon has to answer: it needs less than a millisecond, unless it is stopped, or flooded.
ANSWER_S = 5.0
#: Seconds until another try, where so many connect at the moment that the socket takes no more.
_AGAIN_S = 0.02
#: Seconds for which a process that got no token calls without one.
AGAIN_S = 1.0
#: The names of token and claim in a call's metadata.
HEADER, CLAIM_HEADER = "muster-token", "muster-caller"
_MOST = 4096


class NoToken(ValueError):
    """Raised where the daemon gives no token, and says why."""


class OwnToken:
    """The token of this process for one daemon. It is asked for with the first call, and again before it is too old."""

    def __init__(self, path: Path | None) -> None:
        """`path`: the unix socket of the calls; None: over TCP a certificate says who calls."""
        self._path = beside(path) if path is not None else None
        #: Why the daemon gave no token, where it said so.
        self.refused = ""
        self._token = ""
        self._until = 0.0

    def metadata(self, within_s: float | None = None) -> tuple[tuple[str, str], ...]:
        """For a call; empty where there is no token: the daemon is of an earlier release, or too busy. Blocks for up to
        `within_s`, and never longer than ANSWER_S."""
        if self._path is not None and time.monotonic() >= self._until:
            self._token = self.refused = ""
            try:
                self._token, good_for = fresh(self._path, ANSWER_S if within_s is None else min(within_s, ANSWER_S))
                # Half its life, so that it is good when it arrives.
                self._until = time.monotonic() + good_for / 2
            except (OSError, ValueError, KeyError, TypeError) as error:
                self.refused = str(error) if isinstance(error, NoToken) else ""
                self._until = time.monotonic() + AGAIN_S
        return ((HEADER, self._token),) if self._token else ()

    def drop(self) -> None:
        """The daemon refuses it: the next call gets another one."""
        self._until = 0.0


def claim(caller: str) -> tuple[tuple[str, str], ...]:
    """For a call: its caller, as journal and events name it. gRPC carries printable ASCII only."""
    printable = "".join(char for char in caller if char.isascii() and char.isprintable())
    return ((CLAIM_HEADER, printable),) if printable else ()


def by_command(user: str, pid: int) -> str:
    """What the command `muster` claims: the name of its user (`uid N` for a number without a name), and its process."""
    return f"{user} (muster, pid {pid})"


def beside(path: Path) -> Path:
    """Where tokens are given for the socket of the calls at `path`."""
    return path.with_name("identity.sock")


def fresh(path: Path, answer_s: float) -> tuple[str, float]:
    """A token, and for how many seconds it is good. Raises OSError, ValueError, KeyError or TypeError where the answer
    has none: the daemon is of an earlier release, too busy, or cannot tell who calls. Blocks for up to `answer_s`."""
    told = json.loads(_answer(path, answer_s))
    if "error" in told:
        raise NoToken(str(told["error"]))
    return str(told["token"]), float(told["expires_in_s"])


def _answer(path: Path, answer_s: float) -> bytes:
    """Raises OSError."""
    end = time.monotonic() + answer_s
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as sock:
        while True:
            try:
                sock.settimeout(answer_s)
                sock.connect(str(path))
                break
            except BlockingIOError:
                if time.monotonic() >= end:
                    raise
                time.sleep(_AGAIN_S)
        data = b""
        while len(data) < _MOST and not data.endswith(b"\n"):
            sock.settimeout(max(0.001, end - time.monotonic()))
            part = sock.recv(_MOST)
            if not part:
                break
            data += part
    return data
