"""Groups processes with the same stack: if one rank among hundreds is elsewhere, that is the one to look at."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from muster.probes.kernel.dataclass import dataclass
from muster.probes.stacks import normal
from muster.probes.stacks.record import STUCK, ProcessStacks, PythonThread

PYTHON, KERNEL, WCHAN = "python", "kernel", "wchan"
#: Lines and characters of a group's text.
MAX_LINES, MAX_CHARACTERS = 400, 32 << 10
#: A thread whose innermost frame is one of these waits for another thread, which then tells more than it.
_JOINS = (
    "_wait_for_tstate_lock (threading.py",
    "join (threading.py",
    "Thread.join (threading.py",
    "Thread._wait_for_tstate_lock (threading.py",
)
#: Files of Python's own in which pools and helpers wait: a thread all of whose frames are there has nothing to do.
_IDLE = ("(threading.py", "(queue.py", "(concurrent/futures/", "(selectors.py", "(multiprocessing/", "(socketserver.py")

_DIGITS = re.compile(r"\d+")

_Key = tuple[str, str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Group:
    """`lines`: first the stack that they have in common, innermost frame first, then what else they share. `source`:
    "python", "kernel" (where it waits there), or "wchan" (one function of the kernel, or only the state)."""

    owners: tuple[ProcessStacks, ...]
    source: str
    lines: tuple[str, ...]


def grouped(processes: Iterable[ProcessStacks]) -> list[Group]:
    """The smallest group first; of groups of one size those whose process is stopped or waits in the kernel, then those
    with a Python stack, then by rank. Owners by rank and pid."""
    found: defaultdict[_Key, list[ProcessStacks]] = defaultdict(list)
    for process in processes:
        found[_key(process)].append(process)
    groups = []
    for (source, _, _), owners in found.items():
        owners.sort(key=lambda owner: (owner.rank, owner.pid))
        groups.append(Group(tuple(owners), source, _lines(source, owners)))
    return sorted(groups, key=_place)


def _place(group: Group) -> tuple[int, bool, bool, int, int]:
    first = group.owners[0]
    return len(group.owners), first.state not in STUCK, group.source != PYTHON, first.rank, first.pid


def telling(process: ProcessStacks) -> PythonThread | None:
    """The thread that shows what a process does: the main thread, or the thread that it waits for. None: no Python."""
    main = main_thread(process)
    if main is None or not main.frames or not main.frames[0].startswith(_JOINS):
        return main
    others = [thread for thread in process.python if thread is not main and not is_idle(thread)]
    # Of several the running one, then the one deepest in code outside Python's own library.
    return max(others, key=lambda thread: (thread.active, len(thread.held)), default=main)


def main_thread(process: ProcessStacks) -> PythonThread | None:
    """None: no Python, or all its threads have ended."""
    for thread in process.python:
        if thread.tid == process.pid:
            return thread
    named = next((thread for thread in process.python if thread.name == "MainThread"), None)
    return named or next(iter(process.python), None)


def is_idle(thread: PythonThread) -> bool:
    """One of a pool or a helper of Python's own that has nothing to do."""
    return all(any(place in frame for place in _IDLE) for frame in thread.frames)


def waits_for_threads(thread: PythonThread) -> bool:
    """Whether it can go on only if another thread or process wakes it up."""
    return any(place in frame for frame in thread.frames[:1] for place in _IDLE)


def _key(process: ProcessStacks) -> _Key:
    """What is equal for equal stacks. A process that is stopped, or waits in the kernel, never equals one that runs."""
    main = process.main
    state = (main.state if main is not None else process.state) or "?"
    stuck = state if state in STUCK or state == "?" else ""
    if (thread := telling(process)) is not None:
        return PYTHON, stuck, thread.held
    if main is not None and main.kernel:
        return KERNEL, stuck, main.kernel
    return WCHAN, state, (main.wchan if main is not None else "",)


# --- as text ----------------------------------------------------------------------------------------------------------


def _lines(source: str, owners: Sequence[ProcessStacks]) -> tuple[str, ...]:
    first = owners[0]
    if source == PYTHON:
        lines = _python_lines(owners)
    elif source == KERNEL:
        lines = list(first.main.kernel if first.main is not None else ())
    else:
        lines = [_state(first)]
    if first.native:
        lines += ["", f"with C and C++ frames, of rank {first.rank} (pid {first.pid}):"]
        lines += [f"    {frame}" for frame in first.native]
    if source == PYTHON and first.main is not None and first.main.state in STUCK:
        lines += ["", f"{_state(first)}:"] + [f"    {name}" for name in first.main.kernel]
    lines += _tasks(owners)
    return _bounded(lines)


def _python_lines(owners: Sequence[ProcessStacks]) -> list[str]:
    """The thread that shows what the process waits for, as in the first process, and the other threads that all of them
    have in common."""
    first = owners[0]
    thread, main = telling(first), main_thread(first)
    assert thread is not None
    lines = _shown(first, thread)
    counts = [Counter(other.held for other in owner.python if other is not telling(owner)) for owner in owners]
    common = set.intersection(*(set(count) for count in counts))
    if thread is not main:
        lines += ["", f"of thread {thread.name!r}, for which the main thread waits"]
    shown: set[tuple[str, ...]] = set()
    for other in first.python:
        if other is thread or other.held not in common - shown:
            continue
        shown.add(other.held)
        more = counts[0][other.held] - 1
        lines += ["", f"thread {other.name or other.tid!r}{f', and {more} more like it' if more else ''}:"]
        lines += [f"    {frame}" for frame in _shown(first, other)]
    apart = sum(number for count in counts for held, number in count.items() if held not in common)
    if apart:
        lines += ["", f"{apart} other Python threads differ between these processes: show one rank with --rank"]
    return lines


def _shown(process: ProcessStacks, thread: PythonThread) -> list[str]:
    """Frames for people; where the thread moved between the looks, from where on."""
    moved = max(len(thread.frames) - len(thread.held), 0)
    frames = [normal.frame(frame, process.pid) for frame in thread.frames[:moved]]
    return [*frames, *(["(above: it runs, and was elsewhere at another look)"] if moved else []), *thread.held]


def _state(process: ProcessStacks) -> str:
    main = process.main
    state = (main.state if main is not None else process.state) or "?"
    words = {
        "R": "runs",
        "S": "waits",
        "D": "waits in the kernel and cannot be killed (D)",
        "T": "is stopped by a signal (T)",
        "t": "is stopped by a debugger (t)",
        "Z": "has ended, and its parent has not reaped it (Z)",
        "I": "is idle (I)",
        "?": process.trouble or "its state is unknown",
    }
    where = f" in {main.wchan}" if main is not None and main.wchan else ""
    return words.get(state, f"is in state {state}") + where


def _tasks(owners: Sequence[ProcessStacks]) -> list[str]:
    """The threads that are not shown above, equal ones counted; none where the owners differ."""
    counted = [_tally(owner) for owner in owners]
    if not counted[0] or any(tally != counted[0] for tally in counted):
        return []
    rows = [f"    {count} x {text}" for text, count in sorted(counted[0].items(), key=lambda item: (item[1], item[0]))]
    return ["", "other threads:", *rows]


def _tally(process: ProcessStacks) -> Counter[str]:
    shown = {thread.tid for thread in process.python} | {process.pid}
    tally: Counter[str] = Counter()
    for task in process.tasks:
        if task.tid not in shown:
            where = " < ".join(task.kernel[:6]) if task.state == "D" and task.kernel else task.wchan
            tally[f"{_DIGITS.sub('*', task.name)} {task.state} {where}".rstrip()] += 1
    if process.threads > len(process.tasks):
        tally["(not looked at)"] += process.threads - len(process.tasks)
    return tally


def _bounded(lines: list[str]) -> tuple[str, ...]:
    kept: list[str] = []
    size = 0
    for number, line in enumerate(lines):
        size += len(line) + 1
        if number == MAX_LINES or size > MAX_CHARACTERS:
            kept.append(f"({len(lines) - number} more lines)")
            break
        kept.append(line)
    return tuple(kept)
