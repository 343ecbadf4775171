"""A .rpm, by rpmbuild."""

import os
import subprocess
import tempfile
from pathlib import Path

from scripts.release.package import DESCRIPTION, HOME, LICENSE, MAINTAINER, NAME, SUMMARY, Package

#: Nothing is altered, stripped, or searched for libraries: what wheels bring is theirs alone, and whole.
_SPEC = """\
%global __os_install_post %{{nil}}
%global debug_package %{{nil}}
%global _build_id_links none
%global source_date_epoch_from_changelog 0
%global use_source_date_epoch_as_buildtime 1
%global clamp_mtime_to_source_date_epoch 1
%global _buildhost release
%global _binary_payload {payload}

Name: {name}
Version: {version}
Release: {release}
Summary: {summary}
License: {license}
Vendor: {vendor}
AutoReqProv: no
Requires: /usr/bin/python{python}
Requires: glibc >= {glibc}
{libraries}
Requires(post): coreutils, grep
Recommends: systemd, dbus

%description
{description}
%install
cp -a {tree}/. %{{buildroot}}/

%post
{home}/package/maintain installed {id}

%preun
if [ "$1" = 0 ]; then {home}/package/maintain removing; fi

%postun
if [ -d /run/systemd/system ]; then systemctl daemon-reload || :; fi

%verifyscript
{home}/package/maintain check

%files
%defattr(-,root,root,-)
{files}
"""


def build(package: Package, tree: Path, into: Path, compress: bool = True) -> Path:
    """Of the files in `tree`."""
    spec = _SPEC.format(
        payload="w9.zstdio" if compress else "w0.ufdio",
        name=NAME,
        version=package.sorted_version,
        release=package.rpm_release,
        summary=SUMMARY,
        license=LICENSE,
        vendor=MAINTAINER,
        python=package.python,
        glibc=package.glibc,
        libraries="\n".join(f"Requires: {name}()(64bit)" for name in package.libraries),
        description=DESCRIPTION,
        tree=tree,
        home=HOME,
        id=package.id,
        files="\n".join(_files(tree)),
    )
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "muster-agent.spec").write_text(spec)
        subprocess.run(
            [
                *("rpmbuild", "-bb", "--quiet", f"--target={package.machine}-linux"),
                *(f"--define=_topdir {folder}", f"--define=_rpmdir {into}", "--define=_rpmfilename %{NVRA}.rpm"),
                f"{folder}/muster-agent.spec",
            ],
            env=os.environ | {"SOURCE_DATE_EPOCH": str(package.epoch)},
            check=True,
        )
    return into / f"{NAME}-{package.sorted_version}-{package.rpm_release}.{package.machine}.rpm"


def _files(tree: Path) -> list[str]:
    """Each file, and the folders that are muster's alone."""
    lines = []
    for path in sorted(tree.rglob("*")):
        name = f"/{path.relative_to(tree)}"
        if not path.is_dir() or path.is_symlink():
            lines.append(f'"{name}"')
        elif path.relative_to(tree).is_relative_to(str(HOME)[1:]) or "muster" in path.name:
            lines.append(f'%dir "{name}"')
    return lines
