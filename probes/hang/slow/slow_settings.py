"""The settings of the rule that names slow ranks. docs/concepts/slow-rank.md has the reason of each number."""

from muster.probes.kernel.dataclass import dataclass
from muster.probes.settings import Settings, setting

_MOST_S = 86400.0


@dataclass(frozen=True, slots=True)
class SlowSettings(Settings):
    """The rule that names the slow rank of a running job. docs/concepts/slow-rank.md describes it, with the reason of
    each number. What a card that waits looks like is a matter of the hang rule's settings."""

    window_s: float = setting(900.0, "muster judges readings over this window.", least=1, most=_MOST_S)
    min_readings: int = setting(30, "The window must hold at least this many readings.", least=5)
    after_s: float = setting(300.0, "muster ignores readings of the first seconds of an attempt.", most=_MOST_S)
    factor: float = setting(
        1.5, "A rank is SLOW if it works this many times as long as its peers (their median).", least=1.1
    )
    hold_s: float = setting(300.0, "It is SLOW once its readings have shown this for so long.", most=_MOST_S)
    clear_factor: float = setting(1.2, "It is no longer SLOW below this factor.", least=1)
    alone_share: float = setting(
        0.75, "Share of the readings with waiting peers in which the rank is one of those they wait for.", most=1
    )
    min_waits: int = setting(5, "The window must hold at least this many separate waits for the rank.", least=2)
    longest_wait_s: float = setting(
        120.0, "A longer wait is an evaluation or a checkpoint, not a step, and does not count.", least=1, most=_MOST_S
    )
    dump_window_s: float = setting(3600.0, "muster judges dumps of stacks over this window.", least=1, most=_MOST_S)
    min_dumps: int = setting(5, "The window must hold at least this many dumps.", least=2)
    dump_share: float = setting(0.7, "Share of the dumps in which the peers must wait for the rank.", least=0.5, most=1)
    min_dump_waits: int = setting(3, "The dumps must show at least this many separate waits for the rank.", least=2)
    longest_dump_wait_s: float = setting(
        600.0, "A longer wait does not count, even if dumps show it.", least=1, most=_MOST_S
    )
    # A series costs the node 45 ms of CPU time per rank, the ranks nothing: they are read, not stopped.
    sample_s: float = setting(
        600.0,
        "Of a job without cards muster takes three dumps of stacks after this long, then less and less often, at least "
        "every half of `dump_window_s`. 0: none; a rank of such a job is then SLOW only in waits of minutes.",
        most=_MOST_S,
    )
    sample_odd_s: float = setting(
        60.0, "The same, while its processes show that one rank does something different from the others.", least=1
    )
    sample_after_s: float = setting(
        60.0, "muster ignores what processes do in the first seconds of an attempt.", most=_MOST_S
    )
    sample_window_s: float = setting(
        300.0, "The window over which muster judges what processes do.", least=1, most=_MOST_S
    )
    min_samples: int = setting(9, "Least number of dumps of a job without cards.", least=3)

    def check_together(self) -> None:
        """Raises ValueError."""
        if self.clear_factor > self.factor:
            raise ValueError(f"clear_factor: {self.clear_factor:g}: must be at most factor, which is {self.factor:g}")
        if self.longest_wait_s * 2 > self.window_s:
            raise ValueError(
                f"longest_wait_s: {self.longest_wait_s:g}: must be at most half of window_s, which is {self.window_s:g}"
            )
