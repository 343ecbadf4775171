"""The files of a package, laid out below a folder as they come to lie on a node.

The environment is a virtual environment without pip, of the node's own Python: the wheels of grpcio, uvloop and others
are made for one minor version of it, and its security updates come with the distribution. It is laid out by unpacking
the wheels, so that the Python of the machine that builds does not matter.
"""

import gzip
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from configparser import ConfigParser
from pathlib import Path

from scripts.release import sbom
from scripts.release.package import HOME, NAME, Package

ROOT = Path(__file__).parents[2]
_HERE = Path(__file__).parent
#: Before each start: versions that no process uses any more are removed.
_UNIT = f"[Service]\nExecStartPre=-{HOME}/package/maintain sweep\n"


def make(package: Package, into: Path) -> None:
    """Raises ValueError for a wheel of a form that no package of ours has."""
    _environment(package, into)
    _node_files(package, into)
    _put(into / "usr/lib/systemd/system/musterd.service.d/10-package.conf", _UNIT.encode())
    _put(into / str(HOME)[1:] / "package/maintain", (_HERE / "maintain.sh").read_bytes(), 0o755)
    about = into / "usr/share/doc" / NAME
    _put(about / "copyright", (ROOT / "LICENSE").read_bytes())
    _put(about / "changelog.gz", packed((ROOT / "CHANGELOG.md").read_bytes()))
    _put(about / "sbom.cdx.json", sbom.text(package).encode())
    _settle(into, package.epoch)


def packed(content: bytes) -> bytes:
    """gzip's, without a time."""
    return gzip.compress(content, 9, mtime=0)


def _environment(package: Package, into: Path) -> None:
    place = into / str(package.owned)[1:]
    site = place / f"lib/python{package.python}/site-packages"
    for wheel in package.wheels:
        _unpack(wheel, site, place / "bin", f"{HOME}/{package.id}/bin/python")
    _put(place / "package-id", f"{package.id}\n".encode())
    # Without `version`: of which patch release it is changes on the node.
    _put(place / "pyvenv.cfg", b"home = /usr/bin\ninclude-system-site-packages = false\n")
    for name, target in (("python", f"/usr/bin/python{package.python}"), ("python3", "python")):
        (place / "bin" / name).symlink_to(target)


def _unpack(wheel: Path, site: Path, programs: Path, python: str) -> None:
    """As pip would, but for scripts in Python, which none of the wheels has."""
    with zipfile.ZipFile(wheel) as archive:
        for info in archive.infolist():
            first, _, rest = info.filename.partition("/")
            path = site / info.filename
            if first.endswith(".data"):
                kind, _, name = rest.partition("/")
                if kind not in ("scripts", "purelib", "platlib"):
                    raise ValueError(f"{wheel.name}: cannot place {info.filename}")
                path = (programs if kind == "scripts" else site) / name
            if not info.is_dir():
                executable = (info.external_attr >> 16) & 0o111 or path.parent == programs
                _put(path, archive.read(info), 0o755 if executable else 0o644)
        points = next((name for name in archive.namelist() if name.endswith(".dist-info/entry_points.txt")), "")
        for name, place in _scripts(archive.read(points).decode() if points else "").items():
            module, _, function = place.partition(":")
            text = f"#!{python}\nimport sys\n\nfrom {module} import {function}\n\nsys.exit({function}())\n"
            if name in ("muster", "musterd"):
                _put(programs / name, text.encode(), 0o755)


def _scripts(entry_points: str) -> dict[str, str]:
    parsed = ConfigParser(delimiters=("=",))
    parsed.optionxform = str  # type: ignore[assignment,method-assign]  # names keep their case
    parsed.read_string(entry_points)
    return dict(parsed["console_scripts"]) if parsed.has_section("console_scripts") else {}


def _node_files(package: Package, into: Path) -> None:
    """Units, man pages and completions, written by the code that is packed."""
    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(package.own) as archive:
            archive.extractall(folder)
        subprocess.run(
            [sys.executable, "-P", str(_HERE / "node_files.py"), str(into), f"{HOME}/current/bin"],
            env=os.environ | {"PYTHONPATH": folder, "PYTHONDONTWRITEBYTECODE": "1"},
            check=True,
        )
    for page in (into / "usr/share/man").rglob("muster*.[0-9]"):
        _put(page.with_name(f"{page.name}.gz"), packed(page.read_bytes()))
        page.unlink()


def _put(path: Path, content: bytes, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    path.chmod(mode)


def _settle(root: Path, epoch: int) -> None:
    """Whatever umask and time it was made with."""
    for path in (root, *root.rglob("*")):
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o755)
        os.utime(path, (epoch, epoch), follow_symlinks=False)


def clear(folder: Path) -> Path:
    """The folder, made anew."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
