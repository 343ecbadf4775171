"""What a communication library says of where ranks wait."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LibraryWait:
    """Of one moment `t` (seconds since the epoch), by two looks between which nothing moved.

    `inside`: ranks that wait in a collective, and its name; `absent`: ranks that did not come and wait in none; both
    empty where something moved, or where that is not known. `text`: one sentence.
    """

    t: float
    text: str
    inside: tuple[tuple[int, str], ...] = ()
    absent: tuple[int, ...] = ()
