"""What the parts of a card do (GPM, from Hopper on): multiprocessors, tensor cores, memory, PCIe.

NVML compares two samples, at least 100 ms apart; ours are those of two readings of the card's health, so that a figure
is the mean of the time between them and a reading costs one sample (0.3 ms on an H100).
"""

import math
import threading
import time
from dataclasses import field
from typing import Any

from muster.probes.cards.accelerator import DriverError, Trouble
from muster.probes.cards.nvidia.nvidia_calls import Nvml
from muster.probes.kernel.dataclass import dataclass

#: nvmlGpmMetricId_t: percent, by the names in Health.parts.
PARTS = {1: "graphics", 2: "sm", 3: "occupancy", 5: "tensor", 10: "dram", 11: "fp64", 12: "fp32", 13: "fp16"}
#: MiB/s, by the names in Health.rates.
RATES = {20: "pcie_tx", 21: "pcie_rx"}
_ASKED = (*PARTS, *RATES)
#: nvml.h.
_APART_S = 0.1
#: Bytes of nvmlGpmMetricsGet_t in the newest nvml.h (13.5), and more: it has grown twice under the same version, and an
#: older nvidia-ml-py has a smaller one.
_ROOM = 32 << 10
#: Answers that will be the same next time.
_NEVER = frozenset({Trouble.NOT_TOLD, Trouble.ABSENT})


@dataclass(slots=True, eq=False)
class _Samples:
    """Of one card: the older sample, the newer one, and when that was taken, in monotonic seconds. None: not asked for
    yet; where `supported` is False the card has no such metrics. The lock is for this card alone, as it may hang."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    supported: bool = True
    before: Any = None
    last: Any = None
    at: float = -math.inf


class Gpm:
    """The samples of all cards, from one `open` of the driver to its `close`. Threads may ask side by side."""

    def __init__(self, nvml: Nvml) -> None:
        self._nvml = nvml
        self._cards: dict[int, _Samples] = {}

    def metrics(self, index: int, handle: Any, instance: int | None = None) -> dict[int, float]:
        """Metrics of a card since the last call, by _ASKED; none the first time, and of a card without them.
        `instance`: the GPU instance of that card, if it is one. Raises DriverError where the card is lost or must be
        reset, or if the driver was unloaded."""
        samples = self._cards.setdefault(index, _Samples())
        with samples.lock:
            now = time.monotonic()
            if not samples.supported or now - samples.at < _APART_S or not self._have(samples, handle):
                return {}
            if not self._sample(samples, handle, instance):
                return {}
            first, samples.at = samples.at == -math.inf, now
            samples.before, samples.last = samples.last, samples.before
            return {} if first else self._between(samples)

    def close(self) -> None:
        """Frees the samples, but for those of a card that a thread still asks: its answer may come after this."""
        for samples in tuple(self._cards.values()):
            if samples.lock.acquire(blocking=False):
                samples.supported = False
                for sample in filter(None, (samples.before, samples.last)):
                    try:
                        self._nvml.ask("nvmlGpmSampleFree", sample)
                    except DriverError:
                        pass  # a driver that was removed has nothing to free
                samples.lock.release()

    def _have(self, samples: _Samples, handle: Any) -> bool:
        """Whether there are two samples to fill; the first time, they are made."""
        if samples.before is None:
            support = self._nvml.maybe("nvmlGpmQueryDeviceSupport", handle)
            if support is not None and support.isSupportedDevice:
                samples.before = self._nvml.maybe("nvmlGpmSampleAlloc")
                samples.last = self._nvml.maybe("nvmlGpmSampleAlloc")
            samples.supported = samples.before is not None and samples.last is not None
        return samples.supported

    def _sample(self, samples: _Samples, handle: Any, instance: int | None) -> bool:
        """Takes the older sample anew."""
        try:
            if instance is None:
                self._nvml.ask("nvmlGpmSampleGet", handle, samples.before)
            else:
                self._nvml.ask("nvmlGpmMigSampleGet", handle, instance, samples.before)
        except DriverError as error:
            if error.of_driver or error.trouble in (Trouble.LOST, Trouble.RESET_REQUIRED):
                raise
            samples.supported = error.trouble not in _NEVER
            return False
        return True

    def _between(self, samples: _Samples) -> dict[int, float]:
        layout = getattr(self._nvml.module, "c_nvmlGpmMetricsGet_t", None)
        if layout is None:
            return {}
        asked = layout.from_buffer(bytearray(_ROOM))
        asked.version, asked.numMetrics = 1, len(_ASKED)
        asked.sample1, asked.sample2 = samples.before, samples.last
        for place, number in enumerate(_ASKED):
            asked.metrics[place].metricId = number
        if self._nvml.maybe("nvmlGpmMetricsGet", asked) is None:
            return {}
        told = (asked.metrics[place] for place in range(len(_ASKED)))
        return {each.metricId: each.value for each in told if each.nvmlReturn == 0 and math.isfinite(each.value)}
