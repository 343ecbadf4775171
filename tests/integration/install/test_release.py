"""What `make release` publishes: the same bytes from the same sources, a true SBOM, notes of the version."""

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path

import pytest

import muster.agent
from scripts.release import deb, libraries, notes, package, rpm, sbom, tree

REPOSITORY = Path(__file__).parents[3]
EPOCH = 1795846000

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("packages")]


def sources(into: Path) -> Path:
    """A copy of this tree, as it is, at another time."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=REPOSITORY, check=True, capture_output=True, text=True).stdout
    for name in filter(None, names.split("\0")):
        path = into / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if (REPOSITORY / name).exists():
            shutil.copyfile(REPOSITORY / name, path, follow_symlinks=False)
            os.utime(path, (time.time() - 1e6, time.time() - 1e6), follow_symlinks=False)
    return into


def published(source: Path, into: Path, umask: int) -> dict[str, bytes]:
    """Wheels, sdists and packages (of the agent alone) that are made of a tree."""
    before = os.umask(umask)
    try:
        for place, folder in ((source, into), (source / "proto", into / "client")):
            subprocess.run(
                [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-t", "sdist", "-d", folder],
                cwd=place,
                env=os.environ | {"SOURCE_DATE_EPOCH": str(EPOCH)},
                check=True,
                capture_output=True,
            )
        made = package.of_folder(into, "3.11", "x86_64", 1, EPOCH)
        tree.make(made, into / "tree")
        deb.build(made, into / "tree", into)
        if shutil.which("rpmbuild"):
            rpm.build(made, into / "tree", into)
    finally:
        os.umask(before)
    return {path.name: path.read_bytes() for path in (*into.iterdir(), *(into / "client").iterdir()) if path.is_file()}


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="needs dpkg-deb")
def test_the_same_sources_give_the_same_bytes(tmp_path: Path) -> None:
    """In another folder, at another time, with another umask; and what is in them is for every user."""
    one = published(sources(tmp_path / "one"), tmp_path / "dist", 0o022)
    other = published(sources(tmp_path / "elsewhere/another"), tmp_path / "dist2", 0o077)
    assert len(one) >= 5
    assert one.keys() == other.keys()
    assert [name for name in one if one[name] != other[name]] == []
    (made,) = (tmp_path / "dist2").glob("*.deb")
    listed = subprocess.run(["dpkg-deb", "-c", made], check=True, capture_output=True, text=True).stdout.splitlines()
    assert [line for line in listed if not re.match(r"([d-]rw[x-]r-[x-]r-[x-]|lrwxrwxrwx) root/root ", line)] == []
    for sdist in (tmp_path / "dist2").rglob("*.tar.gz"):
        with tarfile.open(sdist) as archive:
            assert {member.mode & 0o777 for member in archive} <= {0o644, 0o755, 0o777}


def test_the_sbom_names_what_is_in_the_package(tmp_path: Path) -> None:
    for name, version, more in (
        ("muster_agent", "1.2rc1", "License-Expression: Apache-2.0\nRequires-Dist: One>=1; python_version < '3.12'\n"),
        ("one", "1.0", "Classifier: License :: OSI Approved :: MIT License\nRequires-Dist: absent; extra == 'x'\n"),
    ):
        with zipfile.ZipFile(tmp_path / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
            head = f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n"
            wheel.writestr(f"{name}-{version}.dist-info/METADATA", head + more)
    made = package.of_folder(tmp_path, "3.11", "aarch64", 2, EPOCH)
    assert made.debian_version == "1.2~rc1-2+py3.11" and made.stem.endswith("_arm64")
    text = sbom.text(made)
    found = json.loads(text)
    own, one = "pkg:pypi/muster-agent@1.2rc1", "pkg:pypi/one@1.0"
    assert found["metadata"]["component"]["bom-ref"] == own
    assert [(each["purl"], each["licenses"]) for each in found["components"]] == [
        (one, [{"license": {"name": "MIT License"}}])
    ]
    assert found["dependencies"] == [{"ref": own, "dependsOn": [one]}, {"ref": one, "dependsOn": []}]
    assert sbom.text(package.of_folder(tmp_path, "3.11", "aarch64", 2, EPOCH)) == text
    schema = pytest.importorskip("cyclonedx.validation.json", reason="needs cyclonedx-python-lib[json-validation]")
    from cyclonedx.schema import SchemaVersion

    assert schema.JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None


def test_libraries_of_the_system_that_wheels_need(tmp_path: Path) -> None:
    """A real module of gRPC's, beside one that the wheel brings, and one that no package is known for."""
    compiled = importlib.import_module("grpc._cython.cygrpc").__file__
    assert compiled is not None

    def wheel(name: str, needed: bytes, *brought: str) -> Path:
        content = Path(compiled).read_bytes().replace(b"libstdc++.so.6", needed)
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr("one/module.so", content)
            for other in brought:
                archive.writestr(other, b"")
        return tmp_path / name

    plain = wheel("plain.whl", b"libstdc++.so.6")
    whole = wheel("whole.whl", b"libother1.so.6", "one.libs/libother1.so.6")
    assert libraries.needed([plain, whole]) == ["libstdc++.so.6"]
    assert libraries.needed([whole]) == []
    with pytest.raises(ValueError, match=r"no package is known for libother1\.so\.6: add it to libraries\.py"):
        libraries.needed([wheel("odd.whl", b"libother1.so.6")])


def test_notes_are_the_changelogs(tmp_path: Path) -> None:
    changelog = "# Changelog\n\n## Unreleased\n\n- new\n\n## 1.2.0 - 2026-05-03\n\n- of 1.2\n\n## 1.1.0\n\n- old\n"
    text = notes.text(changelog, "1.2.0", {"a.whl": "abc"})
    assert text.startswith("# muster 1.2.0\n\n- of 1.2\n\n## Files") and "| `a.whl` | `abc` |" in text
    assert notes.text(changelog, "1.3.0", {}).startswith("# muster 1.3.0, before its release\n\n- new\n")
    with pytest.raises(ValueError, match=r"neither a section 2\.0 nor Unreleased"):
        notes.text("# Changelog\n", "2.0", {})
    own = (REPOSITORY / "CHANGELOG.md").read_text()
    assert "### Added" in notes.text(own, muster.agent.__version__, {})
