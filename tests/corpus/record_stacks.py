"""`python -m tests.corpus.record_stacks [KIND...]`: takes the stacks of real processes of real frameworks, into
stacks.json. KIND: torch, mpi, alone, mindspore; all of them if none is given.

Needs PyTorch, mpi4py and mpirun, and MindSpore in .venv-mindspore (`make test-msrun`). Three dumps of each life, so
that it is also seen what changes from one to the next.
"""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import anyio

from muster.probes.kernel.process import read_stat
from muster.probes.stacks import StackTarget, take
from muster.probes.stacks.rank_stacks import of_ranks
from muster.probes.waits import RankStack

HERE = Path(__file__).parent
FILE = HERE / "stacks.json"
#: What a rank does: waits for others, of which the first is in a lock; or something else, for which others wait.
WAITS = ("reduce", "barrier", "gather", "async", "backward")
ELSEWHERE = (
    *("guilty_lock", "guilty_sleep", "polls_for_a_file", "evaluates", "one_big_call", "loads", "serves", "uploads"),
    *("child", "saves", "queue", "makes_a_list"),
)
#: What rank 0 of MindSpore does, and rank 1.
MINDSPORE = (
    *(("reduces", "guilty_lock"), ("graph", "guilty_lock"), ("guilty_lock", "reduces"), ("guilty_sleep", "reduces")),
    *(("loads", "reduces"), ("compiles", "reduces")),
)
MINDSPORE_PYTHON = Path(__file__).parents[2] / ".venv-mindspore/bin/python"
ALONE = ("asyncio", "http", "event", "poll", "code")
DUMPS, APART_S = 3, 3.0


def main() -> None:
    """Writes the file anew."""
    kinds = sys.argv[1:] or ["torch", "mpi", "alone", "mindspore"]
    found = {name: rows for name, rows in _recorded().items() if name.partition("-")[0] not in kinds}
    for mine in WAITS if "torch" in kinds else ():
        first = "backward-lock" if mine == "backward" else "guilty_lock"
        found[f"torch-{mine}"] = _dumps(_torch(f"{first},{mine}"), 1)
    for mine in ELSEWHERE if "torch" in kinds else ():
        found[f"torch-{mine}"] = _dumps(_torch(f"{mine},reduce"), 0)
    for mine in ("reduce", "guilty_lock", "guilty_sleep") if "mpi" in kinds else ():
        found[f"mpi-{mine}"] = _dumps(_mpi(f"{mine},{'guilty_lock' if mine == 'reduce' else 'reduce'}"), 0)
    for mine in ALONE if "alone" in kinds else ():
        found[f"alone-{mine}"] = _dumps([_start([sys.executable, str(HERE / "lives/alone_life.py"), mine], {})], 0)
    for mine, other in MINDSPORE if "mindspore" in kinds else ():
        found[f"mindspore-{mine}"] = _dumps(_mindspore(f"{mine},{other}"), 0)
    FILE.write_text(json.dumps(found, indent=1) + "\n")


def _recorded() -> dict[str, list[dict[str, object]]]:
    found: dict[str, list[dict[str, object]]] = json.loads(FILE.read_text()) if FILE.exists() else {}
    return found


def _start(words: Sequence[str], env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(words, env=os.environ | env, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def _free_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def _torch(what: str) -> list[subprocess.Popen[bytes]]:
    env = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": _free_port()}
    words = [sys.executable, str(HERE / "lives/torch_life.py"), what]
    return [_start(words, env | {"RANK": str(rank)}) for rank in range(3)]


def _mpi(what: str) -> list[subprocess.Popen[bytes]]:
    words = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "3", sys.executable]
    return [_start([*words, str(HERE / "lives/mpi_life.py"), what], {})]


def _mindspore(what: str) -> list[subprocess.Popen[bytes]]:
    """Two workers and their scheduler, which is the last one."""
    env = {"LIFE": what, "MS_WORKER_NUM": "2", "MS_SCHED_HOST": "127.0.0.1", "MS_SCHED_PORT": _free_port()}
    words = [str(MINDSPORE_PYTHON), str(HERE / "lives/mindspore_life.py")]
    env |= {"PYTHONUNBUFFERED": "1", "GLOG_v": "3"}
    workers = [_start(words, env | {"MS_ROLE": "MS_WORKER", "MS_NODE_ID": str(rank)}) for rank in range(2)]
    return [*workers, _start(words, env | {"MS_ROLE": "MS_SCHED"})]


def _dumps(processes: list[subprocess.Popen[bytes]], rank: int) -> list[dict[str, object]]:
    """Of this rank, once it has been at its place for a while; ends all."""
    try:
        for process in processes:
            assert process.stdout is not None
            process.stdout.readline()
        time.sleep(3)
        pid = processes[rank].pid if len(processes) > 1 else _rank_of(processes[0].pid, rank)
        stacks = []
        for number in range(DUMPS):
            time.sleep(APART_S if number else 0)
            stacks.append(anyio.run(_dump, pid, number * APART_S))
        print(processes[0].args, [stack.frames[:2] for stack in stacks[:1]], flush=True)
        return [_portable(stack) for stack in stacks]
    finally:
        for process in processes:
            process.terminate() if process.args[0] == "mpirun" else process.kill()  # type: ignore[index]
            process.wait()


def _rank_of(pid: int, rank: int) -> int:
    """Of mpirun, its child of that rank; of another process, itself."""
    children = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False).stdout.split()
    for child in children:
        environ = Path(f"/proc/{child}/environ").read_bytes()
        if f"OMPI_COMM_WORLD_RANK={rank}\0".encode() in environ:
            return int(child)
    return pid


async def _dump(pid: int, t: float) -> RankStack:
    stat = read_stat(pid)
    assert stat is not None
    taken = await take([StackTarget(0, pid, stat.start)], deadline_s=20)
    (stack,) = of_ranks(taken.processes, {0: pid}, t)
    return stack


def _portable(stack: RankStack) -> dict[str, object]:
    return {name: value for name, value in asdict(stack).items() if name not in ("rank", "pid")}


if __name__ == "__main__":
    main()
