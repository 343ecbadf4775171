"""One rank's output of 1 GB, searched: `muster logs --grep` beside `grep` on the file; and parts of it by time."""

import math
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import node
from benchmarks.measure import cpu_seconds, median
from benchmarks.node import BIN, BenchmarkFailed
from benchmarks.peers import Peers
from benchmarks.report import Row

SIZE = 10**9
ROUNDS = 3
_PIECE_LINES = 50_000

#: What is looked for: words for the table, muster's options, grep's options, and how many lines have it.
_SEARCHES: tuple[tuple[str, tuple[str, ...], tuple[str, ...], str], ...] = (
    ("no line", ("--grep", "unheard of"), ("-F", "unheard of"), "none"),
    ("a word in few lines", ("--grep", "needle"), ("-F", "needle"), "few"),
    ("a word in 1 of 100 lines", ("--grep", "checkpoint"), ("-F", "checkpoint"), "many"),
    ("a word in every line", ("--grep", "trainer"), ("-F", "trainer"), "all"),
    ("two words in few lines", ("--grep", r"step \d+ .*needle"), ("-E", r"step [0-9]+ .*needle"), "few"),
    ("one of three words", ("--grep", "needle|haystack|pin"), ("-E", "needle|haystack|pin"), "few"),
    ("a word of any case", ("--grep", "Needle", "--ignore-case"), ("-i", "Needle"), "few"),
)


@dataclass(frozen=True, slots=True)
class Sample:
    """One search: seconds, CPU seconds of all who took part, and bytes that came."""

    seconds: float
    cpu: float
    size: int


def run(_: Peers) -> Iterator[Row]:
    """Rows for the CPU time and the time of each search, and for what time and lines from the end give."""
    with node.running() as here, tempfile.TemporaryDirectory(prefix="muster-bench-") as name:
        text = Path(name) / "text"
        counts = _write(text)
        job_id = here.start(here.spec(("cat", str(text)), 1))
        [rank] = here.wait(job_id).ranks
        log = Path(rank.log_path)
        text.unlink()
        for what, wanted, greps, which in _SEARCHES:
            sides: dict[str, list[Sample]] = {"muster": [], "grep": []}
            for number in range(ROUNDS + 1):
                for side, samples in sides.items() if number % 2 else reversed(sides.items()):
                    if side == "muster":
                        sample = _measured([BIN / "muster", "logs", job_id, "-r", "0", *wanted], here)
                    else:
                        sample = _measured(["grep", "-a", *greps, log], None)
                    if number:  # the first round also brings the file into the page cache
                        samples.append(sample)
            found = {sample.size for samples in sides.values() for sample in samples}
            if len(found) > 1:
                raise BenchmarkFailed(f"{what}: muster and grep found different lines: {sorted(found)} bytes")
            yield from _rows(f"1 GB searched: {what}", sides, f"{counts[which]} lines, {found.pop() / 1e6:.1f} MB")
        stop = time.time() - 3600
        parts: tuple[tuple[str, tuple[str, ...], Sequence[str | Path]], ...] = (
            ("--tail 10", ("--tail", "10"), ("tail", "-n", "10", log)),
            ("--since the end", ("--since", _at(time.time())), ()),
            ("--until the beginning", ("--until", _at(stop)), ()),
        )
        for what, args, peer in parts:
            samples = [_measured([BIN / "muster", "logs", job_id, "-r", "0", *args], here) for _ in range(ROUNDS)]
            peers = [_measured(peer, None) for _ in range(ROUNDS if peer else 0)]
            yield Row(
                f"1 GB: {what}", median(sample.seconds for sample in samples) * 1e3, "ms",
                "tail" if peers else "", median(sample.seconds for sample in peers) * 1e3 if peers else None,
                note=f"CPU {median(sample.cpu for sample in samples) * 1e3:.0f} ms",
            )  # fmt: skip


def _rows(what: str, sides: dict[str, list[Sample]], note: str) -> Iterator[Row]:
    cpu = {side: median(sample.cpu for sample in samples) for side, samples in sides.items()}
    seconds = {side: median(sample.seconds for sample in samples) for side, samples in sides.items()}
    ratio = cpu["muster"] / cpu["grep"] if cpu["grep"] else math.inf
    yield Row(f"{what}: CPU", cpu["muster"], "s", "grep", cpu["grep"], "at most 4 times grep", ratio <= 4, note)
    yield Row(
        f"{what}: time", seconds["muster"], "s", "grep", seconds["grep"], "at most twice grep",
        seconds["muster"] <= 2 * seconds["grep"],
    )  # fmt: skip


def _measured(command: Sequence[str | Path], here: node.Node | None) -> Sample:
    """Runs it to its end. `here`: the daemon takes part. Raises BenchmarkFailed."""
    before = cpu_seconds(here.pid) if here is not None else 0.0
    environment = os.environ | ({"MUSTER_ADDRESS": here.address} if here is not None else {})
    begin = time.perf_counter()
    process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    assert process.stdout is not None
    size = 0
    while data := os.read(process.stdout.fileno(), 1 << 16):
        size += len(data)
    _, status, used = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - begin
    process.returncode = os.waitstatus_to_exitcode(status)
    process.stdout.close()
    if process.returncode not in ((0,) if here is not None else (0, 1)):
        raise BenchmarkFailed(f"{command!r:.100} ended with {process.returncode}")
    daemon = cpu_seconds(here.pid) - before if here is not None else 0.0
    return Sample(seconds, used.ru_utime + used.ru_stime + daemon, size)


def _write(path: Path) -> dict[str, int]:
    """A training log. Returns how many lines have something that is looked for."""
    lines = []
    for i in range(_PIECE_LINES):
        when = f"2030-01-31 08:{i // 600 % 60:02d}:{i // 10 % 60:02d},{i % 10}00"
        line = f"{when} [INFO] trainer: step {i} loss {i % 3917 / 1e3:.4f}"
        lines.append(f"{line} checkpoint written\n" if i % 100 == 99 else f"{line} grad_norm {i % 7919 / 1e4:.4f}\n")
    lines[-1] = f"2030-01-31 08:59:59,900 [WARN] trainer: step {_PIECE_LINES} is a needle\n"
    piece = "".join(lines).encode()
    times = SIZE // len(piece)
    with open(path, "wb") as file:
        for _ in range(times):
            file.write(piece)
    return {"none": 0, "few": times, "many": times * (_PIECE_LINES // 100 - 1), "all": times * _PIECE_LINES}


def _at(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
