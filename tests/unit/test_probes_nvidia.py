"""NVIDIA's backend over stand-ins for pynvml's functions; the integration tests have a library in NVML's place."""

import pynvml
import pytest

from probes import nvidia
from probes.backend import Answer
from probes.result import Code


class Nvml:
    """Raises as it is told, by (function, card); counts how often it was initialized and shut down."""

    def __init__(self, monkeypatch):
        self.raises = {}
        self.open = 0
        monkeypatch.setattr(pynvml, "nvmlInit", self.init)
        monkeypatch.setattr(pynvml, "nvmlShutdown", self.shutdown)
        monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", lambda i: self.do("handle", i, i))
        monkeypatch.setattr(pynvml, "nvmlDeviceGetUUID", lambda i: self.do("uuid", i, f"GPU-{i}"))
        monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", lambda i: self.do("memory", i, None))

    def init(self):
        self.do("init", None, None)
        self.open += 1

    def shutdown(self):
        self.open -= 1
        self.do("shutdown", None, None)

    def do(self, function, card, result):
        if (function, card) in self.raises:
            raise pynvml.NVMLError(self.raises[function, card])
        return result


@pytest.fixture
def nvml(monkeypatch):
    return Nvml(monkeypatch)


async def ask(*indices):
    answers: dict[int, Answer] = {}
    await nvidia.ask(indices, answers)
    return answers


async def test_cards_that_answer_are_known_by_their_uuid(nvml):
    assert await ask(0, 3) == {0: Answer(Code.CARDS_OK, "GPU-0"), 3: Answer(Code.CARDS_OK, "GPU-3")}
    assert nvml.open == 0


@pytest.mark.parametrize(
    ("number", "code", "words"),
    [
        (9, Code.CARDS_DRIVER_FAILED, "Driver Not Loaded (9): load the nvidia kernel module"),
        (12, Code.CARDS_LIBRARY_MISSING, "libnvidia-ml.so.1 is not found"),
        (18, Code.CARDS_DRIVER_FAILED, "reload it, or reboot"),
        (999, Code.CARDS_DRIVER_FAILED, "Unknown Error (999)"),
        (15, Code.CARDS_DRIVER_FAILED, "GPU is lost (15)"),
        (20, Code.CARDS_NOT_TOLD, "Insufficient Memory (20)"),
    ],
)
async def test_a_driver_in_trouble(nvml, number, code, words):
    nvml.raises["init", None] = number
    answers = await ask(0, 1)
    assert answers[0] == answers[1] and answers[0].code is code
    assert words in answers[0].text
    assert nvml.open == 0


@pytest.mark.parametrize("function", ["handle", "uuid", "memory"])
@pytest.mark.parametrize(
    ("number", "code", "words"),
    [
        (15, Code.CARDS_NO_ANSWER, "GPU is lost (15): it fell off the bus"),
        (16, Code.CARDS_NO_ANSWER, "nvidia-smi --gpu-reset"),
        (2, Code.CARDS_NO_ANSWER, "no card of this number"),
        (4, Code.CARDS_NO_ANSWER, "Insufficient Permissions (4)"),
        (9, Code.CARDS_DRIVER_FAILED, "load the nvidia kernel module"),
        (20, Code.CARDS_NOT_TOLD, "Insufficient Memory (20)"),
    ],
)
async def test_a_card_in_trouble_hides_no_other(nvml, function, number, code, words):
    nvml.raises[function, 1] = number
    answers = await ask(0, 1, 2)
    assert answers[1].code is code and words in answers[1].text
    assert {answers[0].code, answers[2].code} == {Code.CARDS_OK}
    assert nvml.open == 0


@pytest.mark.parametrize("number", [3, 13])
async def test_a_card_that_tells_no_memory_did_answer(nvml, number):
    nvml.raises["memory", 0] = number
    assert (await ask(0))[0] == Answer(Code.CARDS_OK, "GPU-0")


async def test_a_shutdown_that_fails_changes_nothing(nvml):
    nvml.raises["shutdown", None] = 999
    assert (await ask(0))[0].code is Code.CARDS_OK


async def test_without_the_library(monkeypatch):
    """The real pynvml, which finds none on a host without a driver."""

    def none(name, *args, **kwargs):
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(pynvml, "CDLL", none)
    monkeypatch.setattr(pynvml, "nvmlLib", None)
    assert (await ask(0))[0].code is Code.CARDS_LIBRARY_MISSING
