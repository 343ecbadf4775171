"""Rank tables: which devices of which servers make up a job on Ascend, and which of them are this node's.

Template 2 is what the platform writes: groups of instances (pods) with their devices, in no order. Template 1 is what
HCCL reads: servers with their devices, each with its rank. docs/reference/rank-tables.md shows both. The rules for
ranks, servers and this node are those of ModelArts' launcher; the meaning of the fields is that of CANN's description
of the file.

Nothing here waits: a caller that waits for a table calls `read` repeatedly. It hangs only as long as the file system
does.
"""

import ipaddress
import json
import os
import re
import stat
from collections.abc import Hashable
from dataclasses import field
from pathlib import Path

from muster.probes.kernel.dataclass import dataclass
from muster.supervisors.launch.modes.modelarts import TABLE_NAME
from muster.supervisors.launch.modes.ranktable_json import RankTableError as RankTableError  # noqa: PLC0414  # callers take it from here
from muster.supervisors.launch.modes.ranktable_json import Value, load, shown

#: A device takes about 70 bytes of text, so that this is room for 900,000 of them.
MAX_BYTES = 64 << 20
#: Names that an error lists.
_LISTED = 8


@dataclass(frozen=True, slots=True)
class Device:
    """A device (card): its number on its server, its own network address (may be empty), its rank in the job."""

    device_id: str
    device_ip: str
    rank: int


@dataclass(frozen=True, slots=True)
class Server:
    """A server and the devices that the job has there, in the order in which they are started."""

    server_id: str
    devices: tuple[Device, ...]


@dataclass(frozen=True, slots=True)
class Instance:
    """A pod of template 2, and the server on which it runs."""

    pod_name: str
    server_id: str


@dataclass(frozen=True, slots=True)
class RankTable:
    """A completed table, from whatever file: equal tables say the same. `instances` is empty for template 1."""

    template: int
    servers: tuple[Server, ...]
    instances: tuple[Instance, ...]
    #: The file, for errors.
    name: str = field(default="rank table", compare=False)

    @property
    def size(self) -> int:
        """Devices, and so ranks, in all."""
        return sum(len(server.devices) for server in self.servers)


def path_of(given: str) -> Path:
    """The file that `given` means: a folder means the file jobstart_hccl.json in it, as RANK_TABLE_FILE does.

    A missing path counts as a file if its name ends in .json, otherwise as a folder; so ask again at each look.
    """
    try:
        folder = stat.S_ISDIR(os.stat(given).st_mode)  # one look: it may come between two
    except (OSError, ValueError):
        folder = not given.endswith(".json")
    return Path(given, TABLE_NAME) if folder else Path(given)


def read(path: Path) -> RankTable | None:
    """The table in a file; None where there is none yet: no file, an empty one, or a status other than completed.

    Raises RankTableError for what is no rank table (`torn` where it may become one), and OSError as open(2) does.
    """
    found = _look(path)
    return None if isinstance(found, str) else found


def pending(path: Path) -> str:
    """Why `read` gives no table yet, in words that begin with the file; empty where there is one. Raises as `read`."""
    found = _look(path)
    return found if isinstance(found, str) else ""


def _look(path: Path) -> RankTable | str:
    try:
        data = _contents(path)
    except FileNotFoundError:
        return f"{path}: does not exist"
    return parse(data, str(path))


def _contents(path: Path) -> bytes:
    # NONBLOCK: opening a FIFO would wait for its writer. Links are followed: a mounted ConfigMap consists of them.
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise RankTableError(str(path), "", "is not a regular file: give the JSON file itself, or its folder")
        with open(fd, "rb", closefd=False) as file:
            # One more than allowed: it may have grown, and files of /proc have no size.
            data = file.read(MAX_BYTES + 1) if status.st_size <= MAX_BYTES else b""
        size = max(len(data), status.st_size)
        if size > MAX_BYTES:
            raise RankTableError(
                str(path), "", f"has {size} bytes, at most {MAX_BYTES} are allowed: this is not a rank table"
            )
        return data
    finally:
        os.close(fd)


def parse(data: bytes, name: str) -> RankTable | str:
    """The table, or a sentence that says why there is none yet."""
    if not data.strip():
        return f"{name}: is empty"
    top = load(data, name)
    status = top.member("status")
    if status.text(empty=True) != "completed":
        return f"{name}: status: is {shown(status.raw)}, not yet 'completed'"
    if top.has("group_list") and top.has("server_list"):
        raise top.member("server_list").error("is given together with group_list: use template 1 or 2, not both")
    if top.has("group_list"):
        return _template2(top)
    if top.has("server_list"):
        return _template1(top)
    raise top.error("has neither group_list (template 2) nor server_list (template 1)")


def _template1(top: Value) -> RankTable:
    listed = top.member("server_list").elements()
    _counted(top.member("server_count"), len(listed), "server_list has")
    ranks = sum(len(server.member("device").elements()) for server in listed)
    seen: dict[Hashable, Value] = {}
    servers = []
    for server in listed:
        server_id = server.member("server_id")
        _once(seen, ("server", server_id.text()), server_id)
        devices = []
        for device in server.member("device").elements():
            rank = device.member("rank_id")
            if rank.number() >= ranks:
                raise rank.error(f"is {rank.number()}, but the table has {ranks} devices: ranks are 0 to {ranks - 1}")
            _once(seen, ("rank", rank.number()), rank)
            devices.append(_device(device, server_id.text(), rank.number(), seen))
        servers.append(Server(server_id.text(), tuple(devices)))
    # As many different ranks as devices, all of them less: so they are 0 to n-1.
    return RankTable(1, tuple(servers), (), top.name)


def _template2(top: Value) -> RankTable:
    groups = top.member("group_list").elements()
    _counted(top.member("group_count"), len(groups), "group_list has")
    seen: dict[Hashable, Value] = {}
    instances = []
    servers: dict[str, list[Device]] = {}
    rank = 0
    for place, group in enumerate(groups):
        listed = group.member("instance_list").elements()
        _counted(group.member("instance_count"), len(listed), "instance_list has")
        # null is how Go writes a list in which nothing was ever put.
        counts = [len(instance.member("devices").elements(nullable=True)) for instance in listed]
        _counted(group.member("device_count"), sum(counts), "the instances of the group together have devices:")
        # The launcher sorts the first group alone; the ranks of both must be the same.
        for instance in listed if place else sorted(listed, key=_index):
            pod_name, server_id = instance.member("pod_name"), instance.member("server_id").text()
            _once(seen, ("pod", pod_name.text()), pod_name)
            instances.append(Instance(pod_name.text(), server_id))
            if sum(counts) == 0:
                continue  # a group without devices is passed over: its servers are none of the job's
            devices = servers.setdefault(server_id, [])
            for device in instance.member("devices").elements(nullable=True):
                devices.append(_device(device, server_id, rank, seen))
                rank += 1
    made = tuple(Server(server_id, tuple(devices)) for server_id, devices in servers.items())
    return RankTable(2, made, tuple(instances), top.name)


def _index(instance: Value) -> int:
    """What instances are ordered by: the number behind the last "-" of the pod's name, which may be all of it."""
    pod_name = instance.member("pod_name")
    number = re.fullmatch(r"(?:.*-)?([0-9]{1,19})", pod_name.text())
    if number is None:
        raise pod_name.error(f"is {shown(pod_name.raw)}: must end in '-' and a number, which orders the instances")
    return int(number[1])


def _device(at: Value, server_id: str, rank: int, seen: dict[Hashable, Value]) -> Device:
    device_id, device_ip = at.member("device_id"), at.member("device_ip")
    _once(seen, ("device", server_id, device_id.number()), device_id, server_id)
    if device_ip.text(empty=True):
        try:
            address = ipaddress.ip_address(device_ip.text())
        except ValueError:
            raise device_ip.error(f"is {shown(device_ip.raw)}: must be an IP address, or empty") from None
        _once(seen, ("address", address), device_ip)
    return Device(str(device_id.number()), device_ip.text(empty=True), rank)


def _once(seen: dict[Hashable, Value], key: Hashable, at: Value, server_id: str = "") -> None:
    other = seen.setdefault(key, at)
    if other is not at:
        where = f" on server {shown(server_id)}" if server_id else ""
        raise at.error(f"{shown(at.raw)} occurs twice{where}: also at {other.place}")


def _counted(at: Value, there: int, what: str) -> None:
    if at.number() != there:
        raise at.error(f"is {at.number()}, but {what} {there}")


def server_of(table: RankTable, *, pod_name: str | None, host_ip: str | None) -> int:
    """Which of `table.servers` is this node.

    Template 2: the server of the instance `pod_name`; where None, of the first instance that has devices. Template 1:
    the server whose id is `host_ip`; the first where None, and where there is only one. Empty counts as None. Raises
    RankTableError where the table does not have this node.
    """
    ids = [server.server_id for server in table.servers]
    if table.template == 1:
        if not ids:
            raise RankTableError(table.name, "server_list", "does not contain this node: it is empty")
        wanted = host_ip if host_ip and len(ids) > 1 else ids[0]
        if wanted not in ids:
            what = f"does not contain this node, server {shown(wanted)} (MA_CURRENT_HOST_IP): it lists {_few(ids)}"
            raise RankTableError(table.name, "server_list", what)
        return ids.index(wanted)
    named = [instance for instance in table.instances if not pod_name or instance.pod_name == pod_name]
    if pod_name and not named:
        there = _few([instance.pod_name for instance in table.instances])
        what = f"does not contain this node, instance {shown(pod_name)} (MA_CURRENT_INSTANCE_NAME): it lists {there}"
        raise RankTableError(table.name, "group_list", what)
    for instance in named:
        if instance.server_id in ids:
            return ids.index(instance.server_id)
    which = f"this node, instance {shown(pod_name)}," if pod_name else "every instance"
    raise RankTableError(table.name, "group_list", f"{which} has no devices: there is nothing to start")


def _few(names: list[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(map(shown, names[:_LISTED])) + more if names else "none"


def to_template1(table: RankTable) -> str:
    """The table as JSON text of template 1, every number a string, as HCCL reads it.

    For tables of template 2: what else a file of template 1 had (a version 1.2 has super pods) would be lost.
    """
    servers = [
        {
            "server_id": server.server_id,
            "device": [
                {"device_id": device.device_id, "device_ip": device.device_ip, "rank_id": str(device.rank)}
                for device in server.devices
            ],
        }
        for server in table.servers
    ]
    document = {"status": "completed", "version": "1.0", "server_count": str(len(servers)), "server_list": servers}
    return json.dumps(document)
