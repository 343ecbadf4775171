"""Creates the processes of gangs: by the program muster-spawn, and by forks of the supervisor, in the same rounds."""

import contextlib
import gc
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from benchmarks.measure import median
from benchmarks.node import BenchmarkFailed
from benchmarks.peers import Peers
from benchmarks.report import Row
from muster.probes.kernel import process
from muster.supervisors.launch.creation.underway import Waiting

GANGS = (1, 8, 64)
ROUNDS = 25
#: Before each start, in seconds: jobs do not start one right behind the other.
_REST_S = 0.05
_PROGRAM, _FORKS = "program", "forks"


def run(_: Peers) -> Iterator[Row]:
    """Rows for gangs of several sizes: until all pids are known, and until all ranks of `true` have ended."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.creation", folder], stdout=subprocess.PIPE, check=True, timeout=600
        )
    found = json.loads(done.stdout)
    if found["said"]:
        raise BenchmarkFailed(f"the program was not used: {found['said'][0]}")
    where = "in a cgroup" if found["cgroup"] else "without a cgroup, which this node has not"
    for ranks in GANGS:
        for what in ("created", "created, and ended"):
            ms = {way: median(found["took"][f"{way} {ranks} {what}"]) * 1e3 for way in (_PROGRAM, _FORKS)}
            # Of the two in one round: what slows the machine for a while slows both.
            pairs = zip(*(found["took"][f"{way} {ranks} {what}"] for way in (_PROGRAM, _FORKS)), strict=True)
            note = f"{where}; median of the rounds' ratios {median(a / b for a, b in pairs):.2f}"
            yield Row(f"{ranks} x true {what}", ms[_PROGRAM], "ms", _FORKS, ms[_FORKS], note=note)


def _rounds(folder: Path) -> None:
    """In a process like a supervisor: what a nursery imports, and nothing else."""
    from muster.supervisors.launch import spawning
    from muster.supervisors.launch.child import Account, ProcessSpec
    from muster.supervisors.launch.creation.program_start import PROGRAM
    from muster.supervisors.nursery import nursery
    from muster.supervisors.output.tee import make_fifo
    from muster.supervisors.paths import Root
    from muster.supervisors.system.cgroups import make_cgroup
    from muster.supervisors.system.controllers import job_limits

    assert nursery.IDLE_S, "it is imported for its size"
    gc.collect()
    gc.freeze()
    account = Account.of("")
    cgroup, _ = make_cgroup(Root.under(folder), "creation")
    make_fifo(folder / "fifo", account.uid, account.gid)
    reader = os.open(folder / "fifo", os.O_RDWR | os.O_NONBLOCK)
    usual = ProcessSpec(0, ("true",), dict(os.environ), "/", folder / "fifo", cgroup, account)
    took: dict[str, list[float]] = {}
    said: list[str] = []
    for number in range(ROUNDS + 1):
        for ranks in GANGS:
            specs = [replace(usual, rank=rank) for rank in range(ranks)]
            ways = [_PROGRAM, _FORKS]
            random.shuffle(ways)
            for way in ways:
                PROGRAM.open() if way == _PROGRAM else PROGRAM.close()
                pids: list[int] = []
                time.sleep(_REST_S)
                begin = time.perf_counter()
                _done(spawning.spawn(specs, folder / "unborn", lambda: None, pids.extend, said.append))
                created = time.perf_counter() - begin
                for pid in pids:
                    os.waitpid(pid, 0)
                ended = time.perf_counter() - begin
                if number:  # the first of everything is slower
                    took.setdefault(f"{way} {ranks} created", []).append(created)
                    took.setdefault(f"{way} {ranks} created, and ended", []).append(ended)
    os.close(reader)
    if cgroup:
        job_limits.remove(Path(cgroup))
    print(json.dumps({"took": took, "said": said, "cgroup": bool(cgroup)}))


def _done(work: Waiting[None]) -> None:
    """Waits for what a supervisor's loop waits for."""
    with contextlib.suppress(StopIteration):
        pidfd, seconds = next(work)
        while True:
            pidfd, seconds = work.send(process.wait_ended(pidfd, seconds))


if __name__ == "__main__":
    _rounds(Path(sys.argv[1]))
