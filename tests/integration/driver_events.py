"""What a daemon hears of its driver."""

from tests.conftest import Daemon, eventually
from tests.fakes import FakeCards

#: An Xid of an application, which is no fault of a card.
_HARMLESS = 13


def until_heard(daemon: Daemon, cards: FakeCards, place: int) -> None:
    """Returns once the daemon hears what the driver reports, of all cards: it knows them a moment before it listens,
    and what happens until then is lost, as with a real driver. Reports an Xid of a card that nothing is said about."""

    def heard() -> bool:
        cards.xid(place, _HARMLESS)
        return any(event.kind == "node.event" for event in daemon.event_list())

    eventually(heard, message="the daemon listens to the driver")
