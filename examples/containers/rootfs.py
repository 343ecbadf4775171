"""Copies what a command needs of a Debian or Ubuntu tree into another folder: packages, what these depend on, and the
record of them for scanners. It runs in a stage of the Containerfile; what the base has beside that stays out.

Usage: python3 rootfs.py FOLDER PACKAGE...
"""

import os
import re
import shutil
import stat
import sys
from pathlib import Path

_DPKG = Path("/var/lib/dpkg")
#: Named as dependencies, and needed by the package manager alone.
_NOT = {"debconf", "debianutils", "dpkg", "gcc-12-base", "init-system-helpers", "install-info", "perl-base", "tar"}
#: Never read in a container without a package manager; the licences of /usr/share/doc stay.
_LEFT_OUT = re.compile(
    r"/usr/share/(bash-completion|bug|info|lintian|locale|man)/|/usr/share/doc/.*/(?!copyright$)[^/]*$"
    r"|/usr/lib/[^/]+/gconv/|/usr/lib/(locale|python3\.\d+/(lib2to3|pydoc_data))/"
)
#: Made by the packages' scripts, so no package lists them.
_MADE = (
    *("/etc/passwd", "/etc/group", "/etc/shadow", "/etc/gshadow", "/etc/nsswitch.conf", "/etc/localtime", "/bin/sh"),
    "/etc/ssl/certs/ca-certificates.crt",
)

Stanza = dict[str, str]


def installed() -> dict[str, Stanza]:
    """The packages of this tree by name, each as the fields of its entry; "" is the entry itself."""
    found = {}
    for entry in (_DPKG / "status").read_text().split("\n\n"):
        fields = dict(re.findall(r"^([A-Za-z-]+): (.*)$", entry, re.MULTILINE))
        if fields.get("Status", "").endswith(" installed"):
            found[fields["Package"]] = fields | {"": entry.strip("\n")}
    return found


def needed(packages: dict[str, Stanza], roots: list[str]) -> list[str]:
    """The names of `roots` and of all that they depend on, sorted. Of alternatives the first one that is installed.
    Raises SystemExit where one is missing."""
    provided = {
        name.split()[0]: package
        for package, fields in packages.items()
        for name in fields.get("Provides", "").split(", ")
        if name
    }
    found: set[str] = set()
    left = list(roots)
    while left:
        name = left.pop()
        if name in found or name in _NOT:
            continue
        if name not in packages:
            raise SystemExit(f"rootfs.py: {name} is not installed in the base, and is needed: install it there")
        found.add(name)
        for field in ("Pre-Depends", "Depends"):
            for wanted in filter(None, packages[name].get(field, "").split(", ")):
                choices = [re.split(r"[ :(]", choice)[0] for choice in wanted.split(" | ")]
                real = [choice if choice in packages else provided.get(choice, "") for choice in choices]
                left.append(next(filter(None, real), choices[0]))
    return sorted(found)


def paths(name: str, fields: Stanza) -> list[str]:
    """What a package consists of."""
    lists = (_DPKG / "info" / f"{name}.list", _DPKG / "info" / f"{name}:{fields['Architecture']}.list")
    return next(path for path in lists if path.exists()).read_text().splitlines()


def copy(path: str, into: Path) -> None:
    """A file, link or folder, without the contents of a folder, with owner and mode. One that is missing is skipped: a
    slim base has no documentation."""
    if path in ("/", "/.") or not os.path.lexists(path):
        return
    above = os.path.realpath(os.path.dirname(path))  # /bin is a link to /usr/bin
    copy(above, into)
    path = os.path.join(above, os.path.basename(path))
    there = into / path.lstrip("/")
    if os.path.lexists(there):
        return
    is_folder = stat.S_ISDIR(os.lstat(path).st_mode)
    if is_folder:
        there.mkdir()
    else:
        shutil.copy2(path, there, follow_symlinks=False)
    shutil.copystat(path, there, follow_symlinks=False)
    owner = os.lstat(path)
    os.chown(there, owner.st_uid, owner.st_gid, follow_symlinks=False)
    if not there.is_symlink():
        there.chmod(stat.S_IMODE(owner.st_mode))  # again: chown takes setuid


def main(folder: str, roots: list[str]) -> int:
    """Returns the exit code."""
    into = Path(folder)
    into.mkdir(parents=True)
    packages = installed()
    names = needed(packages, roots)
    for entry in sorted(os.scandir("/"), key=lambda entry: entry.name):
        if entry.is_symlink():
            copy(entry.path, into)
    for name in names:
        for path in paths(name, packages[name]):
            if not _LEFT_OUT.search(path):
                copy(path, into)
    for path in _MADE:
        copy(path, into)
    (into / "var/lib/dpkg").mkdir(parents=True, exist_ok=True)
    (into / "var/lib/dpkg/status").write_text("\n\n".join(packages[name][""] for name in names) + "\n")
    print(f"rootfs.py: {len(names)} packages: {' '.join(names)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
