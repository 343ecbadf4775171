"""Return codes of libdcmi.so (dcmi_interface_api.h of the driver, 2025), and what they say of a card."""

from muster.probes.cards.accelerator import DriverError, Trouble

_CODES = {
    -8001: "wrong parameter",
    -8002: "no permission",
    -8003: "no memory",
    -8004: "a checked C function failed",
    -8005: "internal error",
    -8006: "time-out",
    -8007: "no card with this number",
    -8008: "no such device",
    -8009: "the driver refused the call",
    -8010: "no message could be sent to the card",
    -8011: "no message came from the card",
    -8012: "not ready, as a card that dropped off the bus: reboot, or power cycle the node",
    -8013: "not available in a container",
    -8014: "a file could not be read or written",
    -8015: "its reset failed",
    -8017: "its firmware is being upgraded",
    -8020: "occupied",
    -8255: "not supported",
}
UNSUPPORTED = -8255
#: Answers that mean that there is nothing of the kind to tell: not supported; and 0, a function that the library lacks.
_LACKING = frozenset({UNSUPPORTED, 0})
#: Answers that stay what they are as long as the driver does: these, no permission, and not in a container.
FOR_GOOD = _LACKING | {-8002, -8013}
_TROUBLES = {
    -8002: Trouble.NOT_TOLD,
    -8003: Trouble.NOT_TOLD,
    -8007: Trouble.ABSENT,
    -8008: Trouble.LOST,
    -8012: Trouble.LOST,
    -8013: Trouble.NOT_TOLD,
    -8255: Trouble.NOT_TOLD,
}


def is_lacking(trouble: DriverError) -> bool:
    """Whether the card, or the library, has nothing of the kind that was asked for."""
    return trouble.trouble is Trouble.NOT_TOLD and trouble.number in _LACKING


def error(function: str, code: int) -> DriverError:
    """What a return code says."""
    text = f"{function} gives {code} ({_CODES.get(code, 'unknown')})"
    return DriverError(_TROUBLES.get(code, Trouble.FAILED), text, code)
