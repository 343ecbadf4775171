"""The active checks by name, and their settings: what the daemon knows of them without importing them."""

from muster.probes.kernel.dataclass import dataclass
from muster.probes.settings import Settings, absolute_path, setting

#: First word of the items; the tests of a card, and what each looks at.
ITEM = "active"
TESTS = {
    "compute": "results and speed of matrix products",
    "memory": "content and speed of the card's memory",
    "transfer": "content and speed of copies between host and card",
}
ITEMS = tuple(f"{ITEM} {test}" for test in TESTS)


@dataclass(frozen=True, slots=True)
class ActiveSettings(Settings):
    """The tests of `muster check --active`. [active-checks.md](guides/active-checks.md) describes them."""

    seconds: float = setting(2.0, "How long a test measures.", above=0, most=3600)
    deadline_s: float = setting(
        60.0, "A test that has not ended after this time is killed; twice in a row, the card is at fault.", above=1
    )
    slow_ratio: float = setting(
        0.9, "A card is slow below this share of its own median, or of the node's cards of its model.", above=0, most=1
    )
    limits_file: str = setting(
        "",
        "Limits of your own by model, in the form of muster's card_limits.toml. Empty: none.",
        what="an absolute path, or empty",
        rule=absolute_path,
    )
