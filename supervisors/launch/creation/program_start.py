"""Creates the processes of a gang by the program `muster-spawn` (muster-spawn.c), which is started once per gang.

The supervisor starts it with `os.posix_spawn`, so nothing of the supervisor is copied. The message is a memfd:

    header       magic, size, number of processes, gate, unborn file; errno, which process, errno of the cgroup
    processes    pid (written by the kernel), rank, where its steps are, how many
    steps        op, where its text is, three numbers, where its data is, how much
    data         texts as JSON, paths, arguments, environments: each once, ended by a 0 byte

The nursery opens the program once and all its supervisors execute that file, so an upgrade in between changes nothing.
"""

import contextlib
import errno
import json
import os
import signal
import struct
import time
from collections.abc import Sequence
from pathlib import Path

from muster.probes.kernel import endings
from muster.supervisors.launch.creation.start_steps import Op, StartStep

#: Beside this module in a checkout and in a wheel for this architecture; other packages have none.
PATH = Path(__file__).with_name("muster-spawn")
#: As in muster-spawn.c.
VERSION, _MAGIC, _MAX_TEXT = b"1", 0x4D535031, 3584
_HEADER, _PROCESS, _STEP = struct.Struct("=IIIiiIII"), struct.Struct("=iiII"), struct.Struct("=IIQQQII")
_ANSWER_AT = 20
#: MFD_NOEXEC_SEAL of memfd_create(2).
_NOEXEC_SEAL = 8
_WORD = 2**64 - 1
#: How long the program may take, and how long its death by SIGKILL may; for that of others nobody else is served
#: meanwhile. In seconds.
WAIT_S, KILL_WAIT_S, DIE_S = 10.0, 10.0, 1.0
#: What it is to fork as well: the supervisor need not try.
_NO_ROOM = (errno.EAGAIN, errno.ENOMEM)
_SIGNALS = signal.valid_signals()


class SpawnProgramFailed(Exception):
    """Raised when the program did not create the processes of a gang: the supervisor is to fork them."""


class KilledAtBirth(Exception):
    """Raised when the kernel killed who was created in a cgroup: they are to be created outside, and to enter it."""


class SpawnProgram:
    """The program as a descriptor, for this process and all that it forks. Until it is opened, supervisors fork."""

    def __init__(self) -> None:
        self.fd = -1

    def open(self, path: Path = PATH) -> None:
        """A package may have none for this architecture."""
        self.close()
        with contextlib.suppress(OSError):
            self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        """From now on supervisors fork."""
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = -1

    @property
    def fds(self) -> set[int]:
        """What to keep open."""
        return {self.fd} - {-1}


#: Of this process.
PROGRAM = SpawnProgram()


class ProgramStart:
    """The program at work on one gang, from its start to its end."""

    def __init__(
        self, processes: Sequence[tuple[int, Sequence[StartStep]]], gate: int, unborn: int, *, outside: bool = False
    ) -> None:
        """`processes`: rank and steps of each; `gate`: what they read from; `outside`: they enter their cgroup
        themselves. Raises SpawnProgramFailed, with none left."""
        if PROGRAM.fd < 0:
            raise SpawnProgramFailed("there is no program")
        self._count = len(processes)
        self._memory = self._pid = self.pidfd = -1
        try:
            self._memory = _memfd()
            message = memoryview(encode(processes, gate, unborn, outside=outside))
            while message:
                message = message[os.write(self._memory, message) :]
            streams = [step.values for _, steps in processes for step in steps if step.op is Op.STREAMS]
            fds = {self._memory, gate, unborn}.union(*streams)
            self._pid = os.posix_spawn(
                f"/proc/self/fd/{PROGRAM.fd}",
                [b"muster-spawn", VERSION, b"%d" % self._memory],
                {},
                file_actions=[(os.POSIX_SPAWN_DUP2, fd, fd) for fd in fds],  # to itself: it stays open over the exec
                setsigmask=_SIGNALS,
            )
            self.pidfd = os.pidfd_open(self._pid)
        except (OSError, ValueError, AttributeError) as error:
            if self._pid >= 0:
                end_all(self.made())
            self.close()
            raise SpawnProgramFailed(f"muster-spawn cannot be started: {error}") from error

    def kill(self) -> None:
        """SIGKILL to the program."""
        os.kill(self._pid, signal.SIGKILL)

    def pids(self) -> list[int]:
        """Once the program has ended (`pidfd`): the pids of all processes. Raises SpawnProgramFailed, KilledAtBirth,
        and OSError (EAGAIN, ENOMEM), with those of `made` left."""
        status = self._reap()
        code = os.waitstatus_to_exitcode(status)
        if code == 1:
            number, which, _ = struct.unpack("=III", os.pread(self._memory, 12, _ANSWER_AT))
            if number in _NO_ROOM:
                raise OSError(number, os.strerror(number))
            raise SpawnProgramFailed(f"muster-spawn cannot create process {which}: {os.strerror(number)}")
        if code != 0:
            how = endings.describe_code(code) if code < 0 else f"refused its message (exit code {code})"
            raise SpawnProgramFailed(f"muster-spawn {how}")
        made = self.made()
        if self.refusal() == 0 and _is_killed(made[0]):
            raise KilledAtBirth
        return made

    def refusal(self) -> int:
        """The errno with which the kernel refused to create processes in their cgroup; 0 if it did not."""
        return int.from_bytes(os.pread(self._memory, 4, _ANSWER_AT + 8), "little")

    def made(self) -> list[int]:
        """Ends the program, if it runs, and returns the pids of all processes that it has created."""
        if self._pid >= 0:
            end_all([self._pid])
            self._pid = -1
        found = os.pread(self._memory, self._count * _PROCESS.size, _HEADER.size)
        return [pid for pid, *_ in _PROCESS.iter_unpack(found) if pid]

    def close(self) -> None:
        """Lets go of all descriptors; the program has ended."""
        if self._pid >= 0:
            self.made()
        for fd in (self._memory, self.pidfd):
            if fd >= 0:
                os.close(fd)
        self._memory = self.pidfd = -1

    def _reap(self) -> int:
        _, status = os.waitpid(self._pid, 0)
        self._pid = -1
        return status


def end_all(pids: Sequence[int]) -> None:
    """SIGKILL to children that were not let go, and the wait for them: in a frozen cgroup they would not see the end of
    the gate. One that the kernel does not end is left to the reaper of orphans."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + DIE_S
    for pid in pids:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(pid, os.WNOHANG)[0] == 0 and time.monotonic() < deadline:
                time.sleep(0.001)


def _is_killed(pid: int) -> bool:
    """Whether a child was sent SIGKILL, dead or not: that signal stays pending until the child is waited for.

    With CLONE_INTO_CGROUP, recent kernels (6.18) kill the new process if cgroup.kill was not written to the cgroups of
    parent and child equally often: behind a stop, the job's cgroup would kill the epilog. No file tells how often.
    """
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/status", "rb") as file:
        masks = [line.split()[1] for line in file if line.startswith((b"SigPnd:", b"ShdPnd:"))]
        return any(int(mask, 16) >> (signal.SIGKILL - 1) & 1 for mask in masks)
    return False


def _memfd() -> int:
    """Nothing in it can be executed, as a node may demand (vm.memfd_noexec). Linux before 6.3 has no such flag.
    Raises OSError."""
    try:
        return os.memfd_create("muster-spawn", os.MFD_CLOEXEC | _NOEXEC_SEAL)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return os.memfd_create("muster-spawn", os.MFD_CLOEXEC)


def encode(
    processes: Sequence[tuple[int, Sequence[StartStep]]], gate: int, unborn: int, *, outside: bool = False
) -> bytes:
    """The message. Raises ValueError for what no command can have (a NUL)."""
    at = _HEADER.size
    table, steps = bytearray(), bytearray()
    total = sum(len(own) for _, own in processes)
    steps_at = at + len(processes) * _PROCESS.size
    data = _Data(steps_at + total * _STEP.size)
    texts = {"": 0}

    def packed(step: StartStep) -> bytes:
        a, b, c, content = _parameters(step)
        if step.cannot not in texts:
            texts[step.cannot] = data.place(_text(step.cannot))
        where = data.place(content) if content else 0
        return _STEP.pack(step.op, texts[step.cannot], a & _WORD, b & _WORD, c & _WORD, where, len(content))

    #: Most steps are the same for all ranks.
    known: dict[tuple[object, ...], bytes] = {}
    for rank, own in processes:
        table += _PROCESS.pack(0, rank, steps_at + len(steps), len(own))
        for step in own:
            if step.op is Op.EXEC:  # with its own environment
                steps += packed(step)
                continue
            key = (step.op, step.cannot, step.values)
            if (found := known.get(key)) is None:
                found = known[key] = packed(step)
            steps += found
    size = data.at + len(data.content) + 8
    header = _HEADER.pack(_MAGIC, size, len(processes), gate, unborn, 0, 0, int(outside))
    return b"".join((header, table, steps, data.content, bytes(8)))


class _Data:
    """The end of the message. What is the same for several processes is there once."""

    def __init__(self, at: int) -> None:
        self.at, self.content = at, bytearray()
        self._places: dict[bytes, int] = {}

    def place(self, content: bytes) -> int:
        found = self._places.get(content)
        if found is None:
            self._places[content] = found = self.at + len(self.content)
            self.content += content + bytes(8 - len(content) % 8)
        return found


def _text(cannot: str) -> bytes:
    text = json.dumps(cannot[:512]).encode()
    return text if len(text) <= _MAX_TEXT else json.dumps(cannot[:256]).encode()


def _parameters(step: StartStep) -> tuple[int, int, int, bytes]:
    """Three numbers, and the data."""
    values = step.values
    match step.op:
        case Op.STREAMS | Op.LIMIT:
            return values[0], values[1], values[2], b""
        case Op.NICE | Op.UMASK:
            return values[0], 0, 0, b""
        case Op.USER:
            uid, gid, *groups = values
            return uid, gid, 0, struct.pack(f"={len(groups)}I", *groups)
        case Op.READ_ONLY:
            path, options, within = values
            return options, within, 0, _strings(path)
        case Op.BOUNDING_SET:
            return 0, 0, 0, struct.pack(f"={len(values)}I", *values)
        case Op.SECCOMP:
            return 0, 0, 0, values[0]
        case Op.CPUS:
            mask = sum(1 << cpu for cpu in values)
            return 0, 0, 0, mask.to_bytes(max(values) // 64 * 8 + 8, "little")
        case Op.CGROUP:
            (cgroup,) = values
            beside = f"{cgroup}/beside"
            return 0, 0, 0, _strings(f"{cgroup}/cgroup.procs", beside, f"{beside}/cgroup.procs", cgroup)
        case Op.FILE:
            path, text = values
            return 0, 0, 0, _strings(os.path.dirname(path), path, text)
        case Op.EXEC:
            candidates, argv, env = values
            entries = [f"{name}={value}" for name, value in env.items()]
            return len(candidates), len(argv), len(entries), _strings(*candidates, *argv, *entries)
    return 0, 0, 0, _strings(*values) if values else b""


def _strings(*values: str) -> bytes:
    joined = os.fsencode("\0".join(values)) + b"\0"
    if joined.count(0) != len(values):
        raise ValueError("embedded null byte")
    return joined
