"""The hang rule for a time that passes many times as fast."""

from dataclasses import fields, replace

from muster.probes.hang import HangSettings


def scaled(settings: HangSettings, factor: float) -> HangSettings:
    """Shorter durations, and less IO and CPU time in each."""
    counted = (
        *("write_floor_bytes", "read_floor_bytes", "strong_write_bytes", "strong_read_bytes", "save_burst_bytes"),
        *("net_floor_bytes", "fabric_floor_bytes", "cpu_idle_s", "cpu_busy_s", "cpu_trace_s"),
    )
    durations = tuple(f.name for f in fields(settings) if f.name.endswith("_s") and not f.name.startswith("cpu_"))
    return replace(settings, **{name: getattr(settings, name) / factor for name in (*durations, *counted)})
