"""Types of options that several commands have."""

from collections.abc import Callable
from typing import Any

import click

from muster.agent import text


class Parsed(click.ParamType):  # type: ignore[type-arg]  # generic in newer versions of click only
    """An option's type from a function that raises ValueError."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def pair(written: str) -> tuple[str, str]:
    """NAME=VALUE. Raises ValueError."""
    name, equals, value = written.partition("=")
    if not equals:
        raise ValueError(f"{written!r}: must be NAME=VALUE")
    return name, value


def whole(written: str) -> int:
    """A whole number from 0. Raises ValueError."""
    if not (written.isascii() and written.isdigit() and int(written[:11]) < 1 << 32):
        raise ValueError(f"{written!r}: must be a whole number from 0")
    return int(written)


DURATION = Parsed("duration", text.duration)
WHOLE = Parsed("number", whole)
