#!/usr/bin/env python3
"""A training script for Ascend as ModelArts runs it, one process per device, with nothing of muster in it.

It says what its launcher has given it, finds its own device in the rank table, and fits a line to data of its own. That
takes no device, so that it can be tried anywhere; a real one would go on with MindSpore or torch_npu and HCCL, which
read the same variables.

Exit codes: 0 done, 1 the launcher gave it something that does not fit together.
"""

import json
import os
import random
import sys
from pathlib import Path
from typing import Any

#: What the launcher of ModelArts sets for each process.
GIVEN = (
    "JOB_ID",
    "RANK_TABLE_FILE",
    "RANK_SIZE",
    "RANK_ID",
    "DEVICE_ID",
    "ASCEND_DEVICE_ID",
    "HCCL_CONNECT_TIMEOUT",
    "ASCEND_PROCESS_LOG_PATH",
)
SLOPE, OFFSET = 2.5, -1.0  # what is to be found
STEPS, RATE = 400, 0.3


def own_device() -> dict[str, Any]:
    """The entry of this rank in the rank table, with its server. Exits where the table does not have it."""
    table = json.loads(Path(os.environ["RANK_TABLE_FILE"]).read_text(encoding="utf-8"))
    devices = [
        dict(device, server=server["server_id"]) for server in table["server_list"] for device in server["device"]
    ]
    mine = [device for device in devices if device["rank_id"] == os.environ["RANK_ID"]]
    if len(mine) != 1 or len(devices) != int(os.environ["RANK_SIZE"]):
        sys.exit(f"rank {os.environ['RANK_ID']} of {os.environ['RANK_SIZE']} does not fit into the rank table: {table}")
    return mine[0]


def fit(seed: int) -> tuple[float, float]:
    """Slope and offset of a line through points that depend on `seed`, by gradient descent."""
    source = random.Random(seed)
    points = [(x, SLOPE * x + OFFSET + source.gauss(0, 0.01)) for x in (source.uniform(-1, 1) for _ in range(64))]
    slope = offset = 0.0
    for _ in range(STEPS):
        errors = [(slope * x + offset - y, x) for x, y in points]
        slope -= RATE * 2 * sum(error * x for error, x in errors) / len(points)
        offset -= RATE * 2 * sum(error for error, _ in errors) / len(points)
    return slope, offset


def main() -> None:
    missing = [name for name in GIVEN if name not in os.environ]
    if missing:
        sys.exit(f"not set: {', '.join(missing)}: start it with a launcher, as README.md shows")
    for name in GIVEN:
        print(f"{name}={os.environ[name]}")
    device = own_device()
    print(f"server {device['server']}, device {device['device_id']}, working in {os.getcwd()}", flush=True)
    slope, offset = fit(int(os.environ["RANK_ID"]))
    Path("model.json").write_text(json.dumps({"slope": slope, "offset": offset}), encoding="utf-8")
    print(f"fitted y = {slope:.3f} x {offset:+.3f}")


if __name__ == "__main__":
    main()
