"""The CUDA driver's API, as far as the active checks need it: libcuda.so.1 comes with the driver; no toolkit is needed.

For programs of one thread that end after their test; a card in trouble may never answer, so none of it belongs into
the daemon.
"""

import ctypes
from collections.abc import Sequence
from typing import Any

#: CUresult (cuda.h) of what a test tells apart from a failure: no card; the NVSwitch fabric is not ready; kernel module
#: and library differ; out of memory; an ECC error that could not be corrected.
NO_DEVICE, NOT_READY, MISMATCH, OUT_OF_MEMORY, ECC = 100, 802, 803, 2, 214
#: CUdevice_attribute: multiprocessors, and the two numbers of the compute capability.
_SMS, _MAJOR, _MINOR = 16, 75, 76


class CudaError(Exception):
    """A call failed. `code` is its CUresult."""

    def __init__(self, call: str, code: int, name: str) -> None:
        super().__init__(f"{call}: {name} ({code})")
        self.call = call
        self.code = code
        self.name = name


class Cuda:
    """One card, by its PCI bus id, with a context of its own. Every method raises CudaError where the driver refuses,
    making one also OSError, where there is no libcuda.so.1."""

    def __init__(self, bus_id: str, library: str = "libcuda.so.1") -> None:
        self._library = ctypes.CDLL(library)
        self._call("cuInit", ctypes.c_uint(0))
        self._device = ctypes.c_int()
        self._call("cuDeviceGetByPCIBusId", ctypes.byref(self._device), bus_id.encode())
        self.multiprocessors = self._attribute(_SMS)
        self.capability = (self._attribute(_MAJOR), self._attribute(_MINOR))
        self._context = ctypes.c_void_p()
        self._call("cuCtxCreate_v2", ctypes.byref(self._context), ctypes.c_uint(0), self._device)
        self._module = ctypes.c_void_p()

    def load(self, ptx: bytes) -> None:
        """Takes kernels, as PTX with a zero at its end; the driver translates them, which can take a second."""
        self._call("cuModuleLoadData", ctypes.byref(self._module), ctypes.c_char_p(ptx))

    def memory(self) -> tuple[int, int]:
        """Free and total bytes."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def allocate(self, size: int) -> int:
        """The address of so many bytes on the card."""
        at = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(at), ctypes.c_size_t(size))
        return at.value

    def pinned(self, size: int) -> int:
        """The address of so many bytes of the host that the card can reach by itself."""
        at = ctypes.c_void_p()
        self._call("cuMemHostAlloc", ctypes.byref(at), ctypes.c_size_t(size), ctypes.c_uint(0))
        return at.value or 0

    def clear(self, at: int, words: int) -> None:
        """Sets so many 32-bit words of the card to zero."""
        self._call("cuMemsetD32_v2", ctypes.c_uint64(at), ctypes.c_uint(0), ctypes.c_size_t(words))

    def word(self, at: int) -> int:
        """A 32-bit word of the card, once all that was started is done."""
        found = ctypes.c_uint32()
        self._call("cuMemcpyDtoH_v2", ctypes.byref(found), ctypes.c_uint64(at), ctypes.c_size_t(4))
        return found.value

    def copy(self, to: int, source: int, size: int) -> None:
        """On the card; starts it."""
        self._call("cuMemcpyDtoDAsync_v2", *_addresses(to, source), ctypes.c_size_t(size), None)

    def upload(self, to: int, host: int, size: int) -> None:
        """From the host to the card; starts it."""
        self._call("cuMemcpyHtoDAsync_v2", ctypes.c_uint64(to), ctypes.c_void_p(host), ctypes.c_size_t(size), None)

    def download(self, host: int, source: int, size: int) -> None:
        """From the card to the host; starts it."""
        self._call("cuMemcpyDtoHAsync_v2", ctypes.c_void_p(host), ctypes.c_uint64(source), ctypes.c_size_t(size), None)

    def launch(self, kernel: str, blocks: int, threads: int, arguments: "Sequence[ctypes._SimpleCData[Any]]") -> None:
        """Starts a kernel of what was loaded."""
        function = ctypes.c_void_p()
        self._call("cuModuleGetFunction", ctypes.byref(function), self._module, ctypes.c_char_p(kernel.encode()))
        pointers = (ctypes.c_void_p * max(len(arguments), 1))(*(ctypes.addressof(each) for each in arguments))
        sizes = [ctypes.c_uint(n) for n in (blocks, 1, 1, threads, 1, 1, 0)]
        self._call("cuLaunchKernel", function, *sizes, None, pointers, None)

    def wait(self) -> None:
        """Until all that was started is done; for ever, where a kernel never ends."""
        self._call("cuCtxSynchronize")

    def mark(self) -> ctypes.c_void_p:
        """An event after all that was started so far."""
        event = ctypes.c_void_p()
        self._call("cuEventCreate", ctypes.byref(event), ctypes.c_uint(0))
        self._call("cuEventRecord", event, None)
        return event

    def between(self, first: ctypes.c_void_p, last: ctypes.c_void_p) -> float:
        """Seconds between two events, once the last has come."""
        took = ctypes.c_float()
        self._call("cuEventSynchronize", last)
        self._call("cuEventElapsedTime", ctypes.byref(took), first, last)
        return took.value / 1000

    def use(self) -> None:
        """Makes this card's context the present one, where a process has several."""
        self._call("cuCtxSetCurrent", self._context)

    def reaches(self, other: "Cuda") -> bool:
        """Whether it can copy to the other card without the host's memory."""
        able = ctypes.c_int()
        self._call("cuDeviceCanAccessPeer", ctypes.byref(able), self._device, other._device)
        return bool(able.value)

    def open_way(self, other: "Cuda") -> None:
        """Lets it copy to the other card directly; this card is the present one."""
        self._call("cuCtxEnablePeerAccess", other._context, ctypes.c_uint(0))

    def send(self, other: "Cuda", to: int, source: int, size: int) -> None:
        """To the other card; starts it."""
        ends = (ctypes.c_uint64(to), other._context, ctypes.c_uint64(source), self._context)
        self._call("cuMemcpyPeerAsync", *ends, ctypes.c_size_t(size), None)

    def close(self) -> None:
        """Gives everything back."""
        self._call("cuCtxDestroy_v2", self._context)

    def _attribute(self, number: int) -> int:
        value = ctypes.c_int()
        self._call("cuDeviceGetAttribute", ctypes.byref(value), ctypes.c_int(number), self._device)
        return value.value

    def _call(self, name: str, *arguments: object) -> None:
        try:
            function = getattr(self._library, name)
        except AttributeError:
            raise CudaError(name, 500, "the driver's library has no such function") from None
        code = int(function(*arguments))
        if code:
            raise CudaError(name, code, self._name(code))

    def _name(self, code: int) -> str:
        told = ctypes.c_char_p()
        if self._library.cuGetErrorName(ctypes.c_int(code), ctypes.byref(told)) or told.value is None:
            return "an unknown error"
        return told.value.decode(errors="replace")


def _addresses(*given: int) -> tuple[ctypes.c_uint64, ...]:
    return tuple(ctypes.c_uint64(each) for each in given)
