"""What a benchmark found, and how it is shown."""

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

_HEAD = ("what", "muster", "peer", "ratio", "budget", "")


@dataclass(frozen=True, slots=True)
class Row:
    """One figure beside one peer. A peer that could not be run has no value, and the note says why."""

    what: str
    muster: float
    #: Of both values; "" for a bare number.
    unit: str
    peer: str = ""
    peer_value: float | None = None
    #: In words; empty where design sets none.
    budget: str = ""
    met: bool | None = None
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """muster's value as a part of the peer's."""
        return self.muster / self.peer_value if self.peer_value else None

    def cells(self) -> tuple[str, ...]:
        peer = self.peer
        if self.peer_value is not None:
            peer = f"{self.peer} {_number(self.peer_value)} {self.unit}".strip()
        ratio = "" if self.ratio is None else f"{self.ratio:.2f}"
        verdict = {True: "met", False: "MISSED", None: ""}[self.met]
        return self.what, f"{_number(self.muster)} {self.unit}".strip(), peer, ratio, self.budget, verdict


@dataclass(frozen=True, slots=True)
class Machine:
    """Where it was measured. Names no host."""

    processor: str
    cores: int
    memory_gib: float
    kernel: str
    python: str
    #: Kind of the file system that the benchmark's files were on.
    file_system: str
    #: Load average of the last minute, before the run and behind it: other work on the machine spoils figures.
    load_before: float
    load_after: float

    def __str__(self) -> str:
        return (
            f"{self.processor}, {self.cores} cores, {self.memory_gib:.0f} GiB; Linux {self.kernel}, files on "
            f"{self.file_system}; Python {self.python}; load {self.load_before:.1f} before, {self.load_after:.1f} after"
        )


def machine(folder: Path, load_before: float) -> Machine:
    """This machine; `folder` is one in which the benchmark writes."""
    processor = platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            processor = line.partition(":")[2].strip()
            break
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    cores = len(os.sched_getaffinity(0))
    return Machine(
        processor, cores, memory, platform.release(), platform.python_version(),
        _file_system(folder), load_before, os.getloadavg()[0],
    )  # fmt: skip


def table(rows: Sequence[Row]) -> str:
    """For people: a line per row, below it the row's note."""
    cells = [_HEAD, *(row.cells() for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(_HEAD))]
    shown: list[str] = []
    for i, line in enumerate(cells):
        shown.append("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
        if i == 0:
            shown.append("  ".join("-" * width for width in widths).rstrip())
        elif rows[i - 1].note:
            shown.append(f"    {rows[i - 1].note}")
    return "\n".join(shown)


def write_json(path: Path, rows: Sequence[Row], where: Machine) -> None:
    """For programs. Raises OSError."""
    found = {"machine": asdict(where), "rows": [asdict(row) | {"ratio": row.ratio} for row in rows]}
    path.write_text(json.dumps(found, indent=1) + "\n")


def _number(value: float) -> str:
    """Three digits that count."""
    if value == 0 or abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _file_system(folder: Path) -> str:
    """Kind of the file system of the longest mount point above `folder`."""
    best, kind = "", "an unknown file system"
    for line in Path("/proc/mounts").read_text().splitlines():
        _, point, this, *_ = line.split()
        if folder.resolve().is_relative_to(point) and len(point) >= len(best):
            best, kind = point, this
    return kind
