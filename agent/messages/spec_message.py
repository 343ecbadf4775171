"""The spec of a job as a message, for a listing and for a request. Apart from convert.py, which is the daemon's: the
commands send specs too, and would load half of the daemon with it."""

from typing import Literal

from google.protobuf.duration_pb2 import Duration

from muster.agent.text import plain
from muster.supervisors.model.spec import JobSpec
from muster.v1 import job_pb2

_LimitName = Literal["nofile", "memlock_bytes", "stack_bytes", "core_bytes", "nproc", "memory_bytes", "cpus"]
#: Names of limits in the data model and in the message.
LIMITS: tuple[tuple[str, _LimitName], ...] = (
    ("nofile", "nofile"),
    ("memlock", "memlock_bytes"),
    ("stack", "stack_bytes"),
    ("core", "core_bytes"),
    ("nproc", "nproc"),
    ("memory", "memory_bytes"),
    ("cpus", "cpus"),
)


def limits_to(limits: dict[str, float]) -> job_pb2.Limits:
    message = job_pb2.Limits()
    for name, wire in LIMITS:
        if name in limits:
            setattr(message, wire, limits[name] if wire == "cpus" else int(limits[name]))
    return message


def duration(value: float) -> Duration:
    """From seconds."""
    nanos = round(value * 1e9)
    return Duration(seconds=nanos // 1_000_000_000, nanos=nanos % 1_000_000_000)


def spec_to(spec: JobSpec, *, secrets: bool = False) -> job_pb2.JobSpec:
    """The spec as a listing may show it: without the values of its environment, which are secrets. With `secrets` as
    a request to start it."""
    message = job_pb2.JobSpec(
        job_id=spec.job_id,
        command=[plain(word) for word in spec.command],
        env={plain(name): plain(value) if secrets else "" for name, value in spec.env.items()},
        ranks=spec.ranks,
        workdir=plain(spec.workdir),
        user=plain(spec.user),
        grace_steps=[duration(step) for step in spec.grace_steps],
        master_addr=plain(spec.master_addr),
        master_port=spec.master_port,
        node_rank=spec.node_rank,
        node_count=spec.node_count,
        labels={plain(key): plain(value) for key, value in spec.labels.items()},
        skip_check=spec.skip_check,
        max_runtime=None if spec.max_runtime is None else duration(spec.max_runtime),
        boot=spec.boot,
        nodes=[plain(name) for name in spec.nodes],
        rank_table=plain(spec.rank_table),
        ready_timeout=None if spec.ready_timeout is None else duration(spec.ready_timeout),
        max_restarts=spec.max_restarts,
        restart_backoff=None if spec.restart_backoff is None else duration(spec.restart_backoff),
        pre_start=plain(spec.pre_start),
        pre_start_timeout=None if spec.pre_start_timeout is None else duration(spec.pre_start_timeout),
        requirements=plain(spec.requirements),
        requirements_timeout=None if spec.requirements_timeout is None else duration(spec.requirements_timeout),
        epilog=plain(spec.epilog),
        epilog_timeout=None if spec.epilog_timeout is None else duration(spec.epilog_timeout),
        limits=limits_to(spec.limits) if spec.limits else None,
        umask=spec.umask,
        nice=spec.nice,
        training_mode=spec.training_mode,
        on_hang=spec.on_hang,
        max_hang_restarts=spec.max_hang_restarts,
        hang={plain(name): plain(value) for name, value in spec.hang.items()},
    )
    if spec.notify_webhook or spec.notify_events or spec.notify_secret:
        webhook = spec.notify_webhook if secrets else _without_secrets(spec.notify_webhook)
        secret = spec.notify_secret if secrets else ""
        message.notify.CopyFrom(job_pb2.Notify(webhook=plain(webhook), events=spec.notify_events, secret=plain(secret)))
    if spec.wants_cards:
        message.cards.CopyFrom(job_pb2.CardRequest(count=spec.card_count, indices=spec.card_indices))
    return message


def _without_secrets(url: str) -> str:
    """Scheme and host: what else a webhook's address has may be a token."""
    scheme, separator, rest = url.partition("://")
    host = rest.partition("/")[0].rpartition("@")[2].partition("?")[0]
    return f"{scheme}{separator}{host}/..." if separator else ""
