"""What a card does now: works, waits, idles, or is not seen."""

import enum
import math
from dataclasses import replace

from muster.probes.hang.hang_settings import HangSettings
from muster.probes.hang.tracks.card_track import NEVER, CardTrack, Sample, mean, median, variance
from muster.probes.kernel.dataclass import dataclass
from muster.probes.kernel.known_names import ASCEND

#: Readings after which a card is judged by those alone that came since its memory and fabric ended.
_FEW = 4


class CardState(enum.StrEnum):
    """What a card does."""

    WORKS = "works"
    SLOW = "slow"  # works, at less than half of its rate
    SPINS = "spins"  # full utilization, and nothing else: its kernels wait
    FLAT = "flat"  # a utilization that does not change, and nothing else is known
    LOW = "low"
    DIM = "dim"  # utilization is unknown, and its power is that of a card that waits
    DARK = "dark"  # nothing is known


@dataclass(frozen=True, slots=True)
class CardLook:
    """What a card does now. `since` (in the detector's clock) when, of a card that works: when it was last seen to.
    `why` in words; the readings are medians since then, at most over the window. `confirmed`: two signs agree that it
    waits. `mid`: the flat utilization is neither low nor high."""

    state: CardState
    since: float
    why: str
    confirmed: bool = False
    mid: bool = False
    util: float | None = None
    variance: float | None = None
    power: float | None = None
    power_active: float | None = None
    mem: float | None = None
    fabric: float | None = None
    fabric_active: float | None = None
    samples: int = 0


@dataclass(frozen=True, slots=True)
class Eye:
    """Looks at a card at one moment of the detector's clock."""

    card: CardTrack
    now: float
    s: HangSettings

    # --- judgement ----------------------------------------------------------------------------------------------------

    def look(self) -> CardLook:
        """What the card does now."""
        look = self._look()
        self.card.slow = look.state is CardState.SLOW
        return look

    def _look(self) -> CardLook:
        if self.card.util_at == NEVER or self.now - self.card.util_at > self.s.dark_s:
            return self._unseen()
        if self.card.low_since is not None:
            return self._low()
        since, mid = self.card.high_since, False
        if since is None and self.card.flat_since is not None:
            since, mid = self.card.flat_since, True
        if since is None:
            self.card.relaxed_since = None
            return self._told(CardState.WORKS, self.now, "its utilization changes")
        return self._pinned(since, mid)

    def _low(self) -> CardLook:
        assert self.card.low_since is not None
        look = self._told(CardState.LOW, self.card.low_since, "its utilization is near 0")
        if self._fabric_alive(self.card.low_since):
            return self._told(CardState.WORKS, self._moved_at(), "utilization near 0, but its fabric moves data")
        if look.power is not None and look.power_active and look.power >= self.s.power_alive_ratio * look.power_active:
            last = self._last(power=self.s.power_alive_ratio * look.power_active)
            return self._told(CardState.WORKS, last, "utilization near 0, but the power of work: misread")
        return look

    def _pinned(self, since: float, mid: bool) -> CardLook:
        """Of a flat utilization that is not low."""
        powers = [x.power for x in self.card.samples if x.power is not None]
        active = self.card.active_power(self.s)
        share = self.s.power_active_share
        if powers and active is None and self.card.limit is not None:
            # Nothing to compare with yet: the limit will do.
            if median(powers) >= share * self.card.limit:
                last = self._last(power=share * self.card.limit)
                return self._told(CardState.WORKS, last, f"its power is above {share:.0%} of its limit")
            if signs := self._signs(since):
                return signs
            return self._told(CardState.SPINS, since, "full utilization at little power from the beginning", mid=mid)
        if not powers or active is None:
            return self._without_power(since, mid)
        if self.card.dim_since is not None:
            relaxed = self.card.relaxed_since
            since = max(since, self.card.dim_since if relaxed is None else min(relaxed, self.card.dim_since))
            if signs := self._signs(since):
                slow = self._slow(median(powers) / active)
                return replace(signs, state=CardState.SLOW, why=slow) if slow else signs
            look = self._told(CardState.SPINS, since, "full utilization at the power of a card that waits", mid=mid)
            strict = look.power is not None and look.power < self.card.strict_power(self.s, active)
            # That its fabric is silent is no second sign: an evaluation needs none.
            return replace(look, confirmed=strict or self._mem_dead(since))
        usual = median(powers)
        if self._fell_with_both(usual, active):
            if self.card.relaxed_since is None:
                self.card.relaxed_since = self.now - self.s.window_s / 2
            since = max(since, self.card.relaxed_since)
            why = "full utilization, less power, and neither memory nor fabric in use"
            return replace(self._told(CardState.SPINS, since, why, mid=mid), confirmed=True)
        least = self.card.waiting_power(self.s) or 0.0
        if not self._both_ended():
            self.card.relaxed_since = None
        else:
            least = max(least, self.s.power_relaxed_ratio * active)
            if self.card.relaxed_since is None:
                self.card.relaxed_since = self.card.samples[-2].at
        if usual >= self.s.power_alive_ratio * active and self.card.flat_since is not None:
            self.card.flat_is_usual = self.card.flat_is_usual or self.now - self.card.flat_since >= self.s.window_s
        last = self._last(power=least)
        slow = self._slow(usual / active)
        return self._told(CardState.SLOW if slow else CardState.WORKS, last, slow or "its power is that of work")

    def _without_power(self, since: float, mid: bool) -> CardLook:
        if signs := self._signs(since):
            return signs
        dead = self._mem_dead(since) and self.fabric_dead(since)
        if self.card.flat_since is None and not dead:
            return self._told(CardState.WORKS, self._changed_at(), "its utilization changes a little")
        if self.card.flat_is_usual and self.card.flat_since is not None and not dead:
            return self._told(
                CardState.DARK, self.card.flat_since, "its power is unknown, and a flat utilization is usual here"
            )
        since = max(since, self.card.flat_since or since)
        look = self._told(CardState.FLAT, since, "its utilization does not change, and its power is unknown", mid=mid)
        mem = self._mem_was_alive() and self._mem_dead(since)
        return replace(look, confirmed=mem)

    def _unseen(self) -> CardLook:
        """The utilization is unknown (MIG, a driver that does not answer); the power may be known."""
        began = self.card.util_at if self.card.util_at > NEVER else self.card.seen_at
        began = min(
            (since for since in (self.card.low_since, self.card.high_since) if since is not None), default=began
        )
        powers = [x.power for x in self.card.samples if x.power is not None and x.at > self.now - self.s.dark_s]
        active = self.card.active_power(self.s)
        if powers and active is not None:
            if self.card.dim_since is not None:
                began = max(began, self.card.dim_since)
            if signs := self._signs(began):
                return signs
            if self.card.dim_since is not None:
                return self._told(CardState.DIM, began, "utilization unknown; its power is that of a card that waits")
            least = self.s.power_active_share * (self.card.limit or math.inf)
            if median(powers) >= least:
                last = self._last(power=least)
                return self._told(CardState.WORKS, last, "utilization unknown; its power is that of work")
        return self._told(CardState.DARK, began, "utilization unknown")

    # --- signs --------------------------------------------------------------------------------------------------------

    def _signs(self, since: float) -> CardLook | None:
        """That it works, as memory or fabric show."""
        if self._mem_alive(since):
            last = self._last(mem=self.s.mem_alive_percent)
            return self._told(CardState.WORKS, last, "its power says little, but its memory is in use")
        if self._fabric_alive(since):
            return self._told(CardState.WORKS, self._moved_at(), "its fabric moves data")
        return None

    def _last(self, *, power: float | None = None, mem: float | None = None) -> float:
        """When a reading was last as high; between that one and the next something may have ended."""
        at = self.now
        for sample in reversed(self.card.samples):
            high = sample.power is not None and power is not None and sample.power >= power
            if high or (sample.mem is not None and mem is not None and sample.mem > mem):
                return (sample.at + at) / 2
            at = sample.at
        return at

    def _changed_at(self) -> float:
        """When the utilization was last another than now."""
        at, last = self.now, next((x.util for x in reversed(self.card.samples) if x.util is not None), 0.0)
        for sample in reversed(self.card.samples):
            if sample.util is not None and abs(sample.util - last) > 2 * self.s.flat_variance**0.5:
                return (sample.at + at) / 2
            at = sample.at
        return at

    def _moved_at(self) -> float:
        """When its fabric last moved data as in work: between the reading that shows it and the one before."""
        least = max(self.s.fabric_floor_bytes, self.s.fabric_alive_ratio * (self.card.fabric_usual(self.s) or 0.0))
        seen = self.card.samples
        for i in range(len(seen) - 1, 0, -1):
            rate = seen[i].fabric
            if rate is not None and rate >= least:
                return (seen[i - 1].at + seen[i].at) / 2
        return self.now

    def _since(self, since: float) -> list[Sample]:
        return [x for x in self.card.samples if x.at >= max(since, self.now - self.s.window_s)]

    def _mem_alive(self, since: float) -> bool:
        mems = [x.mem for x in self._since(since) if x.mem is not None]
        if len(mems) < 2 or median(mems) <= self.s.mem_alive_percent:
            return False
        # Where a driver tells how full the memory is instead of how busy, that never changes.
        return self.card.kind != ASCEND or max(mems) > min(mems)

    def _mem_dead(self, since: float) -> bool:
        mems = [x.mem for x in self._since(since) if x.mem is not None]
        return len(mems) >= 2 and median(mems) <= self.s.mem_dead_percent

    def _mem_was_alive(self) -> bool:
        return (
            self.card.mem_level.weight >= self.s.level_samples
            and self.card.mem_level.typical() > self.s.mem_alive_percent
        )

    def _fabrics(self, since: float) -> list[float]:
        # The first two may still hold what was moved before.
        return [x.fabric for x in self._since(since)[2:] if x.fabric is not None]

    def _fabric_alive(self, since: float) -> bool:
        usual, rates = self.card.fabric_usual(self.s), self._fabrics(since)
        if len(rates) < 2:
            return False
        least = self.s.fabric_floor_bytes if usual is None else self.s.fabric_alive_ratio * usual
        return mean(rates) >= max(least, self.s.fabric_floor_bytes)

    def fabric_dead(self, since: float) -> bool:
        """It was in use, and is not any more."""
        usual, rates = self.card.fabric_usual(self.s), self._fabrics(since)
        if usual is None or len(rates) < 2:
            return False
        return median(rates) <= max(self.s.fabric_floor_bytes, self.s.fabric_dead_ratio * usual)

    def _fell_with_both(self, usual: float, active: float) -> bool:
        """Its memory and its fabric, which were in use, are dead, and its power is less than that of work: over half of
        the window, or since both ended, if that is known."""
        least, ended = self.s.power_relaxed_ratio * active, self.card.relaxed_since
        if usual < least and self._both_dead(self.now - self.s.window_s / 2):
            return True
        if ended is None or ended < self.now - self.s.window_s / 2:
            return False
        powers = [x.power for x in self._since(ended) if x.power is not None]
        return len(powers) >= _FEW and median(powers) < least and self._both_dead(ended)

    def _both_dead(self, since: float) -> bool:
        return self._mem_was_alive() and self._mem_dead(since) and self.fabric_dead(since)

    def _both_ended(self) -> bool:
        """Of memory and fabric, which were in use, nothing was told with the last two readings."""
        last, usual = self.card.samples[-2:], self.card.fabric_usual(self.s)
        if usual is None or len(last) < 2 or not self._mem_was_alive():
            return False
        fabric, most = last[-1].fabric, max(self.s.fabric_floor_bytes, self.s.fabric_dead_ratio * usual)
        mems = [x.mem for x in last if x.mem is not None]
        return fabric is not None and fabric <= most and len(mems) == 2 and max(mems) <= self.s.mem_dead_percent

    def _slow(self, power: float) -> str:
        """Why it counts as slow, or nothing."""
        since = self.now - self.s.window_s
        utils = [x.util for x in self.card.samples if x.util is not None]
        if power >= self.s.slow_power_ratio or len(utils) < self.s.min_samples or median(utils) < self.s.high_percent:
            return ""
        usual, rates = self.card.fabric_usual(self.s), self._fabrics(since)
        if usual is not None and len(rates) >= self.s.min_samples:
            share = mean(rates) / usual
            if self.s.fabric_dead_ratio < share <= self.s.slow_rate_ratio:
                return f"its fabric moves {share:.0%} of what is usual, at {power:.0%} of its power"
            return ""
        mems = [x.mem for x in self.card.samples if x.mem is not None]
        usual = self.card.mem_level.typical() if self.card.mem_level.weight >= self.s.level_samples else 0.0
        if usual > self.s.mem_alive_percent and len(mems) >= self.s.min_samples:
            share = median(mems) / usual
            if 2 * self.s.fabric_dead_ratio < share <= self.s.slow_rate_ratio:
                return f"its memory is at {share:.0%} of what is usual, at {power:.0%} of its power"
        return ""

    def _told(self, state: CardState, since: float, why: str, *, mid: bool = False) -> CardLook:
        seen = self._since(since if since < self.now else self.now - self.s.window_s)
        utils = [x.util for x in seen if x.util is not None]
        powers = [x.power for x in seen if x.power is not None]
        mems = [x.mem for x in seen if x.mem is not None]
        rates = [x.fabric for x in seen[2:] if x.fabric is not None]
        return CardLook(
            state,
            since,
            why,
            mid=mid,
            util=median(utils) if utils else None,
            variance=variance(utils) if len(utils) > 1 else None,
            power=median(powers) if powers else None,
            power_active=self.card.active_power(self.s),
            mem=median(mems) if mems else None,
            fabric=mean(rates) if rates else None,
            fabric_active=self.card.fabric_usual(self.s),
            samples=len(utils),
        )
