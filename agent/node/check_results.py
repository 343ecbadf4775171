"""The newest result of each check, OK ones too: conditions hold what is wrong, this holds what was examined."""

from collections.abc import Collection, Sequence

from muster.probes.checks.result import CheckResult


class CheckResults:
    """Results by item. Not thread-safe."""

    def __init__(self) -> None:
        self._by_item: dict[str, list[CheckResult]] = {}

    @property
    def all(self) -> list[CheckResult]:
        """In the order in which items were looked at first."""
        return [result for results in self._by_item.values() for result in results]

    def take(self, results: Sequence[CheckResult], cards: Collection[int] | None) -> None:
        """Stores the results of a look. `cards`: the look examined only these; None: all, so a device without a result
        is forgotten."""
        new: dict[str, list[CheckResult]] = {}
        for result in results:
            new.setdefault(result.item, []).append(result)
        for item, found in new.items():
            kept: list[CheckResult] = []
            if cards is not None:
                told = {result.device for result in found}
                kept = [r for r in self._by_item.get(item, ()) if r.device not in told and r.card not in cards]
            self._by_item[item] = kept + found

    def keep_only(self, items: Collection[str]) -> None:
        """Forgets items that are no longer checked."""
        self._by_item = {item: found for item, found in self._by_item.items() if item in items}
