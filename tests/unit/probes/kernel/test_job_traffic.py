"""What jobs move over the network: made-up tables of descriptors, and the kernel's own list of sockets."""

import contextlib
import dataclasses
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.probes.kernel import job_traffic
from muster.probes.kernel.job_traffic import LEAST_RATE, JobTraffic, TcpSocket, Traffic, UnixSocket
from muster.probes.kernel.procfs import Procfs
from muster.probes.kernel.trees import JobProcess, ProcessRole
from tests.unit.proc_folder import ProcFolder

MIB = 1 << 20


class Node:
    """Processes with descriptors, and the connections of the node. A look is due each 10 s."""

    def __init__(self, folder: ProcFolder, procfs: Procfs) -> None:
        self.folder = folder
        self.procfs = procfs
        self.traffic = JobTraffic(procfs)
        self.tcp: dict[int, int] = {}
        self.local: set[int] = set()
        self.unix: dict[int, UnixSocket] = {}
        #: Connections that came and went between two looks, and all that were seen.
        self.unseen = 0
        self.seen: set[int] = set()
        self.moved = 10**9
        self.up = 100.0
        self.jobs: dict[str, list[JobProcess]] = {}
        self.before: dict[str, Traffic] = {}
        #: Of the last look, bytes a second of each job at least.
        self.least: dict[str, float] = {}
        self.space(folder.path / "self")

    def space(self, process: Path, name: str = "own") -> None:
        """Puts it into this network namespace."""
        number = self.folder.path / f"net-{name}"
        number.touch()
        (process / "ns").mkdir(exist_ok=True)
        (process / "ns" / "net").unlink(missing_ok=True)
        os.link(number, process / "ns" / "net")

    def add(self, job: str, pid: int, *files: str, role: ProcessRole = ProcessRole.RANK, space: str = "own") -> Path:
        """A process of a job, with these files open."""
        self.folder.add(pid, 1)
        found = self.folder.path / str(pid)
        self.space(found, space)
        (found / "fd").mkdir()
        for number, file in enumerate(files):
            self.open(found, number, file)
        stat = self.procfs.stat(pid)
        assert stat is not None
        self.jobs.setdefault(job, []).append(JobProcess(0, 0, role, stat, None, None))
        return found

    def open(self, process: Path, number: int, file: str) -> None:
        (process / "fd" / str(number)).symlink_to(file)

    def look(self, node: int = 100 * MIB) -> dict[str, float | None]:
        """Bytes a second of each job since the look before, at most. `node`: what the interfaces have moved since
        then."""
        self.up += 10.0
        self.seen |= self.tcp.keys()
        opens = f"Tcp: RtoMin ActiveOpens PassiveOpens\nTcp: 200 {len(self.seen)} {self.unseen}\n"
        (self.folder.path / "self" / "net" / "snmp").write_text(f"Ip: Forwarding\nIp: 1\n{opens}")
        self.moved += node
        now = self.traffic.look(self.up, self.moved, self.jobs)
        rates = {job: found.rates(self.before[job]) for job, found in now.items() if job in self.before}
        self.before = now
        self.least = {job: rate[1] for job, rate in rates.items() if rate is not None}
        return {job: None if rate is None else rate[0] for job, rate in rates.items()}


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    folder = ProcFolder(tmp_path / "proc")
    (folder.path / "self" / "net").mkdir()
    (folder.path / "self" / "net" / "netlink").write_text("head\n")
    procfs = Procfs(folder.path)
    made = Node(folder, procfs)
    monkeypatch.setattr(
        *(job_traffic, "tcp_sockets"),
        lambda: {inode: TcpSocket(moved, inode in made.local) for inode, moved in made.tcp.items()},
    )
    monkeypatch.setattr(job_traffic, "unix_sockets", lambda: dict(made.unix))
    monkeypatch.setattr(job_traffic, "local_udp", lambda: {700})
    yield made
    procfs.close()


def test_each_job_has_what_its_own_connections_move(node: Node):
    node.tcp = {11: 5, 12: 7, 13: 0}
    node.add("a", 100, "/dev/null", "socket:[11]", "pipe:[3]")
    node.add("a", 101, "socket:[11]", "socket:[12]", role=ProcessRole.WORKER)  # inherited: counted once
    node.add("b", 200, "socket:[13]")
    assert node.look() == {}
    node.tcp = {11: 5 + 20 * MIB, 12: 7 + 10 * MIB, 13: 0, 14: 70 * MIB}
    assert node.look() == {"a": 3 * MIB, "b": 0.0} == node.least
    assert node.look() == {"a": 0.0, "b": 0.0}


def test_a_quiet_node_is_not_searched(node: Node):
    """What it moves is as much as a job can have moved."""
    node.add("a", 100, "socket:[99]")  # of no kind that is known
    node.look()
    assert node.look(node=10 * LEAST_RATE - 10) == {"a": LEAST_RATE - 1}
    assert node.look(node=10 * LEAST_RATE) == {"a": None}


def test_a_connection_that_was_opened_since_counts_in_full(node: Node):
    node.tcp = {11: 0}
    process = node.add("a", 100, "socket:[11]")
    node.look()
    node.tcp[12] = 20 * MIB
    node.open(process, 9, "socket:[12]")
    assert node.look() == {"a": 2 * MIB}
    assert node.look() == {"a": 0.0}


def test_what_connections_may_have_moved_that_no_look_saw_counts_for_each_job(node: Node):
    """A download with a connection of its own for each file opens and closes them between two looks."""
    node.tcp = {11: 0, 12: 0, 13: 0}
    node.local = {13}
    node.add("a", 100, "socket:[11]")
    node.add("b", 200)
    node.look()
    node.unseen += 1
    node.tcp = {11: 10 * MIB, 12: 50 * MIB, 13: 70 * MIB}  # 12: a neighbour's; 13: no part of what the node moves
    assert node.look(node=100 * MIB) == {"a": 5 * MIB, "b": 4 * MIB}
    assert node.least == {"a": MIB, "b": 0.0}
    assert node.look(node=100 * MIB) == {"a": 0.0, "b": 0.0}  # something that uses no connection


def test_without_the_number_of_opened_connections_some_may_be_unseen(node: Node, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Procfs, "tcp_opens", lambda self: None)
    node.add("a", 100)
    node.look()
    assert node.look(node=100 * MIB) == {"a": 10 * MIB}
    node.moved -= 10**9  # an interface is gone
    assert node.look() == {"a": None}


def test_what_comes_through_a_proxy_on_the_node_counts(node: Node):
    node.tcp, node.local = {11: 0}, {11}
    node.add("a", 100, "socket:[11]")
    node.look()
    node.tcp = {11: 30 * MIB}
    assert node.look() == {"a": 3 * MIB}


def test_a_unix_socket_leads_to_the_job_itself_or_to_a_known_service_or_nothing_is_known(node: Node):
    node.unix = {
        500: UnixSocket("", 501),
        501: UnixSocket("", 500),
        510: UnixSocket("", 511),
        511: UnixSocket("/run/dbus/system_bus_socket", 510),
        520: UnixSocket("", 521),
        521: UnixSocket("/run/cache.sock", 520),
        530: UnixSocket("/tmp/listens", 0),
    }
    node.add("a", 100, "socket:[500]", "socket:[510]", "socket:[530]")
    node.add("a", 101, "socket:[501]", role=ProcessRole.HELPER)
    node.add("b", 200, "socket:[520]")
    node.look()
    assert node.look() == {"a": 0.0, "b": None}


def test_netlink_and_udp_on_this_node_move_nothing(node: Node):
    table = "sk Eth Pid Groups Rmem Wmem Dump Locks Drops Inode\n0 0 1 0 0 0 0 2 0 600\n"
    (node.folder.path / "self" / "net" / "netlink").write_text(table)
    node.add("a", 100, "socket:[600]")
    node.add("b", 200, "socket:[700]")  # UDP, on this node
    node.add("c", 300, "socket:[701]")  # UDP, or something else
    node.look()
    assert node.look() == {"a": 0.0, "b": 0.0, "c": None}


@pytest.mark.parametrize(("files", "known"), [("0", True), ("1", False)])
def test_a_file_that_only_an_io_uring_holds_may_be_a_connection(node: Node, files: str, known: bool):
    process = node.add("a", 100, "anon_inode:[io_uring]")
    (process / "fdinfo").mkdir()
    (process / "fdinfo" / "0").write_text(f"pos:\t0\nSqMask:\t0x7\nUserFiles:\t{files}\nUserBufs:\t0\n")
    node.look()
    assert node.look() == {"a": 0.0 if known else None}


def test_a_process_whose_first_thread_has_ended_is_not_known(node: Node):
    process = node.add("a", 100)
    stat = node.jobs["a"][0].stat
    node.jobs["a"] = [dataclasses.replace(node.jobs["a"][0], stat=dataclasses.replace(stat, state="Z", threads=2))]
    (process / "ns" / "net").unlink()  # as the kernel has it then
    node.look()
    assert node.look() == {}


def test_a_connection_that_was_brought_into_another_namespace_counts_here(node: Node):
    node.tcp = {11: 0}
    process = node.add("a", 100, "socket:[11]", "socket:[98]", space="container")
    (process / "net").mkdir()
    (process / "net" / "dev").write_text("head\nhead\n  eth0: 100 1 0 0 0 0 0 0 10 1\n")
    node.look()
    node.tcp = {11: 30 * MIB}
    assert node.look() == {"a": 3 * MIB}


def test_a_namespace_of_its_own_is_counted_at_its_interfaces(node: Node):
    process = node.add("a", 100, "socket:[98]", space="container")
    (process / "net").mkdir()

    def interfaces(received: int) -> None:
        line = f"eth0: {received} 1 0 0 0 0 0 0 10 1\n    lo: 77777777777 1 0 0 0 0 0 0 1 1\n"
        (process / "net" / "dev").write_text(f"head\nhead\n  {line}")

    interfaces(100)
    node.look()
    interfaces(100 + 30 * MIB)
    assert node.look() == {"a": 3 * MIB}
    interfaces(5)  # another one
    assert node.look() == {"a": None}


@pytest.mark.parametrize("hidden", ["ns", "fd"])
def test_a_job_one_of_whose_processes_is_hidden_is_not_known(node: Node, hidden: str):
    node.add("a", 100)
    process = node.add("a", 101)
    node.add("b", 200)
    denied = str(process / "ns" / "net") if hidden == "ns" else str(process / "fd")
    if hidden == "ns":
        os.unlink(denied)
    else:
        os.rmdir(denied)
        Path(denied).write_text("no folder")
    node.look()
    found = node.look()
    assert found.get("a") is None and found["b"] == 0.0


def test_sessions_do_not_count_and_who_has_ended_moves_nothing(node: Node):
    node.tcp = {11: 0}
    node.add("a", 100)
    node.add("a", 101, "socket:[11]", role=ProcessRole.SESSION)
    node.add("a", 102)
    node.look()
    node.folder.remove(102)
    node.tcp = {11: 50 * MIB}
    assert node.look() == {"a": 0.0}


def test_without_the_kernels_list_nothing_is_known(node: Node, monkeypatch: pytest.MonkeyPatch):
    node.add("a", 100)

    def refuse() -> dict[int, TcpSocket]:
        raise PermissionError(1, "Operation not permitted")

    with monkeypatch.context() as patched:
        patched.setattr(job_traffic, "tcp_sockets", refuse)
        assert node.look() == {} and node.look() == {} and node.before == {}
    node.look()
    assert node.look() == {"a": 0.0}


def test_more_descriptors_than_can_be_looked_at(node: Node, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(job_traffic, "MOST_DESCRIPTORS", 3)
    node.add("a", 100, "/1", "/2")
    node.add("b", 200, "/1", "/2")
    node.look()
    assert node.look() == {"a": 0.0, "b": None}


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6], ids=["IPv4", "IPv6"])
def test_the_kernel_tells_every_connection_and_how_many_were_opened(family: socket.AddressFamily):
    with contextlib.closing(Procfs()) as procfs, socket.socket(family) as listener:
        before = procfs.tcp_opens()
        try:
            listener.bind(("127.0.0.1" if family == socket.AF_INET else "::1", 0))
        except OSError:
            pytest.skip("no IPv6 on this machine")
        listener.listen()
        with socket.create_connection(listener.getsockname()[:2]) as one, listener.accept()[0] as other:
            one.sendall(b"x" * 5000)
            assert other.recv(5000)
            found = job_traffic.tcp_sockets()
            told = [found[os.fstat(s.fileno()).st_ino] for s in (listener, one, other)]
            assert told[0] == TcpSocket(0, told[0].local, connected=False)
            assert told[2] == TcpSocket(5000, local=True) and told[1].local
            after = procfs.tcp_opens()
    assert before is not None and after is not None and after >= before + 2


def test_the_kernel_tells_both_ends_of_a_unix_socket(tmp_path: Path):
    path = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as one:
        listener.bind(path)
        listener.listen()
        one.connect(path)
        with listener.accept()[0] as other:
            mine, theirs = (os.fstat(s.fileno()).st_ino for s in (one, other))
            found = job_traffic.unix_sockets()
            assert found[mine] == UnixSocket("", theirs)
            assert found[theirs] == UnixSocket(path, mine)


def test_a_rate_needs_an_unbroken_count():
    now = Traffic(500.0, 300.0, 10.0, 30.0)
    assert now.rates(Traffic(100.0, 100.0, 5.0, 20.0)) == (40.0, 20.0)
    assert now.rates(Traffic(100.0, 100.0, 5.0, 10.0)) == (20.0, 10.0)
    assert Traffic(500.0, 300.0, 11.0, 30.0).rates(Traffic(100.0, 100.0, 5.0, 10.0)) is None
    assert now.rates(now) is None
