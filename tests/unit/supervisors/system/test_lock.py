"""The lock of a job: kept apart by flock on its folder, told by a POSIX lock on its file."""

import fcntl
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from muster.supervisors.supervision_errors import AlreadySupervised
from muster.supervisors.system import lock
from tests.conftest import eventually

_HOLD = "import sys; from pathlib import Path; from muster.supervisors.system import lock; p = Path(sys.argv[1]); "
_HOLD += "held = lock.take(p, p.parent); print('held', flush=True); sys.stdin.read()"
#: As a supervisor of the first release takes it.
_OLD = "import fcntl, os, sys; fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT); "
_OLD += "fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB); print('held', flush=True); sys.stdin.read()"


def _holder(program: str, path: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", program, str(path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    return process


@pytest.mark.parametrize("program", [_HOLD, _OLD], ids=["this release", "an old one"])
def test_one_at_a_time_and_its_pid_is_known_until_it_is_killed(tmp_path: Path, program: str) -> None:
    path = tmp_path / "lock"
    with _holder(program, path) as other:
        assert lock.holder(path) == other.pid
        with pytest.raises(AlreadySupervised):
            lock.take(path, tmp_path)
        other.send_signal(signal.SIGKILL)
        other.wait()
        lock.take(path, tmp_path).close()


def test_an_old_supervisor_is_kept_away(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with _holder(_HOLD, path) as other:
        with open(path, "r+b") as file, pytest.raises(BlockingIOError):
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        other.kill()


def test_a_file_that_cannot_be_opened_for_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lock"
    path.touch()
    real = os.open

    def read_only(name: object, flags: int, *rest: object, **more: object) -> int:
        if flags & (os.O_RDWR | os.O_WRONLY):
            raise OSError(30, "Read-only file system", str(name))
        return real(name, flags, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", read_only)
    held = lock.take(path, tmp_path)
    told = (
        "import sys; from pathlib import Path; from muster.supervisors.system import lock; "
        "print(lock.holder(Path(sys.argv[1])))"
    )
    asked = subprocess.run([sys.executable, "-c", told, str(path)], capture_output=True, text=True, check=True)
    assert int(asked.stdout) == os.getpid()
    with pytest.raises(AlreadySupervised):
        lock.take(path, tmp_path)  # flock(2) keeps descriptors apart, of one process, too
    held.close()
    path.unlink()
    lock.take(path, tmp_path).close()  # nor is it needed


def test_a_child_that_does_not_execute_does_not_hold_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    read, write = os.pipe()
    holder = os.fork()
    if holder == 0:
        lock.take(path, tmp_path)
        child = os.fork()
        if child == 0:
            lock.close_inherited()
            os.write(write, b"%d" % os.getpid())
            signal.pause()
        signal.pause()
    child = int(os.read(read, 32))
    try:
        os.kill(holder, signal.SIGKILL)
        os.waitpid(holder, 0)
        lock.take(path, tmp_path).close()
    finally:
        os.kill(child, signal.SIGKILL)
        os.close(read)
        os.close(write)


@pytest.mark.parametrize("program", [_HOLD, _OLD], ids=["this release", "an old one"])
def test_who_waits_gets_on_once_the_holder_has_died_wherever_its_folder_is(tmp_path: Path, program: str) -> None:
    before, behind = tmp_path / "before", tmp_path / "behind"
    before.mkdir()
    with _holder(program, before / "lock") as other:
        folder = os.open(before, os.O_RDONLY)
        waiting = threading.Thread(target=lock.wait, args=("lock", folder), daemon=True)
        waiting.start()
        before.rename(behind)
        blocked = re.compile(rf"-> POSIX .* {os.getpid()} ")
        eventually(lambda: blocked.search(Path("/proc/locks").read_text()), message="it waits")
        assert waiting.is_alive()
        other.kill()
        waiting.join(60)
        assert not waiting.is_alive()
    lock.take(behind / "lock", behind).close()
    os.close(folder)
