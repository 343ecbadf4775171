"""muster.supervisors.launch.mpi.mpi as the program that it is: several processes on the loopback, with stand-ins for
sshd and mpirun, and with the real ones where they are installed."""

import argparse
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.probes.kernel import process
from muster.supervisors.launch.mpi import mpi, mpi_scout
from muster.supervisors.launch.mpi.mpi_files import env_lines, placeholder, write_private
from muster.supervisors.launch.mpi.mpi_link import NotReady, end, hello, read_end, read_hello
from muster.supervisors.model import node_ends
from muster.supervisors.model.node_ends import FAILED, STOPPED, heard, read
from muster.supervisors.model.states import StopCause
from tests import mpi_rank, sshd
from tests.conftest import alive, eventually
from tests.ports import free_port

JOB = "job-1"
#: "Must happen", on a busy machine.
SOON_S = 60.0


# --- files ------------------------------------------------------------------------------------------------------------


def test_the_environment_file_holds_what_modelarts_hands_on():
    names = ("MA_X", "SHARED_X", "S3_X", "PATH", "PATH2", "VC_WORKER_X", "SCC_X", "CREDENTIAL")
    others = ("XMA_", "HOME", "VC_TASK_INDEX", "LD_LIBRARY_PATH", "ma_x", "PYTHONPATH")
    lines, left_out = env_lines(dict.fromkeys(names + others, "v"))
    assert (lines, left_out) == ([f"-x {name}=v" for name in sorted(names)], [])


@pytest.mark.parametrize("value", ["a b", "a\tb", "a;b", 'a"b', "it's", "two\nlines", "a\\b", "ü", "v" * 5000, "`id`"])
def test_a_value_that_the_file_cannot_hold_is_named_only(value):
    assert env_lines({"MA_X": value}) == (["-x MA_X"], [])


@pytest.mark.parametrize("value", ["a=b", "x==", "#a", "a,b:c", "{1}[2]", "http://h/#f?x=1&y=2", "$HOME", "^x~y!*|<>"])
def test_other_values_stand_in_the_file(value):
    assert env_lines({"MA_X": value}) == ([f"-x MA_X={value}"], [])


def test_empty_values_and_names_that_mpirun_does_not_take_are_left_out():
    assert env_lines({"MA_X": "", "MA_%": "1", "MA_ü": "1", "MA_Y": "1"}) == (["-x MA_Y=1"], ["MA_%", "MA_ü"])


@given(st.dictionaries(st.text(st.characters(exclude_characters="=\0"), min_size=1).map("MA_".__add__), st.text()))
def test_no_value_breaks_out_of_its_line(env):
    lines, left_out = env_lines(env)
    assert len(lines) + len(left_out) == sum(1 for value in env.values() if value)
    assert all(len(line.split()) == 2 and line.startswith("-x MA_") and ";" not in line for line in lines)


def test_files_are_for_the_user_alone(tmp_path):
    path = tmp_path / "f"
    write_private(str(path), ["old"])
    write_private(str(path), ["a", "b"])
    assert (path.read_text(), path.stat().st_mode & 0o777, os.listdir(tmp_path)) == ("a\nb\n", 0o600, ["f"])


def test_a_folder_that_takes_no_files(tmp_path):
    with pytest.raises(NotReady, match=r"cannot write .*missing/f.*No such file.*working folder to write in"):
        write_private(str(tmp_path / "missing" / "f"), [])


def test_a_placeholder_is_made_where_nothing_is_and_taken_away(tmp_path):
    path = tmp_path / "env"
    with placeholder(str(path)):
        assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"", 0o600)
    assert not path.exists()


def test_what_another_wrote_stays(tmp_path):
    path = tmp_path / "env"
    with placeholder(str(path)):
        write_private(str(path), ["of node 0, on a shared file system"])
    with placeholder(str(path)):
        pass
    assert path.read_text() == "of node 0, on a shared file system\n"


# --- what is said -----------------------------------------------------------------------------------------------------


def test_lines_are_read_as_they_were_written():
    assert read_hello(hello("j.1", 12)) == ("j.1", 12)
    assert read_end(end(137, "two\nlines ")) == (137, "two lines")
    assert read_end(end(0, "")) == (0, "")
    assert [read_hello("GET / HTTP/1.1"), read_end("end"), read_end("welcome")] == [None, None, None]


def test_ipv4_is_preferred(monkeypatch):
    def answers(host: str, port: int, type: int) -> list[tuple[object, ...]]:
        four = [(socket.AF_INET, type, 6, "", (address, port)) for address in ("10.0.0.1", "10.0.0.2")]
        return [(socket.AF_INET6, type, 6, "", ("fd00::1", port, 0, 0)), *four]

    monkeypatch.setattr(socket, "getaddrinfo", answers)
    assert mpi_scout.addresses_of("n", 22) == ["10.0.0.1", "10.0.0.2", "fd00::1"]


# --- a stand-in for the cluster ---------------------------------------------------------------------------------------


class Greeter:
    """Listens on some addresses at one port and greets everybody alike, as sshd does."""

    def __init__(self, addresses: list[str], greeting: bytes = b"SSH-2.0-test\r\n") -> None:
        self._greeting = greeting
        first = socket.create_server((addresses[0], 0), backlog=64)
        self.port = int(first.getsockname()[1])
        self._socks = [first, *(socket.create_server((a, self.port), backlog=64) for a in addresses[1:])]
        self._threads = [threading.Thread(target=self._serve, args=(sock,)) for sock in self._socks]
        for thread in self._threads:
            thread.start()

    def _serve(self, sock: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = sock.accept()
                with connection, contextlib.suppress(OSError):
                    connection.sendall(self._greeting)

    def close(self) -> None:
        for sock in self._socks:
            sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for sock in self._socks:
            sock.close()


class Program:
    """A running `python -I -m muster.supervisors.launch.mpi.mpi`."""

    def __init__(self, folder: Path, env: dict[str, str], words: list[str]) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.log = folder / f"{words[0]}-{len(os.listdir(folder))}.log"
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-m", "muster.supervisors.launch.mpi.mpi", *words],
                cwd=folder,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def until(self, text: str) -> None:
        def there() -> bool:
            assert text in self.said or self.process.poll() is None, f"ended without {text!r}: {self.said}"
            return text in self.said

        eventually(there, SOON_S, f"{text!r} in {self.log}")

    def code(self) -> int:
        """Its exit code, once it has ended."""
        return self.process.wait(SOON_S)

    def close(self) -> None:
        """Ends it, and what is left of its process group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(SOON_S)


class Cluster:
    """Makes the programs of one job; `bin` is the first folder of their PATH."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.env = {"PATH": f"{self.bin}:/usr/bin:/bin", "HOME": str(folder), "LANG": "C.UTF-8"}
        self.port = free_port()
        self.greeter = Greeter(["127.0.0.1", "127.0.0.2", "127.0.0.3"])
        self.sshd_port = self.greeter.port
        self._programs: list[Program] = []
        self.mpirun("exit 0")

    def mpirun(self, script: str) -> None:
        """What mpirun shall be."""
        path = self.bin / "mpirun"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def no_stand_in(self) -> None:
        (self.bin / "mpirun").unlink()

    def start(self, name: str, words: list[str], **env: str) -> Program:
        program = Program(self.folder / name, self.env | env, words)
        self._programs.append(program)
        return program

    def lead(self, *more: str, hosts: str = "127.0.0.2,127.0.0.3", timeout: float = SOON_S, **env: str) -> Program:
        words = ["lead", f"--job-id={JOB}", f"--ready-timeout={timeout}", "--env-file=e", "--hostfile=h", "--slots=2"]
        if hosts:
            words += [f"--hosts={hosts}", f"--sshd-port={self.sshd_port}", f"--listen={self.port}"]
        command = more or ("mpirun", "-np", "4", "-hostfile", "h", "-tune", "e", "python", "train.py")
        return self.start("node-0", [*words, "--", *command], **env)

    def wait(self, rank: int = 1, job: str = JOB, timeout: float = SOON_S) -> Program:
        words = ["wait", f"--job-id={job}", f"--ready-timeout={timeout}", "--env-file=e", f"--node-rank={rank}"]
        return self.start(f"node-{rank}", [*words, f"--lead=127.0.0.1:{self.port}"])

    def close(self) -> None:
        for program in self._programs:
            program.close()
        self.greeter.close()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    yield made
    made.close()


# --- one node ---------------------------------------------------------------------------------------------------------


def test_one_node_needs_nobody(cluster):
    cluster.mpirun('printf "%s\\n" "$@" > argv; cat h > hosts; cat e > env; stat -c %a h e > modes; exit 3')
    lead = cluster.lead(hosts="", MA_A="1", MA_B="b c", OTHER="x", S3_EMPTY="")
    assert lead.code() == 3
    folder = lead.folder
    words = ["-np", "4", "-hostfile", "h", "-tune", "e", "python", "train.py"]
    assert (folder / "argv").read_text().splitlines() == words
    assert (folder / "hosts").read_text() == "127.0.0.1 slots=2\n"
    assert (folder / "env").read_text() == f"-x MA_A=1\n-x MA_B\n-x PATH={cluster.env['PATH']}\n"
    assert (folder / "modes").read_text() == "600\n600\n"
    assert not (folder / "h").exists() and not (folder / "e").exists(), "they are put away"


def test_the_signal_that_ended_mpirun_is_reported_as_a_shell_does(cluster):
    cluster.mpirun("kill -9 $$")
    assert cluster.lead(hosts="").code() == 128 + signal.SIGKILL


def test_mpirun_asks_no_resource_manager_for_its_hosts(cluster):
    """Unless the job's environment says so; the variables of the allocation stay, for the ranks."""
    cluster.mpirun("env > env; exit 0")
    lead = cluster.lead(hosts="", SLURM_JOB_ID="7", OMPI_MCA_plm="slurm")
    assert lead.code() == 0
    found = dict(line.partition("=")[::2] for line in (lead.folder / "env").read_text().splitlines())
    assert (found["SLURM_JOB_ID"], found["OMPI_MCA_plm"]) == ("7", "slurm")
    assert all("slurm" in found[name].removeprefix("^").split(",") for name in ("OMPI_MCA_ras", "PRTE_MCA_ras"))


def test_a_missing_mpirun_is_named_with_its_package(cluster):
    cluster.no_stand_in()
    lead = cluster.lead(hosts="", PATH=str(cluster.bin))
    assert lead.code() == 127
    assert "mpirun: not found in the PATH of the job's environment: it comes with Open MPI: apt install" in lead.said


def test_an_mpirun_that_cannot_be_executed(cluster):
    (cluster.bin / "mpirun").write_bytes(b"\0nothing")
    (cluster.bin / "mpirun").chmod(0o755)
    lead = cluster.lead(hosts="", PATH=str(cluster.bin))
    assert (lead.code(), "mpirun: cannot be executed: Exec format error" in lead.said) == (126, True)


@pytest.mark.parametrize(
    ("program", "code", "said"),
    [
        ("no-such-program", 127, "no-such-program: not found on node 0"),
        ("PLAIN", 126, "PLAIN: is not executable on node 0"),
        ("/bin/true", 134, "mpirun ended with code 134"),
        ("-x", 134, "mpirun ended with code 134"),
        ("-wdir /x ./train", 134, "mpirun ended with code 134"),
        ("-path /x train", 134, "mpirun ended with code 134"),
        ("-x PATH=/x train", 134, "mpirun ended with code 134"),
    ],
)
def test_a_program_that_mpirun_cannot_start_has_the_code_of_a_shell(cluster, tmp_path, program, code, said):
    """Not one that ranks find elsewhere, by options of mpirun: its own code stays."""
    (tmp_path / "plain").touch()
    program, said = (text.replace("PLAIN", str(tmp_path / "plain")) for text in (program, said))
    cluster.mpirun("exit 134")
    words = ["lead", "--job-id=j", "--ready-timeout=9", "--env-file=e", "--hostfile=h", "--slots=1"]
    lead = cluster.start("n", [*words, f"--program={program.split()[-1]}", "--", "mpirun", *program.split()])
    assert (lead.code(), lead.said.splitlines()[-1]) == (code, f"[muster mpi] {said}")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has to be allowed")
def test_root_is_allowed_to_run_mpirun(cluster):
    cluster.mpirun("env | grep OMPI_ALLOW | sort > allowed")
    lead = cluster.lead(hosts="")
    assert lead.code() == 0
    allowed = (lead.folder / "allowed").read_text()
    assert allowed == "OMPI_ALLOW_RUN_AS_ROOT=1\nOMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1\n"


def test_names_that_cannot_be_handed_on_are_reported(cluster):
    cluster.mpirun("true")
    lead = cluster.start("n", ["lead", "--job-id=j", "--ready-timeout=9", "--env-file=e", "--hostfile=h", "--slots=1",
                               "--", "mpirun"], **{"MA_%": "1"})  # fmt: skip
    assert lead.code() == 0
    assert "mpirun cannot pass variables with these names to the ranks: 'MA_%'" in lead.said


# --- several nodes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [0, 3])
def test_all_nodes_end_as_mpirun_did(cluster, code):
    cluster.mpirun(f"cat h > hosts; exit {code}")
    wait, lead = cluster.wait(), cluster.lead()
    assert (lead.code(), wait.code()) == (code, code)
    assert (lead.folder / "hosts").read_text() == "127.0.0.2 slots=2\n127.0.0.3 slots=2\n"
    assert f"node 0 has ended with code {code}: mpirun ended with code {code}" in wait.said
    blamed = f"failed on node 0 (127.0.0.1): mpirun ended with code {code}"
    assert read(wait.said.splitlines()[-1]) == (blamed if code else "")
    for text in ("127.0.0.2 is 127.0.0.2, and its sshd answers", "node 1 (127.0.0.3) has reported from 127.0.0.1"):
        assert lead.said.count(text) == 1
    assert os.listdir(wait.folder) == [wait.log.name], "its empty environment file is taken away"


def test_mpirun_begins_only_when_every_node_has_reported(cluster):
    cluster.mpirun("exit 0")
    lead = cluster.lead(hosts="127.0.0.1,127.0.0.2,127.0.0.3")
    first = cluster.wait(1)
    first.until("has reported to node 0")
    assert "starts mpirun" not in lead.said
    second = cluster.wait(2)
    assert [p.code() for p in (lead, first, second)] == [0, 0, 0]


def test_the_master_port_is_the_ranks_once_all_are_there(cluster):
    bind = f"import socket; s = socket.create_server(('127.0.0.1', {cluster.port})); print('bound')"
    cluster.mpirun(f'exec {sys.executable} -c "{bind}"')
    wait, lead = cluster.wait(), cluster.lead()
    assert (lead.code(), wait.code()) == (0, 0), lead.said
    assert "bound" in lead.said


def test_a_name_that_does_not_resolve(cluster):
    cluster.mpirun("touch ran")
    for seconds in (3, 30):  # the longer one for a machine so busy that node 1 has not begun by then
        wait, lead = cluster.wait(), cluster.lead(hosts="127.0.0.2,no-such-node.invalid", timeout=seconds)
        assert lead.code() == 1
        if "has reported from" in lead.said:
            break
        wait.close()
    assert wait.code() == 1
    late = f"(no-such-node.invalid) did not come within {seconds} s: its name"
    assert f"node 1 {late} does not resolve (" in lead.said
    assert late in wait.said, "the other nodes are told why"
    assert not (lead.folder / "ran").exists()


def test_a_port_where_nobody_listens(cluster):
    cluster.sshd_port = free_port()
    lead = cluster.lead(timeout=2)
    assert lead.code() == 1
    assert f"node 0 (127.0.0.2) did not come within 2 s: port {cluster.sshd_port} at 127.0.0.2: Conn" in lead.said


@pytest.mark.parametrize(
    ("greeting", "what"), [(b"220 mail\r\n", "answers b'220 mail"), (b"", "closed the connection")]
)
def test_a_port_where_somebody_else_listens(cluster, greeting, what):
    other = Greeter(["127.0.0.2", "127.0.0.3"], greeting)
    try:
        cluster.sshd_port = other.port
        lead = cluster.lead(timeout=2)
        assert lead.code() == 1
    finally:
        other.close()
    assert f"port {other.port} at 127.0.0.2 {what}" in lead.said


def test_a_node_that_does_not_report_is_named(cluster):
    lead = cluster.lead(timeout=2)
    assert lead.code() == 1
    assert (
        f"node 1 (127.0.0.3) did not come within 2 s: it has not reported at port {cluster.port} of node 0" in lead.said
    )


def test_a_master_port_in_use(cluster):
    with socket.create_server(("127.0.0.1", cluster.port)):
        lead = cluster.lead()
        assert lead.code() == 1
    assert f"cannot listen for the other nodes at port {cluster.port}: Address already in use" in lead.said


def ask(port: int, line: bytes) -> bytes:
    """What a stranger's connection to the master port is answered."""
    with socket.create_connection(("127.0.0.1", port), timeout=SOON_S) as sock:
        sock.sendall(line)
        return b"".join(iter(lambda: sock.recv(1024), b""))


def test_strangers_are_not_counted(cluster):
    cluster.mpirun("exit 0")
    lead = cluster.lead()
    lead.until("waiting, at most")
    silent = socket.create_connection(("127.0.0.1", cluster.port))
    assert ask(cluster.port, b"GET / HTTP/1.1\r\n\r\n") == b"no it is not a waiting muster node\n"
    assert ask(cluster.port, b"x" * 1024) == b"no it did not identify itself\n"
    assert ask(cluster.port, b"muster-mpi 1 job-2 1\n") == b"no this port belongs to job job-1, not to job-2\n"
    assert ask(cluster.port, b"muster-mpi 1 job-1 2\n").startswith(b"no node rank 2: the other nodes of the job are 1")
    assert "starts mpirun" not in lead.said
    wait = cluster.wait()
    assert (lead.code(), wait.code()) == (0, 0)
    silent.close()


@pytest.mark.slow
def test_who_says_nothing_is_sent_away(cluster):
    lead = cluster.lead()
    lead.until("waiting, at most")
    assert ask(cluster.port, b"") == b"no it did not identify itself\n"


def test_two_that_say_they_are_the_same_node(cluster):
    lead = cluster.lead(hosts="127.0.0.1,127.0.0.2,127.0.0.3")
    first = cluster.wait(1)
    first.until("has reported to node 0")
    second = cluster.wait(1)
    second.until("has reported to node 0")
    assert first.code() == 1
    assert "another connection, from 127.0.0.1, says that it is node 1" in first.said
    assert lead.process.poll() is None


def test_a_node_that_reports_again_before_mpirun_begins(cluster):
    cluster.mpirun("exit 0")
    lead = cluster.lead(hosts="127.0.0.1,127.0.0.2,127.0.0.3")
    first = cluster.wait(1)
    first.until("has reported to node 0")
    first.close()
    again, other = cluster.wait(1), cluster.wait(2)
    assert [p.code() for p in (lead, again, other)] == [0, 0, 0]


# --- ends that come from outside --------------------------------------------------------------------------------------

COUNT_TERM = "n=0; trap 'n=$((n+1)); echo \"TERM $n\"' TERM; echo up; while [ $n -lt 1 ]; do sleep 0.05; done; exit 1"


def running(cluster: Cluster, script: str) -> tuple[Program, Program]:
    cluster.mpirun(script)
    wait, lead = cluster.wait(), cluster.lead()
    lead.until("\nup\n")
    return wait, lead


def test_a_killed_node_0_is_noticed_by_the_others(cluster):
    wait, lead = running(cluster, "echo up; exec sleep 1000")
    lead.process.kill()
    assert wait.code() == 1
    text = "node 0 (127.0.0.1) was lost before the job ended: it closed the connection"
    assert text in wait.said


def test_a_killed_waiting_node_ends_the_job(cluster):
    wait, lead = running(cluster, COUNT_TERM)
    wait.process.kill()
    assert lead.code() == 1
    assert "stopping mpirun: node 1 (127.0.0.3) was lost before the job ended" in lead.said
    assert "TERM 1" in lead.said


def test_a_waiting_node_that_is_stopped(cluster):
    wait, lead = running(cluster, COUNT_TERM)
    wait.process.send_signal(signal.SIGTERM)
    assert wait.code() == 128 + signal.SIGTERM
    assert "ended by SIGTERM while it waited for node 0" in wait.said
    assert lead.code() == 1
    assert read(lead.said.splitlines()[-1]) == "stopped on node 1 (127.0.0.3)"


def test_a_node_that_goes_with_its_first_word(cluster):
    """A stop may come at any moment: node 0 reads both lines at once."""
    cluster.mpirun("echo up; exec sleep 1000")
    lead = cluster.lead()
    lead.until("waiting, at most")
    with socket.create_connection(("127.0.0.1", cluster.port), timeout=SOON_S) as sock:
        sock.sendall(f"{hello(JOB, 1)}\n{STOPPED}\n".encode())
        assert lead.code() == 1
    assert read(lead.said.splitlines()[-1]) == "stopped on node 1 (127.0.0.3)"


def test_a_stop_reaches_mpirun_once(cluster):
    """A second SIGTERM makes mpirun leave at once, and everything lie that it started."""
    wait, lead = running(cluster, COUNT_TERM)
    os.killpg(lead.process.pid, signal.SIGTERM)
    assert (lead.code(), wait.code()) == (143, 143)
    assert lead.said.count("TERM ") == 1
    assert "node 0 has ended with code 143: stopped on node 0" in wait.said
    assert read(wait.said.splitlines()[-1]) == read(lead.said.splitlines()[-1]) == "stopped on node 0 (127.0.0.2)"


@pytest.mark.parametrize(
    ("why", "code", "told"), [(StopCause.HUNG, 143, "failed"), (StopCause.MAX_RUNTIME, 124, "timed out")]
)
def test_an_end_that_nobody_asked_for(cluster, why, code, told):
    """The supervisor says why it ends the program of its node, which tells the others; whatever mpirun exits with."""
    wait, lead = running(cluster, COUNT_TERM.replace("exit 1", "exit 0"))
    for number in (signal.SIGUSR1, signal.SIGUSR2):  # to everybody, by Slurm: they say nothing
        lead.process.send_signal(number)
        wait.process.send_signal(number)
    lead.process.send_signal(node_ends.signal_of(why))
    os.killpg(lead.process.pid, signal.SIGTERM)
    assert (lead.code(), wait.code()) == (code, code)
    assert read(wait.said.splitlines()[-1]) == f"{told} on node 0 (127.0.0.2)"
    wait, lead = running(cluster, COUNT_TERM)
    wait.process.send_signal(node_ends.signal_of(why))
    wait.process.send_signal(signal.SIGTERM)
    assert (wait.code(), lead.code()) == (143, 1 if code == 143 else code)
    assert read(lead.said.splitlines()[-1]) == f"{told} on node 1 (127.0.0.3)"


class _Interrupted(BaseException):
    pass


def test_why_it_ends_is_known_also_where_the_next_signal_comes_at_once():
    """The handler of the SIGTERM raises, and Python calls it wherever code of Python begins, also in a handler."""

    def interrupt(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename == mpi.__file__:
            raise _Interrupted

    number = node_ends.signal_of(StopCause.HUNG)
    before, args = {one: signal.getsignal(one) for one in (number, *process.USER_SIGNALS)}, argparse.Namespace()
    try:
        mpi.hear_why(args)
        with contextlib.suppress(_Interrupted):
            sys.setprofile(interrupt)
            signal.raise_signal(number)
    finally:
        sys.setprofile(None)
        for one, handler in before.items():
            signal.signal(one, handler)
    assert heard(args.heard) == FAILED


@pytest.mark.slow
def test_a_signal_for_us_alone_is_handed_on(cluster):
    wait, lead = running(cluster, COUNT_TERM)
    lead.process.send_signal(signal.SIGTERM)
    assert (lead.code(), wait.code()) == (143, 143)
    assert lead.said.count("TERM ") == 1


def test_a_stop_before_mpirun_begins(cluster):
    lead = cluster.lead(hosts="127.0.0.1,127.0.0.2,127.0.0.3")
    wait = cluster.wait()
    wait.until("has reported to node 0")
    os.killpg(lead.process.pid, signal.SIGTERM)
    assert (lead.code(), wait.code()) == (143, 143)
    assert "ended by SIGTERM before mpirun began" in lead.said


def test_nobody_at_node_0(cluster):
    wait = cluster.wait(timeout=1)
    assert wait.code() == 1
    told = f"node 0 (127.0.0.1) did not come within 1 s: port {cluster.port} at 127.0.0.1: Connection refused"
    assert told in wait.said


def test_another_jobs_node_0(cluster):
    lead = cluster.lead()
    lead.until("waiting, at most")
    wait = cluster.wait(job="job-2", timeout=1)
    assert wait.code() == 1
    assert "it refused this node: this port belongs to job job-1, not to job-2" in wait.said


def test_something_else_at_node_0s_port(cluster):
    cluster.port = cluster.sshd_port
    wait = cluster.wait(timeout=1)
    assert (wait.code(), "it answers 'SSH-2.0-test'" in wait.said) == (1, True)


@pytest.mark.parametrize("words", [[], ["lead"], ["wait", "--job-id=x"], ["lead", "--job-id=x", "--"]])
def test_a_wrong_command_line(cluster, words):
    program = cluster.start("n", words or ["--help-me"])
    assert (program.code(), "usage:" in program.said) == (2, True)


# --- the real mpirun --------------------------------------------------------------------------------------------------

needs_mpirun = pytest.mark.skipif(shutil.which("mpirun") is None, reason="needs mpirun: apt install openmpi-bin")
needs_sshd = pytest.mark.skipif(bool(sshd.missing()), reason=sshd.missing())


@needs_mpirun
@pytest.mark.system
def test_real_mpirun_on_one_node(cluster):
    cluster.no_stand_in()
    mpirun = ["mpirun", "-np", "3", "-hostfile", "h", "-tune", "e", "-bind-to", "none", "-map-by", "slot:OVERSUBSCRIBE"]
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    lead = cluster.lead(*mpirun, sys.executable, mpi_rank.__file__, "7", hosts="", **mpi_rank.AWKWARD, **env)
    assert lead.code() == 7, lead.said
    assert "all 3 ranks met, on 1 nodes" in lead.said
    assert "keyval parser" not in lead.said


@pytest.fixture
def sshds(cluster: Cluster) -> Iterator[Cluster]:
    """Two nodes as two addresses of the loopback, with an sshd of our own on both."""
    with sshd.running(cluster.folder / "ssh", ["127.0.0.2", "127.0.0.3"]) as (port, agent):
        cluster.sshd_port = port
        cluster.env["OMPI_MCA_plm_rsh_agent"] = str(agent)
        cluster.no_stand_in()
        yield cluster


def two_nodes(cluster: Cluster, *words: str) -> tuple[Program, Program]:
    command = [
        *("mpirun", "-np", "4", "-hostfile", "h", "-mca", "plm_rsh_args", f"-p {cluster.sshd_port}", "-tune", "e"),
        *("-bind-to", "none", "-map-by", "slot", "-x", "LR", "-x", "MASTER_ADDR", "-x", "MASTER_PORT"),
        *("-mca", "pml", "ob1", "-mca", "btl", "^openib", "-mca", "plm_rsh_no_tree_spawn", "true"),
    ]
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(cluster.port)} | mpi_rank.AWKWARD
    return cluster.wait(), cluster.lead(*command, sys.executable, mpi_rank.__file__, *words, timeout=SOON_S, **env)


@needs_mpirun
@needs_sshd
@pytest.mark.system
@pytest.mark.parametrize("code", [0, 7])
def test_real_mpirun_on_two_nodes(sshds, code):
    wait, lead = two_nodes(sshds, str(code))
    assert (lead.code(), wait.code()) == (code, code), lead.said
    assert "all 4 ranks met, on 2 nodes" in lead.said, "at the master port, with the environment whole"


def pids_of(lead: Program) -> list[int]:
    lead.until("all 4 ranks met")
    return [int(line.split()[1]) for line in lead.said.splitlines() if line.startswith("pid ")]


def stop_node_0(_: Program, lead: Program) -> None:
    os.killpg(lead.process.pid, signal.SIGTERM)


def kill_node_0(_: Program, lead: Program) -> None:
    os.killpg(lead.process.pid, signal.SIGKILL)


def kill_node_1(wait: Program, _: Program) -> None:
    wait.process.kill()


@needs_mpirun
@needs_sshd
@pytest.mark.system
@pytest.mark.parametrize(
    ("cause", "codes"), [(stop_node_0, (143, 143)), (kill_node_0, (-9, 1)), (kill_node_1, (1, -9))]
)
def test_no_rank_on_any_node_outlives_the_job(
    sshds: Cluster, cause: Callable[[Program, Program], None], codes: tuple[int, int]
) -> None:
    wait, lead = two_nodes(sshds, "stay")
    pids = pids_of(lead)
    assert len(pids) == 4
    cause(wait, lead)
    assert (lead.code(), wait.code()) == codes
    eventually(lambda: not any(alive(pid) for pid in pids), SOON_S, "the ranks have ended")
