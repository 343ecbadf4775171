"""A nursery that holds its name and does not answer: it is stopped (SIGSTOP), or hangs in the kernel.

Its jobs continue, but get no new supervisors. So muster gives the name to another nursery, which takes the jobs over.
The old nursery stays: when it answers again, it notices the change and reports to the new one how its ranks ended
(supervisors/nursery/retired.py).
"""

import contextlib
import os

from muster.probes.kernel import process
from muster.supervisors.paths import Root
from muster.supervisors.system import lock


def step_around(root: Root) -> str:
    """Takes the name from the nursery that holds it; returns a sentence about that nursery. Blocks. Raises OSError."""
    pid = lock.holder(root.nursery_lock)
    _tidy(root)
    if not pid:  # it has exited meanwhile
        return "the nursery has ended"
    os.rename(root.nursery_lock, root.nursery_lock_aside(pid))
    root.nursery_socket.unlink(missing_ok=True)
    stat = process.read_stat(pid)
    if stat is None or stat.state not in process.STUCK:
        return f"the nursery (pid {pid}) does not answer: another one takes its place"
    advice = f"; `kill -CONT {pid}` continues it" if stat.state == "T" else ""
    return f"the nursery (pid {pid}) {process.STUCK[stat.state]}: another one takes its place{advice}"


def _tidy(root: Root) -> None:
    """Removes the locks of nurseries that have exited since."""
    for path in root.run.glob(f"{root.nursery_name}.*.lock"):
        with contextlib.suppress(OSError):
            if not lock.holder(path):
                path.unlink()
