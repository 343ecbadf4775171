"""Ascend cards, asked through the driver's libdcmi.so, or through `npu-smi` where that library is not there.

A card (a chip, where a board has several) has its physical number, N of /dev/davinciN.
"""

import ctypes
import os
import re
import shutil
import threading
from collections.abc import Iterable
from functools import partial

from probes import watched
from probes.backend import Answer, ask_each
from probes.result import Code, one_line
from probes.script import Ended, Script

#: Where the driver's packages put the library, over what the loader finds by itself.
LIBRARIES = (
    "libdcmi.so",
    "/usr/local/Ascend/driver/lib64/driver/libdcmi.so",
    "/usr/local/dcmi/libdcmi.so",
)
#: Folders of npu-smi, over those of PATH.
_PROGRAM_FOLDERS = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin"
#: DCMI's return codes (dcmi_interface_api.h).
_CODES = {
    -8001: "wrong parameter",
    -8002: "no permission",
    -8003: "no memory",
    -8005: "internal error",
    -8006: "time-out",
    -8007: "no card of this number",
    -8008: "no such device",
    -8009: "the driver refused the call",
    -8012: "not ready, as a card is that dropped off: reset it, or reboot",
    -8013: "not to be asked from a container",
    -8015: "its reset failed",
    -8020: "occupied",
    -8255: "not supported",
}
#: ... that say something of this process or this library, and nothing of the card.
_NOT_TOLD = frozenset({-8002, -8003, -8013, -8255})
_HEALTH = {0: "OK", 1: "minor alarm", 2: "major alarm", 3: "critical alarm"}
#: The worst health with which a card still works, and the one of a card that is not there.
_USABLE, _ABSENT = 1, 0xFFFFFFFF
#: A killed npu-smi may take so long to be gone, in seconds; what of its output is kept, in bytes (16 cards take 5 KiB).
_LINGER_S = 1.0
_KEPT = 256 << 10

_init_lock = threading.Lock()
#: Libraries that were initialized: DCMI is once per process, and has no way back.
_ready: set[int] = set()


async def ask(indices: Iterable[int], answers: dict[int, Answer]) -> None:
    """Asks the cards side by side and fills `answers`; see ask_each.

    Raises watched.StillHanging, OSError where not even the library could be looked for.
    """
    library = await watched.call("load libdcmi.so", _load)
    if library is not None:
        await ask_each("DCMI, card", indices, partial(_ask, library), answers)
    else:
        answers.update(await _by_program(tuple(indices)))


def _load() -> ctypes.CDLL | None:
    for name in LIBRARIES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


def _ask(dcmi: ctypes.CDLL, index: int) -> Answer:
    """Blocks, for ever where the driver hangs."""
    try:
        with _init_lock:
            if dcmi._handle not in _ready:
                if code := dcmi.dcmi_init():
                    return _judge("dcmi_init", code, Code.CARDS_DRIVER_FAILED)
                _ready.add(dcmi._handle)
        logic, card, device, health = ctypes.c_uint(), ctypes.c_int(), ctypes.c_int(), ctypes.c_uint()
        number = ctypes.c_uint(index)
        if code := dcmi.dcmi_get_device_logicid_from_phyid(number, ctypes.byref(logic)):
            return _judge("dcmi_get_device_logicid_from_phyid", code)
        if code := dcmi.dcmi_get_card_id_device_id_from_logicid(ctypes.byref(card), ctypes.byref(device), logic):
            return _judge("dcmi_get_card_id_device_id_from_logicid", code)
        if code := dcmi.dcmi_get_device_health(card, device, ctypes.byref(health)):
            return _judge("dcmi_get_device_health", code)
    except AttributeError as error:  # an older or newer library
        return Answer(Code.CARDS_NOT_TOLD, f"libdcmi.so: {error}")
    if health.value == _ABSENT:
        return Answer(Code.CARDS_NO_ANSWER, "the driver says that it is absent")
    state = f"health {health.value} ({_HEALTH.get(health.value, 'unknown')})"
    if health.value > _USABLE:
        return Answer(Code.CARDS_UNHEALTHY, f"{state}: npu-smi info -t health -i {card.value} says more")
    return Answer(Code.CARDS_OK, f"card {card.value} chip {device.value}, {state}")


def _judge(function: str, code: int, otherwise: Code = Code.CARDS_NO_ANSWER) -> Answer:
    text = f"{function} gives {code} ({_CODES.get(code, 'unknown')})"
    return Answer(Code.CARDS_NOT_TOLD if code in _NOT_TOLD else otherwise, text)


async def _by_program(indices: tuple[int, ...]) -> dict[int, Answer]:
    path = shutil.which("npu-smi", path=f"{os.environ.get('PATH', '')}:{_PROGRAM_FOLDERS}")
    if path is None:
        missing = "neither libdcmi.so nor npu-smi is found: install the driver's, or give them to the container"
        return dict.fromkeys(indices, Answer(Code.CARDS_LIBRARY_MISSING, missing))
    env = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ} | {"LANG": "C.UTF-8"}
    script = Script(path, env, ("info", "-m"), _KEPT)
    try:
        ended = await watched.call(f"run {path}", script.run, on_cancel=script.kill, linger_s=_LINGER_S)
    except OSError as error:
        reason = Answer(Code.CARDS_NOT_TOLD, f"{path}: cannot be executed: {error.strerror or error}")
        return dict.fromkeys(indices, reason)
    return judge_mapping(path, ended, indices)


def judge_mapping(path: str, ended: Ended, indices: tuple[int, ...]) -> dict[int, Answer]:
    """What the end and the output of `npu-smi info -m` say of each card."""
    if ended.returncode:
        lines = (ended.stdout + b"\n" + ended.stderr).decode(errors="replace").split("\n")
        said = one_line(next((line.strip() for line in lines if line.strip()), "no message"))
        failed = Answer(Code.CARDS_DRIVER_FAILED, f"{path} info -m ended with {ended.returncode}: {said}")
        return dict.fromkeys(indices, failed)
    there = mapped(ended.stdout.decode(errors="replace"))
    if there is None:
        return dict.fromkeys(indices, Answer(Code.CARDS_NOT_TOLD, f"{path} info -m: its table was not understood"))
    return {
        index: Answer(Code.CARDS_OK, "listed by npu-smi")
        if index in there
        else Answer(Code.CARDS_NO_ANSWER, f"not among the cards that npu-smi lists ({len(there)})")
        for index in indices
    }


def mapped(table: str) -> set[int] | None:
    """The numbers of the cards in the output of `npu-smi info -m`; None where it has no table of them.

    Columns are two or more spaces apart and go by their names; newer drivers have the physical number, older
    ones the logical one alone, which on a host is the same. Rows of management chips have a dash there.
    """
    column, width = -1, 0
    found: set[int] = set()
    for line in table.splitlines():
        cells = re.split(r"\s{2,}", line.strip())
        if column < 0:
            for name in ("Chip Phy-ID", "Chip Logic ID"):
                if "NPU ID" in cells and name in cells:
                    column, width = cells.index(name), len(cells)
                    break
        elif len(cells) == width and cells[column].isascii() and cells[column].isdigit():
            found.add(int(cells[column]))
    return found if column >= 0 else None
