"""One process of a rank: how it was seen last, what it did since, and since when it cannot go on."""

import msgspec

from muster.probes.hang.hang_records import Proc
from muster.probes.hang.tracks.card_track import NEVER

#: States of a process that has ended.
ENDED = ("Z", "X", "x")
#: State of a process that a debugger holds (proc(5): tracing stop).
TRACED = "t"
#: A process that waits differently in one look of so many is still one that waits.
_LOOKS_BETWEEN = 2


class ProcState(msgspec.Struct):
    """A process, as it was seen last. `since`: of the state D or T, None in any other; `other`: looks since then in
    which it was in another state."""

    role: str
    at: float
    cpu_s: float | None = None
    rchar: float | None = None
    wchar: float | None = None
    read_bytes: float | None = None
    write_bytes: float | None = None
    state: str = ""
    wchan: str = ""
    held: str = ""
    since: float | None = None
    other: int = 0


#: Of a process of which nothing is known, and one that has done nothing yet.
NO_GROWTH = (0.0, 0.0, 0.0, 0.0)
NOTHING = ProcState("", NEVER, 0.0, 0.0, 0.0, 0.0, 0.0)


def growth(before: ProcState, after: Proc | ProcState) -> tuple[float, float, float, float]:
    """Bytes read and written, CPU seconds, bytes saved."""

    def grown(name: str) -> float:
        old, new = getattr(before, name), getattr(after, name)
        return max(0.0, new - old) if old is not None and new is not None else 0.0

    wchar, disk = grown("wchar"), grown("write_bytes")
    return grown("rchar") + grown("read_bytes"), wchar + disk, grown("cpu_s"), max(wchar, disk)


def capped(grown: tuple[float, float, float, float], dt: float) -> tuple[float, float, float, float]:
    """Without more CPU time than the clock allows: a process that was seen first has counted since its start."""
    read, written, cpu, saved = grown
    return read, written, min(cpu, dt), saved


def fell(before: ProcState, proc: Proc) -> bool:
    """Whether one of its counters is lower than before: it is another process's, or was set back."""
    names = ("rchar", "wchar", "read_bytes", "write_bytes")
    pairs = [(getattr(before, name), getattr(proc, name)) for name in names]
    return any(old is not None and new is not None and new < old for old, new in pairs)


def kept(proc: Proc, before: ProcState | None, now: float) -> ProcState:
    """What is remembered of a process, seen now and, unless it is new, before."""
    state = ProcState(
        proc.role,
        now,
        proc.cpu_s,
        proc.rchar,
        proc.wchar,
        proc.read_bytes,
        proc.write_bytes,
        proc.state,
        proc.wchan,
    )
    if before is not None:
        # A reading that is missing once leaves the older one to count from.
        for name in ("cpu_s", "rchar", "wchar", "read_bytes", "write_bytes"):
            if getattr(state, name) is None:
                setattr(state, name, getattr(before, name))
        state.held, state.since, state.other = before.held, before.since, before.other
    held = proc.state if proc.state in ("D", "T", TRACED) else ""
    if held and held == state.held:
        state.other = 0
    elif held:
        state.held, state.since, state.other = held, (before.at + now) / 2 if before else now, 0
    elif state.held:
        state.other += 1
        if state.other >= _LOOKS_BETWEEN:
            state.held, state.since, state.other = "", None, 0
    return state
