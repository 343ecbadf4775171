"""Who owns the folders and files that the daemon trusts: a user who can change them controls the daemon.

supervisors/system/trust.py has the rule. This module names what the daemon checks at its start, and what `muster
service` checks.
"""

import glob
import os
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import muster.agent
from muster.agent.errors import StartupError
from muster.supervisors.supervision_errors import Untrusted
from muster.supervisors.system import trust

#: What to do about an environment that others can change.
OWN_ENVIRONMENT = "Make the environment as root, for instance in /opt/muster"


def refuse_others(path: Path) -> None:
    """Raises StartupError if a user other than root and the daemon's can change `path` or put another file or folder in
    its place; the path need not exist yet. Raises OSError."""
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
        raise StartupError(f"cannot inspect {error.filename}: {error.strerror}") from error
    if trouble:
        raise StartupError(f"{trouble}. {OWN_ENVIRONMENT}, or start musterd with --trust-environment")


def environment_of_others() -> str:
    """Why another user than root can change what this process runs, and what to do; empty for nobody. Raises
    OSError."""
    sound = {"/"}
    try:
        for path in (Path(sys.executable), programs() / "musterd", Path(muster.agent.__file__), Path(sys.base_prefix)):
            trust.check(path)
        for name in (*_imported_from(), *_packages(), *_files()):
            _refuse_changeable(name, sound)
    except Untrusted as error:
        return str(error)
    return ""


def _refuse_changeable(path: str, sound: set[str]) -> None:
    """`trust.check` for many paths with the same ancestors. `sound`: what was found to be good. Raises Untrusted,
    OSError."""
    above = os.path.dirname(path)
    if path in sound or path == above:
        return
    try:
        if trust.is_plainly_ours(os.lstat(path)):
            _refuse_changeable(above, sound)
        else:
            trust.check(Path(path))
    except FileNotFoundError:
        trust.check(Path(path))
    except NotADirectoryError:  # in an archive
        _refuse_changeable(above, sound)
    sound.add(path)


def _imported_from() -> set[str]:
    """Folders in which Python looks for modules, and those of the modules that it has."""
    folders = {path for path in sys.path if os.path.isabs(path)}
    for file in _modules():
        folder = os.path.dirname(file)
        folders |= {folder, os.path.join(folder, "__pycache__")}
    return folders


def _packages() -> Iterator[str]:
    """Folders of the environment's packages. Only the outermost of each: deeper ones are looked at where they are
    imported already, since a walk through all of them takes longer than a start."""
    for top in _sites():
        with os.scandir(top) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    yield entry.path


def _files() -> Iterator[str]:
    """Files that Python reads before it runs anything of muster's, and those of the modules that it has."""
    yield from _modules()
    for top in _sites():
        yield from glob.iglob(os.path.join(glob.escape(top), "*.pth"))
    yield os.path.join(sys.prefix, "pyvenv.cfg")


def _sites() -> set[str]:
    """Folders of the environment into which packages are installed."""
    return {path for name in ("purelib", "platlib") if os.path.isdir(path := sysconfig.get_path(name))}


def _modules() -> set[str]:
    found = {getattr(module, "__file__", None) for module in tuple(sys.modules.values())}
    return {file for file in found if file and os.path.isabs(file)}
