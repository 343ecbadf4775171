"""From an app of TorchX to jobs: one per replica, which is one node's part of the app, in the order of the hosts."""

import os
import re
import shlex
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torchx.schedulers.ids import make_unique
from torchx.specs import AppDef, BindMount, DeviceMount, Role, macros
from torchx.version import TORCHX_IMAGE

from muster.client.gang import PORTS, TORCHX_APP
from muster.torchx.daemon_hosts import DaemonHost, KnownHosts, WrongOption
from muster.v1 import job_pb2

#: Names the node of the first replica, for the macro rank0_env; every replica has it.
RANK0_HOST = "TORCHX_RANK0_HOST"
#: Labels of a job. By these every command finds an app of any submitter.
APP = TORCHX_APP
SESSION, ROLE, REPLICA, REPLICAS, PART, SIZE, IMAGE = (
    f"torchx-{name}" for name in ("session", "role", "replica", "replicas", "part", "size", "image")
)
#: On all jobs of TorchX, with one value.
MARK = ("torchx", "app")
#: What muster gives a rank that has no PATH (docs/concepts/ranks.md).
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#: A century.
_MAX_SECONDS = 3_155_760_000
#: Devices of TorchX that are muster's cards.
_CARD_DEVICES = ("nvidia.com/gpu", "huawei.com/", "npu")
_NO_WORD = re.compile(r"[^A-Za-z0-9._-]+")
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")
#: Bytes of a label, at most.
_MAX_LABEL = 256


@dataclass(slots=True)
class AppPart:
    """One replica: where it goes and its job there."""

    host: DaemonHost
    role: str
    replica: int
    spec: job_pb2.JobSpec


@dataclass(slots=True)
class AppRequest:
    """What is submitted: `AppDryRunInfo.request`. A caller may change it before it is scheduled."""

    app_id: str
    known: KnownHosts
    parts: list[AppPart]
    #: What of the app is not honoured, a sentence each.
    remarks: list[str] = field(default_factory=list)


def app_request(app: AppDef, cfg: Mapping[str, Any], known: KnownHosts, session: str) -> AppRequest:
    """The jobs of an app. Raises WrongOption, or ValueError for an app that muster cannot run."""
    app_id = _app_id(app.name, cfg)
    wanted = sum(role.num_replicas for role in app.roles)
    if len(known.hosts) < wanted:
        named = f"{len(known.hosts)} named" if known.hosts else "none is named"
        count = f"{wanted} hosts, one for each replica" if wanted > 1 else "a host"
        text = f"the app needs {count}, and {named}: give -cfg hosts=gpu1:7443;gpu2:7443"
        raise WrongOption("hosts", text)
    hosts = known.hosts[:wanted]
    request = AppRequest(app_id, KnownHosts(hosts, known.tls), [])
    names: set[str] = set()
    first = hosts[0].reached_at(all(host.local for host in hosts))
    if len({role.name for role in app.roles}) < len(app.roles):
        raise ValueError(
            f"two roles have one name: {', '.join(role.name for role in app.roles)}: name each differently"
        )
    for role in app.roles:
        label = _word(role.name, "role")[:40]
        while label in names:  # two roles whose names differ in other characters alone
            label += "x"
        names.add(label)
        lead = hosts[len(request.parts)].reached_at(all(host.local for host in hosts))
        for replica in range(role.num_replicas):
            host = hosts[len(request.parts)]
            job_id = f"{app_id}-{replica}" if len(app.roles) == 1 else f"{app_id}-{label}-{replica}"
            spec = _spec(role, replica, job_id, cfg, first, lead, request, local=all(host.local for host in hosts))
            spec.labels.update(_labels(app_id, session, role, replica))
            spec.labels.update({PART: str(len(request.parts)), SIZE: str(wanted)})
            request.parts.append(AppPart(host, role.name, replica, spec))
    request.remarks = list(dict.fromkeys(request.remarks))
    return request


def shown(request: AppRequest) -> str:
    """For people: `torchx run --dryrun` prints it. Values of the environment are secrets to muster, so only names."""
    lines = [f"app: {request.app_id}"]
    for part in request.parts:
        spec = part.spec
        cards = f"{spec.cards.count} cards" if spec.cards.count else "no cards"
        lines += [
            f"- {part.role}/{part.replica} at {part.host}: job {spec.job_id}, {cards}",
            f"    command: {shlex.join(spec.command)}",
            f"    workdir: {spec.workdir or 'a folder of the job'}",
            f"    env: {' '.join(sorted(spec.env))}",
        ]
        lines += [f"    {name}: {value}" for name, value in _others(spec)]
    return "\n".join(lines + [f"note: {remark}" for remark in request.remarks])


def _others(spec: job_pb2.JobSpec) -> list[tuple[str, object]]:
    found: list[tuple[str, object]] = [
        ("user", spec.user),
        ("node", f"{spec.node_rank} of {spec.node_count}, master {spec.master_addr}:{spec.master_port}"),
        ("max_restarts", spec.max_restarts),
        ("max_runtime", f"{spec.max_runtime.seconds}s" if spec.max_runtime.seconds else ""),
        ("on_hang", spec.on_hang),
        ("skip_check", spec.skip_check),
        ("memory_bytes", spec.limits.memory_bytes),
        ("cpus", spec.limits.cpus),
    ]
    return [(name, value) for name, value in found if value and not (name == "node" and spec.node_count < 2)]


# --- one job --------------------------------------------------------------------------------------------------------


def _spec(
    role: Role,
    replica: int,
    job_id: str,
    cfg: Mapping[str, Any],
    first: str,
    lead: str,
    request: AppRequest,
    *,
    local: bool,
) -> job_pb2.JobSpec:
    """`first`, `lead`: where the app's first replica is, and the role's. `local`: all replicas run on this machine."""
    folder, image_root = _image(role, cfg, request)
    _refuse_mounts(role)
    _refuse_policy(role)
    workdir = cfg.get("workdir") or folder or cfg.get("job_dir") or (os.getcwd() if local else "")
    if workdir and not os.path.isabs(workdir):
        raise WrongOption("workdir", f"workdir={workdir}: must be an absolute path on the nodes")
    values = macros.Values(
        img_root=image_root or workdir, app_id=request.app_id, replica_id=str(replica), rank0_env=RANK0_HOST
    )
    placed = _applied(values, role)
    env = {"PYTHONUNBUFFERED": "1"} | {str(name): str(value) for name, value in placed.env.items()}
    env[RANK0_HOST] = first
    if path := cfg.get("path"):
        env["PATH"] = ":".join([*path, env.get("PATH", DEFAULT_PATH)])
    spec = _message(role, job_id, [placed.entrypoint, *placed.args], env)
    spec.boot, spec.workdir, spec.user = "command", str(workdir), str(cfg.get("user") or "")
    spec.max_restarts = role.max_retries
    spec.on_hang, spec.skip_check = str(cfg.get("on_hang") or ""), bool(cfg.get("skip_check"))
    if cards := _cards(role, request):
        spec.cards.count = cards
    else:
        spec.ranks = 1
    if role.num_replicas > 1:
        spec.node_rank, spec.node_count = replica, role.num_replicas
        spec.master_addr, spec.master_port = lead, _port(role, request.app_id)
    for option, duration in (("max_runtime_s", spec.max_runtime), ("grace_s", None)):
        if (seconds := cfg.get(option)) is not None:
            if not 0 < seconds <= _MAX_SECONDS:
                raise WrongOption(option, f"{option}={seconds}: must be 1 to {_MAX_SECONDS}")
            (spec.grace_steps.add() if duration is None else duration).FromSeconds(seconds)
    if cfg.get("enforce_resources"):
        if role.resource.memMB > 0:
            spec.limits.memory_bytes = role.resource.memMB << 20
        if role.resource.cpu > 0:
            spec.limits.cpus = float(role.resource.cpu)
    return spec


def _port(role: Role, app_id: str) -> int:
    """Where the replicas meet: the role's first port, or one that two apps on a node hardly share."""
    name, port = next(iter(role.port_map.items()), ("", PORTS[zlib.crc32(app_id.encode()) % len(PORTS)]))
    if not 0 < port <= 65535:
        raise ValueError(f"role {role.name}: port {name} of port_map is {port}: must be 1 to 65535")
    return int(port)


def _message(role: Role, job_id: str, command: Sequence[str], env: Mapping[str, str]) -> job_pb2.JobSpec:
    try:
        return job_pb2.JobSpec(job_id=job_id, command=command, env=env)
    except (ValueError, TypeError) as error:
        text = f"role {role.name}: entrypoint, args and env must be text in UTF-8: {error}"
        raise ValueError(text.encode("utf-8", "backslashreplace").decode()) from None


def _applied(values: Any, role: Role) -> Any:
    try:
        return values.apply(role)
    except TypeError as error:
        raise ValueError(f"role {role.name}: entrypoint, args and env must be text: {error}") from None


def _image(role: Role, cfg: Mapping[str, Any], request: AppRequest) -> tuple[str, str]:
    """The working folder and img_root that the image means: muster starts no containers."""
    if role.image.startswith("/"):
        return role.image, role.image
    if role.image and role.image != TORCHX_IMAGE and not cfg.get("ignore_image"):
        raise WrongOption(
            "ignore_image",
            f"role {role.name}: image {role.image!r}: muster starts no containers. Give the absolute path of a folder "
            "on the nodes (--image /opt/train), or -cfg ignore_image=true to run in the nodes' own environment",
        )
    if role.image:
        text = (
            f"image {role.image} is not used: muster starts no containers, the command runs in the node's environment"
        )
        request.remarks.append(text)
    return "", ""


def _refuse_mounts(role: Role) -> None:
    for mount in role.mounts:
        if isinstance(mount, BindMount | DeviceMount) and mount.src_path == mount.dst_path:
            continue  # without a container it is there already
        where = getattr(mount, "src_path", None) or getattr(mount, "src", "?")
        raise ValueError(
            f"role {role.name}: mount of {where} at {mount.dst_path}: muster mounts nothing: use the path that it has "
            "on the nodes"
        )


def _refuse_policy(role: Role) -> None:
    if getattr(role.retry_policy, "value", role.retry_policy) == "HOT_SPARE":
        raise ValueError(
            f"role {role.name}: retry_policy HOT_SPARE: muster has no spare nodes: use APPLICATION or REPLICA"
        )
    if not 0 <= role.max_retries <= 1000:
        raise ValueError(f"role {role.name}: max_retries {role.max_retries}: must be 0 to 1000")


def _cards(role: Role, request: AppRequest) -> int:
    resource = role.resource
    cards = max(int(resource.gpu), 0)
    for name, count in resource.devices.items():
        if name.startswith(_CARD_DEVICES):
            cards += max(count, 0)
        else:
            request.remarks.append(f"device {name} of role {role.name} is not requested: muster leases cards alone")
    if resource.capabilities:
        named = ", ".join(map(str, resource.capabilities))
        request.remarks.append(f"capabilities of role {role.name} are not looked at: {named}")
    return cards


# --- names ----------------------------------------------------------------------------------------------------------


def _app_id(name: str, cfg: Mapping[str, Any]) -> str:
    if chosen := cfg.get("app_id"):
        if not _ID.fullmatch(chosen):
            raise WrongOption(
                "app_id", f"app_id={chosen!r}: must be 1 to 80 of [A-Za-z0-9._-], a letter or digit first"
            )
        return str(chosen)
    return str(make_unique(_word(name, "app")[:50]))


def _word(name: str, default: str) -> str:
    """`name` as a part of a job id."""
    return _NO_WORD.sub("-", name).strip("-._") or default


def _labels(app_id: str, session: str, role: Role, replica: int) -> dict[str, str]:
    found = {
        MARK[0]: MARK[1],
        APP: app_id,
        SESSION: session,
        ROLE: role.name,
        REPLICA: str(replica),
        REPLICAS: str(role.num_replicas),
    }
    if len(role.name.encode("utf-8", "replace")) > _MAX_LABEL or not _is_text(role.name):
        raise ValueError(f"role {role.name[:40]!r}...: its name must be text of at most {_MAX_LABEL} bytes")
    if role.image and len(role.image.encode("utf-8", "replace")) <= _MAX_LABEL and _is_text(role.image):
        found[IMAGE] = role.image
    found[SESSION] = session if _is_text(session) and len(session.encode()) <= _MAX_LABEL else ""
    return found


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
