"""Faults that are set for one function of a library: in a card's own list, or in the one that is for all cards."""

from typing import Any

from tests.fakes.state import State


class Faults:
    """The list of `held`, a `struct card` or `struct state`. Names of functions are not looked at."""

    def __init__(self, state: State, held: Any) -> None:
        self._state = state
        self._held = held

    def set(self, function: str, *, code: int = 0, hang: bool = False) -> None:
        """The function waits, or returns the code, from now on. Raises ValueError where the list is full."""
        with self._state.writing():
            faults = self._held.faults
            used = [i for i, fault in enumerate(faults) if fault.used]
            at = next((i for i in used if faults[i].function.decode() == function), None)
            if at is None:
                at = next((i for i in range(len(faults)) if i not in used), None)
            if at is None:
                raise ValueError(f"{len(faults)} faults are set already: clear some")
            fault = faults[at]
            if at not in used:
                fault.waiting = 0
            fault.function, fault.code, fault.hang, fault.used = function.encode(), code, hang, 1
            self._held.fault_count = max(self._held.fault_count, at + 1)

    def clear(self, function: str | None) -> None:
        """Ends the faults of one function, or of all."""
        with self._state.writing():
            faults = self._held.faults
            for fault in faults:
                if function is None or fault.function.decode() == function:
                    fault.used = fault.hang = fault.code = 0
            self._held.fault_count = max((i + 1 for i, fault in enumerate(faults) if fault.used), default=0)

    def waiting(self) -> list[str]:
        """Functions in which calls wait."""
        return [fault.function.decode() for fault in self._held.faults if fault.waiting]
