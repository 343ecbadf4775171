"""Records tests/fixtures/flight_recorder/: dumps of PyTorch's flight recorder of four ranks on gloo, one of which does
not come to a collective.

    cp tests/record_flight_dumps.py /opt/train/train.py; cd /opt/train
    /opt/venv/bin/python train.py CHECKOUT/tests/fixtures/flight_recorder

/opt/venv has PyTorch; 2.13.0+cpu wrote the files there. A dump contains the paths of both: so give them ones that say
nothing of the machine, if need be by links. Three dumps of each rank:

    running-RANK   no collective is under way
    hung-RANK      ranks 0 to 2 wait in the second all_reduce of all, to which rank 3 does not come; rank 2 waits for
                   rank 3 in the group "pair" as well
    later-RANK     the same, a while after
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

WORLD, ABSENT = 4, 3
PORT = "29731"


def rank_main(rank: int, folder: Path) -> None:
    """One rank, from its start to its end."""
    import torch
    import torch.distributed as dist
    from torch._C import _distributed_c10d as recorder

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=PORT)
    store = dist.TCPStore("127.0.0.1", int(PORT), WORLD, is_master=rank == 0)
    dist.init_process_group("gloo", store=dist.PrefixStore("job", store), rank=rank, world_size=WORLD)
    pairs = [dist.new_group([first, first + 1], group_desc="pair") for first in (0, 2)]

    def together(name: str) -> None:
        """Every rank has come here; the flight recorder does not see it."""
        store.set(f"{name}{rank}", "")
        store.wait([f"{name}{other}" for other in range(WORLD)])

    def dump(name: str) -> None:
        together(f"before {name}")
        (folder / f"{name}-{rank}").write_bytes(recorder._dump_fr_trace())  # type: ignore[attr-defined,unused-ignore]
        together(name)

    def step() -> None:
        works.append(dist.all_reduce(values, async_op=True))

    works: list[Any] = []
    values = torch.ones(4)
    step()
    works.pop().wait()
    dist.all_reduce(values, group=pairs[rank // 2])
    dump("running")
    if rank != ABSENT:
        works.append(dist.broadcast(torch.ones(2), src=rank // 2 * 2, group=pairs[rank // 2], async_op=True))
        step()
    if rank < 2:
        works[0].wait()
    dump("hung")
    dump("later")
    os._exit(0)


def main() -> None:
    """Starts the ranks, or is one."""
    if len(sys.argv) == 3:
        rank_main(int(sys.argv[1]), Path(sys.argv[2]))
    folder = Path(sys.argv[1]).absolute()
    folder.mkdir(exist_ok=True)
    here = Path(__file__)
    ranks = [
        subprocess.Popen([sys.executable, here.name, str(rank), str(folder)], cwd=here.parent) for rank in range(WORLD)
    ]
    sys.exit(max(rank.wait() for rank in ranks))


if __name__ == "__main__":
    main()
