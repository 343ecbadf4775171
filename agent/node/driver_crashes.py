"""Crashes of the daemon in a driver's library (NVML, DCMI), which runs in its process.

The next daemon would call the same library, and crash again: nobody could stop a job. So a daemon that crashes leaves
the Python stack of the thread that crashed in a file, and after the second such crash in a row the next ones keep the
driver closed for a while. Jobs are not touched by any of this.
"""

import contextlib
import json
import re
import time
from pathlib import Path

from muster.agent.text import local
from muster.probes.kernel import process
from muster.probes.kernel.dataclass import dataclass
from muster.supervisors.paths import Root
from muster.supervisors.system import trust
from muster.supervisors.system.atomic_file import replace_file

#: Seconds after the second crash in a row, doubled after each further one, and at most. A crash this long after the one
#: before it begins a new row.
FIRST_S, MOST_S, ROW_S = 30.0, 600.0, 3600.0
#: Libraries by the folder of muster's that calls them.
_LIBRARIES = {"/probes/cards/nvidia/": "NVML", "/probes/cards/ascend/": "DCMI"}
#: A line of a stack as faulthandler writes it, the innermost call first.
_FRAME = re.compile(r'^  File "([^"]*)", line \d+ in (\S+)', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class DriverCrash:
    """How the daemon before this one ended in a driver's library, a sentence ("": it did not); why the driver stays
    closed ("": it does not), and for how many seconds."""

    text: str = ""
    closed: str = ""
    pause_s: float = 0.0


def blamed(stack: str) -> tuple[str, str]:
    """The library in which a stack ends, and the function that muster called; "" if it ends elsewhere."""
    frames = _FRAME.findall(stack)
    library = next((name for file, _ in frames for part, name in _LIBRARIES.items() if part in file), "")
    return library, frames[0][1] if library else ""


def pause_s(crashes: int) -> float:
    """For how long the driver stays closed after so many crashes in a row."""
    return min(FIRST_S * 2 ** (crashes - 2), MOST_S) if crashes > 1 else 0.0


def earlier(root: Root) -> DriverCrash:
    """How the daemon before this one ended, by the stack that it left. Blocks. Raises OSError."""
    at, stack = 0.0, ""
    with contextlib.suppress(FileNotFoundError):
        at = root.crash_stack.stat().st_mtime
        stack = trust.read(root.crash_stack).decode(errors="replace")
    library, function = blamed(stack)
    row, last, text = _row(root.driver_crashes)
    if library:
        row = row + 1 if at - last < ROW_S else 1
        last, text = at, f"{library} crashed musterd in {function}"
        written = {"boot": process.boot_id(), "crashes": row, "at": last, "text": text}
        replace_file(root.driver_crashes, json.dumps(written).encode())
    left = last + pause_s(row) - time.time()
    if left <= 0 or left > MOST_S:
        return DriverCrash(text if library else "")
    closed = (
        f"{text}, the last of {row} times in a row at {local(last)}: musterd does not use the driver until "
        f"{local(last + pause_s(row))}. Reload the driver, or reboot"
    )
    return DriverCrash(text if library else "", closed, left)


def _row(path: Path) -> tuple[int, float, str]:
    """How many crashes there were in a row in this boot, the time of the last one, and its sentence."""
    try:
        found = json.loads(trust.read(path))
        if found["boot"] == process.boot_id():
            return int(found["crashes"]), float(found["at"]), str(found["text"])
    except (OSError, ValueError, KeyError, TypeError):
        pass  # none so far, or a file that is of no use
    return 0, 0.0, ""
