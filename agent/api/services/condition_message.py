"""Conditions and drains of the node, and results of its checks, as messages."""

from muster.agent.messages.convert import check_to
from muster.agent.node.conditions import Condition
from muster.agent.node.node_file import DrainState
from muster.agent.protobuf_times import timestamp
from muster.agent.text import plain
from muster.probes.checks.result import CheckResult
from muster.v1 import job_pb2, node_pb2


def condition_message(condition: Condition) -> node_pb2.Condition:
    """See Condition in node.proto."""
    return node_pb2.Condition(
        item=plain(condition.item),
        device=plain(condition.device),
        status=str(condition.status),
        code=condition.code,
        reason=plain(condition.reason),
        since=timestamp(condition.since),
        seen_at=timestamp(condition.seen_at),
        observed=plain(condition.observed),
        threshold=plain(condition.threshold),
        action=str(condition.action),
        clears=condition.clears,
        injected=condition.injected,
        card=condition.card,
    )


def drain_message(drain: DrainState) -> node_pb2.DrainState:
    """See DrainState in node.proto."""
    return node_pb2.DrainState(reason=plain(drain.reason), by=plain(drain.by), since=timestamp(drain.since))


def result_message(result: CheckResult) -> job_pb2.CheckResult:
    """See CheckResult in job.proto."""
    message = check_to({name: getattr(result, name) for name in result.__slots__})
    message.device = plain(result.device)
    return message
