"""What the nodes of an MPI job say to each other, and to the job's log.

Lines over one TCP connection per waiting node, which node 0 accepts at the job's master port:

    wait -> lead    muster-mpi 1 JOB NODE_RANK      who it is
    lead -> wait    welcome  |  no REASON           a stranger is refused, and not counted
    wait -> lead    stopped | timed out | failed    the node ends the job so, and goes (node_ends.HOW)
    lead -> wait    end CODE REASON                 when mpirun has ended, or could not be started

REASON may be a sentence of node_ends.py, which each node then has as its last line. Each side notices by the connection
that the other has exited.
"""

import contextlib
import os
import re
import socket

from muster.supervisors.model.node_ends import LABEL

#: Longest line that is read, in bytes; more is no line of ours.
MAX_LINE = 1024
#: How long the other side may take for its first line, and a connection to be made; in seconds.
ANSWER_S = 10.0
#: Pause before a name, an sshd or node 0 is tried again, in seconds.
AGAIN_S = 1.0
_HELLO = re.compile(r"muster-mpi 1 (\S+) ([0-9]{1,6})")
_END = re.compile(r"end ([0-9]{1,3})(?: (.*))?")


class NotReady(Exception):
    """Raised when the job cannot begin or go on. The message is a sentence for the job's log; `code` the exit code."""

    def __init__(self, text: str, code: int = 1) -> None:
        super().__init__(text)
        self.code = code


def say(text: str) -> None:
    """One line into the job's log, in one write."""
    with contextlib.suppress(OSError):
        os.write(2, f"{LABEL}{text}\n".encode("utf-8", "surrogateescape"))


def hello(job_id: str, node_rank: int) -> str:
    """A waiting node's first line."""
    return f"muster-mpi 1 {job_id} {node_rank}"


def read_hello(line: str) -> tuple[str, int] | None:
    """Job and node rank; None for what is not said by one of us."""
    match = _HELLO.fullmatch(line)
    return (match[1], int(match[2])) if match else None


def end(code: int, reason: str) -> str:
    """Node 0's last line: with what the job ended."""
    return f"end {code} {' '.join(reason.split())}"


def read_end(line: str) -> tuple[int, str] | None:
    """Exit code and reason; None for any other line."""
    match = _END.fullmatch(line)
    return (int(match[1]), match[2] or "") if match else None


def send_line(sock: socket.socket, line: str) -> None:
    """Raises OSError."""
    sock.sendall(line.encode("utf-8", "replace")[: MAX_LINE - 1] + b"\n")


def read_line(sock: socket.socket) -> str:
    """One line, byte by byte, so that nothing behind it is taken. Empty at the end. Raises OSError, TimeoutError."""
    data = bytearray()
    while len(data) < MAX_LINE:
        byte = sock.recv(1)
        if byte in (b"", b"\n"):
            break
        data += byte
    return data.decode("utf-8", "replace").strip()


def keep_alive(sock: socket.socket) -> None:
    """A peer that vanished without a word is noticed after about a minute. Raises OSError."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3)):
        sock.setsockopt(socket.IPPROTO_TCP, option, value)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 60_000)


def seen(error: OSError) -> str:
    """What an attempt to reach somebody met, in a few words."""
    return "no answer" if isinstance(error, TimeoutError) else error.strerror or str(error)
