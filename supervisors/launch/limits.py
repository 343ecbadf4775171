"""The limits of ranks, as a spec names them."""

import resource

from muster.supervisors.model.spec_fields import PROCESS_LIMITS, UNLIMITED

#: Limits of a process by their names in a spec.
RESOURCES: dict[str, int] = {name: getattr(resource, f"RLIMIT_{name.upper()}") for name in PROCESS_LIMITS}


def of(name: str, value: int) -> tuple[int, int, str]:
    """Number and value of a limit for setrlimit(2), and our own hard limit as a word."""
    number = RESOURCES[name]
    _, hard = resource.getrlimit(number)
    allowed = "unlimited" if hard == resource.RLIM_INFINITY else str(hard)
    return number, resource.RLIM_INFINITY if value == UNLIMITED else value, allowed
