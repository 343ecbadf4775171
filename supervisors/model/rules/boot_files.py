"""What ModelArts uses that lies beside the boot file of a job, by the spellings of its guide."""

import os
from collections.abc import Sequence

#: A script that runs before the boot file, and packages that are installed before that.
PRE_STARTS = ("ma-pre-start.sh", "ma-pre-start.py", "ma_pre_start.sh", "ma_pre_start.py")
REQUIREMENTS = ("pip-requirements.txt", "pip-requirement.txt")


def beside(command: Sequence[str], folder: str) -> dict[str, str]:
    """Paths by the field of the spec that uses them. The boot file is the first script of the command, which runs in
    `folder` (empty: a folder of each rank's own, in which there is none); a module (`-m`) and code (`-c`) have none."""
    for word in command:
        if word in ("-m", "-c"):
            break
        path = os.path.join(folder, word)
        if word.endswith((".py", ".sh")) and os.path.isabs(path) and os.path.isfile(path):
            here = os.path.dirname(os.path.abspath(path))
            found = {"pre_start": PRE_STARTS, "requirements": REQUIREMENTS}
            return {
                field: path
                for field, names in found.items()
                if (path := next((p for name in names if os.path.isfile(p := os.path.join(here, name))), ""))
            }
    return {}
