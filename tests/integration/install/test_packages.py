"""The packages: what is in wheel and sdist, that each installs and works, and which build they say they are."""

import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

import muster.agent

REPOSITORY = Path(__file__).parents[3]
FOLDERS = ("agent", "supervisors", "probes")
PACKAGES = (*FOLDERS, "proto/muster")
PROGRAM = "supervisors/launch/creation/muster-spawn"
THEIR_PROJECT = f"""
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "agent"
version = "1"
[tool.hatch.build.targets.wheel]
packages = {list(FOLDERS)}
"""

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("packages")]


def run(*command: str | Path, cwd: Path | None = None, **environ: str) -> str:
    environ = dict(os.environ) | environ
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=100, cwd=cwd, env=environ)
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout.strip()


def build(source: Path, into: Path, kind: str, **environ: str) -> Path:
    """With the build backend that is here: no network."""
    run(sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", into, cwd=source, **environ)
    (found,) = into.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return found


def unpacked(sdist: Path, into: Path) -> Path:
    with tarfile.open(sdist) as tar:
        tar.extractall(into, filter="data")
    (folder,) = into.iterdir()
    return folder


def said_build(wheel: Path) -> str:
    with zipfile.ZipFile(wheel) as packed:
        return packed.read("muster/agent/build.txt").decode().strip()


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel and the sdist of this tree."""
    folder = tmp_path_factory.mktemp("packages")
    return build(REPOSITORY, folder / "wheel", "wheel"), build(REPOSITORY, folder / "sdist", "sdist")


def sources() -> set[str]:
    """Of the packages, as they are in the tree."""
    return {
        str(path.relative_to(REPOSITORY))
        for package in PACKAGES
        for path in (REPOSITORY / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_what_is_in_the_wheel(packages: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(packages[0]) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
        metadata = {name.partition(".dist-info/")[2]: name for name in wheel.namelist() if ".dist-info/" in name}
        assert {"licenses/LICENSE", "METADATA", "entry_points.txt"} <= metadata.keys()
        assert f"Version: {muster.agent.__version__}\n" in wheel.read(metadata["METADATA"]).decode()
        points = wheel.read(metadata["entry_points.txt"]).decode().partition("[torchx.schedulers]\n")[2].splitlines()
        assert points[0].startswith("local_docker = torchx."), "what TorchX takes without -s stays what it was"
        assert "muster = muster.torchx.scheduler:create_scheduler" in points
    units = {f"muster/agent/units/{name}" for name in ("README.md", "muster.slice", "musterd.service")}
    units |= {f"muster/agent/units/{folder}/muster.conf" for folder in ("sysusers.d", "tmpfiles.d")}
    ours = {name.removeprefix("proto/") if name.startswith("proto/") else f"muster/{name}" for name in sources()}
    assert names == ours | units | {"muster/agent/build.txt", "muster/py.typed"}


def test_what_is_in_the_sdist(packages: tuple[Path, Path], tmp_path: Path) -> None:
    with tarfile.open(packages[1]) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
        assert all(member.uid == member.gid == 0 for member in tar.getmembers())
    needed = (sources() - {PROGRAM}) | {
        "LICENSE",
        "README.md",
        "pyproject.toml",
        "hatch_build.py",
        "PKG-INFO",
        "agent/build.txt",
    }
    needed |= {str(path.relative_to(REPOSITORY)) for path in (REPOSITORY / "systemd").rglob("*") if path.is_file()}
    needed |= {
        "Makefile",
        "requirements.lock",
        "requirements-dev.lock",
        "tests/conftest.py",
        "docs/concepts/security.md",
    }
    assert needed <= names
    junk = re.compile(
        r"(^|/)(__pycache__|\.venv.*|\.git|\.ci|\.[a-z]+_cache|\.hypothesis|dist|build|shared)(/|$)|\.pyc$|\.pem$"
    )
    assert [name for name in names if junk.search(name) or name == PROGRAM] == []


@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_it_works_by_itself(packages: tuple[Path, Path], kind: str, tmp_path: Path) -> None:
    """Installed by pip into an environment of its own, which sees what muster depends on, and not this tree."""
    package = packages[0 if kind == "wheel" else 1]
    venv = tmp_path / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", venv)
    (site,) = venv.glob("lib/python*/site-packages")
    # A folder on the path; an editable install of this tree would need that its own .pth were read.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    # Somebody's own packages of these names, in an editable project called agent, installed before or after.
    theirs = str(tmp_path / "theirs")
    for name in FOLDERS:
        (tmp_path / "theirs" / name).mkdir(parents=True)
        (tmp_path / "theirs" / name / "__init__.py").write_text("print('somebody else')\n")
    (tmp_path / "theirs/pyproject.toml").write_text(THEIR_PROJECT)
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", "--python", venv / "bin/python")
    steps: list[tuple[str | Path, ...]] = [("-e", theirs), (package,)]
    for step in steps if kind == "wheel" else reversed(steps):
        run(*pip, "install", "--no-deps", "--no-index", "--no-build-isolation", *step, PIP_CONSTRAINT="")
    programs = venv / "bin"
    where = run(
        programs / "python", "-c", "import muster.agent; print(muster.agent.__file__)", cwd=tmp_path, PYTHONPATH=""
    )
    assert Path(where).is_relative_to(venv)
    shown = f"{muster.agent.__version__} ({said_build(packages[0])})"
    assert run(programs / "muster", "--version", cwd=tmp_path) == f"muster {shown}"
    assert run(programs / "musterd", "--version", cwd=tmp_path) == f"musterd {shown}"
    # Theirs are neither run nor hidden from their program: installed, and first on the import path.
    (tmp_path / "root").mkdir()
    (tmp_path / "root/musterd.toml").write_text('[checks]\npolicy = "off"\n[health]\npolicy = "off"\n')
    root = str(tmp_path / "root")
    look = ("muster", "run", "--standalone", "--", str(programs / "python"), "-c", "import agent")
    assert "somebody else" in run(programs / look[0], *look[1:], cwd=tmp_path, MUSTER_ROOT=root, PYTHONPATH="")
    for expected, *command in (
        ("musterd.toml", "musterd", "--check-config"),
        ("hello", "muster", "run", "--standalone", "--ranks", "2", "--", "echo", "hello"),
        ("somebody else", *look),
        ("kernel-log", "muster", "check", "--list"),
        ('"item": "dns"', "muster", "check", "dns", "-o", "json"),
    ):
        said = run(programs / command[0], *command[1:], cwd=tmp_path, MUSTER_ROOT=root, PYTHONPATH=theirs)
        assert expected in said and (expected == "somebody else" or "somebody else" not in said)
    with zipfile.ZipFile(packages[0]) as wheel:
        installed = {str(path.relative_to(site)) for path in (site / "muster").rglob("*") if path.suffix != ".pyc"}
        assert {name for name in wheel.namelist() if name.startswith("muster/")} <= installed


class TestProgram:
    """muster-spawn: which wheels have it, and for which machine."""

    def wheel(self, into: Path, **environ: str) -> Path:
        return build(REPOSITORY, into, "wheel", SOURCE_DATE_EPOCH="1767225600", **environ)

    @pytest.mark.parametrize(("machine", "number"), [("x86_64", 62), ("aarch64", 183)])
    def test_a_wheel_for_one_machine_has_it(self, tmp_path: Path, machine: str, number: int) -> None:
        """Static, so one tag does for glibc and musl; the same bytes each time."""
        pytest.importorskip("ziglang", reason="there is no zig for this architecture")
        made = self.wheel(tmp_path / "one", MUSTER_WHEEL=machine)
        tags = f"py3-none-manylinux_2_17_{machine}.manylinux2014_{machine}.musllinux_1_1_{machine}"
        assert made.name.endswith(f"-{tags}.whl")
        with zipfile.ZipFile(made) as wheel:
            (info,) = (one for one in wheel.infolist() if one.filename.endswith("/muster-spawn"))
            program = wheel.read(info)
            metadata = next(name for name in wheel.namelist() if name.endswith(".dist-info/WHEEL"))
            assert "Root-Is-Purelib: false" in wheel.read(metadata).decode()
        assert info.filename == f"muster/{PROGRAM}" and (info.external_attr >> 16) & 0o777 == 0o755
        assert program[:5] == b"\x7fELF\x02" and int.from_bytes(program[18:20], "little") == number
        assert b"/ld-" not in program and len(program) < 20_000
        assert self.wheel(tmp_path / "another", MUSTER_WHEEL=machine).read_bytes() == made.read_bytes()

    def test_a_wheel_for_any_machine_has_none(self, tmp_path: Path) -> None:
        """Nor that of the checkout."""
        made = self.wheel(tmp_path, MUSTER_WHEEL="any")
        assert made.name.endswith("-py3-none-any.whl")
        with zipfile.ZipFile(made) as wheel:
            names = wheel.namelist()
        assert f"muster/{PROGRAM}.c" in names and f"muster/{PROGRAM}" not in names

    def test_another_machine_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(AssertionError, match=r"MUSTER_WHEEL is riscv64: it must be one of x86_64, aarch64, any"):
            self.wheel(tmp_path, MUSTER_WHEEL="riscv64")

    @pytest.mark.parametrize("compiler", ["cc", "no-such-compiler"])
    def test_an_sdist_is_built_with_the_nodes_own_compiler(
        self, packages: tuple[Path, Path], tmp_path: Path, compiler: str
    ) -> None:
        """Where there is none, without the program."""
        tree = unpacked(packages[1], tmp_path / "unpacked")
        assert not (tree / PROGRAM).exists()
        (tmp_path / "hidden").mkdir()
        (tmp_path / "hidden/sitecustomize.py").write_text("import sys\nsys.modules['ziglang'] = None\n")
        made = build(tree, tmp_path / "wheel", "wheel", CC=compiler, PYTHONPATH=str(tmp_path / "hidden"))
        has_compiler = shutil.which(compiler) is not None and platform.machine() in ("x86_64", "aarch64")
        with zipfile.ZipFile(made) as wheel:
            assert (f"muster/{PROGRAM}" in wheel.namelist()) is has_compiler
        assert made.name.endswith("-any.whl") is not has_compiler

    def test_that_of_the_checkout_is_built_from_its_source(self, tmp_path: Path) -> None:
        """`make` builds it again when the source changes."""
        if not (REPOSITORY / PROGRAM).exists():
            pytest.skip("there is no muster-spawn for this architecture")
        tree = tmp_path / "tree"
        (tree / PROGRAM).parent.mkdir(parents=True)
        shutil.copy(REPOSITORY / f"{PROGRAM}.c", tree / f"{PROGRAM}.c")
        shutil.copy(REPOSITORY / "hatch_build.py", tree)
        run(sys.executable, "hatch_build.py", cwd=tree)
        assert (tree / PROGRAM).read_bytes() == (REPOSITORY / PROGRAM).read_bytes(), "make setup"


class TestBuild:
    """What a package says of the tree it was made of."""

    @pytest.fixture
    def tree(self, packages: tuple[Path, Path], tmp_path: Path) -> Path:
        """The tree as the sdist has it."""
        return unpacked(packages[1], tmp_path / "unpacked")

    @pytest.fixture
    def checkout(self, tree: Path) -> Path:
        (tree / "agent/build.txt").unlink()
        for name in FOLDERS:
            (tree / "proto/muster" / name).symlink_to(Path("../..", name))
        self.git(tree, "init", "-q")
        self.commit(tree)
        return tree

    def git(self, tree: Path, *arguments: str) -> str:
        who = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
        return run("git", *who, *arguments, cwd=tree)

    def commit(self, tree: Path) -> str:
        self.git(tree, "add", "-A")
        self.git(tree, "commit", "-q", "-m", "a change", "--date", "2026-05-03T12:00:00Z")
        return self.git(tree, "log", "-1", "--abbrev=9", "--format=%h of %cs")

    def wheel(self, tree: Path, **environ: str) -> str:
        into = tree.parent / f"wheels{len(list(tree.parent.iterdir()))}"
        return said_build(build(tree, into, "wheel", **environ))

    def test_of_an_sdist_that_of_the_sdist(self, packages: tuple[Path, Path], tree: Path) -> None:
        assert self.wheel(tree) == (tree / "agent/build.txt").read_text().strip() == said_build(packages[0])

    def test_of_a_commit(self, checkout: Path) -> None:
        commit = self.git(checkout, "log", "-1", "--abbrev=9", "--format=%h of %cs")
        assert re.fullmatch("[0-9a-f]{9,} of [0-9-]{10}", commit)
        assert self.wheel(checkout) == commit
        # A hook of git's, in whose environment another repository is named.
        assert self.wheel(checkout, GIT_DIR="/nowhere/.git") == commit
        (checkout / "agent/extra.py").write_text("")
        assert self.wheel(checkout) == f"{commit}, changed"

    def test_an_sdists_file_in_a_checkout_is_refused(self, checkout: Path) -> None:
        (checkout / "agent/build.txt").write_text("abc of 2020-01-01\n")
        with pytest.raises(AssertionError, match="does not belong into a checkout"):
            self.wheel(checkout)

    def test_in_somebody_elses_repository(self, tree: Path) -> None:
        """Its commits say nothing of what lies there."""
        (tree / "agent/build.txt").unlink()
        self.git(tree.parent, "init", "-q")
        self.git(tree.parent, "commit", "-q", "--allow-empty", "-m", "another project")
        assert self.wheel(tree, SOURCE_DATE_EPOCH="1767225600") == "source of 2026-01-01"

    def test_of_an_archive(self, checkout: Path, tmp_path: Path) -> None:
        """`git archive` puts the commit into the build hook."""
        commit = self.git(checkout, "log", "-1", "--format=%h of %cs")
        (tmp_path / "archive").mkdir()
        (checkout / ".gitattributes").write_text((REPOSITORY / ".gitattributes").read_text())
        commit = self.commit(checkout)
        run("sh", "-c", f"git archive --prefix=a/ HEAD | tar x -C {tmp_path}/archive", cwd=checkout)
        assert self.wheel(tmp_path / "archive/a")[:7] == commit[:7]

    def test_of_a_tree_that_is_edited(self, checkout: Path, tree: Path) -> None:
        """An editable install runs the tree itself."""
        commit = self.git(checkout, "log", "-1", "--format=%H")
        shown = (sys.executable, "-m", "muster.agent.cli.main", "--version")
        path = {"PYTHONPATH": f"{checkout}/proto"}
        assert run(*shown, cwd=checkout, **path) == f"muster {muster.agent.__version__} ({commit[:9]}, editable)"
        self.git(checkout, "pack-refs", "--all")
        assert run(*shown, cwd=checkout, **path) == f"muster {muster.agent.__version__} ({commit[:9]}, editable)"
        (checkout / ".git").rename(checkout / "git")
        assert run(*shown, cwd=checkout, **path) == f"muster {muster.agent.__version__} (editable)"
        (checkout / "agent/build.txt").write_text("abc of 2020-01-01\n")
        assert run(*shown, cwd=checkout, **path) == f"muster {muster.agent.__version__} (abc of 2020-01-01, editable)"
