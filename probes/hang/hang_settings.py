"""The settings of the hang rule. docs/concepts/hang.md has the reason of each number."""

from typing import Literal

from muster.probes.kernel.dataclass import dataclass
from muster.probes.settings import Settings, setting

Rule = Literal["full", "plain"]
Scope = Literal["ranks", "tree"]

_MOST_S = 30 * 86400.0


def _period(default: float, help: str) -> float:
    return setting(default, help, least=0.1, most=_MOST_S)


def _factor(default: float, help: str) -> float:
    return setting(default, help, least=1)


@dataclass(frozen=True, slots=True)
class HangSettings(Settings):
    """The rule that decides whether a job hangs. docs/concepts/hang.md describes it, with the reason of each number.
    What is "per minute" is counted over `period_s`. A job may have its own values (`hang` in its spec)."""

    rule: Rule = setting("full", "`plain`: the two stages of ModelArts and nothing else.")

    # Stage 1: what processes do.
    period_s: float = _period(60.0, "muster counts the IO and the CPU time of processes over this period.")
    recent_periods: float = setting(1.5, "A sign of life counts for this many periods after it was seen.", least=1)
    io_scope: Scope = setting(
        "ranks",
        "Whose IO counts. `ranks`: of the ranks and their descendants; `tree`: also of launchers and helpers.",
    )
    # Exporters and uploaders inside a dead rank were measured at up to 118 KB a minute.
    write_floor_bytes: float = setting(
        4096.0,
        "A rank that writes less than this per minute is silent. From here to `strong_write_bytes`: weak evidence.",
    )
    read_floor_bytes: float = setting(
        65536.0,
        "A rank that reads less than this per minute is silent. From here to `strong_read_bytes`: weak evidence.",
    )
    strong_write_bytes: float = setting(262144.0, "A rank that writes this much per minute is alive.")
    strong_read_bytes: float = setting(1048576.0, "A rank that reads this much per minute is alive.")
    # Receiving into memory is IO of no process.
    net_floor_bytes: float = setting(
        62914560.0,
        "Network traffic per minute that shows that a rank receives data: of the job, or of the node where muster does "
        "not know what the job moves.",
    )
    cpu_idle_s: float = setting(5.0, "A rank with less CPU time than this per minute sleeps.")
    cpu_busy_s: float = setting(30.0, "A rank with this much CPU time per minute computes.")
    # gloo's threads take 0.12 s a minute in a dead rank.
    cpu_trace_s: float = setting(
        0.2, "CPU time per minute that is a sign of life of a rank without cards, or whose cards report nothing."
    )
    cpu_trace_ratio: float = setting(
        0.25, "For such a rank: the least share of its usual CPU time, if that is more than `cpu_trace_s`."
    )

    # Stage 2: what cards do.
    window_s: float = _period(300.0, "muster judges the readings of a card over this window.")
    min_samples: int = setting(5, "The window must hold at least this many readings.", least=2)
    flat_variance: float = setting(1.0, "The utilization is flat up to this variance, in percentage points squared.")
    low_percent: float = setting(5.0, "A card is idle up to this utilization.")
    high_percent: float = setting(95.0, "At this utilization or more, power, memory and fabric decide.", most=100)
    dark_s: float = setting(150.0, "After this long without a reading the utilization of a card is unknown.")

    power_hung_ratio: float = setting(0.5, "Below this share of its usual power a card waits.")
    power_alive_ratio: float = setting(0.85, "At this share of its usual power or more, a card works.")
    power_strict_ratio: float = setting(0.3, "Below this share, low power needs no second sign.")
    power_strict_share: float = setting(
        0.125, "The same, as a share of the way from idle to usual power, if the idle power is known."
    )
    power_relaxed_ratio: float = setting(0.75, "Below this share, a card waits if memory and fabric are both dead.")
    power_leave_factor: float = _factor(
        1.1, "Power must exceed a threshold this many times to count as above it again: less is noise."
    )
    # Cards that really wait differ by a tenth or two.
    power_apart_factor: float = _factor(
        1.5, "A card with this many times the median power of the other waiting cards computes for them."
    )
    power_idle_share: float = setting(0.25, "Below this share of the way from idle to usual power a card waits, too.")
    power_active_share: float = setting(
        0.35, "At this share of its power limit or more, a card works, while its usual power is unknown."
    )
    level_samples: int = setting(6, "Readings of a working card after which its medians count as usual.")
    mem_dead_percent: float = setting(1.0, "Up to this memory utilization the memory is dead.")
    mem_alive_percent: float = setting(3.0, "Above this memory utilization the memory is alive.")
    # 100 packets of RoCE are less.
    fabric_floor_bytes: float = setting(1048576.0, "Less fabric traffic than this per minute is none.")
    fabric_dead_ratio: float = setting(0.05, "Up to this share of its usual rate the fabric is dead.")
    fabric_alive_ratio: float = setting(0.2, "At this share of its usual rate or more, the fabric is alive.")

    # Cards that wait in a collective move nothing, or some KiB.
    fabric_moves_bytes: float = setting(
        67108864.0, "Fabric traffic of a card per minute that counts as work even at little power, while a log grows."
    )

    active_s: float = _period(30.0, "A card counts as active after this much work.")
    pause_ratio: float = setting(0.25, "Share of the length of a pause that is subtracted from that work.", most=1)

    # How long.
    suspect_s: float = _period(300.0, "Silence after which a job is SUSPECT.")
    # A record each 15 s, and two of three readings that agree.
    suspect_soon_s: float = _period(
        60.0,
        "The same, if it is sooner and the silence is unusual: all cards began to wait or idle at once, or a log lost "
        "its rhythm.",
    )
    cadence_count: int = setting(
        20, "Lines of a log after which muster knows their interval, if they came in at least four records.", least=2
    )
    cadence_factor: float = _factor(10.0, "A log has lost its rhythm after this many times its longest interval.")
    proof_s: float = _period(150.0, "Silence after which a job is HUNG if its stacks prove it.")
    stacks_apart_s: float = _period(10.0, "Time between the dumps of stacks of a job that is suspected to hang.")
    hung_s: float = _period(600.0, "Silence after which a job is HUNG.")
    spin_ratio: float = setting(
        0.75,
        "Share of `hung_s` that is enough if all cards wait and no rank is left that they could wait for.",
        most=1,
    )
    npu_hung_s: float = _period(300.0, "Silence after which a job is HUNG if the fabrics of its NPUs fell silent.")
    # Stacks must be taken before the end.
    npu_suspect_ratio: float = setting(0.8, "Share of `npu_hung_s` after which that job is SUSPECT.", most=1)
    established_s: float = setting(180.0, "Steady work after which `npu_hung_s` applies.")
    startup_s: float = setting(3600.0, "How long cards that were never active may wait while nothing works.")
    startup_busy_s: float = setting(14400.0, "How long they may wait while a rank computes on the CPU.")
    busy_s: float = _period(3600.0, "How long a rank may compute on the CPU while its cards are idle.")
    weak_s: float = _period(
        1200.0, "Silence after which a job with only weak evidence, or with missing readings, is HUNG."
    )
    weak_factor: float = _factor(2.0, "`weak_s` is this many times as long if both power and log are missing.")
    save_s: float = setting(
        1800.0, "Silence after which a job is HUNG if it saved data before, or waits for a file system."
    )
    save_burst_bytes: float = setting(1073741824.0, "A job saves if it writes this much.")
    save_burst_factor: float = _factor(4.0, "And this many times as much as usual.")
    save_before_s: float = setting(180.0, "How long before the silence the saving may have ended.")
    mid_factor: float = _factor(
        2.0, "A flat utilization between `low_percent` and `high_percent` may last this many times as long."
    )
    patience_ratio: float = setting(
        1.25, "A job may be silent for this many times its longest silence so far that ended by itself."
    )
    patience_max_s: float = setting(3600.0, "The longest silence that this allows.")
    gap_s: float = _period(120.0, "A longer time between two records is a gap, which proves nothing.")
    gap_factor: float = _factor(4.0, "A gap is also longer than this many usual intervals between records.")
    gone_s: float = setting(60.0, "A process that is missing from the records for this long has exited.")
    slow_power_ratio: float = setting(
        0.85, "A card is slow below this share of its usual power, together with `slow_rate_ratio`."
    )
    slow_rate_ratio: float = setting(
        0.5, "A card is slow below this share of its usual fabric or memory rate, together with `slow_power_ratio`."
    )
    file_system_waits: str = setting(
        "nfs,rpc_,ceph,fuse,request_wait_answer,lustre,cl_,osc_,ll_,ptlrpc,gpfs,cxi,mmfs,xfs,ext4,jbd2,btrfs,zfs,"
        "cv_wait,txg_,cifs,smb,afs,p9_,v9fs,fhgfs,ocfs2,gfs2,io_schedule,folio_wait,wait_on_page,wait_on_bit,bit_wait_io,"
        "wait_on_buffer,__wait_on_buffer,balance_dirty,blk_,submit_bio_wait,bio_wait,iomap,filemap,rq_qos,wbt_,wb_wait,"
        "sync_inodes,writeback,vfs_fsync,file_write_and_wait,d_alloc_parallel,lookup_slow,inode_wait,autofs,"
        "wait_for_response",
        "First letters of the kernel functions in which a process in state D waits for a file system or a disk.",
        what="names with commas",
    )

    action_confidence: float = setting(
        0.5, "muster reports a HUNG with less confidence, but does not stop or restart the job.", most=1
    )

    # ModelArts: 720 s to 720 min, 30 min by default.
    plain_s: float = _period(1800.0, "`plain` only: silence and flat utilization after which a job is HUNG.")

    def check_together(self) -> None:
        """Raises ValueError."""
        for lower, upper, equal in (
            ("low_percent", "high_percent", False),
            ("suspect_s", "hung_s", True),
            ("window_s", "suspect_s", True),
            ("cpu_idle_s", "cpu_busy_s", True),
        ):
            low, high = getattr(self, lower), getattr(self, upper)
            if low > high or (low == high and not equal):
                least = "at least" if equal else "more than"
                raise ValueError(f"{upper}: {high:g}: must be {least} {lower}, which is {low:g}")

    @property
    def file_systems(self) -> tuple[str, ...]:
        """`file_system_waits`, one by one."""
        return tuple(name for name in self.file_system_waits.split(",") if name)

    @property
    def recent_s(self) -> float:
        """A sign of life that is older does not count."""
        return self.recent_periods * self.period_s
