"""muster's own metrics of the cards: who holds them, whether their driver answers, and its last reading of each.

A reading that is missing or old has no sample: no metric freezes at its last value.
"""

from collections.abc import Collection, Sequence

from muster.agent.config.schema import TelemetryTable
from muster.agent.exposition import Catalogue, Metric, Page
from muster.agent.jobs.cards.leases import Lease
from muster.agent.telemetry.freshness import fresh
from muster.probes.cards.accelerator import SLOT, Activity, Card, Health, Reading, Trouble
from muster.probes.cards.driver import View

__all__ = ["OWN", "cards", "fresh", "names", "readings", "scaled"]

OWN = Catalogue()
CARDS = OWN.gauge(
    "muster_cards", "Cards by state: free, leased to a job, held by processes of an ended job, unfit.", "state"
)
DRIVER_UP = OWN.gauge("muster_driver_up", "1 while the cards' driver answers; none on a host without cards.", "kind")
DRIVER = OWN.gauge("muster_driver_info", "Always 1; which driver the cards have is in the labels.", "kind", "version")
DRIVER_TROUBLE = OWN.gauge(
    "muster_driver_trouble", "1 while the cards' driver as a whole does not answer, and why.", "kind", "trouble"
)

CARD_LABELS = ("card", "uuid", "model")
INFO = OWN.gauge(
    "muster_card_info",
    "Always 1; what does not change is in the labels.",
    *CARD_LABELS,
    "bus_id",
    "numa_node",
    "mig",
)
LEASED = OWN.gauge("muster_card_leased", "1 while a job that has not ended holds the card.", *CARD_LABELS)
JOB = OWN.gauge(
    "muster_card_job_info",
    "Always 1; the job that holds the card is in the labels. Other metrics join it by `card`.",
    *CARD_LABELS,
    "job_id",
)
UP = OWN.gauge("muster_card_up", "1 while the driver answers for the card.", *CARD_LABELS)
TROUBLE = OWN.gauge(
    "muster_card_trouble", "1 while the driver does not answer for it, and why.", *CARD_LABELS, "trouble"
)

UTIL = OWN.gauge("muster_card_utilization_ratio", "Share of the time in which the card computed, 0 to 1.", *CARD_LABELS)
MEM_UTIL = OWN.gauge(
    "muster_card_memory_utilization_ratio",
    "Share of the time in which the card's memory was moved, 0 to 1.",
    *CARD_LABELS,
)
MEM_USED = OWN.gauge("muster_card_memory_used_bytes", "Memory of the card that is in use.", *CARD_LABELS)
MEM_TOTAL = OWN.gauge("muster_card_memory_total_bytes", "Memory that the card has.", *CARD_LABELS)
POWER = OWN.gauge("muster_card_power_watts", "Power that the card draws.", *CARD_LABELS)
MEM_RESERVED = OWN.gauge(
    "muster_card_memory_reserved_bytes", "Memory that the driver keeps: neither used nor free.", *CARD_LABELS
)
PROCESSES = OWN.gauge("muster_card_processes", "Processes that the driver shows on the card.", *CARD_LABELS)

POWER_LIMIT = OWN.gauge("muster_card_power_limit_watts", "Power that the card may draw.", *CARD_LABELS)
TEMP = OWN.gauge("muster_card_temperature_celsius", "Temperature of the card's processor.", *CARD_LABELS)
MEM_TEMP = OWN.gauge("muster_card_memory_temperature_celsius", "Temperature of the card's memory.", *CARD_LABELS)
SM_CLOCK = OWN.gauge("muster_card_clock_hertz", "Clock of the card's processor.", *CARD_LABELS)
MEM_CLOCK = OWN.gauge("muster_card_memory_clock_hertz", "Clock of the card's memory.", *CARD_LABELS)
ENERGY = OWN.counter(
    "muster_card_energy_joules_total", "Energy that the card used since its driver's load.", *CARD_LABELS
)
FABRIC = OWN.counter(
    "muster_card_fabric_bytes_total",
    "Bytes over all links of the card's fabric (NVLink, HCCS), both ways.",
    *CARD_LABELS,
)
LINKS = OWN.gauge(
    "muster_card_fabric_links", "Links of the card's fabric, by whether they are up.", *CARD_LABELS, "state"
)
REPLAYS = OWN.counter("muster_card_pcie_replays_total", "Packets sent again over the card's PCIe link.", *CARD_LABELS)
ECC = OWN.counter(
    "muster_card_ecc_errors_total", "Memory errors of the card, since its driver's load.", *CARD_LABELS, "type"
)
REMAPPED = OWN.gauge("muster_card_remapped_rows", "Rows of the card's memory that were replaced.", *CARD_LABELS, "type")
REMAP_PENDING = OWN.gauge("muster_card_row_remap_pending", "1 while a replaced row waits for a reset.", *CARD_LABELS)
REMAP_FAILED = OWN.gauge("muster_card_row_remap_failed", "1 where a row could not be replaced.", *CARD_LABELS)
SLOWED = OWN.gauge(
    "muster_card_clock_limited", "1 while its clocks are held down for this reason.", *CARD_LABELS, "reason"
)

ACTIVITY = OWN.gauge(
    "muster_card_activity_ratio",
    "Share of the time in which this part of the card worked, 0 to 1 (NVIDIA from Hopper on).",
    *CARD_LABELS,
    "part",
)
PCIE = OWN.gauge("muster_card_pcie_bytes_per_second", "Data over PCIe.", *CARD_LABELS, "direction")
FABRIC_RATE = OWN.gauge(
    "muster_card_fabric_bytes_per_second", "Data over the card's fabric (NVLink).", *CARD_LABELS, "direction"
)

#: Parts of a card of which `muster_card_activity_ratio` tells, as the members of Activity are called.
PARTS = ("graphics", "sm", "occupancy", "tensor", "dram", "fp64", "fp32", "fp16")

#: Bits of NVML's clock event reasons, without "idle".
REASONS = {
    "power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sw_thermal": 0x20,
    "hw_thermal": 0x40,
    "power_brake": 0x80,
}


def cards(page: Page, view: View, leases: Sequence[Lease], ended: Collection[str], unfit: Collection[int]) -> None:
    """Adds who holds the cards, and whether they answer. `ended`: ids of jobs that have ended; `unfit`: cards that
    refuse jobs."""
    leases = [lease for lease in leases if not lease.card.mig]  # jobs get its instances
    states = [_state(lease, ended, unfit) for lease in leases]
    page.add_counts(CARDS, ("free", "leased", "held", "unfit"), states)
    if view.kind == SLOT:
        return
    page.add(DRIVER_UP, view.driver is None, view.kind)
    page.add(DRIVER, 1, view.kind, view.version)
    if view.driver is not None:
        page.add(DRIVER_TROUBLE, 1, view.kind, view.driver.trouble)
    leased = {lease.card.index for lease, state in zip(leases, states, strict=True) if state == "leased"}
    for card in view.cards.values():
        named = names(card)
        numa = "" if card.numa_node is None else str(card.numa_node)
        page.add(INFO, 1, *named, card.bus_id, numa, str(card.mig).lower())
        page.add(LEASED, card.index in leased, *named)
        sick = view.sick.get(card.index)
        told_off = sick is not None and sick.trouble is not Trouble.NOT_TOLD  # which says nothing of the card
        page.add(UP, not told_off and view.driver is None, *named)
        if sick is not None:
            page.add(TROUBLE, 1, *named, sick.trouble)


def jobs(page: Page, leases: Sequence[Lease]) -> None:
    """Adds which job holds each card, or held it while its processes are still there."""
    for lease in leases:
        if lease.job_id and lease.card.kind != SLOT:
            page.add(JOB, 1, *names(lease.card), lease.job_id)


def readings(page: Page, view: View, periods: TelemetryTable, now: float) -> None:
    """Adds the driver's last reading of each card; `now` in seconds since the epoch."""
    for card in view.cards.values():
        named = names(card)
        if (quick := fresh(view.readings, card.index, periods.readings_s, now)) is not None:
            _quick(page, quick, named)
        if (slow := fresh(view.health, card.index, periods.health_s, now)) is not None:
            _slow(page, slow, named)
        if (holders := fresh(view.holders, card.index, periods.holders_s, now)) is not None:
            page.add(PROCESSES, len(holders), *named)


def names(card: Card) -> tuple[str, str, str]:
    """Values of the labels that are common to all metrics of a card."""
    return str(card.index), card.uuid, card.model


def _state(lease: Lease, ended: Collection[str], unfit: Collection[int]) -> str:
    if lease.job_id:
        return "held" if lease.held_by or lease.job_id in ended else "leased"
    return "unfit" if lease.card.index in unfit else "free"


def _quick(page: Page, reading: Reading, named: tuple[str, ...]) -> None:
    page.add(UTIL, scaled(reading.util, 0.01), *named)
    page.add(MEM_UTIL, scaled(reading.mem_util, 0.01), *named)
    page.add(MEM_USED, reading.mem_used, *named)
    page.add(MEM_TOTAL, reading.mem_total, *named)
    page.add(MEM_RESERVED, reading.mem_reserved, *named)
    page.add(POWER, reading.power_w, *named)


def _slow(page: Page, health: Health, named: tuple[str, ...]) -> None:
    plain: tuple[tuple[Metric, float | None], ...] = (
        (POWER_LIMIT, health.power_limit_w),
        (TEMP, health.temp_c),
        (MEM_TEMP, health.mem_temp_c),
        (SM_CLOCK, scaled(health.sm_clock_mhz, 1e6)),
        (MEM_CLOCK, scaled(health.mem_clock_mhz, 1e6)),
        (ENERGY, scaled(health.energy_mj, 1e-3)),
        (FABRIC, health.fabric_bytes),
        (REPLAYS, health.pcie_replay),
    )
    for metric, value in plain:
        page.add(metric, value, *named)
    if health.activity is not None:
        _parts(page, health.activity, named)
    page.add(ECC, health.ecc_corrected, *named, "corrected")
    page.add(ECC, health.ecc_uncorrected, *named, "uncorrected")
    if health.remapped is not None:
        page.add(REMAPPED, health.remapped.correctable, *named, "correctable")
        page.add(REMAPPED, health.remapped.uncorrectable, *named, "uncorrectable")
        page.add(REMAP_PENDING, health.remapped.pending, *named)
        page.add(REMAP_FAILED, health.remapped.failure, *named)
    if health.links:
        page.add(LINKS, sum(health.links), *named, "up")
        page.add(LINKS, len(health.links) - sum(health.links), *named, "down")
    if health.event_reasons is not None:
        for reason, bit in REASONS.items():
            page.add(SLOWED, bool(health.event_reasons & bit), *named, reason)


def _parts(page: Page, activity: Activity, named: tuple[str, ...]) -> None:
    for part in PARTS:
        page.add(ACTIVITY, scaled(getattr(activity, part), 0.01), *named, part)
    page.add(PCIE, activity.pcie_tx, *named, "sent")
    page.add(PCIE, activity.pcie_rx, *named, "received")
    page.add(FABRIC_RATE, activity.fabric_tx, *named, "sent")
    page.add(FABRIC_RATE, activity.fabric_rx, *named, "received")


def scaled(value: float | None, factor: float) -> float | None:
    """Converts to another unit and rounds: 0.07, not 0.07000000000000001."""
    return None if value is None else round(value * factor, 9)
