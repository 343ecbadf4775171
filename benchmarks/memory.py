"""Memory: of a job, of what is there once for all jobs, and of an idle daemon; and the CPU time of the latter."""

import subprocess
import time
from collections.abc import Iterator

from benchmarks import node
from benchmarks.measure import cpu_seconds, median, own_mb, pss_mb
from benchmarks.node import BenchmarkFailed
from benchmarks.peers import Peers
from benchmarks.report import Row
from benchmarks.slurm import Cluster
from muster.agent.node.node_watch import FIRST_S

RANKS = 8
#: Jobs, and MB that the supervisor of each may take.
BUDGETS_MB = {1: 6.0, 8: 4.0, 64: 4.0}
DAEMON_BUDGET_MB = 50.0
CPU_BUDGET_PERCENT = 0.3
IDLE_S = 30.0
#: After the last start, before memory is read.
_SETTLE_S = 1.0
#: Until each check of the node has had its first turn (node_watch.FIRST_S): only then a daemon is idle.
_FIRST_TURNS_S = FIRST_S + 1.0


def run(peers: Peers) -> Iterator[Row]:
    """Rows for supervisors of 1, 8 and 64 jobs, nursery and daemon, and slurmstepd."""
    cluster = peers.cluster()
    step = _slurmstepd(cluster) if cluster is not None else None
    skipped = f"slurmstepd skipped: {peers.no_slurm}" if cluster is None else ""
    jobs: list[str] = []
    alone = 0.0
    with node.running() as here:
        for count, budget in BUDGETS_MB.items():
            while len(jobs) < count:
                jobs.append(here.start(here.spec(["sleep", "600"], RANKS)))
            supervisors = [here.until_running(job_id).supervisor_pid for job_id in jobs]
            time.sleep(_SETTLE_S)
            sizes = [pss_mb(pid) for pid in supervisors]
            nursery, daemon = pss_mb(here.nursery_pid), pss_mb(here.pid)
            own = median([own_mb(pid) for pid in supervisors])
            note = f"largest {max(sizes):.2f} MB, own pages {own:.2f} MB"
            note += f"; nursery {nursery:.1f} MB, daemon {daemon:.1f} MB"
            together = sum(sizes) + nursery
            if count == 1:
                alone = together
            else:  # what is shared is counted once: this is what a job costs a node
                note += f"; each job after the first {(together - alone) / (count - 1):.2f} MB"
            yield Row(
                f"memory of a supervisor, {count} x {RANKS} ranks", median(sizes), "MB", "slurmstepd", step,
                f"at most {budget:g} MB", median(sizes) <= budget, f"PSS; {note} {skipped}".rstrip(),
            )  # fmt: skip


def run_idle(peers: Peers) -> Iterator[Row]:
    """Rows for a daemon without work, and for one with a job that sleeps."""
    with node.running() as here:
        here.wait(here.start(here.spec(["true"], RANKS)))
        time.sleep(_FIRST_TURNS_S)
        share = _share(here.pid)
        memory = pss_mb(here.pid)
        yield Row(
            "daemon, no job: memory", memory, "MB", budget=f"under {DAEMON_BUDGET_MB:g} MB",
            met=memory < DAEMON_BUDGET_MB, note=f"PSS; nursery {pss_mb(here.nursery_pid):.1f} MB",
        )  # fmt: skip
        yield Row(
            f"daemon, no job: CPU over {IDLE_S:g} s", share, "% of a core", budget=f"under {CPU_BUDGET_PERCENT:g} %",
            met=share < CPU_BUDGET_PERCENT,
        )  # fmt: skip
        job = here.until_running(here.start(here.spec(["sleep", "600"], RANKS)))
        time.sleep(_SETTLE_S)
        before = cpu_seconds(job.supervisor_pid)
        share = _share(here.pid)
        own = (cpu_seconds(job.supervisor_pid) - before) / IDLE_S * 100
        yield Row(
            f"daemon, a job that sleeps: CPU over {IDLE_S:g} s", share, "% of a core",
            budget=f"under {CPU_BUDGET_PERCENT:g} %", met=share < CPU_BUDGET_PERCENT, note=f"supervisor {own:.1f} %",
        )  # fmt: skip


def _share(pid: int) -> float:
    """CPU of a process over IDLE_S, in percent of a core."""
    before = cpu_seconds(pid)
    time.sleep(IDLE_S)
    return (cpu_seconds(pid) - before) / IDLE_S * 100


def _slurmstepd(cluster: Cluster) -> float:
    """MB of the slurmstepd of a job of as many ranks. Raises BenchmarkFailed."""
    command = cluster.srun(f"-n{RANKS}", "sleep", "600")
    process = subprocess.Popen(
        command, env=cluster.env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        pids = node.until(cluster.step_daemons, node.ANSWER_S, "there is a slurmstepd")
        time.sleep(_SETTLE_S)
        # While a step starts there are two for a moment.
        return max(pss_mb(pid) for pid in cluster.step_daemons() or pids)
    except OSError as error:
        raise BenchmarkFailed(f"slurmstepd: {error}") from error
    finally:
        # The second interrupt within a second is what ends an srun at once.
        for _ in range(2):
            process.terminate()
            time.sleep(0.1)
        process.wait(timeout=node.ANSWER_S)
