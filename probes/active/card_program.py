"""The program of one test on one card: `python -m muster.probes.active.card_program TEST BUS_ID [SECONDS]`.

It prints one JSON object and ends with 0: what was measured in `measured`, how many results were wrong in `wrong`; or
the call that failed in `failed`, with its CUresult in `code`. Tests are those in TESTS. The others are no tests: they
keep a card busy (`burn`), start a kernel that never ends (`spin`), write where they must not (`stray`) or ask for more
memory than there is (`full`), as the ranks of tests do where there is no PyTorch.

It imports nothing but ctypes, and shares nothing with the process that started it: a card in trouble can hold it for
ever.
"""

import ctypes
import json
import sys
import time
from collections.abc import Callable

from muster.probes.active import kernels
from muster.probes.active.cuda import Cuda, CudaError

#: Kernels of less than a tenth of a second: a display or a watchdog never sees a longer one.
_KERNEL_S = 0.05
_BLOCKS_A_PROCESSOR = 4
#: Bytes: of the pinned buffer of a transfer; at most of each of the two buffers of the memory test.
_TRANSFER, _MOST = 256 << 20, 16 << 30
#: Share of the free memory that the memory test's two buffers take together.
_SHARE = 0.8
_SEED = 0x5EED
_WORD = 4

Result = dict[str, float | int]


def compute(cuda: Cuda, seconds: float) -> Result:
    """Matrix products in bf16 (before compute capability 8.0: fused multiply-adds in fp32) on all multiprocessors, each
    sum compared with what it must be. `tflops`: the best second."""
    tensor = cuda.capability >= (8, 0)
    kernel, step = ("tensor", kernels.TENSOR_STEP) if tensor else ("plain", kernels.PLAIN_STEP)
    operations = kernels.TENSOR_OPERATIONS if tensor else kernels.PLAIN_OPERATIONS
    blocks = cuda.multiprocessors * _BLOCKS_A_PROCESSOR
    warps = blocks * kernels.THREADS // 32
    wrong = cuda.allocate(_WORD)
    cuda.clear(wrong, 1)

    def run(rounds: int) -> float:
        arguments = (ctypes.c_uint64(wrong), ctypes.c_uint32(rounds), ctypes.c_float(step * rounds))
        first = cuda.mark()
        cuda.launch(kernel, blocks, kernels.THREADS, arguments)
        return cuda.between(first, cuda.mark())

    run(100)  # the first one pays for what the driver does once
    # Sums are exact below 2^24.
    rounds = max(min(int(1000 * _KERNEL_S / max(run(1000), 1e-6)), int((1 << 24) / step) - 1), 1)
    best, until = 0.0, time.monotonic() + seconds
    while True:
        best = max(best, warps * operations * rounds / run(rounds))
        if time.monotonic() >= until:
            return {"tflops": best / 1e12, "wrong": cuda.word(wrong)}


def memory(cuda: Cuda, seconds: float) -> Result:
    """Most of the free memory is filled with a pattern, copied, and compared. `memory_gb_s`: bytes that the best copy
    read and wrote in a second; `tested_gb`: how much memory that was."""
    free, _ = cuda.memory()
    size = min(int(free * _SHARE) // 2, _MOST) >> 20 << 20
    words = size // _WORD
    source, target, wrong = cuda.allocate(size), cuda.allocate(size), cuda.allocate(_WORD)
    cuda.clear(wrong, 1)
    blocks = cuda.multiprocessors * 16
    count, seed = ctypes.c_uint64(words), ctypes.c_uint32(_SEED)
    cuda.launch("fill", blocks, kernels.THREADS, (ctypes.c_uint64(source), count, seed))
    cuda.copy(target, source, size)
    cuda.wait()
    best, until = 0.0, time.monotonic() + seconds
    while True:
        first = cuda.mark()
        cuda.copy(target, source, size)
        best = max(best, 2 * size / cuda.between(first, cuda.mark()))
        if time.monotonic() >= until:
            break
    for at in (source, target):
        arguments = (ctypes.c_uint64(at), count, seed, ctypes.c_uint64(wrong))
        cuda.launch("verify", blocks, kernels.THREADS, arguments)
    return {"memory_gb_s": best / 1e9, "tested_gb": 2 * size / 1e9, "wrong": cuda.word(wrong)}


def transfer(cuda: Cuda, seconds: float) -> Result:
    """Between the host's pinned memory and the card. `to_card_gb_s`, `from_card_gb_s`: the best of several; what comes
    back is compared on the card."""
    host = cuda.pinned(_TRANSFER)
    source, target, wrong = cuda.allocate(_TRANSFER), cuda.allocate(_TRANSFER), cuda.allocate(_WORD)
    cuda.clear(wrong, 1)
    count, seed = ctypes.c_uint64(_TRANSFER // _WORD), ctypes.c_uint32(_SEED)
    blocks = cuda.multiprocessors * 16
    cuda.launch("fill", blocks, kernels.THREADS, (ctypes.c_uint64(source), count, seed))
    cuda.wait()
    down = up = 0.0
    until = time.monotonic() + seconds
    while True:
        first = cuda.mark()
        cuda.download(host, source, _TRANSFER)
        middle = cuda.mark()
        cuda.upload(target, host, _TRANSFER)
        last = cuda.mark()
        down = max(down, _TRANSFER / cuda.between(first, middle))
        up = max(up, _TRANSFER / cuda.between(middle, last))
        if time.monotonic() >= until:
            break
    cuda.launch("verify", blocks, kernels.THREADS, (ctypes.c_uint64(target), count, seed, ctypes.c_uint64(wrong)))
    return {"to_card_gb_s": up / 1e9, "from_card_gb_s": down / 1e9, "wrong": cuda.word(wrong)}


def burn(cuda: Cuda, seconds: float) -> Result:
    """Busy, with a line each half second."""
    until, step = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        compute(cuda, 0.5)
        step += 1
        print(f"step {step}", flush=True)
    return {"steps": step}


def spin(cuda: Cuda, seconds: float) -> Result:
    """Busy for so long, and then a kernel that waits for what never comes."""
    burn(cuda, seconds)
    flag = cuda.allocate(_WORD)
    cuda.clear(flag, 1)
    print("the kernel that never ends", flush=True)
    cuda.launch("spin", 1, 32, (ctypes.c_uint64(flag),))
    cuda.wait()
    return {}


def stray(cuda: Cuda, seconds: float) -> Result:
    """Writes to an address that is not its own."""
    cuda.launch("stray", 1, 1, ())
    cuda.wait()
    return {}


def full(cuda: Cuda, seconds: float) -> Result:
    """Asks for all memory, and for more."""
    return {"at": cuda.allocate(cuda.memory()[1] + (1 << 30))}


#: What a check runs, and in which order.
TESTS: dict[str, Callable[[Cuda, float], Result]] = {"compute": compute, "memory": memory, "transfer": transfer}
_OTHERS: dict[str, Callable[[Cuda, float], Result]] = {"burn": burn, "spin": spin, "stray": stray, "full": full}


def main(arguments: list[str]) -> int:
    """Returns the exit code: 0, or 1 where a call failed."""
    test, bus_id, *more = arguments
    try:
        cuda = Cuda(bus_id)
        cuda.load(kernels.source(cuda.capability[0]))
        result = (TESTS | _OTHERS)[test](cuda, float(more[0]) if more else 1.0)
        cuda.close()
    except CudaError as error:
        print(json.dumps({"test": test, "failed": str(error), "code": error.code}), flush=True)
        return 1
    except OSError as error:
        print(json.dumps({"test": test, "failed": str(error), "code": 0}), flush=True)
        return 1
    wrong = result.pop("wrong", 0)
    print(json.dumps({"test": test, "wrong": wrong, "measured": result}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
