"""Builds a container image of muster as the checkout is (examples/containers/), and prints its size.

The wheels come from the package registry as it is configured here; the build itself needs no network where the base has
Python. With docker or podman in the place of buildah the command is the same but for its name. Fails where the image of
no vendor is larger than MOST_MB.

Usage: python -m scripts.image [--ascend] [--base IMAGE] [--python 3.11] [--machine aarch64]
                               [--tag NAME] [--tool buildah] [-- OPTIONS]
"""

import argparse
import json
import platform
import re
import subprocess
import sys
from pathlib import Path

from scripts import wheelhouse

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "examples" / "containers"
#: The image without a vendor's base, in megabytes of its files.
MOST_MB = 150
_UNITS = {"B": 1e-6, "KB": 1e-3, "MB": 1.0, "GB": 1e3}


def build(tool: str, tag: str, wheels: Path, *, file: str = "Containerfile", base: str = "", options: list[str]) -> int:
    """The exit code of the tool. `options`: of its `build`."""
    # OCI's format, which buildah and podman have by default, has no health check.
    command = [tool, *(("buildx",) if tool == "docker" else ()), "build"]
    command += [] if tool == "docker" else ["--format", "docker"]
    command += ["-f", str(SOURCE / file), "--build-context", f"wheels={wheels}", "-t", tag, *options]
    command += [f"--build-arg=BASE={base}"] if base else []
    return subprocess.run([*command, str(SOURCE)], check=False).returncode


def megabytes(tool: str, tag: str) -> float:
    """The size of the image's files. Raises CalledProcessError where there is no such image."""
    if tool == "buildah":  # it shows sizes to people only
        shown = subprocess.run([tool, "images", "--json", tag], check=True, capture_output=True, text=True).stdout
        found = re.fullmatch(r"([\d.]+) (\w+)", json.loads(shown)[0]["size"])
        assert found is not None, shown
        return float(found[1]) * _UNITS[found[2].upper()]
    command = [tool, "image", "inspect", "--format", "{{.Size}}", tag]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout) / 1e6


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m scripts.image", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--ascend", action="store_true", help="on Ascend's base image")
    parser.add_argument("--base", default="", metavar="IMAGE", help="another base than the Containerfile's")
    parser.add_argument("--python", default="3.11", metavar="VERSION", help="of the base (default: %(default)s)")
    parser.add_argument("--machine", default=platform.machine(), metavar="x86_64|aarch64", help="default: this one")
    parser.add_argument("--tag", default="", metavar="NAME", help="default: muster, or muster-ascend")
    parser.add_argument("--tool", default="buildah", choices=("buildah", "podman", "docker"))
    parser.add_argument("--wheels", type=Path, metavar="FOLDER", help="use these, of an earlier wheelhouse --image")
    parser.add_argument("options", nargs="*", help="for the tool's build, behind --")
    given = parser.parse_args(arguments)
    wheels = given.wheels or ROOT / "build" / f"wheels-{given.python}-{given.machine}"
    if given.wheels is None:
        target = ["--python", given.python, "--machine", given.machine]
        if code := wheelhouse.main([str(wheels), "--image", *target]):
            return code
    file = "Containerfile.ascend" if given.ascend else "Containerfile"
    tag = given.tag or ("muster-ascend" if given.ascend else "muster")
    if code := build(given.tool, tag, wheels.absolute(), file=file, base=given.base, options=given.options):
        return code
    size = megabytes(given.tool, tag)
    print(f"{tag}: {size:.0f} MB{'' if given.ascend else f' of {MOST_MB} at most'}")
    if size > MOST_MB and not given.ascend:
        print(f"image: {tag} is larger than {MOST_MB} MB: see rootfs.py for what is in it", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
