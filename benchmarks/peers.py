"""Whom muster is measured against, and why one of them is not there."""

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks import slurm
from benchmarks.node import BenchmarkFailed

#: A torchrun that is neither in the PATH nor beside this interpreter.
TORCHRUN_SETTING = "MUSTER_BENCH_TORCHRUN"
_LIMIT_S = 120.0


class Peers:
    """Finds each peer once; what was started for one is ended with the block."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._cluster: slurm.Cluster | None = None
        #: Why there is no Slurm; empty before it was asked for.
        self.no_slurm = ""
        self.no_torchrun = f"no torchrun in PATH or {TORCHRUN_SETTING}"

    def __enter__(self) -> "Peers":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def cluster(self) -> slurm.Cluster | None:
        """A private Slurm, started at the first call; None where there is none, see `no_slurm`."""
        if self._cluster is None and not self.no_slurm:
            try:
                self._cluster = self._stack.enter_context(slurm.cluster())
            except slurm.NoSlurm as reason:
                self.no_slurm = str(reason)
        return self._cluster

    def torchrun(self) -> str | None:
        """Path of a torchrun."""
        beside = Path(sys.executable).parent / "torchrun"
        named = os.environ.get(TORCHRUN_SETTING)
        if named:
            return named
        return str(beside) if beside.exists() else shutil.which("torchrun")


def time_command(command: Sequence[str], env: Mapping[str, str] | None = None) -> float:
    """Seconds from before the fork to behind the wait. Raises BenchmarkFailed where it does not end with 0."""
    begin = time.perf_counter()
    done = subprocess.run(
        command, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=_LIMIT_S, check=False
    )
    seconds = time.perf_counter() - begin
    if done.returncode:
        said = done.stderr.decode(errors="replace")[-500:].strip()
        raise BenchmarkFailed(f"{Path(command[0]).name} ended with {done.returncode}: {said}")
    return seconds


def time_popen(command: Sequence[str], count: int) -> float:
    """The floor: so many processes from Python, with nothing around them, in seconds."""
    begin = time.perf_counter()
    processes = [subprocess.Popen(command, stdin=subprocess.DEVNULL) for _ in range(count)]
    for process in processes:
        process.wait()
    return time.perf_counter() - begin
