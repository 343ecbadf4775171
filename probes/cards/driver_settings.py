"""The settings of the driver of the cards."""

from muster.probes.kernel.dataclass import dataclass
from muster.probes.settings import Settings, setting


@dataclass(frozen=True, slots=True)
class DriverSettings(Settings):
    """The driver of the cards."""

    driver_deadline_s: float = setting(
        10.0,
        "A driver call for a card that takes longer counts as hanging (`DRIVER_HANG`): muster leaves the card to that "
        "call and queries the other cards.",
        above=0,
        most=600,
    )
    slots: int = setting(
        0,
        "On a host without cards: slots that jobs can ask for as if they were cards (`--cards`), each held by one "
        "job at a time. If the host has cards (`/dev/nvidia*`, `/dev/davinci*`), muster finds them and ignores this.",
        most=4096,
    )
