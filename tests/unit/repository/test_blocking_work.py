"""Blocking work of the daemon gets its threads from agent/threads.py alone: it knows what to do where there is none."""

import ast
import functools
from pathlib import Path

from tests.unit.repository.sources import ROOT, nodes

AGENT = ROOT / "agent"
#: Names of what starts a thread, or hands work to one.
STARTERS = {"to_thread", "run_in_executor", "ThreadPoolExecutor", "Thread"}
#: Modules that may name them all the same, and why.
MAY = {
    "threads.py": "the one place",
    "cli": "a command has no event loop",
}


def _starts_threads(path: Path) -> bool:
    for node in nodes(path):
        if isinstance(node, ast.Attribute) and node.attr in STARTERS:
            return True
        if isinstance(node, ast.ImportFrom) and not STARTERS.isdisjoint(alias.name for alias in node.names):
            return True
        if isinstance(node, ast.Import) and any(alias.name == "anyio.to_thread" for alias in node.names):
            return True
    return False


@functools.cache
def _found() -> set[str]:
    return {str(path.relative_to(AGENT)) for path in AGENT.rglob("*.py") if _starts_threads(path)}


def test_one_module_hands_work_to_threads() -> None:
    others = sorted(name for name in _found() if not any(Path(name).is_relative_to(may) for may in MAY))
    assert not others, f"use agent/threads.py instead: {', '.join(others)}"


def test_each_exception_is_one() -> None:
    idle = sorted(may for may in MAY if not any(Path(name).is_relative_to(may) for name in _found()))
    assert not idle, f"they start no thread, and need no exception: {', '.join(idle)}"
