"""A start is interrupted at a step between its first file and the release of the job's lock, while a supervisor waits
for that lock: any of daemon, nursery and supervisor is killed there, or the step fails.

The job is known afterwards with all its files, and runs once; or nothing of it is left, and it can be started again. In
neither case does the supervisor stay. MUSTER_CHAOS_POINTS and MUSTER_CHAOS_SEED as in test_kill_points.py: a tenth of
the points; 280 of them are all cases.
"""

import contextlib
import errno
import fcntl
import os
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from muster.probes.kernel import process
from muster.v1 import job_pb2
from tests.chaos.test_kill_points import POINTS, SEED, left_over
from tests.conftest import Daemon, eventually

#: Events of Python's audit hooks in the thread that creates the job, and a word in their arguments.
STEPS = {
    "first file": ("open", "spec.json"),
    "FIFOs": ("open", "rank-0.fifo"),
    "its name": ("os.rename", ".job."),
    "release": ("fcntl.flock", f", {fcntl.LOCK_UN})"),
}
#: As these: the name has to be on disk.
SYNC = ("os.fsync", "/jobs'")
KILLED = (
    ("supervisor",), ("nursery",), ("daemon",), ("supervisor", "daemon"), ("daemon", "nursery"),
    ("nursery", "supervisor"), ("nursery", "supervisor", "daemon"),
)  # fmt: skip
CASES = [(step, killed) for step in STEPS for killed in KILLED]
#: A daemon that, at the first event like that, waits until the supervisor has the job's folder open, and then stops
#: itself (SIGSTOP), or for which that fails with an errno.
_MUSTERD = """
import os, signal, sys, threading, time
event, part, number, told = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
due = []
def waits():
    fds = f"/proc/{due[0]}/fd"
    for fd in os.listdir(fds):
        try:
            if "/jobs/" in os.readlink(f"{fds}/{fd}"):
                return True
        except FileNotFoundError:  # closed since
            pass
    return False
def hook(name, values):
    if due and name == event and part in str(values):
        while not waits():
            time.sleep(0.001)
        due.clear()
        if number:
            raise OSError(number, os.strerror(number))
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
sys.argv[:6] = ["musterd"]
from muster.agent import musterd
def begin(*_):
    due.append(int(open(told).read()))
    sys.addaudithook(hook)
signal.signal(signal.SIGWINCH, begin)
fsync = os.fsync
def synced(fd):  # of which there is no event
    hook("os.fsync", (os.readlink(f"/proc/self/fd/{fd}"),))
    fsync(fd)
os.fsync = synced
musterd.main()
"""


class Interrupted:
    """A node on which one start is interrupted."""

    def __init__(self, make_daemon: Callable[..., Daemon], folder: Path, step: str, number: int = 0) -> None:
        """`number`: the errno with which the step fails; 0: the daemon stops itself there."""
        self._started, told = folder / "started", folder / "supervisor"
        at = (STEPS | {"sync": SYNC})[step]
        self.daemon = daemon = make_daemon(by=(sys.executable, "-c", _MUSTERD, *at, str(number), told))
        self.pids = {"nursery": eventually(daemon.nursery_pid), "daemon": daemon.pid}
        self.pids["supervisor"] = eventually(self._waiting)
        told.write_text(str(self.pids["supervisor"]))
        os.kill(daemon.pid, signal.SIGWINCH)

    def _waiting(self) -> int:
        """The child of the nursery that has rehearsed."""
        nursery, children = self.daemon.nursery_pid(), list[str]()
        with contextlib.suppress(OSError):  # there is none, or it has just ended
            children = Path(f"/proc/{nursery}/task/{nursery}/children").read_text().split()
        ready = [pid for pid in map(int, children) if (stat := process.read_stat(pid)) and stat.state == "S"]
        return ready[0] if len(ready) == 1 and not self.daemon.root.rehearsal.exists() else 0

    def start(self) -> "grpc.Future[job_pb2.StartResponse]":
        """The call, under way."""
        command = ("sh", "-c", f"echo $MUSTER_ATTEMPT >> {self._started}")
        spec = job_pb2.JobSpec(job_id="job", command=command, ranks=1)
        return self.daemon.jobs.Start.future(job_pb2.StartRequest(spec=spec), timeout=60)

    def until_stopped(self) -> None:
        def stopped() -> bool:
            stat = process.read_stat(self.pids["daemon"])
            return stat is not None and stat.state == "T"

        eventually(stopped, message="the daemon has stopped itself")

    def kill(self, who: tuple[str, ...]) -> None:
        for name in who:
            if name == "daemon":
                self.daemon.kill()
            else:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.pids[name], signal.SIGKILL)

    def go_on(self) -> None:
        """With a daemon as any other, if this one was killed."""
        if self.daemon.process is not None:
            os.kill(self.daemon.pid, signal.SIGCONT)
        self.daemon.musterd = self.daemon.musterd[-1:]

    def check(self, *, known: bool) -> None:
        """`known`: what must have become of the job."""
        if self.daemon.process is None:
            self.daemon.start()
        found = [job.job_id for job in self.daemon.jobs.List(job_pb2.ListRequest()).jobs]
        assert found == (["job"] if known else [])
        if not known:
            eventually(lambda: self._has_left(self.pids["supervisor"]), message="it leaves without its job")
            assert not self._started.exists()
            eventually(lambda: not list(self.daemon.root.jobs.iterdir()), message="nothing of it is left")
            assert not self.start().result().already_existed
        assert self.daemon.wait("job").state == job_pb2.JOB_STATE_SUCCEEDED
        assert self._started.read_text() == "0\n", "its rank was started once"
        eventually(lambda: not left_over(self.daemon.root.job("job").folder), message="nothing but its record is left")
        eventually(lambda: self._has_left(self.pids["supervisor"]), message="it has left")
        eventually(self._waiting, message="one waits, and nobody else is there")

    @staticmethod
    def _has_left(pid: int) -> bool:
        stat = process.read_stat(pid)
        return stat is None or stat.ended


@pytest.mark.chaos
@pytest.mark.parametrize(
    ("step", "killed"), random.Random(SEED).sample(CASES, min(len(CASES), max(4, POINTS // 10))), ids=str
)
def test_a_kill_in_the_middle_of_a_start(
    make_daemon: Callable[..., Daemon], tmp_path: Path, step: str, killed: tuple[str, ...]
) -> None:
    node = Interrupted(make_daemon, tmp_path, step)
    call = node.start()
    node.until_stopped()
    node.kill(killed)
    node.go_on()
    if "daemon" in killed:
        with pytest.raises(grpc.RpcError):
            call.result()
    else:
        call.result()
    node.check(known="daemon" not in killed or step == "release")


@pytest.mark.parametrize("step", ["FIFOs", "its name", "sync"])
def test_a_start_that_the_disk_refuses_leaves_nothing(
    make_daemon: Callable[..., Daemon], tmp_path: Path, step: str
) -> None:
    node = Interrupted(make_daemon, tmp_path, step, errno.ENOSPC)
    call: Callable[[], job_pb2.StartResponse] = node.start().result
    if step == "FIFOs":  # they can be made later
        call()
        node.check(known=True)
        return
    with pytest.raises(grpc.RpcError) as refused:
        call()
    assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    node.check(known=False)
