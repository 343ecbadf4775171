"""Pauses that grow with each failure."""


class Backoff:
    """The pauses between tries, in seconds: from `first`, `factor` times as long after each, `most` at most.

    It does not sleep, so that threads, event loops and clocks of tests can use it.
    """

    __slots__ = ("_factor", "_first", "_most", "_taken")

    #: No pause grows for longer: 2 to the power of it exceeds every limit, and a float holds it.
    _GROWTHS = 30

    def __init__(self, first: float, most: float, factor: float = 2.0) -> None:
        self._first, self._most, self._factor = first, most, factor
        self._taken = 0

    @property
    def pause(self) -> float:
        """The pause that is due now."""
        return self.after(self._taken + 1)

    def after(self, failures: int) -> float:
        """The pause after so many failures in a row, from 1. Changes nothing."""
        return min(self._first * self._factor ** min(failures - 1, self._GROWTHS), self._most)

    def next(self) -> float:
        """Returns the pause that is due now; the one after it is longer."""
        pause = self.pause
        self._taken = min(self._taken + 1, self._GROWTHS)
        return pause

    def reset(self) -> None:
        """After a success: the next pause is the first again."""
        self._taken = 0
