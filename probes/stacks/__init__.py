"""Stacks of a job's processes: of Python frames, and of where each task waits in the kernel.

    from muster.probes.stacks import Target, take, grouped
    taken = await take([Target(rank=0, pid=4711, start=123456)], deadline_s=20.0)
    for group in grouped(taken.processes): ...

`rank_stacks` makes of them what `muster.probes.waits` judges: where each rank waits.

Nothing here stops, signals or slows the process, except for `native` stacks, which are opt-in.
"""

from typing import TYPE_CHECKING

from muster.probes.kernel import late_import
from muster.probes.stacks.record import ProcessStacks, PythonThread, StackTarget, Taken, Task

if TYPE_CHECKING:
    from muster.probes.stacks.groups import Group, grouped
    from muster.probes.stacks.taking import take

__all__ = ["Group", "ProcessStacks", "PythonThread", "StackTarget", "Taken", "Task", "grouped", "take"]

__getattr__ = late_import.names(__name__, {"Group": "groups", "grouped": "groups", "take": "taking"})
