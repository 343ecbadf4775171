"""What a detector keeps of a job from one record to the next; all of it can be stored as JSON."""

import msgspec

from muster.probes.hang.hang_records import CardReading, Record
from muster.probes.hang.hang_settings import HangSettings
from muster.probes.hang.tracks.card_track import NEVER, CardTrack
from muster.probes.hang.tracks.rank_track import Log, RankTrack, split
from muster.probes.hang.tracks.rank_wait import RankWait
from muster.probes.hang.verdicts import HangKind, HangVerdict

#: Records in a period, until it is known how many there are.
_IN_PERIOD = 4


def card_key(card: CardReading) -> str:
    """Of a card in its job: nodes whose records were joined may each have a card of this index."""
    return f"{card.index}:{'' if card.rank is None else card.rank}"


class JobState(msgspec.Struct):
    """A job. Times are those of the detector's clock (0 at the first record), which no step of the wall clock moves and
    which stands still in a gap."""

    job: str = ""
    records: int = 0
    t: float = 0.0
    now: float = 0.0
    usual_s: float = 0.0
    cards: dict[str, CardTrack] = {}
    ranks: dict[int, RankTrack] = {}
    #: Begin of this attempt; whether its cards were active, and whether another attempt's were.
    begun_at: float = 0.0
    active: bool = False
    active_before: bool = False
    #: When a process last worked on the host; of a job whose cards tell nothing that is all its activity.
    host_at: float = NEVER
    #: Signs of life of cards and network; the present or last spell of work.
    work_at: float = NEVER
    spell_since: float = NEVER
    spell_at: float = NEVER
    net_at: float = NEVER
    net_bytes: float | None = None
    net_seen_at: float = NEVER
    #: A counter that falls is that of another node, or was set back: not to be trusted for a while.
    net_fell_at: float = NEVER
    #: Traffic that is the job's own beyond doubt.
    net_own_at: float = NEVER
    #: End of the last burst of writes; bytes a second that the job usually writes.
    burst_at: float = NEVER
    write_usual: float = 0.0
    slow_since: float | None = None
    driver_hangs: bool = False
    #: Nodes of the job without records.
    others: int = 0
    nodes_known: bool = False
    has_log: bool = False
    #: When the records last named processes that count: without any, nothing can hang.
    procs_at: float = NEVER
    #: The longest silence that ended by itself.
    survived_s: float = 0.0
    #: The verdict, when its silence began, when it was given; whether it rests on processes that sleep.
    verdict: HangVerdict | None = None
    kind: HangKind | None = None
    verdict_ranks: list[int] = []
    confidence: float = 1.0
    silent_since: float = NEVER
    verdict_at: float = NEVER
    asleep: bool = False
    #: Where each rank waits, by the dumps of the present silence.
    waits: dict[int, RankWait] = {}
    #: What the communication library said last: when, which ranks wait in which collective, who did not come.
    library_at: float = NEVER
    library_inside: dict[int, str] = {}
    library_absent: list[int] = []
    library_text: str = ""
    #: The kind of hang that the record before spoke for.
    candidate: HangKind | None = None

    def begin_anew(self) -> None:
        """Another attempt."""
        self.active_before = self.active_before or self.active
        self.active = False
        self.begun_at = self.now
        for card in self.cards.values():
            card.used, card.work_s = False, 0.0

    def take(self, record: Record, s: HangSettings) -> str:
        """Takes a record. Returns why the job began anew, or ""."""
        first = self.records == 0
        stepped_back = self._tick(record.t, first, s)
        self.job, self.records = record.job, self.records + 1
        self.driver_hangs = record.driver_hangs
        self.others, self.nodes_known = record.others, record.nodes_known
        self.has_log = self.has_log or bool(record.log_bytes)
        for card in record.cards or ():
            self._card(card).take(card, self.now, s)
        why = self._take_procs(record, first, s)
        self._take_net(record.net_bytes, record.job_net_rate, s)
        if (record.job_net_least or 0.0) * s.period_s >= s.net_floor_bytes:
            self.net_own_at = self.now - self.usual_s / 2
        self._saves(s)
        for stack in record.stacks:
            if (at := self._at(stack.t, record.t, s)) is not None:
                self.waits.setdefault(stack.rank, RankWait()).take(stack, at)
        if (said := record.library) is not None and (at := self._at(said.t, record.t, s)) is not None:
            self.library_at, self.library_text = at, said.text
            self.library_inside, self.library_absent = dict(said.inside), list(said.absent)
        if stepped_back:
            # An old record among new ones looks as if all counters had fallen.
            why = ""
        if why:
            self.begin_anew()
        if any(card.used for card in self.cards.values()):
            self.active = True
        elif not any(card.util_at > NEVER for card in self.cards.values()):
            # Without a reading of a card the processes are all there is.
            stirs = any(
                track.stirred_at - max(track.stirs_since, self.begun_at) >= s.established_s
                for track in self.ranks.values()
            )
            self.active = self.active or stirs or self.host_at > self.begun_at
        return why

    def _tick(self, t: float, first: bool, s: HangSettings) -> bool:
        """Moves the clock. Whether the wall clock was set back."""
        passed = t - self.t
        back = False
        if first:
            self.t, self.usual_s = t, s.period_s / _IN_PERIOD
        elif passed < -self.usual_s:
            back = True
            self.t, self.now = t, self.now + self.usual_s
        elif passed > max(s.gap_s, s.gap_factor * self.usual_s):
            self.t, self.now = t, self.now + self.usual_s
        elif passed > 0:
            self.t, self.now = t, self.now + passed
            # Nodes whose records were joined come in pairs.
            self.usual_s += 0.2 * (passed - self.usual_s) if passed > self.usual_s / 20 else 0.0
        return back

    def _at(self, t: float, of_record: float, s: HangSettings) -> float | None:
        """A time within the last records, in the detector's clock; None of any other."""
        at = self.now - (of_record - t)
        return at if self.now - max(s.gap_s, s.gap_factor * self.usual_s) <= at <= self.now else None

    def _card(self, card: CardReading) -> CardTrack:
        key = card_key(card)
        if key not in self.cards:
            self.cards[key] = CardTrack(card.index, card.rank)
        return self.cards[key]

    def _take_procs(self, record: Record, first: bool, s: HangSettings) -> str:
        why = ""
        by_rank = split(record.procs or (), s)
        if by_rank:
            self.procs_at = self.now
        for rank in sorted(by_rank.keys() | record.log_bytes.keys()):
            track = self.ranks.setdefault(rank, RankTrack(rank))
            procs, log = by_rank.get(rank, []), Log(record.log_bytes.get(rank), record.log_lines.get(rank))
            said = track.take(procs, log, self.now, s, first=first, asked=record.asked)
            why = why or said
            self.host_at = max(self.host_at, track.strong_at, track.busy_at)
        return why

    def _take_net(self, count: float | None, own_rate: float | None, s: HangSettings) -> None:
        """`count`: of the node; `own_rate`: of the job, which counts where it is known: others use the network, too."""
        before, at = self.net_bytes, self.net_seen_at
        if count is not None:
            self.net_bytes, self.net_seen_at = count, self.now
        if own_rate is not None:
            if own_rate * s.period_s >= s.net_floor_bytes:
                self.net_at = self.now - self.usual_s / 2
            return
        if count is None or before is None or self.now <= at:
            return
        if count < before:
            self.net_fell_at = self.now
        elif (count - before) * s.period_s / (self.now - at) >= s.net_floor_bytes and (
            self.now - self.net_fell_at > s.window_s
        ):
            self.net_at = (at + self.now) / 2

    def _saves(self, s: HangSettings) -> None:
        """Notes bursts of writes: far more than is usual in this job."""
        saved, seconds = 0.0, 0.0
        last = NEVER
        for track in self.ranks.values():
            mine = [x for x in track.intervals if x.at > self.now - s.window_s]
            saved += sum(x.saved for x in mine)
            seconds = max(seconds, sum(x.dt for x in mine))
            if mine and mine[-1].at == self.now and mine[-1].saved * s.window_s > mine[-1].dt * s.save_burst_bytes / 4:
                last = self.now
        if not seconds:
            return
        rate = saved / max(seconds, s.window_s)
        if saved >= s.save_burst_bytes and last > NEVER and rate >= s.save_burst_factor * self.write_usual:
            self.burst_at = last
        # Slowly: a save of some minutes does not become what is usual, a job that always writes that much does.
        self.write_usual += (rate - self.write_usual) * min(1.0, self.usual_s / (12 * s.window_s))
