"""Puts into wheel and sdist which build they are: the file build.txt of muster.agent, which `agent/host/build.py`
shows."""

import contextlib
import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

#: `git archive` puts the commit in here (.gitattributes).
_ARCHIVED = "$Format:%h of %cs$"
_FILE = "agent/build.txt"
_FOLDERS = ("agent", "supervisors", "probes")


class BuildHook(BuildHookInterface[Any]):
    """An sdist's own file goes on into what is built of it. An editable install has none: its tree changes."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Raises ValueError where a checkout has an sdist's file."""
        root = Path(self.root)
        if version == "editable":
            for name in _FOLDERS:  # an sdist has no links
                with contextlib.suppress(FileExistsError):
                    (root / "proto/muster" / name).symlink_to(Path("../..", name))
            return
        build = _of_git(root)
        if (root / _FILE).exists():
            if build:
                raise ValueError(f"{root / _FILE} is an sdist's and does not belong into a checkout: remove it")
            return
        self._folder = tempfile.TemporaryDirectory()  # gone with this object
        path = Path(self._folder.name, "build.txt")
        path.write_text((build or _without_git(root)) + "\n")
        build_data["force_include"][str(path)] = _FILE if self.target_name == "sdist" else f"muster/{_FILE}"


def _of_git(root: Path) -> str:
    """Empty where `root` is not the top of a checkout: a tree that merely lies in somebody's repository is not."""
    if _git(root, "rev-parse", "--show-prefix") != "":
        return ""
    commit = _git(root, "log", "-1", "--abbrev=9", "--format=%h of %cs")
    changed = _git(root, "status", "--porcelain", "--untracked-files=normal") != ""
    return f"{commit}{', changed' if changed else ''}" if commit else ""


def _git(root: Path, *arguments: str) -> str | None:
    """None where git fails or there is none. In a hook of git's the environment names another repository."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    # Whose the tree is does not matter: it is about to be run.
    command = ["git", "-c", f"safe.directory={root}", *arguments]
    try:
        done = subprocess.run(command, cwd=root, env=environ, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _without_git(root: Path) -> str:
    if not _ARCHIVED.startswith("$"):
        return _ARCHIVED
    newest = max(path.stat().st_mtime for name in _FOLDERS for path in (root / name).rglob("*.py"))
    return time.strftime("source of %Y-%m-%d", time.gmtime(int(os.environ.get("SOURCE_DATE_EPOCH") or newest)))
