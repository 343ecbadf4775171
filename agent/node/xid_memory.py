"""In which boots a card had which Xid: what comes again after a reboot is no longer cured by one."""

from collections.abc import Collection, Mapping

#: Boots remembered of one Xid of one card, and pairs of both.
MAX_BOOTS = 8
MAX_PAIRS = 512


class XidMemory:
    """Knows a card by each of its names (uuid, bus id): which of them is known can differ from time to time."""

    def __init__(self, boot: str, kept: Mapping[str, list[str]]) -> None:
        """`boot`: id of the present one. `kept`: what `kept` gave before."""
        self._boot = boot
        self._boots = {pair: list(boots) for pair, boots in kept.items()}

    def earlier(self, name: str, xid: int) -> int:
        """In how many boots before this one the card of this name had this Xid."""
        return sum(boot != self._boot for boot in self._boots.get(_pair(name, xid), ()))

    def note(self, names: Collection[str], xid: int) -> None:
        """The card of these names has this Xid now."""
        for name in filter(None, names):
            pair = _pair(name, xid)
            boots = [boot for boot in self._boots.pop(pair, []) if boot != self._boot]
            self._boots[pair] = [*boots, self._boot][-MAX_BOOTS:]
        while len(self._boots) > MAX_PAIRS:
            del self._boots[next(iter(self._boots))]

    def kept(self) -> dict[str, list[str]]:
        """For a file."""
        return {pair: list(boots) for pair, boots in self._boots.items()}


def _pair(name: str, xid: int) -> str:
    return f"{name}/{xid}"
