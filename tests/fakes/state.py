"""The state file (state.h), laid out with ctypes as C has it, and what moves with time worked out as common.h does."""

import ctypes
import fcntl
import mmap
import os
import platform
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HEADER = Path(__file__).parent / "state.h"

_TYPES: dict[str, Any] = {
    "int32_t": ctypes.c_int32,
    "uint32_t": ctypes.c_uint32,
    "uint64_t": ctypes.c_uint64,
    "double": ctypes.c_double,
    "char": ctypes.c_char,
}
_MEMBER = re.compile(r"(?:struct (\w+)|(\w+)) (\w+)(?:\[(\w+)\])?;")


def _parse(text: str) -> tuple[dict[str, int], dict[str, type[ctypes.Structure]]]:
    """The constants and the structures of a header that keeps to what state.h says of itself."""
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    constants = {name: int(value, 0) for name, value in re.findall(r"#define (\w+) (-?\w+)$", text, flags=re.MULTILINE)}
    structures: dict[str, type[ctypes.Structure]] = {}
    for name, body in re.findall(r"struct (\w+) \{(.*?)\};", text, flags=re.DOTALL):
        fields = []
        for line in filter(None, map(str.strip, body.splitlines())):
            if not (member := _MEMBER.fullmatch(line)):
                raise ValueError(f"{HEADER}: struct {name}: not understood: {line}")
            inner, plain, label, length = member.groups()
            kind = structures[inner] if inner else _TYPES[plain]
            if length:
                kind *= constants[length] if length in constants else int(length)
            fields.append((label, kind))
        structures[name] = type(name, (ctypes.Structure,), {"_fields_": fields})
    return constants, structures


CONSTANTS, STRUCTURES = _parse(HEADER.read_text())
#: FUTEX_WAKE for a word that several processes map; the calls' numbers where we know them.
_WAKE = 1
_FUTEX = {"x86_64": 202, "aarch64": 98}.get(platform.machine())


class State:
    """A state file, mapped. `all` is the `struct state` in it, whose members are read and written in place."""

    def __init__(self, path: Path) -> None:
        self.path = path
        size = ctypes.sizeof(STRUCTURES["state"])
        self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            self._map = mmap.mmap(self._file, size)
        except ValueError as error:
            os.close(self._file)
            raise ValueError(f"{path} is not a state of this version: make the cards anew") from error
        self.all: Any = STRUCTURES["state"].from_buffer(self._map)
        if self.all.magic != CONSTANTS["FAKE_MAGIC"] or self.all.size != size:
            self.close()
            raise ValueError(f"{path} is not a state of this version: make the cards anew")

    @classmethod
    def create(cls, path: Path) -> "State":
        """A new file, of no cards. Others may write to it: a library notes its waiters there, in any process."""
        empty: Any = STRUCTURES["state"]()
        empty.magic, empty.size = CONSTANTS["FAKE_MAGIC"], ctypes.sizeof(empty)
        # Never in place: a process that has an older one mapped keeps that.
        unfinished = path.with_name(path.name + ".unfinished")
        unfinished.write_bytes(bytes(empty))
        unfinished.chmod(0o666)
        unfinished.rename(path)
        return cls(path)

    def close(self) -> None:
        """The file stays; what was taken out of `all` must not be used any more."""
        del self.all
        try:
            self._map.close()
        except BufferError:  # somebody still holds a structure of it: then it is unmapped with that one
            pass
        os.close(self._file)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """One writer at a time of what is more than one number; wakes callers that wait for a change."""
        # A descriptor of its own: threads that share one would share the lock, too.
        lock = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)
            self.wake()

    def wake(self) -> None:
        """The libraries look again, at the latest after a second."""
        self.all.wake = (self.all.wake + 1) & 0xFFFFFFFF
        if _FUTEX is not None:
            word = ctypes.addressof(self.all) + STRUCTURES["state"].wake.offset
            _libc.syscall(ctypes.c_long(_FUTEX), ctypes.c_void_p(word), _WAKE, 0x7FFFFFFF, None, None, 0)

    @contextmanager
    def moving(self, card: Any) -> Iterator[Any]:
        """The `struct moving` of a card to be changed, which counts as a whole when this ends."""
        with self.writing():
            now, then = card.banks[card.bank % 2], card.banks[(card.bank + 1) % 2]
            ctypes.memmove(ctypes.addressof(then), ctypes.addressof(now), ctypes.sizeof(now))
            yield then
            card.bank += 1


_libc = ctypes.CDLL(None, use_errno=True)


def moving(card: Any) -> Any:
    """The bank of a `struct card` that counts now."""
    return card.banks[card.bank % 2]


def value_at(curve: Any, now: float) -> float:
    """A `struct curve` at a time of CLOCK_MONOTONIC."""
    points = curve.points[: curve.count]
    if not points:
        return float(curve.value)
    period = points[-1].at
    at = max(now - curve.epoch, 0.0) % period if period > 0 else 0.0
    before = points[0]
    for point in points:
        if at <= point.at:
            width = point.at - before.at
            share = (at - before.at) / width if width > 0 else 1.0
            return float(before.value + share * (point.value - before.value))
        before = point
    return float(before.value)


def area(curve: Any, seconds: float) -> float:
    """Under a `struct curve`, from its epoch on."""
    points = [(point.at, point.value) for point in curve.points[: curve.count]]
    if not points or points[-1][0] <= 0:
        return float(points[0][1] if points else curve.value) * seconds
    rounds, left = divmod(seconds, points[-1][0])
    whole = rest = before = 0.0
    value = points[0][1]
    for at, end in points:
        whole += (at - before) * (value + end) / 2
        if left > before and at > before:
            part = min(left, at) - before
            rest += part * (value + value + (end - value) * part / (at - before)) / 2
        before, value = at, end
    return float(whole * rounds + rest)


def energy_mj(held: Any, now: float) -> float:
    """What the card of this `struct moving` has used since it began to count."""
    power = held.power_w
    epoch = power.epoch if power.count else held.energy_since
    return float(held.energy_mj + 1000 * (area(power, now - epoch) - area(power, held.energy_since - epoch)))


def fabric_bytes(held: Any, now: float) -> float:
    """The counter of the fabric's bytes of this `struct moving`."""
    growth = held.fabric_bytes
    return float(growth.base + growth.rate * (now - growth.since))


def now_s() -> float:
    """Seconds of the clock that the libraries go by."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def lives(pid: int) -> bool:
    """Whether the process runs; one that has ended and is not waited for yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (OSError, IndexError):
        return False


def processes(card: Any) -> list[Any]:
    """The `struct process`es that are on the card now."""
    held = moving(card)
    only_living = CONSTANTS["PROCESS_LIVES"]
    return [
        process
        for process in held.processes[: held.process_count]
        if not process.flags & only_living or lives(process.pid)
    ]


def memory_used(card: Any) -> int:
    """Bytes in use by itself and by processes, without those that the driver keeps for itself."""
    used = card.mem_used + sum(process.bytes for process in processes(card))
    return int(min(used, card.mem_total - card.mem_reserved))
