"""An MPI job over several nodes: `lead` runs mpirun on node 0, `wait` stays on every other node until the job is over.

A program of its own, `python -I -m muster.supervisors.launch.mpi.mpi`, run as the job's user in the job's environment;
boot.py makes its command lines. What the nodes say to each other is in mpi_link.py, what node 0 does in mpi_lead.py.
"""

import argparse
import contextlib
import signal
import socket
import sys
import time
from typing import NoReturn

from muster.probes.kernel import process
from muster.supervisors.launch.mpi.mpi_files import placeholder
from muster.supervisors.launch.mpi.mpi_lead import Lead
from muster.supervisors.launch.mpi.mpi_link import (
    AGAIN_S,
    ANSWER_S,
    NotReady,
    hello,
    keep_alive,
    read_end,
    read_line,
    say,
    seen,
    send_line,
)
from muster.supervisors.model import node_ends
from muster.supervisors.model.node_ends import LABEL


def wait(args: argparse.Namespace) -> int:
    """Stays until node 0 says how the job ended; returns the code that it tells. Raises NotReady."""
    node_0 = _Node0(args)
    try:
        with placeholder(args.env_file):
            node_0.meet()
            say(f"has reported to node 0 at {args.lead}; waits for the end of its mpirun")
            code, reason = node_0.end()
    except Stopped:
        node_0.tell(node_ends.heard(args.heard))
        raise
    finally:
        node_0.close()
    say(f"node 0 has ended with code {code}" + (f": {reason}" if reason else ""))
    if code and not node_ends.read(LABEL + reason):  # of its own mpirun, say
        reason = node_ends.ended(node_ends.FAILED, 0, node_0.name, reason)
    if code:
        say(reason)
    return code


class _Node0:
    """The connection to node 0. A signal may end this program at any point, and node 0 is to hear of it."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        host, _, port = args.lead.rpartition(":")
        self._address = host.strip("[]"), int(port)
        #: Of node 0 in the job.
        self.name = args.lead_name or self._address[0]
        self._sock: socket.socket | None = None

    def meet(self) -> None:
        """Until node 0 knows us. Tries until the deadline; raises NotReady."""
        args = self._args
        deadline = time.monotonic() + args.ready_timeout
        while True:
            try:
                self._sock = socket.create_connection(self._address, timeout=ANSWER_S)
                keep_alive(self._sock)
                send_line(self._sock, hello(args.job_id, args.node_rank))
                answer = read_line(self._sock)
                if answer == "welcome":
                    return
                what = f"it answers {answer!r}" if answer else "it closed the connection"
                if answer.startswith("no "):
                    what = f"it refused this node: {answer[3:]}"
            except OSError as error:
                what = seen(error)
            except UnicodeError as error:  # a name that IDNA has no way to write
                what = str(error)
            self.close()
            if time.monotonic() >= deadline:
                seen_there = f"port {self._address[1]} at {self._address[0]}: {what}"
                raise NotReady(node_ends.late(0, self.name, args.ready_timeout, seen_there))
            time.sleep(AGAIN_S)

    def end(self) -> tuple[int, str]:
        """Code and reason, once node 0 tells them. Raises NotReady."""
        assert self._sock is not None
        self._sock.settimeout(None)
        try:
            line = read_line(self._sock)
        except OSError as error:
            raise NotReady(node_ends.lost(0, self.name, seen(error))) from None
        told = read_end(line)
        if told is None:
            what = f"it said {line!r}" if line else "it closed the connection without saying how the job ended"
            raise NotReady(node_ends.lost(0, self.name, what))
        return told

    def tell(self, line: str) -> None:
        """Where there is a connection."""
        if self._sock is not None:
            with contextlib.suppress(OSError):
                send_line(self._sock, line)

    def close(self) -> None:
        """Also what was never opened."""
        if self._sock is not None:
            self._sock.close()
            self._sock = None


def _arguments(words: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """The options, and what stands behind `--`."""
    split = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser(
        prog="python -m muster.supervisors.launch.mpi.mpi", description=(__doc__ or "").partition("\n")[0]
    )
    roles = parser.add_subparsers(dest="role", required=True)
    for name, about in (("lead", "gather the nodes, run mpirun"), ("wait", "stay until node 0's mpirun has ended")):
        role = roles.add_parser(name, help=about)
        role.add_argument("--job-id", required=True, help="what the nodes of one job know each other by")
        role.add_argument("--ready-timeout", type=float, required=True, help="longest wait for all to be ready, s")
        role.add_argument("--env-file", required=True, help="mpirun's -tune file, in the working folder")
        if name == "lead":
            role.add_argument("--program", default="", help="what mpirun is to start")
            role.add_argument("--hostfile", required=True, help="mpirun's -hostfile, in the working folder")
            role.add_argument("--slots", type=int, required=True, help="ranks per node")
            role.add_argument("--hosts", type=lambda text: text.split(","), default=[], help="names of several nodes")
            role.add_argument("--sshd-port", type=int, default=22)
            role.add_argument("--listen", type=int, default=0, help="port at which the other nodes report")
        else:
            role.add_argument("--node-rank", type=int, required=True)
            role.add_argument("--lead", required=True, help="node 0's host:port")
            role.add_argument("--lead-name", default="", help="node 0's name in the job, if it is not that host")
    args = parser.parse_args(words[:split])
    if args.role == "lead" and not words[split + 1 :]:
        parser.error("lead: no mpirun command behind --")
    return args, words[split + 1 :]


class Stopped(BaseException):
    """Raised when a signal asks this program to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def hear_why(args: argparse.Namespace) -> None:
    """From the signals of our supervisor: those that came are the keys of `heard` of the arguments."""
    args.heard = {}
    for number in node_ends.SAID_BY:
        # Not a function of Python: the SIGTERM that follows at once may interrupt that at its first line.
        signal.signal(number, args.heard.__setitem__)
    # For ranks, and sent to everybody by Slurm. Not SIG_IGN, which mpirun would inherit.
    elsewhere: dict[int, object] = {}
    for number in process.USER_SIGNALS:
        signal.signal(number, elsewhere.__setitem__)


def _end_waiting(number: int, _frame: object) -> NoReturn:
    for other in process.END_SIGNALS:
        signal.signal(other, signal.SIG_IGN)  # once is enough
    raise Stopped(number)


def main(words: list[str]) -> int:
    """Returns the exit code."""
    args, command = _arguments(words)
    hear_why(args)
    if args.role == "lead":
        return Lead(args, command).run()
    try:
        for number in process.END_SIGNALS:
            signal.signal(number, _end_waiting)
        return wait(args)
    except Stopped as stopped:
        say(f"ended by {signal.Signals(stopped.number).name} while it waited for node 0")
        return 128 + stopped.number
    except NotReady as error:
        say(str(error))
        return error.code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
