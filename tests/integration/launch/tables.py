"""Rank tables for tests: the platform's (template 2), HCCL's (template 1), and how they get into a file."""

import json
from pathlib import Path
from typing import Any

#: A rank that says in one line what it has been given; at once, since without labels lines of several may mix.
DUMP = """
import json, os
path = os.environ.get("RANK_TABLE_FILE", "")
table = open(path).read() if os.path.isfile(path) else None
line = json.dumps({"env": dict(os.environ), "cwd": os.getcwd(), "table": table})
os.write(1, line.encode() + b"\\n")
"""
#: (device_id, device_ip), and with its rank.
Devices = list[tuple[str, str]]
Ranked = list[tuple[str, str, str]]


def template2(*groups: list[tuple[str, str, Devices]]) -> dict[str, Any]:
    """From the instances of each group: name, server and devices of each."""
    listed = []
    for number, instances in enumerate(groups):
        made = [
            {"pod_name": pod, "server_id": server, "devices": [{"device_id": d, "device_ip": ip} for d, ip in devices]}
            for pod, server, devices in instances
        ]
        count = str(sum(len(instance[2]) for instance in instances))
        group = {"group_name": f"group-{number}", "device_count": count, "instance_count": str(len(made))}
        listed.append(group | {"instance_list": made})
    return {"status": "completed", "group_count": str(len(listed)), "group_list": listed}


def template1(*servers: tuple[str, Ranked]) -> dict[str, Any]:
    listed = [
        {"server_id": name, "device": [{"device_id": d, "device_ip": ip, "rank_id": r} for d, ip, r in devices]}
        for name, devices in servers
    ]
    return {"status": "completed", "version": "1.0", "server_count": str(len(listed)), "server_list": listed}


#: Three ranks on the first server, two on the second; the instances are listed in no order.
TWO = template2(
    [
        ("job-train-10", "10.0.0.2", [("0", "10.2.0.1"), ("1", "10.2.0.2")]),
        ("job-train-9", "10.0.0.1", [("4", "10.1.0.5"), ("5", "10.1.0.6"), ("6", "")]),
    ]
)
TWO_CONVERTED = template1(
    ("10.0.0.1", [("4", "10.1.0.5", "0"), ("5", "10.1.0.6", "1"), ("6", "", "2")]),
    ("10.0.0.2", [("0", "10.2.0.1", "3"), ("1", "10.2.0.2", "4")]),
)
ONE = template1(("10.0.0.1", [("0", "10.1.0.1", "1"), ("1", "10.1.0.2", "0")]))


def put(path: Path, table: object) -> Path:
    """Whole or not at all, as a platform does it; text is written as it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.new")
    new.write_text(table if isinstance(table, str) else json.dumps(table))
    new.replace(path)
    return path


def changed(table: dict[str, Any], *path: str | int, to: object) -> dict[str, Any]:
    """A copy with another value at this place."""
    copy = json.loads(json.dumps(table))
    at = copy
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = to
    assert isinstance(copy, dict)
    return copy
