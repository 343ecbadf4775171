"""The environment of what runs in a job: ranks, launchers, and the steps before and after them.

The names are PyTorch's (env:// rendezvous, as torchrun sets them), CUDA's, CANN's, and those of ModelArts' launcher.
"""

import errno
import os
import zlib
from collections.abc import Mapping

from muster.probes.kernel import marks
from muster.probes.kernel.known_names import (
    ASCEND,
    ASCEND_CARDS,
    CUDA_CARDS,
    CUDA_ORDER,
    DEFAULT_PATH,
    NVIDIA,
    PCI_ORDER,
    RANK,
    RANK_TABLE,
)
from muster.supervisors.launch.child import Account
from muster.supervisors.launch.modes import modelarts, presets
from muster.supervisors.model.lifecycle import Job, Rank
from muster.supervisors.model.spec import Boot, JobSpec
from muster.supervisors.paths import Root

#: Most that is read of the environment that pre_start left, in bytes.
_MAX_EXPORTS = 4 << 20
#: What a shell or Python sets for itself is nothing that a script exports, nor is what we told it of itself.
_NO_EXPORTS = frozenset({"_", "SHLVL", "PWD", "OLDPWD", "LC_CTYPE", marks.STEP, marks.SESSION})

#: What pre_start changed; None: it took the variable away.
Changes = Mapping[str, str | None]


def nonce(root: Root, job_id: str, job: Job) -> str:
    """Tells this very job from one of the same name, of another daemon or another time, in a process' environment."""
    return f"{nonce_prefix(root, job_id)}{job.accepted_at!r}"


def nonce_prefix(root: Root, job_id: str) -> str:
    """What the nonces of all jobs of this name of this daemon begin with."""
    return f"{zlib.crc32(os.fsencode(root.state)):08x}-{zlib.crc32(job_id.encode()):08x}-"


def common(root: Root, spec: JobSpec, job: Job, account: Account) -> dict[str, str]:
    """What every process of a job is given: a small default, the preset, the spec's variables, then what says which job
    and which node it is."""
    env = {
        "PATH": DEFAULT_PATH,
        "HOME": account.home,
        "USER": account.name,
        "LOGNAME": account.name,
        "SHELL": account.shell or "/bin/sh",
        "LANG": "C.UTF-8",
    }
    env |= presets.of(spec.training_mode)
    env |= modelarts.variables(spec, job) | modelarts.folders(root, spec, account.home)
    env |= spec.env
    env.pop(marks.SESSION, None)  # of a session in which somebody began this job: its own would be taken for that
    if spec.requirements:
        packages = str(root.job(spec.job_id).packages)
        env["PYTHONPATH"] = os.pathsep.join(filter(None, (packages, env.get("PYTHONPATH"))))
    env |= {
        "MASTER_ADDR": job.master_addr,
        "MASTER_PORT": str(job.master_port),
        marks.JOB_ID: spec.job_id,
        marks.ATTEMPT: str(job.attempt),
        marks.NONCE: nonce(root, spec.job_id, job),
    }
    if job.cards:
        words = visible(job)
        if job.card_kind == NVIDIA:
            env[CUDA_CARDS] = ",".join(words)
            env.setdefault(CUDA_ORDER, PCI_ORDER)
        elif job.card_kind == ASCEND:
            env[ASCEND_CARDS] = ",".join(words)
    if job.has_table:
        converted = job.table == str(root.job(spec.job_id).rank_table)
        env[RANK_TABLE] = (modelarts.table_path(spec.env) if converted else "") or job.table
    elif spec.rank_table:
        env.pop(RANK_TABLE, None)  # a table without devices: as ModelArts' launcher does
    return env


def visible(job: Job) -> list[str]:
    """What the job's processes call its cards (the daemon decided that: probes/cards/visible.py), in the order in which
    CUDA or CANN is to count them. CANN takes ascending numbers alone."""
    words = [job.card_visible.get(card, str(card)) for card in job.cards]
    return sorted(words, key=int) if job.card_kind == ASCEND else words


def device(job: Job, rank: Rank) -> int:
    """Which of the visible devices is the rank's own: that of its card, which a rank table may name in any order."""
    if job.card_kind != ASCEND or rank.local_rank >= len(job.cards):
        return rank.local_rank
    card = job.cards[rank.local_rank]
    return visible(job).index(job.card_visible.get(card, str(card)))


def changed(env: dict[str, str], changes: Changes) -> dict[str, str]:
    """`env` as pre_start left it; what says which job it is stays."""
    kept = {name: value for name, value in env.items() if name.startswith("MUSTER_")}
    left = {name: value for name, value in env.items() if changes.get(name, "") is not None}
    return left | {name: value for name, value in changes.items() if value is not None} | kept


def of_rank(root: Root, spec: JobSpec, job: Job, rank: Rank, common: Mapping[str, str]) -> dict[str, str]:
    """`common`, and which rank it is. In boot modes other than "ranks" the launcher says that to its own."""
    env = dict(common)
    if spec.boot != Boot.RANKS:
        return env
    local = len(job.ranks)
    if rank.local_rank < len(job.cards) and job.cards[rank.local_rank] in job.card_parents:
        # A process of CUDA sees one MIG instance at most: the first of a list.
        env[CUDA_CARDS] = visible(job)[rank.local_rank]
    env |= {
        RANK: str(rank.rank),
        "LOCAL_RANK": str(rank.local_rank),
        "WORLD_SIZE": str(job.world_size),
        "LOCAL_WORLD_SIZE": str(local),
        "GROUP_RANK": str(job.node_rank),
        "GROUP_WORLD_SIZE": str(job.node_count),
        "ROLE_NAME": "default",
        "ROLE_RANK": str(rank.rank),
        "ROLE_WORLD_SIZE": str(job.world_size),
        "TORCHELASTIC_RUN_ID": spec.job_id,
        # What started this job may have restarted it before: it has told us how often.
        "TORCHELASTIC_RESTART_COUNT": str(modelarts.number(spec.env, "TORCHELASTIC_RESTART_COUNT") + job.attempt),
        "TORCHELASTIC_MAX_RESTARTS": str(spec.max_restarts),
    }
    if job.has_table or (job.cards and job.card_kind == ASCEND):
        env |= modelarts.of_rank(root, spec, job, rank, env, device(job, rank))
    elif local > 1:
        env.setdefault(
            "OMP_NUM_THREADS", "1"
        )  # as torchrun: the threads of all ranks together are not to flood the node
    return env


def read_exports(path: os.PathLike[str], before: Mapping[str, str]) -> dict[str, str | None]:
    """What pre_start changed of the environment `before`. Nothing where there is no such file. Raises OSError."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return {}
    with open(fd, "rb") as file:
        data = file.read(_MAX_EXPORTS + 1)
    if len(data) > _MAX_EXPORTS:  # cut off, it would read as if the rest had been taken away
        raise OSError(errno.E2BIG, f"the environment has more than {_MAX_EXPORTS} bytes", os.fspath(path))
    if not data:
        return {}
    after = {}
    for entry in data.split(b"\0"):
        name, equals, value = os.fsdecode(entry).partition("=")
        if name and equals and name not in _NO_EXPORTS:
            after[name] = value
    changes: dict[str, str | None] = {name: value for name, value in after.items() if before.get(name) != value}
    changes |= {name: None for name in before if name not in after and name not in _NO_EXPORTS}
    return changes
