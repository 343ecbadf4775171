"""Takes the stacks of many processes at once, within a bounded time even if a process hangs."""

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import anyio

from muster.probes.calls import watched
from muster.probes.calls.script import ScriptEnd
from muster.probes.kernel import number_lists
from muster.probes.kernel.dataclass import dataclass
from muster.probes.stacks import normal, permission, pyspy, tasks
from muster.probes.stacks.groups import grouped, main_thread
from muster.probes.stacks.pyspy import Dump, DumpedThread, DumpOutcome
from muster.probes.stacks.record import STUCK, ProcessStacks, PythonThread, StackTarget, Taken

#: Processes that are looked at at the same time; a dump costs 15 ms of a CPU.
AT_ONCE = 4
#: Seconds that one process may take: its files in /proc, one dump, one dump with native frames.
READ_S, DUMP_S, NATIVE_S = 3.0, 5.0, 8.0
#: Seconds that a killed dump may take to be gone before its thread is left alone with it.
LINGER_S = 1.0
#: Dumps that hang, after which no more of this take are begun: they wait for the same thing.
MAX_HANGING = 8
#: Looks at a thread that runs, of which what stays the same is compared; and tries of a dump that was torn.
LOOKS, TRIES = 3, 3
PROC = Path("/proc")


async def take(
    targets: Sequence[StackTarget], *, deadline_s: float, native: int = 0, program: str | None = None, proc: Path = PROC
) -> Taken:
    """The stacks of these processes; returns within `deadline_s` seconds with what there is by then.

    `native`: of so many groups of equal stacks, the smallest first, one process is looked at again with C and C++
    frames, which stops it for a second or more (see pyspy.py); not one in state D or T, and only while there is time.
    `program`: path of py-spy; "" for none; by default it is looked for. Raises nothing but cancellation.
    """
    at = time.time()
    program = pyspy.find() if program is None else program
    run = _StackTake(program, proc, anyio.current_time() + deadline_s - min(LINGER_S, deadline_s / 2))
    limiter = anyio.CapacityLimiter(AT_ONCE)

    async def one(number: int, target: StackTarget) -> None:
        async with limiter:
            await run.look(number, target)

    with anyio.CancelScope(deadline=run.end):
        async with anyio.create_task_group() as group:
            for number, target in enumerate(targets):
                group.start_soon(one, number, target)
    for number, target in enumerate(targets):
        run.close(number, target)
    with anyio.CancelScope(deadline=run.end):
        await run.natives(native)
    found = [look for _, look in sorted(run.looks.items()) if look is not None]
    return Taken(at, tuple(found), tuple(run.sentences(deadline_s)))


@dataclass(frozen=True, slots=True)
class _Refused:
    """A target that may not be read, and why."""

    target: StackTarget
    why: str


class _StackTake:
    """One take."""

    def __init__(self, program: str, proc: Path, end: float) -> None:
        """`end`: on the loop's clock."""
        self._program = program
        self._proc = proc
        self.end = end
        #: By the target's place; None: it has ended.
        self.looks: dict[int, ProcessStacks | None] = {}
        self._done: set[int] = set()
        self._notes: defaultdict[str, list[StackTarget]] = defaultdict(list)
        self._refused: list[_Refused] = []
        self._failed: list[_Refused] = []
        self._native: list[_Refused] = []
        self._hanging = 0

    def note(self, what: str, target: StackTarget) -> None:
        """For `sentences`."""
        self._notes[what].append(target)

    def close(self, number: int, target: StackTarget) -> None:
        """Notes that the time was over before this process was read completely."""
        if number not in self._done:
            bare = self.looks.get(number) or ProcessStacks(target.rank, target.pid, target.start)
            self.looks[number] = replace(bare, trouble="the time limit passed before its turn")
            self.note("not_reached", target)

    # --- one process --------------------------------------------------------------------------------------------------

    async def look(self, number: int, target: StackTarget) -> None:
        """Fills `looks` in, first with what the kernel tells."""
        self.looks[number] = await self._looked(number, target)
        self._done.add(number)

    async def _looked(self, number: int, target: StackTarget) -> ProcessStacks | None:
        pid, bare = target.pid, ProcessStacks(target.rank, target.pid, target.start)
        kernel: tasks.KernelSide | None = None
        answered = False
        with anyio.move_on_after(READ_S if self._hanging < MAX_HANGING else READ_S / 6):
            try:
                what = f"the files of process {pid}, started at {target.start}"
                kernel = await watched.call(what, lambda: tasks.read(self._proc, pid, target.start))
                answered = True
            except (OSError, watched.StillHanging):
                pass
        if not answered:
            # A dump reads the same memory, and would hang as well.
            self._hanging += 1
            self.note("unread", target)
            return replace(bare, trouble="reading its files in /proc hangs")
        if kernel is None:
            return None
        stacks = replace(bare, command=kernel.command, state=kernel.state, threads=kernel.threads, tasks=kernel.tasks)
        self.looks[number] = stacks
        if kernel.state in "ZX":
            return stacks
        python, trouble = await self._python(target, kernel)
        return replace(stacks, python=python, trouble=trouble) if await self._is_there(target) else None

    async def _is_there(self, target: StackTarget) -> bool:
        """False if it has ended."""
        there = True
        with anyio.move_on_after(READ_S):
            try:
                what = f"the state of process {target.pid}, started at {target.start}"
                there = await watched.call(what, lambda: tasks.is_there(self._proc, target.pid, target.start))
            except (OSError, watched.StillHanging):
                pass
        return there

    async def _python(self, target: StackTarget, kernel: tasks.KernelSide) -> tuple[tuple[PythonThread, ...], str]:
        """Its Python threads, and why there are none where there should be."""
        if not self._program:
            if kernel.is_python:
                self.note("no_program", target)
            return (), "py-spy is not installed" if kernel.is_python else ""
        dump = await self._dump(target)
        if dump.outcome is DumpOutcome.REFUSED:
            why = await self._why(target)
            self._refused.append(_Refused(target, why))
            return (), f"musterd may not read its memory: {why}"
        if dump.outcome is DumpOutcome.FAILED or (dump.outcome is DumpOutcome.NOT_PYTHON and kernel.is_python):
            self._failed.append(_Refused(target, dump.text))
            return (), f"py-spy: {dump.text}"
        # Between vfork and exec a child shares its parent's memory: these are not its threads.
        tids = {thread.tid for thread in dump.threads}
        if kernel.parent in tids and target.pid not in tids:
            return (), ""
        looks = [dump.threads]
        if any(thread.active for thread in dump.threads):
            for _ in range(LOOKS - 1):
                again = await self._dump(target)
                if again.outcome is DumpOutcome.DONE:
                    looks.append(again.threads)
        return _threads(target.pid, looks), ""

    async def _dump(self, target: StackTarget) -> Dump:
        dump = Dump(DumpOutcome.FAILED, text=f"not tried, because {MAX_HANGING} other attempts hang")
        for _ in range(TRIES):
            if self._hanging >= MAX_HANGING:
                break
            ended = await self._run(target, native=False)
            if ended is None:
                self.note("hangs", target)
                self._hanging += 1
                return Dump(DumpOutcome.FAILED, text=f"it did not answer within {DUMP_S:g} s and was killed")
            dump = pyspy.judge(ended) if isinstance(ended, ScriptEnd) else Dump(DumpOutcome.FAILED, text=ended)
            if dump.outcome is not DumpOutcome.FAILED:
                break
        return dump

    async def _run(self, target: StackTarget, *, native: bool) -> ScriptEnd | str | None:
        """None: it hangs; a text: why it could not be run."""
        script = pyspy.script(self._program, target.pid, native=native)
        what = f"py-spy of process {target.pid}, started at {target.start}"
        with anyio.move_on_after(NATIVE_S if native else DUMP_S):
            try:
                return await watched.call(what, script.run, on_cancel=script.kill, linger_s=LINGER_S)
            except watched.StillHanging as error:
                return str(error)
            except OSError as error:
                return f"{self._program}: cannot be executed: {error.strerror or error}"
        return None

    async def _why(self, target: StackTarget) -> str:
        def read() -> str:
            own, theirs = permission.read(self._proc, "self"), permission.read(self._proc, target.pid)
            if own is None or theirs is None:
                return "the reason is unknown"
            return permission.explain(own, theirs, permission.yama(self._proc))

        with anyio.move_on_after(READ_S):
            try:
                return await watched.call(f"the rights of process {target.pid}, started at {target.start}", read)
            except (OSError, watched.StillHanging):
                pass
        return "the reason is unknown"

    # --- native frames ------------------------------------------------------------------------------------------------

    async def natives(self, count: int) -> None:
        """Adds native frames to the first process of each of so many groups, one at a time."""
        if not count or not self._program:
            return
        places = {(look.pid, look.start): number for number, look in self.looks.items() if look is not None}
        for group in grouped(look for look in self.looks.values() if look is not None)[:count]:
            look = group.owners[0]
            # A stopped process cannot be stopped again, and a process in state D does not stop.
            if not look.python or any(task.state in STUCK for task in look.tasks):
                continue
            target = StackTarget(look.rank, look.pid, look.start)
            ended = await self._run(target, native=True)
            dump = (
                pyspy.judge(ended)
                if isinstance(ended, ScriptEnd)
                else Dump(DumpOutcome.FAILED, text=ended or "it hangs")
            )
            main = main_thread(replace(look, python=_threads(look.pid, [dump.threads])))
            if dump.outcome is DumpOutcome.DONE and main is not None:
                frames = tuple(normal.frame(frame, look.pid) for frame in main.frames)
                self.looks[places[look.pid, look.start]] = replace(look, native=frames)
            else:
                refused = dump.outcome is DumpOutcome.REFUSED
                self._native.append(_Refused(target, await self._why(target) if refused else dump.text))

    # --- what to say --------------------------------------------------------------------------------------------------

    def sentences(self, deadline_s: float) -> list[str]:
        """The same of several processes once."""
        fixed = {
            "not_reached": f"not looked at, because {deadline_s:g} s had passed: {{}}",
            "unread": f"reads of files in /proc took longer than {READ_S:g} s, as for processes that wait in the"
            " kernel for "
            "a file system or a driver: {}; `dmesg` may show what they wait for",
            "hangs": f"py-spy did not answer within {DUMP_S:g} s and was killed: {{}}",
            "no_program": "py-spy is not installed, so there are no Python stacks: {}; install it beside musterd"
            " (`pip install "
            "py-spy`) or put it on musterd's PATH",
        }
        found = [text.format(_named(self._notes[what])) for what, text in fixed.items() if self._notes[what]]
        for start, refusals in (
            ("Python stacks may not be read", self._refused),
            ("no Python stack", [one for one in self._failed if one.target not in self._notes["hangs"]]),
            ("no C and C++ frames", self._native),
        ):
            by_reason: defaultdict[str, list[StackTarget]] = defaultdict(list)
            for one in refusals:
                by_reason[one.why.replace(str(one.target.pid), "PID")].append(one.target)
            found += [f"{start} of {_named(targets)}: {why}" for why, targets in by_reason.items()]
        return found


def _threads(pid: int, looks: Sequence[Sequence[DumpedThread]]) -> tuple[PythonThread, ...]:
    """The threads of the first look; with what stayed in the later ones, of those that run."""
    later = [{(thread.tid, thread.name): thread for thread in look} for look in looks[1:]]
    found = []
    for thread in looks[0]:
        again = [look[thread.tid, thread.name] for look in later if (thread.tid, thread.name) in look]
        frames = [tuple(normal.frame(frame, pid) for frame in look.frames) for look in (thread, *again)]
        found.append(PythonThread(thread.tid, thread.name, thread.active, thread.frames, normal.held(frames)))
    return tuple(found)


def _named(targets: Sequence[StackTarget]) -> str:
    """`ranks 0-3 (pids 10, 11, 12, 13)`."""
    ranks = {target.rank for target in targets}
    pids = [str(target.pid) for target in targets[:8]] + (["..."] if len(targets) > 8 else [])
    several = len(targets) > 1
    return f"{number_lists.ranks(ranks)} (pid{'s' if several else ''} {', '.join(pids)})"
