"""A node of one's own within this host: other mounts, limits or rights for a command, or for a daemon and its jobs."""

import contextlib
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import BIN, Daemon, eventually


def mounted(script: str) -> list[str]:
    """To be put before a command: it then runs in a mount namespace of its own, once the shell `script` is through.

    Skips the test where that is not allowed.
    """
    inside = ["unshare", "--mount", "--propagation", "private", "sh", "-c", f'set -e\n{script}\nexec "$@"', "box"]
    if os.geteuid() != 0:
        pytest.skip("needs root for a mount namespace")
    tried = subprocess.run([*inside, "true"], capture_output=True, text=True, timeout=60, check=False)
    if tried.returncode:
        pytest.skip(f"a mount namespace cannot be made so: {tried.stderr.strip()}")
    return inside


def muster(prefix: Sequence[str], *args: str, **env: str) -> "subprocess.CompletedProcess[str]":
    """The command `muster` behind `prefix`, with variables of one's own."""
    return subprocess.run(
        [*prefix, str(BIN / "muster"), *args],
        capture_output=True,
        text=True,
        timeout=110,
        env={**os.environ, "NO_COLOR": "1", **env},
        check=False,
    )


class Boxed(Daemon):
    """A daemon behind `prefix`. `config` is the whole file, so that its policy is the usual one: enforce."""

    def __init__(self, folder: Path, config: str, prefix: Sequence[str] = (), **env: str) -> None:
        super().__init__(folder)
        self.config.write_text(config)
        self.prefix = list(prefix)
        self.env = env

    def start(self) -> "Boxed":
        """Returns once it answers."""
        with open(self.stderr, "ab") as err:
            self.process = subprocess.Popen(
                [*self.prefix, BIN / "musterd", "--root", self.folder, "--config", self.config],
                stdin=subprocess.DEVNULL,
                stdout=err,
                stderr=err,
                env={**os.environ, **self.env},
            )
        self.connect()
        eventually(self._answers, 60, f"musterd answers; it said: {self.stderr.read_text()[-2000:]}")
        return self

    def checks(self, job_id: str) -> dict[str, Any]:
        """The results of a job's checks by item."""
        return {found.item: found for found in self.get(job_id).checks}

    def job_log(self, job_id: str) -> str:
        with contextlib.suppress(FileNotFoundError):
            return Path(self.get(job_id).log_path).read_text()
        return ""
