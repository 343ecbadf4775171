"""Builds what is published of this checkout into dist/.

That is wheels and sdists of muster-agent and muster-client, .deb, .rpm, an SBOM for each pair, SHA256SUMS, and
notes.md, of CHANGELOG.md. The time in all of them is that of the last commit, or SOURCE_DATE_EPOCH.

With --check it builds all of it once more, elsewhere and with another umask, and says what differs from dist/.

Usage: python -m scripts.release [--python 3.11]... [--machine x86_64]... [--release 1] [--into dist] [--check]
"""

import argparse
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from scripts import wheelhouse
from scripts.release import deb, notes, package, rpm, sbom, tree

ROOT = Path(__file__).parents[2]
SUMS = "SHA256SUMS"
#: What each wheel of muster is for: any machine has no muster-spawn.
_WHEELS = ("x86_64", "aarch64", "any")


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m scripts.release", description=__doc__.split("\n", 1)[0])
    here = ".".join(platform.python_version_tuple()[:2])
    parser.add_argument("--python", action="append", metavar="VERSION", help=f"of the nodes (default: {here})")
    parser.add_argument("--machine", action="append", choices=("x86_64", "aarch64"), help="default: this one")
    parser.add_argument("--release", type=int, default=1, metavar="N", help="of the packages of one version")
    parser.add_argument("--into", type=Path, default=ROOT / "dist", metavar="FOLDER")
    parser.add_argument("--check", action="store_true", help="build again, and compare with what is there")
    given = parser.parse_args(arguments)
    if missing := [tool for tool in ("dpkg-deb", "rpmbuild") if shutil.which(tool) is None]:
        print(f"release: {', '.join(missing)} not found: apt-get install dpkg rpm", file=sys.stderr)
        return 1
    os.environ.setdefault("SOURCE_DATE_EPOCH", _git("log", "-1", "--format=%ct") or str(int(os.path.getmtime(ROOT))))
    targets = [(python, kind) for python in given.python or [here] for kind in given.machine or [platform.machine()]]
    if given.check:
        return _check(given.into, targets, given.release)
    if _git("status", "--porcelain"):
        print("release: the tree has changes that no commit has, and the packages say so", file=sys.stderr)
    build(tree.clear(given.into), targets, given.release)
    for path in sorted(given.into.iterdir()):
        print(f"{path.stat().st_size / 1e6:7.1f} MB  {path}")
    return 0


def build(into: Path, targets: list[tuple[str, str]], release: int) -> None:
    """Fills the folder. `targets`: versions of Python with machines. Raises CalledProcessError, ValueError."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(into)]
    for kind in ("sdist", *_WHEELS):
        env = os.environ | ({} if kind == "sdist" else {"MUSTER_WHEEL": kind})
        what = ["--sdist" if kind == "sdist" else "--wheel", str(ROOT)]
        subprocess.run([*command, *what], env=env, check=True, stdout=subprocess.DEVNULL)
    # The client: its wheel is made of its sdist, so that is whole.
    subprocess.run([*command, str(ROOT / "proto")], check=True, stdout=subprocess.DEVNULL)
    for python, machine in targets:
        _packages(into, python, machine, release)
    digests = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(into.iterdir())}
    version = package.of_folder(into, "", "", 0, 0).wheels[0].name.split("-")[1]
    (into / "notes.md").write_text(notes.text((ROOT / "CHANGELOG.md").read_text(), version, digests))
    digests["notes.md"] = hashlib.sha256((into / "notes.md").read_bytes()).hexdigest()
    (into / SUMS).write_text("".join(f"{digest}  {name}\n" for name, digest in sorted(digests.items())))


def _packages(into: Path, python: str, machine: str, release: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        wheels = Path(folder, "wheels")
        if wheelhouse.main([str(wheels), "--image", "--python", python, "--machine", machine]):
            raise ValueError(f"no wheels for Python {python} on {machine}")
        made = package.of_folder(wheels, python, machine, release, int(os.environ["SOURCE_DATE_EPOCH"]))
        files = Path(folder, "tree")
        tree.make(made, files)
        deb.build(made, files, into)
        rpm.build(made, files, into)
        (into / f"{made.stem}.cdx.json").write_text(sbom.text(made))


def _check(dist: Path, targets: list[tuple[str, str]], release: int) -> int:
    with tempfile.TemporaryDirectory() as folder:
        before = os.umask(0o077)
        build(Path(folder), targets, release)
        os.umask(before)
        there, again = ((place / SUMS).read_text().splitlines() for place in (dist, Path(folder)))
        for line in (different := sorted({*there} ^ {*again})):
            print(f"release: not the same bytes: {line}", file=sys.stderr)
    print(f"{len(again) - len(different) // 2} of {len(again)} files have the same bytes in a second build")
    return 1 if different else 0


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], check=False, capture_output=True, text=True)
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
