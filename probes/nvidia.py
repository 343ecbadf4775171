"""NVIDIA cards, asked through NVML (nvidia-ml-py loads the driver's libnvidia-ml.so.1 when it is first used).

A card has the number that NVML gives it, which is the order on the PCI bus, and so the one that CUDA knows it by in
CUDA_VISIBLE_DEVICES on a host whose cards are of one kind.
"""

import contextlib
from collections.abc import Iterable
from typing import Any

from probes.backend import Answer, ask_each
from probes.result import Code

#: NVML's return codes (nvml.h) that are about the driver and not about one card, with what helps.
_DRIVER = {
    9: "load the nvidia kernel module (dmesg says why it is not)",
    12: "libnvidia-ml.so.1 is not found: install the driver's libraries, or the `utility` capability to the container",
    18: "the kernel module is of another version than the libraries: reload it, or reboot",
}
#: ... that a card in trouble gives.
_CARD = {
    2: "the driver has no card of this number; is each card's device in the container, and was none renumbered?",
    6: "the driver has no card of this number",
    15: "it fell off the bus: reboot; when it happens again have the hardware looked at",
    16: "nvidia-smi --gpu-reset, or reboot",
}
_UNSUPPORTED, _LIBRARY_NOT_FOUND, _FUNCTION_NOT_FOUND, _NO_MEMORY, _NO_RESOURCES = 3, 12, 13, 20, 23
#: ... that say something of the library or of this process, and nothing of the card.
_NOT_TOLD = frozenset({_UNSUPPORTED, _FUNCTION_NOT_FOUND, _NO_MEMORY, _NO_RESOURCES})


async def ask(indices: Iterable[int], answers: dict[int, Answer]) -> None:
    """Asks the cards side by side and fills `answers`; see ask_each."""
    await ask_each("NVML, card", indices, _ask, answers)


def _ask(index: int) -> Answer:
    """Blocks, for ever where the driver hangs. NVML counts its users: a thread that hangs keeps the library alive for
    itself, and shutting down here takes it away from nobody."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return _judge(error, of_driver=True)
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        uuid = str(pynvml.nvmlDeviceGetUUID(handle))
        # The two above may come from what the library remembers; for this one the driver goes to the card.
        try:
            pynvml.nvmlDeviceGetMemoryInfo(handle)
        except pynvml.NVMLError as error:
            # A card without memory of its own, say, which did answer.
            if error.value not in (_UNSUPPORTED, _FUNCTION_NOT_FOUND):
                raise
        return Answer(Code.CARDS_OK, uuid)
    except pynvml.NVMLError as error:
        return _judge(error, of_driver=False)
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def _judge(error: Any, *, of_driver: bool) -> Answer:
    number = int(error.value)
    remedy = _DRIVER.get(number) if of_driver or number in _DRIVER else _CARD.get(number)
    text = f"NVML says {str(error).rstrip('.')} ({number})" + (f": {remedy}" if remedy else "")
    if number == _LIBRARY_NOT_FOUND:
        return Answer(Code.CARDS_LIBRARY_MISSING, text)
    if number in _NOT_TOLD:
        return Answer(Code.CARDS_NOT_TOLD, text)
    return Answer(Code.CARDS_DRIVER_FAILED if of_driver or number in _DRIVER else Code.CARDS_NO_ANSWER, text)
