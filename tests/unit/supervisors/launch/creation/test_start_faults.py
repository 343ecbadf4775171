"""What fails between the creation of a process and its command: each step once, each call that creates it, the program
itself, the supervisor; and signals. In both ways wherever that makes sense."""

import contextlib
import errno
import os
import random
import signal
import struct
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from muster.probes.kernel import process
from muster.supervisors.launch import child, spawning
from muster.supervisors.launch.child import Account, Confinement, ProcessSpec, explain_exec, read_unborn
from muster.supervisors.launch.creation import program_start
from muster.supervisors.launch.creation.new_processes import NewProcesses
from muster.supervisors.launch.creation.program_start import PROGRAM, ProgramStart, encode
from muster.supervisors.launch.creation.start_steps import StartSteps
from muster.supervisors.output import tee
from muster.supervisors.system.cgroups import find_cgroup_root
from muster.supervisors.system.controllers import job_limits
from tests.unit.seccomp import CLONE_PARENT, needs_seccomp, refuse
from tests.unit.supervision import created, in_own_process, until, wait_ended

#: A program that lets every call pass, and one that the kernel refuses.
ALLOW, NO_PROGRAM = struct.pack("=HBBI", 6, 0, 0, 0x7FFF0000), bytes(8)
MOUNTS = Confinement(binds=(("/usr", "/usr"),), read_only=(("/usr", 0, 0),))
NOBODY = Account("nobody", 65534, 65534, "/", "/bin/sh")
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def specs_in(folder: Path, count: int, *argv: str, **changes: Any) -> list[ProcessSpec]:
    account = Account.of("")
    tee.make_fifo(folder / "fifo", account.uid, account.gid)
    usual = ProcessSpec(0, argv, {"PATH": os.environ["PATH"]}, "/", folder / "fifo", cgroup="", account=account)
    return [replace(usual, rank=number, **changes) for number in range(count)]


def started(
    folder: Path, specs: list[ProcessSpec], meanwhile: Callable[[], None] = lambda: None, at_gate: Any = None
) -> dict[str, Any]:
    """Spawns them and waits for all. Exit codes, lines of those that gave up, what the supervisor was told, and whether
    children are left."""
    pids: list[int] = []
    said: list[str] = []

    def record(made: list[int]) -> None:
        pids.extend(made)
        if at_gate is not None:
            at_gate(made)

    out = os.open(folder / "fifo", os.O_RDWR | os.O_NONBLOCK)
    created(spawning.spawn(specs, folder / "unborn", meanwhile, record, said.append))
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    os.close(out)
    lines = read_unborn(folder / "unborn")
    told = [explain_exec("x", lines[pid]) for pid in pids if pid in lines]
    return {"codes": codes, "told": told, "said": said, "left": left()}


def left() -> int:
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return 0
    return 1


def children() -> list[int]:
    me = os.getpid()
    return [int(pid) for pid in Path(f"/proc/{me}/task/{me}/children").read_text().split()]


# --- every step fails once --------------------------------------------------------------------------------------------


@needs_seccomp
@as_root
@pytest.mark.parametrize(
    ("calls", "changes", "text"),
    [
        (("setsid",), {}, "begin a session"),
        (("dup2", "dup3"), {}, "open its output {folder}/fifo"),
        (("dup2", "dup3"), {"stdio": (0, 1, 2)}, "take its streams"),
        (("ioctl",), {"stdio": (0, 1, 2), "tty": True}, "take its terminal"),
        (("prlimit64",), {"limits": (("core", 0),)}, "set its limits: core 0 (the daemon's own hard limit is {core})"),
        (("sched_setaffinity",), {"cpus": frozenset({0})}, "be bound to its CPUs"),
        (("setpriority",), {"nice": 3}, "take the priority 3"),
        (("setgroups",), {"account": NOBODY}, "become user nobody"),
        (("setgid",), {"account": NOBODY}, "become user nobody"),
        (("setuid",), {"account": NOBODY}, "become user nobody"),
        (("mkdir", "mkdirat"), {"folders": ("{folder}/a/b",)}, "make its folders and files ({folder}/a/b)"),
        (("rename", "renameat"), {"files": (("{folder}/f", "text"),)}, "make its folders and files ({folder}/f)"),
        (("chdir",), {"workdir": "/etc"}, "enter the working folder /etc"),
        (("unshare",), {"confinement": MOUNTS}, "have mounts of its own"),
        (("mount",), {"confinement": MOUNTS}, "have mounts of its own"),
        (("prctl",), {"confinement": Confinement(dropped=(1,))}, "limit its capabilities"),
        (("capset",), {"confinement": Confinement(dropped=(1, 40))}, "limit its capabilities"),
        (("prctl",), {"confinement": Confinement(no_new_privs=True)}, "give up new privileges"),
        (("prctl",), {"confinement": Confinement(filter=ALLOW)}, "filter its system calls"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)  # fmt: skip
def test_a_step_that_fails_is_reported_and_the_command_does_not_run(way, tmp_path, calls, changes, text):
    """By the kernel's refusal of that one call, so that both ways have the same error."""
    import resource

    _, core = resource.getrlimit(resource.RLIMIT_CORE)
    names = {"folder": tmp_path, "core": "unlimited" if core == resource.RLIM_INFINITY else core}
    if "folders" in changes:
        changes = {"folders": tuple(path.format(**names) for path in changes["folders"])}
    if "files" in changes:
        changes = {"files": tuple((path.format(**names), content) for path, content in changes["files"])}

    def work() -> Any:
        specs = specs_in(tmp_path, 2, "touch", str(tmp_path / "ran"), **changes)
        if "tty" in changes:
            _, slave = os.openpty()
            specs = [replace(spec, stdio=(slave, slave, slave)) for spec in specs]
        refuse(errno.EIO, *calls, **({"argument": 2, "bits": 2**32 - 1} if "prlimit64" in calls else {}))
        return started(tmp_path, specs)

    seen = in_own_process(work)
    sentence = f"cannot {text.format(**names)}: Input/output error"
    if calls == ("dup2", "dup3") and "stdio" in changes:
        assert seen["told"] in ([sentence] * 2, [])  # each is its own already
        return
    assert seen == {"codes": [125, 125], "told": [sentence] * 2, "said": [], "left": 0}
    assert not (tmp_path / "ran").exists()


@as_root
@pytest.mark.parametrize(
    ("confinement", "text"),
    [
        (Confinement(binds=(("/no/such", "/usr"),)), "mount /no/such at /usr: No such file or directory"),
        (Confinement(binds=(("/no/such", "/no/such"),)), "make /no/such a mount: No such file or directory"),
        (Confinement(read_only=(("/no/such", 0, 0),)), "make /no/such read-only: No such file or directory"),
        (Confinement(read_only=(("/etc/passwd", 0, 0),)), "make /etc/passwd read-only: Invalid argument"),
        (Confinement(read_only=(("/no/such", 0, 1), ("/etc/passwd", 0, 1))), ""),
        (Confinement(dropped=(63,)), "limit its capabilities: Invalid argument"),
        (Confinement(no_new_privs=True, filter=NO_PROGRAM), "filter its system calls: Invalid argument"),
    ],
    ids=["source", "path", "no mount", "not a mount", "unmounted meanwhile", "no capability", "no program"],
)
def test_what_confines_a_process_and_cannot_be_done_is_reported(way, tmp_path, confinement, text):
    """A mount within one that becomes read-only may be gone again: nothing can be written there then."""
    seen = in_own_process(lambda: started(tmp_path, specs_in(tmp_path, 2, "true", confinement=confinement)))
    if seen["told"] and "have mounts of its own: Operation not permitted" in seen["told"][0]:
        pytest.skip("needs CAP_SYS_ADMIN")
    assert seen["told"] == ([f"cannot {text}"] * 2 if text else [])
    assert seen["codes"] == [125 if text else 0] * 2


def test_a_cgroup_of_v1_that_cannot_be_entered_is_reported(way, tmp_path):
    """Its limit would not hold."""
    seen = in_own_process(lambda: started(tmp_path, specs_in(tmp_path, 1, "true", v1_cgroups=("/no/such",))))
    assert (seen["codes"], seen["told"]) == ([125], ["cannot enter /no/such: No such file or directory"])


def test_cpus_that_do_not_exist_are_reported(way, tmp_path):
    seen = in_own_process(lambda: started(tmp_path, specs_in(tmp_path, 1, "true", cpus=frozenset({1000}))))
    assert seen["codes"] == [125]
    assert seen["told"] == ["cannot be bound to its CPUs: Invalid argument"]


@pytest.mark.parametrize("cgroup", ["/no/such/cgroup", "/proc"])
def test_a_cgroup_that_takes_nobody_does_not_keep_a_process_from_its_command(way, tmp_path, cgroup):
    seen = in_own_process(lambda: started(tmp_path, specs_in(tmp_path, 3, "true", cgroup=cgroup)))
    assert (seen["codes"], seen["left"]) == ([0, 0, 0], 0)


@as_root
def test_a_protected_daemon_does_not_protect_its_ranks_from_the_oom_killer(way, tmp_path):
    def work() -> Any:
        try:
            Path("/proc/self/oom_score_adj").write_text("-500")
        except PermissionError:
            return None
        specs = specs_in(tmp_path, 1, "cp", "/proc/self/oom_score_adj", str(tmp_path / "score"))
        return started(tmp_path, specs)

    seen = in_own_process(work)
    if seen is None:
        pytest.skip("needs CAP_SYS_RESOURCE")
    assert seen["codes"] == [0]
    assert (tmp_path / "score").read_text() == "0\n"


# --- the calls that create processes ----------------------------------------------------------------------------------


@pytest.fixture
def cgroup(request: pytest.FixtureRequest) -> Any:
    """A cgroup of the test's own, in a cgroup of the test's own."""
    root = find_cgroup_root()
    if root is None:
        pytest.skip("needs a cgroup v2 that may be written")
    folder = root / f"muster-test-{os.getpid()}-{abs(hash(request.node.name)) % 10**8}"
    try:
        (folder / "ranks").mkdir(parents=True)
    except OSError as error:
        pytest.skip(f"no cgroup can be made: {error.strerror}")
    yield folder / "ranks"
    with contextlib.suppress(OSError):
        (folder / "ranks/cgroup.freeze").write_text("0")
    with contextlib.suppress(OSError):
        (folder / "cgroup.kill").write_text("1")
    until(lambda: _removed(folder), "the cgroup is empty")


def _removed(folder: Path) -> bool:
    job_limits.remove(folder)
    return not folder.exists()


def where_they_ran(tmp_path: Path) -> list[str]:
    lines = (tmp_path / "where").read_text().splitlines()
    return [line.rpartition("/")[2] for line in lines if line.startswith("0::")]


WHERE = "cat /proc/self/cgroup >> where"


def test_processes_begin_in_their_cgroup(way, tmp_path, cgroup):
    def work() -> Any:
        specs = specs_in(tmp_path, 3, "sh", "-c", WHERE, cgroup=str(cgroup), workdir=str(tmp_path))
        return started(tmp_path, specs)

    assert in_own_process(work) == {"codes": [0, 0, 0], "told": [], "said": [], "left": 0}
    assert where_they_ran(tmp_path) == ["ranks"] * 3


def test_the_program_writes_to_no_cgroup(program, tmp_path, cgroup):
    """Each write to cgroup.procs waits for the whole node: they are created there."""

    def work() -> Any:
        read, write = os.pipe()
        spec = specs_in(tmp_path, 1, "true", cgroup=str(cgroup))[0]
        start = ProgramStart([(0, StartSteps().of(spec))], read, os.dup(write))
        wait_ended(start.pidfd)
        (pid,) = start.pids()
        there = pid in [int(word) for word in (cgroup / "cgroup.procs").read_text().split()]
        os.write(write, b"1")
        return [there, start.refusal(), os.waitpid(pid, 0)[1]]

    assert in_own_process(work) == [True, 0, 0]


@pytest.mark.parametrize("whose", ["the job's", "the supervisor's"])
def test_a_cgroup_that_was_killed_takes_new_processes(way, tmp_path, cgroup, whose):
    """As for the epilog behind a stop. A kernel compares how often the two cgroups were killed, and kills at birth."""
    ours = cgroup.parent / "supervisor"
    ours.mkdir()
    ((cgroup if whose == "the job's" else ours) / "cgroup.kill").write_text("1")

    def work() -> Any:
        (ours / "cgroup.procs").write_text("0")
        specs = specs_in(tmp_path, 5, "sh", "-c", WHERE, cgroup=str(cgroup), workdir=str(tmp_path))
        return started(tmp_path, specs)

    assert in_own_process(work) == {"codes": [0] * 5, "told": [], "said": [], "left": 0}
    assert where_they_ran(tmp_path) == ["ranks"] * 5


@needs_seccomp
@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EPERM, errno.EINVAL, errno.EOPNOTSUPP, errno.EBUSY])
def test_where_clone3_is_refused_they_enter_it_themselves(way, tmp_path, cgroup, number):
    """As by the seccomp filters of container runtimes. Where it is not ENOSYS, posix_spawn(3) fails as well."""

    def work() -> Any:
        specs = specs_in(tmp_path, 3, "sh", "-c", WHERE, cgroup=str(cgroup), workdir=str(tmp_path))
        refuse(number, "clone3")
        return started(tmp_path, specs)

    seen = in_own_process(work)
    assert (seen["codes"], seen["told"], seen["left"]) == ([0, 0, 0], [], 0)
    assert where_they_ran(tmp_path) == ["ranks"] * 3
    if number == errno.ENOSYS:
        assert seen["said"] == []


def test_beside_where_the_cgroup_has_handed_controllers_down(way, tmp_path, cgroup):
    """The kernel refuses CLONE_INTO_CGROUP as well as the write (EBUSY)."""
    controllers = (cgroup / "cgroup.controllers").read_text().split()
    if not controllers:
        parents = (cgroup.parent.parent / "cgroup.controllers").read_text().split()
        with contextlib.suppress(OSError):
            for folder in (cgroup.parent.parent, cgroup.parent):
                (folder / "cgroup.subtree_control").write_text(f"+{parents[0]}" if parents else "+none")
        controllers = (cgroup / "cgroup.controllers").read_text().split()
    if not controllers:
        pytest.skip("no controller of cgroup v2 can be handed down here")
    (cgroup / "cgroup.subtree_control").write_text(f"+{controllers[0]}")

    def work() -> Any:
        specs = specs_in(tmp_path, 2, "sh", "-c", WHERE, cgroup=str(cgroup), workdir=str(tmp_path))
        return started(tmp_path, specs)

    seen = in_own_process(work)
    assert (seen["codes"], seen["said"]) == ([0, 0], [])
    assert where_they_ran(tmp_path) == ["beside"] * 2


def test_a_threaded_cgroup_takes_none_and_they_run(way, tmp_path, cgroup):
    """EOPNOTSUPP."""
    (cgroup / "inner").mkdir()
    (cgroup / "inner/cgroup.type").write_text("threaded")
    seen = in_own_process(lambda: started(tmp_path, specs_in(tmp_path, 2, "true", cgroup=str(cgroup / "inner"))))
    assert (seen["codes"], seen["said"], seen["left"]) == ([0, 0], [], 0)


@needs_seccomp
@pytest.mark.parametrize(("number", "raised"), [(errno.EAGAIN, True), (errno.ENOMEM, True), (errno.EPERM, False)])
def test_a_node_that_has_no_room_for_them_is_reported(program, tmp_path, number, raised):
    """Any other refusal concerns only the program's way to create them: the supervisor forks."""

    def work() -> Any:
        specs = specs_in(tmp_path, 3, "touch", str(tmp_path / "ran"))
        refuse(errno.ENOSYS, "clone3")
        refuse(number, "clone", bits=CLONE_PARENT)
        if not raised:
            return started(tmp_path, specs)
        with pytest.raises(OSError, match=os.strerror(number)):
            started(tmp_path, specs)
        return left()

    seen = in_own_process(work)
    if raised:
        assert (seen, (tmp_path / "ran").exists()) == (0, False)
    else:
        assert (seen["codes"], seen["left"]) == ([0, 0, 0], 0)
        assert "cannot create process 0: Operation not permitted; forking instead" in seen["said"][0]


# --- a program that cannot be used ------------------------------------------------------------------------------------


def other_machine(program: bytes) -> bytes:
    """An ELF file for the IBM S/390."""
    return program[:18] + struct.pack("=H", 22) + program[20:]


@pytest.mark.parametrize(
    ("content", "mode"),
    [
        (lambda program: program, 0o644),
        (other_machine, 0o755),
        (lambda program: program[:100], 0o755),
        (lambda program: b"", 0o755),
        (lambda program: b"#!/bin/false\n", 0o755),
    ],
    ids=["no execute bit", "of another architecture", "cut off", "empty", "a script"],
)
def test_a_program_that_does_not_run_is_done_without(program, tmp_path, content, mode):
    path = tmp_path / "muster-spawn"
    path.write_bytes(content(program_start.PATH.read_bytes()))
    path.chmod(mode)

    def work() -> Any:
        PROGRAM.open(path)
        return started(tmp_path, specs_in(tmp_path, 3, "true"))

    seen = in_own_process(work)
    assert (seen["codes"], seen["told"], seen["left"]) == ([0, 0, 0], [], 0)
    assert len(seen["said"]) == 1 and "forking instead" in seen["said"][0]


def test_without_a_program_nothing_is_reported(tmp_path):
    """A package for any machine has none."""

    def work() -> Any:
        PROGRAM.open(tmp_path / "missing")
        return started(tmp_path, specs_in(tmp_path, 3, "true"))

    assert in_own_process(work) == {"codes": [0, 0, 0], "told": [], "said": [], "left": 0}


@as_root
def test_on_a_file_system_without_programs(program, tmp_path):
    folder = tmp_path / "noexec"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "noexec", "none", str(folder)], check=False).returncode:
        pytest.skip("needs a file system that can be mounted")
    try:
        path = folder / "muster-spawn"
        path.write_bytes(program_start.PATH.read_bytes())
        path.chmod(0o755)

        def work() -> Any:
            PROGRAM.open(path)
            return started(tmp_path, specs_in(tmp_path, 2, "true"))

        seen = in_own_process(work)
        assert seen["codes"] == [0, 0]
        assert "Permission denied" in seen["said"][0] and "forking instead" in seen["said"][0]
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_program_of_another_version_is_not_worked_with(program, tmp_path):
    """It refuses before it has created anything."""

    def work() -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(program_start, "VERSION", b"0")
            return started(tmp_path, specs_in(tmp_path, 2, "true"))

    seen = in_own_process(work)
    assert (seen["codes"], seen["left"]) == ([0, 0], 0)
    assert "exit code 125" in seen["said"][0]


def test_the_program_is_the_one_that_was_opened(program, tmp_path):
    """An upgrade replaces the file while the nursery runs."""
    path = tmp_path / "muster-spawn"
    path.write_bytes(program_start.PATH.read_bytes())
    path.chmod(0o755)

    def work() -> Any:
        PROGRAM.open(path)
        path.unlink()
        path.write_bytes(b"another version")
        return started(tmp_path, specs_in(tmp_path, 2, "true"))

    assert in_own_process(work) == {"codes": [0, 0], "told": [], "said": [], "left": 0}


@needs_seccomp
@pytest.mark.parametrize("call", ["memfd_create", "pidfd_open", "close_range"])
def test_calls_that_older_kernels_lack(program, tmp_path, call):
    def work() -> Any:
        specs = specs_in(tmp_path, 2, "sh", "-c", f"ls /proc/self/fd > {tmp_path}/fds")
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):  # the one of the listing
                os.set_inheritable(int(name), int(name) < 3)  # what a shell left to pytest; a nursery has none of it
        refuse(errno.ENOSYS, call)
        return started(tmp_path, specs)

    seen = in_own_process(work)
    assert (seen["codes"], seen["told"], seen["left"]) == ([0, 0], [], 0)
    assert len(seen["said"]) == (0 if call == "close_range" else 1)
    assert (tmp_path / "fds").read_text().split() == ["0", "1", "2", "3"]


@needs_seccomp
def test_a_kernel_that_does_not_know_of_memory_without_programs(program, tmp_path):
    """MFD_NOEXEC_SEAL is of Linux 6.3."""

    def work() -> Any:
        specs = specs_in(tmp_path, 2, "true")
        refuse(errno.EINVAL, "memfd_create", argument=1, bits=8)
        return started(tmp_path, specs)

    assert in_own_process(work) == {"codes": [0, 0], "told": [], "said": [], "left": 0}


# --- kills ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("round_", range(20))
def test_a_program_that_is_killed_in_the_middle_leaves_nothing_and_all_run_once(program, tmp_path, round_):
    """Whenever that is: the kernel itself notes each pid."""

    def work() -> Any:
        specs = specs_in(tmp_path, 40, "mktemp", f"{tmp_path}/ran.XXXXXX")

        def kill() -> None:
            program = children()[0]
            until(lambda: len(children()) > 2 * round_ or not process.read_stat(program), "it has made some")
            with contextlib.suppress(ProcessLookupError):
                os.kill(program, signal.SIGKILL)

        return started(tmp_path, specs, kill)

    seen = in_own_process(work)
    assert (seen["codes"], seen["told"], seen["left"]) == ([0] * 40, [], 0)
    assert seen["said"] in ([], ["muster-spawn was killed by SIGKILL; forking instead"])
    assert len(list(tmp_path.glob("ran.*"))) == 40


def test_a_program_that_hangs_is_ended(program, tmp_path):
    def work() -> Any:
        specs = specs_in(tmp_path, 8, "mktemp", f"{tmp_path}/ran.XXXXXX")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(program_start, "WAIT_S", 0.2)
            return started(tmp_path, specs, lambda: os.kill(children()[0], signal.SIGSTOP))

    seen = in_own_process(work)
    assert (seen["codes"], seen["left"], len(list(tmp_path.glob("ran.*")))) == ([0] * 8, 0, 8)
    assert seen["said"] in ([], ["muster-spawn did not end within 0.2 s; forking instead"])


@pytest.mark.parametrize("moment", ["meanwhile", "at the gate"])
def test_a_supervisor_that_is_killed_before_the_gate_lets_nothing_run(way, tmp_path, moment):
    """Its processes come to the nursery, a subreaper, and see the end of the gate."""

    def work() -> Any:
        specs = specs_in(tmp_path, 8, "touch", str(tmp_path / "ran"))

        def die(*_: object) -> None:
            os.kill(os.getpid(), signal.SIGKILL)

        supervisor = os.fork()
        if supervisor == 0:
            at_gate = die if moment == "at the gate" else None
            started(tmp_path, specs, die if moment == "meanwhile" else lambda: None, at_gate)
        codes: list[int] = []
        while True:
            try:
                pid, status = os.waitpid(-1, 0)
            except ChildProcessError:
                return codes
            if pid != supervisor:
                codes.append(os.waitstatus_to_exitcode(status))

    codes = in_own_process(work)
    reasons = {line["reason"] for line in read_unborn(tmp_path / "unborn").values()}
    assert not (tmp_path / "ran").exists()
    # The program itself goes on to its end (0), and the processes that it makes end as well.
    assert sorted(codes) in ([125] * 8, [0] + [125] * 8)
    assert reasons == {child.GATE_CLOSED}


@pytest.mark.parametrize("ending", [False, True])
def test_a_frozen_cgroup_holds_nobody_up(way, tmp_path, cgroup, ending):
    """Neither the supervisor at the start, nor the end of processes that are not to run after all."""
    (cgroup / "cgroup.freeze").write_text("1")

    def work() -> Any:
        specs = specs_in(tmp_path, 3, "touch", str(tmp_path / "ran"), cgroup=str(cgroup))
        gate = os.pipe()
        children = NewProcesses(specs, gate, os.open(tmp_path / "unborn", os.O_WRONLY | os.O_CREAT))
        children.begin()
        pids = created(children.pids())
        if ending:
            children.end()
            return left()
        os.write(gate[1], b"111")
        (cgroup / "cgroup.freeze").write_text("0")
        return [os.waitpid(pid, 0)[1] for pid in pids]

    assert in_own_process(work) == (0 if ending else [0, 0, 0])
    assert (tmp_path / "ran").exists() is not ending


# --- signals ----------------------------------------------------------------------------------------------------------

_IGNORED = {signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH}
#: Of no effect on a session of its own without a terminal.
_FROM_TERMINALS = {signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}


def test_each_signal_at_the_gate_does_what_it_does_to_a_new_process(way, tmp_path):
    def work() -> Any:
        found = {}
        for number in sorted(signal.valid_signals()):
            specs = specs_in(tmp_path, 1, "touch", str(tmp_path / f"ran.{number}"))

            def send(pids: list[int], number: int = number) -> None:
                until(lambda: _has_begun(pids[0]), "it has a session, and signals do what they do")
                os.kill(pids[0], number)
                if number == signal.SIGSTOP:
                    os.kill(pids[0], signal.SIGCONT)

            found[str(number)] = started(tmp_path, specs, at_gate=send)["codes"][0]
        return found

    found = in_own_process(work)
    harmless = _IGNORED | _FROM_TERMINALS | {signal.SIGSTOP}
    for number in signal.valid_signals():
        expected = 0 if number in harmless else -number
        assert found[str(int(number))] == expected, number
        assert (tmp_path / f"ran.{int(number)}").exists() is (expected == 0)


def _has_begun(pid: int) -> bool:
    """Its first step is done."""
    stat = process.read_stat(pid)
    unblocked = "SigBlk:\t0000000000000000" in Path(f"/proc/{pid}/status").read_text()
    return stat is not None and stat.session == pid and unblocked


def test_a_signal_to_the_program_does_not_end_it_in_the_middle(program, tmp_path):
    """As at SIGTERM to all of a scope. What it has created is not to be half a gang."""

    def work() -> Any:
        said = []
        for number in sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}):
            specs = specs_in(tmp_path, 4, "true")

            def send(number: int = number) -> None:
                with contextlib.suppress(ProcessLookupError, IndexError):
                    os.kill(children()[0], number)

            seen = started(tmp_path, specs, send)
            said += [number, seen] if seen != {"codes": [0] * 4, "told": [], "said": [], "left": 0} else []
        return said

    assert in_own_process(work) == []


# --- the protocol -----------------------------------------------------------------------------------------------------


def run_program(message: bytes, gate: int, line: int) -> int:
    """The program's exit code for a message."""
    memory = os.memfd_create("message")
    os.write(memory, message)
    try:
        pid = os.posix_spawn(
            f"/proc/self/fd/{PROGRAM.fd}", [b"muster-spawn", b"1", b"%d" % memory], {},
            file_actions=[(os.POSIX_SPAWN_DUP2, fd, fd) for fd in (memory, gate, line)],
        )  # fmt: skip
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    finally:
        os.close(memory)


@pytest.mark.parametrize("seed", range(8))
def test_a_message_that_is_not_understood_creates_nothing_and_breaks_nothing(program, tmp_path, seed):
    """Damaged anywhere. As another user and without some calls, since a path may be damaged, too."""
    random_ = random.Random(seed)

    def work() -> Any:
        folder = tmp_path / "gone"
        changes: dict[str, Any] = {"folders": (str(folder),), "files": ((str(folder / "f"), "x"),)}
        spec = specs_in(tmp_path, 3, "true", limits=(("core", 0),), **changes)
        gate_read, gate_write = os.pipe()
        line_read, line = os.pipe2(os.O_NONBLOCK)
        os.close(gate_write)  # nobody is let go
        steps = StartSteps()
        good = encode([(one.rank, steps.of(one)) for one in spec], gate_read, line)
        if os.geteuid() == 0:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
        refuse(errno.EPERM, "mkdirat", "renameat", "ioctl")
        bad, made = [], 0
        for _ in range(250):
            message = bytearray(good)
            for _ in range(random_.choice([1, 1, 2, 8])):
                where = random_.choice([random_.randrange(len(good)), random_.randrange(420)])
                flipped = message[where] ^ 1 << random_.randrange(8)
                message[where] = random_.choice([0, 1, 255, random_.randrange(256), flipped])
            if random_.random() < 0.1:
                message = message[: random_.randrange(len(message))]
            code = run_program(bytes(message), gate_read, line)
            bad += [code] if code not in (0, 125) else []
            with contextlib.suppress(ChildProcessError):
                while True:
                    status = os.waitpid(-1, 0)[1]
                    made += 1
                    bad += [status] if os.WIFSIGNALED(status) else []
            with contextlib.suppress(BlockingIOError):
                while os.read(line_read, 65536):
                    pass
        return [bad, made]

    bad, _ = in_own_process(work)
    assert bad == []


@pytest.mark.parametrize(
    "arguments", [[], [b"1"], [b"1", b"x"], [b"1", b"99"], [b"1", b""], [b"2", b"3"], [b"1", b"3", b"4"], [b"11", b"3"]]
)
def test_arguments_that_are_not_understood(program, arguments):
    done = subprocess.run([b"muster-spawn", *arguments], executable=str(program_start.PATH), check=False, timeout=60)
    assert done.returncode == 125


# --- what it costs the job --------------------------------------------------------------------------------------------


def test_a_process_that_waits_has_next_to_no_memory_of_its_own(program, tmp_path):
    """It is counted as the job's, whose limit may be small."""

    def work() -> Any:
        dirty: list[int] = []

        def look(pids: list[int]) -> None:
            until(lambda: _has_begun(pids[0]), "it has a session, and signals do what they do")
            for line in Path(f"/proc/{pids[0]}/smaps_rollup").read_text().splitlines():
                if line.startswith("Private_Dirty:"):
                    dirty.append(int(line.split()[1]))

        specs = specs_in(tmp_path, 1, "true")
        specs = [replace(spec, env={f"V{i}": "x" * 1000 for i in range(100)}) for spec in specs]
        return [started(tmp_path, specs, at_gate=look)["codes"], dirty]

    codes, dirty = in_own_process(work)
    assert codes == [0]
    assert len(dirty) == 1 and dirty[0] < 128, "KiB"


@pytest.mark.slow
def test_many_at_once(way, tmp_path):
    """More than a page of pids; all are let go by one write."""
    seen = in_own_process(lambda: started(tmp_path, specs_in(tmp_path, 300, "true")))
    assert (seen["codes"], seen["said"], seen["left"]) == ([0] * 300, [], 0)
