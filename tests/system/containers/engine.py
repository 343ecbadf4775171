"""Images by buildah and containers by podman and runc, whose storage, volumes and configuration are one folder.

There is no registry: the base is the Debian tree of debian.py, as an image.
"""

import json
import os
import resource
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.conftest import eventually
from tests.system import debian

REPOSITORY = Path(__file__).parents[3]
BASE, IMAGE, ASCEND = "localhost/base", "localhost/muster", "localhost/muster-ascend"
#: Of the tree, what an image has no use for.
_LEFT_OUT = (
    *("./usr/share/doc/*/*.gz", "./usr/share/fish", "./usr/share/locale", "./usr/share/man"),
    *("./var/cache", "./var/lib/apt"),
)
#: Each is tried in turn: overlayfs cannot lie on every file system.
_DRIVERS = ("overlay", "vfs")


def missing() -> str:
    """Why there can be no containers here; empty where there can be."""
    return debian.missing("buildah", "podman", "runc")


def _limits() -> str:
    """No higher than those of this process, and of podman's, which lowers its own to what the kernel has of PIDs: to
    raise one, as an engine does otherwise, takes CAP_SYS_RESOURCE."""
    most = {"nofile": 1 << 20, "nproc": int(Path("/proc/sys/kernel/pid_max").read_text())}
    names = {"nofile": resource.RLIMIT_NOFILE, "nproc": resource.RLIMIT_NPROC}
    for name, number in names.items():
        hard = resource.getrlimit(number)[1]
        most[name] = most[name] if hard == resource.RLIM_INFINITY else min(hard, most[name])
    return json.dumps([f"{name}={limit}:{limit}" for name, limit in most.items()])


class Engine:
    """buildah and podman in `folder`. `with` ends all containers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        #: What the build of IMAGE has printed.
        self.made = ""
        self.env = os.environ | {
            "PATH": debian.PATH,
            "CONTAINERS_CONF": str(folder / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
            "DISABLE_HC_SYSTEMD": "true",  # no timers: each test asks for the health itself
            "TMPDIR": str(folder),
        }
        (folder / "containers.conf").write_text(
            f"[containers]\ndefault_ulimits = {_limits()}\n"
            '[engine]\nruntime = "runc"\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n'
            f'tmp_dir = "{folder}/run/libpod"\nvolume_path = "{folder}/volumes"\n'
            f'[engine.runtimes]\nrunc = ["{shutil.which("runc", path=debian.PATH)}"]\n'
        )

    def __enter__(self) -> "Engine":
        why = ""
        for driver in _DRIVERS:
            (self.folder / "storage.conf").write_text(
                f'[storage]\ndriver = "{driver}"\n'
                f'graphroot = "{self.folder}/storage"\nrunroot = "{self.folder}/run/storage"\n'
            )
            tried = self.podman("info", check=False)
            if tried.returncode == 0:
                return self
            why = tried.stderr
            shutil.rmtree(self.folder / "storage", ignore_errors=True)
        raise AssertionError(f"podman has no storage in {self.folder}: {why}")

    def __exit__(self, *_: object) -> None:
        self.podman("rm", "-f", "-a", "-t", "0", check=False)
        self.podman("volume", "rm", "-f", "-a", check=False)
        subprocess.run(["umount", "-l", self.folder / "storage/overlay"], capture_output=True, check=False)
        shutil.rmtree(self.folder, ignore_errors=True)

    def podman(self, *argv: str | Path, check: bool = True, timeout: float = 120) -> "subprocess.CompletedProcess[str]":
        """Runs it to its end."""
        done = subprocess.run(
            ["podman", *argv],
            env=self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert not check or done.returncode == 0, f"{argv}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done

    def make_base(self) -> None:
        """The Debian tree as the image BASE."""
        packed: list[str | Path] = ["tar", "-C", debian.tree(), *(f"--exclude={path}" for path in _LEFT_OUT), "-c", "."]
        with subprocess.Popen(packed, stdout=subprocess.PIPE) as tar:
            subprocess.run(
                ["podman", "import", "-q", "-", BASE], env=self.env, stdin=tar.stdout, check=True, timeout=300
            )
        assert tar.returncode == 0

    def make_wheels(self) -> None:
        """For the base's Python, from the package registry."""
        version = (debian.tree() / "usr/bin/python3").readlink().name.removeprefix("python")
        command: list[str | Path] = [
            sys.executable,
            "-m",
            "scripts.wheelhouse",
            self.folder / "wheels",
            "--image",
            "--python",
            version,
        ]
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done

    def make(self, *options: str, timeout: float = 300) -> str:
        """An image as `make image` builds it, without a network. Returns what was printed."""
        command: list[str | Path] = [
            sys.executable,
            "-m",
            "scripts.image",
            "--base",
            BASE,
            "--wheels",
            self.folder / "wheels",
            *options,
        ]
        command += ["--", "--isolation", "oci", "--network", "none"]
        done = subprocess.run(
            command, env=self.env, cwd=REPOSITORY, capture_output=True, text=True, timeout=timeout, check=False
        )
        assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def run(self, *words: str, timeout: float = 120) -> "subprocess.CompletedProcess[str]":
        """`podman run` of a container without a network that is removed when it ends."""
        return self.podman("run", "--rm", "--network", "none", *words, check=False, timeout=timeout)

    @contextmanager
    def container(self, *words: str | Path) -> Iterator["Container"]:
        """One that runs in the background; it does not outlive the `with`."""
        name = f"m{uuid.uuid4().hex[:8]}"
        self.podman("run", "-d", "--name", name, "--network", "none", *words)
        try:
            yield Container(self, name)
        finally:
            self.podman("rm", "-f", "-t", "0", name, check=False)


class Container:
    """One of a name, which stays the same over its starts."""

    def __init__(self, engine: Engine, name: str) -> None:
        self._engine = engine
        self.name = name

    def podman(self, verb: str, *options: str, check: bool = True) -> str:
        """Of a verb that takes the container last. Returns what it printed on stdout, stripped."""
        return self._engine.podman(verb, *options, self.name, check=check).stdout.strip()

    def exec(self, *words: str, options: Sequence[str] = ()) -> "subprocess.CompletedProcess[str]":
        """A command in it."""
        return self._engine.podman("exec", *options, self.name, *words, check=False)

    def muster(self, *words: str) -> str:
        """`muster` in it. Returns what it printed on stdout, stripped."""
        done = self.exec("muster", *words)
        assert done.returncode == 0, done
        return done.stdout.strip()

    def logs(self) -> str:
        """What it has printed, on stdout and stderr."""
        done = self._engine.podman("logs", self.name)
        return done.stdout + done.stderr

    def wait_for(self, text: str, times: int = 1) -> None:
        """Until it has printed that."""
        eventually(lambda: self.logs().count(text) >= times, 60, f"{text!r} in the output of {self.name}")

    def wait_up(self) -> "Container":
        """Until its daemon answers."""
        try:
            eventually(lambda: self.exec("muster", "ps", "-q").returncode == 0, 60)
        except AssertionError:
            raise AssertionError(f"no answer of the daemon in {self.name}: {self.logs()}") from None
        return self

    def exit_code(self) -> int:
        """Once it has ended."""
        return int(self.podman("wait"))

    def job(self, job_id: str) -> dict[str, Any]:
        """As `muster status -o json` shows it."""
        found: dict[str, Any] = json.loads(self.muster("status", job_id, "-o", "json"))
        return found

    def healthy(self) -> bool:
        """By its image's health check."""
        return self._engine.podman("healthcheck", "run", self.name, check=False).returncode == 0

    def pid(self) -> int:
        """Of its first process, outside."""
        return int(self.podman("inspect", "--format", "{{.State.Pid}}"))
