"""Of all that a dump holds, what says where each rank waits."""

from collections.abc import Iterable, Mapping

from muster.probes.stacks.groups import is_idle, telling, waits_for_threads
from muster.probes.stacks.record import STUCK, ProcessStacks
from muster.probes.waits import RankStack

#: Frames of a stack that are kept: the inner ones, and as many of the outer ones.
_INNER, _OUTER = 24, 4
#: Parts of C and C++ frames that show that a process waits for other ranks.
_NATIVE = ("MPI_", "nccl", "gloo::")


def of_ranks(processes: Iterable[ProcessStacks], leaders: Mapping[int, int], t: float) -> tuple[RankStack, ...]:
    """One of each rank, in order. `leaders`: pids of the ranks' own processes, by rank; of a rank without one the first
    process counts. `t` in seconds since the epoch."""
    found: dict[int, ProcessStacks] = {}
    for process in processes:
        if process.rank not in found or process.pid == leaders.get(process.rank):
            found[process.rank] = process
    return tuple(rank_stack(process, t) for _, process in sorted(found.items()))


def rank_stack(process: ProcessStacks, t: float = 0.0) -> RankStack:
    """Of its telling thread."""
    main, thread = process.main, telling(process)
    frames = () if thread is None else thread.held
    if len(frames) > _INNER + _OUTER:
        frames = (*frames[:_INNER], *frames[-_OUTER:])
    busy = {other.tid for other in process.python if other.tid != process.pid and not is_idle(other)}
    others = [task.switches for task in process.tasks if task.tid in busy]
    task = next((task for task in process.tasks if thread is not None and task.tid == thread.tid), main)
    if main is not None and main.state in STUCK:
        task = main
    helpers = [other for other in process.python if other is not thread and other.tid not in (0, process.pid)]
    return RankStack(
        t=t,
        rank=process.rank,
        pid=process.pid,
        state=(task.state if task is not None else process.state) or "?",
        wchan=task.wchan if task is not None else "",
        frames=frames,
        moves=thread is not None and len(thread.held) < len(thread.frames),
        switches=main.switches if main is not None else None,
        others=None if None in others or len(others) < len(busy) else sum(n for n in others if n is not None),
        in_collective=any(name in frame for frame in process.native for name in _NATIVE),
        wakes_in=task.wakes_in if task is not None else None,
        helped=any(not waits_for_threads(other) for other in helpers),
        faults=main.faults if main is not None else None,
    )
