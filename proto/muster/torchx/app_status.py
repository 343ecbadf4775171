"""How an app is: TorchX's states and statuses from those of its jobs."""

import json
from collections import defaultdict
from collections.abc import Sequence

from torchx.schedulers.api import DescribeAppResponse
from torchx.specs import NONE, AppState, ReplicaStatus, Resource, Role, RoleStatus

from muster.client.gang import FINAL
from muster.torchx.app_jobs import FoundApp, FoundPart, number
from muster.torchx.app_parts import IMAGE, REPLICAS
from muster.torchx.daemons import named
from muster.v1 import job_pb2

#: TorchX has no state for a lost outcome, and UNKNOWN is not final for it: who waits would wait for ever.
STATES = {
    job_pb2.JOB_STATE_ACCEPTED: AppState.SUBMITTED,
    job_pb2.JOB_STATE_CHECKING: AppState.PENDING,
    job_pb2.JOB_STATE_PREPARING: AppState.PENDING,
    job_pb2.JOB_STATE_RUNNING: AppState.RUNNING,
    job_pb2.JOB_STATE_STOPPING: AppState.RUNNING,
    job_pb2.JOB_STATE_RESTARTING: AppState.PENDING,
    job_pb2.JOB_STATE_SUCCEEDED: AppState.SUCCEEDED,
    job_pb2.JOB_STATE_FAILED: AppState.FAILED,
    job_pb2.JOB_STATE_STOPPED: AppState.CANCELLED,
    job_pb2.JOB_STATE_LOST: AppState.FAILED,
}


def response(app: FoundApp) -> DescribeAppResponse:
    """For `Scheduler.describe`. The app has a part at least."""
    failed = first_failed(app.parts)
    roles = _roles(app)
    return DescribeAppResponse(
        app_id=app.app_id,
        state=state(app),
        num_restarts=max((part.job.attempt for part in app.parts), default=0),
        msg=_message(app, failed) or NONE,
        structured_error_msg=_error(failed) if failed else NONE,
        roles_statuses=[RoleStatus(role.name, _replicas(app, role)) for role in roles],
        roles=roles,
    )


def state(app: FoundApp) -> AppState:
    """Of the whole app. It is final only when no part that is known still runs: an app of which a part has failed is
    RUNNING as long as others run, and then FAILED. Success needs every part: one that is not known leaves the app
    UNKNOWN."""
    states = [STATES.get(part.job.state, AppState.UNKNOWN) for part in app.parts]
    missing = len(app.parts) < app.size
    for live in (AppState.RUNNING, AppState.PENDING, AppState.SUBMITTED):
        if live in states:
            started = live is not AppState.SUBMITTED and AppState.SUCCEEDED in states
            return AppState.RUNNING if started else live
    for end in (AppState.FAILED, AppState.CANCELLED):
        if end in states:
            return end
    if missing:  # at an answering daemon: removed, which who waits for the app must not wait for
        return AppState.FAILED if app.submitted_here and not app.silent else AppState.UNKNOWN
    return AppState.SUCCEEDED if AppState.UNKNOWN not in states and states else AppState.UNKNOWN


def first_failed(parts: Sequence[FoundPart]) -> FoundPart | None:
    """The part that failed, or was lost, first."""
    failed = [part for part in parts if STATES.get(part.job.state) is AppState.FAILED]
    return min(failed, key=lambda part: part.job.ended_at.ToNanoseconds(), default=None)


def _message(app: FoundApp, failed: FoundPart | None) -> str:
    told = []
    if failed is not None:
        told.append(_sentence(failed))
        running = [part for part in app.parts if part.job.state not in FINAL]
        if running:
            told.append(f"{_list(running)} still run: end them with `torchx cancel`")
    else:
        stopped = [part.job.verdict.stopped_by for part in app.parts if part.job.verdict.stopped_by]
        told += [f"stopped by {stopped[0]}"] if stopped else []
        told += [f"{part.role}/{part.replica}: {warning}" for part in app.parts for warning in part.job.warnings][:5]
    missing = app.size - len(app.parts)
    if missing > 0 and app.silent:
        told.append(
            f"{missing} of {app.size} replicas are not known: no answer from {named(app.silent)}; they may still run"
        )
    elif missing > 0:
        told.append(
            f"{missing} of {app.size} replicas are not known to the daemons that were asked: removed, or at others"
        )
    return "; ".join(told)


def _list(parts: Sequence[FoundPart]) -> str:
    shown = ", ".join(f"{part.role}/{part.replica}" for part in parts[:5])
    return shown if len(parts) <= 5 else f"{shown} and {len(parts) - 5} others"


def _sentence(part: FoundPart) -> str:
    """The verdict, its cause and what to do, of one part."""
    verdict = part.job.verdict
    told = [f"{part.role}/{part.replica} at {part.host.address}: {verdict.summary or 'failed'}"]
    if verdict.cause:
        told.append(verdict.cause)
    if verdict.recommendation != job_pb2.RECOMMENDATION_UNSPECIFIED:
        what = job_pb2.Recommendation.Name(verdict.recommendation).removeprefix("RECOMMENDATION_")
        told.append(f"{what}: {verdict.recommendation_reason}" if verdict.recommendation_reason else what)
    return "; ".join(told)


def _error(part: FoundPart) -> str:
    """As PyTorch's error files are, which TorchX reads; what muster knows beyond is under `muster`."""
    verdict, ended = part.job.verdict, part.job.ended_at
    return json.dumps(
        {
            "message": {
                "message": _sentence(part),
                "errorCode": verdict.exit_code,
                "extraInfo": {"timestamp": str(ended.seconds), "py_callstack": "\n".join(verdict.last_lines)},
            },
            "muster": {
                "job_id": part.job.job_id,
                "host": part.host.address,
                "state": job_pb2.JobState.Name(part.job.state).removeprefix("JOB_STATE_"),
                "cause": verdict.cause,
                "cause_kind": verdict.cause_kind,
                "reason": verdict.reason,
                "recommendation": job_pb2.Recommendation.Name(verdict.recommendation).removeprefix("RECOMMENDATION_"),
            },
        }
    )


def _roles(app: FoundApp) -> list[Role]:
    """As they were submitted, but for the environment, whose values no daemon shows."""
    by_role: dict[str, list[FoundPart]] = defaultdict(list)
    for part in app.parts:
        by_role[part.role].append(part)
    found = []
    for name, parts in by_role.items():
        spec = parts[0].job.spec
        # A job of several parts may be known in part alone.
        count = max([number(part.job, REPLICAS) for part in parts] + [part.replica + 1 for part in parts])
        found.append(
            Role(
                name=name,
                image=spec.labels.get(IMAGE, ""),
                entrypoint=spec.command[0] if spec.command else "",
                args=list(spec.command[1:]),
                num_replicas=count,
                max_retries=spec.max_restarts,
                resource=Resource(cpu=-1, gpu=spec.cards.count, memMB=-1),
            )
        )
    return found


def _replicas(app: FoundApp, role: Role) -> list[ReplicaStatus]:
    known = {part.replica: part for part in app.parts if part.role == role.name}
    return [
        ReplicaStatus(
            id=replica,
            state=STATES.get(part.job.state, AppState.UNKNOWN) if (part := known.get(replica)) else AppState.UNKNOWN,
            role=role.name,
            hostname=part.host.name or part.host.address if part else "",
            structured_error_msg=_error(part) if part and STATES.get(part.job.state) is AppState.FAILED else NONE,
        )
        for replica in range(role.num_replicas)
    ]
