"""Creates the processes of a gang: by the program `muster-spawn`, or, where that fails, by forks of the supervisor."""

from collections.abc import Callable, Sequence

from muster.supervisors.launch.child import ProcessSpec
from muster.supervisors.launch.creation import forked_start, program_start
from muster.supervisors.launch.creation.program_start import (
    PROGRAM,
    KilledAtBirth,
    ProgramStart,
    SpawnProgramFailed,
    end_all,
)
from muster.supervisors.launch.creation.start_steps import StartSteps
from muster.supervisors.launch.creation.underway import Waiting


def _nothing(_: str) -> None:
    """Nobody asked."""


class NewProcesses:
    """The processes of one gang until they are let go, or ended."""

    def __init__(
        self,
        specs: Sequence[ProcessSpec],
        gate: tuple[int, int],
        unborn: int,
        say: Callable[[str], object] = _nothing,
    ) -> None:
        """`gate`: both ends of the pipe at which they wait. `say`: is given a sentence where the program did not do its
        work."""
        steps = StartSteps()
        self._specs, self._gate, self._unborn, self._say = specs, gate, unborn, say
        self._steps = [steps.of(spec) for spec in specs]
        self._pids: list[int] = []
        self._program: ProgramStart | None = None

    def begin(self) -> None:
        """Begins to create them. Raises OSError (EAGAIN: limit on processes)."""
        if not (PROGRAM.fds and all(spec.by_program for spec in self._specs) and self._begin_program(outside=False)):
            self._fork()

    def pids(self) -> Waiting[list[int]]:
        """Those of all of them, in the order of the specs; they are on their way to the gate. Raises OSError."""
        while self._program is not None:
            if not (yield self._program.pidfd, program_start.WAIT_S):
                self._say(f"muster-spawn did not end within {program_start.WAIT_S:g} s; forking instead")
                self._program.kill()
                yield self._program.pidfd, program_start.KILL_WAIT_S
                self._end_program()
                self._fork()
                break
            try:
                self._pids = self._program.pids()
                self._close_program()
            except KilledAtBirth:
                self._end_program()
                if not self._begin_program(outside=True):
                    self._fork()
            except SpawnProgramFailed as error:
                self._say(f"{error}; forking instead")
                self._end_program()
                self._fork()
        return self._pids

    def end(self) -> None:
        """Ends those that were created: none has been let go, and none is to be left."""
        self._end_program()
        made, self._pids = self._pids, []
        end_all(made)

    def _begin_program(self, *, outside: bool) -> bool:
        """False where the program cannot be started, with nothing created."""
        ranks = [spec.rank for spec in self._specs]
        try:
            processes = list(zip(ranks, self._steps, strict=True))
            self._program = ProgramStart(processes, self._gate[0], self._unborn, outside=outside)
        except SpawnProgramFailed as error:
            self._say(f"{error}; forking instead")
        return self._program is not None

    def _end_program(self) -> None:
        """And what it has created."""
        if self._program is not None:
            end_all(self._program.made())
            self._close_program()

    def _fork(self) -> None:
        self._pids = []
        with forked_start.signals_blocked():
            for spec, steps in zip(self._specs, self._steps, strict=True):
                self._pids.append(forked_start.fork(spec, steps, *self._gate, self._unborn))

    def _close_program(self) -> None:
        if self._program is not None:
            self._program.close()
            self._program = None
