"""One name for one thing: classes and modules have names that nothing else has, the public client included."""

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[3]
CLIENT = [path for room in ("client", "torchx") for path in (ROOT / "proto" / "muster" / room).glob("*.py")]
MODULES = [path for tree in ("agent", "supervisors", "probes") for path in (ROOT / tree).rglob("*.py")]
#: The same thing for NVIDIA and for Ascend.
VENDORS = {"nvidia", "ascend"}
#: Of the client's modules, which programs import: the errors of a call, and the gang of several nodes.
PUBLIC = {"errors", "gang"}


def several(found: dict[str, list[str]]) -> dict[str, list[str]]:
    return {name: places for name, places in found.items() if len(places) > 1}


def test_no_two_classes_have_one_name():
    found: dict[str, list[str]] = defaultdict(list)
    for path in MODULES + CLIENT:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                found[node.name].append(str(path.relative_to(ROOT)))
    assert len(found) > 300 and not several(found), several(found)


def test_no_two_modules_have_one_name():
    found: dict[str, list[str]] = defaultdict(list)
    for path in MODULES + [path for path in CLIENT if path.stem not in PUBLIC]:
        if path.name != "__init__.py" and path.parent.name not in VENDORS:
            found[path.stem].append(str(path.relative_to(ROOT)))
    assert len(found) > 200 and not several(found), several(found)
