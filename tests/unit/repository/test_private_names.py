"""Tests check from outside: none reaches into what a module, or an object, keeps to itself."""

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]
#: Public in spite of their underscore: documented of every named tuple, and of ctypes' structs.
_DOCUMENTED = {"_replace", "_asdict", "_fields", "_make", "_fields_"}
_BY_NAME = {"setattr", "getattr", "delattr", "hasattr"}


def private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__") and name not in _DOCUMENTED


def ours(module: str | None) -> bool:
    return (module or "tests").partition(".")[0] in ("muster", "tests", "benchmarks", "scripts")


def reaches(source: str) -> list[str]:
    """Line and words of each place of a module that names what is private to another."""
    tree, found, others = ast.parse(source), list[tuple[int, str]](), set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            others |= {(name.asname or name.name).partition(".")[0] for name in node.names if not ours(name.name)}
        elif isinstance(node, ast.ImportFrom):
            if not ours(node.module):
                others |= {name.asname or name.name for name in node.names}
            else:
                found += [(node.lineno, name.name) for name in node.names if private(name.name)]

    def known(value: ast.expr) -> bool:
        """Whether this is one's own, or of a library, which may have its reasons (`os._exit`)."""
        return isinstance(value, ast.Name) and value.id in {"self", "cls", *others}

    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and private(node.attr) and not known(node.value):
            found.append((node.lineno, ast.unparse(node)))
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in _BY_NAME:
            about = [arg for arg in node.args[:2] if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
            named = any(private(str(arg.value).rpartition(".")[2]) for arg in about)
            if named and not (node.args and known(node.args[0])):
                found.append((node.lineno, ast.unparse(node)))
    return [f"line {line}: {words}" for line, words in sorted(found)]


def test_tests_use_what_is_public() -> None:
    found = {str(path.relative_to(TESTS)): reaches(path.read_text()) for path in TESTS.rglob("*.py")}
    assert len(found) > 200 and not {path: places for path, places in found.items() if places}


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("from muster.agent import errors\nerrors._x", 1),
        ("from muster.agent.errors import _x", 1),
        ("monkeypatch.setattr('muster.agent.errors._x', 1)", 1),
        ("from muster.agent import errors\nmonkeypatch.setattr(errors, '_x', 1)", 1),
        ("made().it._x._y", 2),
        ("class A:\n    def f(self):\n        return self._x, a.__dict__, a._replace(b=1)", 0),
        ("import os\nos._exit(1)", 0),
    ],
)
def test_the_rule_sees_what_it_should(source: str, count: int) -> None:
    assert len(reaches(source)) == count
