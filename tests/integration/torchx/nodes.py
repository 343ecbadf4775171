"""Three nodes for the plugin of TorchX: daemons, TorchX' command, and apps made in the test."""

import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import BIN, FINAL, Daemon, eventually

pytest.importorskip("torchx", reason="needs TorchX: pip install -r examples/torchx/requirements.txt")

from torchx.runner import get_runner
from torchx.specs import AppDef, AppState, Resource, Role

from muster.v1 import job_pb2

#: Waits for a file in its folder, at most for as long as a test may take, and then ends with the code in it.
HELD = """i=0
while [ ! -s "$1" ] && [ $i -lt 3000 ]; do sleep 0.1; i=$((i+1)); done
exit "$(cat "$1" || echo 9)"
"""


class Nodes:
    """Daemons, and a folder in which TorchX' command runs; `home`: with this user's notes."""

    def __init__(self, daemons: list[Daemon], folder: Path) -> None:
        self.daemons = daemons
        self.folder = folder
        self.env = os.environ | {
            "HOME": str(folder),
            "XDG_STATE_HOME": str(folder / "state"),
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "NO_COLOR": "1",
        }

    @property
    def hosts(self) -> list[str]:
        return [daemon.address for daemon in self.daemons]

    def command(self, *words: str, env: dict[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
        """The real `torchx`."""
        return subprocess.run(
            [BIN / "torchx", *words],
            capture_output=True,
            text=True,
            timeout=240,
            cwd=self.folder,
            env=self.env | (env or {}),
            check=False,
        )

    def submit(self, *words: str, hosts: list[str] | None = None, cfg: str = "", options: tuple[str, ...] = ()) -> str:
        """Handle of an app that `torchx run` started."""
        done = self.command("run", "-s", "muster", "-cfg", self.cfg(cfg, hosts), *options, *words)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()[0]

    def cfg(self, more: str = "", hosts: list[str] | None = None) -> str:
        return f"hosts={';'.join(hosts or self.hosts)}" + (f",{more}" if more else "")

    def listed(self, **env: str) -> dict[str, str]:
        """States by handle, as `torchx list` shows them."""
        done = self.command("list", "-s", "muster", env=env)
        assert done.returncode == 0, done.stderr
        return dict(line.split() for line in done.stdout.splitlines() if "://" in line)

    def jobs(self, app_id: str) -> list[Any]:
        """Of each daemon, in order, those of an app."""
        return [
            job
            for daemon in self.daemons
            for job in daemon.jobs.List(job_pb2.ListRequest(labels={"torchx-app": app_id}), timeout=60).jobs
        ]

    def all_jobs(self) -> list[str]:
        return [
            job.job_id for daemon in self.daemons for job in daemon.jobs.List(job_pb2.ListRequest(), timeout=60).jobs
        ]

    def ended(self, app_id: str) -> list[Any]:
        """The jobs of an app once all of them have ended."""
        jobs: list[Any] = eventually(
            lambda: (jobs := self.jobs(app_id)) and all(job.state in FINAL for job in jobs) and jobs
        )
        return jobs


@contextmanager
def nodes(
    folder: Path, count: int = 3, config: Callable[[int], str] = lambda _: "", env: Mapping[str, str] | None = None
) -> Iterator[Nodes]:
    """So many daemons, each with a root below `folder` and a configuration of its own."""
    daemons = []
    try:
        for number in range(count):
            root = folder / f"n{number}"
            root.mkdir()
            daemons.append(Daemon(root, config(number), env))
        for daemon in daemons:
            daemon.start()
        home = folder / "home"
        home.mkdir()
        yield Nodes(daemons, home)
    finally:
        for daemon in daemons:
            daemon.close()


def role(script: str, *args: str, name: str = "sh", replicas: int = 3, **fields: Any) -> Any:
    """Replicas that run a shell script, with `args` as $1 and so on."""
    fields = {"image": "", "resource": Resource(cpu=1, gpu=0, memMB=64)} | fields
    return Role(name=name, entrypoint="sh", args=["-c", script, "sh", *args], num_replicas=replicas, **fields)


def app(*roles: Any, name: str = "app") -> Any:
    return AppDef(name=name, roles=list(roles))


@contextmanager
def runner(home: Nodes) -> Iterator[Any]:
    """TorchX' own runner, as a process of its own would have it, with this home's notes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", home.env["XDG_STATE_HOME"])
        with get_runner() as made:
            yield made


def until(runner: Any, handle: str, *states: Any) -> Any:
    """The status once it is one of `states`."""
    return eventually(
        lambda: (status := runner.status(handle)) and status.state in states and status, message=str(states)
    )


def app_id(handle: str) -> str:
    return handle.rpartition("/")[2]


DONE = (AppState.SUCCEEDED, AppState.FAILED, AppState.CANCELLED)
