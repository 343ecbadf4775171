"""`python -m benchmarks.growth [CURVE...]`: measures curves, and writes data and picture of each into a folder."""

import argparse
import json
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import grpc

from benchmarks.growth.curve import STEEP, Curve, Found, Skipped, exponents
from benchmarks.growth.curves import CURVES
from benchmarks.growth.picture import draw
from benchmarks.node import BenchmarkFailed
from benchmarks.report import machine

FOLDER = Path("docs/concepts/growth")


def main() -> int:
    """Exit code 0: all was measured, or skipped for want of room; 1: something failed that is measured."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.growth", description="How muster's costs grow. Files go below TMPDIR."
    )
    parser.add_argument("names", nargs="*", metavar="CURVE", help=f"one of {', '.join(CURVES)}; without, all")
    parser.add_argument("--short", action="store_true", help="fewer and smaller points: a few minutes for all")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where CURVE.json and CURVE.svg go (%(default)s)")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.names if name not in CURVES]:
        parser.error(f"unknown: {', '.join(unknown)}; known are {', '.join(CURVES)}")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # with it, each process would compile all of its modules
    arguments.folder.mkdir(parents=True, exist_ok=True)
    failed = False
    for name in arguments.names or CURVES:
        curve = CURVES[name]
        load = os.getloadavg()[0]
        begin = time.monotonic()
        found, wrong = _measured(curve, curve.few if arguments.short else curve.points)
        failed = failed or wrong
        if found:
            _write(arguments.folder, curve, found, load, short=arguments.short)
            _show(curve, found)
        print(f"{name}: {time.monotonic() - begin:.0f} s\n", flush=True)
    return 1 if failed else 0


def _measured(curve: Curve, points: Sequence[float]) -> tuple[list[Found], bool]:
    """What was found, in order, and whether something went wrong."""
    found, wrong = list[Found](), False
    for x in points:
        try:
            found.append(Found(x, dict(curve.measure(x))))
        except Skipped as reason:
            print(f"{curve.name}, {x:g}: skipped: {reason}", file=sys.stderr)
        except (BenchmarkFailed, grpc.RpcError) as error:
            wrong = True
            said = f"{error.code().name}: {error.details()}" if isinstance(error, grpc.Call) else str(error)
            print(f"{curve.name}, {x:g}: FAILED: {said}", file=sys.stderr)
    return found, wrong


def _write(folder: Path, curve: Curve, found: Sequence[Found], load: float, *, short: bool) -> None:
    watched = os.environ.get("MUSTER_GROWTH_WATCH")
    command = f"MUSTER_GROWTH_WATCH={watched} " if watched else ""
    command += shlex.join(["python", "-m", "benchmarks.growth", curve.name, *(["--short"] if short else [])])
    where = machine(Path(tempfile.gettempdir()), load)
    data = {
        "curve": curve.name,
        "varied": curve.varied,
        "command": command,
        "machine": asdict(where),
        "points": [asdict(one) for one in found],
        "exponents": {line: exponents(found, line) for line in found[0].values},
    }
    (folder / f"{curve.name}.json").write_text(json.dumps(data, indent=1) + "\n")
    (folder / f"{curve.name}.svg").write_text(draw(f"{command}: {where}", curve.varied, found))


def _show(curve: Curve, found: Sequence[Found]) -> None:
    print(f"{curve.varied}: {', '.join(f'{one.x:g}' for one in found)}")
    for line in found[0].values:
        whole, above = exponents(found, line)
        steep = " STEEPER THAN LINEAR" if above > STEEP or whole > STEEP else ""
        values = ", ".join(f"{one.values[line]:.3g}" for one in found)
        print(f"  {line}: {values}; exponent {whole:.2f}, above the first point {above:.2f}{steep}")


if __name__ == "__main__":
    sys.exit(main())
