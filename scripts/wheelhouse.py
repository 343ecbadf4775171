"""Fills a folder with what `make test-gpu` installs on a machine that has a card and no package registry, and, with
--image, what a container image does.

It holds wheels of muster as the checkout is, and of what that and its tests need, in the versions of
requirements-dev.lock, for a version of Python and a kind of machine. requirements.txt in it has their hashes. With
--image the tests' wheels stay out, and pip, which installs the others and is not among the requirements, is in.

Usage: python -m scripts.wheelhouse FOLDER [--python 3.12] [--machine x86_64] [--image]
"""

import argparse
import hashlib
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
#: What the tests of tests/gpu need beside muster.
TESTS = ("pytest", "pytest-asyncio", "pytest-timeout", "hypothesis")
#: Of glibc: up to the newest that a distribution with a driver for today's cards has; pip takes each by its name.
_GLIBC = range(17, 40)


def needed(roots: tuple[str, ...]) -> set[str]:
    """The names of all packages that these need, themselves among them, as they are installed here."""
    found: set[str] = set()
    left = list(roots)
    while left:
        name = canonicalize_name(left.pop())
        if name in found:
            continue
        found.add(name)
        for line in importlib.metadata.requires(name) or ():
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                left.append(requirement.name)
    return found


def locked(lock: str, names: set[str]) -> str:
    """The entries of these packages in a lock file."""
    entries = re.split(r"^(?=[a-z0-9])", lock, flags=re.MULTILINE)
    return "".join(entry for entry in entries if re.split(r"[=\s]", entry, maxsplit=1)[0] in names)


def unfit(version: str) -> str:
    """Why there can be no wheels for that version of Python; empty if there can be."""
    wanted = importlib.metadata.metadata("muster-agent")["Requires-Python"]
    if re.fullmatch(r"3\.\d+(\.\d+)?", version) and version in SpecifierSet(wanted):
        return ""
    return f"{version!r}: muster needs Python {wanted}: give a version such as 3.11, and a --base that has it"


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m scripts.wheelhouse", description=__doc__.split("\n", 1)[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python", default=".".join(platform.python_version_tuple()[:2]), metavar="VERSION")
    parser.add_argument("--machine", default=platform.machine(), metavar="x86_64|aarch64")
    parser.add_argument("--image", action="store_true", help="for an image: with pip, without what tests need")
    given = parser.parse_args(arguments)
    if trouble := unfit(given.python):
        parser.error(f"argument --python: {trouble}")
    shutil.rmtree(given.folder, ignore_errors=True)
    given.folder.mkdir(parents=True)
    wanted = given.folder / "requirements.txt"
    names = needed(("muster-agent", *(() if given.image else TESTS))) - {"muster-agent"}
    wanted.write_text(locked((ROOT / "requirements-dev.lock").read_text(), names))
    platforms = [f"--platform=manylinux_2_{minor}_{given.machine}" for minor in _GLIBC]
    platforms += [f"--platform=manylinux{old}_{given.machine}" for old in ("2014", "2010", "1")]
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--require-hashes", "--only-binary=:all:"]
    pip += [f"--python-version={given.python}", "--implementation=cp", *platforms, "-d", str(given.folder)]
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(given.folder), str(ROOT)]
    own_pip = f"pip=={importlib.metadata.version('pip')}"
    installer = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(given.folder), own_pip]
    environ = os.environ | {"MUSTER_WHEEL": given.machine}
    for command in ([*pip, "-r", str(wanted)], build, *([installer] if given.image else [])):
        if code := subprocess.run(command, check=False, env=environ, stdout=subprocess.DEVNULL).returncode:
            return code
    (own,) = given.folder.glob("muster_agent-*.whl")
    with open(wanted, "a") as file:
        file.write(f"./{own.name} --hash=sha256:{hashlib.sha256(own.read_bytes()).hexdigest()}\n")
    size = sum(each.stat().st_size for each in given.folder.iterdir())
    print(f"{given.folder}: {len(names) + 1} wheels, {size >> 20} MB, for Python {given.python} on {given.machine}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
