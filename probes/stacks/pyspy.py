"""`py-spy dump --nonblocking`: the Python stacks of a process that does not notice.

With `--nonblocking` the process is only read (process_vm_readv), never stopped, so that a process that hangs in the
kernel or was stopped is no hindrance (without it the dump of a process in state D does not return: reference, hang
facts), and a healthy one loses nothing. The price: what was read while it ran may be torn, and then py-spy says so and
is asked again. `--native` cannot be combined with it: that one stops the process, for a second or more where its
libraries are large, interrupts its system calls (epoll_wait gives EINTR), and fails where it is stopped already.
Measured with py-spy 0.4.3 on Linux 6.18: a dump takes 15 ms, one with native frames of a process with PyTorch 1.3 s.
"""

import enum
import re
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

from muster.probes.calls.script import Script, ScriptEnd
from muster.probes.kernel import endings
from muster.probes.kernel.dataclass import dataclass

#: Bytes of its output that are looked at: about 8000 frames.
KEPT = 512 << 10
#: Threads and frames of each that are kept of one process.
MAX_THREADS, MAX_FRAMES = 256, 128
#: Of a deeper stack: so many of the outermost.
_OUTERMOST = 24
_ENV = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "NO_COLOR": "1"}
_THREAD = re.compile(r"Thread (\d+|0x[0-9A-Fa-f]+) \(([a-z+]+)\)(?:: \"(.*?)\"?)?$")
#: Characters of a frame.
_MAX_FRAME = 300


class DumpOutcome(enum.Enum):
    """How a dump ended."""

    DONE = "done"
    NOT_PYTHON = "not Python"
    REFUSED = "refused"
    GONE = "gone"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class DumpedThread:
    """`tid` 0: not told."""

    tid: int
    name: str
    active: bool
    frames: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Dump:
    """`text`: what py-spy says where it is not DONE."""

    outcome: DumpOutcome
    threads: tuple[DumpedThread, ...] = ()
    text: str = ""


def find() -> str:
    """Its path: beside this Python, where it is installed with muster, else on the PATH. Empty: it is nowhere."""
    beside = Path(sys.executable).parent / "py-spy"
    return str(beside) if beside.is_file() else shutil.which("py-spy") or ""


def script(program: str, pid: int, *, native: bool = False) -> Script:
    """A dump that can be run and killed."""
    return Script(program, _ENV, ("dump", "--native" if native else "--nonblocking", "--pid", str(pid)), KEPT)


def judge(ended: ScriptEnd) -> Dump:
    """What a dump's end says."""
    if ended.returncode == 0 or (ended.flooded and ended.stdout):
        threads = parse(ended.stdout.decode("utf-8", "replace"))
        if threads:
            return Dump(DumpOutcome.DONE, threads)
        return Dump(DumpOutcome.FAILED, text="it found no thread")
    text = _message(ended.stderr.decode("utf-8", "replace"))
    lower = text.lower()
    if "permission denied" in lower or "operation not permitted" in lower or "(os error 1)" in lower:
        return Dump(DumpOutcome.REFUSED, text=text)
    if "no such process" in lower or "check that the process is running" in lower:
        return Dump(DumpOutcome.GONE, text=text)
    if "failed to find python version" in lower or "failed to find a python interpreter" in lower:
        return Dump(DumpOutcome.NOT_PYTHON, text=text)
    return Dump(DumpOutcome.FAILED, text=text or f"it {endings.describe_code(ended.returncode)}")


def parse(text: str) -> tuple[DumpedThread, ...]:
    """The threads of a dump. What goes before them is the command line, which may hold anything."""
    lines = text.splitlines()
    begin = next((number for number, line in enumerate(lines) if line.startswith("Python v")), -1)
    heads: list[tuple[int, str, bool]] = []
    frames: list[list[str]] = []
    for line in lines[begin + 1 :]:
        if match := _THREAD.fullmatch(line):
            if len(heads) == MAX_THREADS:
                break
            number, state, name = match.groups()
            heads.append((int(number) if number.isdigit() else 0, name or "", state.startswith("active")))
            frames.append([])
        elif line.startswith("    ") and frames:
            frames[-1].append(line.strip()[:_MAX_FRAME])
    return tuple(
        DumpedThread(tid, name, active, shortened(tuple(found)))
        for (tid, name, active), found in zip(heads, frames, strict=True)
    )


def shortened(frames: tuple[str, ...]) -> tuple[str, ...]:
    """At most MAX_FRAMES: of a deep recursion the inner end and the outer one."""
    if len(frames) <= MAX_FRAMES:
        return frames
    left_out = len(frames) - MAX_FRAMES + 1
    inner = MAX_FRAMES - 1 - _OUTERMOST
    return (*frames[:inner], f"({left_out} frames are not shown)", *frames[-_OUTERMOST:])


def _message(stderr: str) -> str:
    """The error and its causes in one line, without the backtrace of py-spy itself."""
    return "; ".join(_words(stderr.partition("Stack backtrace:")[0].splitlines()))[:500]


def _words(lines: Iterable[str]) -> list[str]:
    found: list[str] = []
    for line in lines:
        word = re.sub(r"^\s*(\d+: )?", "", line).removeprefix("Error: ").strip()
        if word and word != "Caused by:" and word not in found:
            found.append(word)
    return found
