"""Every number of the hang rule."""

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

Rule = Literal["full", "plain"]
Scope = Literal["ranks", "tree"]


@dataclass(frozen=True, slots=True)
class HangSettings:
    """Thresholds of the hang rule; docs/hang.md has the reason of each. Seconds, bytes and percent; what is "per
    minute" is counted over `period_s`. Raises ValueError for a value that cannot be meant.
    """

    #: "full", or "plain": ModelArts' two stages and nothing else.
    rule: Rule = "full"

    #: Stage 1, what processes do: the period over which IO and CPU time are counted.
    period_s: float = 60.0
    #: A sign is of now where it is no older than so many periods.
    recent_periods: float = 1.5
    #: Whose IO counts: of ranks and their descendants, or of the whole tree with helpers.
    io_scope: Scope = "ranks"
    #: Per rank and minute; below both a rank is silent. Between these and the strong ones IO is weak evidence:
    #: exporters and uploaders inside a dead rank do that much (measured: up to 118 KB a minute).
    write_floor_bytes: float = 4096.0
    read_floor_bytes: float = 65536.0
    strong_write_bytes: float = 262144.0
    strong_read_bytes: float = 1048576.0
    #: Traffic of the node per minute that shows a rank receiving into memory, which is IO of no process.
    net_floor_bytes: float = 62914560.0
    #: CPU seconds per minute of a rank: below the first it sleeps, from the second on it computes.
    cpu_idle_s: float = 5.0
    cpu_busy_s: float = 30.0
    #: Of a rank whose cards tell nothing, or that has none, so little is a sign of life (gloo's threads take 0.12 s a
    #: minute in a dead rank); or, where that is more, this share of what is usual for it.
    cpu_trace_s: float = 0.2
    cpu_trace_ratio: float = 0.25

    #: Stage 2, what cards do: the window, and how many readings it needs at least.
    window_s: float = 300.0
    min_samples: int = 5
    #: Flat: variance of the utilization in percentage points squared.
    flat_variance: float = 1.0
    low_percent: float = 5.0
    high_percent: float = 95.0
    #: Seconds without a reading after which a card's utilization is not known.
    dark_s: float = 150.0

    #: Power against the card's own active median: below `hung` it waits, from `alive` on it works. Below `strict` (or,
    #: where its idle power is known, `strict_share` of the way from there) this needs no second sign; with memory and
    #: fabric both dead, `relaxed` is low enough.
    power_hung_ratio: float = 0.5
    power_alive_ratio: float = 0.85
    power_strict_ratio: float = 0.3
    power_strict_share: float = 0.125
    power_relaxed_ratio: float = 0.75
    #: A power that was that of waiting is no other before it is so many times the threshold: noise is less.
    power_leave_factor: float = 1.1
    #: Of the median of the other cards that seem to wait, from which on one is taken to compute for them. Cards that
    #: really wait differ by a tenth or two.
    power_apart_factor: float = 1.5
    #: Share of the way from the card's idle power to its active median below which it waits, too.
    power_idle_share: float = 0.25
    #: Share of the power limit from which a card works, for as long as its active median is not known.
    power_active_share: float = 0.35
    #: Readings of a working card after which its medians count.
    level_samples: int = 6
    #: Utilization of the memory: up to the first it is dead, above the second alive.
    mem_dead_percent: float = 1.0
    mem_alive_percent: float = 3.0
    #: Bytes over the fabric per minute that count as none (100 packets of RoCE are less); shares of its active rate.
    fabric_floor_bytes: float = 1048576.0
    fabric_dead_ratio: float = 0.05
    fabric_alive_ratio: float = 0.2

    #: Seconds of work after which a card counts as active, and the share of a pause that is taken off them: bursts are
    #: work, a blip is none.
    active_s: float = 30.0
    pause_ratio: float = 0.25

    #: Durations. Silence until SUSPECT and HUNG; the latter also for NPUs whose fabric fell silent.
    suspect_s: float = 300.0
    hung_s: float = 600.0
    npu_hung_s: float = 300.0
    #: Share of `npu_hung_s` after which they are suspected: stacks must be taken before the end.
    npu_suspect_ratio: float = 0.8
    #: Steady work after which the shorter time of NPUs counts.
    established_s: float = 180.0
    #: Until cards were active first: how long they may wait for nobody that works, and for somebody that does.
    startup_s: float = 3600.0
    startup_busy_s: float = 14400.0
    #: How long a rank may compute on the CPU while its cards are idle.
    busy_s: float = 3600.0
    #: With only weak evidence of life, or with readings missing; so many times as long without power and log.
    weak_s: float = 1200.0
    weak_factor: float = 2.0
    #: After a burst of writes, or in D for a file system; which burst, and how many times as much as is usual it must
    #: be; how long before the silence it may have ended.
    save_s: float = 1800.0
    save_burst_bytes: float = 1073741824.0
    save_burst_factor: float = 4.0
    save_before_s: float = 180.0
    #: Flat utilization between low and high takes so many times as long.
    mid_factor: float = 2.0
    #: A silence that the job came out of by itself so many times as long is waited for, up to a most.
    patience_ratio: float = 1.25
    patience_max_s: float = 3600.0
    #: More than this between two records, and than so many usual distances, is a gap: time that proves nothing.
    gap_s: float = 120.0
    gap_factor: float = 4.0
    #: Seconds after which a process that is missing in the records is gone.
    gone_s: float = 60.0
    #: SLOW: power below the first and fabric or memory below the second share of their active medians.
    slow_power_ratio: float = 0.85
    slow_rate_ratio: float = 0.5
    #: Beginnings of kernel functions in which a process in D waits for a file system or a disk.
    file_system_waits: str = (
        "nfs,rpc_,ceph,fuse,request_wait_answer,lustre,cl_,osc_,ll_,ptlrpc,gpfs,cxi,mmfs,xfs,ext4,jbd2,btrfs,zfs,cv_wait,"
        "txg_,cifs,smb,afs,p9_,v9fs,fhgfs,ocfs2,gfs2,io_schedule,folio_wait,wait_on_page,wait_on_bit,bit_wait_io,"
        "wait_on_buffer,__wait_on_buffer,balance_dirty,blk_,submit_bio_wait,bio_wait,iomap,filemap,rq_qos,wbt_,wb_wait,"
        "sync_inodes,writeback,vfs_fsync,file_write_and_wait,d_alloc_parallel,lookup_slow"
    )

    #: Not of the rule, of who acts on it: HUNG of less confidence is told, and nobody is stopped for it.
    action_confidence: float = 0.5

    #: Of the plain rule: seconds of silence and of a flat utilization (ModelArts: 720 s to 720 min, 30 min by default).
    plain_s: float = 1800.0

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, (int, float)) and not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{f.name}: {value}: must be a number that is not negative")
        for name in (
            "period_s",
            "window_s",
            "suspect_s",
            "hung_s",
            "npu_hung_s",
            "weak_s",
            "busy_s",
            "plain_s",
            "gap_s",
            "active_s",
        ):
            if not 0.1 <= getattr(self, name) <= 30 * 86400:
                raise ValueError(f"{name}: {getattr(self, name):g}: allowed are 0.1 to 2592000 seconds")
        for name, allowed in (("rule", get_args(Rule)), ("io_scope", get_args(Scope))):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name}: {getattr(self, name)!r}: allowed are {', '.join(allowed)}")
        if self.low_percent >= self.high_percent or self.high_percent > 100:
            raise ValueError(f"high_percent: {self.high_percent:g}: allowed is more than low_percent, up to 100")
        if self.hung_s < self.suspect_s:
            raise ValueError(f"hung_s: {self.hung_s:g}: must not be less than suspect_s, {self.suspect_s:g}")
        if self.window_s > self.suspect_s:
            raise ValueError(f"window_s: {self.window_s:g}: must not be more than suspect_s, {self.suspect_s:g}")
        for name in ("action_confidence", "npu_suspect_ratio", "pause_ratio"):
            if getattr(self, name) > 1:
                raise ValueError(f"{name}: {getattr(self, name):g}: allowed are 0 to 1")
        for name in ("recent_periods", *(f.name for f in fields(self) if f.name.endswith("_factor"))):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: {getattr(self, name):g}: must be 1 at least")
        if self.min_samples < 2:
            raise ValueError(f"min_samples: {self.min_samples}: must be 2 at least")
        if self.cpu_idle_s > self.cpu_busy_s:
            raise ValueError(f"cpu_idle_s: {self.cpu_idle_s:g}: must not be more than cpu_busy_s, {self.cpu_busy_s:g}")

    @property
    def recent_s(self) -> float:
        """A sign that is older is not one of now."""
        return self.recent_periods * self.period_s

    def with_values(self, values: Mapping[str, Any]) -> "HangSettings":
        """With other values: a job's own, or written ones (texts are read as numbers). Raises ValueError with one
        sentence."""
        known = {f.name: f for f in fields(self)}
        taken: dict[str, Any] = {}
        for name, value in values.items():
            if name not in known:
                near = difflib.get_close_matches(name, known, 1)
                hint = f" (did you mean {near[0]}?)" if near else ""
                raise ValueError(f"{name}: there is no such setting{hint}; there are: {', '.join(known)}")
            default = getattr(self, name)
            if isinstance(default, str):
                taken[name] = str(value)
                continue
            try:
                if isinstance(value, bool):
                    raise ValueError
                taken[name] = int(value) if isinstance(default, int) else float(value)
            except (TypeError, ValueError):
                what = "a whole number" if isinstance(default, int) else "a number"
                raise ValueError(f"{name}: {value!r}: must be {what}") from None
        return replace(self, **taken)

    def scaled(self, factor: float) -> "HangSettings":
        """For a time that passes so many times as fast (tests): shorter durations, and less IO and CPU time in each."""
        counted = (
            *("write_floor_bytes", "read_floor_bytes", "strong_write_bytes", "strong_read_bytes", "save_burst_bytes"),
            *("net_floor_bytes", "fabric_floor_bytes", "cpu_idle_s", "cpu_busy_s", "cpu_trace_s"),
        )
        durations = tuple(f.name for f in fields(self) if f.name.endswith("_s") and not f.name.startswith("cpu_"))
        return replace(self, **{name: getattr(self, name) / factor for name in (*durations, *counted)})
