"""The cards of the node as messages."""

from anyio import to_thread

from agent import holders
from agent.convert import timestamp
from agent.node_health import NodeHealth
from agent.services import ServerContext
from agent.spec_message import plain
from muster.v1 import node_pb2
from probes.driver import View
from probes.result import Status
from supervisors import cpus


async def cards_of(context: ServerContext) -> list[node_pb2.Card]:
    """All of them by index, with their holders, conditions and last readings."""
    view = context.driver.view
    pids = {holder.pid for seen in view.holders.values() for holder in seen.value}
    known = await to_thread.run_sync(lambda: {pid: holders.who(pid) for pid in pids}) if pids else {}
    messages = []
    for lease in context.registry.leasing.all():
        card = lease.card
        message = node_pb2.Card(
            index=card.index,
            kind=card.kind,
            job_id=lease.job_id,
            uuid=card.uuid,
            model=plain(card.model),
            memory_bytes=card.memory_bytes,
            bus_id=card.bus_id,
            numa_node=card.numa_node,
            cpus=cpus.shown(card.cpus),
            peers=card.peers,
            health=_health(context.health, card.index),
            held_by=plain(lease.held_by),
            mig=card.mig,
        )
        if (reading := _reading(view, card.index, known)) is not None:
            message.reading.CopyFrom(reading)
        messages.append(message)
    return messages


def _health(health: NodeHealth, index: int) -> str:
    statuses = [condition.status for condition in health.conditions if condition.card == index]
    order = (Status.CRITICAL, Status.UNKNOWN, Status.WARN)
    return next((str(status) for status in order if status in statuses), str(Status.OK))


def _reading(view: View, index: int, known: dict[int, holders.Who]) -> node_pb2.CardReading | None:
    seen, health, there = view.readings.get(index), view.health.get(index), view.holders.get(index)
    if seen is None and health is None and there is None:
        return None
    message = node_pb2.CardReading(at=timestamp(max(x.at for x in (seen, health, there) if x is not None)))
    if seen is not None:
        now = seen.value
        _set(message, "utilization", now.util)
        _set(message, "memory_utilization", now.mem_util)
        _set(message, "memory_used_bytes", now.mem_used)
        _set(message, "memory_total_bytes", now.mem_total)
        _set(message, "power_watts", now.power_w)
    if health is not None:
        facts = health.value
        _set(message, "power_limit_watts", facts.power_limit_w)
        _set(message, "temperature", facts.temp_c)
        _set(message, "memory_temperature", facts.mem_temp_c)
        _set(message, "sm_clock_mhz", facts.sm_clock_mhz)
        _set(message, "memory_clock_mhz", facts.mem_clock_mhz)
        _set(message, "fabric_bytes", facts.fabric_bytes)
        _set(message, "ecc_corrected", facts.ecc_corrected)
        _set(message, "ecc_uncorrected", facts.ecc_uncorrected)
    if there is not None:
        message.processes_known = True
        for holder in there.value:
            who = known.get(holder.pid) or holders.Who(holder.pid)
            message.processes.add(
                pid=holder.pid,
                memory_bytes=holder.memory,
                command=plain(who.command),
                user=plain(who.user),
                job_id=plain(who.job_id),
            )
    return message


def _set(message: node_pb2.CardReading, name: str, value: float | int | None) -> None:
    if value is not None:
        setattr(message, name, value)
