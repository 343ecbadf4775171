"""A process of its own that has loaded the fake libnvidia-ml.so.1 through pynvml, and is asked line by line."""

import json
import os
import subprocess
import sys
from typing import Any

from tests.fakes.cards import FakeCards

#: Evaluates one line after the other.
_PROGRAM = """
import json, sys
import pynvml as p
def card(i): return p.nvmlDeviceGetHandleByIndex(i)
def fields(i, *ids): return [v.nvmlReturn or v.value.ullVal for v in p.nvmlDeviceGetFieldValues(card(i), ids)]
def running(i): return [[it.pid, it.usedGpuMemory] for it in p.nvmlDeviceGetComputeRunningProcesses(h[i])]
def util(i): return p.nvmlDeviceGetUtilizationRates(h[i]).gpu
def wait(events, ms):
    it = p.nvmlEventSetWait_v2(events, ms)
    return [p.nvmlDeviceGetIndex(it.device), it.eventType, it.eventData]
def fabric(i):
    info = p.c_nvmlGpuFabricInfo_v3_t()
    p.nvmlDeviceGetGpuFabricInfoV(h[i], p.byref(info))
    return [info.state, info.healthSummary]
h = []
for line in sys.stdin:
    try:
        try:
            answer = eval(line)
        except SyntaxError:
            answer = exec(line)
    except p.NVMLError as error:
        answer = {"error": error.value}
    print(json.dumps(answer), flush=True)
"""


class Asker:
    """Found the library as it would find the real one. `asker("util(3)")` gives what the line gives, over JSON; what
    NVML refuses is {"error": code}. `h` are the handles; `p` is pynvml."""

    def __init__(self, cards: FakeCards, *, init: bool = True, **env: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **cards.env, **env},
        )
        assert self.process.stdin is not None and self.process.stdout is not None
        self.into, self.out = self.process.stdin, self.process.stdout
        if init:
            assert self("p.nvmlInit()") is None
            self("h = [card(i) for i in range(p.nvmlDeviceGetCount())]")

    def __call__(self, line: str) -> Any:
        self.send(line)
        return self.answer()

    def send(self, line: str) -> None:
        """Asks, and does not wait for the answer."""
        self.into.write(line + "\n")
        self.into.flush()

    def answer(self) -> Any:
        """What the line that was sent gives."""
        return json.loads(self.out.readline())

    def close(self) -> None:
        """Kills the process."""
        self.process.kill()
        self.process.wait()
        self.into.close()
        self.out.close()
