"""Processes from their creation to their command: each test runs with the program and with forks."""

import contextlib
import errno
import json
import os
import resource
import signal
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from muster.supervisors.launch import child
from muster.supervisors.launch.child import Account, ProcessSpec, explain_exec, read_unborn
from muster.supervisors.launch.creation.new_processes import NewProcesses
from muster.supervisors.output import tee
from tests.unit.supervision import created, in_own_process

Birth = Callable[..., dict[str, Any]]


@pytest.fixture
def birth(way: str) -> Birth:
    """Creates a process in this way and lets it go by `gate` (None: the supervisor dies). Its pid, status, output and
    `unborn` line."""

    def made(
        folder: Path, *argv: str, gate: bytes | None = b"1", before: Any = None, at_gate: Any = None, **changes: Any
    ) -> dict[str, Any]:
        fifo, unborn = folder / "fifo", folder / "unborn"

        def work() -> Any:
            if before is not None:
                before()
            account = Account.of("")
            said: list[str] = []
            tee.make_fifo(fifo, account.uid, account.gid)
            out = os.open(fifo, os.O_RDWR | os.O_NONBLOCK)
            read, write = os.pipe()
            notes = os.open(unborn, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            usual = ProcessSpec(3, argv, {"PATH": os.environ["PATH"]}, "/", fifo, cgroup="", account=account)
            children = NewProcesses([replace(usual, **changes)], (read, write), notes, said.append)
            children.begin()
            (pid,) = created(children.pids())
            os.close(read)
            if at_gate is not None:
                at_gate(pid)
            if gate is not None:
                with contextlib.suppress(BrokenPipeError):  # a child that fails before the gate may have ended by now
                    os.write(write, gate)
            os.close(write)
            _, status = os.waitpid(pid, 0)
            try:
                output = os.read(out, 65536).decode()
            except BlockingIOError:
                output = ""
            entries = read_unborn(unborn)
            assert said == [], "it was created the other way"
            return {"pid": pid, "status": status, "output": output, "unborn": entries.get(pid), "lines": len(entries)}

        return dict(in_own_process(work))

    return made


_SHOW = """
import json, os
print(json.dumps([os.getpid(), os.getsid(0), os.getpgrp(), os.getcwd(), dict(os.environ),
    [os.readlink(f"/proc/self/fd/{i}") for i in range(3)], sorted(map(int, os.listdir("/proc/self/fd"))),
    open("/proc/self/oom_score_adj").read().strip()]))
"""


def test_a_rank_has_its_own_session_its_folder_its_environment_and_the_fifo(birth, tmp_path):
    folder = tmp_path / "work"
    folder.mkdir()

    def before() -> None:  # what the nursery does at its start: the test's own caller may have left some open
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                os.set_inheritable(int(name), False)

    env = {"A": "ä b", "B": "", "LC_CTYPE": "C.UTF-8"}
    show = (sys.executable, "-I", "-S", "-c", _SHOW)
    seen = birth(tmp_path, *show, workdir=str(folder), env=env, before=before)
    assert (seen["status"], seen["unborn"]) == (0, None)
    pid, session, group, cwd, environ, streams, fds, oom = json.loads(seen["output"])
    assert pid == session == group == seen["pid"]
    assert (cwd, environ) == (str(folder), env)
    assert streams == ["/dev/null", str(tmp_path / "fifo"), str(tmp_path / "fifo")]
    assert fds == [0, 1, 2, 3], "nothing of ours is open, 3 is the listing itself"
    assert oom == "0"


def test_a_rank_has_all_signals_as_a_new_process_has_them(birth, tmp_path):
    def before() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGRTMIN + 3, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGCHLD})

    seen = birth(tmp_path, "grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status", before=before)
    _, blocked, _, ignored = seen["output"].split()
    # 32 and 33 are libc's own: no program can set them, and posix_spawn(3) ignores them for what it starts.
    assert (int(blocked, 16), int(ignored, 16) & ~0x180000000) == (0, 0)


def test_a_rank_can_open_its_streams_again(birth, tmp_path):
    seen = birth(tmp_path, "sh", "-c", "echo one > /dev/stdout; echo two > /dev/stderr; echo three >> /dev/stdout")
    assert seen["output"] == "one\ntwo\nthree\n"


def test_the_path_of_the_jobs_environment_is_searched(birth, tmp_path):
    (tmp_path / "prog").write_text("#!/bin/sh\necho found\n")
    (tmp_path / "prog").chmod(0o755)
    assert birth(tmp_path, "prog", env={"PATH": str(tmp_path)})["output"] == "found\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_rank_becomes_its_user_with_the_users_groups_only(birth, tmp_path):
    account = Account("nobody", 65534, 65534, "/", "/bin/sh")
    script = "grep -E '^(Uid|Gid|Groups):' /proc/self/status; umask"
    words = birth(tmp_path, "sh", "-c", script, account=account)["output"].split()
    groups = [str(g) for g in sorted({65534, *os.getgrouplist("nobody", 65534)})]
    assert words == ["Uid:", *["65534"] * 4, "Gid:", *["65534"] * 4, "Groups:", *groups, "0022"]


_LIMITS = """
import json, os, resource
names = ("NOFILE", "MEMLOCK", "STACK", "CORE", "NPROC")
print(json.dumps([[list(resource.getrlimit(getattr(resource, "RLIMIT_" + n))) for n in names],
    os.getpriority(os.PRIO_PROCESS, 0), os.umask(0)]))
"""


def test_a_rank_has_its_limits_its_priority_and_its_mask(birth, tmp_path):
    sizes = {"nofile": 100, "memlock": 1 << 16, "stack": 1 << 22, "core": 0, "nproc": 900}
    show = (sys.executable, "-I", "-S", "-c", _LIMITS)
    seen = birth(tmp_path, *show, limits=tuple(sizes.items()), nice=7, umask=0o027)
    limits, priority, mask = json.loads(seen["output"])
    assert limits == [[size, size] for size in sizes.values()], "soft and hard: nobody raises them again"
    assert (priority, mask) == (7, 0o027)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can raise a priority")
@pytest.mark.parametrize(("nice", "expected"), [(0, 0), (-3, -3)])
def test_what_lets_muster_answer_on_a_busy_node_is_not_for_the_ranks(birth, tmp_path, nice, expected):
    """A daemon with a high priority: its ranks have the usual one, unless they are given another."""

    def before() -> None:
        os.setpriority(os.PRIO_PROCESS, 0, -10)

    seen = birth(tmp_path, "nice", before=before, nice=nice)
    assert seen["output"] == f"{expected}\n"


def test_where_the_jobs_cgroup_has_processes_in_leaves_only_one_more_is_put_beside_them(birth, tmp_path):
    """As of a root job that handed controllers down: the kernel takes nobody into a node that is no leaf (EBUSY)."""
    cgroup = tmp_path / "cgroup"
    (cgroup / "cgroup.procs").mkdir(parents=True)  # cannot be written, either
    (cgroup / "beside").mkdir()
    (cgroup / "beside/cgroup.procs").touch()
    seen = birth(tmp_path, "true", cgroup=str(cgroup))
    assert os.waitstatus_to_exitcode(seen["status"]) == 0
    assert (cgroup / "beside/cgroup.procs").read_text() == "0"


def test_a_cgroup_that_takes_a_process_gets_no_other_leaf(birth, tmp_path):
    (tmp_path / "cgroup.procs").touch()
    birth(tmp_path, "true", cgroup=str(tmp_path))
    assert (tmp_path / "cgroup.procs").read_text() == "0"
    assert not (tmp_path / "beside").exists()


def test_what_the_supervisor_does_at_a_signal_a_child_that_waits_for_the_gate_does_not(birth, tmp_path):
    """SIGTERM to a whole scope stops the job by its supervisor's handler; its children are just ended."""

    def before() -> None:
        signal.signal(signal.SIGTERM, lambda *_: (tmp_path / "handled").touch())

    def at_gate(pid: int) -> None:
        os.kill(pid, signal.SIGTERM)

    seen = birth(tmp_path, "touch", str(tmp_path / "ran"), before=before, at_gate=at_gate)
    assert os.waitstatus_to_exitcode(seen["status"]) == -signal.SIGTERM
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fifo", "unborn"]


def test_without_limits_a_rank_has_those_of_the_daemon(birth, tmp_path):
    def before() -> None:
        resource.setrlimit(resource.RLIMIT_CORE, (4096, 8192))

    show = (sys.executable, "-I", "-S", "-c", _LIMITS)
    limits, _, mask = json.loads(birth(tmp_path, *show, before=before)["output"])
    assert (limits[3], mask) == ([4096, 8192], child.DEFAULT_UMASK)


def test_a_limit_that_cannot_be_set_is_reported_with_what_is_allowed(birth, tmp_path):
    """More descriptors than the kernel has for anyone (fs.nr_open)."""
    seen = birth(tmp_path, "touch", str(tmp_path / "ran"), limits=(("core", 0), ("nofile", 1 << 40)))
    assert (os.waitstatus_to_exitcode(seen["status"]), seen["unborn"]["reason"]) == (125, "prepare")
    text = explain_exec("touch", seen["unborn"])
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert f"cannot set its limits: nofile {1 << 40} " in text
    assert f"own hard limit is {hard}): Operation not permitted" in text
    assert not (tmp_path / "ran").exists()


def test_folders_and_files_are_made_before_the_command(birth, tmp_path):
    folder, file = tmp_path / "a" / "device0", tmp_path / "t" / "rank_table" / "jobstart_hccl.json"
    (tmp_path / "there").mkdir()
    folders = (str(folder), str(tmp_path / "there"), str(tmp_path / "log" / "rank_0"))
    changes: dict[str, Any] = {"folders": folders, "files": ((str(file), '{"ä": 1}'),), "workdir": str(folder)}
    script = f"pwd; cat {file}; ls -A {file.parent} {tmp_path}/log"
    seen = birth(tmp_path, "sh", "-c", script, **changes)
    assert seen["output"].split() == [
        *(str(folder), '{"ä":', "1}" + f"{tmp_path}/log:", "rank_0", f"{file.parent}:", "jobstart_hccl.json"),
    ]


def test_an_existing_file_is_replaced_as_a_whole(birth, tmp_path):
    """A reader meanwhile (another rank) sees the old one or the new one."""
    file = tmp_path / "table.json"
    file.write_text("old and much longer")
    with open(file) as reader:
        birth(tmp_path, "true", files=((str(file), "new"),))
        assert (reader.read(), file.read_text()) == ("old and much longer", "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fifo", "table.json", "unborn"]


@pytest.mark.parametrize("field", ["folders", "files"])
def test_a_folder_that_cannot_be_made_is_reported(birth, tmp_path, field):
    (tmp_path / "file").touch()
    path = str(tmp_path / "file" / "x" / "y")
    changes: dict[str, Any] = {field: (path,) if field == "folders" else ((path, "text"),)}
    seen = birth(tmp_path, "true", **changes)
    assert (os.waitstatus_to_exitcode(seen["status"]), seen["unborn"]["reason"]) == (125, "prepare")
    text = explain_exec("true", seen["unborn"])
    assert "cannot make its folders and files" in text
    assert str(tmp_path / "file" / "x") in text


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_what_is_made_belongs_to_the_jobs_user_with_the_jobs_mask(birth):
    """Made by the user itself: on a network file system root may be nobody. In a folder that this user can enter."""
    account = Account("nobody", 65534, 65534, "/", "/bin/sh")
    with tempfile.TemporaryDirectory() as name:
        base = Path(name)
        base.chmod(0o777)
        folder, file = base / "work", base / "mount" / "table.json"
        changes: dict[str, Any] = {"folders": (str(folder),), "files": ((str(file), "t"),), "workdir": str(folder)}
        seen = birth(base, "touch", "mine", account=account, umask=0o077, **changes)
        assert (seen["status"], seen["unborn"]) == (0, None)
        found = {path.name: path.stat() for path in (folder, folder / "mine", file.parent, file)}
    assert {name: (s.st_uid, s.st_gid, oct(s.st_mode & 0o777)) for name, s in found.items()} == {
        "work": (65534, 65534, "0o700"),
        "mine": (65534, 65534, "0o600"),
        "mount": (65534, 65534, "0o700"),
        "table.json": (65534, 65534, "0o600"),
    }


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_priority_is_taken_while_that_is_still_allowed(birth):
    """The rank's own user could not."""
    account = Account("nobody", 65534, 65534, "/", "/bin/sh")
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o711)
        seen = birth(Path(name), "sh", "-c", "nice; id -u", account=account, nice=-2)
    assert (seen["unborn"], seen["output"].split()) == (None, ["-2", "65534"])


def test_a_limit_is_raised_while_that_is_still_allowed(birth):
    if not in_own_process(_may_raise):
        pytest.skip("needs CAP_SYS_RESOURCE, to raise a hard limit")
    account = Account("nobody", 65534, 65534, "/", "/bin/sh")
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o711)
        seen = birth(
            Path(name), "sh", "-c", "ulimit -Hc", account=account, limits=(("core", -1),), before=_without_core
        )
    assert (seen["unborn"], seen["output"]) == (None, "unlimited\n")


def _without_core() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _may_raise() -> bool:
    _without_core()
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (1, 1))
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("gate", [None, b""])
def test_a_closed_gate_lets_nothing_run(birth, tmp_path, gate):
    seen = birth(tmp_path, "touch", str(tmp_path / "ran"), gate=gate)
    assert not (tmp_path / "ran").exists()
    assert os.waitstatus_to_exitcode(seen["status"]) == 125
    assert (seen["unborn"]["reason"], seen["unborn"]["rank"]) == (child.GATE_CLOSED, 3)
    assert seen["output"] == "", "what the file says is the rank's alone"


def script_in(folder: Path, name: str, content: str, mode: int) -> str:
    path = folder / name
    path.write_text(content)
    path.chmod(mode)
    return str(path)


@pytest.mark.parametrize(
    ("make", "code", "number", "text"),
    [
        (lambda _: "no-such-program", 127, errno.ENOENT, "no-such-program: not found in the PATH"),
        (lambda _: "./no/such", 127, errno.ENOENT, "./no/such: not found"),
        (lambda _: "/etc/passwd/x", 127, errno.ENOTDIR, "/etc/passwd/x: not found"),
        (
            lambda d: script_in(d, "plain", "#!/bin/sh\n", 0o644),
            126,
            errno.EACCES,
            "not executable (permission denied)",
        ),
        (lambda _: "/", 126, errno.EACCES, "not executable (permission denied)"),
        (lambda d: script_in(d, "noform", "echo hi\n", 0o755), 126, errno.ENOEXEC, "not a program, and no #! line"),
        (lambda d: script_in(d, "lost", "#!/no/such/sh\n", 0o755), 127, errno.ENOENT, "the interpreter or loader"),
    ],
)
def test_a_command_that_cannot_be_executed(birth, tmp_path, make, code, number, text):
    argv0 = make(tmp_path)
    seen = birth(tmp_path, argv0)
    assert os.waitstatus_to_exitcode(seen["status"]) == code
    assert (seen["unborn"]["reason"], seen["unborn"]["errno"], seen["unborn"]["rank"]) == ("exec", number, 3)
    sentence = explain_exec(argv0, seen["unborn"])
    assert sentence.startswith(f"{argv0}: ")
    assert text in sentence


def test_too_long_a_command_is_reported(birth, tmp_path):
    seen = birth(tmp_path, "true", "x" * 200_000)
    assert os.waitstatus_to_exitcode(seen["status"]) == 126
    assert explain_exec("true", seen["unborn"]) == f"true: cannot be executed: {os.strerror(errno.E2BIG)}"


@pytest.mark.parametrize("folder", ["/no/such/folder", "/etc/passwd"])
def test_a_folder_that_cannot_be_entered_is_reported(birth, tmp_path, folder):
    seen = birth(tmp_path, "true", workdir=folder)
    assert os.waitstatus_to_exitcode(seen["status"]) == 125
    assert seen["unborn"]["reason"] == "prepare"
    assert folder in explain_exec("true", seen["unborn"])


def test_an_output_that_cannot_be_opened_is_reported(birth, tmp_path):
    fifo = tmp_path / "missing" / "fifo"
    seen = birth(tmp_path, "true", fifo=fifo)
    assert (os.waitstatus_to_exitcode(seen["status"]), seen["unborn"]["reason"]) == (125, "prepare")
    assert explain_exec("true", seen["unborn"]) == f"cannot open its output {fifo}: No such file or directory"


@pytest.mark.parametrize("code", [125, 126, 127])
def test_a_ranks_own_code_leaves_no_line(birth, tmp_path, code):
    seen = birth(tmp_path, "sh", "-c", f"exit {code}")
    assert (os.waitstatus_to_exitcode(seen["status"]), seen["unborn"]) == (code, None)
