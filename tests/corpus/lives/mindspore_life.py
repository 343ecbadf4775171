"""Ranks of MindSpore on the CPU, and its scheduler: each rank does what its argument says, and then waits for ever."""

import os
import threading
import time

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops
from mindspore.communication import get_rank, init

what = os.environ["LIFE"].split(",")
lock = threading.Lock()
lock.acquire()


class Slow:
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[np.ndarray, ...]:  # type: ignore[type-arg,unused-ignore]
        time.sleep(1000)
        raise AssertionError


class Deep(nn.Cell):  # type: ignore[misc,unused-ignore]
    """So large a graph that it is compiled for half a minute or more."""

    def construct(self, tensor: Tensor) -> Tensor:
        for _ in range(450):
            tensor = ops.tanh(tensor * 2) + ops.sin(tensor) * ops.cos(tensor) + ops.exp(tensor) - ops.sigmoid(tensor)
            tensor = ops.erf(tensor * 2) + ops.atan(tensor) * ops.sinh(tensor) + ops.log(tensor) - ops.relu(tensor)
        return tensor


def guilty_lock() -> None:
    lock.acquire()


def guilty_sleep() -> None:
    time.sleep(10000)


def reduces() -> None:
    print(ops.AllReduce()(Tensor(np.ones(4, np.float32))).asnumpy())


class Reduced(nn.Cell):  # type: ignore[misc,unused-ignore]
    """The same in a graph."""

    def __init__(self) -> None:
        super().__init__()
        self.reduce = ops.AllReduce()

    def construct(self, tensor: Tensor) -> Tensor:
        return self.reduce(tensor * 2) + 1


def graph() -> None:
    ms.set_context(mode=ms.GRAPH_MODE)
    print(Reduced()(Tensor(np.ones(4, np.float32))).asnumpy())


def loads() -> None:
    for _ in ms.dataset.GeneratorDataset(Slow(), ["x"], num_parallel_workers=2, python_multiprocessing=True):
        pass


def compiles() -> None:
    ms.set_context(mode=ms.GRAPH_MODE)
    Deep()(Tensor(np.ones(4, np.float32)))


def main() -> None:
    if os.environ["MS_ROLE"] == "MS_SCHED":
        print("ready", flush=True)
    ms.set_context(mode=ms.PYNATIVE_MODE)
    ms.set_device("CPU")
    init()
    if os.environ["MS_ROLE"] == "MS_SCHED":  # the job has ended
        return
    mine = what[min(get_rank(), len(what) - 1)]
    reduces()
    print("ready", flush=True)
    globals()[mine]()


main()
