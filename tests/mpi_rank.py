"""A rank of an MPI job without MPI: all meet at MASTER_PORT, tell rank 0 of their environment and node, and end."""

import hashlib
import json
import os
import signal
import socket
import sys
import time
from typing import Any

#: What has to reach the ranks of all nodes as it is.
AWKWARD = {
    "MA_SPACE": 'a  "b" ; c',
    "MA_LINES": "two\nlines",
    "CREDENTIAL": "x==",
    "MA_LONG": "v" * 30_000,
    "LR": "0 1",
}
WATCHED = (*AWKWARD, "PATH")
#: Seconds in which all have come: a launch by ssh may take long on a busy machine, so the limit is for defects.
_ALL_S = 240


def about_me() -> dict[str, Any]:
    values = [os.environ.get(name, "") for name in WATCHED]
    # sshd's variable tells on which address of the loopback, that is, on which node; mpirun's own node has none.
    node = os.environ.get("SSH_CONNECTION", "- - here -").split()[2]
    return {"env": hashlib.sha256(json.dumps(values).encode()).hexdigest(), "node": node, "pid": os.getpid()}


def gather(rank: int, size: int, address: tuple[str, int]) -> list[dict[str, Any]]:
    """What all ranks tell, on rank 0, which says it; nobody goes on before that."""
    if rank == 0:
        found = [about_me()]
        with socket.create_server(address, backlog=size) as server:
            server.settimeout(_ALL_S)
            others = [server.accept()[0] for _ in range(size - 1)]
        for other in others:
            found.append(json.loads(other.makefile().readline()))
        say(found)  # first: mpirun ends this rank once another has failed
        for other in others:
            other.sendall(b"go\n")
            other.close()
        return found
    deadline = time.monotonic() + _ALL_S
    while True:
        try:
            with socket.create_connection(address, timeout=_ALL_S) as sock:
                sock.sendall(json.dumps(about_me()).encode() + b"\n")
                assert sock.recv(3) == b"go\n"
                return []
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def say(told: list[dict[str, Any]]) -> None:
    pids = "".join(f"pid {t['pid']}\n" for t in told)
    same = "the environment whole" if len({t["env"] for t in told}) == 1 else f"environments differ: {told}"
    nodes = len({t["node"] for t in told})
    sys.stdout.write(f"{pids}all {len(told)} ranks met, on {nodes} nodes, {same}\n")
    sys.stdout.flush()


def main(how: str) -> int:
    rank, size = int(os.environ["OMPI_COMM_WORLD_RANK"]), int(os.environ["OMPI_COMM_WORLD_SIZE"])
    gather(rank, size, (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])))
    if rank == 0 and any(not os.environ.get(name) for name in WATCHED):
        return 99
    if how == "stay":
        signal.pause()
    return int(how)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
