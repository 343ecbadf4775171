"""Readings of processes, and what many readings come to."""

import http.client
import math
import os
import re
import socket
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def median(values: Iterable[float]) -> float:
    return statistics.median(values)


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least `percent` of 100 are not above (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def pss_mb(pid: int) -> float:
    """Proportional set size in MB (10^6 bytes). Raises OSError where the process is gone or not ours to read."""
    return _rollup_mb(pid, "Pss:")


def own_mb(pid: int) -> float:
    """Memory that the process has written to and shares with none, in MB. Raises OSError as `pss_mb`."""
    return _rollup_mb(pid, "Private_Dirty:")


def _rollup_mb(pid: int, name: str) -> float:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024 / 1e6
    return 0.0


def peak_rss_mb(pid: int) -> float:
    """Largest resident set so far in MB. Raises OSError."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / 1e6
    return 0.0


def cpu_seconds(pid: int) -> float:
    """User and system time of all threads that a process has and had, without its children, in steps of a clock tick
    (10 ms). Raises OSError."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * _TICK_S


def main_thread_cpu_seconds(pid: int) -> float:
    """The same of the main thread, to the nanosecond where the kernel keeps scheduler statistics: all there is to know
    of a process with one thread. Raises OSError where the process is gone."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
    except FileNotFoundError:
        return cpu_seconds(pid)


def main_thread_waits_seconds(pid: int) -> float:
    """How long the main thread wanted to run and had no core; 0 where the kernel keeps no scheduler statistics."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except FileNotFoundError:
        return 0.0


def loop_lags(metrics: Path) -> dict[float, int]:
    """By upper bound in seconds, how often the daemon's event loop woke by no more than so much late, so far: each half
    a second of somebody's looking is one. `metrics`: the socket of its metrics. Raises OSError."""
    connection = http.client.HTTPConnection("localhost")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.settimeout(10.0)
    connection.sock.connect(str(metrics))
    connection.request("GET", "/metrics")
    page = connection.getresponse().read().decode()
    connection.close()
    return {
        float(bound.replace("+", "")): int(count)
        for bound, count in re.findall(r'^muster_loop_lag_seconds_bucket{le="(.+?)"} (\d+)', page, re.MULTILINE)
    }


def lag_of(before: dict[float, int], after: dict[float, int]) -> str:
    """What came between two readings of `loop_lags`."""
    counts = {bound: after[bound] - before.get(bound, 0) for bound in sorted(after)}
    beats = max(counts.values())
    if not beats:
        return "no beat of the loop was measured"
    worst = next(bound for bound, count in counts.items() if count == beats)
    late = beats - counts[0.01]
    return f"of {beats} beats of the loop {late} were over 10 ms late, none over {worst * 1e3:g} ms"
