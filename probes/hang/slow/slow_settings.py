"""The settings of the rule that names slow ranks. docs/concepts/slow-rank.md has the reason of each number."""

from muster.probes.kernel.dataclass import dataclass
from muster.probes.settings import Settings, setting

_MOST_S = 86400.0


@dataclass(frozen=True, slots=True)
class SlowSettings(Settings):
    """The rule that names the slow rank of a running job. docs/concepts/slow-rank.md describes it, with the reason of
    each number. What a card that waits looks like is a matter of the hang rule's settings."""

    window_s: float = setting(900.0, "The window over which readings are judged.", least=1, most=_MOST_S)
    min_readings: int = setting(30, "Readings that the window must hold, at least.", least=5)
    after_s: float = setting(300.0, "Readings of the first seconds of an attempt do not count.", most=_MOST_S)
    factor: float = setting(
        1.5, "A rank is SLOW that is at work this many times as long as its peers (their median).", least=1.1
    )
    hold_s: float = setting(300.0, "It is SLOW once its readings have shown that for this long.", most=_MOST_S)
    clear_factor: float = setting(1.2, "It is no longer SLOW below this factor.", least=1)
    alone_share: float = setting(
        0.75, "Share of the readings with waiting peers in which the rank is one of those they wait for.", most=1
    )
    min_waits: int = setting(5, "Separate waits for the rank that the window must hold, at least.", least=2)
    longest_wait_s: float = setting(
        120.0, "A longer wait is no step but an evaluation or a checkpoint, and does not count.", least=1, most=_MOST_S
    )
    dump_window_s: float = setting(3600.0, "The window over which dumps of stacks are judged.", least=1, most=_MOST_S)
    min_dumps: int = setting(5, "Dumps that the window must hold, at least.", least=2)
    dump_share: float = setting(0.7, "Share of the dumps in which the peers must wait for the rank.", least=0.5, most=1)
    min_dump_waits: int = setting(3, "Separate waits for the rank that dumps must show, at least.", least=2)
    longest_dump_wait_s: float = setting(
        600.0, "A longer wait of which there are dumps does not count.", least=1, most=_MOST_S
    )

    def check_together(self) -> None:
        """Raises ValueError."""
        if self.clear_factor > self.factor:
            raise ValueError(f"clear_factor: {self.clear_factor:g}: must be at most factor, which is {self.factor:g}")
        if self.longest_wait_s * 2 > self.window_s:
            raise ValueError(
                f"longest_wait_s: {self.longest_wait_s:g}: must be at most half of window_s, which is {self.window_s:g}"
            )
