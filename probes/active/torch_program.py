"""The tests that PyTorch runs: `PYTHON torch_program.py TEST KIND SECONDS [RANK WORLD PORT]`, with the card as the only
visible one. KIND: nvidia, ascend (needs torch_npu) or cpu.

It runs under an interpreter of the site's, so it imports nothing of muster's, and prints what `card_program` prints.
`allreduce` is one process for each card: they meet at PORT of this host.
"""

import datetime
import importlib
import json
import sys
import time
from typing import Any

#: Bytes: of a buffer for memory and transfer; of the buffer that is summed. On a CPU a hundredth.
_BUFFER, _SUMMED = 1 << 30, 1 << 30
#: Edge of the matrices: a power of two, which bf16 holds.
_EDGE = 8192
_MEET_S = 60


class TorchDevice:
    """The one device: its name in PyTorch, how to wait for it, and the backend of its collectives."""

    def __init__(self, kind: str) -> None:
        self.torch: Any = importlib.import_module("torch")
        if kind == "ascend":
            importlib.import_module("torch_npu")
        self.name = {"nvidia": "cuda:0", "ascend": "npu:0", "cpu": "cpu"}[kind]
        self.backend = {"nvidia": "nccl", "ascend": "hccl", "cpu": "gloo"}[kind]
        self.small = 1 if kind != "cpu" else 128
        self._module = getattr(self.torch, self.name.partition(":")[0])
        if kind != "cpu":
            self._module.set_device(0)

    def wait(self) -> None:
        """Until all that was started is done."""
        if self.name != "cpu":
            self._module.synchronize()

    def took(self, work: Any, seconds: float) -> float:
        """Seconds of the fastest of several times, after one that does not count."""
        work()
        self.wait()
        best, until = float("inf"), time.monotonic() + seconds
        while True:
            began = time.perf_counter()
            work()
            self.wait()
            best = min(best, time.perf_counter() - began)
            if time.monotonic() >= until:
                return best


def compute(on: TorchDevice, seconds: float) -> dict[str, float | int]:
    """A product of matrices of twos and threes: each element is known."""
    edge = _EDGE // (1 if on.small == 1 else 16)
    kind = on.torch.bfloat16 if on.small == 1 else on.torch.float32
    left = on.torch.full((edge, edge), 2.0, dtype=kind, device=on.name)
    right = on.torch.full((edge, edge), 1.0, dtype=kind, device=on.name)
    result = on.torch.empty((edge, edge), dtype=kind, device=on.name)
    took = on.took(lambda: on.torch.matmul(left, right, out=result), seconds)
    return {"tflops": 2 * edge**3 / took / 1e12, "wrong": int((result != 2.0 * edge).sum())}


def memory(on: TorchDevice, seconds: float) -> dict[str, float | int]:
    """A pattern is copied on the card, and compared."""
    source = on.torch.arange(_BUFFER // 4 // on.small, dtype=on.torch.int32, device=on.name)
    target = on.torch.empty_like(source)
    took = on.took(lambda: target.copy_(source), seconds)
    size = source.numel() * 4
    return {"memory_gb_s": 2 * size / took / 1e9, "wrong": int((source != target).sum())}


def transfer(on: TorchDevice, seconds: float) -> dict[str, float | int]:
    """From the host to the card and back."""
    host = on.torch.arange(_BUFFER // 16 // on.small, dtype=on.torch.int32)
    back = on.torch.empty_like(host)
    if on.name != "cpu":
        host, back = host.pin_memory(), back.pin_memory()
    card = on.torch.empty_like(host, device=on.name)
    up = on.took(lambda: card.copy_(host, non_blocking=True), seconds / 2)
    down = on.took(lambda: back.copy_(card, non_blocking=True), seconds / 2)
    size = host.numel() * 4
    wrong = int((host != back).sum())
    return {"to_card_gb_s": size / up / 1e9, "from_card_gb_s": size / down / 1e9, "wrong": wrong}


def allreduce(on: TorchDevice, seconds: float, rank: int, world: int, port: int) -> dict[str, float | int]:
    """A sum over all cards, as often on each of them; the figure is the bandwidth that the links had to have."""
    dist: Any = importlib.import_module("torch.distributed")
    limit = datetime.timedelta(seconds=_MEET_S)
    meet = f"tcp://127.0.0.1:{port}"
    dist.init_process_group(on.backend, init_method=meet, rank=rank, world_size=world, timeout=limit)
    data = on.torch.empty(_SUMMED // 4 // on.small, dtype=on.torch.float32, device=on.name)

    def once() -> None:
        data.fill_(rank + 1)
        dist.all_reduce(data)

    once()
    on.wait()
    began = time.perf_counter()
    once()
    on.wait()
    # All ranks must do as many: the slowest one's time decides.
    one = on.torch.tensor([time.perf_counter() - began], dtype=on.torch.float32, device=on.name)
    dist.all_reduce(one, op=dist.ReduceOp.MAX)
    best = float("inf")
    for _ in range(max(min(int(seconds / float(one.item())), 1000), 1)):
        data.fill_(rank + 1)
        on.wait()
        dist.barrier()
        began = time.perf_counter()
        dist.all_reduce(data)
        on.wait()
        best = min(best, time.perf_counter() - began)
    wrong = int((data != world * (world + 1) / 2).sum())
    dist.destroy_process_group()
    size = data.numel() * 4
    return {f"allreduce{world}_gb_s": 2 * (world - 1) / world * size / best / 1e9, "wrong": wrong}


def main(arguments: list[str]) -> int:
    """Returns the exit code: 0, or 1 where something failed."""
    test, kind, seconds, *group = arguments
    try:
        on = TorchDevice(kind)
        if test == "allreduce":
            rank, world, port = map(int, group)
            result = allreduce(on, float(seconds), rank, world, port)
        else:
            result = {"compute": compute, "memory": memory, "transfer": transfer}[test](on, float(seconds))
    except (ImportError, RuntimeError, AttributeError, OSError) as error:
        text = " ".join(str(error).split())[:500]
        print(json.dumps({"test": test, "failed": f"{type(error).__name__}: {text}", "code": 0}), flush=True)
        return 1
    wrong = result.pop("wrong")
    print(json.dumps({"test": test, "wrong": wrong, "measured": result}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
