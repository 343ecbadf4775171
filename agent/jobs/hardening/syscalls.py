"""Numbers of system calls by name, for the machine that this runs on (syscalls.txt)."""

import functools
import os
from pathlib import Path

from muster.probes.kernel.dataclass import dataclass

_TABLE = Path(__file__).with_name("syscalls.txt")


@dataclass(frozen=True, slots=True)
class Architecture:
    """`audit`: AUDIT_ARCH_* of linux/audit.h; `column` of the table; `go`: what docker's profiles call it."""

    audit: int
    column: int
    go: str
    #: Numbers from here on are those of another ABI (x32).
    foreign: int = 1 << 32


ARCHITECTURES = {
    "x86_64": Architecture(0xC000003E, 1, "amd64", 0x40000000),
    "aarch64": Architecture(0xC00000B7, 2, "arm64"),
}


def here() -> Architecture | None:
    """That of this machine; None where there is no table for it."""
    return ARCHITECTURES.get(os.uname().machine)


@functools.cache
def numbers(architecture: Architecture) -> dict[str, int]:
    """By name."""
    rows = (line.split() for line in _TABLE.read_text().splitlines() if not line.startswith("#"))
    return {row[0]: int(row[architecture.column]) for row in rows if row[architecture.column] != "-"}
