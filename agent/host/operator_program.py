"""Runs a program of the operator's once: with something on its standard input, and for so long at most."""

from collections.abc import Mapping

import anyio

from muster.probes.calls import watched
from muster.probes.calls.script import ENV, LINGER_S, Script
from muster.probes.checks.result import one_line
from muster.probes.kernel import endings


class ProgramFailed(Exception):
    """Raised when a program did not end with 0. `code` is its exit code, None where it has none."""

    def __init__(self, text: str, code: int | None = None) -> None:
        super().__init__(text)
        self.code = code


async def run(
    argv: tuple[str, ...],
    facts: Mapping[str, str],
    stdin: bytes,
    timeout_s: float,
    setting: str,
    patient: bool = False,
) -> None:
    """Runs `argv` as the daemon's user, with `facts` in its environment; after `timeout_s` (the key `setting`) it is
    killed, and what it has left behind in its process group always is. `patient`: it may write as much as it likes,
    and its last lines are in the error. Raises ProgramFailed with one sentence."""
    name, *args = argv
    script = Script(name, {**ENV, **facts}, tuple(args), stdin=stdin, patient=patient)
    try:
        with anyio.fail_after(timeout_s):
            ended = await watched.call(f"run {name}", script.run, on_cancel=script.kill, linger_s=LINGER_S)
    except TimeoutError:
        raise ProgramFailed(f"{name}: had not ended after {timeout_s:g} s and was killed ({setting})") from None
    except watched.StillHanging as error:
        raise ProgramFailed(str(error)) from None
    except OSError as error:
        raise ProgramFailed(f"{name}: cannot be executed: {error.strerror or error}") from None
    if ended.flooded:
        raise ProgramFailed(f"{name}: wrote without end and was killed")
    if ended.returncode == 0:
        return
    said = one_line(ended.stderr.decode(errors="replace").strip())
    said = said[-500:] if patient else said[:200]
    how = endings.describe_code(ended.returncode)
    raise ProgramFailed(f"{name}: {how}" + (f": {said}" if said else ""), ended.returncode)
