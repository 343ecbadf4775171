"""What the nursery does with its memory before it forks, so that supervisors copy little of it.

A supervisor owns each page that it has written to since the fork. An interpreter writes to the page of whatever it
uses, because it counts references, and puts new objects between old ones. From Python 3.12 on there are immortal
objects, whose count stays as it is (PEP 683 names copies after a fork as a reason). Python has no call that makes an
object immortal, so here such a count is written to objects. That halves the memory of a supervisor.
"""

import ctypes
import gc
import sys
import types
from collections.abc import Iterable
from enum import EnumType
from typing import Any, Final

from muster.supervisors.system import malloc

#: Versions of which it is known, and tested, where an object's count is and what that of an immortal one does.
VERSIONS: Final = ((3, 12), (3, 14))
#: Kinds of which nothing happens when the last reference goes, but that memory is freed.
_KINDS: Final = frozenset(
    {
        types.CodeType, types.FunctionType, types.ModuleType, types.BuiltinFunctionType, types.CellType,
        types.MethodDescriptorType, types.WrapperDescriptorType, types.GetSetDescriptorType,
        types.MemberDescriptorType, types.ClassMethodDescriptorType, property, staticmethod, classmethod,
        dict, tuple, frozenset, str, bytes, int, float,
    }
)  # fmt: skip

#: All memory as words of four bytes: a count is at the address that `id` tells.
_Counts = ctypes.Array[ctypes.c_uint32]
_WORD_BITS, _ADDRESS_BITS = 2, 48
#: The least count of an immortal object, and one with room to both sides.
_LEAST, _IMMORTAL = 0x8000_0000, 0xE000_0000

#: Python's allocator, from pymalloc's obmalloc.c: a pool has blocks of one size, the first of them behind its head.
_POOL_BYTES, _POOL_HEAD_BYTES, _BLOCK_BYTES, _LARGEST_BLOCK = 16 << 10, 48, 16, 512
#: Of one size; there are 0.3 MB of holes in all.
_MOST_FILLED_BYTES = 128 << 10
_BYTES_HEAD = sys.getsizeof(b"")
#: So many strings are made at most to have Python's table of them grow.
_MOST_NAMES = 12_000

_filling: list[object] = []


def prepare(*, many: bool) -> None:
    """To be called once, with all that is kept imported and used. `many`: there will be more than one supervisor, for
    which it pays to take 40 ms."""
    _make_room_for_names()
    gc.collect()  # what is garbage would stay
    if many:
        make_immortal()
    malloc.trim()
    # Every supervisor shares the present objects: they are complete, and the collector does not touch and so copy them.
    gc.freeze()
    if many:
        _fill_holes()


def make_immortal() -> int:
    """Makes what was imported immortal: code, functions, classes, modules and their constants. To be called before
    `gc.freeze`, which hides objects, by a process that keeps all of them anyway. Returns how many; 0 where Python is
    not one of VERSIONS, or has another layout."""
    if not _is_known():
        return 0
    counts: _Counts = (ctypes.c_uint32 * (1 << _ADDRESS_BITS - _WORD_BITS)).from_address(0)
    # From Python 3.14 on, references that are on the stack by now are taken off each count without a look at it. That
    # of None is the least one that stays, and would become one that is counted up. Before, only None's stays.
    immortal = next((c for c in (_IMMORTAL, counts[id(None) >> _WORD_BITS]) if _works(counts, c)), 0)
    if not immortal:
        return 0
    made = 0
    for known in gc.get_objects():
        kind = type(known)  # `isinstance` would run a module that is only noted (late_import.py)
        if (issubclass(kind, type) or issubclass(type(kind), EnumType)) and counts[id(known) >> _WORD_BITS] < _LEAST:
            counts[id(known) >> _WORD_BITS] = immortal
            made += 1
        todo = [known]
        while todo:
            for one in _used_by(todo.pop()):
                if type(one) in _KINDS and counts[id(one) >> _WORD_BITS] < _LEAST:
                    counts[id(one) >> _WORD_BITS] = immortal
                    made += 1
                    if not gc.is_tracked(one):  # else its turn comes
                        todo.append(one)
    return made


def _used_by(one: Any) -> Iterable[Any]:
    """What it refers to, and may be used with it. The collector does not look into code."""
    if type(one) is types.CodeType:
        return one.co_consts, one.co_names, one.co_name, one.co_qualname, one.co_filename
    return gc.get_referents(one)


def _is_known() -> bool:
    """Neither a debug build nor a free-threaded one: their objects begin otherwise."""
    version = sys.version_info[:2]
    known = sys.implementation.name == "cpython" and VERSIONS[0] <= version <= VERSIONS[1] and not sys.abiflags
    return known and sys.byteorder == "little" and sys.maxsize >> 32 > 0


def _works(counts: _Counts, immortal: int) -> bool:
    """Tries it: whether the count of an object is where we look for it, and stays once it is this one."""
    probe = object()
    held, at = [probe], id(probe) >> _WORD_BITS
    before = counts[at]
    held.append(probe)
    if counts[at] != before + 1:
        return False
    counts[at] = immortal
    held.append(probe)
    stays = counts[at] == immortal
    held.clear()
    return stays and counts[at] == immortal


def _fill_holes() -> None:
    """Fills the free blocks between objects: what a supervisor makes is then on pages of its own, side by side, and not
    on such as it would have shared. The first block of a pool is the sign that there were no holes of its size left."""
    for size in range(_BLOCK_BYTES, _LARGEST_BLOCK + 1, _BLOCK_BYTES):
        for number in range(_MOST_FILLED_BYTES // size):
            block = _block(size, number)
            if id(block) % _POOL_BYTES == _POOL_HEAD_BYTES:
                break
            _filling.append(block)


def _block(size: int, number: int) -> object:
    """A new object that takes a block of this size, which is a multiple of _BLOCK_BYTES."""
    if size == _BLOCK_BYTES:
        return object()
    if size < _BYTES_HEAD:
        return (1 << 40) + number  # an integer of two digits
    return bytes(size - _BYTES_HEAD)


def _make_room_for_names() -> None:
    """Python copies its table of interned strings, of 0.4 MB, when that is full. That would happen in each supervisor,
    and in the middle of its start if there is room for few strings. So it happens here, where they share the copy."""
    if sys.version_info >= (3, 12):  # which never frees such a string
        return
    before, names = malloc.mapped(), list[str]()
    while malloc.mapped() == before and len(names) < _MOST_NAMES:
        names += [sys.intern(f"muster-{number}") for number in range(len(names), len(names) + 100)]
