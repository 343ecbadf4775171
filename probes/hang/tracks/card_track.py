"""One card of a job: what it did in the last minutes, and what is usual for it."""

from collections.abc import Sequence

import msgspec

from muster.probes.hang.hang_records import CardReading
from muster.probes.hang.hang_settings import HangSettings
from muster.probes.hang.tracks.level import Level
from muster.probes.kernel.known_names import ASCEND

#: Before all times of a detector's clock.
NEVER = -1e12
#: Of a slow card one reading of so many changes what is usual.
_SLOW_LEARNS = 10
#: So many answers in a row may be repetitions.
_REPEATS = 2
#: Readings nearer to each other than this share of the window (4 s of 5 min) need not all be kept.
_APART = 1 / 75


class Sample(msgspec.Struct, array_like=True):
    """A reading. `at` in the detector's clock, `fabric` in bytes per period since the one before."""

    at: float
    util: float | None
    mem: float | None
    power: float | None
    fabric: float | None


class CardTrack(msgspec.Struct):
    """What is kept of a card from one record to the next."""

    index: int
    rank: int | None
    kind: str = ""
    hangs: bool = False
    limit: float | None = None
    samples: list[Sample] = []
    #: The first record that names it. Of the utilization: when a reading came last, and since when all of them were
    #: low, high, or of no variance.
    seen_at: float = NEVER
    util_at: float = NEVER
    low_since: float | None = None
    high_since: float | None = None
    flat_since: float | None = None
    #: Since when the power is that of a card that waits, with the last readings.
    dim_since: float | None = None
    powers: list[tuple[float, float]] = []
    relaxed_since: float | None = None
    repeated: int = 0
    fabric_at: float = NEVER
    fabric_bytes: float | None = None
    #: What is usual while the card works, and its power while it does not.
    power_level: Level = msgspec.field(default_factory=Level)
    idle_level: Level = msgspec.field(default_factory=Level)
    #: Powers at a full utilization of which nothing told whether they were those of work.
    perhaps_level: Level = msgspec.field(default_factory=Level)
    mem_level: Level = msgspec.field(default_factory=Level)
    fabric_level: Level = msgspec.field(default_factory=Level)
    #: Seconds of work of late, and whether there was ever a minute of it in this attempt.
    work_s: float = 0.0
    #: When its fabric last moved data, however little that is beside its usual rate.
    moved_at: float = NEVER
    used: bool = False
    #: The present or last spell in which the utilization of a card at work changed.
    varies_since: float = NEVER
    varied_at: float = NEVER
    slow: bool = False
    slow_readings: int = 0
    #: A flat utilization was, for a time, that of good work here: by itself it says nothing.
    flat_is_usual: bool = False

    # --- readings -----------------------------------------------------------------------------------------------------

    def take(self, card: CardReading, now: float, s: HangSettings) -> None:
        """Takes a reading."""
        if self._is_repeated(card):
            return
        self.seen_at = now if self.seen_at == NEVER else self.seen_at
        before = max(self.samples[-1].at, self.util_at) if self.samples else now
        between = (before + now) / 2
        self.kind, self.hangs = card.kind or self.kind, card.hangs
        if card.power_limit_w is not None:
            changed = self.limit is not None and abs(card.power_limit_w - self.limit) > 0.05 * self.limit
            if changed and self.dim_since is None:
                # Another limit, other powers; but that of a card that waits is no other for it.
                self.power_level, self.idle_level, self.dim_since, self.powers = Level(), Level(), None, []
            self.limit = card.power_limit_w
        fabric = self._fabric(card.fabric_bytes, now, s)
        if fabric is not None and fabric >= s.fabric_moves_bytes:
            self.moved_at = between
        if card.util is not None:
            self._bands(card.util, now, between, s)
            self.util_at = now
        works = self._shows_work(card, fabric, now, s)
        self._guess(card, works, s)
        if card.power_w is not None:
            self._power(card.power_w, now, s)
        passed = min(now - before, s.period_s)
        # Bursts on and on are work, too; a blip now and then is not.
        self.work_s = max(0.0, min(2 * s.active_s, self.work_s + (passed if works else -s.pause_ratio * passed)))
        self.used = self.used or self.work_s >= s.active_s
        if works:
            self._learn(card, fabric)
            if self.flat_since is None and card.util is not None:
                self.varies_since = now if now - self.varied_at > s.window_s else self.varies_since
                self.varied_at = now
        elif card.util is not None and card.util <= 1 and card.power_w:
            self.idle_level.add(card.power_w)
        if card.util is None and card.power_w and not works:
            # Of a card without utilization nobody can say when it works; its typical level is of the upper half.
            self.power_level.add(card.power_w)
        if not self.samples or now - self.samples[-1].at >= _APART * s.window_s:
            self.samples.append(Sample(now, card.util, card.mem_util, card.power_w, fabric))
            while self.samples[0].at < now - s.window_s * (1 + _APART):
                del self.samples[0]
        self._flat(now, s)

    def _is_repeated(self, card: CardReading) -> bool:
        """A driver that repeats its last answer says nothing of now, where until then its fabric was moving data. Of
        more than two in a row it is the card that does the same."""
        last = self.samples[-1] if self.samples else None
        same = last is not None and (last.util, last.mem, last.power) == (card.util, card.mem_util, card.power_w)
        moved = last is not None and bool(last.fabric) and self.fabric_bytes == card.fabric_bytes
        self.repeated = self.repeated + 1 if same and moved else 0
        return 0 < self.repeated <= _REPEATS

    def _bands(self, util: float, now: float, between: float, s: HangSettings) -> None:
        if util > s.low_percent:
            self.low_since = None
        elif self.low_since is None:
            self.low_since = between
        if util < s.high_percent:
            self.high_since = None
        elif self.high_since is None:
            self.high_since = between

    def _flat(self, now: float, s: HangSettings) -> None:
        utils = [sample.util for sample in self.samples if sample.util is not None]
        # In a long window one reading that is another does little to the variance, but it is a change.
        if len(utils) > 1 and (variance(utils) > s.flat_variance or _strays(utils, 4 * s.flat_variance**0.5)):
            self.flat_since = None
        elif self.flat_since is None and len(utils) >= s.min_samples and now - self.samples[0].at >= 0.8 * s.window_s:
            self.flat_since = self.samples[0].at

    def _fabric(self, count: float | None, now: float, s: HangSettings) -> float | None:
        """Bytes per period since the reading before; None where there is none, or where the counter fell."""
        if count is None:
            return None
        before, at = self.fabric_bytes, self.fabric_at
        if before is not None and count >= before and now <= at:
            return None
        self.fabric_bytes, self.fabric_at = count, now
        return None if before is None or count < before else (count - before) * s.period_s / (now - at)

    def _guess(self, card: CardReading, works: bool, s: HangSettings) -> None:
        """Without a limit a power means nothing until it falls: a power twice as high was that of work."""
        if not card.power_w or card.util is None or works or self.active_power(s) is not None:
            return
        if self.perhaps_level.weight >= s.level_samples and (
            card.power_w < s.power_hung_ratio * self.perhaps_level.typical()
        ):
            self.power_level, self.perhaps_level, self.used = self.perhaps_level, Level(), True
        elif card.util > s.low_percent and self.limit is None:
            self.perhaps_level.add(card.power_w)

    def _shows_work(self, card: CardReading, fabric: float | None, now: float, s: HangSettings) -> bool:
        """Of the utilization alone only where that is not full: what waits in a collective has full utilization too."""
        if card.util is None:
            return now - self.util_at > s.dark_s and self._shows_work_unseen(card, fabric, s)
        if card.util <= s.low_percent:
            return False
        waits = self.waiting_power(s)
        if card.power_w is not None and waits is not None:
            return card.power_w >= waits or self._other_signs(card, fabric, s)
        if card.power_w is not None and self.limit is not None and card.power_w >= s.power_active_share * self.limit:
            return True
        return card.util < s.high_percent or self._other_signs(card, fabric, s)

    def _shows_work_unseen(self, card: CardReading, fabric: float | None, s: HangSettings) -> bool:
        share = card.power_w / self.limit if card.power_w is not None and self.limit is not None else 0.0
        return share >= s.power_active_share or self._other_signs(card, fabric, s)

    def _other_signs(self, card: CardReading, fabric: float | None, s: HangSettings) -> bool:
        if card.mem_util is not None and card.mem_util > s.mem_alive_percent:
            before = next((x.mem for x in reversed(self.samples) if x.mem is not None), None)
            if card.kind != ASCEND or before not in (None, card.mem_util):
                return True
        usual = self.fabric_usual(s)
        least = s.fabric_floor_bytes if usual is None else max(s.fabric_floor_bytes, s.fabric_alive_ratio * usual)
        return fabric is not None and fabric >= least

    def _learn(self, card: CardReading, fabric: float | None) -> None:
        # Of what is thought to wait, at no less than half of its power, nothing becomes usual.
        if self.relaxed_since is not None:
            return
        # Slowness becomes usual in time, but not before it was reported.
        self.slow_readings = self.slow_readings + 1 if self.slow else 0
        if self.slow_readings % _SLOW_LEARNS:
            return
        if card.power_w:
            self.power_level.add(card.power_w)
        if card.mem_util is not None:
            self.mem_level.add(card.mem_util)
        if fabric is not None:
            self.fabric_level.add(fabric)

    def _power(self, power: float, now: float, s: HangSettings) -> None:
        """The power is low from when two of three readings are: one may be an outlier, or stale."""
        self.powers = [*self.powers[-2:], (now, power)]
        waits = (self.waiting_power(s) or 0.0) * (1.0 if self.dim_since is None else s.power_leave_factor)
        low = [value < waits for _, value in self.powers]
        if 2 * sum(low) <= len(low):
            self.dim_since = None
        elif self.dim_since is None:
            first = low.index(True)
            before = self.powers[first - 1][0] if first else self.powers[first][0]
            self.dim_since = (before + self.powers[first][0]) / 2

    # --- levels -------------------------------------------------------------------------------------------------------

    def active_power(self, s: HangSettings) -> float | None:
        """Watts while it works; None where too few readings are known."""
        return self.power_level.typical() or None if self.power_level.weight >= s.level_samples else None

    def waiting_power(self, s: HangSettings) -> float | None:
        """Watts below which it waits."""
        active = self.active_power(s)
        if active is None:
            return None
        waits = s.power_hung_ratio * active
        idle = self.idle_level.median() if self.idle_level.weight >= s.level_samples else 0.0
        if 0 < idle < 0.9 * active:
            waits = max(waits, idle + s.power_idle_share * (active - idle))
        return waits

    def strict_power(self, s: HangSettings, active: float) -> float:
        """Watts below which it waits without any other sign for that."""
        idle = self.idle_level.median() if self.idle_level.weight >= s.level_samples else 0.0
        if 0 < idle < 0.9 * active:
            return idle + s.power_strict_share * (active - idle)
        return s.power_strict_ratio * active

    def waits_in(self, card: CardReading, s: HangSettings) -> bool | None:
        """Whether this one reading is that of a card that waits for other cards: at full utilization with the power of
        one that waits, or, of an NPU whose fabric is used, idle. None: it does not say."""
        if card.util is None:
            return None
        if card.util < s.high_percent:
            return self.kind == ASCEND and card.util <= s.low_percent and self.fabric_usual(s) is not None
        waits = self.waiting_power(s)
        return None if card.power_w is None or waits is None else card.power_w < waits

    def fabric_usual(self, s: HangSettings) -> float | None:
        """Bytes per period while it works; None where the fabric is not used, or not known."""
        usual = self.fabric_level.typical() if self.fabric_level.weight >= s.level_samples else 0.0
        return usual if usual > s.fabric_floor_bytes else None


def draws_apart(share: float, others: Sequence[float], s: HangSettings) -> bool:
    """A card draws this share of its usual power, so much more than others that seem to wait: it computes for them."""
    return share >= s.power_apart_factor * median(others)


def median(values: Sequence[float]) -> float:
    """Of at least one value."""
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def mean(values: Sequence[float]) -> float:
    """Of at least one value."""
    return sum(values) / len(values)


def variance(values: Sequence[float]) -> float:
    """Of the values themselves, not of a population of which they are a sample."""
    centre = mean(values)
    return sum((value - centre) ** 2 for value in values) / len(values)


def _strays(values: Sequence[float], most: float) -> bool:
    middle = median(values)
    return max(values) > middle + most or min(values) < middle - most
