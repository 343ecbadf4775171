"""One run of a test's program: with a deadline, killed whole, and ended with this process. What it printed is what it
measured."""

import json
import math
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import anyio

from muster.probes.active import bounded
from muster.probes.calls import watched
from muster.probes.calls.script import Script
from muster.probes.kernel import endings
from muster.probes.kernel.dataclass import dataclass

#: How long a killed test may take to be gone, in seconds: a process that waits for a sick card takes for ever.
_LINGER_S = 5.0
_KEPT = 64 << 10
#: What the driver needs of the environment, and nothing that could be a secret.
_PASSED = ("PATH", "LD_LIBRARY_PATH", "LANG")
#: Signals of which a program dies through a fault of its own.
_CRASHES = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE, signal.SIGTRAP})
Begun = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Measured:
    """What one test of one card came to: figures, or why there are none. `code` is the CUresult that it failed with;
    `crashed`: the driver ended a program of ours; `absent`: there is nothing to test; `wrong_at`: bus ids of the cards
    at which something wrong arrived."""

    figures: Mapping[str, float]
    wrong: int = 0
    trouble: str = ""
    code: int = 0
    late: bool = False
    crashed: bool = False
    absent: bool = False
    wrong_at: tuple[str, ...] = ()


async def run(what: str, program: Sequence[str], deadline_s: float, env: Mapping[str, str], begun: Begun) -> Measured:
    """Runs a program to its end, or for so long. One that begins with an option is for this interpreter. `env`:
    variables beside those that a driver needs; `begun`: called with its pid."""
    known = {name: os.environ[name] for name in _PASSED if name in os.environ}
    whole = (sys.executable, *program) if program[0].startswith("-") else program
    script = Script(sys.executable, {**known, **env}, bounded.command(whole), kept=_KEPT, begun=begun)
    try:
        with anyio.move_on_after(deadline_s) as limit:
            ended = await watched.call(what, script.run, on_cancel=script.kill, linger_s=_LINGER_S)
    except (OSError, watched.StillHanging) as error:
        return Measured({}, trouble=str(error))
    if limit.cancelled_caught:
        return Measured({}, trouble=f"no end after {deadline_s:g} s", late=True)
    return _said(ended.stdout, ended.stderr, ended.returncode, ours=program is not whole)


def _said(stdout: bytes, stderr: bytes, code: int, *, ours: bool) -> Measured:
    """What the last line of the test says: the libraries that it uses may print others behind it. `ours`: the program
    consists of this interpreter and the driver alone, so it is the driver that ends it by such a signal."""
    for line in reversed(stdout.decode(errors="replace").splitlines()):
        try:
            return _measured(json.loads(line))
        except (KeyError, TypeError, ValueError, AttributeError):
            continue
    last = (stderr.decode(errors="replace").strip().splitlines() or ["no output"])[-1]
    if code >= 0:
        return Measured({}, trouble=f"the test ended with {code}: {last}")
    return Measured({}, trouble=f"{endings.signal_name(-code)} ended it: {last}", crashed=ours and -code in _CRASHES)


def _measured(said: dict[str, Any]) -> Measured:
    """Raises KeyError, TypeError, ValueError and AttributeError for what is no result."""
    if failed := said.get("failed"):
        return Measured({}, trouble=str(failed), code=int(said["code"]), absent=bool(said.get("absent")))
    wrong, wrong_at = int(said["wrong"]), tuple(map(str, said.get("wrong_at", ())))
    figures = {name: float(value) for name, value in said["measured"].items()}
    if not wrong and not (figures and all(map(math.isfinite, figures.values()))):
        return Measured({}, trouble="the test ended, and measured nothing")
    return Measured(figures, wrong, wrong_at=wrong_at)
