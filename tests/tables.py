"""Rank tables of tests."""

from muster.supervisors.launch.modes import ranktable
from muster.supervisors.launch.modes.ranktable import RankTable


def parse(data: bytes, name: str) -> RankTable | None:
    """A table from bytes; None where it is not complete yet. Raises RankTableError, which calls it by `name`."""
    found = ranktable.parse(data, name)
    return None if isinstance(found, str) else found
