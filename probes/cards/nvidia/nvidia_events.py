"""Xids as NVML reports them. Those from before the first wait are lost: the kernel's log has them."""

import ctypes
import threading
import time
from collections.abc import Mapping
from typing import Any

from muster.probes.cards.accelerator import NVIDIA, CardEvent, DriverError
from muster.probes.cards.nvidia.nvidia_calls import NOT_SUPPORTED, TIMEOUT, Nvml, trouble
from muster.probes.cards.nvidia.nvidia_card import bus_id
from muster.probes.kernel.dataclass import dataclass

#: nvmlEventType*: a critical Xid; memory that could not be corrected, which is Xid 48 by another way.
_XID, _DOUBLE_BIT = 0x8, 0x2
_XID_DOUBLE_BIT = 48


#: A set from which a card was left out is made anew after so many seconds: the card may be back.
_AGAIN_S = 60.0


@dataclass(slots=True)
class _Set:
    handle: Any
    made: float
    cards: Mapping[int, int]  # index by the address of the card's handle


class Listener:
    """One set of events. It holds the library open for itself and is never freed while a thread waits on it: what NVML
    does then is not defined."""

    def __init__(self, nvml: Nvml) -> None:
        self._nvml = nvml
        self._lock = threading.Lock()
        self._set: _Set | None = None
        self._waiting = False
        self._closed = False

    def wait(self, timeout_s: float, handles: Mapping[int, Any]) -> list[CardEvent]:
        """As Backend.wait_events. `handles` are those of the cards to listen to, by index."""
        with self._lock:
            if self._closed:
                return []
            self._waiting = True
        try:
            old = self._set
            if old is not None and len(old.cards) < len(handles) and time.monotonic() - old.made >= _AGAIN_S:
                self._free()
            if self._set is None:
                self._set = self._make(handles)
            try:
                return self._next(self._set, timeout_s)
            except DriverError as error:
                self._free()
                if error.of_driver:
                    raise
            # One card that is lost ends every wait at once; without it the others are heard.
            self._set = self._make(handles)
            try:
                return self._next(self._set, timeout_s)
            except DriverError:
                self._free()
                raise
        finally:
            with self._lock:
                self._waiting = False
                if self._closed:
                    self._free()

    def close(self) -> None:
        """The set goes now, or when the wait on it is over."""
        with self._lock:
            self._closed = True
            if not self._waiting:
                self._free()

    def _make(self, handles: Mapping[int, Any]) -> _Set:
        self._nvml.init()
        made = None
        try:
            made = self._nvml.ask("nvmlEventSetCreate")
            cards = {}
            for index, handle in handles.items():
                try:
                    types = self._nvml.maybe("nvmlDeviceGetSupportedEventTypes", handle)
                    types = (_XID | _DOUBLE_BIT) & (_XID if types is None else types)
                    if types:
                        self._nvml.ask("nvmlDeviceRegisterEvents", handle, types, made)
                        cards[_address(handle)] = index
                except DriverError as error:
                    if error.of_driver:
                        raise
                    # This card has no events to wait for (MIG, an old one, lost); the others have.
            if not cards:
                raise trouble(NOT_SUPPORTED, "no card of this node reports events")
            return _Set(made, time.monotonic(), cards)
        except DriverError:
            if made is not None:
                self._nvml.give_back("nvmlEventSetFree", made)
            self._nvml.give_back("nvmlShutdown")
            raise

    def _next(self, events: _Set, timeout_s: float) -> list[CardEvent]:
        found: list[CardEvent] = []
        wait_ms = max(1, round(timeout_s * 1000))
        while True:
            try:
                data = self._nvml.ask("nvmlEventSetWait_v2", events.handle, wait_ms)
            except DriverError as error:
                if error.number == TIMEOUT or found:
                    return found
                raise
            if event := self._event(events, data):
                found.append(event)
            wait_ms = 0  # what came with it

    def _event(self, events: _Set, data: Any) -> CardEvent | None:
        code = {_XID: int(data.eventData), _DOUBLE_BIT: _XID_DOUBLE_BIT}.get(int(data.eventType))
        if code is None:
            return None
        try:
            pci = self._nvml.maybe("nvmlDeviceGetPciInfo_v3", data.device)
        except DriverError:
            pci = None  # a card that is lost is just the one of which there is an event
        text = "uncorrectable memory error, reported by NVML" if data.eventType == _DOUBLE_BIT else ""
        index = events.cards.get(_address(data.device))
        return CardEvent(NVIDIA, code, index, "" if pci is None else bus_id(pci.busId), text or f"Xid {code} by NVML")

    def _free(self) -> None:
        if self._set is not None:
            self._nvml.give_back("nvmlEventSetFree", self._set.handle)
            self._nvml.give_back("nvmlShutdown")
            self._set = None


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
