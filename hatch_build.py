"""Puts into wheel and sdist which build they are: the file build.txt of muster.agent, which `agent/host/build.py`
shows. And builds the program `muster-spawn` for a wheel and for a checkout; `python hatch_build.py` does only that.

A wheel is for this machine's architecture, or for that in MUSTER_WHEEL: x86_64, aarch64, or any (without the program).
"""

import contextlib
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

#: `git archive` puts the commit in here (.gitattributes).
_ARCHIVED = "$Format:%h of %cs$"
_FILE = "agent/build.txt"
_FOLDERS = ("agent", "supervisors", "probes")
#: What else a wheel has, and where: `muster service install` takes it from there.
_MORE = {"systemd": "muster/agent/units"}
#: Creates the processes of jobs (docs/concepts/creation.md). It is static and has no C library: its build needs a
#: compiler alone, and one file serves glibc and musl.
_PROGRAM = "supervisors/launch/creation/muster-spawn"
_MACHINES = ("x86_64", "aarch64")
_FLAGS = (
    *("-std=c11", "-Os", "-s", "-static", "-nostdlib", "-ffreestanding", "-fno-builtin", "-fno-pic", "-no-pie"),
    *("-fno-stack-protector", "-fno-asynchronous-unwind-tables", "-fno-unwind-tables", "-Wall", "-Wextra", "-Werror"),
)


class BuildHook(BuildHookInterface[Any]):
    """An sdist's own file goes on into what is built of it. An editable install has none: its tree changes."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Raises ValueError where a checkout has an sdist's file."""
        root = Path(self.root)
        self._put_default_first()
        if version == "editable":
            for name in _FOLDERS:  # an sdist has no links
                with contextlib.suppress(FileExistsError):
                    (root / "proto/muster" / name).symlink_to(Path("../..", name))
            build_program(root)
            return
        self._folder = tempfile.TemporaryDirectory()  # gone with this object
        if self.target_name == "wheel":
            # Not by pyproject.toml: an editable install would get copies, which go stale.
            places = {name: f"muster/{name}" for name in _FOLDERS} | _MORE
            build_data["force_include"].update({str(root / name): place for name, place in places.items()})
            self._add_program(root, build_data)
        build = _of_git(root)
        if (root / _FILE).exists():
            if build:
                raise ValueError(f"{root / _FILE} is an sdist's and does not belong into a checkout: remove it")
            return
        path = Path(self._folder.name, "build.txt")
        path.write_text((build or _without_git(root)) + "\n")
        build_data["force_include"][str(path)] = _FILE if self.target_name == "sdist" else f"muster/{_FILE}"

    def _put_default_first(self) -> None:
        """Hatchling sorts entry points by name, and `torchx run` without -s takes the first of its schedulers: which
        one that is must not depend on whether muster is installed."""
        schedulers = self.metadata.core.entry_points["torchx.schedulers"]
        others = {name: schedulers.pop(name) for name in list(schedulers) if name != "local_docker"}
        schedulers.update(others)

    def _add_program(self, root: Path, build_data: dict[str, Any]) -> None:
        """Raises ValueError where the program is asked for and cannot be built: a wheel for any machine has none."""
        wanted = os.environ.get("MUSTER_WHEEL", "")
        if wanted not in ("", "any", *_MACHINES):
            raise ValueError(f"MUSTER_WHEEL is {wanted}: it must be one of {', '.join(_MACHINES)}, any")
        machine, path = wanted or platform.machine(), Path(self._folder.name, "muster-spawn")
        if wanted != "any" and compile_program(root, machine, path):
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-manylinux_2_17_{machine}.manylinux2014_{machine}.musllinux_1_1_{machine}"
            build_data["force_include"][str(path)] = f"muster/{_PROGRAM}"
        elif wanted in _MACHINES:
            raise ValueError(f"no compiler for {wanted}: install ziglang")
        else:  # not a checkout's own, either
            self.build_config.build_reserved_paths.add(f"muster/{_PROGRAM}")


def build_program(root: Path) -> None:
    """Of a checkout, beside its source."""
    with tempfile.TemporaryDirectory(dir=(root / _PROGRAM).parent, prefix=".") as folder:
        new = Path(folder, "muster-spawn")
        if compile_program(root, platform.machine(), new):
            new.replace(root / _PROGRAM)
        else:
            print(
                f"muster-spawn was not built: no compiler for {platform.machine()}; supervisors fork", file=sys.stderr
            )


def compile_program(root: Path, machine: str, into: Path) -> bool:
    """By zig, which gives the same bytes everywhere, or else by this machine's compiler. False: there is neither."""
    own = shlex.split(os.environ.get("CC", "cc"))
    if machine not in _MACHINES:
        return False
    if importlib.util.find_spec("ziglang"):
        compiler = [sys.executable, "-m", "ziglang", "cc", "-target", f"{machine}-linux-musl", "-fno-sanitize=all"]
    elif machine == platform.machine() and shutil.which(own[0]):
        compiler = own
    else:
        return False
    with tempfile.TemporaryDirectory() as cache:
        environ = dict(os.environ) | {"ZIG_GLOBAL_CACHE_DIR": cache, "ZIG_LOCAL_CACHE_DIR": cache}
        # By a relative path: the folder of the tree is not for the bytes.
        command = [*compiler, *_FLAGS, "-o", str(into.absolute()), f"{_PROGRAM}.c"]
        subprocess.run(command, cwd=root, env=environ, check=True, timeout=300)
    into.chmod(0o755)
    return True


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


if __name__ == "__main__":
    build_program(Path(__file__).parent)
