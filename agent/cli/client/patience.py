"""Disk accesses of a command, each with a time limit: a disk may never answer."""

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def within(seconds: float, function: Callable[[], T]) -> T:
    """The result of `function()`, which runs in a thread that the command's exit does not wait for. Raises what it
    raises; TimeoutError if it has not returned after so many seconds, and leaves it behind."""
    values: list[T] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            values.append(function())
        except BaseException as error:  # whatever it is, it belongs to the caller
            errors.append(error)

    thread = threading.Thread(target=work, name="disk", daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not values:
        raise TimeoutError
    return values[0]
