"""Reads a pickle that holds plain data, without running it.

A pickle is a program for a stack machine; `pickle.load` would run what another user wrote, as root. This is a machine
of its own over `pickletools.genops`, which only decodes. It has the opcodes that make text, numbers, None, booleans,
lists, tuples and dictionaries, and no other: none that imports, calls, builds or copies. PyTorch's own pickler writes
no others into a dump of its flight recorder (seen in dumps of 2.13 on gloo; torch/csrc/jit/serialization/pickler.cpp).
"""

import io
import pickletools
from collections.abc import Callable
from typing import Final

#: Limits of one pickle: opcodes, objects that it makes, places of its memo, containers within containers. A full ring
#: of 2000 entries with 30 frames each has 690,000 opcodes and 280,000 objects, and takes 0.7 s.
MAX_OPS, MAX_OBJECTS, MAX_MEMO, MAX_DEPTH = 4_000_000, 1_000_000, 500_000, 32

#: A list or dictionary counts as so many objects: it takes as much memory.
_CONTAINER = 3

_CONSTANTS: Final = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_VALUES: Final = frozenset(
    ("BININT", "BININT1", "BININT2", "INT", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE")
)
_PUTS: Final = frozenset(("BINPUT", "LONG_BINPUT"))
_GETS: Final = frozenset(("BINGET", "LONG_BINGET"))
_TUPLES: Final = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_IGNORED: Final = frozenset(("PROTO", "FRAME"))
_MARK: Final = object()


class BadPickle(Exception):
    """It holds something else than plain data, or too much of it, or is damaged."""


class PickleIncomplete(BadPickle):
    """It ends before its end: a file that is being written."""


def load_plain(data: bytes) -> object:
    """The value in `data`: None, booleans, numbers, texts, and lists, tuples and dictionaries with texts as keys, in
    which one object may stand at several places, but none in itself. Raises BadPickle, PickleIncomplete."""
    stream = io.BytesIO(data)
    machine = _Machine()
    try:
        for opcode, argument, at in pickletools.genops(stream):
            if opcode.name == "STOP":
                if stream.tell() != len(data):
                    raise BadPickle(f"{len(data) - stream.tell()} bytes follow its end")
                return machine.result()
            machine.step(opcode.name, argument, at)
    except UnicodeDecodeError as error:
        raise BadPickle(f"it holds a text that is not UTF-8: {error.reason}") from None
    except ValueError as error:
        # genops raises the same for both; what is incomplete was read to its end in vain.
        if "unknown" not in str(error) and stream.tell() >= len(data):
            raise PickleIncomplete("it ends before its end (STOP): it is being written, or was cut") from None
        raise BadPickle(str(error)[:200]) from None
    raise PickleIncomplete("it is empty")  # not reached: genops raises


class _Machine:
    def __init__(self) -> None:
        self._stack: list[object] = []
        self._memo: dict[int, object] = {}
        self._ops = 0
        self._objects = 0
        #: Of containers that are in no other yet, and of all others, by id, with what keeps the id theirs. A container
        #: is filled before it is put into another one: so depths are right, and nothing contains itself.
        self._depth: dict[int, int] = {}
        self._kept: list[object] = []
        self._closed: set[int] = set()
        self._actions: dict[str, Callable[[], None]] = {
            "MARK": lambda: self._stack.append(_MARK),
            "MEMOIZE": lambda: self._put(len(self._memo)),
            "EMPTY_LIST": lambda: self._push_container([], 1),
            "EMPTY_DICT": lambda: self._push_container({}, 1),
            "APPEND": lambda: self._append(self._take(1)),
            "APPENDS": lambda: self._append(self._to_mark()),
            "SETITEM": lambda: self._set(self._take(2)),
            "SETITEMS": lambda: self._set(self._to_mark()),
            "TUPLE": lambda: self._push_tuple(self._to_mark()),
        }

    def result(self) -> object:
        if len(self._stack) != 1 or self._stack[0] is _MARK:
            raise BadPickle(f"it ends with {len(self._stack)} values instead of one")
        return self._stack[0]

    def step(self, name: str, argument: object, at: int | None) -> None:
        self._ops += 1
        if self._ops > MAX_OPS:
            raise BadPickle(f"it has more than {MAX_OPS} opcodes")
        if name in _VALUES:
            self._count()
            self._stack.append(argument)
        elif name in _PUTS:
            self._put(_index(argument))
        elif name in _GETS:
            self._get(_index(argument))
        elif name in _CONSTANTS:
            self._stack.append(_CONSTANTS[name])
        elif name in _TUPLES:
            self._push_tuple(self._take(_TUPLES[name]))
        elif action := self._actions.get(name):
            action()
        elif name not in _IGNORED:
            raise BadPickle(f"it has the opcode {name} at byte {at}, which plain data does not have")

    # --- memo ---------------------------------------------------------------------------------------------------------

    def _put(self, index: int) -> None:
        if not self._stack or self._stack[-1] is _MARK:
            raise BadPickle("it stores a value where it has none")
        if len(self._memo) >= MAX_MEMO and index not in self._memo:
            raise BadPickle(f"its memo has more than {MAX_MEMO} places")
        self._memo[index] = self._stack[-1]

    def _get(self, index: int) -> None:
        try:
            self._stack.append(self._memo[index])
        except KeyError:
            raise BadPickle(f"it fetches the value {index}, which it has not stored") from None

    # --- values -------------------------------------------------------------------------------------------------------

    def _count(self, weight: int = 1) -> None:
        self._objects += weight
        if self._objects > MAX_OBJECTS:
            raise BadPickle(f"it makes more than {MAX_OBJECTS} objects")

    def _push_container(self, container: object, depth: int) -> None:
        self._count(_CONTAINER)
        if depth > MAX_DEPTH:
            raise BadPickle(f"it is nested more than {MAX_DEPTH} deep")
        self._stack.append(container)
        self._kept.append(container)
        self._depth[id(container)] = depth

    def _push_tuple(self, items: list[object]) -> None:
        self._push_container(tuple(items), 1 + self._close(items))

    def _append(self, items: list[object]) -> None:
        target = self._target()
        if not isinstance(target, list):
            raise BadPickle("it appends to something that is no list")
        self._deepen(target, items)
        target.extend(items)

    def _set(self, items: list[object]) -> None:
        target = self._target()
        if not isinstance(target, dict) or len(items) % 2:
            raise BadPickle("it sets items of something that is no dictionary")
        for key in items[::2]:
            if not isinstance(key, str):  # numbers could be chosen such that all of them collide
                raise BadPickle("it has a dictionary with keys that are no text")
        self._deepen(target, items)
        target.update(zip(items[::2], items[1::2], strict=True))

    def _deepen(self, target: object, items: list[object]) -> None:
        """Before `items` go into `target`."""
        depth = max(self._depth[id(target)], 1 + self._close(items))
        if id(target) in self._closed:
            raise BadPickle("it changes a container that is in another one already")
        if depth > MAX_DEPTH:
            raise BadPickle(f"it is nested more than {MAX_DEPTH} deep")
        self._depth[id(target)] = depth

    def _close(self, items: list[object]) -> int:
        """The depth of the deepest of these, which are put into a container."""
        deepest = 0
        for item in items:
            if isinstance(item, list | dict | tuple):
                self._closed.add(id(item))
                deepest = max(deepest, self._depth[id(item)])
        return deepest

    # --- stack --------------------------------------------------------------------------------------------------------

    def _target(self) -> object:
        if not self._stack:
            raise BadPickle("it changes a value where it has none")
        return self._stack[-1]

    def _take(self, count: int) -> list[object]:
        taken = self._stack[len(self._stack) - count :] if count <= len(self._stack) else [_MARK]
        if _MARK in taken:
            raise BadPickle("it takes more values than it has")
        del self._stack[len(self._stack) - count :]
        return taken

    def _to_mark(self) -> list[object]:
        for place in range(len(self._stack) - 1, -1, -1):
            if self._stack[place] is _MARK:
                taken = self._stack[place + 1 :]
                del self._stack[place:]
                return taken
        raise BadPickle("it takes values back to a mark that it has not set")


def _index(argument: object) -> int:
    assert isinstance(argument, int)
    return argument
