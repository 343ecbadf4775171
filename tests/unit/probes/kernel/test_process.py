import contextlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from typing import IO, Any

import pytest

from muster.probes.kernel import process
from muster.probes.kernel.process import final_status
from muster.probes.kernel.procfs import Procfs
from tests.unit.supervision import in_own_process, until, wait_ended

EXIT_7 = 7 << 8


def stat_of(pid: int) -> process.Stat:
    """Of a process that was not waited for."""
    stat = process.read_stat(pid)
    assert stat is not None
    return stat


def start_of(pid: int) -> int:
    return stat_of(pid).start


@contextlib.contextmanager
def running(*argv: str, **how: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A child that waits for its stdin's end, by default; gone afterwards."""
    child = subprocess.Popen(argv or ("cat",), stdin=subprocess.PIPE, stdout=subprocess.PIPE, **how)
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


@contextlib.contextmanager
def parent_of(script: str) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """A grandchild that executes `script`, and its parent, which waits for it once it reads a line on stdin."""
    code = f"""
        import os, sys
        pid = os.fork()
        if pid == 0:
            import resource, signal
            {script}
        os.write(1, b"%d\\n" % pid)
        sys.stdin.readline()
        os.waitpid(pid, 0)
        os.write(1, b"waited\\n")
        sys.stdin.readline()
    """
    with running(sys.executable, "-c", textwrap.dedent(code)) as child:
        yield int(_line(child.stdout)), child


def _line(pipe: IO[bytes] | None) -> bytes:
    assert pipe is not None
    return pipe.readline()


def tell(child: subprocess.Popen[bytes]) -> None:
    assert child.stdin is not None
    child.stdin.write(b"\n")
    child.stdin.flush()


needs_pidfd_info = pytest.mark.skipif(
    tuple(int(n) for n in os.uname().release.split("-")[0].split(".")[:2]) < (6, 15),
    reason="PIDFD_GET_INFO tells exit statuses from Linux 6.15 on",
)


# --- identity ---------------------------------------------------------------------------------------------------------


def test_boot_id_is_a_uuid_and_stays():
    assert len(process.boot_id()) == 36
    assert process.boot_id() == process.boot_id()


def test_stat_of_a_child():
    with running(start_new_session=True) as child:
        until(lambda: stat_of(child.pid).comm == "cat", "exec of cat")
        stat = stat_of(child.pid)
        assert (stat.pid, stat.ppid, stat.pgrp, stat.session) == (child.pid, os.getpid(), child.pid, child.pid)
        assert not stat.ended
        assert not stat.before_exec
        assert stat.start >= start_of(os.getpid())
        assert process.all_stats()[child.pid].start == stat.start


@pytest.mark.parametrize("name", ["a b c", "we) ird (x", ") R 1 1 1", "((", "a\nb", "ä)"])
def test_stat_of_a_process_with_any_name(tmp_path, name):
    """proc(5): the name stands in parentheses, and may hold some itself."""
    program = tmp_path / name
    program.symlink_to(shutil.which("cat") or "/bin/cat")
    if os.path.basename(os.path.realpath(program)) != "cat":
        pytest.skip("cat is one program among others in a single file here, and looks at its name")
    with running(str(program)) as child:
        until(lambda: stat_of(child.pid).comm == name, f"exec of {name!r}")
        stat = stat_of(child.pid)
        assert (stat.ppid, stat.pgrp) == (os.getpid(), os.getpgrp())
        assert stat.start == start_of(child.pid)


def test_a_process_is_seen_before_its_exec():
    def work() -> Any:
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(write)
            os.read(read, 1)
            os.execvp("sleep", ["sleep", "60"])
        before = stat_of(pid).before_exec
        os.write(write, b"1")
        until(lambda: stat_of(pid).comm == "sleep", "exec")
        return [before, stat_of(pid).before_exec]

    assert in_own_process(work) == [True, False]


def test_no_process_no_stat():
    with running() as child:
        pid = child.pid
    assert process.read_stat(pid) is None
    assert pid not in process.all_stats()


# --- pidfds -----------------------------------------------------------------------------------------------------------


def test_a_pidfd_is_for_one_identity_only():
    with running() as child:
        start = start_of(child.pid)
        assert process.open_pidfd(child.pid, start + 1) is None
        assert process.open_pidfd(child.pid, 0) is None
        pidfd = process.open_pidfd(child.pid, start)
        assert pidfd is not None
        assert not process.wait_ended(pidfd, 0)
        child.kill()
        wait_ended(pidfd)
        assert process.wait_ended(pidfd, 0)
        again = process.open_pidfd(child.pid, start)
        assert again is not None, "a zombie is there still"
        os.close(again)
        child.wait()
        assert process.open_pidfd(child.pid, start) is None
        os.close(pidfd)


def test_refused_pidfds_are_not_left_open():
    with running() as child:
        process.open_pidfd(child.pid, 1)
        before = sorted(os.listdir("/proc/self/fd"))
        for _ in range(10):
            process.open_pidfd(child.pid, 1)
            process.send(child.pid, start_of(child.pid), 0)
        assert sorted(os.listdir("/proc/self/fd")) == before


def test_no_descriptor_left_is_an_error_and_not_an_ended_process():
    """Else a living rank would be taken for one that nobody knows the end of."""

    def work() -> Any:
        start = start_of(os.getpid())
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
        try:
            return ["found", process.open_pidfd(os.getpid(), start)]
        except OSError as error:
            return ["error", error.strerror]
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)

    assert in_own_process(work) == ["error", "Too many open files"]


def test_a_signal_reaches_the_process_with_that_identity_and_no_other():
    with running() as child:
        start = start_of(child.pid)
        assert not process.send(child.pid, start + 1, signal.SIGKILL)
        assert child.poll() is None
        assert process.send(child.pid, start, signal.SIGTERM)
        assert child.wait(60) == -signal.SIGTERM
        assert not process.send(child.pid, start, signal.SIGTERM)


# --- how it ended -----------------------------------------------------------------------------------------------------

ENDS = [
    ("os._exit(0)", 0),
    ("os._exit(7)", EXIT_7),
    ("os._exit(255)", 255 << 8),
    ("os.kill(os.getpid(), 15)", 15),
    ("os.kill(os.getpid(), 9)", 9),
    ("os.kill(os.getpid(), 36)", 36),
]


@pytest.mark.parametrize(("script", "status"), ENDS)
def test_status_of_our_own_child_which_stays_a_zombie(script, status):
    with running(sys.executable, "-c", f"import os; {script}") as child:
        start = start_of(child.pid)
        pidfd = os.pidfd_open(child.pid)
        wait_ended(pidfd)
        assert final_status(child.pid, start, pidfd) == status
        assert final_status(child.pid, start, None) == status
        assert stat_of(child.pid).ended
        os.close(pidfd)


def test_status_with_a_core(tmp_path):
    script = """
        import os, resource
        hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
        resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
        os.abort()
    """
    with running(sys.executable, "-c", textwrap.dedent(script), cwd=tmp_path) as child:
        start = start_of(child.pid)
        pidfd = os.pidfd_open(child.pid)
        wait_ended(pidfd)
        status = final_status(child.pid, start, pidfd)
        os.close(pidfd)
        _, waited = os.waitpid(child.pid, 0)
        child.returncode = -signal.SIGABRT
        if not os.WCOREDUMP(waited):
            pytest.skip("cores are not written here (core_pattern, limits)")
        assert status == waited == signal.SIGABRT | 0x80


@pytest.mark.parametrize(("script", "status"), ENDS)
def test_status_of_a_zombie_of_somebody_else(script, status):
    with parent_of(script) as (pid, _):
        start = start_of(pid)
        pidfd = os.pidfd_open(pid)
        wait_ended(pidfd)
        os.close(pidfd)
        assert final_status(pid, start, None) == status
        assert final_status(pid, start + 1, None) is None, "another process of that number"


@needs_pidfd_info
@pytest.mark.parametrize(("script", "status"), ENDS)
def test_status_by_pidfd_of_a_process_that_somebody_waited_for(script, status):
    with parent_of(script) as (pid, parent):
        start = start_of(pid)
        pidfd = process.open_pidfd(pid, start)
        tell(parent)
        assert _line(parent.stdout) == b"waited\n"
        assert process.read_stat(pid) is None
        assert final_status(pid, start, pidfd) == status
        assert pidfd is not None
        os.close(pidfd)


def test_without_a_pidfd_the_status_is_unknown_after_the_wait():
    with parent_of("os._exit(7)") as (pid, parent):
        start = start_of(pid)
        tell(parent)
        assert _line(parent.stdout) == b"waited\n"
        assert final_status(pid, start, None) is None


def test_a_living_process_has_no_status():
    with running() as child:
        start = start_of(child.pid)
        pidfd = os.pidfd_open(child.pid)
        assert final_status(child.pid, start, pidfd) is None
        os.close(pidfd)
    with parent_of("sys.stdin.read(); os._exit(0)") as (pid, _):
        pidfd = os.pidfd_open(pid)
        assert final_status(pid, start_of(pid), pidfd) is None
        os.close(pidfd)


def test_where_we_may_not_look_nothing_is_guessed():
    """/proc/PID/stat shows 0 as the exit code to those who may not ptrace: that must not become a success."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to become another user")
    with parent_of("os._exit(7)") as (pid, _):
        start = start_of(pid)
        pidfd = os.pidfd_open(pid)
        wait_ended(pidfd)
        os.close(pidfd)

        def as_nobody() -> Any:
            os.setgroups([])
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
            stat = process.read_stat(pid)
            return [stat.exit_code if stat else None, final_status(pid, start, None)]

        assert in_own_process(as_nobody) == [0, None]
        assert final_status(pid, start, None) == EXIT_7


@pytest.mark.skipif(
    os.uname().machine not in ("x86_64", "aarch64"), reason="the number of exit(2) is unknown to muster"
)
def test_a_process_lives_while_any_of_its_threads_does():
    """Its first thread may end before: /proc/PID/stat then says Z, but nobody can wait for it."""
    number = {"x86_64": 60, "aarch64": 93}[os.uname().machine]
    script = f"""
        import ctypes, os, sys, threading
        threading.Thread(target=lambda: (sys.stdin.read(), os._exit(7))).start()
        ctypes.CDLL(None).syscall({number}, 0)
    """
    with running(sys.executable, "-c", textwrap.dedent(script)) as child:
        start = start_of(child.pid)
        until(lambda: stat_of(child.pid).state == "Z", "the end of the first thread")
        assert not stat_of(child.pid).ended
        pidfd = process.open_pidfd(child.pid, start)
        assert pidfd is not None
        assert not process.wait_ended(pidfd, 0)
        assert final_status(child.pid, start, pidfd) is None
        assert child.stdin is not None
        child.stdin.close()
        wait_ended(pidfd)
        assert stat_of(child.pid).ended
        assert final_status(child.pid, start, pidfd) == EXIT_7
        os.close(pidfd)
        child.wait()
        child.stdin = None


@pytest.mark.skipif(os.geteuid() != 0, reason="needs the right to trace")
def test_threads_that_a_debugger_keeps_do_not_live():
    script = "import threading; threading.Thread(target=threading.Event().wait).start(); print(flush=True)"
    with running(sys.executable, "-c", script) as child:
        _line(child.stdout)
        start = start_of(child.pid)
        with running(sys.executable, "-m", "tests.tracer", str(child.pid)) as tracer:
            assert _line(tracer.stdout) == b"attached\n"
            assert stat_of(child.pid).threads == 2
            child.kill()
            until(lambda: stat_of(child.pid).ended, "the end of all threads")
            with contextlib.closing(Procfs()) as procfs:
                seen = procfs.stat(child.pid)
            assert seen is not None and seen.ended
            assert final_status(child.pid, start, None) == signal.SIGKILL
            assert os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None


# --- what it used -----------------------------------------------------------------------------------------------------


def test_usage_of_an_ended_process():
    burn = "import os, time\nwhile sum(os.times()[:2]) < 0.2: pass\nos.write(1, b'x' * 5000)"
    with running(sys.executable, "-c", burn) as child:
        pidfd = os.pidfd_open(child.pid)
        wait_ended(pidfd)
        os.close(pidfd)
        used = process.usage(child.pid)
    assert 0.15 <= used["cpu_user_s"] + used["cpu_system_s"] < 20
    assert used["wchar"] >= 5000
    assert used["rchar"] > 0
    assert {"read_bytes", "write_bytes"} <= set(used)
    assert process.usage(child.pid) == {}


def test_the_identity_of_a_child():
    with running("sleep", "600") as child:
        assert process.identity(child.pid) == (child.pid, start_of(child.pid))
        pidfd = os.pidfd_open(child.pid)
        child.kill()
        wait_ended(pidfd)
        os.close(pidfd)
        assert process.identity(child.pid)[0] == child.pid, "it was not waited for"


@pytest.mark.parametrize(("count", "more"), [(0, ""), (1, ""), (5, ""), (6, ", ..."), (500, ", ...")])
def test_names_for_messages(count, more):
    """Some, so that a message stays one."""
    stat = stat_of(os.getpid())
    found = process.names([replace(stat, pid=100 + i, comm=f"p{i}") for i in range(count)])
    assert found == ", ".join(f"{100 + i} (p{i})" for i in range(min(count, 5))) + more


def test_environment_entry_is_compared_whole():
    with running(env={"PATH": os.environ["PATH"], "NONCE": "abc", "X": "NONCE=zz"}) as child:
        until(lambda: process.environ_has(child.pid, b"NONCE=abc"), "exec of cat")
        for other in (b"NONCE=ab", b"NONCE=abcd", b"ONCE=abc", b"NONCE=zz", b"NONCE"):
            assert not process.environ_has(child.pid, other)
    assert not process.environ_has(child.pid, b"NONCE=abc")
