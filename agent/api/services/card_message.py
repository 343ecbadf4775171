"""The cards of the node as messages."""

import time

from muster.agent import threads
from muster.agent.api.services import ServerContext
from muster.agent.config.schema import TelemetryTable
from muster.agent.jobs.cards import doubts, holders
from muster.agent.jobs.cards.leases import Lease
from muster.agent.protobuf_times import timestamp
from muster.agent.telemetry.freshness import latest
from muster.agent.text import plain
from muster.probes.cards import visible
from muster.probes.cards.accelerator import SLOT, Activity, Health, Holder, Reading
from muster.probes.cards.driver import Seen, View
from muster.probes.kernel import number_lists
from muster.probes.kernel.dataclass import dataclass
from muster.supervisors.model.card_identity import own_number
from muster.v1 import node_pb2


@dataclass(frozen=True, slots=True)
class _LastReported:
    """What the driver said last of a card, without what is old. Each part has a time of its own."""

    reading: Seen[Reading] | None
    health: Seen[Health] | None
    holders: Seen[tuple[Holder, ...]] | None

    @classmethod
    def of(cls, view: View, index: int, periods: TelemetryTable, now: float) -> "_LastReported":
        """`now` in seconds since the epoch."""
        return cls(
            latest(view.readings, index, periods.readings_s, now),
            latest(view.health, index, periods.health_s, now),
            latest(view.holders, index, periods.holders_s, now),
        )


async def cards_of(context: ServerContext) -> list[node_pb2.Card]:
    """All of them by index, with their holders, conditions and last readings."""
    view, periods, now = context.driver.view, context.config().telemetry, time.time()
    told = {index: _LastReported.of(view, index, periods, now) for index in view.cards}
    pids = {holder.pid for one in told.values() if one.holders is not None for holder in one.holders.value}
    known = await threads.run(lambda: {pid: holders.who(pid) for pid in pids}) if pids else {}
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
            cpus=number_lists.numbers(card.cpus),
            peers=card.peers,
            health=str(doubts.status(context.health.conditions, view, card.index)),
            held_by=plain(lease.held_by),
            reserved=plain(lease.reserved),
            mig=card.mig,
            visible_as=_visible(context, view, lease),
            device_node=card.node,
            physical_id=card.numbers.physical,
            logical_id=card.numbers.logical,
            card_id=card.numbers.board,
            chip_id=card.numbers.chip,
            serial=plain(card.serial),
            parent=card.parent,
            gpu_instance_id=card.numbers.gpu_instance,
            compute_instance_id=card.numbers.compute_instance,
        )
        if card.index in told and (reading := _reading(told[card.index], known)) is not None:
            message.reading.CopyFrom(reading)
        messages.append(message)
    return messages


def _visible(context: ServerContext, view: View, lease: Lease) -> str:
    """What the job that holds the card calls it; of a free one, what a job would."""
    if lease.job_id and lease.card.kind != SLOT:
        entry = context.registry.known(lease.job_id)
        if entry is not None:
            number = own_number(entry.job, lease.card.index, lease.card.uuid)
            number = lease.card.index if number is None else number
            return entry.job.card_visible.get(number, str(number))
    return visible.word(lease.card, view.cards.values(), view.sick)


def _reading(told: _LastReported, known: dict[int, holders.Who]) -> node_pb2.CardReading | None:
    seen, health, there = told.reading, told.health, told.holders
    if seen is None and health is None and there is None:
        return None
    message = node_pb2.CardReading(at=timestamp(max(x.at for x in (seen, health, there) if x is not None)))
    if seen is not None:
        now = seen.value
        message.MergeFrom(
            node_pb2.CardReading(
                utilization=now.util,
                memory_utilization=now.mem_util,
                memory_used_bytes=now.mem_used,
                memory_total_bytes=now.mem_total,
                power_watts=now.power_w,
                memory_reserved_bytes=now.mem_reserved,
            )
        )
    if health is not None:
        facts = health.value
        message.MergeFrom(
            node_pb2.CardReading(
                power_limit_watts=facts.power_limit_w,
                temperature=facts.temp_c,
                memory_temperature=facts.mem_temp_c,
                sm_clock_mhz=facts.sm_clock_mhz,
                memory_clock_mhz=facts.mem_clock_mhz,
                fabric_bytes=facts.fabric_bytes,
                ecc_corrected=facts.ecc_corrected,
                ecc_uncorrected=facts.ecc_uncorrected,
                activity=None if facts.activity is None else _activity(facts.activity),
            )
        )
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


def _activity(of: Activity) -> node_pb2.CardActivity:
    return node_pb2.CardActivity(
        seconds=of.over_s,
        graphics=of.graphics,
        sm=of.sm,
        occupancy=of.occupancy,
        tensor=of.tensor,
        dram=of.dram,
        fp64=of.fp64,
        fp32=of.fp32,
        fp16=of.fp16,
        pcie_sent=of.pcie_tx,
        pcie_received=of.pcie_rx,
        fabric_sent=of.fabric_tx,
        fabric_received=of.fabric_rx,
    )
