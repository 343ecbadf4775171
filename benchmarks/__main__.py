"""`python -m benchmarks [NAME...] [--json FILE]`: runs all or some, and shows a table at the end."""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc

from benchmarks import (
    creation,
    ended,
    exits,
    fleet,
    load,
    memory,
    movers,
    output,
    prompt,
    reading,
    sampler,
    start,
)
from benchmarks.node import BenchmarkFailed
from benchmarks.peers import Peers
from benchmarks.report import Row, machine, table, write_json

FIGURES: dict[str, Callable[[Peers], Iterator[Row]]] = {
    "start": start.run,
    "creation": creation.run,
    "prompt": prompt.run,
    "output": output.run,
    "movers": movers.run,
    "reading": reading.run,
    "exits": exits.run,
    "memory": memory.run,
    "idle": memory.run_idle,
    "sampler": sampler.run,
    "load": load.run,
    "ended": ended.run,
    "fleet": fleet.run,
}
#: Only by name: 200 daemons take 10 GB of memory.
ON_DEMAND = frozenset({"fleet"})


def main() -> int:
    """Exit code 0: everything ran, whether or not a budget was met; 1: something failed that is measured."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="muster's budgets, each measured beside its peer in the same run",
        epilog="Files go below TMPDIR. MUSTER_BENCH_TORCHRUN names a torchrun that is not in the PATH. "
        "Slurm is run from its installed programs, as root, in a folder of its own.",
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME",
        help=f"one of {', '.join(FIGURES)}; without, all but {', '.join(sorted(ON_DEMAND))}",
    )  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there as well")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.names if name not in FIGURES]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; known are {', '.join(FIGURES)}")

    # With it, each process would compile all of its modules, which no installation does.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    rows: list[Row] = []
    failed = False
    load_before = os.getloadavg()[0]
    with Peers() as peers:
        for name in arguments.names or [name for name in FIGURES if name not in ON_DEMAND]:
            begin = time.monotonic()
            print(f"{name} ...", end="", file=sys.stderr, flush=True)
            try:
                rows.extend(FIGURES[name](peers))
                print(f" {time.monotonic() - begin:.0f} s", file=sys.stderr)
            except (BenchmarkFailed, grpc.RpcError, subprocess.TimeoutExpired) as error:
                failed = True
                said = f"{error.code().name}: {error.details()}" if isinstance(error, grpc.Call) else str(error)
                print(f" FAILED: {said}", file=sys.stderr)
    where = machine(Path(tempfile.gettempdir()), load_before)
    print(f"{table(rows)}\n\n{where}")
    if arguments.json is not None:
        write_json(arguments.json, rows, where)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
