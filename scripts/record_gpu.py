"""Records what NVML answers, byte for byte, so that it can be replayed where there is no card (`make record-gpu`).

Every call goes through pynvml's one way to the library, so the record holds what muster's own code asks for, whatever
that is, and beside it every getter of pynvml that takes a card and at most one small number.

The file has one JSON object a line. A call: `call`, its arguments `args`, the return code `ret`, and how often in a row
it said so, `times`. An argument is a number, or memory: its bytes before the call `in` and after it `out`, in hex
without the zeros at the end, and its `size`. A line with `scene` says what the card did from there on; the last line,
`cost`, how long each call took. UUIDs, serial numbers and the names of processes are replaced, by others of the same
length; tests/fakes/replay.py reads the file.
"""

import argparse
import contextlib
import ctypes
import hashlib
import inspect
import itertools
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pynvml

from muster.probes.cards.accelerator import DriverError
from muster.probes.cards.nvidia.backend import Nvidia

#: Different answers of one call that are kept in a scene: what counts up would fill the file.
_KEPT = 8
#: Names of fields in nvml.h end here (13.5).
_FIELDS = 310
#: Bytes of an argument whose content before the call is not kept.
_LARGE = 1024
#: nvml.h allows so many in a call.
_FIELDS_A_CALL = 50
_GPM_METRICS = range(1, 210)
#: Percent of utilization at which a load counts as one, and how long it may take until then.
_BUSY, _BUSY_S = 50, 60.0
_UUID = re.compile(rb"((?:GPU|MIG)-)([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")
#: What these say is about this one card, or a person's machine.
_SERIALS = ("nvmlDeviceGetSerial", "nvmlSystemGetProcessName")
_GETTER = re.compile(r"nvml(Device(Get|Is)|System(Get)|GpmQuery)")
#: Never called: they change something, or are about what no training node has (virtual GPUs, confidential computing).
_NEVER = re.compile(
    "Pdi|Set|Clear|Reset|Create|Destroy|Validate|Force|HandleBy|CPER|PRM|[Vv][Gg]pu|Grid|Pgpu|FBC|ConfCompute|Hostname"
)


class Recorder:
    """Stands between pynvml and the library while `with` lasts."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self._answers: dict[str, int] = {}
        self._cost: dict[str, list[float]] = {}
        self._find: Callable[[str], Any] = pynvml._nvmlGetFunctionPointer

    def __enter__(self) -> "Recorder":
        pynvml._nvmlGetFunctionPointer = self._found
        return self

    def __exit__(self, *_: object) -> None:
        pynvml._nvmlGetFunctionPointer = self._find

    def scene(self, name: str) -> None:
        """What the card does from here on."""
        self.lines.append({"scene": name})
        self._answers.clear()

    def cost(self) -> dict[str, Any]:
        """Microseconds of a call in the median and at most, by its name."""
        sorts = {name: sorted(took) for name, took in sorted(self._cost.items())}
        return {name: [round(took[len(took) // 2]), round(took[-1])] for name, took in sorts.items()}

    def _found(self, name: str) -> Callable[..., int]:
        try:
            function = self._find(name)
        except pynvml.NVMLError as error:
            line = {"call": name, "missing": int(error.value)}
            if line not in self.lines:
                self.lines.append(line)
            raise

        def called(*args: Any) -> int:
            memories = [_memory(arg) for arg in args]
            before = [_read(each) for each in memories]
            began = time.perf_counter()
            result = int(function(*args))
            self._cost.setdefault(name, []).append((time.perf_counter() - began) * 1e6)
            told: list[Any] = []
            for arg, memory, was in zip(args, memories, before, strict=True):
                if memory is None:
                    told.append(_number(arg))
                else:
                    # What is asked for in a large one is found in the answer, too.
                    asked = _hex(name, was) if memory[1] <= _LARGE else ""
                    told.append({"size": memory[1], "in": asked, "out": _hex(name, _read(memory))})
            self._write({"call": name, "args": told, "ret": result})
            return result

        return called

    def _write(self, line: dict[str, Any]) -> None:
        last = self.lines[-1] if self.lines else {}
        if {**last, "times": 0} == {**line, "times": 0}:
            last["times"] = last.get("times", 1) + 1
            return
        asked = json.dumps([line["call"], [a["in"] if isinstance(a, dict) else a for a in line["args"]]])
        self._answers[asked] = self._answers.get(asked, 0) + 1
        if self._answers[asked] <= _KEPT:
            self.lines.append(line)


def _memory(arg: Any) -> tuple[int, int] | None:
    """Address and size of what an argument points to; None for a number, text or a handle."""
    target = getattr(arg, "_obj", None)  # of byref()
    if target is None and isinstance(arg, ctypes.Array | ctypes.Structure | ctypes.Union):
        target = arg
    if target is None and isinstance(arg, ctypes._Pointer) and ctypes.sizeof(arg._type_) and _number(arg):
        target = arg.contents
    return (ctypes.addressof(target), ctypes.sizeof(target)) if target is not None else None


def _read(memory: tuple[int, int] | None) -> bytes:
    return b"" if memory is None else ctypes.string_at(*memory)


def _number(arg: Any) -> int | str | None:
    if arg is None:
        return None
    if isinstance(arg, bytes):
        return arg.decode("utf-8", "replace")
    if isinstance(arg, int):
        return arg
    if isinstance(arg, ctypes._SimpleCData):
        return _number(arg.value)
    return ctypes.cast(arg, ctypes.c_void_p).value  # a handle


def _other(digits: bytes) -> bytes:
    """As long, with the same shape, and not this card's."""
    drawn = itertools.cycle(hashlib.sha256(b"muster" + digits).hexdigest())
    kinds = (b"abcdef", b"0123456789")
    return bytes(next((k[int(next(drawn), 16) % len(k)] for k in kinds if c in k), c) for c in digits)


def _hex(name: str, content: bytes) -> str:
    content = _UUID.sub(lambda found: found[1] + _other(found[2]), content)
    if name in _SERIALS:
        content = _other(content.rstrip(b"\0"))
    return content.rstrip(b"\0").hex()


def _getters() -> Iterator[tuple[Callable[..., Any], tuple[str, ...]]]:
    for name, function in sorted(vars(pynvml).items()):
        if inspect.isfunction(function) and _GETTER.match(name) and not _NEVER.search(name):
            yield function, tuple(inspect.signature(function).parameters)


def ask_everything(handle: Any) -> None:
    """Each getter that needs a card and at most a small number; refusals are answers, too."""
    small = {"sensor": 2, "type": 6, "clockType": 6, "link": 19, "counter": 4, "counterType": 2, "errorType": 2}
    small |= {"fan": 3, "profile": 8, "temperatureType": 9, "thresholdType": 9, "locationType": 6, "capability": 6}
    small |= {"clockId": 4, "scope": 2, "perfPolicyType": 8}
    for function, parameters in _getters():
        if not parameters:
            _try(function)
        elif parameters[0] in ("handle", "device"):
            rest = parameters[1:]
            if not rest:
                _try(function, handle)
            elif len(rest) == 1 and rest[0] in small:
                for number in range(small[rest[0]]):
                    if not _try(function, handle, number):
                        break
            elif len(rest) == 2 and all(each in small for each in rest):
                every = ((one, other) for one in range(small[rest[0]]) for other in range(small[rest[1]]))
                for numbers in every:
                    if not _try(function, handle, *numbers):
                        break
    fields = list(range(1, _FIELDS + 1))
    for at in range(0, len(fields), _FIELDS_A_CALL):
        _try(pynvml.nvmlDeviceGetFieldValues, handle, fields[at : at + _FIELDS_A_CALL])
    for scope in (*range(18), 0xFFFFFFFF):  # links; all of them together
        _try(pynvml.nvmlDeviceGetFieldValues, handle, [(f, scope) for f in (*range(138, 142), *range(161, 167))])
    _try(pynvml.nvmlDeviceGetFieldValues, handle, [(f, 1) for f in range(185, 193)])  # of the module


def ask_gpm(handle: Any, pause: Callable[[], object]) -> None:
    """All metrics between two samples, with `pause` between these."""
    samples = []
    try:
        samples = [pynvml.nvmlGpmSampleAlloc(), pynvml.nvmlGpmSampleAlloc()]
        pynvml.nvmlGpmSampleGet(handle, samples[0])
        pause()
        pynvml.nvmlGpmSampleGet(handle, samples[1])
        for at in range(_GPM_METRICS.start, _GPM_METRICS.stop, 64):
            asked = pynvml.c_nvmlGpmMetricsGet_t()
            asked.version = 1
            numbers = range(at, min(at + 64, _GPM_METRICS.stop))
            asked.numMetrics = len(numbers)
            asked.sample1, asked.sample2 = samples
            for place, number in enumerate(numbers):
                asked.metrics[place].metricId = number
            _try(pynvml.nvmlGpmMetricsGet, asked)
    except pynvml.NVMLError as error:
        print(f"GPM: {error}", file=sys.stderr)
    finally:
        for sample in samples:
            _try(pynvml.nvmlGpmSampleFree, sample)


def ask_as_muster(looks: int, pause: Callable[[], object]) -> None:
    """What muster's backend asks: all cards, `looks` readings of each, its processes, its health, events."""
    backend = Nvidia()
    backend.open()
    try:
        backend.version()
        cards = [card.index for card in backend.cards()]
        for index in cards:
            _try(lambda index=index: backend.describe(next(c for c in backend.cards() if c.index == index)))
        _try(backend.peers, cards)
        for _ in range(looks):
            for index in cards:
                for ask in (backend.read, backend.health, backend.holders):
                    _try(ask, index)
            pause()
        _try(backend.wait_events, 0.2)
    finally:
        backend.close()


def _try(function: Callable[..., Any], *args: Any) -> bool:
    """Whether the card has such a thing at all."""
    try:
        function(*args)
    except (pynvml.NVMLError, DriverError, TypeError, ValueError, AttributeError, UnicodeDecodeError) as error:
        print(f"{getattr(function, '__name__', 'call')}: {error}", file=sys.stderr)
        return getattr(error, "value", 0) not in (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
    return True


def main(arguments: list[str] | None = None) -> int:
    """Idle, under a load, and after it."""
    parser = argparse.ArgumentParser(prog="python -m scripts.record_gpu", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("file", type=Path, help="where the record goes")
    file: Path = parser.parse_args(arguments).file
    pynvml.nvmlInit()
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        bus_id = pynvml.nvmlDeviceGetPciInfo(handle).busId
        program = "muster.probes.active.card_program"
        burn = [sys.executable, "-m", program, "burn", bus_id if isinstance(bus_id, str) else bus_id.decode(), "1e6"]
        with Recorder() as recorder:
            for scene, load in (("idle", None), ("load", burn), ("after", None)):
                with _loaded(load, handle):
                    recorder.scene(scene)
                    ask_as_muster(5, lambda: time.sleep(0.5))
                    ask_gpm(handle, lambda: time.sleep(0.2))
                    if scene != "after":
                        ask_everything(handle)
            file.parent.mkdir(parents=True, exist_ok=True)
            lines = [*recorder.lines, {"cost": recorder.cost()}]
            file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    finally:
        pynvml.nvmlShutdown()
    print(f"{file}: {len(recorder.lines)} answers")
    return 0


@contextlib.contextmanager
def _loaded(command: list[str] | None, handle: Any) -> Iterator[None]:
    """With `command` running, once the card is busy; it is ended after that."""
    if command is None:
        yield
        return
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            until = time.monotonic() + _BUSY_S
            while pynvml.nvmlDeviceGetUtilizationRates(handle).gpu < _BUSY:
                if process.poll() is not None or time.monotonic() > until:
                    raise SystemExit(f"the card did not become busy within {_BUSY_S} s of: {' '.join(command)}")
                time.sleep(0.2)
            time.sleep(2)  # its averages of a second are those of the load
            yield
        finally:
            process.kill()


if __name__ == "__main__":
    sys.exit(main())
