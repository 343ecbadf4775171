"""Node 0 of an MPI job: brings the others together, runs mpirun, tells the others how it ended.

mpirun begins once every node's name resolves, its sshd answers and it has reported at the master port; by then the port
is free again, for the ranks.
"""

import argparse
import contextlib
import os
import queue
import selectors
import shlex
import shutil
import signal
import socket
import subprocess
import threading
import time
from dataclasses import field

from muster.probes.kernel.dataclass import dataclass
from muster.supervisors.launch.modes.boot import package_of
from muster.supervisors.launch.mpi.mpi_files import env_lines, write_private
from muster.supervisors.launch.mpi.mpi_link import (
    ANSWER_S,
    MAX_LINE,
    NotReady,
    end,
    keep_alive,
    read_hello,
    say,
    send_line,
)
from muster.supervisors.launch.mpi.mpi_scout import Scout
from muster.supervisors.model import node_ends
from muster.supervisors.model.verdict import TIMED_OUT_CODE

#: mpirun takes a second SIGTERM within 5 s for "at once, and clean nothing up". It stands in our process group, and a
#: signal to the group has reached it already; a signal to us alone is handed on this much later, in seconds.
_FORWARD_S = 6.0
#: mpirun that does not end after SIGTERM is killed, in seconds.
_KILL_S = 30.0
#: In an allocation mpirun would take hosts, and the way to them, from the resource manager; the hostfile and ssh are to
#: say both. The names are those of Open MPI's components, and of PRRTE's from Open MPI 5 on. What the job sets wins.
_NO_MANAGER = {
    prefix + framework: without
    for prefix in ("OMPI_MCA_", "PRTE_MCA_")
    for framework, without in (
        ("plm", "^slurm,tm,lsf,alps,pals"),
        ("ras", "^slurm,tm,pbs,lsf,gridengine,loadleveler,alps,flux"),
    )
}
#: Options of mpirun by which ranks find their program elsewhere than this process does.
_ELSEWHERE = frozenset(
    dashes + word for dashes in ("-", "--") for word in ("path", "wd", "wdir", "preload-binary", "s", "prefix", "app")
)
#: Connections of which it is not known yet who they are, and lines on who was here: a port scan is to fill no log.
_MAX_STRANGERS, _MAX_SAID = 256, 10_000


@dataclass(slots=True, eq=False)
class Peer:
    """A connection to the master port; one that has said who it is has a `rank`."""

    sock: socket.socket
    address: str
    since: float
    rank: int = 0
    data: bytearray = field(default_factory=bytearray)


class Lead:
    """The program of node 0. One thread does everything but resolving names."""

    def __init__(self, args: argparse.Namespace, command: list[str]) -> None:
        self._args, self._command = args, command
        self._hosts: list[str] = args.hosts
        self._nodes: dict[int, Peer] = {}
        self._strangers: set[Peer] = set()
        self._said: set[str] = set()
        self._found: queue.SimpleQueue[Scout] = queue.SimpleQueue()
        self._asked = 0  # the signal that asked us to end
        self._gone = 0  # a node that left before the end, and how
        self._gone_how = ""
        self._select = selectors.DefaultSelector()
        self._ears, self._bell = os.pipe()
        os.set_blocking(self._ears, False)
        os.set_blocking(self._bell, False)
        self._select.register(self._ears, selectors.EVENT_READ, self._on_bell)
        signal.set_wakeup_fd(self._bell, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)

    def run(self) -> int:
        """Returns the exit code."""
        code, reason = 1, "muster failed"
        files: list[str] = []
        try:
            program = self._command[0]
            if shutil.which(program) is None:
                text = f"{program}: not found in the PATH of the job's environment: {package_of(program)}"
                raise NotReady(text.removesuffix(": "), 127)
            addresses = self._gather() if self._hosts else ["127.0.0.1"]
            files = [self._args.hostfile, self._args.env_file]
            self._write(addresses)
            code, reason = self._mpirun()
        except NotReady as error:
            code, reason = error.code, str(error)
        finally:
            for path in files:
                with contextlib.suppress(OSError):
                    os.unlink(path)
            self._tell_all(code, reason)
            say(reason)  # the last line: a rank cannot have written it
        return code

    # --- bringing all together ----------------------------------------------------------------------------------------

    def _gather(self) -> list[str]:
        """An address for each node, once all are ready. Raises NotReady."""
        args, others = self._args, len(self._hosts) - 1
        listener = self._listen()
        deadline = time.monotonic() + args.ready_timeout
        say(f"waiting, at most {args.ready_timeout:g} s, for {len(self._hosts)} nodes: {', '.join(self._hosts)}")
        scouts = [Scout(host, args.sshd_port, self._on_found) for host in self._hosts]
        threading.stack_size(1 << 20)
        for scout in scouts:
            scout.start()
        while not (all(scout.address for scout in scouts) and len(self._nodes) == others):
            left = deadline - time.monotonic()
            if left <= 0:
                raise NotReady(self._who_is_missing(scouts))
            self._turn(left)
            self._handle()
        self._say_found()
        # A node that connects now is too late; the port belongs to the ranks.
        self._select.unregister(listener)
        listener.close()
        for peer in list(self._strangers):
            self._drop(peer)
        return [scout.address for scout in scouts]

    def _handle(self) -> None:
        """Raises NotReady where a signal has come."""
        if self._asked:
            say(f"ended by {signal.Signals(self._asked).name} before mpirun began")
            raise NotReady(*self._ended_here())
        if self._gone and node_ends.is_told(self._gone_how):
            raise NotReady(self._gone_how, _code(self._gone_how, 1))

    def _ended_here(self) -> tuple[str, int]:
        """What the others hear where a signal ended us, and the code."""
        text = node_ends.ended(node_ends.heard(self._args.heard), 0, self._name(0))
        return text, _code(text, 128 + self._asked)

    def _listen(self) -> socket.socket:
        port = self._args.listen
        try:
            if socket.has_dualstack_ipv6():
                listener = socket.create_server(("", port), family=socket.AF_INET6, backlog=1024, dualstack_ipv6=True)
            else:
                listener = socket.create_server(("", port), backlog=1024)
        except OSError as error:
            text = (
                f"cannot listen for the other nodes at port {port}: {error.strerror}; give the job another master port"
            )
            raise NotReady(text) from None
        listener.setblocking(False)
        self._select.register(listener, selectors.EVENT_READ, lambda: self._on_connection(listener))
        return listener

    def _name(self, rank: int) -> str:
        return self._hosts[rank] if self._hosts else ""

    def _who_is_missing(self, scouts: list[Scout]) -> str:
        missing: list[tuple[int, str, str]] = []
        for rank, scout in enumerate(scouts):
            if not scout.address:
                missing.append((rank, scout.host, scout.seen))
            elif rank and rank not in self._nodes:
                missing.append((rank, scout.host, f"it has not reported at port {self._args.listen} of node 0"))
        (rank, host, what), others = missing[0], missing[1:]
        also = "".join(f"; nor node {number} ({name}): {why}" for number, name, why in others[:4])
        more = f"; and {len(others) - 4} more" if len(others) > 4 else ""
        return node_ends.late(rank, host, self._args.ready_timeout, f"{what}{also}{more}")

    def _write(self, addresses: list[str]) -> None:
        args = self._args
        lines, left_out = env_lines(os.environ)
        if left_out:
            names = ", ".join(map(repr, left_out))
            say(f"warning: mpirun cannot pass variables with these names to the ranks: {names}")
        hosts = [f"{address} slots={args.slots}" for address in addresses]
        write_private(args.hostfile, hosts)
        write_private(args.env_file, lines)
        say(f"{args.hostfile}: {', '.join(hosts[:64])}{', ...' if len(hosts) > 64 else ''}")

    # --- mpirun -------------------------------------------------------------------------------------------------------

    def _mpirun(self) -> tuple[int, str]:
        """The exit code for all nodes, and what there is to say of it."""
        if not node_ends.is_told(self._gone_how):
            self._gone = 0  # all are here
        env = _NO_MANAGER | os.environ
        if os.geteuid() == 0:  # mpirun runs as root only with both variables
            env |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        say(f"starts {shlex.join(self._command)}")
        missing = self._not_executable()
        self._handle()
        try:
            child = subprocess.Popen(self._command, env=env)
        except OSError as error:
            raise NotReady(f"{self._command[0]}: cannot be executed: {error.strerror}", 126) from None
        ended = os.pidfd_open(child.pid)
        self._select.register(ended, selectors.EVENT_READ, lambda: None)
        self._follow(child)
        self._select.unregister(ended)
        os.close(ended)
        code = 128 - child.returncode if child.returncode < 0 else child.returncode
        if self._gone:
            return _code(self._gone_how, code or 1), self._gone_how
        if self._asked and (code or node_ends.heard(self._args.heard) != node_ends.STOPPED):
            reason, code = self._ended_here()
            return code, reason
        if code and missing is not None:
            return missing
        return code, f"mpirun ended with code {code}"

    def _not_executable(self) -> tuple[int, str] | None:
        """A shell's code where the program is none, and a sentence. mpirun has a code of its own for that. None where
        options of mpirun say where it is to be looked for."""
        program = self._args.program
        if program not in self._command or program.startswith("-"):
            return None
        options = self._command[: self._command.index(program)]
        elsewhere = any(word in _ELSEWHERE or word.startswith("PATH=") for word in options)
        if elsewhere or shutil.which(program) is not None:
            return None
        if shutil.which(program, os.F_OK) is not None:
            return 126, f"{program}: is not executable on node 0"
        return 127, f"{program}: not found on node 0"

    def _follow(self, child: "subprocess.Popen[bytes]") -> None:
        """Until mpirun has ended: forwards a signal, ends mpirun when a node is lost, and kills it if that does not"
        " help."""
        term = kill = None
        while child.poll() is None:
            now = time.monotonic()
            if self._gone and kill is None:
                say(f"stopping mpirun: {self._gone_how}")
                term = now
            elif self._asked and term is None:
                term = now + _FORWARD_S
            if term is not None and kill is None and now >= term:
                child.send_signal(signal.SIGTERM)
                kill = now + _KILL_S
            elif kill is not None and now >= kill:
                child.kill()
                kill = now + _KILL_S
            due = term if kill is None else kill
            self._turn(None if due is None else max(0.0, due - time.monotonic()))

    def _tell_all(self, code: int, reason: str) -> None:
        for peer in self._nodes.values():
            with contextlib.suppress(OSError):
                send_line(peer.sock, end(code, reason))
                peer.sock.shutdown(socket.SHUT_WR)
            peer.sock.close()

    # --- events -------------------------------------------------------------------------------------------------------

    def _turn(self, seconds: float | None) -> None:
        """Does what has come, or comes within that time."""
        if self._strangers:
            seconds = ANSWER_S if seconds is None else min(seconds, ANSWER_S)
        for key, _ in self._select.select(seconds):
            if key.fd in self._select.get_map():  # not closed by one before it
                key.data()
        self._say_found()
        late = time.monotonic() - ANSWER_S
        for peer in [p for p in self._strangers if p.since <= late]:
            self._refuse(peer, "it did not identify itself")

    def _on_signal(self, number: int, _frame: object) -> None:
        self._asked = self._asked or number

    def _on_found(self, scout: Scout) -> None:
        """In the scout's thread."""
        self._found.put(scout)
        with contextlib.suppress(OSError):
            os.write(self._bell, b"\0")

    def _on_bell(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self._ears, 4096):
                pass

    def _say_found(self) -> None:
        while not self._found.empty():
            scout = self._found.get()
            say(f"{scout.host} is {scout.address}, and its sshd answers at port {scout.port}")

    def _on_connection(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            sock, address = listener.accept()
            if len(self._strangers) >= _MAX_STRANGERS:
                sock.close()
                return
            sock.settimeout(ANSWER_S)
            keep_alive(sock)
            peer = Peer(sock, str(address[0]).removeprefix("::ffff:"), time.monotonic())
            self._strangers.add(peer)
            self._select.register(sock, selectors.EVENT_READ, lambda: self._on_data(peer))

    def _on_data(self, peer: Peer) -> None:
        """The first line of a connection, or its end."""
        try:
            data = peer.sock.recv(MAX_LINE)
        except OSError:
            data = b""
        if not data:
            self._drop(peer)
            return
        peer.data += data
        if not peer.rank:
            line, newline, rest = bytes(peer.data).partition(b"\n")
            if newline:
                peer.data[:] = rest
                self._meet(peer, line.decode("utf-8", "replace").strip())
            elif len(peer.data) >= MAX_LINE:
                self._refuse(peer, "it did not identify itself")
        if peer.rank:
            self._hear(peer)

    def _hear(self, peer: Peer) -> None:
        """What a node says that has reported: that it goes, and how."""
        *lines, peer.data[:] = bytes(peer.data)[-MAX_LINE:].split(b"\n")
        if how := next((how for how in node_ends.HOW if how.encode() in lines), ""):
            self._drop(peer, node_ends.ended(how, peer.rank, self._name(peer.rank)))

    def _meet(self, peer: Peer, line: str) -> None:
        said, job_id = read_hello(line), self._args.job_id
        if said is None:
            self._refuse(peer, "it is not a waiting muster node")
        elif said[0] != job_id:
            self._refuse(peer, f"this port belongs to job {job_id}, not to {said[0]}")
        elif not 1 <= said[1] < len(self._hosts):
            self._refuse(peer, f"node rank {said[1]}: the other nodes of the job are 1 to {len(self._hosts) - 1}")
        else:
            rank = said[1]
            before = self._nodes.get(rank)
            if before is not None:  # it began anew; or two think that they are the same
                self._send(before, end(1, f"another connection, from {peer.address}, says that it is node {rank}"))
                self._drop(before)
            peer.rank = rank
            self._strangers.discard(peer)
            self._nodes[rank] = peer
            self._send(peer, "welcome")
            self._say_once(f"node {rank} ({self._hosts[rank]}) has reported from {peer.address}")

    def _refuse(self, peer: Peer, reason: str) -> None:
        self._say_once(f"refused a connection from {peer.address}: {reason}")
        self._send(peer, f"no {reason}")
        self._drop(peer)

    def _send(self, peer: Peer, line: str) -> None:
        with contextlib.suppress(OSError):
            send_line(peer.sock, line)

    def _drop(self, peer: Peer, how: str = "") -> None:
        self._select.unregister(peer.sock)
        peer.sock.close()
        self._strangers.discard(peer)
        if self._nodes.get(peer.rank) is peer:
            del self._nodes[peer.rank]
            self._gone = peer.rank
            what = "muster there has exited, or the connection to it broke"
            self._gone_how = how or node_ends.lost(peer.rank, self._name(peer.rank), what)

    def _say_once(self, text: str) -> None:
        if text not in self._said and len(self._said) < _MAX_SAID:
            self._said.add(text)
            say(text)


def _code(text: str, code: int) -> int:
    """The exit code for all nodes: timeout(1)'s where the running time was over."""
    return TIMED_OUT_CODE if text.startswith(node_ends.TIMED_OUT) else code
