"""Children of this process: those that it starts, and orphans that come to it because it is PID 1.

Each part of the daemon waits for the child that it has started. Orphans are waited for by nobody else, and must not be
mixed up with these: a wait for another module's child takes its exit status away.
"""

import contextlib
import os
import threading
from collections.abc import Iterable, Mapping
from typing import Any

_lock = threading.Lock()
_own: set[int] = set()
_spawning: list[str] = []


def spawn(path: str, argv: list[str], env: Mapping[str, str], **options: Any) -> int:
    """As os.posix_spawn; `wait` is to be called for the pid that is returned. Raises OSError."""
    with _lock:
        _spawning.append(path)
    pid = 0
    try:
        # Not under the lock: a file system that hangs holds this up for as long as it likes.
        pid = os.posix_spawn(path, argv, env, **options)
    finally:
        with _lock:
            _spawning.remove(path)
            if pid:
                _own.add(pid)
    return pid


def wait(pid: int) -> int:
    """Waits for a child from `spawn`; returns its status as wait(2) encodes it."""
    try:
        _, status = os.waitpid(pid, 0)
    finally:
        with _lock:
            _own.discard(pid)
    return status


def any_ended() -> bool:
    """Whether a child has ended and was not reaped."""
    try:
        return os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return False


def reap(pids: Iterable[int]) -> list[int]:
    """Waits for those of these children that have ended and were not started here; returns their pids. While a child is
    being started nobody is waited for: it could be that one."""
    reaped = []
    with _lock:
        if _spawning:
            return []
        for pid in set(pids) - _own:
            with contextlib.suppress(ChildProcessError):
                if os.waitpid(pid, os.WNOHANG)[0]:
                    reaped.append(pid)
    return reaped
