"""The settings of resets of cards."""

from muster.probes.checks.codes import UnknownCode, explain
from muster.probes.kernel.dataclass import dataclass
from muster.probes.settings import Settings, setting


def _codes(codes: tuple[str, ...]) -> str:
    for code in codes:
        try:
            explain(code)
        except UnknownCode as error:
            return str(error)
    return ""


@dataclass(frozen=True, slots=True)
class ResetTable(Settings):
    """Resets of cards ([Reset a card](guides/card-reset.md))."""

    codes: tuple[str, ...] = setting(
        (),
        "Codes after which muster resets a card by itself, while no job holds it or a card that goes with it, and the "
        'node is not drained, as in ["GPU_XID_RESET", "GPU_ROW_REMAP_PENDING"]. Empty: only `muster node reset` does.',
        what='codes of conditions, as in ["GPU_XID_RESET"]',
        rule=_codes,
    )
    most_a_day: int = setting(3, "How often muster resets a card by itself within 24 hours.", least=1, most=100)
    program_s: float = setting(
        900.0, "The vendor's program, which resets the card, is killed after this time.", above=0, most=7200
    )
    return_s: float = setting(180.0, "How long the card may take after a reset to answer again.", above=0, most=3600)
    settle_s: float = setting(
        20.0, "Ascend: the pause after a reset before the driver is asked anything, as Huawei advises.", most=600
    )
    active: bool = setting(True, "Whether the active tests must pass before the node takes jobs again.")
