"""Whose the folders and files are that the daemon trusts: who can change them can have it do what he likes."""

import os
import pwd
import stat
from pathlib import Path

from agent.errors import StartupError


def refuse_others(path: Path, found: os.stat_result) -> None:
    """Raises StartupError where `path`, whose status is `found`, belongs neither to the daemon's user nor to root, or
    where everybody may write to it. A sticky folder passes: nobody replaces what is another's in it."""
    if found.st_uid not in (0, os.geteuid()):
        raise StartupError(
            f"{path}: belongs to {_name(found.st_uid)}, who could have this musterd, which runs as "
            f"{_name(os.geteuid())}, do what he likes: choose another path, or change its owner if its content is good"
        )
    sticky = stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX
    if found.st_mode & stat.S_IWOTH and not sticky:
        raise StartupError(
            f"{path}: belongs to {_name(found.st_uid)}, and its mode {stat.S_IMODE(found.st_mode):04o} lets everybody "
            f"write: chmod o-w {path}"
        )


def _name(uid: int) -> str:
    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"
