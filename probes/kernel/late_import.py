"""Names of a room whose modules are imported when they are used: a process that does not use them starts sooner."""

import importlib
import sys
from collections.abc import Callable, Mapping
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
