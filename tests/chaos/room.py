"""A room for one chaos point: where root may make them, a mount and a process namespace of its own.

Whatever happens in it, nothing of it is left: the kernel ends every process of the room with its first one, and the
mounts go with the last process. Without namespaces, what was started in it is ended one by one: the first process is a
subreaper, to which everything comes that descends from it.

`python -m tests.chaos.room COMMAND...` is that first process: it reaps orphans, as an init does, and ends when the
command has ended, with its exit code.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
import zlib
from functools import cache
from pathlib import Path

from muster.supervisors.system.cgroups import find_cgroup_root
from muster.supervisors.system.subreaper import become_subreaper

_UNSHARE = ("unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "--mount-proc")
#: Set for a process in a room with namespaces.
_CLOSED = "MUSTER_CHAOS_CLOSED_ROOM"
#: Longer than any point: an init that nobody waits for any more ends, and with it the room.
LIMIT_S = 600


@cache
def why_open() -> str:
    """Why there can be no room with namespaces, a sentence; empty where there can be one."""
    if os.geteuid() != 0:
        return "needs root, for a mount and a process namespace of its own"
    try:
        tried = subprocess.run([*_UNSHARE, "true"], capture_output=True, text=True, timeout=60, check=False)
    except OSError as error:
        return f"no namespaces can be made: {error}"
    return f"no namespaces can be made: {tried.stderr.strip()}" if tried.returncode else ""


def command(*args: str) -> list[str]:
    """The command line that runs `args` in a room."""
    prefix = () if why_open() else _UNSHARE
    return [*prefix, sys.executable, "-m", "tests.chaos.room", *args]


def environment() -> dict[str, str]:
    return dict(os.environ) | ({} if why_open() else {_CLOSED: "1"})


def is_closed() -> bool:
    """Whether this process is in a room of its own namespaces, where it may mount and hide what it likes."""
    return os.environ.get(_CLOSED) == "1"


def mount(*args: str) -> None:
    """Raises RuntimeError with what mount(8) says."""
    done = subprocess.run(["mount", *args], capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        raise RuntimeError(f"mount {' '.join(args)}: {done.stderr.strip()}")


def unmount(target: Path) -> None:
    """Raises RuntimeError with what umount(8) says."""
    done = subprocess.run(["umount", "-l", str(target)], capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        raise RuntimeError(f"umount {target}: {done.stderr.strip()}")


def remove_cgroups(state: Path) -> None:
    """Those of jobs whose state folder this was: a cgroup does not go with a namespace."""
    found = find_cgroup_root()
    if found is None:
        return
    for folder in found.glob(f"muster-{zlib.crc32(os.fsencode(state)):08x}-*"):
        with contextlib.suppress(OSError):
            (folder / "cgroup.kill").write_text("1")
        for path, _, _ in os.walk(folder, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(path)


def children() -> list[int]:
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError, IndexError):
            fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
            if int(fields[1]) == os.getpid() and fields[0] not in "ZX":
                found.append(int(name))
    return found


def main() -> int:
    become_subreaper()
    if is_closed() and os.path.isdir("/run/systemd"):
        # A pid of this namespace means another process to the host's systemd: it must not be asked for anything here.
        mount("-t", "tmpfs", "-o", "size=1m", "tmpfs", "/run/systemd")
    with subprocess.Popen(sys.argv[1:]) as process:
        until = time.monotonic() + LIMIT_S
        while process.poll() is None and time.monotonic() < until:
            with contextlib.suppress(ChildProcessError):
                # Waits for orphans only: of the command itself its Popen wants to know.
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if found is not None and found.si_pid != process.pid:
                    os.waitpid(found.si_pid, 0)
                    continue
            time.sleep(0.005)
        if process.poll() is None:
            process.kill()
    until = time.monotonic() + 10
    while (left := children()) and time.monotonic() < until:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.01)
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


if __name__ == "__main__":
    sys.exit(main())
