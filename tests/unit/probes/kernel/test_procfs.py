"""Reads of /proc: this process', made-up ones, and those that vanish."""

import errno
import os
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from muster.probes.kernel.procfs import Io, NodeTotals, Procfs
from tests.conftest import eventually
from tests.unit.proc_folder import ProcFolder


@pytest.fixture
def folder(tmp_path: Path) -> ProcFolder:
    return ProcFolder(tmp_path / "proc")


@pytest.fixture
def procfs(folder: ProcFolder) -> Iterator[Procfs]:
    made = Procfs(folder.path)
    yield made
    made.close()


@pytest.fixture
def real() -> Iterator[Procfs]:
    made = Procfs()
    yield made
    made.close()


def test_this_process_is_reported_as_others_tell_it(real: Procfs):
    me = psutil.Process()
    stat = real.stat(me.pid)
    assert stat is not None
    assert (stat.pid, stat.ppid, stat.session, stat.comm) == (me.pid, me.ppid(), os.getsid(0), me.name()[:15])
    assert stat.state == "R"
    assert not stat.before_exec
    assert stat.start / os.sysconf("SC_CLK_TCK") + psutil.boot_time() == pytest.approx(me.create_time(), abs=1.5)
    before = me.cpu_times()
    assert stat.cpu_s <= before.user + before.system + before.children_user + before.children_system + 0.02
    assert stat.rss == pytest.approx(me.memory_info().rss, rel=0.3)
    first = real.io(me.pid)
    with open("/dev/null", "wb", buffering=0) as sink:
        sink.write(b"x" * 100_000)
    second = real.io(me.pid)
    assert first is not None and second is not None
    assert second.wchar - first.wchar >= 100_000
    assert second.rchar >= first.rchar
    assert me.pid in real.pids()
    assert real.command(me.pid)[0] == me.cmdline()[0]


def test_a_process_that_waits_says_where(real: Procfs):
    sleeper = subprocess.Popen(["sleep", "60"], env={"RANK": "3", "EMPTY": ""})
    try:
        stat = eventually(lambda: (s := real.stat(sleeper.pid)) and s.comm == "sleep" and s.state == "S" and s)
        assert stat.ppid == os.getpid()
        # A kernel without the names of its functions says 0, and so it does of a process that is just about to wait.
        wchan = Path(f"/proc/{sleeper.pid}/wchan")
        eventually(lambda: real.wchan(sleeper.pid) == (wchan.read_text().replace("0", "") or None))
        names = {b"RANK": "rank", b"EMPTY": "empty", b"PATH": "path"}
        assert real.environ(sleeper.pid, names) == {"rank": "3", "empty": ""}
    finally:
        sleeper.kill()
        sleeper.wait()
    assert real.stat(sleeper.pid) is None
    assert real.io(sleeper.pid) is None
    assert real.wchan(sleeper.pid) is None
    assert real.command(sleeper.pid) == []


def test_a_node_is_reported_as_others_tell_it(real: Procfs):
    first = real.node()
    assert first.mem_total == psutil.virtual_memory().total
    assert first.mem_available == pytest.approx(psutil.virtual_memory().available, rel=0.2)
    assert first.busy_ticks is not None and first.all_ticks is not None
    assert 0 < first.busy_ticks < first.all_ticks
    others = [nic for name, nic in psutil.net_io_counters(pernic=True).items() if name != "lo"]
    if others:
        assert first.net_bytes is not None
        assert first.net_bytes <= sum(nic.bytes_sent + nic.bytes_recv for nic in others) + 10_000_000


@pytest.mark.parametrize("name", ["a b", "x) R 1 2 3 (", "(((", ")", "two\nlines", ""])
def test_a_name_may_hold_anything(folder: ProcFolder, procfs: Procfs, name: str):
    folder.add(7, 3, 55, name=name, state="D", session=5, ticks=250, rss=2)
    stat = procfs.stat(7)
    assert stat is not None
    assert (stat.comm, stat.state, stat.ppid, stat.session, stat.start) == (name, "D", 3, 5, 55)
    assert stat.cpu_s == 250 / os.sysconf("SC_CLK_TCK")
    assert stat.rss == 2 * os.sysconf("SC_PAGE_SIZE")


def test_before_a_program_is_executed(folder: ProcFolder, procfs: Procfs):
    folder.add(7, 3, before_exec=True)
    folder.add(8, 3)
    seven, eight = procfs.stat(7), procfs.stat(8)
    assert seven is not None and eight is not None
    assert seven.before_exec and not eight.before_exec


def test_what_cannot_be_read_is_none(folder: ProcFolder, procfs: Procfs):
    folder.add(7, 3, io=None)
    assert procfs.io(7) is None
    assert procfs.stat(9) is None
    folder.add(8, 3, io=(1, 2, 3, 4), wchan="do_poll")
    assert procfs.io(8) == Io(1, 2, 3, 4)
    assert procfs.wchan(8) == "do_poll"
    assert procfs.wchan(7) is None
    (folder.path / "8" / "io").write_text("rchar: 1\n")
    assert procfs.io(8) is None
    assert procfs.pids() == {7, 8}


def test_a_node_of_which_nothing_can_be_read(folder: ProcFolder, procfs: Procfs):
    assert procfs.node() == NodeTotals(100, 1000, 1000 * 1024, 400 * 1024, 117)
    for name in ("stat", "meminfo", "net/dev"):
        (folder.path / name).unlink()
    assert procfs.node() == NodeTotals()


def test_a_large_environment_is_read_beyond_a_page(folder: ProcFolder, procfs: Procfs):
    folder.add(7, 3, environ={"FILL": "x" * 50_000, "RANK": "5"})
    assert procfs.environ(7, {b"RANK": "rank"}) == {"rank": "5"}


def test_want_of_descriptors_is_not_taken_for_an_end(folder: ProcFolder, procfs: Procfs):
    folder.add(7, 3)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    spare = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, hard))
    try:
        with pytest.raises(OSError) as caught:
            while True:
                spare.append(os.open("/dev/null", os.O_RDONLY))
        assert caught.value.errno == errno.EMFILE
        with pytest.raises(OSError) as caught:
            procfs.stat(7)
        assert caught.value.errno == errno.EMFILE
    finally:
        for fd in spare:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert procfs.stat(7) is not None
