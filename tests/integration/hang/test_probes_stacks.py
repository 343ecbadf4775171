"""Stacks of real processes, by the real py-spy: blocked, spinning, stopped, stuck in the kernel, forbidden."""

import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio
import pytest

from muster.probes.stacks import ProcessStacks, StackTarget, grouped, take, taking
from tests.conftest import alive, eventually

Start = Callable[..., StackTarget]
#: The observed process says when it is about to be where it is to be found.
LOCKED = """
import threading
def take(lock):
    print("there", flush=True)
    lock.acquire()
lock = threading.Lock()
lock.acquire()
threading.Thread(target=threading.Event().wait, name="beat", daemon=True).start()
take(lock)
"""
ASLEEP = "import time\ndef nap():\n    print('there', flush=True)\n    time.sleep(1000)\nnap()"
SPINS = """
def square(n):
    return n * n
def spin():
    print("there", flush=True)
    n = 0
    while True:
        n += 1
        square(n)
def main():
    spin()
main()
"""
#: Between vfork and exec the child opens a FIFO that nobody writes to, and the parent waits for it in state D.
STUCK = """
import os, sys
def launch():
    print("there", flush=True)
    os.posix_spawn("/bin/true", ["true"], {}, file_actions=[(os.POSIX_SPAWN_OPEN, 0, sys.argv[1], os.O_RDONLY, 0)])
launch()
"""


def start_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def is_asleep(target: StackTarget) -> bool:
    """Of a process that has nothing to do but to sleep once it has said that it is there."""
    return state_of(target.pid) == "S"


def child_of(target: StackTarget) -> StackTarget:
    pid = int(Path(f"/proc/{target.pid}/task/{target.pid}/children").read_text().split()[0])
    return StackTarget(target.rank, pid, start_of(pid))


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a program; returns it once it has said that it is there."""
    made: list[subprocess.Popen[bytes]] = []

    def begin(*command: str, rank: int = 0, says: bool = True) -> StackTarget:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
        made.append(process)
        assert process.stdout is not None
        if says:
            assert process.stdout.readline() == b"there\n"
        return StackTarget(rank, process.pid, start_of(process.pid))

    yield begin
    for process in made:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@pytest.fixture
def python(start: Start) -> Start:
    """Starts a Python program given as text. Skips where this machine lets nobody read another process."""

    async def refused() -> tuple[str, ...]:
        probe = start(sys.executable, "-c", ASLEEP)
        return tuple(note for note in (await take([probe], deadline_s=60)).notes if "may not be read" in note)

    if notes := anyio.run(refused):
        pytest.skip(notes[0])

    def begin(program: str, *arguments: str, rank: int = 0) -> StackTarget:
        return start(sys.executable, "-c", program, *arguments, rank=rank)

    return begin


async def of(target: StackTarget, until: Callable[[ProcessStacks], object] = bool, **options: object) -> ProcessStacks:
    """What is found of one process, once it is as it is to be."""
    with anyio.fail_after(180):
        while True:
            (found,) = (await take([target], deadline_s=60, **options)).processes  # type: ignore[arg-type]
            if until(found):
                return found
            await anyio.sleep(0.01)


def lines(process: ProcessStacks) -> tuple[str, ...]:
    (group,) = grouped([process])
    return group.lines


def locked(found: ProcessStacks) -> bool:
    """A process of LOCKED is where it is to be."""
    return lines(found)[0] == "take (<string>:5)" and found.threads == 2 and found.state == "S"


# --- where they are ---------------------------------------------------------------------------------------------------


async def test_a_lock_that_is_taken_twice(python: Start):
    found = await of(python(LOCKED), locked)
    assert (found.command, found.state, found.threads, found.trouble) == (f"{Path(sys.executable).name} -c", "S", 2, "")
    text = lines(found)
    assert text[:2] == ("take (<string>:5)", "<module> (<string>:9)")
    assert "thread 'beat':" in text
    if os.geteuid() == 0:
        assert found.main is not None
        assert "futex" in found.main.wchan
        assert any("futex" in name for name in found.main.kernel)


async def test_a_process_that_computes_is_known_by_what_it_does_not_leave(python: Start):
    found = await of(python(SPINS), lambda found: len(found.python[0].held) >= 3)
    held = found.python[0].held
    assert found.python[0].active
    assert held[-2:] == ("main (<string>:11)", "<module> (<string>:12)")
    assert held[-3].startswith("spin (<string>")


async def test_a_program_without_python_is_described_by_the_kernel(start: Start):
    target = start("sleep", "1000", says=False)
    taken = await take([target], deadline_s=60)
    (found,) = taken.processes
    assert (found.command, found.python, found.trouble) == ("sleep", (), "")
    assert taken.notes == ()
    if os.geteuid() == 0:
        found = await of(target, lambda found: "nanosleep" in lines(found)[0])


async def test_a_stopped_process_stays_stopped_and_is_reported(python: Start):
    target = python(LOCKED)
    await of(target, locked)
    os.kill(target.pid, signal.SIGSTOP)
    eventually(lambda: state_of(target.pid) == "T")
    found = await of(target, native=4)
    assert found.python[0].frames or found.python[1].frames
    assert lines(found)[0] == "take (<string>:5)"
    assert any(line.startswith("is stopped by a signal (T)") for line in lines(found))
    assert found.native == ()
    assert state_of(target.pid) == "T"


async def test_state_d_holds_nobody_up(python: Start, tmp_path: Path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    target, other = python(STUCK, str(fifo)), python(LOCKED, rank=1)
    eventually(lambda: state_of(target.pid) == "D", message="the parent waits for its vfork")
    child = child_of(target)
    try:
        taken = await take([target, child, other], deadline_s=3600, native=3)
        by_pid = {found.pid: found for found in taken.processes}
        found = by_pid[target.pid]
        assert found.state == "D"
        assert lines(found)[:2] == ("launch (<string>:5)", "<module> (<string>:6)")
        assert any(line.startswith("waits in the kernel and cannot be killed (D)") for line in lines(found))
        assert found.native == ()
        # Its memory is the parent's, whose frames are not its own.
        assert by_pid[child.pid].python == ()
        assert by_pid[other.pid].python
    finally:
        os.close(os.open(fifo, os.O_RDWR | os.O_NONBLOCK))  # a process that opens it meanwhile goes on


async def test_a_zombie_is_reported_as_one(start: Start):
    target = start("true", says=False)
    eventually(lambda: state_of(target.pid) == "Z")
    (found,) = (await take([target], deadline_s=60)).processes
    assert found.state == "Z"
    assert lines(found)[0].startswith("has ended, and its parent has not reaped it (Z)")


async def test_an_ended_process_is_left_out_also_if_another_has_its_pid(start: Start):
    target = start("sleep", "1000", says=False)
    taken = await take([StackTarget(0, target.pid, target.start - 1), StackTarget(1, 4194305, 1)], deadline_s=60)
    assert (taken.processes, taken.notes) == ((), ())


@pytest.mark.skipif(platform.machine() != "x86_64", reason="native frames are tested on x86-64 only")
async def test_native_frames_leave_the_process_running(python: Start):
    target = python(LOCKED)
    await of(target, locked)
    found = await of(target, native=1)
    assert any(frame.startswith("take (<string>:5)") for frame in found.native)
    assert any(".so" in frame or "python" in frame.rpartition("(")[2] for frame in found.native)
    assert any(line.startswith("with C and C++ frames") for line in lines(found))
    assert state_of(target.pid) == "S"


# --- many -------------------------------------------------------------------------------------------------------------

FAMILY = """
import os, threading
print("there", flush=True)
lock = threading.Lock()
lock.acquire()
def collective():
    lock.acquire()
def load():
    lock.acquire()
pids = []
for rank in range(64):
    pid = os.fork()
    if not pid:
        load() if rank == 17 else collective()
    pids.append(pid)
lock.acquire()
"""


def children_of(target: StackTarget) -> list[StackTarget]:
    pids = Path(f"/proc/{target.pid}/task/{target.pid}/children").read_text().split()
    return [StackTarget(rank, int(pid), start_of(int(pid))) for rank, pid in enumerate(pids)]


async def test_one_of_64_that_is_elsewhere_is_the_first(python: Start):
    parent = python(FAMILY)
    targets = eventually(lambda: len(found := children_of(parent)) == 64 and found)
    with anyio.fail_after(240):  # until all are where they are to be
        while len(groups := grouped((taken := await take(targets, deadline_s=120)).processes)) != 2:
            pass
    odd, others = groups
    assert ([owner.rank for owner in odd.owners], odd.lines[0]) == ([17], "load (<string>:9)")
    assert (len(others.owners), others.lines[0]) == (63, "collective (<string>:7)")
    assert taken.notes == ()


# --- forbidden --------------------------------------------------------------------------------------------------------

FROM_OUTSIDE = """
import json, sys
import anyio
from muster.probes.stacks import StackTarget, take
async def main():
    taken = await take([StackTarget(4, int(sys.argv[1]), int(sys.argv[2]))], deadline_s=60)
    print(json.dumps([[p.state, p.threads, p.trouble, len(p.python)] for p in taken.processes] + list(taken.notes)))
anyio.run(main)
"""


@pytest.mark.parametrize(
    ("of_nobody", "reason"),
    [(False, "it has capabilities that musterd lacks"), (True, "it runs as uid 65534 and musterd as uid 0")],
)
async def test_what_to_allow_is_reported_where_ptrace_is_forbidden(start: Start, of_nobody: bool, reason: str):
    if os.geteuid() != 0:
        pytest.skip("needs root, to give CAP_SYS_PTRACE away")
    as_nobody = ("setpriv", "--reuid=65534", "--clear-groups") if of_nobody else ()
    target = start(*as_nobody, "sh", "-c", "echo there; exec sleep 1000")
    eventually(lambda: is_asleep(target))
    without = ("setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace")
    dumper = (sys.executable, "-c", FROM_OUTSIDE, str(target.pid), str(target.start))
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    ended = await anyio.run_process([*without, *dumper], env=env)
    said = ended.stdout.decode()
    assert f"Python stacks may not be read of rank 4 (pid {target.pid})" in said
    assert reason in said
    assert "AmbientCapabilities=CAP_SYS_PTRACE" in said
    assert '["S", 1,' in said, "state and threads are told all the same"


#: As in a container: the calls that read or stop another process give EPERM.
FILTERED = """
import ctypes, struct
libc = ctypes.CDLL(None, use_errno=True)
code = struct.pack("HBBI", 0x20, 0, 0, 0)
for number in (310, 101):  # process_vm_readv, ptrace
    code += struct.pack("HBBI", 0x15, 0, 1, number) + struct.pack("HBBI", 6, 0, 0, 0x50001)
code += struct.pack("HBBI", 6, 0, 0, 0x7FFF0000)
buffer = ctypes.create_string_buffer(code)
program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(buffer)))
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program, 0, 0) == 0
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers of system calls in the filter are x86-64's")
async def test_a_seccomp_filter_costs_native_frames_only(python: Start):
    if os.geteuid() != 0:
        pytest.skip("needs root: others are told that they lack CAP_SYS_PTRACE")
    target = python(ASLEEP)
    eventually(lambda: is_asleep(target))
    program = FILTERED + FROM_OUTSIDE.replace("deadline_s=60", "deadline_s=60, native=1")
    command = (sys.executable, "-c", program, str(target.pid), str(target.start))
    ended = await anyio.run_process(command, env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])})
    stacks, *notes = json.loads(ended.stdout)
    assert stacks == ["S", 1, "", 1]
    assert len(notes) == 1
    assert notes[0].startswith(f"no C and C++ frames of rank 4 (pid {target.pid}): a seccomp filter forbids musterd")


# --- whatever hangs ---------------------------------------------------------------------------------------------------


def program(folder: Path, text: str) -> str:
    """A program in the place of py-spy, which notes each of its starts in the file `starts`."""
    path = folder / "py-spy"
    path.write_text(f"#!/bin/sh\necho $$ >> {folder}/starts\n{text}\n")
    path.chmod(0o755)
    return str(path)


def starts(folder: Path) -> list[int]:
    file = folder / "starts"
    return [int(line) for line in file.read_text().split()] if file.exists() else []


async def test_a_dump_that_hangs_ends_at_its_deadline(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(taking, "DUMP_S", 0.2)
    target = start("sleep", "1000", says=False)
    taken = await take([target], deadline_s=30, program=program(tmp_path, "exec sleep 1000"))
    assert taken.notes == (f"py-spy did not answer within 0.2 s and was killed: rank 0 (pid {target.pid})",)
    assert taken.processes[0].trouble == "py-spy: it did not answer within 0.2 s and was killed"
    assert taken.processes[0].threads == 1
    assert not any(alive(pid) for pid in starts(tmp_path))


async def test_many_that_hang_are_given_up(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(taking, "DUMP_S", 0.1)
    targets = [start("sleep", "1000", rank=rank, says=False) for rank in range(20)]
    taken = await take(targets, deadline_s=60, program=program(tmp_path, "exec sleep 1000"))
    assert len(starts(tmp_path)) < taking.MAX_HANGING + taking.AT_ONCE
    assert [found.threads for found in taken.processes] == [1] * 20
    assert any("not tried, because 8 other attempts hang" in note for note in taken.notes)


async def test_the_whole_ends_at_its_deadline(start: Start, tmp_path: Path):
    targets = [start("sleep", "1000", rank=rank, says=False) for rank in range(12)]
    began = time.monotonic()
    taken = await take(targets, deadline_s=2.0, program=program(tmp_path, "exec sleep 1000"))
    assert time.monotonic() - began < 60
    assert len(taken.processes) == 12
    assert taken.notes[0].startswith("not looked at, because 2 s had passed: ranks 0-11")
    assert not any(alive(pid) for pid in starts(tmp_path))


@pytest.mark.slow
async def test_a_process_whose_files_hang_holds_nobody_up(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(taking, "READ_S", 5.0)  # in which those of the other one are to be read
    target = start("sleep", "1000", says=False)
    proc = tmp_path / "proc"
    (proc / "77").mkdir(parents=True)
    os.mkfifo(proc / "77/stat")
    (proc / str(target.pid)).symlink_to(f"/proc/{target.pid}")
    taken = await take([StackTarget(1, 77, 5), target], deadline_s=30, program="", proc=proc)
    stuck, fine = taken.processes
    assert (stuck.pid, stuck.trouble) == (77, "reading its files in /proc hangs")
    assert (fine.pid, fine.threads) == (target.pid, 1)
    assert "rank 1 (pid 77)" in taken.notes[0]
    # Not another thread for the same: the one that is left behind is enough.
    again = await take([StackTarget(1, 77, 5)], deadline_s=30, program="", proc=proc)
    assert again.processes[0].trouble == stuck.trouble
    os.close(os.open(proc / "77/stat", os.O_RDWR | os.O_NONBLOCK))


async def test_a_torn_dump_is_taken_again(start: Start, tmp_path: Path):
    text = f"""
[ $(wc -l < {tmp_path}/starts) -lt 3 ] && {{ echo 'Error: Failed to copy PyFrameObject' >&2; exit 1; }}
printf 'Python v3.11.0\\n\\nThread %s (idle): "MainThread"\\n    f (a.py:1)\\n' $4
"""
    target = start("sleep", "1000", says=False)
    taken = await take([target], deadline_s=30, program=program(tmp_path, text))
    assert len(starts(tmp_path)) == 3
    assert lines(taken.processes[0])[0] == "f (a.py:1)"
    assert taken.notes == ()


async def test_what_py_spy_says_is_reported_where_it_fails(start: Start, tmp_path: Path):
    target = start("sleep", "1000", says=False)
    taken = await take([target], deadline_s=30, program=program(tmp_path, "echo 'Error: no luck' >&2; exit 1"))
    assert taken.notes == (f"no Python stack of rank 0 (pid {target.pid}): no luck",)


async def test_without_py_spy_the_remedy_is_to_install_it(start: Start):
    target = start(sys.executable, "-c", ASLEEP)
    taken = await take([target], deadline_s=30, program="")
    assert "pip install py-spy" in taken.notes[0]
    assert taken.processes[0].trouble == "py-spy is not installed"
    gone = await take([target], deadline_s=30, program="/nowhere/py-spy")
    assert "/nowhere/py-spy: cannot be executed: No such file or directory" in gone.notes[0]


async def test_a_take_that_is_cancelled_leaves_no_dump_behind(start: Start, tmp_path: Path):
    target = start("sleep", "1000", says=False)
    path = program(tmp_path, "exec sleep 1000")
    async with anyio.create_task_group() as group:
        group.start_soon(lambda: take([target], deadline_s=600, program=path))
        await anyio.to_thread.run_sync(lambda: eventually(lambda: starts(tmp_path)))
        group.cancel_scope.cancel()
    eventually(lambda: not any(alive(pid) for pid in starts(tmp_path)))
