"""ModelArts' variables: understood where the platform sets them, and set for the ranks.

Names and meaning are those of its training guide (tables of the container's environment) and of its Ascend launcher.
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from muster.probes.kernel.known_names import ASCEND, ASCEND_LOGS, RANK_ID, RANK_TABLE
from muster.supervisors.model.rules import boot_files, staging_urls
from muster.supervisors.model.spec import Boot, JobSpec
from muster.supervisors.model.spec_fields import JOB_ID
from muster.supervisors.paths import Root

if TYPE_CHECKING:
    from muster.supervisors.model.lifecycle import Job, Rank

#: Port at which torchrun's nodes meet, unless MA_TORCHRUN_MASTER_PORT says another.
MASTER_PORT = 18888
TABLE_NAME = "jobstart_hccl.json"
#: Where the platform puts its rank table, unless RANK_TABLE_FILE says otherwise.
DEFAULT_TABLE = f"/user/config/{TABLE_NAME}"
#: Where the launcher keeps logs and working folders when there is no MA_MOUNT_PATH.
_TMP_LOG, _CACHE = "/tmp/log", "/cache"
#: Interfaces in the order of the platform's NCCL_SOCKET_IFNAME.
_INTERFACES = ("ib0", "bond0", "eth0")
#: The port that the platform's NCCL_IB_HCA excludes.
_NOT_FOR_NCCL = "mlx5_bond_0"
#: A rank table of template 1, which goes before the other.
_RANK_TABLE_1 = "RANK_TABLE_FILE_V_1_0"
#: Variables by which a container of the platform is known; it is they from which the launcher knows job and table.
_OF_CONTAINER = frozenset({"MA_VJ_NAME", RANK_TABLE, _RANK_TABLE_1})


def understood(spec: JobSpec, *, node_rank_said: bool = False) -> JobSpec:
    """The spec with what the platform's variables in its environment say, wherever the spec itself says nothing;
    `node_rank_said`: the node rank is given, even if it is 0."""
    env = spec.env
    said: dict[str, object] = {}
    said["boot"] = boot_mode(spec.boot, env)
    said["rank_table"] = table = spec.rank_table or rank_table(spec.boot, env)
    nodes, count = spec.nodes, max(spec.node_count, len(spec.nodes))
    if hosts := _hosts(spec, table):
        nodes, count = hosts, len(hosts)
        said["master_port"] = _port(spec)
    said["nodes"], said["node_count"] = nodes, count
    if count > 1 and not spec.node_rank and not node_rank_said:
        said["node_rank"] = number(env, "VC_TASK_INDEX")
    if count > 1 and said["boot"] == Boot.TORCHRUN:
        said["master_port"] = _port(spec)
    if len(nodes) > 1 and not spec.master_addr:
        said["master_addr"] = nodes[0]
    if not (spec.ranks or spec.wants_cards or table):
        said["card_count"] = number(env, "MA_NUM_GPUS")
    return replace(spec, **said)  # type: ignore[arg-type]  # names and types are those of the fields


def missing_node_rank(spec: JobSpec, *, node_rank_said: bool) -> str:
    """What is wrong where VC_WORKER_HOSTS names several nodes, and nothing says which of them this is: each would take
    itself for the first. Empty: nothing."""
    hosts = _hosts(spec, spec.rank_table or rank_table(spec.boot, spec.env))
    index = spec.env.get("VC_TASK_INDEX", "")
    if not hosts or spec.node_rank or node_rank_said or (index.isascii() and index.isdigit() and len(index) < 10):
        return ""
    given = f"is {index[:40]!a}, not a number" if index else "is not set"
    return f"VC_WORKER_HOSTS names {len(hosts)} nodes, and VC_TASK_INDEX {given}: give 0 to {len(hosts) - 1}"


def _hosts(spec: JobSpec, table: str) -> tuple[str, ...]:
    """The nodes that VC_WORKER_HOSTS names, if it is that which says them, and there are several."""
    hosts = tuple(name.strip() for name in spec.env.get("VC_WORKER_HOSTS", "").split(",") if name.strip())
    is_said = bool(spec.nodes) or spec.node_count > 1 or bool(table)
    return hosts if len(hosts) > 1 and not is_said else ()


def _port(spec: JobSpec) -> int:
    return spec.master_port or number(spec.env, "MA_TORCHRUN_MASTER_PORT") or MASTER_PORT


def in_container(env: Mapping[str, str]) -> bool:
    """Whether these are the variables of a container in which the platform would run its launcher."""
    return any(env.get(name) for name in _OF_CONTAINER)


def has_worker_log(spec: JobSpec) -> bool:
    """Whether a job has a worker log without being asked, as the platform has one of each: with the platform's
    variables, and where one command runs per node, as in its custom images."""
    return spec.boot == Boot.COMMAND or in_container(spec.env)


def boot_mode(given: str, env: Mapping[str, str]) -> str:
    """The boot mode of the spec, otherwise that of MA_RUN_METHOD."""
    method = env.get("MA_RUN_METHOD", "").lower()
    return given or (method if method in (Boot.TORCHRUN, Boot.MSRUN) else Boot.RANKS.value)


def folder_of_pre_start(spec: JobSpec) -> str:
    """Where a `ma-pre-start.sh` (or `.py`) runs on the platform: the folder above the code. Empty for other scripts."""
    if os.path.basename(spec.pre_start) not in boot_files.PRE_STARTS:
        return ""
    given = spec.env.get("MA_JOB_DIR", "")
    return given if given.startswith("/") else os.path.dirname(os.path.dirname(spec.pre_start))


def rank_table(boot: str, env: Mapping[str, str]) -> str:
    """Where the platform's variables say that the rank table is of a job with this `boot`, which may be empty, in
    the form that `ranktable.path_of` takes; empty where it has none.

    RANK_TABLE_FILE_V_1_0 (a file, of template 1) goes before RANK_TABLE_FILE (a folder with one of template 2, or a
    file), and that before DEFAULT_TABLE, which counts only if it exists. A variable without a value counts as not
    set.
    """
    if not in_container(env):
        return ""  # no platform: a file that lies where its table would is not for this job
    mode = boot_mode(boot, env)
    wanted = mode == Boot.RANKS or (mode == Boot.MSRUN and env.get("MS_RANKTABLE_ENABLE", "").lower() == "true")
    if not wanted:
        return ""
    given = env.get(_RANK_TABLE_1) or env.get(RANK_TABLE)
    return given or (DEFAULT_TABLE if os.path.exists(DEFAULT_TABLE) else "")


def meeting_point(env: Mapping[str, str]) -> tuple[str, int]:
    """Address and port at which the ranks meet, in an environment that a launcher would hand on; "" and 0: not said."""
    return env.get("MASTER_ADDR", ""), number(env, "MASTER_PORT")


def number(env: Mapping[str, str], name: str) -> int:
    """The number; 0 if it is not set or not a number. The rules of the spec refuse a number that is too large."""
    text = env.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


def variables(spec: JobSpec, job: "Job") -> dict[str, str]:
    """What the platform would set in a container of this node; what the spec's own environment has wins over it."""
    found = {
        "MA_NUM_HOSTS": str(job.node_count),
        "MA_NUM_GPUS": str(job.local_ranks),
        "MA_TASK_NAME": "worker",
        "VC_TASK_INDEX": str(job.node_rank),
        "VC_WORKER_NUM": str(job.node_count),
        "VC_WORKER_HOSTS": ",".join(spec.nodes) or job.master_addr,
    }
    if job.node_name:
        found["MA_CURRENT_IP"] = job.node_name
    return found | _of_nccl(spec, job)


def _of_nccl(spec: JobSpec, job: "Job") -> dict[str, str]:
    """NCCL's of the table of the container's environment, for jobs with the platform's variables: of its interfaces
    those that this node has, since NCCL fails where it finds none, and without the port of its storage network where
    the node has it beside others. Not for Ascend; mpirun hands its own on. NCCL_VERSION is the image's to say."""
    if not in_container(spec.env) or spec.boot == Boot.MPI or job.has_table or job.card_kind == ASCEND:
        return {}
    found = {"NCCL_DEBUG": "INFO"}
    if there := [name for name in _INTERFACES if os.path.exists(f"/sys/class/net/{name}")]:
        found["NCCL_SOCKET_IFNAME"] = ",".join(there)
    with suppress(OSError):  # a node without InfiniBand
        ports = os.listdir("/sys/class/infiniband")
        if _NOT_FOR_NCCL in ports and len(ports) > 1:
            found["NCCL_IB_HCA"] = f"^{_NOT_FOR_NCCL}"
    return found


def folders(root: Root, spec: JobSpec, home: str) -> dict[str, str]:
    """The platform's variables of folders: the user's home, the folder with the code and the one above it, and where
    logs go. The code is where the job's code was copied to; otherwise where the ranks work, or, where each has a folder
    of its own, the one above these."""
    code = code_folder(root, spec) or spec.workdir or str(root.job(spec.job_id).workspace)
    parent = os.path.dirname(os.path.normpath(code)) or "/"
    return {"MA_HOME": home, "MA_JOB_DIR": parent, "MA_LOG_DIR": log_root(root), "WORKSPACE": code}


def code_folder(root: Root, spec: JobSpec) -> str:
    """Where the job's code is copied to, and its ranks work: a folder with the last part of its URL as name, in
    `above_code`, or else in the job's workspace. Empty: it has none."""
    if not spec.code:
        return ""
    return os.path.join(above_code(spec) or root.job(spec.job_id).workspace, staging_urls.name(spec.code))


def above_code(spec: JobSpec) -> str:
    """The folder that gets the code: in a container of the platform the one that it names, else the working folder.
    Empty: the job's workspace."""
    named = spec.env.get("MA_JOB_DIR", "") if in_container(spec.env) else ""
    return named if named.startswith("/") else spec.workdir


def log_root(root: Root) -> str:
    """The log folder as the launcher calls it: a daemon that stands in for the launcher has a link there, and the path
    is to be the launcher's, letter by letter."""
    return os.path.join(root.log.parent, os.readlink(root.log) if root.log.is_symlink() else root.log.name)


def job_name(job_id: str, env: Mapping[str, str]) -> str:
    """JOB_ID of the ranks, and name of the folder of their further logs: from MA_VJ_NAME, if that can be a job's id.

    It becomes part of paths, and the user who started the job chose it.
    """
    return platform_name(env) or job_id


def platform_name(env: Mapping[str, str]) -> str:
    """What MA_VJ_NAME says of `job_name`; empty where it says nothing that can be a job's id."""
    name = env.get("MA_VJ_NAME", "").replace("ma-job", "modelarts-job", 1)
    return name if JOB_ID.fullmatch(name) else ""


def name_trouble(job_id: str, env: Mapping[str, str]) -> str:
    """A sentence about a MA_VJ_NAME that gives the job no name; empty where it does, and where it is not set."""
    name = env.get("MA_VJ_NAME")
    if name is None or platform_name(env):
        return ""
    shown = f"{name[:40]!a}... ({len(name)} characters)" if len(name) > 40 else ascii(name)
    return (
        f"MA_VJ_NAME is {shown}, which cannot be the name of a job: muster uses {job_id} instead; set it to 1 to "
        "128 letters, digits, '.', '_' and '-', a letter or digit first, or unset it"
    )


def further_logs(root: Root, job_id: str, env: Mapping[str, str]) -> Path:
    """The folder of a job's logs of launchers and of CANN, once it is made (`user_folder.make_logs`)."""
    own = root.own_job_logs(job_id)
    return own if own.is_dir() else root.job_logs(job_name(job_id, env))


def of_rank(root: Root, spec: JobSpec, job: "Job", rank: "Rank", env: Mapping[str, str], device: int) -> dict[str, str]:
    """The variables that the Ascend launcher sets per process. `device`: which of the visible devices it is to use."""
    name = job_name(spec.job_id, env)
    folder = further_logs(root, spec.job_id, env).name
    plog = os.path.join(log_root(root), folder, "ascend", "process_log", f"rank_{rank.rank}")
    return {
        "JOB_ID": name,
        "ASCEND_DEVICE_ID": str(device),
        "DEVICE_ID": str(device),
        RANK_ID: str(rank.rank),
        "RANK_SIZE": str(job.world_size),
        "HCCL_CONNECT_TIMEOUT": env.get("HCCL_CONNECT_TIMEOUT", "1800"),
        ASCEND_LOGS: env.get(ASCEND_LOGS, plog),
    }


def table_path(env: Mapping[str, str]) -> str:
    """Where the converted rank table goes besides the job's folder; empty without MA_MOUNT_PATH."""
    mount = env.get("MA_MOUNT_PATH", "")
    return os.path.join(mount, "rank_table", TABLE_NAME) if mount.startswith("/") else ""


def working_folder(env: Mapping[str, str], device: int) -> str:
    """Of one rank of a job with a rank table; empty for the job's own workspace."""
    mount = env.get("MA_MOUNT_PATH", "")
    if mount.startswith("/"):
        return os.path.join(os.path.normpath(mount), "workspace", f"device{device}")
    return os.path.join(_CACHE, f"device{device}") if "MA_VJ_NAME" in env else ""


def log_folder(env: Mapping[str, str]) -> str:
    """Where the launcher keeps the logs: for a daemon of one's own that stands in for it. It need not be there yet."""
    mount = env.get("MA_MOUNT_PATH", "")
    folder = os.path.join(mount, "log")
    return folder if mount and os.path.exists(folder) else _TMP_LOG
