"""Eight ranks of `true`, and 256 of them: from the call to the result."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks import node
from benchmarks.measure import median
from benchmarks.peers import Peers, time_command, time_popen
from benchmarks.report import Row
from benchmarks.slurm import Cluster
from muster.supervisors.model import journal

RANKS = 8
ROUNDS = 25
#: The slow ones.
TORCHRUN_ROUNDS = 5
#: Of srun's time.
PART = 0.15
#: Not counted: the first of everything is slower.
WARM_UP = 3
#: A large job, how often, and its mark.
MANY, MANY_ROUNDS, MANY_PART = 256, 9, 0.6
#: The steps of a job, with the records that begin and end each; the first begins with the call, the last ends with the
#: answer.
_STEPS = (
    ("accept", "", "accepted"),
    ("supervisor", "accepted", "taken"),
    ("folders, FIFOs, forks", "taken", "spawned"),
    ("ranks", "spawned", "exited"),
    ("end", "exited", "ended"),
    ("answer", "ended", ""),
)


def run(peers: Peers) -> Iterator[Row]:
    """Rows for the call, the call with pre-checks, and `muster run` as a whole process."""
    cluster = peers.cluster()
    torchrun = peers.torchrun()
    took: dict[str, list[float]] = {}
    steps: dict[str, list[float]] = {}
    with node.running() as here, _allocation(cluster) as inside:
        cli = [str(node.BIN / "muster"), "--root", str(here.folder), "run", "--ranks", str(RANKS), "--skip-check"]
        for number in range(ROUNDS + WARM_UP):
            # Side by side, one after the other, so that what slows the machine for a while slows all.
            sample = {
                "call": call(here, steps if number >= WARM_UP else {}, skip_check=True),
                "checked": call(here, {}, skip_check=False),
                "cli": time_command([*cli, "--", "true"]),
                "popen": time_popen(["true"], RANKS),
            }
            if cluster is not None:
                sample["srun"] = time_command(cluster.srun(f"-n{RANKS}", "true"), cluster.env)
                step = cluster.srun(f"--jobid={inside}", "--overlap", f"-n{RANKS}", "true")
                sample["step"] = time_command(step, cluster.env)
            if torchrun is not None and number < TORCHRUN_ROUNDS + 1:
                sample["torchrun"] = time_command(
                    [torchrun, "--standalone", "--nproc-per-node", str(RANKS), "--no-python", "true"],
                    os.environ | {"OMP_NUM_THREADS": "1"},
                )
            for name, seconds in sample.items():
                took.setdefault(name, []).append(seconds)
    ms = {name: median(values[1 if name == "torchrun" else WARM_UP :]) * 1e3 for name, values in took.items()}
    what = f"{RANKS} x true, call to result"
    no_slurm = "" if cluster is not None else f"srun skipped: {peers.no_slurm}"
    met = ms["call"] <= ms["srun"] * PART if "srun" in ms else None
    yield Row(what, ms["call"], "ms", "srun", ms.get("srun"), f"{PART:g} of srun", met, no_slurm)
    note = ", ".join(f"{name} {median(values) * 1e3:.1f}" for name, values in steps.items())
    yield Row(what, ms["call"], "ms", "srun in an allocation", ms.get("step"), note=f"ms of it: {note}")
    no_torchrun = "" if torchrun is not None else f"torchrun skipped: {peers.no_torchrun}"
    yield Row(what, ms["call"], "ms", "torchrun", ms.get("torchrun"), note=no_torchrun)
    yield Row(what, ms["call"], "ms", "Popen, nothing around it", ms["popen"])
    yield Row(f"{what}, with pre-checks", ms["checked"], "ms", "srun", ms.get("srun"))
    yield Row(f"muster run of {RANKS} x true", ms["cli"], "ms", "srun", ms.get("srun"))
    yield Row(f"muster run of {RANKS} x true", ms["cli"], "ms", "torchrun", ms.get("torchrun"))
    yield _many(cluster, no_slurm)


def _many(cluster: Cluster | None, no_slurm: str) -> Row:
    took: dict[str, list[float]] = {}
    with node.running() as here:
        for _ in range(MANY_ROUNDS + 1):
            took.setdefault("call", []).append(call(here, {}, MANY, skip_check=True))
            if cluster is not None:
                took.setdefault("srun", []).append(time_command(cluster.srun(f"-n{MANY}", "true"), cluster.env))
    ms = {name: median(values[1:]) * 1e3 for name, values in took.items()}
    met = ms["call"] <= ms["srun"] * MANY_PART if "srun" in ms else None
    what, mark = f"{MANY} x true, call to result", f"{MANY_PART:g} of srun"
    return Row(what, ms["call"], "ms", "srun", ms.get("srun"), mark, met, no_slurm)


def call(here: node.Node, steps: dict[str, list[float]], ranks: int = RANKS, *, skip_check: bool) -> float:
    """Seconds from Start to the answer of Wait."""
    begun = time.time()
    begin = time.perf_counter()
    job_id = here.start(here.spec(["true"], ranks, skip_check=skip_check))
    here.wait(job_id)
    seconds = time.perf_counter() - begin
    at = {"": begun}
    # Of several records of a kind the last one counts: the step ends with the last rank.
    at |= {record["kind"]: record["t"] for record in journal.read(here.root.job(job_id).journal).records}
    for name, first, last in _STEPS:
        steps.setdefault(name, []).append((at[last] if last else begun + seconds) - at[first])
    return seconds


@contextmanager
def _allocation(cluster: Cluster | None) -> Iterator[str]:
    if cluster is None:
        yield ""
        return
    allocation = cluster.allocate(RANKS)
    try:
        yield allocation
    finally:
        cluster.release(allocation)
