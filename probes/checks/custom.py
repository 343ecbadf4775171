"""Checks of the operator's own: every executable file in a folder, with the exit codes of a Nagios plugin.

0 OK, 1 WARN, 2 CRITICAL, 3 UNKNOWN; a signal, a file that cannot be executed, a time-out or any other code is UNKNOWN.
The first line of stdout (else of stderr) is the message, 4 KiB at most.
"""

import os
import stat

from muster.probes.calls import watched
from muster.probes.calls.script import ENV, KEPT, LINGER_S, Script, ScriptEnd
from muster.probes.checks.result import Action, CheckResult, Code, Status, one_line
from muster.probes.kernel import endings
from muster.probes.kernel.dataclass import dataclass

#: First word of the items, and the item of the folder itself where it cannot be read.
ALL = "custom"
_CODES = {
    0: (Status.OK, Code.CUSTOM_OK, Action.NONE),
    1: (Status.WARN, Code.CUSTOM_WARN, Action.INVESTIGATE),
    2: (Status.CRITICAL, Code.CUSTOM_CRITICAL, Action.DRAIN),
    3: (Status.UNKNOWN, Code.CUSTOM_UNKNOWN, Action.INVESTIGATE),
}
_THRESHOLD = "exit code 0"


@dataclass(frozen=True, slots=True)
class CustomCheck:
    """A check in the folder; `unsafe` says why it must not be run, or is empty."""

    item: str
    path: str
    unsafe: str = ""


def find(folder: str) -> list[CustomCheck]:
    """The executable files in `folder` by name; hidden ones and the left-overs of editors are passed over.

    The daemon runs them with its own rights, so a script that others could have written is marked unsafe: file
    and folder must belong to root or the daemon's user and be writable by their owner only. Raises OSError where the
    folder cannot be listed.
    """
    folder_unsafe = _unsafe(folder)
    found = []
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        if name.startswith(".") or name.endswith("~"):
            continue
        try:
            if not os.path.isfile(path) or not os.access(path, os.X_OK):
                continue
            found.append(CustomCheck(f"{ALL} {one_line(name)}", path, folder_unsafe or _unsafe(path)))
        except FileNotFoundError:
            continue  # gone since the folder was listed
    return found


def _unsafe(path: str) -> str:
    status = os.stat(path)
    if status.st_uid not in (0, os.geteuid()):
        return f"{path}: belongs to uid {status.st_uid}; `chown root {path}`"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"{path}: mode {stat.S_IMODE(status.st_mode):04o} lets others write to it; `chmod go-w {path}`"
    return ""


def environment(*, cards_wanted: int, cards_found: int, user: str, deadline_s: float) -> dict[str, str]:
    """What a script may want to know of the job that is to be started, and its deadline in seconds."""
    return {
        **ENV,
        "MUSTER_CARDS_WANTED": str(cards_wanted),
        "MUSTER_CARDS_FOUND": str(cards_found),
        "MUSTER_USER": user,
        "MUSTER_CHECK_DEADLINE_S": f"{deadline_s:g}",
    }


async def check(found: CustomCheck, env: dict[str, str]) -> CheckResult:
    """Runs one script. On cancellation (the deadline) its whole process group is killed before this returns."""
    if found.unsafe:
        return _unknown(found.item, Code.CUSTOM_UNSAFE, f"not run: {found.unsafe}")
    script = Script(found.path, env)
    try:
        ended = await watched.call(f"run {found.path}", script.run, on_cancel=script.kill, linger_s=LINGER_S)
    except OSError as error:
        reason = f"{found.path}: cannot be executed: {error.strerror or error}"
        return _unknown(found.item, Code.CUSTOM_NOT_EXECUTABLE, reason)
    return judge(found.item, ended)


def judge(item: str, ended: ScriptEnd) -> CheckResult:
    """The rule itself."""
    message = _first_line(ended.stdout) or _first_line(ended.stderr) or "no message"
    if ended.flooded:
        return _unknown(item, Code.CUSTOM_TOO_MUCH_OUTPUT, f"wrote without end and was killed: {message}")
    if ended.returncode < 0:
        number = -ended.returncode
        reason = f"{endings.describe_code(ended.returncode)}: {message}"
        return _unknown(item, Code.CUSTOM_SIGNALLED, reason, f"signal {number}")
    observed = f"exit code {ended.returncode}"
    if ended.returncode not in _CODES:
        reason = f"{observed}, must be 0 to 3: {message}"
        return _unknown(item, Code.CUSTOM_BAD_EXIT_CODE, reason, observed)
    status, code, action = _CODES[ended.returncode]
    return CheckResult(item, status, code, message, observed, _THRESHOLD, action)


def _first_line(output: bytes) -> str:
    line = output[:KEPT].lstrip(b"\r\n").partition(b"\n")[0]
    return one_line(line.decode(errors="replace").strip())


def _unknown(item: str, code: Code, reason: str, observed: str = "") -> CheckResult:
    return CheckResult(item, Status.UNKNOWN, code, reason, observed, _THRESHOLD, Action.INVESTIGATE)
