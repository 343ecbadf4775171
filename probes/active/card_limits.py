"""What a healthy card of a model reaches at least: `card_limits.toml`, and a site's file of the same form before it."""

import tomllib
from collections.abc import Mapping
from pathlib import Path

_OURS = Path(__file__).with_name("card_limits.toml")
#: What a test measures -> the limit that it is compared with.
NAMES = {
    "tflops": "compute_tflops",
    "memory_gb_s": "memory_gb_s",
    "to_card_gb_s": "transfer_gb_s",
    "from_card_gb_s": "transfer_gb_s",
    "peer_gb_s": "peer_gb_s",
    "allreduce8_gb_s": "allreduce8_gb_s",
}


class BadLimits(ValueError):
    """A file of limits that says nothing usable. The message names file and entry."""


def limits_of(model: str, site: str = "") -> Mapping[str, float]:
    """The limits of a model by what is measured; empty for an unknown one. Raises OSError and BadLimits for `site`, a
    file's path."""
    for path in (*([Path(site)] if site else []), _OURS):
        try:
            for entry in tomllib.loads(path.read_text())["card"]:
                if all(word in model for word in entry["model"]):
                    return {name: float(entry[limit]) for name, limit in NAMES.items() if limit in entry}
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise BadLimits(f"{path}: {error}") from None
        except (KeyError, TypeError, ValueError) as error:
            raise BadLimits(f"{path}: {error!r}: the form is that of {_OURS.name}") from None
    return {}
