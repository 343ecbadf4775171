"""NVML's calls by name: which return codes are answers, which are errors, and the remedy for each."""

import ctypes
import itertools
import math
import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from muster.probes.cards.accelerator import DriverError, Trouble

#: The most that a card can have: percent, milliwatts (some ten times the largest), a counter (all bits but the first).
PERCENT, POWER_MW, COUNT = 100, 20_000_000, 0x7FFFFFFFFFFFFFFF
#: pynvml loads exactly this one.
LIBRARY = "libnvidia-ml.so.1"

#: NVML's return codes (nvml.h).
UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND = 1, 2, 3, 4, 6
INSUFFICIENT_SIZE, DRIVER_NOT_LOADED, TIMEOUT, LIBRARY_NOT_FOUND, FUNCTION_NOT_FOUND = 7, 9, 10, 12, 13
LOST, RESET_REQUIRED, MISMATCH, NO_MEMORY, NO_RESOURCES = 15, 16, 18, 20, 23
VERSION_MISMATCH, DEPRECATED, GPU_NOT_FOUND = 25, 26, 28
NO_POWER, NO_INTERRUPT, BAD_INFOROM, BLOCKED, UNKNOWN = 8, 11, 14, 17, 999

_TROUBLES = {
    NOT_SUPPORTED: Trouble.NOT_TOLD,
    FUNCTION_NOT_FOUND: Trouble.NOT_TOLD,
    NO_MEMORY: Trouble.NOT_TOLD,
    NO_RESOURCES: Trouble.NOT_TOLD,
    DRIVER_NOT_LOADED: Trouble.NO_DRIVER,
    LIBRARY_NOT_FOUND: Trouble.NO_LIBRARY,
    MISMATCH: Trouble.MISMATCH,
    LOST: Trouble.LOST,
    RESET_REQUIRED: Trouble.RESET_REQUIRED,
    INVALID_ARGUMENT: Trouble.ABSENT,
    NOT_FOUND: Trouble.ABSENT,
    GPU_NOT_FOUND: Trouble.ABSENT,
}
#: What helps where it is the driver.
_DRIVER = {
    DRIVER_NOT_LOADED: "load the nvidia kernel module (dmesg says why it is not loaded)",
    LIBRARY_NOT_FOUND: f"{LIBRARY} is not found: install the driver's libraries, or give the container the `utility` "
    "capability",
    MISMATCH: "the kernel module is of another version than the libraries: reload it, or reboot",
    **dict.fromkeys(
        # A container's device rules do not outlive a reload of systemd (nvidia-container-toolkit's issue 48).
        (BLOCKED, UNKNOWN),
        "in a container, check that it may still open /dev/nvidia*, and start it anew if not; else see dmesg",
    ),
}
#: What helps where it is one card.
_CARD = {
    INVALID_ARGUMENT: "the driver has no card with this number: check that the container has each card's device, and "
    "that the driver renumbered none",
    NOT_FOUND: "the driver has no card with this number",
    GPU_NOT_FOUND: "the driver has no card with this number",
    LOST: "it fell off the bus: reboot; if it happens again, have the hardware inspected",
    RESET_REQUIRED: "run `muster node reset CARD`, or reboot",
    NO_POWER: "check the card's auxiliary power cables",
    NO_INTERRUPT: "the kernel gets no interrupts from it: look for its lines in dmesg, and reboot",
    BAD_INFOROM: "its infoROM is corrupted: have the card inspected",
    BLOCKED: "the device rules of the container or of the unit (cgroup) block the card's device node: allow it",
}
#: From whatever call they come, they are about more than that one reading.
_GRAVE = frozenset({UNINITIALIZED, DRIVER_NOT_LOADED, MISMATCH, LOST, RESET_REQUIRED})
#: With these a call says that this card, this library or this user has no such reading. Every other code is a failure:
#: the reading exists, and is unknown this time.
_NO_READING = frozenset(
    {NOT_SUPPORTED, FUNCTION_NOT_FOUND, INVALID_ARGUMENT, NOT_FOUND, NO_PERMISSION, VERSION_MISMATCH, DEPRECATED}
)
#: What is done with the words of a call that failed.
Failed = Callable[[str], None]
_OF_DRIVER = frozenset({UNINITIALIZED, DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND, MISMATCH})


def load() -> Any:
    """The module `pynvml`, which is only imported (5 MB) where there is a library for it.

    Raises DriverError NO_LIBRARY.
    """
    loaded = sys.modules.get("pynvml")
    if loaded is None or loaded.nvmlLib is None:
        try:
            ctypes.CDLL(LIBRARY)
        except OSError as error:
            text = f"NVML cannot be loaded ({LIBRARY_NOT_FOUND}): {_DRIVER[LIBRARY_NOT_FOUND]} ({error})"
            raise DriverError(Trouble.NO_LIBRARY, text, LIBRARY_NOT_FOUND, of_driver=True) from None
    import pynvml

    return pynvml


def reload(module: Any) -> bool:
    """Has the module `pynvml` use the library that is on the disk, where the loaded one was replaced there (an update
    of the driver). The old one stays loaded, as a thread may be in it. Returns whether there was another."""
    replaced = _replaced()
    if not replaced:
        return False
    try:
        library = ctypes.CDLL(replaced)
    except OSError:
        return False
    module._nvmlGetFunctionPointer_cache.clear()
    module.nvmlLib = library
    return True


#: Where the loader knows a library by its path, it gives the loaded one for the same path: each one gets another.
_reloaded = itertools.count(1)


def _replaced() -> str:
    """Path of the library, where none of those that are loaded is this file; "" where one is, or none is found."""
    loaded: dict[str, set[int]] = {}
    name = LIBRARY.removesuffix(".1")
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
            for line in maps:
                parts = line.rstrip("\n").split(maxsplit=5)
                if len(parts) == 6 and os.path.basename(parts[5]).startswith(name):
                    loaded.setdefault(os.path.dirname(parts[5]), set()).add(int(parts[4]))
    except (OSError, ValueError):
        return ""
    for folder, inodes in loaded.items():
        try:
            there = os.stat(os.path.join(folder, LIBRARY)).st_ino
        except OSError:
            continue  # in the middle of an update, say
        if there not in inodes:
            return os.path.join(folder, "./" * next(_reloaded) + LIBRARY)
    return ""


class Nvml:
    """NVML's functions by their names in pynvml. A function missing in an older pynvml counts as missing in the
    library."""

    def __init__(self, module: Any) -> None:
        self.module = module
        #: From then on nothing is asked: the module's library may be another one, to which no handle of this belongs.
        self.closed = False
        #: Which one this is, from `init` on.
        self._library: Any = None

    def init(self) -> None:
        """Opens the library for one user more; each gives it back by `nvmlShutdown`. Raises DriverError."""
        self.ask("nvmlInit", of_driver=True)
        self._library = self._library or self.module.nvmlLib

    def give_back(self, name: str, *args: Any) -> None:
        """A call that frees what this library lent, or the library itself; after the close, too: a thread that waits
        for events is in it for longer, and a library that somebody still holds never finds a driver that was loaded
        anew. It goes past the module, which may have another library by then. What it says is nobody's concern: a
        driver that was removed has nothing to free."""
        free = getattr(self._library, name, None)
        if free is not None:
            free(*args)

    def ask(self, name: str, *args: Any, of_driver: bool = False) -> Any:
        """What the call says. Raises DriverError for every code but success."""
        if self.closed:
            raise trouble(UNINITIALIZED)
        function = getattr(self.module, name, None)
        if function is None:
            raise trouble(FUNCTION_NOT_FOUND, f"this version of nvidia-ml-py has no {name}")
        try:
            return function(*args)
        except self.module.NVMLError as error:
            _refuse(error, of_driver)
        except UnicodeDecodeError as error:
            raise DriverError(Trouble.FAILED, f"{name}: the driver's text is not UTF-8: {error}") from None

    def maybe(self, name: str, *args: Any, failed: Failed | None = None) -> Any:
        """What the call says, None where this one thing is not told; where that is not because there is no such
        reading, `failed` is called. Raises DriverError for what is about more than that: the card is lost or needs a
        reset, the driver was unloaded."""
        if self.closed:
            raise trouble(UNINITIALIZED)
        function = getattr(self.module, name, None)
        if function is None:
            return None
        try:
            return function(*args)
        except self.module.NVMLError as error:
            if error.value in _GRAVE:
                _refuse(error, False)
            if failed is not None and error.value not in _NO_READING:
                failed(str(trouble(int(error.value), str(error).rstrip("."))))
        except UnicodeDecodeError:
            pass  # a serial number, say, that was never burnt in
        return None

    def fields(
        self, handle: Any, wanted: tuple[tuple[int, int], ...], failed: Callable[[int, str], None] | None = None
    ) -> dict[int, float | int]:
        """Values by the number of their field, summed over the scopes that were asked for, as far as the driver
        reports them; for (field, scope) pairs. `failed` gets the fields that it failed to report. Raises as `maybe`."""

        def all_failed(text: str) -> None:
            for number, _ in wanted:
                if failed is not None:
                    failed(number, text)

        answers = self.maybe("nvmlDeviceGetFieldValues", handle, list(wanted), failed=all_failed)
        found: dict[int, float | int] = {}
        for answer in answers or ():
            name = _VALUES.get(answer.valueType)
            if not (answer.timestamp or answer.latencyUsec or answer.valueType):
                # Left as it was given: the driver passed it over, and says success (an H100 of fields 187 to 196).
                continue
            if answer.nvmlReturn == 0 and name is not None:
                value = getattr(answer.value, name)
                if math.isfinite(value):
                    found[answer.fieldId] = found.get(answer.fieldId, 0) + value
                elif failed is not None:
                    failed(answer.fieldId, f"NVML says {value}")
            elif answer.nvmlReturn in _GRAVE:
                raise trouble(answer.nvmlReturn)
            elif answer.nvmlReturn and answer.nvmlReturn not in _NO_READING and failed is not None:
                failed(answer.fieldId, str(trouble(answer.nvmlReturn)))
        return found


def within(value: float | None, most: float, least: float = 0) -> float | None:
    """The value; None for one that no card can have. NVML writes -1 (NVML_VALUE_NOT_AVAILABLE, all bits) and says
    success, and so do drivers in trouble."""
    return value if value is not None and least <= value <= most else None


#: Member of nvmlValue_t by nvmlValueType_t.
_VALUES = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}
_NAMES = {
    UNINITIALIZED: "Uninitialized",
    LOST: "GPU is lost",
    RESET_REQUIRED: "GPU requires restart",
    DRIVER_NOT_LOADED: "Driver Not Loaded",
    MISMATCH: "Driver/library version mismatch",
}


def trouble(number: int, said: str = "", *, of_driver: bool = False) -> DriverError:
    """The error for a return code. `said` is NVML's own sentence."""
    of_driver = of_driver or number in _OF_DRIVER
    remedy = _DRIVER.get(number) if of_driver else _CARD.get(number)
    text = f"NVML says {said or _NAMES.get(number, 'an error')} ({number})" + (f": {remedy}" if remedy else "")
    kind = _TROUBLES.get(number, Trouble.FAILED)
    if of_driver and kind is Trouble.ABSENT:
        kind = Trouble.FAILED
    return DriverError(kind, text, number, of_driver=of_driver)


def _refuse(error: Any, of_driver: bool) -> NoReturn:
    raise trouble(int(error.value), str(error).rstrip("."), of_driver=of_driver) from None
