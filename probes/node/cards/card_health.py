"""A card's memory, heat and clocks, as its driver tells them."""

from muster.probes.cards.accelerator import ASCEND, NVIDIA, Health
from muster.probes.cards.driver import What
from muster.probes.checks.result import CheckResult, Code, Status
from muster.probes.node.cards.npus import UNASKED
from muster.probes.node.node_check import About, CardFacts, Look, NodeCheck, NodeRule, counted, each, for_kinds

ECC = NodeCheck(
    "ecc",
    "errors of the cards' memory since the driver was loaded",
    30.0,
    (
        Code.GPU_ECC_SRAM_UNCORRECTED,
        Code.GPU_ECC_UNCORRECTED,
        Code.GPU_ECC_SRAM_CORRECTED,
        Code.GPU_ECC_DRAM_CORRECTED,
        Code.NPU_ECC_UNCORRECTED,
    ),
    of_cards=True,
)
ROW_REMAP = NodeCheck(
    "row-remap",
    "rows of the cards' memory that were replaced, or could not be",
    60.0,
    (Code.GPU_ROW_REMAP_PENDING, Code.GPU_ROW_REMAP_FAILED),
    of_cards=True,
)
RETIRED = NodeCheck(
    "retired-pages",
    "pages of the cards' memory that were taken out of use (cards before Ampere)",
    60.0,
    (Code.GPU_PAGES_PENDING, Code.GPU_PAGES_RETIRED),
    of_cards=True,
)
CLOCKS = NodeCheck(
    "clocks",
    "neither the hardware nor a setting slows a card down",
    60.0,
    (Code.GPU_HW_SLOWDOWN, Code.GPU_CLOCKS_LOW),
    of_cards=True,
)
TEMPERATURE = NodeCheck(
    "temperature",
    "cards and their memory are below the maker's limits",
    30.0,
    (Code.GPU_TEMPERATURE, Code.GPU_MEMORY_TEMPERATURE, Code.NPU_TEMPERATURE),
    of_cards=True,
)
PERSISTENCE = NodeCheck(
    "persistence",
    "persistence mode is on",
    300.0,
    (Code.GPU_PERSISTENCE_OFF,),
    of_cards=True,
)

#: Bits of NVML's clocks event reasons that mean that the hardware slows the card down; others, such as idle, are no
#: fault.
SLOWDOWN = {0x8: "hardware slowdown", 0x40: "hardware thermal slowdown", 0x80: "power brake"}

#: The bit that means that the driver slows the card down for heat. At its power limit (0x4) a healthy H100 runs at 0.67
#: to 0.73 of its highest clock at full load, so a low clock alone is no finding.
SOFTWARE_THERMAL = 0x20
#: A card works from this utilization on, in percent.
_WORKS = 50.0


def ecc(say: About, facts: CardFacts, health: Health, look: Look) -> list[CheckResult]:
    """Errors that could not be corrected, and very many that could.

    An error of the on-chip memory is graver than one elsewhere, where the card replaces the row. NVML distinguishes
    them for newer cards; otherwise each error counts as one of the on-chip memory. DCMI counts errors of the HBM.
    """
    s = look.settings
    ascend = facts.card.kind == ASCEND
    counters = {
        "uncorrected": health.ecc_uncorrected,
        "corrected": health.ecc_corrected,
        "uncorrected in SRAM": health.sram_uncorrected,
        "corrected in SRAM": health.sram_corrected,
        "corrected in DRAM": health.dram_corrected,
    }
    told = {name: count for name, count in counters.items() if count is not None}
    if not told and "ecc" in health.unread:
        return [say.not_told(f"its memory errors are unknown: {health.unread['ecc']}")]
    if not told and health.partial:
        return [say.not_told(f"its memory errors are unknown: {UNASKED}")]
    if not told:
        return [say.off("it does not count memory errors" if health.ecc_on is not False else "ECC is off")]
    observed = ", ".join(f"{count} {name}" for name, count in told.items())
    found = []
    sram, total = health.sram_uncorrected, health.ecc_uncorrected
    if sram:
        reason = f"{counted(sram, 'error')} of its on-chip memory could not be corrected"
        found.append(say.found(Code.GPU_ECC_SRAM_UNCORRECTED, reason, observed, "none"))
    rest = (total or 0) - (sram or 0)
    if rest > 0:
        code, status = (Code.NPU_ECC_UNCORRECTED if ascend else Code.GPU_ECC_UNCORRECTED), None
        reason = f"{counted(rest, 'error')} of its memory could not be corrected"
        if sram is None and not ascend:
            reason, status = f"{reason}; its driver does not report where", Status.CRITICAL
        found.append(say.found(code, reason, observed, "none", status=status))
    for code, where, count, most in (
        (Code.GPU_ECC_SRAM_CORRECTED, "on-chip memory", health.sram_corrected, s.ecc_sram_corrected_max),
        (Code.GPU_ECC_DRAM_CORRECTED, "memory", health.dram_corrected, s.ecc_dram_corrected_max),
    ):
        if not ascend and most and count is not None and count > most:
            reason = f"{counted(count, 'error')} of its {where} {'was' if count == 1 else 'were'} corrected"
            found.append(say.found(code, reason, observed, f"at most {most}"))
    return found or [say.ok("no errors that count", observed)]


def row_remap(say: About, facts: CardFacts, health: Health, _look: Look) -> list[CheckResult]:
    """Rows that wait for a reset, and rows for which there is no spare one."""
    rows = health.remapped
    if rows is None:
        return [say.off("it does not replace rows of its memory")]
    observed = f"{rows.correctable} correctable, {rows.uncorrectable} uncorrectable"
    found = []
    if rows.failure:
        found.append(say.found(Code.GPU_ROW_REMAP_FAILED, "a broken row could not be replaced", observed, "no failure"))
    if rows.pending:
        found.append(say.found(Code.GPU_ROW_REMAP_PENDING, "a broken row waits for a reset", observed, "none pending"))
    return found or [say.ok("no row waits or failed", observed)]


def retired_pages(say: About, facts: CardFacts, health: Health, look: Look) -> list[CheckResult]:
    """Pages that wait for a reset, and how many there are."""
    pages, most = health.retired, look.settings.retired_pages_max
    if pages is None:
        return [say.off("it does not take pages of its memory out of use")]
    count = pages.corrected + pages.uncorrected
    observed = f"{pages.corrected} for corrected errors, {pages.uncorrected} for uncorrected ones"
    found = []
    if pages.pending:
        found.append(say.found(Code.GPU_PAGES_PENDING, "a broken page waits for a reset", observed, "none pending"))
    if count > most:
        reason = f"{count} pages of its memory are out of use"
        found.append(say.found(Code.GPU_PAGES_RETIRED, reason, observed, f"at most {most}"))
    return found or [say.ok(f"{counted(count, 'page')} of its memory {'is' if count == 1 else 'are'} out of use")]


def clocks(say: About, facts: CardFacts, health: Health, look: Look) -> list[CheckResult]:
    """Whether the hardware brakes, and whether a low clock has a cause other than the power limit."""
    slow, low = _slowdown(say, facts, health, look), _low_clock(say, facts, health, look)
    if low is None:
        return [slow]
    return [low] if slow.code in (Code.NODE_OK, Code.NODE_NOT_APPLICABLE) else [slow, low]


def _low_clock(say: About, facts: CardFacts, health: Health, look: Look) -> CheckResult | None:
    """None: the clock is high enough, the card rests, or the cause is none that counts."""
    now, most, s = health.sm_clock_mhz, health.sm_clock_max_mhz, look.settings
    util = facts.reading.util if facts.reading is not None else None
    causes = ["the driver slows it down for heat"] if (health.event_reasons or 0) & SOFTWARE_THERMAL else []
    own, usual = health.app_clock_mhz, health.app_clock_default_mhz
    if own and usual and own < usual:
        causes.append(f"its clock for programs was set to {own:g} of {usual:g} MHz")
    low = bool(now and most and util is not None and util >= _WORKS and now < s.clock_low_ratio * most and causes)
    streak = look.memory.streaks.note((CLOCKS.item, facts.index, "low"), low, look.now, CLOCKS.interval_s / 2)
    if not low:
        return None
    reason = f"it works at {now:g} of {most:g} MHz: {', '.join(causes)}"
    threshold = f"{s.clock_low_ratio * (most or 0):.0f} MHz, {s.looks_in_a_row} looks in a row"
    code = Code.GPU_CLOCKS_LOW if streak.looks >= s.looks_in_a_row else Code.NODE_PENDING
    return say.found(code, reason, f"{now:g} MHz, reasons {health.event_reasons or 0:#x}", threshold)


def _slowdown(say: About, facts: CardFacts, health: Health, look: Look) -> CheckResult:
    """The share of the window in which one of the bits of SLOWDOWN was set. The reasons are a mask: bits are tested."""
    reasons, s = health.event_reasons, look.settings
    if reasons is None:
        return say.off("its driver does not report reasons for its clocks")
    names = [name for bit, name in SLOWDOWN.items() if reasons & bit]
    share = look.memory.share((CLOCKS.item, facts.index))
    looks, slow = share.note(bool(names), look.now, s.slowdown_window_s, CLOCKS.interval_s / 2)
    # As many looks as a window with one a minute has: fewer are no share of it.
    full = max(1, round(s.slowdown_window_s / 60))
    needed = s.slowdown_per_minute * full
    observed = f"{slow} of {looks} looks in {s.slowdown_window_s / 60:g} min, reasons {reasons:#x}"
    threshold = f"less than {s.slowdown_per_minute:g} a minute"
    if slow >= max(needed, s.slowdown_per_minute * looks) - 1e-9:
        now = f", now: {', '.join(names)}" if names else ""
        return say.found(Code.GPU_HW_SLOWDOWN, f"the hardware slows it down{now}", observed, threshold)
    if names:
        return say.found(Code.NODE_PENDING, f"{', '.join(names)} at the moment", observed, threshold)
    return say.ok("the hardware does not slow it down", observed, threshold)


def temperature(say: About, facts: CardFacts, health: Health, look: Look) -> list[CheckResult]:
    """Of the chip against the temperature at which it slows down, of its memory against the highest allowed."""
    card, s = facts.card, look.settings
    hot = Code.NPU_TEMPERATURE if card.kind == ASCEND else Code.GPU_TEMPERATURE
    rows = (
        (hot, "chip", health.temp_c, card.slowdown_c or s.temperature_max_c or None),
        (Code.GPU_MEMORY_TEMPERATURE, "memory", health.mem_temp_c, card.mem_max_c),
    )
    results = []
    for code, what, now_c, limit in rows:
        if now_c is None or limit is None:
            continue
        limit -= s.temperature_margin_c
        too_hot = now_c >= limit
        streak = look.memory.streaks.note(
            (TEMPERATURE.item, facts.index, what), too_hot, look.now, TEMPERATURE.interval_s / 2
        )
        observed, threshold = f"{what} {now_c:g} C", f"below {limit:g} C"
        if too_hot and streak.looks >= s.looks_in_a_row:
            results.append(say.found(code, f"its {what} has {now_c:g} C", observed, threshold))
        elif too_hot:
            reason = f"its {what} has {now_c:g} C (look {streak.looks} of {s.looks_in_a_row} in a row)"
            results.append(say.found(Code.NODE_PENDING, reason, observed, threshold))
        else:
            results.append(say.ok(f"its {what} has {now_c:g} C", observed, threshold))
    return results or [say.off("it reports no temperature, or its limit is unknown (`temperature_max_c`)")]


def persistence(say: About, facts: CardFacts, health: Health, _look: Look) -> list[CheckResult]:
    """Whether the driver stays initialized without a user."""
    on = health.persistence
    if on is None:
        return [say.off("its driver has no persistence mode")]
    if on:
        return [say.ok("persistence mode is on")]
    return [say.found(Code.GPU_PERSISTENCE_OFF, "persistence mode is off", "off", "on")]


_HEALTH = frozenset({What.HEALTH})
RULES = (
    NodeRule(ECC, each(ECC.item, (NVIDIA, ASCEND), ecc), for_kinds(NVIDIA, ASCEND), _HEALTH),
    NodeRule(ROW_REMAP, each(ROW_REMAP.item, (NVIDIA,), row_remap), for_kinds(NVIDIA), _HEALTH),
    NodeRule(RETIRED, each(RETIRED.item, (NVIDIA,), retired_pages), for_kinds(NVIDIA), _HEALTH),
    NodeRule(CLOCKS, each(CLOCKS.item, (NVIDIA,), clocks), for_kinds(NVIDIA), frozenset({What.HEALTH, What.READINGS})),
    NodeRule(TEMPERATURE, each(TEMPERATURE.item, (NVIDIA, ASCEND), temperature), for_kinds(NVIDIA, ASCEND), _HEALTH),
    NodeRule(PERSISTENCE, each(PERSISTENCE.item, (NVIDIA,), persistence), for_kinds(NVIDIA), _HEALTH),
)
