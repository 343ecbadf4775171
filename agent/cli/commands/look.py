"""`muster status`: one job."""

import re
import time
from typing import TYPE_CHECKING

import click

from muster.agent.cli.client.address import Address, pass_address
from muster.agent.cli.printing import as_dict, coloured, emit, emit_json, folded, format_option, wide
from muster.agent.text import STATE_COLOURS, clean, command_line, table
from muster.agent.text import ranks as named

if TYPE_CHECKING:
    from muster.agent.cli.client.calls import DaemonConnection
    from muster.v1 import job_pb2


@click.command()
@pass_address
@click.argument("job", metavar="JOB")
@format_option
def status(address: Address, job: str, as_json: bool) -> None:
    """Show a job with its ranks."""
    from muster.agent.cli.client.calls import connect, get_job
    from muster.agent.cli.client.knowing import knowing

    with knowing(address, job) as where, connect(where) as connection:
        found = get_job(connection, job)
        if as_json:
            emit_json(as_dict(found))
            return
        use = _use(connection, found)
    from muster.agent.cli import show

    now = time.time()
    facts = [
        ("job", clean(found.job_id)),
        ("state", _coloured(show.state(found.state))),
        ("command", command_line(found.spec.command)),
        ("boot", found.spec.boot if found.spec.boot != "ranks" else ""),
        ("starts", _started(found)),
        ("accepted", show.when(found.accepted_at)),
        ("started", show.when(found.started_at)),
        ("ended", show.when(found.ended_at)),
        ("ran for", show.lasted(found, now)),
        ("folder", clean(found.spec.workdir)),
        ("user", clean(found.spec.user)),
        ("cards", show.devices(found)),
        ("use", use),
        ("hang", hang_line(found)),
        ("slow", slow_line(found)),
        *(("held by", clean(text)) for text in found.held_by),
        ("meets at", f"{clean(found.master_addr)}:{found.master_port}" if found.master_port else ""),
        ("node", f"{found.spec.node_rank} of {found.spec.node_count}" if found.spec.node_count > 1 else ""),
        ("rank table", clean(found.spec.rank_table)),
        ("limits", _limits(found)),
        ("hardening", _hardening(found)),
        ("mode", _preset(found)),
        ("step", show.step(found)),
        ("outputs", _undelivered(found)),
        ("labels", clean(", ".join(f"{key}={value}" for key, value in sorted(found.spec.labels.items())))),
        ("attempt", f"{found.attempt} of at most {found.spec.max_restarts}" if found.spec.max_restarts else ""),
        *((f"attempt {a.number}", f"code {a.exit_code}: {clean(a.summary)}") for a in found.past_attempts[-5:]),
        ("next", f"attempt {found.attempt} at {show.when(found.restart_at)}" if found.HasField("restart_at") else ""),
        ("supervisor", f"pid {found.supervisor_pid}" if found.supervisor_pid else ""),
        ("takeovers", str(found.takeovers) if found.takeovers else ""),
        ("verdict", clean(found.verdict.summary)),
        ("cause", clean(found.verdict.cause)),
        ("do", show.advice(found)),
        ("log", clean(found.log_path)),
        ("of ranks", "" if wide() else clean(_rank_logs(found))),
        *(("warning", clean(text)) for text in found.warnings),
    ]
    emit(_facts(facts) + "\n" + _ranks(found) + _services(found))


def _use(connection: "DaemonConnection", job: "job_pb2.Job") -> str:
    """How well the cards of a running job are used; "" where nothing is known."""
    from muster.v1 import job_pb2

    if job.state != job_pb2.JOB_STATE_RUNNING or not any(rank.pid for rank in job.ranks):
        return ""
    from muster.agent.cli.exits import CallFailed
    from muster.v1 import telemetry_pb2

    try:
        request = telemetry_pb2.GetTelemetryRequest(job_id=job.job_id)
        answer = connection.call(connection.telemetry.GetTelemetry, request)
    except CallFailed:  # it has ended meanwhile, or the daemon is an earlier one
        return ""
    for found in answer.jobs:
        if found.HasField("card_utilization"):
            low = ": its cards are underused" if found.underused else ""
            return f"cards average {found.card_utilization:.0f}% since the start{low} (muster top {job.job_id})"
    return ""


def hang_line(job: "job_pb2.Job") -> str:
    """What the hang rule says, where it is nothing good, or for whom the others wait."""
    from muster.agent.cli import show

    found = job.hang
    waits = "WAITING" if found.verdict == "WAITING" and found.reason.startswith("WAITING: rank") else ""
    if not (verdict := show.hang(job) or waits):
        return ""
    more = f"(muster why {job.job_id}, muster stacks {job.job_id})"
    head, _, why = found.reason.partition(": ")
    if not head.startswith(found.verdict):  # it begins with the culprit
        return f"{verdict}: {clean(found.reason)} {more}"
    if head == found.verdict != "DRIVER_HANG":  # the same behind the verdict
        return f"{verdict}: {clean(why)} {more}"
    who = f", {named(found.ranks)}" if found.ranks else ""
    return f"{verdict} since {show.when(found.since)}{who}: {clean(why)} {more}"


def slow_line(job: "job_pb2.Job") -> str:
    """The ranks that are SLOW; "" if none is."""
    return f"{clean(job.slow.reason)} (muster why {job.job_id})" if job.slow.ranks else ""


def _started(job: "job_pb2.Job") -> str:
    """The command lines of launchers, which the boot mode makes of the command."""
    if job.spec.boot in ("", "ranks"):
        return ""
    lines = dict.fromkeys(command_line(rank.command) for rank in job.ranks if rank.command)
    return "; ".join(lines) if job.HasField("started_at") else ""


def _limits(job: "job_pb2.Job") -> str:
    given = [f"{field.name} {value if value != -1 else 'unlimited'}" for field, value in job.spec.limits.ListFields()]
    given += [f"umask {job.spec.umask:03o}"] if job.spec.HasField("umask") else []
    given += [f"nice {job.spec.nice}"] if job.spec.nice else []
    return ", ".join(given)


def _hardening(job: "job_pb2.Job") -> str:
    """What its processes may not do."""
    found = job.hardening
    kept = ", ".join(found.capabilities) or "none"
    said = {
        "no new privileges": found.no_new_privs,
        f"capabilities {kept}": found.bounded,
        f"at most {found.max_pids} processes and threads": found.max_pids,
        "private /tmp": found.private_tmp,
        f"read-only {' '.join(map(clean, found.read_only))}": found.read_only,
        f"seccomp {clean(found.seccomp)}": found.seccomp,
    }
    return "; ".join(text for text, holds in said.items() if holds)


def _preset(job: "job_pb2.Job") -> str:
    variables = " ".join(f"{name}={value}" for name, value in sorted(job.preset_env.items()))
    return f"{job.spec.training_mode} ({variables})" if job.spec.training_mode else ""


def _services(job: "job_pb2.Job") -> str:
    from muster.agent.cli import show

    rows = [
        [str(one.rank), one.role, str(one.pid or "-"), show.outcome(one, job), show.status(one) or "-", one.log_path]
        for one in job.services
    ]
    return "\n" + table(["SERVICE", "NAME", "PID", "OUTCOME", "CODE", "LOG"], rows) if rows else ""


def _undelivered(found: "job_pb2.Job") -> str:
    if not found.outputs_kept or found.step:
        return ""
    from muster.supervisors.model.rules import staging_urls

    return "not delivered: " + clean(", ".join(staging_urls.undelivered(found.spec.outputs, found.warnings)))


def _rank_logs(job: "job_pb2.Job") -> str:
    """The log of its rank; of several ranks as a shell finds them."""
    paths = [rank.log_path for rank in job.ranks if rank.log_path]
    return re.sub(r"-proc-rank-\d+-device-\d+", "-proc-rank-*-device-*", paths[0]) if paths[1:] else "".join(paths)


def _ranks(job: "job_pb2.Job") -> str:
    from muster.agent.cli import show

    rows, more = [], wide()
    bound = any(rank.cpus for rank in job.ranks)
    for rank in job.ranks:
        known = rank.HasField("usage")
        rows.append(
            [
                str(rank.rank),
                str(rank.device),
                str(rank.pid or "-"),
                *([rank.cpus or "-"] if bound else []),
                show.outcome(rank, job),
                show.status(rank) or "-",
                show.cpu(rank.usage) if known else "-",
                show.memory(rank.usage) if known else "-",
                *([show.transferred(rank.usage) if known else "-", rank.log_path] if more else []),
            ]
        )
    head = ["RANK", "DEVICE", "PID", *(["CPUS"] if bound else []), "OUTCOME", "CODE", "CPU USER+SYS", "MAX RSS"]
    text = table([*head, *(["READ/WRITTEN", "LOG"] if more else [])], rows)
    for rank in job.ranks:
        if rank.detail:
            text += folded(f"rank {rank.rank}: {clean(rank.detail)}", 4) + "\n"
    return text


def _facts(facts: list[tuple[str, str]]) -> str:
    """Names and values below each other; those without a value are left out."""
    return "".join(folded(f"{name:<11} {value}", 12) + "\n" for name, value in facts if value and value != "-")


def _coloured(state: str) -> str:
    return click.style(state, fg=STATE_COLOURS.get(state), bold=True) if coloured() else state
