"""Other versions of Python on this machine, for what muster does differently under them."""

import functools
import os
import subprocess
import sys
from pathlib import Path

#: Where version managers put them, each in a folder of its own.
_KEPT_IN = (Path(os.environ.get("PYENV_ROOT", "~/.pyenv")) / "versions", Path("~/.local/share/uv/python"))
_MINORS = range(11, 20)


@functools.cache
def found() -> tuple[str, ...]:
    """One program for each version that muster supports, the present one among them; a shim that fails is none."""
    names = [f"python3.{minor}" for minor in _MINORS]
    folders = [Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep) if folder]
    for kept in _KEPT_IN:
        folders += sorted(kept.expanduser().glob("*/bin"))
    candidates = [sys.executable, *(str(path / name) for name in names for path in folders if (path / name).exists())]
    by_version: dict[str, str] = {}
    for candidate in candidates:
        asked = subprocess.run(
            [candidate, "-I", "-c", "import sys; print(*sys.version_info[:2], sys.abiflags)"],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        if asked.returncode == 0:
            by_version.setdefault(asked.stdout.strip(), candidate)
    return tuple(by_version.values())
