"""The settings of the driver of the cards."""

from muster.probes.kernel.dataclass import dataclass
from muster.probes.settings import Settings, setting


@dataclass(frozen=True, slots=True)
class DriverSettings(Settings):
    """The driver of the cards."""

    driver_deadline_s: float = setting(
        10.0,
        "A call of the driver of a card that takes longer hangs (`DRIVER_HANG`): muster leaves the card to that call "
        "and asks for the others without it.",
        above=0,
        most=600,
    )
    slots: int = setting(
        0,
        "On a host without cards: slots that jobs can ask for as if they were cards (`--cards`), each held by one "
        "job at a time. Where there are cards (`/dev/nvidia*`, `/dev/davinci*`), muster finds them and this has no "
        "meaning.",
        most=4096,
    )
