"""Whose the folders and files are that the daemon trusts: who can change them can have it do what they like.

The rule is in supervisors/system/trust.py. Here is what it is asked about when the daemon starts, and for `muster
service`.
"""

import os
import sys
import sysconfig
from pathlib import Path

import muster.agent
from muster.agent.errors import StartupError
from muster.supervisors.supervision_errors import Untrusted
from muster.supervisors.system import trust

#: What to do about an environment that others can change.
OWN_ENVIRONMENT = "Make the environment as root, for instance in /opt/muster"


def refuse_others(path: Path) -> None:
    """Raises StartupError where another user than root and the daemon's can change `path` or put another file or folder
    in its place; what is not there yet is fine. Raises OSError."""
    try:
        trust.check(path)
    except Untrusted as error:
        raise StartupError(str(error)) from None


def refuse_contents_of_others(folder: Path) -> None:
    """Raises StartupError for a file or folder in `folder` that belongs to another user. Raises OSError."""
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                trust.refuse_foreign(folder / entry.name, entry.stat(follow_symlinks=False))
    except Untrusted as error:
        raise StartupError(str(error)) from None


def programs() -> Path:
    """The folder of `musterd`, in the environment that this runs in."""
    return Path(sysconfig.get_path("scripts"))


def refuse_environment_of_others() -> None:
    """Raises StartupError where we are root and another user can change what we run."""
    try:
        trouble = environment_of_others() if os.geteuid() == 0 else ""
    except OSError as error:
        raise StartupError(f"{error.filename}: cannot be looked at: {error.strerror}") from error
    if trouble:
        raise StartupError(f"{trouble}. {OWN_ENVIRONMENT}, or start musterd with --trust-environment")


def environment_of_others() -> str:
    """Why another user than root can change what this process runs, and what to do; empty for nobody. Raises
    OSError."""
    try:
        for path in (Path(sys.executable), programs() / "musterd", Path(muster.agent.__file__), Path(sys.base_prefix)):
            trust.check(path)
    except Untrusted as error:
        return str(error)
    return ""
