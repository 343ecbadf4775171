"""`muster exec -it` at a pseudo terminal."""

import contextlib
import fcntl
import hashlib
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import BIN, Daemon, alive, eventually

MUSTER = str(BIN / "muster")
FOREVER = ("sleep", "100000")


class Terminal:
    """A person at a terminal of 40 rows and 100 columns, with `muster exec` in front."""

    def __init__(self, daemon: Daemon, *args: str) -> None:
        self.master, self.slave = pty.openpty()
        self.resize(40, 100)
        self.before = termios.tcgetattr(self.slave)
        env = dict(os.environ, MUSTER_ROOT=str(daemon.folder), TERM="vt220")
        self.process = subprocess.Popen(
            ["setsid", "--ctty", MUSTER, "exec", *args],
            env=env,
            stdin=self.slave,
            stdout=self.slave,
            stderr=self.slave,
        )
        self.seen = b""

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))

    def type(self, data: bytes) -> None:
        os.write(self.master, data)

    def expect(self, pattern: bytes, seconds: float = 60.0) -> "re.Match[bytes]":
        """Reads until it is there, and drops what is before it and it."""
        deadline = time.monotonic() + seconds
        while (found := re.search(pattern, self.seen, re.DOTALL)) is None:
            left = deadline - time.monotonic()
            assert left > 0, f"no {pattern!r} in {self.seen!r}"
            if select.select([self.master], [], [], left)[0]:
                self.seen += os.read(self.master, 65536)
        self.seen = self.seen[found.end() :]
        return found

    def ended(self) -> int:
        return self.process.wait(timeout=60)

    @property
    def is_raw(self) -> bool:
        return not termios.tcgetattr(self.slave)[3] & termios.ICANON

    @property
    def is_as_before(self) -> bool:
        return termios.tcgetattr(self.slave) == self.before

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.slave)
        os.close(self.master)


@contextlib.contextmanager
def at(daemon: Daemon, *args: str) -> Iterator[Terminal]:
    terminal = Terminal(daemon, *args)
    try:
        yield terminal
    finally:
        terminal.close()


@pytest.fixture(scope="module")
def node(shared: Daemon) -> Daemon:
    """A daemon with the job j of one rank."""
    shared.run(*FOREVER, job_id="j")
    shared.until_running("j")
    return shared


def quietly(daemon: Daemon, *args: str) -> Any:
    return daemon.cli("exec", *args, stdin=subprocess.DEVNULL)


def test_the_command_has_a_terminal_of_our_size_and_kind(node):
    script = "test -t 0 && test -t 1 && test -t 2 && tty && stty size && echo $TERM && ps -o tpgid=,pgid= -p $$"
    with at(node, "-it", "j", "--", "sh", "-c", script) as terminal:
        terminal.expect(rb"/dev/pts/\d+\r\n40 100\r\nvt220\r\n")
        foreground, group = terminal.expect(rb"(\d+) +(\d+)").groups()
        assert foreground == group
        assert terminal.ended() == 0
        assert terminal.is_as_before
    with at(node, "-it", "-e", "TERM=other", "j", "--", "sh", "-c", "echo $TERM") as terminal:
        terminal.expect(b"other")


def test_a_python_prompt(node):
    # Newer versions of Python colour the prompt and redraw the line.
    plain = ("-e", "PYTHON_BASIC_REPL=1", "-e", "NO_COLOR=1")
    with at(node, "-it", *plain, "j", "--", "python3", "-q") as terminal:
        terminal.expect(b">>> ")
        terminal.type(b"6*7\r")
        terminal.expect(b"\n42\r\n>>> ")
        terminal.type(b"\x04")
        assert terminal.ended() == 0
        assert terminal.is_as_before


def test_the_command_sees_another_terminal_size(node):
    script = 'trap "stty size" WINCH; echo ready; while :; do sleep 0.05; done'
    with at(node, "-it", "j", "--", "sh", "-c", script) as terminal:
        terminal.expect(b"ready\r\n")
        terminal.resize(24, 80)
        terminal.expect(b"24 80\r\n")
        terminal.resize(65535, 0)
        terminal.expect(b"65535 0\r\n")


def test_ctrl_c_is_the_commands(node):
    script = 'trap "echo got it; exit 9" INT; echo ready; while :; do sleep 0.05; done'
    with at(node, "-it", "j", "--", "sh", "-c", script) as terminal:
        terminal.expect(b"ready\r\n")
        assert terminal.is_raw
        terminal.type(b"\x03")
        terminal.expect(b"got it")
        assert terminal.ended() == 9
        assert terminal.is_as_before


def test_ctrl_z_is_the_commands_and_fg_brings_it_back(node):
    with at(node, "-it", "j", "--", "bash", "--norc", "-i") as terminal:
        terminal.expect(rb"[$#] ")
        terminal.type(b"(echo up; exec cat)\r")
        terminal.expect(rb"[\r\n]up\r\n")  # it is in the foreground: before, the shell itself would get what is typed
        terminal.type(b"\x1a")
        terminal.expect(rb"Stopped.*[$#] ")
        assert terminal.process.poll() is None
        terminal.type(b"fg\r")
        terminal.expect(rb"fg\r\n.*exec cat *\)\r\n")
        terminal.type(b"words\r")
        terminal.expect(b"words\r\nwords\r\n")
        terminal.type(b"\x04")
        terminal.expect(rb"[$#] ")
        terminal.type(b"exit 5\r")
        assert terminal.ended() == 5


def test_characters_arrive_whole_however_they_are_cut(node):
    with at(node, "-it", "j", "--", "sh", "-c", "stty raw -echo; echo ready; cat") as terminal:
        terminal.expect(b"ready")
        text = "Grüße, 世界 🚀".encode()
        for byte in text:
            terminal.type(bytes([byte]))
        terminal.expect(re.escape(text))


def test_a_big_paste_and_much_output(node):
    with at(node, "-it", "j", "--", "sh", "-c", "stty raw -echo; echo ready; head -c 300000 | md5sum") as terminal:
        terminal.expect(b"ready")
        data = bytes(range(32, 127)) * 3158
        for start in range(0, 300_000, 4096):
            terminal.type(data[start : min(start + 4096, 300_000)])
        terminal.expect(hashlib.md5(data[:300_000]).hexdigest().encode())
    with at(node, "-it", "j", "--", "seq", "1", "200000") as terminal:
        terminal.expect(b"\r\n200000\r\n")
        assert terminal.ended() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_the_terminal_is_restored_when_we_are_ended(node, number):
    with at(node, "-it", "j", "--", "sh", "-c", "echo pid $$; exec sleep 1000") as terminal:
        pid = int(terminal.expect(rb"pid (\d+)\r\n").group(1))
        assert terminal.is_raw
        terminal.process.send_signal(number)
        assert terminal.ended() == 128 + number
        assert terminal.is_as_before
        session = terminal.expect(rb"--attach (\w+) j").group(1).decode()
        assert alive(pid)
    assert quietly(node, "--end", session, "j").returncode == 0
    eventually(lambda: not alive(pid))


def test_the_terminal_is_restored_when_the_daemon_is_gone(daemon):
    daemon.run(*FOREVER, job_id="j")
    daemon.until_running("j")
    with at(daemon, "-it", "j", "--", "sh", "-c", "echo ready; cat") as terminal:
        terminal.expect(b"ready\r\n")
        daemon.kill()
        terminal.expect(b"attaching to session")
        eventually(lambda: terminal.is_raw)
        terminal.type(b"\x03")  # which nobody else could take
        assert terminal.ended() == 130
        assert terminal.is_as_before


def test_a_terminal_goes_on_over_a_restart_of_the_daemon(daemon):
    daemon.run(*FOREVER, job_id="j")
    daemon.until_running("j")
    with at(daemon, "-it", "j", "--", "sh", "-c", "stty -echo; echo ready; cat") as terminal:
        terminal.expect(b"ready\r\n")
        terminal.type(b"one\r")
        terminal.expect(b"one\r\n")
        daemon.kill()
        terminal.expect(b"attaching to session")
        terminal.type(b"two\r")
        terminal.resize(30, 90)
        daemon.restart()
        terminal.expect(b"again\r\n.*two\r\n")
        assert terminal.is_raw
        terminal.type(b"\x04")
        assert terminal.ended() == 0


def test_suspended_from_outside_it_gives_the_terminal_back_and_takes_it_again(node):
    with at(node, "-it", "j", "--", "sh", "-c", "echo ready; cat") as terminal:
        terminal.expect(b"ready\r\n")
        terminal.process.send_signal(signal.SIGTSTP)
        eventually(lambda: state(terminal.process.pid) == "T")
        assert terminal.is_as_before
        terminal.process.send_signal(signal.SIGCONT)
        eventually(lambda: terminal.is_raw)
        terminal.type(b"words\r")
        terminal.expect(b"words\r\nwords\r\n")
        terminal.type(b"\x04")
        assert terminal.ended() == 0
        assert terminal.is_as_before


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_detach_keys_leave_the_session_and_attach_finds_it(node):
    with at(node, "-it", "--detach-keys", "ctrl-p,ctrl-q", "j", "--", "sh", "-c", "stty -echo; echo ready; cat") as one:
        one.expect(b"ready\r\n")
        one.type(b"a\x10b\r")  # the first of the keys alone is passed on with what follows
        one.expect(rb"a\x10b|a\^Pb")
        one.type(b"\x10\x11")
        session = one.expect(rb"--attach (\w+) j").group(1).decode()
        assert one.ended() == 0
        assert one.is_as_before
    with at(node, "--attach", session, "j") as two:
        eventually(lambda: two.is_raw)
        two.type(b"here again\r")
        two.expect(b"here again\r\n")
        two.type(b"\x04")
        assert two.ended() == 0


def test_a_detached_client_prints_the_reason(node):
    with at(node, "-it", "j", "--", "sh", "-c", "echo ready; cat") as one:
        one.expect(b"ready\r\n")
        listed = quietly(node, "--list", "j").stdout
        session = re.search(r"^(\w+) .* attached ", listed, re.MULTILINE)
        assert session, listed
        with at(node, "--attach", session.group(1), "j") as two:
            one.expect(b"another client attached")
            assert one.ended() == 125
            assert one.is_as_before
            eventually(lambda: two.is_raw)  # before that the terminal takes the key for itself
            two.type(b"\x04")
            assert two.ended() == 0


def test_a_job_that_ends_restores_the_terminal(daemon):
    daemon.run(*FOREVER, job_id="j")
    daemon.until_running("j")
    with at(daemon, "-it", "j", "--", "sh", "-c", "echo ready; cat") as terminal:
        terminal.expect(b"ready\r\n")
        daemon.stop("j", grace_s=1)
        assert terminal.ended() in (129, 143)  # whichever of the two signals was first
        terminal.expect(b"ended with the ranks of the job")
        assert terminal.is_as_before
