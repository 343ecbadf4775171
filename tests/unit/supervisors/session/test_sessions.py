"""Sessions in a real supervisor, through its control socket: commands, streams, terminals, attached clients."""

import errno
import json
import os
import pty
import signal
import socket
import struct
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.probes.kernel import process
from muster.supervisors.launch.session_start import MAX_REQUEST
from muster.supervisors.wire import frames, messages
from muster.supervisors.wire.frames import MAX_DATA, WINDOW
from tests.unit.sessions import Attached, Node, Running
from tests.unit.supervision import until

PYTHON = (sys.executable, "-S", "-c")
MANY = 20 << 20


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Two ranks that wait; shared by tests that leave no session behind."""
    node = Node(tmp_path_factory.mktemp("node"))
    (Path(node.root.state) / "w").mkdir()
    yield node.start(
        *("sleep", "600"), ranks=2, env={"JOBS": "own", "PATH": os.environ["PATH"]},
        umask=0o027, nice=3, limits={"nofile": 333},
    )  # fmt: skip
    node.close()


@pytest.fixture(autouse=True)
def _hang_up(job: Running) -> Iterator[None]:
    """No test is left a session of another's."""
    yield
    job.hang_up()
    for one in job.sessions():
        if not one["exited"]:
            job.ask("end_session", session=one["session"])
    until(lambda: all(one["exited"] for one in job.sessions()), "all have ended")
    job.hang_up()


def pattern(size: int) -> bytes:
    """Bytes of which no two places look alike."""
    return b"".join(struct.pack("<Q", i * 2654435761) for i in range(size // 8))


# --- a command beside a rank ------------------------------------------------------------------------------------------


def test_a_command_with_its_output_apart_and_its_code(job):
    session = job.exec("sh", "-c", "echo out; echo err >&2; exit 7")
    assert session.finish() == {"exit_code": 7, "signal": 0, "message": ""}
    assert (session.out, session.err) == (b"out\n", b"err\n")
    assert session.answer | {"session": "", "pid": 0} == {
        "op": "exec", "ok": True, "session": "", "rank": 0, "pid": 0, "tty": False, "input": 0, "stdout": 0,
        "stderr": 0,
    }  # fmt: skip


def test_it_is_beside_its_rank_in_all_that_a_rank_has(job):
    show = (
        "import json,os,resource; print(json.dumps([dict(os.environ), os.getcwd(), os.umask(0), os.nice(0),"
        "resource.getrlimit(resource.RLIMIT_NOFILE), os.getsid(0) == os.getpgrp() == os.getpid(),"
        "open('/proc/self/oom_score_adj').read().strip(), os.readlink('/proc/self/fd/0'),"
        "sorted(map(int, os.listdir('/proc/self/fd')))]))"
    )
    session = job.exec(*PYTHON, show, rank=1, env={"TERM": "vt100", "JOBS": "mine", "MUSTER_NONCE": "forged"})
    assert session.finish()["exit_code"] == 0
    env, folder, umask, nice, files, leads, oom, stdin, fds = json.loads(session.out)
    rank = job.job.ranks[1]
    of_rank = dict(e.partition("=")[::2] for e in _environ(rank.pid))
    own = {"TERM": "vt100", "JOBS": "mine", "MUSTER_EXEC_ID": session.session}
    assert env | {"LC_CTYPE": ""} == of_rank | own | {"LC_CTYPE": ""}
    assert folder == os.readlink(f"/proc/{rank.pid}/cwd")
    assert (umask, nice, files, leads, oom, stdin) == (0o027, 3, [333, 333], True, "0", "/dev/null")
    assert fds == [0, 1, 2, 3], "nothing of the supervisor's is open, 3 is the listing itself"


def _environ(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/environ").read_bytes().decode().rstrip("\0").split("\0")


@pytest.mark.parametrize(
    ("fields", "code", "message"),
    [
        ({"argv": ["no-such-command-here"]}, 127, "not found in the PATH of the job's environment"),
        ({"argv": ["/no/such"]}, 127, "/no/such: not found"),
        ({"argv": ["/etc/passwd"]}, 126, "not executable (permission denied)"),
        ({"argv": ["true"], "workdir": "/no/folder"}, 125, "cannot enter the working folder /no/folder"),
        ({"argv": ["true"], "env": {"X" * 1000: "y" * 100_000, "PATH": "/bin:/usr/bin"}}, 0, ""),
        ({"argv": ["true", *["x" * 100_000] * 9]}, 0, ""),
        ({"argv": ["x" * 130_000]}, 126, "File name too long"),
    ],
)
def test_what_cannot_be_executed_is_reported_in_a_sentence(job, fields, code, message):
    end = Attached(job.connect()).begin(fields).finish()
    assert end["exit_code"] == code
    assert message in end["message"]


def test_a_killed_session_has_its_signal(job):
    assert job.exec("sh", "-c", "kill -9 $$").finish() == {"exit_code": 137, "signal": 9, "message": ""}


def test_a_program_of_its_own_may_end_with_127(job):
    assert job.exec("sh", "-c", "exit 127").finish() == {"exit_code": 127, "signal": 0, "message": ""}


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[]", b"null", b"7", b"\xff", b"{}", b'{"argv":null}', b'{"argv":[]}', b'{"argv":[""]}',
        b'{"argv":[1]}', b'{"argv":["a\\u0000b"]}', b'{"argv":["\\ud800"]}', b'{"argv":["a"],"env":{"":"x"}}',
        b'{"argv":["a"],"env":{"A=B":"x"}}', b'{"argv":["a"],"env":{"A":1}}', b'{"argv":["a"],"env":[1]}',
        b'{"argv":["a"],"rows":65536}', b'{"argv":["a"],"rows":-1}', b'{"argv":["a"],"columns":"x"}',
        b'{"argv":["a"],"rank":"0"}', b'{"argv":["a"],"grace_s":"x"}', b'{"argv":["a"],"grace_s":-1}',
        b'{"argv":["a"],"abandoned_s":NaN}', b'{"argv":["a"],"max_sessions":null}', b'{"argv":["a"],"by":1}',
        b'{"argv":["a"],"workdir":7}', b'{"argv":["' + b"x" * 131072 + b'"]}', b"[" * 60000,
        b'{"argv":[' + b",".join([b'"' + b"x" * 100_000 + b'"'] * 11) + b"]}",
    ],
)  # fmt: skip
def test_a_request_that_cannot_be_is_refused(job, body):
    answer = job.refusal(body or b" ")
    assert answer["reason"] == "INVALID"
    assert answer["error"]


@pytest.mark.parametrize("size", [0, -1, MAX_REQUEST + 1, True])
def test_a_request_without_a_size_that_may_be_is_refused(job, size):
    assert job.refusal(b"", size=size)["reason"] == "INVALID"


def test_a_connection_goes_on_behind_a_refusal_and_behind_a_client_that_is_not_attached(job):
    with job.connect() as sock:
        for body, wanted in ((b"{}", False), (b'{"argv":["true"],"detached":true,"abandoned_s":0}', True)):
            sock.sendall(messages.encode({"op": "exec", "size": len(body)}) + body)
            assert messages.decode(sock.recv(65536))["ok"] is wanted
        sock.sendall(messages.encode({"op": "sessions"}))
        assert messages.decode(sock.recv(65536))["ok"]


@pytest.mark.parametrize("rank", [2, -1, 10**6])
def test_a_rank_that_is_not_there(job, rank):
    answer = job.refusal({"argv": ["true"], "rank": rank})
    assert answer["reason"] == "RANK_NOT_RUNNING"
    assert "the ranks of this node are 0 to 1" in answer["error"]


def test_only_so_many_at_once(job):
    with job.exec("sleep", "60") as first, job.exec("sleep", "60", max_sessions=2) as second:
        answer = job.refusal({"argv": ["true"], "max_sessions": 2})
        assert answer["reason"] == "TOO_MANY"
        for session in (first, second):
            session.send(frames.SIGNAL, signal.SIGKILL)
            session.finish()
    assert job.exec("true", max_sessions=1).finish()["exit_code"] == 0
    assert job.refusal({"argv": ["true"], "max_sessions": 0})["reason"] == "TOO_MANY"


# --- streams ----------------------------------------------------------------------------------------------------------


def test_much_output_comes_whole(job):
    session = job.exec(*PYTHON, f"import sys; sys.stdout.buffer.write(b'0123456789abcdef' * {MANY // 16})")
    assert session.finish()["exit_code"] == 0
    assert session.out == b"0123456789abcdef" * (MANY // 16)
    assert session.jumped == 0


def _feed(session: Attached, data: bytes, close: bool = True) -> None:
    """All of it, as far as is acknowledged; other end: `step`."""
    while session.end is None and session.taken < len(data):
        while session.sent < min(len(data), session.taken + WINDOW):
            session.type(data[session.sent : min(session.sent + MAX_DATA, session.taken + WINDOW, len(data))])
        assert session.step()
    if close and session.end is None:
        session.close_input()


def test_much_input_goes_in_and_comes_back_over_broken_connections(job):
    """A client that attaches again sends what was not acknowledged, and goes on behind what it has."""
    data = pattern(MANY)
    session = job.exec("cat", stdin=True)
    out = bytearray()
    for part in range(1, 9):
        _feed(session, data[: len(data) * part // 9], close=False)
        session.sock.close()
        out += session.out
        taken = session.taken
        session = job.attach(session.session, len(out), 0)
        assert session.answer["input"] >= taken
        session.taken, session.sent = taken, taken  # what was not acknowledged is sent again
    _feed(session, data)
    assert session.finish()["exit_code"] == 0
    assert out + session.out == data
    assert session.jumped == 0


def test_who_does_not_acknowledge_gets_a_window_full_and_the_command_waits(job):
    session = job.exec(*PYTHON, f"import os\nfor _ in range({MANY // 65536}): os.write(1, b'x' * 65536)")
    session.acks = False
    while session.at[frames.STDOUT] < WINDOW:
        assert session.step()
    session.sock.settimeout(0.3)
    with pytest.raises(TimeoutError):
        session.step()
    assert session.at[frames.STDOUT] == WINDOW
    session.sock.settimeout(None)
    session.acks = True
    session.ack()
    assert session.finish()["exit_code"] == 0
    assert (len(session.out), session.jumped) == (MANY, 0)


def test_who_comes_back_soon_has_lost_nothing(job):
    """As behind a restart of the daemon: what was not acknowledged comes again, and the command waits meanwhile."""
    session = job.exec(*PYTHON, f"import os\nfor i in range({4 * WINDOW // 8}): os.write(1, b'%07d\\n' % i)")
    session.acks = False
    while len(session.out) < WINDOW // 2:
        session.step()
    session.sock.close()
    had = len(session.out) // 3
    again = job.attach(session.session, had)
    assert again.answer["stdout"] == had
    assert again.finish()["exit_code"] == 0
    assert session.out[:had] + again.out == b"".join(b"%07d\n" % i for i in range(4 * WINDOW // 8))


def test_of_a_detached_one_the_last_output_is_kept_and_the_offset_tells(job):
    write = f"""
import fcntl, os, termios, time
for i in range({3 * WINDOW // 8}): os.write(1, b'%07d\\n' % i)
while any(fcntl.ioctl(1, termios.FIONREAD, bytes(4))): time.sleep(0.01)
open('done', 'w')
os.read(0, 1)
"""
    session = job.exec(*PYTHON, write, stdin=True)
    session.send(frames.DETACH)
    while session.left is None:
        assert session.step()
    assert not session.step(), "the connection is closed behind it"
    assert session.left == {"message": "detached"}
    done = Path(f"/proc/{session.pid}/cwd/done")  # in its folder, once it is there
    until(done.exists, "all was written though nobody reads")
    done.unlink()
    (listed,) = (one for one in job.sessions() if one["session"] == session.session)
    assert (listed["attached"], listed["detached"]) == (False, True)
    again = job.attach(session.session)
    assert again.answer["stdout"] >= 2 * WINDOW
    again.close_input()
    assert again.finish()["exit_code"] == 0
    assert again.out == b"".join(b"%07d\n" % i for i in range(3 * WINDOW // 8))[again.answer["stdout"] :]


def test_a_command_that_does_not_read_does_not_hold_its_client_up(job):
    session = job.exec("sleep", "600", stdin=True)
    data = b"x" * MAX_DATA
    for _ in range(WINDOW // MAX_DATA):
        session.type(data)
    session.send(frames.SIGNAL, signal.SIGTERM)
    assert session.finish()["exit_code"] == 143
    assert session.taken == WINDOW, "what nobody takes any more counts as taken"


def test_input_for_a_command_that_has_closed_it_is_thrown_away(job):
    session = job.exec("sh", "-c", "exec 0<&-; echo closed; exec sleep 600", stdin=True).until(b"closed")
    _feed(session, b"y" * (3 * WINDOW))
    assert session.taken == 3 * WINDOW
    session.send(frames.SIGNAL, signal.SIGTERM)
    assert session.finish()["signal"] == signal.SIGTERM


def test_input_for_a_command_that_wants_none_is_thrown_away(job):
    session = job.exec("sleep", "600")
    _feed(session, b"y" * 1000)
    session.send(frames.SIGNAL, signal.SIGTERM)
    assert (session.finish()["signal"], session.taken) == (signal.SIGTERM, 1000)


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("full", [False, True])
def test_input_of_who_attaches_behind_its_end_is_thrown_away(job, terminal, full):
    """Nobody can know that another has closed it: a client that is sent away would attach again, and again."""
    idle = "stty -icanon -echo 2>&-; trap 'echo closed' USR1; echo ready; while :; do sleep 0.05; done"
    session = job.exec("sh", "-c", idle, tty=terminal, stdin=True).until(b"ready")
    for _ in range(8 if full else 0):  # what came before the end is still to be taken
        session.type(b"x" * MAX_DATA)
    session.close_input()
    session.send(frames.SIGNAL, signal.SIGUSR1)
    session.until(b"closed")
    again = job.attach(session.session)
    assert again.sent == session.sent
    if full:
        again.type(b"y" * MAX_DATA)
    else:
        _feed(again, b"y" * (3 * WINDOW), close=False)
        assert again.taken == 3 * WINDOW
    again.close_input()
    again.send(frames.SIGNAL, signal.SIGTERM)
    assert again.finish()["signal"] == signal.SIGTERM
    assert again.taken == again.sent


def test_a_signal_that_comes_before_the_command_is_one_ends_it(job):
    for _ in range(20):
        session = job.exec("sleep", "600")
        session.send(frames.SIGNAL, signal.SIGTERM)
        assert session.finish()["signal"] == signal.SIGTERM


def test_the_end_of_input_comes_behind_all_of_it(job):
    session = job.exec("sh", "-c", "sleep 0.1; wc -c", stdin=True)
    for _ in range(8):
        session.type(b"x" * MAX_DATA)
    session.close_input()
    session.close_input()
    assert session.finish()["exit_code"] == 0
    assert session.out.strip() == b"%d" % (8 * MAX_DATA)


def test_a_child_that_keeps_the_pipe_does_not_keep_the_session(job):
    session = job.exec("sh", "-c", "sleep 600 & echo $!")
    assert session.finish()["exit_code"] == 0
    os.kill(int(session.out), signal.SIGKILL)


def test_a_child_that_writes_for_ever_does_not_keep_the_session(job):
    session = job.exec("sh", "-c", "yes & echo pid $!; sleep 0.05")
    assert session.finish()["exit_code"] == 0
    line = next(line for line in session.out.split(b"\n") if line.startswith(b"pid "))
    until(lambda: process.read_stat(int(line.split()[1])) is None, "it ends as nobody reads any more")


def test_output_of_the_last_moment_is_not_lost(job):
    for _ in range(20):
        session = job.exec(*PYTHON, "import os; os.write(1, b'a' * 65536); os.write(2, b'b' * 65536); os._exit(4)")
        assert session.finish()["exit_code"] == 4
        assert (len(session.out), len(session.err)) == (65536, 65536)


# --- garbage ----------------------------------------------------------------------------------------------------------


def _frame(*numbers: int, kind: bytes = frames.INPUT, data: bytes = b"") -> bytes:
    return frames.TO_SESSION.encode(kind, *numbers, data=data)


@pytest.mark.parametrize(
    "garbage",
    [
        b"\0" * 9, b"O\0\0\0\x08" + b"\0" * 8, b"I\xff\xff\xff\xff", b'{"op":"sessions"}\n' * 3,
        _frame(5, data=b"gap"), _frame(1, kind=frames.CLOSE), _frame(10**9, 0, kind=frames.ACK),
        _frame(0, kind=frames.SIGNAL), _frame(64, kind=frames.SIGNAL),
    ],
)  # fmt: skip
def test_a_client_that_sends_garbage_is_dropped_and_the_session_stays(job, garbage):
    session = job.exec("sh", "-c", "cat; echo bye; sleep 0.2", stdin=True)
    session.sock.sendall(garbage)
    while session.step():
        pass
    assert session.end is None
    again = job.attach(session.session)
    again.type(b"hello ")
    again.close_input()
    assert again.finish()["exit_code"] == 0
    assert again.out in (b"hello bye\n", b"bye\n", b"")


def test_more_input_than_the_window_is_a_fault(job):
    session = job.exec("sleep", "600", stdin=True)
    with pytest.raises(OSError, match=r"peer|pipe"):
        for _ in range(2 * WINDOW // MAX_DATA + 8):
            session.type(b"x" * MAX_DATA)
        while session.step():
            pass
        raise BrokenPipeError(errno.EPIPE, "Broken pipe: it was dropped while it waited")
    assert job.ask("end_session", session=session.session)["ok"]


# --- who is attached --------------------------------------------------------------------------------------------------


def test_the_newest_client_wins_and_the_old_one_learns_it(job):
    first = job.exec("cat", stdin=True)
    first.type(b"one\n")
    first.until(b"one\n")
    second = job.attach(first.session, 4)
    while first.left is None:
        assert first.step()
    assert first.left == {"message": "another client attached to the session"}
    assert not first.step()
    second.sent = second.answer["input"]
    second.type(b"two\n")
    second.close_input()
    assert second.finish()["exit_code"] == 0
    assert second.out == b"two\n"


@pytest.mark.parametrize("stdout", [5, -1, "x", True])
def test_an_offset_that_never_was_is_refused_and_nobody_is_sent_away(job, stdout):
    session = job.exec("cat", stdin=True)
    answer = job.ask("attach", session=session.session, stdout=stdout)
    assert (answer["ok"], answer["reason"]) == (False, "INVALID")
    session.close_input()
    assert session.finish()["exit_code"] == 0


@pytest.mark.parametrize("op", ["attach", "end_session"])
@pytest.mark.parametrize("session", ["nobody", "", None, 7])
def test_a_session_that_is_not_there(job, op, session):
    answer = job.ask(op, session=session)
    assert (answer["ok"], answer["reason"]) == (False, "SESSION_NOT_FOUND")


def test_an_end_that_nobody_has_had_is_kept_until_somebody_has(job):
    session = job.exec("sh", "-c", "echo last; read x; exit 5", stdin=True).until(b"last")
    pidfd = os.pidfd_open(session.pid)
    session.sock.close()
    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    os.close(pidfd)
    ended = {"exit_code": 137, "signal": 9, "message": ""}
    until(lambda: [s["exited"] for s in job.sessions() if s["session"] == session.session] == [ended], "it has ended")
    assert job.attach(session.session, 0).finish() == ended
    until(lambda: not [s for s in job.sessions() if s["session"] == session.session], "it is not kept")
    assert job.attach(session.session).finish() == ended, "who lost the connection at that moment can ask again"


def test_a_session_without_client_is_ended(job, tmp_path):
    note = tmp_path / "note"
    tmp_path.chmod(0o777)
    session = job.exec(
        *("sh", "-c", f"trap 'echo hung up > {note}; exit 1' HUP; echo ready; while :; do sleep 0.02; done"),
        tty=True, stdin=True, abandoned_s=0.1,
    ).until(b"ready")  # fmt: skip
    session.sock.close()
    until(note.exists, "it got SIGHUP")
    until(lambda: not [s for s in job.sessions() if s["session"] == session.session], "and is forgotten")


def test_a_time_limit(job):
    end = job.exec("sleep", "600", time_limit_s=0.05).finish()
    assert end == {"exit_code": 143, "signal": 15, "message": "it reached its time limit of 0.05 s"}


def test_one_is_ended_on_request_with_all_that_it_started(job):
    session = job.exec(
        *("sh", "-c", "trap '' TERM HUP; setsid sleep 601 & setsid -f sleep 602; echo $$; while :; do sleep 603; done"),
        grace_s=0.1,
    ).until(b"\n")  # fmt: skip
    mark = f"MUSTER_EXEC_ID={session.session}".encode()

    def living() -> list[int]:
        return [s.pid for s in process.all_stats().values() if not s.ended and process.environ_has(s.pid, mark)]

    until(lambda: len(living()) >= 4, "all of it runs")
    assert job.ask("end_session", session=session.session)["ok"]
    assert job.ask("end_session", session=session.session)["ok"]
    assert session.finish() == {"exit_code": 137, "signal": 9, "message": "a client asked it to end"}
    until(lambda: not living(), "nothing of it is left")


def test_a_detached_one_from_the_beginning(job):
    with job.connect() as sock:
        body = json.dumps({"argv": ["sh", "-c", "echo hello; exit 3"], "detached": True, "by": "somebody"}).encode()
        sock.sendall(messages.encode({"op": "exec", "size": len(body)}) + body)
        answer = messages.decode(sock.recv(65536))
    (one,) = until(lambda: [s for s in job.sessions() if s["session"] == answer["session"] and s["exited"]], "its end")
    assert one["exited"]["exit_code"] == 3
    assert (one["by"], one["command"], one["detached"], one["rank"]) == ("somebody", "sh", True, 0)
    assert one["pid"] == answer["pid"]
    session = job.attach(answer["session"])
    assert (session.finish()["exit_code"], session.out) == (3, b"hello\n")


# --- terminals --------------------------------------------------------------------------------------------------------


def test_a_terminal_is_the_controlling_one_and_has_its_size(job):
    session = job.exec(
        *("sh", "-c", "stty size; stat -Lc '%a %u' /dev/stdin; echo tty > /dev/tty; test -t 2 && exit 9"),
        tty=True, stdin=True, rows=7, columns=65535,
    )  # fmt: skip
    assert session.finish()["exit_code"] == 9
    assert session.out == b"7 65535\r\n620 %d\r\ntty\r\n" % os.getuid()
    assert not session.err


_WINCH = """
import os, signal
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGWINCH})
print("ready", flush=True)
while signal.sigwait({signal.SIGWINCH}): print(*os.get_terminal_size(0), flush=True)
"""


def test_a_window_that_changes(job):
    session = job.exec(*PYTHON, _WINCH, tty=True, stdin=True, rows=0, columns=0).until(b"ready")
    for rows, columns in ((30, 100), (65535, 65535), (0, 0), (0, 0)):
        del session.out[:]
        session.send(frames.SIZE, rows, columns)
        session.until(b"%d %d\r\n" % (columns, rows))
    session.send(frames.SIGNAL, signal.SIGKILL)
    assert session.finish()["signal"] == 9


def test_a_size_without_a_terminal_is_nothing(job):
    session = job.exec("cat", stdin=True)
    session.send(frames.SIZE, 1, 2)
    session.close_input()
    assert session.finish()["exit_code"] == 0


def test_keys_of_a_terminal(job):
    session = job.exec("sh", "-c", "trap 'echo INT' INT; cat; echo code $?", tty=True, stdin=True)
    session.type(b"x\n")
    session.until(b"x\r\nx\r\n")  # the terminal's echo, then the command's
    session.type(b"\x03")
    session.until(b"INT\r\ncode 130\r\n")
    assert session.finish()["exit_code"] == 0


@pytest.mark.parametrize("typed", [b"", b"half a line", b"a line\n", b"a\nhalf"])
def test_the_end_of_input_of_a_terminal(job, typed):
    session = job.exec("sh", "-c", "stty -echo; echo ready; cat; echo end", tty=True, stdin=True).until(b"ready\r\n")
    if typed:
        session.type(typed)
    session.close_input()
    assert session.finish()["exit_code"] == 0
    assert session.out == b"ready\r\n" + typed.replace(b"\n", b"\r\n") + b"end\r\n"


def test_in_raw_mode_the_end_of_input_is_a_byte(job):
    read = "import os, tty; tty.setraw(0); print('ready', flush=True); d = os.read(0, 9); print(d, flush=True)"
    session = job.exec(*PYTHON, read, tty=True, stdin=True).until(b"ready")
    session.close_input()
    session.until(rb"b'\x04'")
    assert session.finish()["exit_code"] == 0


def test_a_terminal_that_the_command_closes_and_opens_again(job):
    session = job.exec("sh", "-c", "exec <&- >&- 2>&-; sleep 0.1; echo again > /dev/tty; exit 6", tty=True, stdin=True)
    assert session.finish()["exit_code"] == 6
    assert session.out == b"again\r\n"


def test_much_through_a_raw_terminal_in_both_directions(job):
    data = pattern(MANY // 8)
    copy = (
        f"import os, tty\ntty.setraw(0)\nprint('ready', end='', flush=True)\nleft = {len(data)}\nwhile left:\n"
        " d = os.read(0, left)\n left -= len(d)\n while d: d = d[os.write(1, d):]"
    )
    session = job.exec(*PYTHON, copy, tty=True, stdin=True).until(b"ready")
    _feed(session, data, close=False)
    assert session.finish()["exit_code"] == 0
    assert session.out == b"ready" + data


@pytest.mark.parametrize("terminal", [True, False])
def test_a_signal_for_the_foreground(job, terminal):
    """Of a terminal the job that is in front; else the session's first group."""
    set_up = "-mc" if terminal else "-c"
    session = job.exec(
        *("sh", set_up, "sh -c 'echo $$; exec sleep 600'; echo ended $?"), tty=terminal, stdin=terminal
    ).until(b"\n")
    inner = int(session.out)
    session.send(frames.SIGNAL, signal.SIGUSR1)
    end = session.finish()
    if terminal:
        assert end["exit_code"] == 0
        assert session.out.endswith(b"ended %d\r\n" % (128 + signal.SIGUSR1))
    else:
        assert end["signal"] == signal.SIGUSR1
    until(lambda: process.read_stat(inner) is None, "it got it")


def test_a_signal_for_a_foreground_whose_first_process_has_gone(job):
    session = job.exec(
        *("sh", "-mc", "true | sh -c 'echo $$; exec sleep 600'; echo ended $?"), tty=True, stdin=True
    ).until(b"\n")
    session.send(frames.SIGNAL, signal.SIGWINCH)  # which ends nobody
    session.send(frames.SIGNAL, signal.SIGUSR1)
    assert session.finish()["exit_code"] == 0
    assert session.out.endswith(b"ended %d\r\n" % (128 + signal.SIGUSR1))


@pytest.mark.parametrize("command", ["sleep 600", "true | sh -c 'echo; exec sleep 600'"])
def test_a_flood_of_signals_does_not_hold_the_supervisor_up(job, command):
    """20,000 would take minutes, were all processes of the node looked at for each."""
    session = job.exec("sh", "-mc", f"trap '' USR1; echo; {command}", tty=True, stdin=True).until(b"\n")
    session.acks = False  # it is about to be sent away
    session.sock.sendall(frames.TO_SESSION.encode(frames.SIGNAL, signal.SIGUSR1) * 20_000)
    session.send(frames.DETACH)
    while session.step():
        pass
    assert session.left
    assert job.ask("end_session", session=session.session)["ok"]


# --- nothing is left over ---------------------------------------------------------------------------------------------


def _held(pid: int) -> tuple[int, int, int]:
    """Open descriptors, children, bytes of its own memory."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    own = sum(
        int(line.split()[1]) for line in rollup.splitlines() if line.startswith(("Private_Clean", "Private_Dirty"))
    )
    children = sum(stat.ppid == pid for stat in process.all_stats().values())
    return len(os.listdir(f"/proc/{pid}/fd")), children, own * 1024


def test_hundreds_of_sessions_leave_nothing(job):
    supervisor = job.supervisor

    def some(count: int) -> None:
        for i in range(count):
            session = job.exec("echo", "x" * 1000, tty=i % 3 == 0, stdin=i % 2 == 0)
            if i % 5 == 0:
                session.sock.close()  # lost, and its end kept
            else:
                assert session.finish()["exit_code"] == 0

    def settled() -> tuple[int, int, int]:
        until(lambda: all(s["exited"] for s in job.sessions()), "all have ended")
        return _held(supervisor)

    some(30)
    fds, children, memory = settled()
    some(200)
    fds_then, children_then, memory_then = settled()
    assert abs(fds_then - fds) <= 3, "connections that are just being closed, and no more"
    assert children_then == children
    assert memory_then < memory + (3 << 20)
    assert len(job.sessions()) <= 256


def test_ends_that_nobody_wants_are_kept_within_bounds(job):
    """Each with a megabyte of output."""
    write = f"import os; os.write(1, b'x' * {WINDOW - 1})"
    body = json.dumps({"argv": [*PYTHON, write], "detached": True}).encode()
    ids = []
    for _ in range(20):
        with job.connect() as sock:
            sock.sendall(messages.encode({"op": "exec", "size": len(body)}) + body)
            ids.append(messages.decode(sock.recv(65536))["session"])
    until(lambda: all(s["exited"] for s in job.sessions()), "all have ended")
    kept = {s["session"] for s in job.sessions()}
    assert len(kept & set(ids)) == 16
    assert ids[0] not in kept


def test_a_flood_disturbs_neither_the_ranks_nor_another_session(job):
    """Sessions that write as fast as they can, to clients that read it all."""
    floods = [job.exec("yes") for _ in range(3)]

    def drink(session: Attached) -> None:
        while session.step():
            del session.out[:]

    threads = [threading.Thread(target=drink, args=(flood,)) for flood in floods]
    for thread in threads:
        thread.start()
    try:
        for _ in range(20):
            assert job.exec("echo", "quick").finish()["exit_code"] == 0
    finally:
        for flood in floods:
            flood.send(frames.SIGNAL, signal.SIGKILL)
        for thread, flood in zip(threads, floods, strict=True):
            until(lambda: flood.end is not None, "it has ended")  # noqa: B023  (called at once)
            flood.sock.shutdown(socket.SHUT_RDWR)
            thread.join()


def test_the_devices_of_terminals_are_given_back(job):
    before = set(os.listdir("/dev/pts"))
    for _ in range(30):
        assert job.exec("true", tty=True, stdin=True).finish()["exit_code"] == 0
    master, slave = pty.openpty()
    number = int(os.ttyname(slave).rpartition("/")[2])
    os.close(master)
    os.close(slave)
    assert number <= len(before) + 8
