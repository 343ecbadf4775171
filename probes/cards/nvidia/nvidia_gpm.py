"""GPM: what the parts of an NVIDIA card did between two looks (Hopper and newer; plain NVML).

A look takes one sample and compares it with the one before: the mean of the whole time between, for two calls. So it is
made as often as the slow readings, and costs nothing in between. The first look at a card tells nothing.
"""

import ctypes
import math
import threading
import time
from dataclasses import field
from typing import Any

from muster.probes.cards.accelerator import Activity, DriverError
from muster.probes.cards.nvidia.nvidia_calls import Nvml
from muster.probes.kernel.dataclass import dataclass

#: NVML wants 100 ms between two samples. Within this time, in seconds, after a sample the last answer holds: a check
#: beside the sampler makes no look of milliseconds of the sampler's.
LEAST_S = 1.0
#: nvmlGpmMetricId_t. Of what is sent and received the unit is MiB a second, of the others percent.
_METRICS = {
    1: "graphics",
    2: "sm",
    3: "occupancy",
    5: "tensor",
    10: "dram",
    11: "fp64",
    12: "fp32",
    13: "fp16",
    20: "pcie_tx",
    21: "pcie_rx",
    60: "fabric_rx",
    61: "fabric_tx",
}
_RATES, _MIB = frozenset({"pcie_tx", "pcie_rx", "fabric_rx", "fabric_tx"}), 1 << 20
#: MiB per second that no card's links have; and percent that no share of a period has: it may be measured a little too
#: large.
_FASTEST_MIB, _MOST_SHARE = 90e6, 110.0
#: nvmlGpmMetricsGet_t has no size in its version, and has grown with the library: 98 metrics up to CUDA 12.8, 210 up
#: to 13.0, 477 in 13.5. This is the largest; a library fills the first `count`.
_ROOM = 477
_VERSION = 1


class _Metric(ctypes.Structure):
    _fields_ = (
        ("id", ctypes.c_uint),
        ("code", ctypes.c_uint),
        ("value", ctypes.c_double),
        ("names", ctypes.c_char_p * 3),
    )


class MetricsGet(ctypes.Structure):
    """nvmlGpmMetricsGet_t."""

    _fields_ = (
        ("version", ctypes.c_uint),
        ("count", ctypes.c_uint),
        ("before", ctypes.c_void_p),
        ("now", ctypes.c_void_p),
        ("metrics", _Metric * _ROOM),
    )


@dataclass(slots=True)
class _Meter:
    """The two samples of a card, or of a MIG instance: `now` was taken at `at` of the monotonic clock, None: it holds
    nothing."""

    before: Any
    now: Any
    whose: str
    at: float | None = None
    told: Activity | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


class Gpm:
    """From one `open` of the driver to the next `close`. Threads may ask for several cards side by side."""

    def __init__(self, nvml: Nvml) -> None:
        self._nvml = nvml
        self._lock = threading.Lock()
        self._closed = False
        #: By the index of a card; whether it has GPM.
        self._able: dict[int, bool] = {}
        self._meters: dict[int, _Meter] = {}

    def look(self, index: int, card: int, handle: Any, uuid: str = "", instance: int | None = None) -> Activity | None:
        """Of `index`: the card itself, or the MIG `instance` (`uuid`) of it; `handle` is the card's in both cases. None
        where it has no GPM, at a first look, and where a sample failed. Raises DriverError where the card is lost or
        must be reset, or if the driver was unloaded."""
        if not self._supported(card, handle):
            return None
        meter = self._meter(index, uuid)
        if meter is None or not meter.lock.acquire(blocking=False):
            return None  # closed; or a call hangs in it, or another thread is at it
        try:
            return None if self._closed else self._look(meter, handle, instance)
        finally:
            meter.lock.release()

    def close(self) -> None:
        """Frees the samples, but those in which a call hangs: they are lost, 2 for each such card. Before
        nvmlShutdown."""
        with self._lock:
            self._closed = True
            meters, self._meters = self._meters, {}
        for meter in meters.values():
            if meter.lock.acquire(blocking=False):
                try:
                    self._free(meter.before, meter.now)
                finally:
                    meter.lock.release()

    def _supported(self, card: int, handle: Any) -> bool:
        able = self._able.get(card)
        if able is None:
            told = self._nvml.maybe("nvmlGpmQueryDeviceSupport", handle)
            if told is None:
                return False  # an older library, or no answer this time
            self._able[card] = able = bool(told.isSupportedDevice)
        return able

    def _meter(self, index: int, uuid: str) -> _Meter | None:
        with self._lock:
            meter = self._meters.get(index)
            if self._closed:
                return None
            if meter is None:
                pair: list[Any] = []
                try:
                    for _ in range(2):
                        pair.append(self._nvml.ask("nvmlGpmSampleAlloc"))
                except DriverError:
                    self._free(*pair)
                    return None
                self._meters[index] = meter = _Meter(pair[0], pair[1], uuid)
            elif meter.whose != uuid:  # its number was given to another instance
                meter.whose, meter.at, meter.told = uuid, None, None
            return meter

    def _look(self, meter: _Meter, handle: Any, instance: int | None) -> Activity | None:
        now = time.monotonic()
        if meter.at is not None and now - meter.at < LEAST_S:
            return meter.told
        last, meter.at, meter.told = meter.at, None, None
        meter.before, meter.now = meter.now, meter.before
        if instance is None:
            taken = self._nvml.maybe("nvmlGpmSampleGet", handle, meter.now)
        else:
            taken = self._nvml.maybe("nvmlGpmMigSampleGet", handle, instance, meter.now)
        if taken is None:
            return None
        meter.at = now
        if last is not None:
            meter.told = self._compare(meter, now - last)
        return meter.told

    def _compare(self, meter: _Meter, over_s: float) -> Activity | None:
        asked = MetricsGet(version=_VERSION, count=len(_METRICS))
        asked.before = ctypes.cast(meter.before, ctypes.c_void_p)
        asked.now = ctypes.cast(meter.now, ctypes.c_void_p)
        for place, number in enumerate(_METRICS):
            asked.metrics[place].id = number
        if self._nvml.maybe("nvmlGpmMetricsGet", asked) is None:
            return None
        found: dict[str, float] = {}
        for metric in asked.metrics[: len(_METRICS)]:
            name = _METRICS.get(metric.id)
            if name is None or metric.code or not math.isfinite(metric.value) or metric.value < 0:
                continue
            if name not in _RATES:
                if metric.value <= _MOST_SHARE:
                    found[name] = min(metric.value, 100.0)
            elif metric.value <= _FASTEST_MIB:
                found[name] = metric.value * _MIB
        return Activity(over_s, **found) if found else None

    def _free(self, *samples: Any) -> None:
        for sample in samples:
            self._nvml.give_back("nvmlGpmSampleFree", sample)
