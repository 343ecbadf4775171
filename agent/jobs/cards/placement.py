"""Where a job's ranks are: their numbers, devices and cards, from the spec and, where there is one, the rank table."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from muster.probes.cards.accelerator import SLOT, Card
from muster.probes.kernel import number_lists
from muster.supervisors.launch.modes import boot, modelarts, ranktable
from muster.supervisors.launch.modes.ranktable import RankTable
from muster.supervisors.launch.modes.ranktable_json import RankTableError
from muster.supervisors.model.journal import Record
from muster.supervisors.model.lifecycle import Job
from muster.supervisors.model.spec import Boot, JobSpec
from muster.supervisors.model.states import Kind

#: Environment variables by which a node finds itself in a rank table.
INSTANCE_NAME, HOST_IP = "MA_CURRENT_INSTANCE_NAME", "MA_CURRENT_HOST_IP"


def placed(spec: JobSpec, devices: Sequence[int]) -> dict[str, Any]:
    """Fields of the record `accepted`. `devices`: the job's cards, or the numbers of its ranks on this node.

    Empty if only the job's rank table knows them.
    """
    count = len(devices) if spec.counted else 0
    here = list(devices) if spec.boot == Boot.RANKS else list(devices[:1]) * spec.processes
    return {
        "first_rank": spec.node_rank * spec.processes,
        "devices": here if spec.counted else [],
        "cards": list(devices) if spec.wants_cards else [],
        "node_rank": spec.node_rank,
        "node_count": spec.node_count,
        "node_name": spec.nodes[spec.node_rank] if spec.nodes else "",
        "local_ranks": count,
        "world_size": count * spec.node_count,
    }


def on_cards(
    spec: JobSpec,
    cards: Sequence[Card],
    owners: Sequence[Card],
    used: Mapping[int, int],
    visible: Mapping[int, str],
    uuids: Mapping[int, str],
    *,
    bind: bool,
) -> dict[str, Any]:
    """Fields of the records `accepted` and `planned` about the cards of a job, in the order of its ranks. `owners`: of
    cards that are MIG instances; `used`: bytes of their memory in use now, if known; `visible`: what the job's
    processes call them; `uuids`: by which they are known under other numbers; `bind`: ranks are bound to the CPUs near
    their card (a launcher, which has all cards, to the CPUs near any of them)."""
    real = [card for card in cards if card.kind != SLOT]
    if not real:
        return {}
    # Ranks cannot be bound to CPUs that the container, or the parent of the daemon, does not allow.
    mine = frozenset(os.sched_getaffinity(0))
    near = [mine & frozenset(card.cpus) if bind else frozenset() for card in real]
    if spec.boot != Boot.RANKS:
        near = [frozenset().union(*near) if all(near) else frozenset()] * spec.processes
    parents = {str(card.index): card.parent for card in real if card.parent is not None}
    words = {str(card): word for card, word in visible.items() if word != str(card)}
    return {
        "cpus": ["" if numbers >= mine else number_lists.numbers(numbers) for numbers in near],
        "card_nodes": {str(card.index): card.node for card in real if card.node and os.path.exists(card.node)},
        "card_uuids": {str(card.index): uuid for card in (*real, *owners) if (uuid := uuids.get(card.index, ""))},
        "card_used": {str(card.index): used[card.index] for card in real if card.index in used},
        **({"card_visible": words} if words else {}),
        **({"card_parents": parents} if parents else {}),
    }


def server_of(spec: JobSpec, table: RankTable) -> int:
    """The index of this node's server in the table: by the platform's variables in the job's environment, else by its
    node rank. Raises RankTableError."""
    name, address = spec.env.get(INSTANCE_NAME), spec.env.get(HOST_IP)
    if not name and not address and spec.node_rank and spec.node_rank < len(table.servers):
        return spec.node_rank
    return ranktable.server_of(table, pod_name=name, host_ip=address)


def planned(
    spec: JobSpec, job: Job, table: RankTable, here: int, kind: str, cards: Sequence[int], converted: Path
) -> Record:
    """The record `planned`. `here`: index of this node's server; `cards`: the job's cards, of this `kind`;
    `converted`: the path of the table in HCCL's format, if it was converted.

    Raises RankTableError, also if the spec contradicts the table.
    """
    path = table.name
    server = table.servers[here] if table.servers else None
    count = len(server.devices) if server is not None else 0
    if table.size == 0 or server is None:
        if not spec.counted:
            raise RankTableError(path, "", "has no device: give the number of ranks with `ranks` or `cards`")
        devices = list(cards) or list(range(spec.local_ranks))
        return _record(placed(spec, devices), kind, job.master_addr, job.master_port, "")
    nodes = len(table.servers)
    if (spec.node_count > 1 or spec.nodes) and spec.node_count != nodes:
        raise RankTableError(path, "", f"has {nodes} server(s), and the job is one of {spec.node_count} node(s)")
    spread = replace(spec, node_count=nodes)
    if wrong := boot.problems(spread):
        what = f"has {nodes} server(s), which does not match the job: {wrong[0].field}: {wrong[0].description}"
        raise RankTableError(path, "", what)
    if count == 0:
        raise RankTableError(path, "", f"server {server.server_id}, which is this node, has no device")
    if spec.counted and spec.local_ranks != count:
        asked = "cards" if spec.wants_cards else "ranks"
        what = f"gives {count} device(s) to server {server.server_id}, and the job asks for {spec.local_ranks} {asked}"
        raise RankTableError(path, "", what)
    several = nodes > 1
    if spec.boot == Boot.RANKS:
        numbers, devices = [device.rank for device in server.devices], list(range(count))
    else:
        many = spread.processes
        numbers, devices = list(range(here * many, (here + 1) * many)), [0] * many
    place = {
        "first_rank": 0,
        "numbers": numbers,
        "devices": devices,
        "cards": list(cards),
        "node_rank": here,
        "node_count": nodes,
        "node_name": server.server_id,
        "local_ranks": count,
        "world_size": table.size,
    }
    address = spec.master_addr or (table.servers[0].server_id if several else job.master_addr)
    port = spec.master_port or (modelarts.MASTER_PORT if several else job.master_port)
    return _record(place, kind, address, port, table.name if table.template == 1 else str(converted))


def _record(place: dict[str, Any], kind: str, address: str, port: int, table: str) -> Record:
    meets = {"card_kind": kind, "master_addr": address, "master_port": port, "table": table}
    return {"kind": Kind.PLANNED} | meets | place
