"""Ranks of MPI: each does what its argument says, and then waits for ever."""

import sys
import threading
import time

from mpi4py import MPI

world = MPI.COMM_WORLD
what = sys.argv[1].split(",")
mine = what[min(world.rank, len(what) - 1)]


def guilty_lock():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def guilty_sleep():
    time.sleep(10000)


def step():
    world.allreduce(world.rank)


world.barrier()
print("ready", flush=True)
{"reduce": step, "guilty_lock": guilty_lock, "guilty_sleep": guilty_sleep}[mine]()
