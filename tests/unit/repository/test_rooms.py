"""The rooms of the code: how many modules each has, and that `__init__` says what for and what others may use."""

import ast
import functools
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.repository.sources import ROOT, modules, nodes, tree

#: Modules in one folder, at most: so many can be kept in one's head.
MOST_MODULES = 15


MODULES = modules()
ROOMS = sorted({path.parent for path in MODULES.values()})
NAMES = [str(room.relative_to(ROOT)) for room in ROOMS]


def _imported(path: Path) -> Iterator[Path]:
    """Modules of ours that a module imports."""
    for node in nodes(path):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        yield from (MODULES[name] for name in names if name in MODULES)


@functools.cache
def _used_by_others() -> dict[Path, set[str]]:
    """By room, its modules that are imported by a module of another room; a room below it is a part of it."""
    used: dict[Path, set[str]] = defaultdict(set)
    for path in MODULES.values():
        for other in _imported(path):
            if other.name != "__init__.py" and not path.parent.is_relative_to(other.parent):
                used[other.parent].add(other.stem)
    return used


@pytest.mark.parametrize("room", ROOMS, ids=NAMES)
def test_a_room_is_not_overcrowded(room: Path) -> None:
    modules = sorted(path.name for path in room.glob("*.py") if path.name != "__init__.py")
    assert len(modules) <= MOST_MODULES, f"{room}: move some of its {len(modules)} modules into a room of their own"


@pytest.mark.parametrize("room", ROOMS, ids=NAMES)
def test_a_room_says_what_it_is_for_and_what_others_use(room: Path) -> None:
    doc = ast.get_docstring(tree(room / "__init__.py")) or ""
    assert doc, f"{room}/__init__.py: say what the room is for"
    exported = " ".join(path.stem for path in _imported(room / "__init__.py"))
    named = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]*)`", doc)))) | set(exported.split())
    missing = sorted(_used_by_others().get(room, set()) - named)
    assert not missing, f"{room}/__init__.py: name what other rooms import from it: {', '.join(missing)}"
