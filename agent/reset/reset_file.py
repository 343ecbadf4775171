"""`<state>/reset.json`: a reset that is under way, and how often each card was reset.

It is on the disk before each step: a successor knows from it that the node is drained for a reset, what was changed and
must be put back, and which program may still be at work.
"""

import time
from pathlib import Path

import msgspec

from muster.agent.events.event_store import Event
from muster.agent.host import state_file
from muster.probes.kernel import process

VERSION = 1
#: The kind of the events of a reset.
KIND = "node.reset"
#: Remembered cards; those whose last reset is the oldest are forgotten first.
MAX_CARDS = 256
DAY_S = 86_400.0


class ResetRecord(msgspec.Struct, kw_only=True):
    """One reset. `together`: the numbers of the cards that go with it; `persistent`: those whose persistence mode is
    turned off for it, as nvidia-smi names them; `program`: pid and start time of the vendor's program; `failure`: a
    sentence, if it failed after that program had begun, "" while it is under way. `code`: for which muster began it by
    itself, "" where somebody asked for it."""

    card: int
    uuid: str
    bus_id: str
    together: list[int]
    by: str
    since: float
    boot: str
    step: str = ""
    persistent: list[str] = []
    program: tuple[int, int] | None = None
    failure: str = ""
    code: str = ""

    @property
    def device(self) -> str:
        """As people call it."""
        return f"card {self.card}"


class ResetEvent(msgspec.Struct):
    """The event about a step, or about the end."""

    at: float
    message: str
    attributes: dict[str, str]

    def event(self) -> Event:
        """For the store of events."""
        return Event(self.at, KIND, message=self.message, attributes=self.attributes)


class ResetState(msgspec.Struct):
    """The file. `current`: the reset that is under way, or that failed and was neither repeated nor undrained.
    `drain`: the reason of the drain that muster made for a reset, "" if it made none. `past`: when each card was reset
    by itself, by UUID, in seconds since the epoch. `given_up`: cards that muster resets no more by itself, with why,
    until what asked for it is over or somebody resets them. `ended`: how the last one ended, until another begins."""

    version: int = VERSION
    current: ResetRecord | None = None
    drain: str = ""
    past: dict[str, list[float]] = {}
    given_up: dict[str, str] = {}
    ended: ResetEvent | None = None


def read(path: Path) -> tuple[ResetState, str]:
    """The file, and what is wrong with it: an unreadable one is set aside. Raises StartupError for one of a newer
    musterd. Blocks."""
    try:
        return state_file.read(path, ResetState, VERSION), ""
    except FileNotFoundError:
        return ResetState(), ""
    except (OSError, state_file.Damaged) as error:
        trouble = f"{path}: {error}: if the node is drained for a reset, `muster node undrain` returns it to service"
        try:
            state_file.set_aside(path)
        except OSError:
            pass  # it is replaced by the next one
        return ResetState(), trouble


def note_past(state: ResetState, uuid: str, now: float) -> None:
    """Counts a reset of a card by muster itself."""
    recent = [at for at in state.past.get(uuid, []) if now - at < DAY_S]
    others = sorted(((u, ats) for u, ats in state.past.items() if u != uuid and ats), key=lambda it: it[1][-1])
    state.past = dict(others[-(MAX_CARDS - 1) :]) | {uuid: [*recent, now]}


def today(state: ResetState, uuid: str) -> int:
    """How often it was reset by muster itself within a day."""
    return sum(0 <= time.time() - at < DAY_S for at in state.past.get(uuid, []))


def at_work(record: ResetRecord) -> bool:
    """Whether the vendor's program of this reset still runs."""
    if record.program is None or record.boot != process.boot_id():
        return False
    stat = process.read_stat(record.program[0])
    return stat is not None and stat.start == record.program[1] and stat.state not in "ZX"


def program_age_s(record: ResetRecord) -> float:
    """How long ago the vendor's program of this reset was started, in seconds; it must be of this boot."""
    return process.uptime() - record.program[1] / process.TICKS_PER_S if record.program is not None else 0.0


def remedy(record: ResetRecord, absent: bool = False) -> str:
    """How to go on after a reset that failed or was interrupted. `absent`: the card does not answer, which is a doubt
    that only --force overrides."""
    again = f"`muster node reset {record.card}{' --force' if absent else ''}`"
    if record.program is not None:
        return f"reboot the node, as pid {record.program[0]} is still in the driver; {again} tries again then"
    return f"{again} tries again, `muster node undrain` returns the node to service as it is"
