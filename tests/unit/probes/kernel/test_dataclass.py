"""The decorator of values does what the library's does."""

import ast
import copy
import dataclasses
import importlib
import importlib.util
import pkgutil
from dataclasses import FrozenInstanceError, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import muster
from muster.probes.kernel import dataclass as quick

ROOT = Path(__file__).parents[4]


def both(**options: Any) -> list[Any]:
    """The same class, made by the library and by ours."""

    def made(decorator: Any) -> Any:
        @decorator(**options)
        class Point:
            """A point."""

            x: int
            y: int = 2
            tags: list[str] = field(default_factory=list)
            note: str = field(default="n", compare=False, repr=False)
            late: int = field(default=5, kw_only=True)
            own: list[int] = field(init=False, default_factory=list)
            fixed: str = field(init=False, default="f")

        return Point

    return [made(dataclasses.dataclass), made(quick.dataclass)]


OPTIONS = [
    {},
    {"slots": True},
    {"frozen": True},
    {"frozen": True, "slots": True},
    {"frozen": True, "slots": True, "eq": False},
    {"slots": True, "weakref_slot": True},
    {"repr": False},
]


def outcome(action: Any) -> Any:
    """What an action returns, or the kind of its error and what that says."""
    try:
        return action()
    except Exception as error:
        return type(error), str(error)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@given(
    arguments=st.lists(st.integers(0, 2), max_size=5),
    named=st.dictionaries(st.sampled_from("xy"), st.integers(0, 2)),
)
def test_objects_are_made_and_compared_as_by_the_library(options, arguments, named) -> None:
    named = {"late": 1, **named} if arguments else named
    theirs, ours = ([outcome(lambda c=c: c(*arguments, **named)) for _ in range(2)] for c in both(**options))
    if isinstance(theirs[0], tuple):
        assert [error[1] for error in ours] == [error[1] for error in theirs]
        return
    assert dataclasses.asdict(ours[0]) == dataclasses.asdict(theirs[0])
    assert (ours[0] == ours[1]) == (theirs[0] == theirs[1])
    assert ours[0] != theirs[0]
    if options.get("repr", True):
        assert repr(ours[0]) == repr(theirs[0])
    assert outcome(lambda: hash(ours[0]) == hash(ours[1])) == outcome(lambda: hash(theirs[0]) == hash(theirs[1]))
    for change in (lambda o: setattr(o, "x", 7), lambda o: delattr(o, "y")):
        assert outcome(lambda c=change: c(ours[0])) == outcome(lambda c=change: c(theirs[0]))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_copies(options) -> None:
    for cls in both(**options):
        one = cls(1, tags=["a"])
        other = dataclasses.replace(one, y=3)
        assert (other.x, other.y, other.tags) == (1, 3, ["a"])
        assert dataclasses.astuple(copy.deepcopy(one)) == dataclasses.astuple(one)
        assert cls.__match_args__ == ("x", "y", "tags", "note")


def test_each_object_has_a_default_of_its_own() -> None:
    _, ours = both()
    assert ours(1).tags is not ours(1).tags
    assert ours(1).own is not ours(1).own


def test_a_class_keeps_its_own_methods_and_those_of_its_base() -> None:
    @quick.dataclass(frozen=True, slots=True)
    class Base:
        x: int

        def __post_init__(self) -> None:
            if self.x < 0:
                raise ValueError("below 0")

        def __repr__(self) -> str:
            return f"<{self.x}>"

    @quick.dataclass(frozen=True, slots=True)
    class Further(Base):
        y: int = 0

        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 3

    assert repr(Base(1)) == "<1>" and Base(1) != Base(2)
    assert Further(1) == Further(2) and hash(Further(1)) == 3
    assert (Further(1, 4).x, Further(1, 4).y) == (1, 4)
    with pytest.raises(ValueError, match="below 0"):
        Further(-1)
    with pytest.raises(FrozenInstanceError):
        Further(1).x = 2  # type: ignore[misc]


def test_an_object_in_itself_can_be_shown() -> None:
    @quick.dataclass
    class Node:
        inner: list[object]

    node = Node([])
    node.inner.append(node)
    assert repr(node).endswith("Node(inner=[...])")


#: Rooms that need a library which `make setup` does not install.
EXTRAS = (("muster.torchx", "torchx"), ("muster.agent.cli.commands.kube", "kubernetes"))


def test_every_class_of_ours_can_be_made() -> None:
    """The library refuses a wrong class where it stands; ours does so when it is used."""
    for module in pkgutil.walk_packages(muster.__path__, "muster."):
        if any(module.name.startswith(room) and importlib.util.find_spec(library) is None for room, library in EXTRAS):
            continue
        if "__main__" not in module.name:
            importlib.import_module(module.name)
    quick.compile_all()


def test_no_module_of_ours_uses_the_library() -> None:
    for tree in ("agent", "supervisors", "probes"):
        for path in (ROOT / tree).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ImportFrom) and node.module == "dataclasses" and path.stem != "dataclass":
                    names = [alias.name for alias in node.names]
                    assert "dataclass" not in names, f"{path}: import it from muster.probes.kernel.dataclass"
