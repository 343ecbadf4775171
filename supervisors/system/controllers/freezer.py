"""The freezer of cgroup v1, for kernels without `cgroup.kill`: frozen processes do not fork while muster kills them.

A frozen process ends once it is thawed. muster thaws it whatever happens here, and if a supervisor dies in between, its
successor continues the same stop.
"""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

STATE = "freezer.state"
#: Longest wait until all is frozen, in seconds: a process in the kernel (state D) never is. And between two looks.
_WAIT_S, _LOOK_S = 0.1, 0.001


def is_freezer(cgroup: Path) -> bool:
    """Whether this is a folder of that hierarchy."""
    return (cgroup / STATE).exists()


@contextlib.contextmanager
def frozen(cgroup: Path) -> Iterator[None]:
    """While the body runs, as far as the kernel does it in time."""
    try:
        with contextlib.suppress(OSError):
            _write(cgroup, "FROZEN")
            deadline = time.monotonic() + _WAIT_S
            while (cgroup / STATE).read_text().strip() != "FROZEN" and time.monotonic() < deadline:
                time.sleep(_LOOK_S)
        yield
    finally:
        with contextlib.suppress(OSError):
            _write(cgroup, "THAWED")


def _write(cgroup: Path, state: str) -> None:
    (cgroup / STATE).write_text(state)
