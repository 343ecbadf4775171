"""The Debian tree that machines boot and that images are made of: made once by debootstrap, from the mirror that this
machine's own apt uses, and kept in the user's cache."""

import os
import shutil
import subprocess
import zlib
from pathlib import Path

#: What is in it, beyond the smallest. Of a machine, all but the last; of an image's base, Python and the last.
PACKAGES = "systemd,systemd-sysv,dbus,python3,python3-venv,procps,man-db,mandoc,zsh,fish,binutils,python3-apt,rpm"
#: Where programs of root's are, too.
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def missing(*tools: str) -> str:
    """Why there can be no tree here, or what of these tools is missing; empty where nothing is."""
    if os.geteuid() != 0:
        return "needs root"
    return next(
        (f"needs {tool}" for tool in (*tools, "debootstrap", "apt-get") if not shutil.which(tool, path=PATH)), ""
    )


def _cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home, "muster-tests")


def _of_os(key: str) -> str:
    for line in Path("/etc/os-release").read_text().splitlines():
        name, _, value = line.partition("=")
        if name == key:
            return value.strip('"')
    raise AssertionError(f"/etc/os-release says nothing of {key}")


def tree() -> Path:
    """The tree, made where it is not there yet: a minute and 300 MB."""
    there = _cache() / f"{_of_os('VERSION_CODENAME')}-{zlib.crc32(PACKAGES.encode()):08x}"
    if there.exists():
        return there
    there.parent.mkdir(parents=True, exist_ok=True)
    listed = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI)"], check=True, capture_output=True, text=True
    ).stdout.split()
    new = there.with_name(f"{there.name}.{os.getpid()}")
    try:
        subprocess.run(
            ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", _of_os("VERSION_CODENAME"), new, listed[0]],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        new.rename(there)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return there
