"""What the tests of supervisors/ share: waiting with a deadline, a process of one's own, a disk that can be filled."""

import contextlib
import ctypes
import faulthandler
import gc
import json
import os
import select
import signal
import subprocess
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from muster.probes.kernel import process
from muster.supervisors.launch.creation.underway import Waiting
from muster.supervisors.system import descriptors

T = TypeVar("T")

DEADLINE_S = 60.0
_PR_SET_CHILD_SUBREAPER = 36


def until(look: Callable[[], T], what: str, seconds: float = DEADLINE_S) -> T:
    """The first true answer of `look`; for what nothing can be waited on. Fails the test when `seconds` are over."""
    deadline = time.monotonic() + seconds
    while True:
        answer = look()
        if answer:
            return answer
        if time.monotonic() > deadline:
            pytest.fail(f"waited {seconds:.0f} s in vain: {what}")
        time.sleep(0.005)


def wait_ended(pidfd: int, seconds: float = DEADLINE_S) -> None:
    """Until the process behind a pidfd has ended."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    assert poll.poll(seconds * 1000), f"the process did not end within {seconds:.0f} s"


def created(work: Waiting[T]) -> T:
    """What the work returns, which creates processes, once all its waits are over."""
    try:
        pidfd, seconds = next(work)
        while True:
            pidfd, seconds = work.send(process.wait_ended(pidfd, seconds))
    except StopIteration as end:
        returned: T = end.value
        return returned


def in_own_process(work: Callable[[], Any], *, few_descriptors: bool = False) -> Any:
    """Runs `work` in a forked process, a subreaper with no other children, and returns what it returns (as JSON does).

    For what changes a whole process (signal handlers, limits) or looks at all its children. An exception fails the test
    with its traceback; whatever the process leaves behind is killed. `few_descriptors`: none of those that this process
    happens to have by now, for work at the limit of their number.
    """
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 on: fork in a process with threads
        pid = os.fork()
    if pid == 0:
        # What the parent left to the collector would close its descriptors, whose numbers are others' by then.
        gc.disable()
        os.close(read)
        if few_descriptors:
            descriptors.close_all_but({0, 1, 2, write})
        _work(work, write)
    os.close(write)
    parts = []
    poll = select.poll()
    poll.register(read, select.POLLIN)
    deadline = time.monotonic() + 2 * DEADLINE_S
    try:
        while True:
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                pytest.fail("the process of the test's own did not come to an end")
            part = os.read(read, 65536)
            if not part:
                break
            parts.append(part)
    finally:
        os.close(read)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    answer = json.loads(b"".join(parts) or b'{"error": "the process of the test\'s own died"}')
    if "error" in answer:
        pytest.fail(answer["error"])
    return answer["result"]


def _work(work: Callable[[], Any], write: int) -> None:
    faulthandler.disable()  # a signal that ends this process on purpose is no news for pytest's output
    try:
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        try:
            answer: dict[str, Any] = {"result": work()}
        except BaseException:  # pytest.fail is one too; all of it goes to the test
            answer = {"error": traceback.format_exc()}
        _kill_children()  # before the answer: after it our own end comes
        with contextlib.suppress(OSError), os.fdopen(write, "w") as file:
            json.dump(answer, file)
    finally:
        os._exit(0)


def _kill_children() -> None:
    """Orphans of the killed come to us, the subreaper, and are next."""
    for _ in range(1000):
        for stat in process.all_stats().values():
            if stat.ppid == os.getpid() and not stat.ended:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(stat.pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


@contextlib.contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A tmpfs of this size ("64k") on a new folder. Skips the test where nothing can be mounted."""
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "muster-test", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"a disk to fill needs the right to mount a tmpfs: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(path: Path, leave: int = 0) -> None:
    """Makes a file that takes all the room of its disk but `leave` bytes."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        for block in (b"x" * 65536, b"x" * 4096, b"x" * 512):
            with contextlib.suppress(OSError):
                while os.write(fd, block) == len(block):
                    pass
        if leave:
            os.ftruncate(fd, max(0, os.fstat(fd).st_size - leave))
    finally:
        os.close(fd)
