"""Stands for the index of ended jobs where a test has none, or where its jobs are all in memory."""

from collections.abc import Callable
from typing import Any

import anyio


class NoEnded:
    """An index that is complete, and empty."""

    def __init__(self) -> None:
        self.indexed = anyio.Event()
        self.indexed.set()
        self.on_ended: list[Callable[[Any], None]] = []
        self.on_removed: list[Callable[[str], None]] = []

    def rows(self) -> list[Any]:
        return []

    def row(self, job_id: str) -> None:
        return None

    def find(self, job_id: str) -> None:
        return None
