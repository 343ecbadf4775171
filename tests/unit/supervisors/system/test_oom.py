import errno
import itertools
import os
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.probes.kernel import kmsg
from muster.supervisors.system import oom

#: As Linux 5.4 to 6.12 write them (mm/oom_kill.c, __oom_kill_process).
GLOBAL = (
    "3,1234,5678901234,-;Out of memory: Killed process 4711 (python) total-vm:68719476kB, anon-rss:62914560kB, "
    "file-rss:0kB, shmem-rss:128kB, UID:1000 pgtables:123456kB oom_score_adj:0\n"
)
MEMCG = (
    "3,1301,5678901234,-;Memory cgroup out of memory: Killed process 4712 (python3.11) total-vm:1054872kB, "
    "anon-rss:1047296kB, file-rss:5632kB, shmem-rss:0kB, UID:0 pgtables:2108kB oom_score_adj:0\n"
)
#: With vm.oom_kill_allocating_task = 1.
ALLOCATING = (
    "3,2,5678901234,-;Out of memory (oom_kill_allocating_task): Killed process 4713 (pt_data_worker) "
    "total-vm:1kB, anon-rss:1kB, file-rss:0kB, shmem-rss:0kB, UID:0 pgtables:1kB oom_score_adj:0\n"
)


# --- the kernel's log -------------------------------------------------------------------------------------------------


def killed(record, oldest=0.0):
    parsed = kmsg.parse(record.encode())
    return {} if parsed is None else oom.parse(parsed, oldest)


def at_limit(record, oldest, cgroup):
    parsed = kmsg.parse(record.encode())
    assert parsed is not None
    return oom.parse_limited(parsed, oldest, cgroup)


@pytest.mark.parametrize(
    ("record", "pid", "name"),
    [
        (GLOBAL, 4711, "python"),
        (MEMCG, 4712, "python3.11"),
        (ALLOCATING, 4713, "pt_data_worker"),
        (GLOBAL.replace("-;", "c,more,fields;"), 4711, "python"),
        (GLOBAL + " SUBSYSTEM=memory\n DEVICE=+x:y\n", 4711, "python"),
        (GLOBAL.replace("(python)", "(my job)"), 4711, "my job"),
        (GLOBAL.replace("(python)", "((sd-pam))"), 4711, "(sd-pam)"),
        (GLOBAL.replace("(python)", "()"), 4711, ""),
        (GLOBAL.replace("(python)", r"(a\x0ab)"), 4711, "a\nb"),
        (GLOBAL.replace("3,1234,", "3,99999999999,"), 4711, "python"),
        (GLOBAL.replace("-;", "-,caller=T4711;"), 4711, "python"),
    ],
)
def test_a_process_that_the_kernel_killed(record, pid, name):
    assert killed(record) == {pid: name}


def test_a_process_that_reached_the_limit_of_a_cgroup():
    record = (
        "6,2,5678901234,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,"
        "oom_memcg=/pods/7/muster-1-job,task_memcg=/pods/7/muster-1-job/rank,task=my, job,pid=4711,uid=0\n"
    )
    assert at_limit(record, 0.0, "/sys/fs/cgroup/muster-1-job") == "my, job (pid 4711)"
    assert at_limit(record, 0.0, "/sys/fs/cgroup/muster-1-jo") == ""  # another job
    assert at_limit(record, 6000.0, "/sys/fs/cgroup/muster-1-job") == ""  # too old
    assert at_limit(record.replace("_MEMCG", "_NONE"), 0.0, "/sys/fs/cgroup/muster-1-job") == ""


@pytest.mark.parametrize(
    "text",
    [
        "",
        "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,task_memcg=/,"
        "task=python,pid=4711,uid=1000",
        "oom_reaper: reaped process 4711 (python), now anon-rss:0kB, file-rss:0kB, shmem-rss:0kB",
        "python invoked oom-killer: gfp_mask=0x140cca(GFP_HIGHUSER_MOVABLE|__GFP_COMP), order=0, oom_score_adj=0",
        "Memory cgroup out of memory: Killed process x (python)",
        "Tasks in /muster-1-j are going to be killed due to memory.oom.group set",
        "traps: python[4711] general protection fault ip:0 sp:0 error:0",
    ],
)
def test_other_records_say_nothing(text):
    assert killed(f"6,1,5678901234,-;{text}\n") == {}


@pytest.mark.parametrize("head", ["", "3", "3,1", "3,1,", "3,1,-5,-", "3,1,x,-", "3,1,1.5,-", "3,1,²,-"])
def test_a_record_that_is_none_says_nothing(head):
    assert killed(f"{head};{GLOBAL.partition(';')[2]}") == {}


@pytest.mark.parametrize(("oldest", "seen"), [(0.0, True), (5678.901233, True), (5678.901235, False), (1e9, False)])
def test_what_was_before_the_rank_was_another_process(oldest, seen):
    """Its pid may have been used before; times of the log are microseconds."""
    assert killed(GLOBAL, oldest) == ({4711: "python"} if seen else {})


@given(st.text())
def test_a_kernel_log_with_any_content_is_read(text):
    assert isinstance(killed(f"3,1,5,-;{text}"), dict)


#: What the link of the first pid namespace says.
FIRST = "pid:[4026531836]"


class Log:
    """A kernel's log, read as /dev/kmsg is: a record each time, errors in between."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *records: str | bytes | OSError) -> None:
        self.closed: list[int] = []
        self._left = list(records)
        # A namespace of processes is not what this is about; see the test of its own.
        monkeypatch.setattr(os, "readlink", lambda _: FIRST)
        monkeypatch.setattr(os, "open", lambda path, flags: 77 if path == kmsg.PATH else pytest.fail(path))
        monkeypatch.setattr(os, "read", lambda fd, _: self._next(fd))
        monkeypatch.setattr(os, "close", self.closed.append)

    def _next(self, fd: int) -> bytes:
        assert fd == 77
        record = self._left.pop(0) if self._left else BlockingIOError(errno.EAGAIN, "the end")
        if isinstance(record, OSError):
            raise record
        return record.encode() if isinstance(record, str) else record


def now(record: str) -> str:
    """The record as one of this moment."""
    return record.replace("5678901234", str(int(time.clock_gettime(time.CLOCK_MONOTONIC) * 1e6)))


def test_all_records_since_then_are_read(monkeypatch):
    log = Log(
        monkeypatch,
        now(GLOBAL),
        BrokenPipeError(errno.EPIPE, "overwritten"),
        OSError(errno.EINVAL, "too long"),
        b"6,1,2,-;\xff\xfe no UTF-8\n",
        now(MEMCG),
    )
    started = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert oom.victims(started) == {4711: "python", 4712: "python3.11"}
    assert log.closed == [77]


def test_what_was_killed_long_before_is_not_taken_for_the_rank(monkeypatch):
    Log(monkeypatch, now(GLOBAL))
    assert oom.victims(time.clock_gettime(time.CLOCK_BOOTTIME) + 3600) == {}


def test_an_error_or_the_end_is_the_end(monkeypatch):
    for last in (OSError(errno.EIO, "defect"), b""):
        log = Log(monkeypatch, now(GLOBAL), last, now(MEMCG))
        assert oom.victims(time.clock_gettime(time.CLOCK_BOOTTIME)) == {4711: "python"}
        assert log.closed == [77]


def test_a_log_that_never_ends_is_read_no_further_than_it_can_be_long(monkeypatch):
    Log(monkeypatch)
    reads = itertools.count()

    def read(*_: object) -> bytes:
        next(reads)
        return b"6,1,2,-;x\n"

    monkeypatch.setattr(os, "read", read)
    assert oom.victims(0.0) == {}
    assert next(reads) <= 50_000


@pytest.mark.parametrize("error", [PermissionError(errno.EPERM, "no"), FileNotFoundError(errno.ENOENT, "no")])
def test_a_log_that_may_not_be_read_tells_nothing(monkeypatch, error):
    """None, which is not the same as nobody."""

    def refuse(*_: object) -> int:
        raise error

    monkeypatch.setattr(os, "readlink", lambda _: FIRST)
    monkeypatch.setattr(os, "open", refuse)
    assert oom.victims(0.0) is None


@pytest.mark.parametrize(
    ("link", "known"), [(FIRST, True), ("pid:[4026532198]", False), (OSError(errno.EACCES, "no"), False)]
)
def test_the_log_tells_nothing_where_processes_have_other_numbers(monkeypatch, link, known):
    """It names processes as the first pid namespace does: in a container 4711 is somebody else."""

    def readlink(path: str) -> str:
        assert path == "/proc/self/ns/pid"
        if isinstance(link, OSError):
            raise link
        return str(link)

    Log(monkeypatch, now(GLOBAL))
    monkeypatch.setattr(os, "readlink", readlink)
    assert (oom.victims(0.0) is not None) is known


def test_the_log_of_this_very_machine_can_be_read_or_not():
    found = oom.victims(0.0)
    assert found is None or 0 not in found


# --- the cgroup -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("low 0\nhigh 0\nmax 18\noom 1\noom_kill 2\noom_group_kill 1\n", 2),  # Linux 5.17 on
        ("low 0\nhigh 0\nmax 0\noom 7\noom_kill 0\n", 0),
        ("low 0\nhigh 0\nmax 0\noom 7\n", 0),  # before 4.13
        ("oom_kill x\n", 0),
        ("oom_kill\n", 0),
        ("", 0),
    ],
)
def test_how_many_a_cgroup_counts(tmp_path, text, count):
    (tmp_path / "memory.events").write_text(text)
    assert oom.kills(str(tmp_path)) == count


def test_without_a_cgroup_or_its_controller_nothing_is_counted(tmp_path):
    assert [oom.kills(path) for path in (str(tmp_path), str(tmp_path / "gone"), "")] == [0, 0, 0]


@pytest.mark.parametrize(
    ("events", "most", "reached"),
    [
        ("low 0\noom 1\noom_kill 1\n", "100663296\n", 96 << 20),
        ("low 0\noom 0\noom_kill 1\n", "100663296\n", 0),  # the node's memory, not the job's
        ("oom 1\n", "max\n", 0),
        ("", "100663296\n", 0),
    ],
)
def test_the_limit_that_was_reached(tmp_path, events, most, reached):
    (tmp_path / "memory.events.local").write_text(events)
    (tmp_path / "memory.max").write_text(most)
    assert oom.limit_reached(str(tmp_path)) == reached
    assert oom.limit_reached(str(tmp_path / "none")) == 0


AROUND = ("system.slice", "muster-nursery.scope")


@pytest.mark.parametrize(
    ("limited", "cgroup", "concerned"),
    [
        # The job's own, one within it, and those around it.
        ("/system.slice/muster-1f-a", "/sys/fs/cgroup/system.slice/muster-1f-a", True),
        ("/system.slice/muster-1f-a/libpod-9", "/sys/fs/cgroup/system.slice/muster-1f-a", True),
        ("/system.slice", "/sys/fs/cgroup/system.slice/muster-1f-a", True),
        ("/batch.slice", "/sys/fs/cgroup/batch.slice/muster-1f-a", True),
        ("/system.slice/muster-nursery.scope", "", True),
        ("/", "/sys/fs/cgroup/system.slice/muster-1f-a", True),
        # A container beside it, another job.
        ("/machine.slice/libpod-7.scope", "/sys/fs/cgroup/system.slice/muster-1f-a", False),
        ("/system.slice/muster-1f-b", "/sys/fs/cgroup/system.slice/muster-1f-a", False),
        ("/machine.slice/libpod-7.scope", "", False),
        # A job without a cgroup of its own may have made one; but not that of another job.
        ("/system.slice/muster-nursery.scope/made", "", True),
        ("/system.slice/muster-nursery.scope/muster-1f-b", "", False),
    ],
)
def test_a_limit_that_may_concern_a_job(limited, cgroup, concerned):
    assert oom.concerns(limited, cgroup, AROUND) is concerned
