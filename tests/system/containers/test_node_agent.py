"""musterd in a container with the PIDs, the devices and the folders of the host."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import BIN, alive, eventually
from tests.system.containers.engine import IMAGE, REPOSITORY, Container, Engine
from tests.system.containers.marks import MARKS, SAVES

pytestmark = MARKS

SETTINGS = REPOSITORY / "examples/containers/node-agent.toml"
RIGHTS = ("--pid", "host", "--ipc", "host", "--privileged", "--user", "0", "--read-only")


class Host:
    """The folders that lie on the host, here in one of the test's, and the host's `muster`."""

    def __init__(self, engine: Engine, folder: Path) -> None:
        self._engine = engine
        self._folder = folder
        for name in ("run", "lib", "log"):
            (folder / name).mkdir()

    @contextmanager
    def agent(self) -> Iterator[Container]:
        """It answers."""
        places = {"run": "/run/muster", "lib": "/var/lib/muster", "log": "/var/log/muster"}
        mounted = [word for name, path in places.items() for word in ("-v", f"{self._folder / name}:{path}")]
        mounted += ["-v", f"{SETTINGS}:/etc/muster/musterd.toml:ro"]
        with self._engine.container(*RIGHTS, *mounted, IMAGE) as agent:
            yield agent.wait_up()

    def muster(self, *words: str) -> "subprocess.CompletedProcess[str]":
        """That of the host, on the agent's socket."""
        command: list[str | Path] = [BIN / "muster", "--address", f"unix:{self._folder}/run/muster.sock", *words]
        return subprocess.run(command, cwd="/", capture_output=True, text=True, timeout=120, check=False)

    def start(self, job_id: str, script: str) -> list[int]:
        """A job of two ranks, which have said `up`. Returns their pids."""
        words = (
            "start",
            "--job-id",
            job_id,
            "--workdir",
            "/",
            "--skip-check",
            "--ranks",
            "2",
            "--",
            "sh",
            "-c",
            script,
        )
        done = self.muster(*words)
        assert done.returncode == 0, done
        eventually(lambda: self.muster("logs", job_id).stdout.count("up") == 2, 60, "both ranks to run")
        return [int(rank["pid"]) for rank in self.job(job_id)["ranks"]]

    def job(self, job_id: str) -> dict[str, Any]:
        """As `muster status -o json` shows it."""
        found: dict[str, Any] = json.loads(self.muster("status", job_id, "-o", "json").stdout)
        return found


@pytest.fixture
def host(engine: Engine, tmp_path: Path) -> Host:
    return Host(engine, tmp_path)


def test_it_sees_the_host_and_serves_it(host: Host) -> None:
    with host.agent() as agent:
        eventually(agent.healthy, 120, "the health check to say fit")
        assert host.muster("check", "--gate").stdout == "fit\n"
        node = json.loads(host.muster("node", "-o", "json").stdout)
        assert alive(int(node["daemonPid"])), "its number is that of the host"
        refused = host.muster("run", "--", "true")  # in the host's /, which is not the container's
        assert refused.returncode == 2 and "give --workdir, a folder that musterd has" in refused.stderr
        assert host.muster("run", "--workdir", "/", "--skip-check", "--", "sh", "-c", "exit 5").returncode == 5


def test_a_stop_and_a_new_image_under_running_jobs(host: Host) -> None:
    """The ranks end with the container, with their grace; the next one knows how."""
    with host.agent() as agent:
        ranks = host.start("saves", SAVES)
        assert all(alive(pid) for pid in ranks)
        agent.podman("stop", "-t", "60")
        assert agent.exit_code() == 0 and not any(alive(pid) for pid in ranks)
    with host.agent():
        job = host.job("saves")
        assert job["state"] == "JOB_STATE_STOPPED"
        assert job["verdict"]["exitCode"] == 3, job
        assert host.muster("logs", "saves").stdout.count("saved") == 2


def test_killed_with_its_jobs(host: Host) -> None:
    """By the runtime, rank by rank: nothing of the container stays, and nothing is taken for a success."""
    with host.agent() as agent:
        ranks = host.start("deaf", "trap '' TERM; echo up; while :; do sleep 0.05; done")
        agent.podman("kill")
        assert agent.exit_code() == 137
        eventually(lambda: not any(alive(pid) for pid in ranks), 60, "the ranks to end with their container")
    with host.agent():
        eventually(lambda: host.job("deaf")["state"] in ("JOB_STATE_FAILED", "JOB_STATE_LOST"))
        assert host.job("deaf")["verdict"]["exitCode"] in (137, 125)
