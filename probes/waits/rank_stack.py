"""The stack of a rank at one moment."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RankStack:
    """Of the process that a rank is, at `t` (seconds since the epoch); all of one dump have the same `t`.

    `frames`: of the Python thread that says what it does, innermost first, in the form in which equal ones are equal.
    `state` and `wchan`: of that thread, or of the first one where that is stopped or blocked. `moves`: the thread was
    elsewhere at another look of the same dump, and `frames` are what stayed. `switches`: how often its first thread has
    waited so far; `others`: the same of all its other Python threads that are not idle (voluntary_ctxt_switches in
    proc(5)); None: unknown. `in_collective`: C and C++ frames show that it waits for other ranks. `wakes_in`: see Task.
    `helped`: another Python thread is busy, or waits for something else than a thread: it may be the one that is waited
    for.
    """

    t: float
    rank: int
    pid: int
    state: str
    wchan: str = ""
    frames: tuple[str, ...] = ()
    moves: bool = False
    switches: int | None = None
    others: int | None = None
    in_collective: bool = False
    wakes_in: float | None = None
    helped: bool = False
