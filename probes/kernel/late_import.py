"""Imports that wait until they are used, or are left out: a process that does not use a module starts sooner."""

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from types import ModuleType
from typing import Any


def names(room: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a room: `modules` has the module of each name, by its name in the room."""

    def __getattr__(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {room!r} has no attribute {name!r}")
        found = getattr(importlib.import_module(f"{room}.{modules[name]}"), name)
        setattr(sys.modules[room], name, found)
        return found

    return __getattr__


@contextmanager
def noted(*modules: str) -> Iterator[None]:
    """Within the `with`, an import of these modules only notes them: the first use of an attribute runs them. That use
    must not be in two threads at once (python/cpython#86826). Modules that are already imported stay as they are."""
    finder = _Finder(frozenset(modules))
    sys.meta_path.insert(0, finder)  # its base class, importlib.abc, would import 20 modules
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


@contextmanager
def without(*names: str) -> Iterator[None]:
    """Within the `with`, these packages are not installed, for a module that would import them if they were."""
    hidden = [name for name in names if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # None: as Python documents it
    try:
        yield
    finally:
        for name in hidden:
            sys.modules.pop(name, None)


@contextmanager
def without_openssl() -> Iterator[None]:
    """Within the `with`, nothing that is imported loads OpenSSL, which costs a process some MB.

    For one that makes no TLS connections with asyncio, uvloop or anyio: these read names of `ssl` as they are imported,
    and keep classes that nobody uses. hashlib and hmac take Python's own functions, which have the same names. Behind
    the `with` an import of `ssl` gives the module itself.
    """
    stands_in = {} if "ssl" in sys.modules else {"ssl": _StandIn("ssl")}
    sys.modules.update(stands_in)
    try:
        with without("_hashlib"):
            yield
    finally:
        for name in stands_in:
            sys.modules.pop(name, None)


class _StandIn(ModuleType):
    """For a module of which only the names are read: one in capitals is -1, each other one an exception."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found: Any = -1 if name.isupper() else type(name, (Exception,), {})
        setattr(self, name, found)
        return found


class _Finder:
    def __init__(self, names: frozenset[str]) -> None:
        self._names = names

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path) if fullname in self._names else None
        if spec is not None and spec.loader is not None:
            spec.loader = LazyLoader(spec.loader)
        return spec
