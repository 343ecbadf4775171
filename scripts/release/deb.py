"""A .deb, by dpkg-deb."""

import os
import shutil
import subprocess
from pathlib import Path

from scripts.release import libraries
from scripts.release.package import DEBIAN_MACHINES, DESCRIPTION, MAINTAINER, NAME, SUMMARY, Package

#: Every distribution with Python 3.11 or newer reads it. One thread: how many there are could change the bytes.
_ZSTD = ("-Zzstd", "-z9", "--threads-max=1")
#: dpkg's names of what happens are its own; all of the work is in maintain.sh.
_POSTINST = """\
#!/bin/sh
set -e
case "$1" in
  configure | abort-upgrade | abort-remove | abort-deconfigure) /opt/muster/package/maintain installed @ID@ ;;
esac
"""
_PRERM = """\
#!/bin/sh
set -e
# An upgrade leaves the daemon running until the new version is complete.
if [ "$1" = remove ]; then /opt/muster/package/maintain removing; fi
"""
_POSTRM = """\
#!/bin/sh
set -e
# The node's: dpkg removes each folder of its packages that is empty.
[ -e /opt ] || [ -L /opt ] || mkdir -m 755 /opt
if [ "$1" = purge ]; then
  if command -v deb-systemd-helper >/dev/null; then deb-systemd-helper purge musterd.service >/dev/null; fi
  rm -f /etc/muster/musterd.toml
  if [ -d /etc/muster ]; then rmdir --ignore-fail-on-non-empty /etc/muster; fi
  for folder in /etc/muster /var/lib/muster /var/log/muster; do
    if [ -e "$folder" ]; then echo "muster-agent: $folder stays: remove it by hand when nobody needs it" >&2; fi
  done
fi
if [ -d /run/systemd/system ] && [ "$1" != upgrade ]; then systemctl daemon-reload || true; fi
"""


def build(package: Package, tree: Path, into: Path, compress: bool = True) -> Path:
    """Of the files in `tree`, which are changed for a while."""
    control, zsh = tree / "DEBIAN", tree / "usr/share/zsh"
    size = sum(path.lstat().st_size for path in tree.rglob("*") if not path.is_dir())
    control.mkdir()
    depends = [
        f"python{package.python}",
        f"libc6 (>= {package.glibc})",
        *(libraries.DEBIAN[name] for name in package.libraries),
    ]
    description = "".join(f" {line}\n" for line in DESCRIPTION.splitlines())
    (control / "control").write_text(
        f"Package: {NAME}\nVersion: {package.debian_version}\nArchitecture: {DEBIAN_MACHINES[package.machine]}\n"
        f"Maintainer: {MAINTAINER}\nSection: admin\nPriority: optional\nInstalled-Size: {size >> 10}\n"
        f"Depends: {', '.join(depends)}\nRecommends: systemd, dbus\n"
        f"Description: {SUMMARY}\n{description}"
    )
    for name, script in (("postinst", _POSTINST), ("prerm", _PRERM), ("postrm", _POSTRM)):
        (control / name).write_text(script.replace("@ID@", package.id))
        (control / name).chmod(0o755)
    (control / "control").chmod(0o644)
    control.chmod(0o755)
    # Debian's zsh looks there.
    (zsh / "site-functions").rename(zsh / "vendor-completions")
    made = into / f"{package.stem}.deb"
    subprocess.run(
        ["dpkg-deb", "--root-owner-group", *(_ZSTD if compress else ("-Znone",)), "--build", str(tree), str(made)],
        env=os.environ | {"SOURCE_DATE_EPOCH": str(package.epoch)},
        check=True,
        stdout=subprocess.DEVNULL,
    )
    (zsh / "vendor-completions").rename(zsh / "site-functions")
    shutil.rmtree(control)
    return made
