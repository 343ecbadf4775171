"""What is known of the stacks of processes at one moment. Frames and functions stand innermost first."""

from muster.probes.kernel.dataclass import dataclass

#: States of a process in which it does nothing until somebody else does something: they keep it apart from others with
#: the same stack. D: waits in the kernel and cannot be killed; T: stopped; t: traced; Z, X: has ended.
STUCK = frozenset("DTtZX")


@dataclass(frozen=True, slots=True)
class StackTarget:
    """A process to be looked at. `start` in clock ticks since boot; `rank` is that which it is or works for."""

    rank: int
    pid: int
    start: int


@dataclass(frozen=True, slots=True)
class Task:
    """A thread as the kernel has it. `wchan`: function in which it waits, empty where it runs or that is not told;
    `kernel`: its stack in the kernel, empty where that may not be read (only root may). `switches`: how often it has
    waited so far (voluntary_ctxt_switches); None: not told. `wakes_in`: of one that sleeps, after how many seconds at
    most it wakes up, as its system call says; None: it does not sleep, or that may not be read. `faults`: how often it
    touched a page of memory that was not there (minor and major faults, proc(5))."""

    tid: int
    name: str
    state: str
    wchan: str = ""
    kernel: tuple[str, ...] = ()
    switches: int | None = None
    wakes_in: float | None = None
    faults: int | None = None


@dataclass(frozen=True, slots=True)
class PythonThread:
    """A thread as the interpreter has it. `tid` 0: not told (Python before 3.11). `held`: those of its frames in which
    it was at each of several looks, in the form in which equal ones are equal."""

    tid: int
    name: str
    active: bool
    frames: tuple[str, ...]
    held: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ProcessStacks:
    """One process. `threads`: how many it has, of which `tasks` may be only the first; its first thread is the first
    of them. `state` as in /proc/PID/stat; empty: its files could not be read. `native`: the frames of its first thread,
    C and C++ ones included, where they were asked for. `trouble`: why there is no Python stack of a program that has
    one, or no answer at all."""

    rank: int
    pid: int
    start: int
    command: str = ""
    state: str = ""
    threads: int = 0
    tasks: tuple[Task, ...] = ()
    python: tuple[PythonThread, ...] = ()
    native: tuple[str, ...] = ()
    trouble: str = ""

    @property
    def main(self) -> Task | None:
        """Its first thread, as the kernel has it."""
        return next((task for task in self.tasks if task.tid == self.pid), None)


@dataclass(frozen=True, slots=True)
class Taken:
    """All that was found, `at` in seconds since the epoch. `notes`: sentences on what could not be had, and what to do
    about it. Processes that have ended meanwhile are not in it."""

    at: float
    processes: tuple[ProcessStacks, ...]
    notes: tuple[str, ...] = ()
