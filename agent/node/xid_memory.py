"""The boots in which a card had an Xid: a reboot does not cure an Xid that returned after one."""

from collections.abc import Collection, Mapping

#: Limits: remembered boots for one Xid of one card; remembered pairs of card and Xid.
MAX_BOOTS = 8
MAX_PAIRS = 512


class XidMemory:
    """Knows a card by each of its names (uuid, bus id): not every name is known at all times."""

    def __init__(self, boot: str, kept: Mapping[str, list[str]]) -> None:
        """`boot`: id of the present boot. `kept`: an earlier result of `kept`."""
        self._boot = boot
        self._boots = {pair: list(boots) for pair, boots in kept.items()}

    def earlier(self, name: str, xid: int) -> int:
        """The number of earlier boots in which the card with this name had this Xid."""
        return sum(boot != self._boot for boot in self._boots.get(_pair(name, xid), ()))

    def note(self, names: Collection[str], xid: int) -> None:
        """Notes that the card with these names has this Xid now."""
        for name in filter(None, names):
            pair = _pair(name, xid)
            boots = [boot for boot in self._boots.pop(pair, []) if boot != self._boot]
            self._boots[pair] = [*boots, self._boot][-MAX_BOOTS:]
        while len(self._boots) > MAX_PAIRS:
            del self._boots[next(iter(self._boots))]

    def kept(self) -> dict[str, list[str]]:
        """The content for a file."""
        return {pair: list(boots) for pair, boots in self._boots.items()}


def _pair(name: str, xid: int) -> str:
    return f"{name}/{xid}"
