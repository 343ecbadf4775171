"""Our own modules as they are written, each parsed once and for all tests, and not before one of them runs: every
worker of pytest collects all tests, and most workers run none of these."""

import ast
import functools
from pathlib import Path

ROOT = Path(__file__).parents[3]


def modules() -> dict[str, Path]:
    """Every module of agent/, supervisors/ and probes/ by the name that it is imported by."""
    paths = [path for top in ("agent", "supervisors", "probes") for path in (ROOT / top).rglob("*.py")]
    return {"muster." + ".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in paths}


@functools.cache
def tree(path: Path) -> ast.Module:
    """What it consists of."""
    return ast.parse(path.read_text())


@functools.cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """All of it, one after the other: most of the time goes into this walk."""
    return tuple(ast.walk(tree(path)))
