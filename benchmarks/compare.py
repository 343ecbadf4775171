"""`python -m benchmarks.compare OLD NEW`: what became slower from one commit to another.

Both are built and installed below TMPDIR, and measured in turns, in an order that is shuffled: what slows the machine
for a while slows both. What counts is the ratio of each pair. With `--srun`, srun has its turn in each round of the
starts as well.
"""

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import grpc

from benchmarks import exits, node, start
from benchmarks.measure import median
from benchmarks.node import BenchmarkFailed
from benchmarks.paired import FEWEST_ROUNDS, Interval, interval
from benchmarks.peers import Peers, time_command
from benchmarks.report import machine

REPOSITORY = Path(__file__).parents[1]
#: Exit codes: something became slower; it could not be measured. 1 is any defect of this program itself.
SLOWER, NOT_MEASURED = 3, 2
_WARM_UP = 2
#: Seconds before a start: a node seldom gets another job sooner, and by then a supervisor waits for it.
_REST_S = 0.3
_BUILD_S = 300.0
#: The figure beside which srun starts as many ranks.
START = "start: 8 x true, call to result"
#: Each rank writes so many MB, in lines.
_OUTPUT_MB = 10
_LINES = f"import os\nfor i in range({_OUTPUT_MB * 16}): os.write(1, (b'x' * 99 + b'\\n') * 625)"


class Side:
    """One of the two commits: its daemon, warm, and its commands."""

    def __init__(self, programs: Path, here: node.Node) -> None:
        self._here = here
        self._at = [str(programs / "muster"), "--root", str(here.folder)]
        self._watcher = exits.Watcher(here)

    def close(self) -> None:
        """Ends what watches the daemon."""
        self._watcher.close()

    def figures(self) -> dict[str, Callable[[], float]]:
        """What is measured, each in seconds of one round."""
        run = [*self._at, "run", "--ranks", "8", "--skip-check", "--", "true"]
        return {
            START: self._eight,
            "start: 1 x true, call to result": self._one,
            "prompt: muster --help": lambda: time_command([self._at[0], "--help"]),
            "prompt: muster ps": lambda: time_command([*self._at, "ps"]),
            "prompt: muster run of 8 x true": lambda: time_command(run),
            "exits: 8 at once, median to the event": lambda: (
                median(one.event_ms for one in exits.delays(self._here, self._watcher, 0)) / 1e3
            ),
            f"output: 8 x {_OUTPUT_MB} MB, call to result": self._output,
        }

    def _eight(self) -> float:
        time.sleep(_REST_S)
        return start.call(self._here, {}, skip_check=True)

    def _one(self) -> float:
        time.sleep(_REST_S)
        begin = time.perf_counter()
        self._here.wait(self._here.start(self._here.spec(["true"], 1)))
        return time.perf_counter() - begin

    def _output(self) -> float:
        begin = time.perf_counter()
        job_id = self._here.start(self._here.spec([sys.executable, "-I", "-S", "-c", _LINES], 8))
        self._here.wait(job_id)
        seconds = time.perf_counter() - begin
        self._here.delete(job_id)
        return seconds


def main() -> int:
    """Exit code 0: nothing became slower by more than the threshold, as far as that can be told; 3: something did, and
    chance does not explain it; 2: it could not be measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare", description=__doc__.split("\n\n")[0])
    parser.add_argument("old", metavar="OLD", help="a commit")
    parser.add_argument("new", metavar="NEW", help="a commit")
    parser.add_argument("--within", type=float, default=300.0, help="seconds for all of it; default %(default)g")
    parser.add_argument("--only", default="", metavar="WORD", help="figures with this word in their names")
    parser.add_argument("--srun", action="store_true", help="starts beside srun, too: needs Slurm's programs, and root")
    parser.add_argument(
        "--fifo", type=int, default=0, metavar="N", help="real-time priority of what is measured; 0: none"
    )
    parser.add_argument("--threshold", type=float, default=1.05, help="ratio that is no slowdown; default %(default)g")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(NOT_MEASURED))  # what was started and built is to go
    load_before, end = os.getloadavg()[0], time.monotonic() + arguments.within
    srun: list[float] = []
    try:
        with tempfile.TemporaryDirectory(prefix="muster-compare-") as name, contextlib.ExitStack() as stack:
            commits = {"old": arguments.old, "new": arguments.new}
            installed = [_installed(commit, Path(name, which), stack) for which, commit in commits.items()]
            if arguments.fifo:
                os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(arguments.fifo))
            sides: list[Side] = []
            for programs in installed:
                here = stack.enter_context(node.running(programs=programs))
                sides.append(side := Side(programs, here))
                stack.callback(side.close)
            beside = _srun(stack.enter_context(Peers())) if arguments.srun else None
            took = _rounds(sides, end, arguments.only, srun, beside)
    except (BenchmarkFailed, grpc.RpcError, subprocess.SubprocessError, OSError) as error:
        said = getattr(error, "stderr", None) or error
        print(f"cannot compare {arguments.old} and {arguments.new}: {said}", file=sys.stderr)
        return NOT_MEASURED
    found = {name: interval(*both) for name, both in took.items()}
    for line in report(took, found, arguments.threshold):
        print(line)
    for line in of_srun(took, srun):
        print(line)
    print(f"\n{machine(Path(tempfile.gettempdir()), load_before)}")
    return SLOWER if any(each is not None and each.slower(arguments.threshold) for each in found.values()) else 0


def report(
    took: dict[str, tuple[list[float], list[float]]], found: dict[str, Interval | None], threshold: float
) -> Iterator[str]:
    """Lines for people."""
    width = max(map(len, took))
    yield f"{'':{width}}   old ms   new ms  ratio  interval    rounds"
    for name, (old, new) in took.items():
        times = f"{name:{width}} {median(old) * 1e3:8.1f} {median(new) * 1e3:8.1f}" if old else f"{name:{width}}"
        each = found[name]
        if each is None:
            yield f"{times}  {len(old)} rounds say nothing: {FEWEST_ROUNDS} are needed"
            continue
        verdict = "SLOWER" if each.slower(threshold) else "faster" if each.high < 1 else ""
        yield f"{times}  {each.ratio:5.2f}  {each.low:.2f}-{each.high:.2f} {len(old):9} {verdict}".rstrip()


def of_srun(took: dict[str, tuple[list[float], list[float]]], srun: Sequence[float]) -> Iterator[str]:
    """Lines about the starts, as parts of the time that srun took in the same round."""
    for which, times in zip(("old", "new"), took.get(START, ()) if srun else (), strict=False):
        if (ratio := interval(srun, times)) is not None:
            part = f"{ratio.ratio:.3f} ({ratio.low:.3f}-{ratio.high:.3f}) of its time"
            yield f"beside srun, {median(srun) * 1e3:.0f} ms: {which} takes {part}"


def _srun(peers: Peers) -> Callable[[], float]:
    """Raises BenchmarkFailed where there is none."""
    cluster = peers.cluster()
    if cluster is None:
        raise BenchmarkFailed(f"no srun: {peers.no_slurm}")
    command, env = cluster.srun(f"-n{start.RANKS}", "true"), cluster.env
    return lambda: time_command(command, env)


def _rounds(
    sides: Sequence[Side], end: float, only: str, srun: list[float], beside: Callable[[], float] | None
) -> dict[str, tuple[list[float], list[float]]]:
    """Old and new times by figure, as many rounds as fit; into `srun` what `beside` took in the rounds of the starts.
    Raises BenchmarkFailed, grpc.RpcError."""
    chance = random.Random()
    figures = [side.figures() for side in sides]
    took: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in figures[0] if only in name}
    number = 0
    while time.monotonic() < end:
        for name in chance.sample(list(took), len(took)):
            if time.monotonic() > end:
                break
            pair = [0.0, 0.0]
            for side in chance.sample((0, 1), 2):
                pair[side] = figures[side][name]()
            peer = [beside()] if beside is not None and name == START else []
            if number >= _WARM_UP:
                srun += peer
                for values, value in zip(took[name], pair, strict=True):
                    values.append(value)
        number += 1
    return took


def _installed(commit: str, folder: Path, stack: contextlib.ExitStack) -> Path:
    """Builds a commit and installs it into a virtual environment that has the packages of this one. Returns the folder
    with its programs. Raises CalledProcessError, TimeoutExpired, OSError."""
    folder.mkdir()
    source, environment = folder / "source", folder / "environment"
    _done(["git", "-C", REPOSITORY, "worktree", "add", "-q", "--detach", source, commit])
    stack.callback(_done, ["git", "-C", REPOSITORY, "worktree", "remove", "--force", source])
    pip = [sys.executable, "-m", "pip"]
    quiet = ["-q", "--no-deps", "--disable-pip-version-check"]
    _done([*pip, "wheel", *quiet, "--no-build-isolation", "-w", folder, source])
    _done([sys.executable, "-m", "venv", "--without-pip", environment])
    [wheel] = folder.glob("*.whl")
    _done([*pip, "--python", environment / "bin" / "python", "install", *quiet, "--no-index", wheel])
    # Behind its own packages: the editable install of this checkout is a line in a file that is not read from there.
    library = Path(sysconfig.get_path("purelib"))
    own = environment / "lib" / library.parent.name / "site-packages"
    (own / "packages.pth").write_text(f"{library}\n")
    return environment / "bin"


def _done(command: Sequence[str | Path]) -> None:
    subprocess.run(
        command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        timeout=_BUILD_S,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
