"""A node on which thousands of jobs have ended, beside an empty one: start, memory, `ps -a`.

The ended jobs are copies of a real one, with its logs. Their number is read from MUSTER_BENCH_ENDED. With 5,000 of them
it takes about four minutes: one to make 90,000 files, one to wait until the daemon gives free memory back.
"""

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks import node
from benchmarks.measure import cpu_seconds, median, pss_mb
from benchmarks.node import BenchmarkFailed, Node
from benchmarks.peers import Peers
from benchmarks.report import Row
from muster.v1 import job_pb2

RANKS = 8
COUNT = int(os.environ.get("MUSTER_BENCH_ENDED", "5000"))
STARTS = 3
#: Start: so many times that of an empty node, and so many seconds more. Memory: so much more than an empty node.
FACTOR, MORE_S, MORE_MB = 5.0, 2.0, 10.0
#: Seconds after everything is indexed before memory is read; free pages are given back each minute.
SETTLE_S, TRIM_S = 5.0, 65.0
QUIET_S = 10.0
#: Jobs on a page of `ps -a`, and seconds that the command may take, for defects only.
PAGE, PS_S = 100, 180.0
#: Nothing is collected, and nothing told of where no daemon saw it.
CONFIG = f"{node.CONFIG}[jobs]\nkeep_ended = 0\nkeep_ended_days = 0\n"


def run(peers: Peers) -> Iterator[Row]:
    """Rows for the start, the memory, the CPU time and `ps -a`, each beside an empty node in the same run."""
    with tempfile.TemporaryDirectory(prefix="muster-bench-", ignore_cleanup_errors=True) as top:
        folders = Path(top, "empty"), Path(top, "full")
        model = ""
        for folder in folders:
            folder.mkdir()
            here = Node(folder, CONFIG)
            try:
                if folder is folders[1]:
                    model = here.start(here.spec(["sh", "-c", "echo output; exit 0"], RANKS))
                    here.wait(model)
            finally:
                here.close()
        copies(folders[1], model, COUNT)
        empty, full = _Figures(folders[0]), _Figures(folders[1], COUNT)
        budget = f"at most {FACTOR:g} times, and {MORE_S:g} s"
        yield Row(
            f"start with {COUNT} ended jobs", full.start_s, "s", "empty node", empty.start_s, budget,
            full.start_s <= FACTOR * empty.start_s + MORE_S,
            f"to the first answer, median of {STARTS}; {full.start_s - empty.start_s:+.2f} s; the first one ever "
            f"{full.first_s:.2f} s; all listed after {full.listed_s:.2f} s",
        )  # fmt: skip
        for when, mine in (("after the start", full.mb), (f"{TRIM_S:g} s after ps -a", full.ps_mb)):
            more = mine - empty.mb
            yield Row(
                f"memory with {COUNT} ended jobs, {when}", mine, "MB", "empty node", empty.mb,
                f"at most {MORE_MB:g} MB more", more <= MORE_MB, f"PSS; {more:+.1f} MB",
            )  # fmt: skip
        yield Row(
            f"CPU with {COUNT} ended jobs, over {QUIET_S:g} s", full.percent, "% of a core", "empty node", empty.percent
        )
        yield Row(
            f"ps -a of {COUNT} jobs", full.ps_s, "s", "empty node", empty.ps_s,
            note=f"{full.ps_s / COUNT * 1e3:.2f} ms a job; ps {full.ps_live_s:.2f} s, empty {empty.ps_live_s:.2f} s",
        )  # fmt: skip
        yield Row(
            f"a page of {PAGE} of {COUNT} jobs", full.page_s, "s",
            note=f"List, median of {full.pages} pages; the slowest {full.slowest_s:.2f} s",
        )  # fmt: skip


class _Figures:
    """What one node comes to."""

    def __init__(self, folder: Path, ended: int = 0) -> None:
        """`ended`: how many jobs have ended there."""
        begun = time.monotonic()
        here = Node(folder, CONFIG)
        self.first_s = time.monotonic() - begun
        try:
            self._list(here)
            starts, listed = [], []
            for _ in range(STARTS):
                os.kill(here.pid, signal.SIGKILL)
                begun = time.monotonic()
                here.kill()
                starts.append(time.monotonic() - begun)
                self._list(here)
                listed.append(time.monotonic() - begun)
            self.start_s, self.listed_s = median(starts), median(listed)
            time.sleep(SETTLE_S)
            self.mb = pss_mb(here.pid)
            before = cpu_seconds(here.pid)
            time.sleep(QUIET_S)
            self.percent = (cpu_seconds(here.pid) - before) / QUIET_S * 100
            self.ps_live_s = self._ps(here)
            self.ps_s = self._ps(here, "-a")
            if ended:
                pages = list(self._pages(here))
                self.pages, self.page_s, self.slowest_s = len(pages), median(pages), max(pages)
                time.sleep(TRIM_S)
                self.ps_mb = pss_mb(here.pid)
        finally:
            here.close()

    @staticmethod
    def _list(here: Node) -> None:
        """Returns once all jobs are listed."""
        here.jobs.List(job_pb2.ListRequest(page_size=1), timeout=node.CALL_S)

    @staticmethod
    def _pages(here: Node) -> Iterator[float]:
        """Seconds of each page of all jobs."""
        token = ""
        while True:
            begun = time.monotonic()
            page = here.jobs.List(job_pb2.ListRequest(page_size=PAGE, page_token=token), timeout=node.CALL_S)
            yield time.monotonic() - begun
            token = page.next_page_token
            if not token:
                return

    @staticmethod
    def _ps(here: Node, *options: str) -> float:
        begun = time.monotonic()
        command = [str(node.BIN / "muster"), "--address", here.address, "ps", *options]
        if subprocess.run(command, check=False, stdout=subprocess.DEVNULL, timeout=PS_S).returncode:
            raise BenchmarkFailed("ps failed")
        return time.monotonic() - begun


def copies(folder: Path, model: str, count: int) -> None:
    """Makes copies of an ended job, records and logs, in the root `folder` of a daemon that does not run."""
    jobs, logs = folder / "state" / "jobs", folder / "log"
    spec = json.loads((jobs / model / "spec.json").read_text())
    files = [path for path in logs.iterdir() if path.name.startswith(f"{model}-")]
    for number in range(count):
        name = f"copy-{number:05}"
        shutil.copytree(jobs / model, jobs / name, symlinks=True, ignore=shutil.ignore_patterns("*.fifo"))
        (jobs / name / "spec.json").write_text(json.dumps(spec | {"job_id": name}))
        for path in files:
            shutil.copy2(path, path.with_name(name + path.name.removeprefix(model)))
