"""musterd: answers calls, keeps the cache of all jobs, and reports what happened. It is never the parent of a rank."""

import os
import sys
from collections.abc import MutableMapping

#: Of the code that runs, not of what pip has put in its place since. Packages get it from here; the build: `build.py`.
__version__ = "0.1.0"


def leave_out_here() -> None:
    """Has a program of ours import nothing from the folder in which it is called. To be called before it imports
    anything else.

    `PYTHONPATH=/opt/x:$PYTHONPATH` with nothing behind it ends in a colon, and so do the images of CANN set it. Python
    then takes the present folder for one with modules, before its own library, and a training folder may well have a
    queue.py. Ranks get the variable as it is.
    """
    parts = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if len(parts) < 2 or "" not in parts or sys.flags.ignore_environment:
        return
    try:
        here = os.getcwd()
    except OSError:  # it has been removed
        here = ""
    if here not in parts:
        # Behind the folder of the program come those of the variable, without doubles.
        first = 1 + len(parts)
        sys.path[:first] = [path for path in sys.path[:first] if path not in ("", here)]


def name_no_folder_by_nothing(env: MutableMapping[str, str]) -> None:
    """The same for a program of ours that gets this environment."""
    if "PYTHONPATH" in env:
        env["PYTHONPATH"] = os.pathsep.join(part for part in env["PYTHONPATH"].split(os.pathsep) if part)
