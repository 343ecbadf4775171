"""Ranks of PyTorch on gloo, two to four of them: each does what its argument says, and then waits for ever."""

import itertools
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time

import torch
import torch.distributed as dist

rank, what = int(os.environ["RANK"]), sys.argv[1].split(",")
mine = what[min(rank, len(what) - 1)]
lock = threading.Lock()
lock.acquire()


class Slow(torch.utils.data.Dataset):  # type: ignore[misc,unused-ignore]
    def __len__(self):
        return 8

    def __getitem__(self, index):
        time.sleep(1000)


def guilty_lock():
    lock.acquire()


def guilty_sleep():
    time.sleep(10000)


def polls_for_a_file():
    while not os.path.exists("/nowhere/it/comes"):
        time.sleep(1)


def evaluates():
    total = 0
    while True:
        total += sum(number * number for number in range(100000))


def one_big_call():
    sum(range(10**13))


def makes_a_list():
    a_million_bits = (1 << 1_000_000) - 3
    list(map(int.__mul__, itertools.repeat(a_million_bits), itertools.repeat(a_million_bits)))


def loads():
    for _ in torch.utils.data.DataLoader(Slow(), num_workers=1):
        pass


def serves():
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.accept()


def uploads():
    first, second = socket.socketpair()

    def slowly():
        while True:
            time.sleep(0.05)
            second.recv(1 << 16)

    def send():
        while True:
            first.sendall(bytes(1 << 20))

    threading.Thread(target=slowly, daemon=True).start()
    thread = threading.Thread(target=send)
    thread.start()
    thread.join()


def child():
    subprocess.run(["sleep", "10000"], check=False)


def prompts():
    os.read(0, 1)


def saves():
    with tempfile.TemporaryDirectory() as folder:
        os.mkfifo(folder + "/checkpoint")
        torch.save({"model": torch.zeros(10)}, folder + "/checkpoint")


def step(tensor):
    dist.all_reduce(tensor)


def main():
    if mine == "rendezvous":
        dist.init_process_group("gloo", world_size=int(os.environ["WORLD_SIZE"]) + 1)
    dist.init_process_group("gloo")
    tensor = torch.ones(4)
    dist.all_reduce(tensor)
    print("ready", flush=True)
    if mine == "reduce":
        step(tensor)
    elif mine == "barrier":
        dist.barrier()
    elif mine == "gather":
        dist.all_gather_object([None] * dist.get_world_size(), rank)
    elif mine == "async":
        dist.all_reduce(tensor, async_op=True).wait()
    elif mine == "backward":
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
        model(torch.ones(2, 8)).sum().backward()
    elif mine == "backward-lock":
        torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
        guilty_lock()
    elif mine == "queue":
        import queue

        queue.Queue().get()
    else:
        globals()[mine]()


main()
