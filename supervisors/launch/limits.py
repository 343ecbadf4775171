"""The limits of ranks, as a spec names them."""

import resource

from muster.supervisors.model.spec_fields import PROCESS_LIMITS, UNLIMITED

#: Limits of a process by their names in a spec.
RESOURCES: dict[str, int] = {name: getattr(resource, f"RLIMIT_{name.upper()}") for name in PROCESS_LIMITS}


def apply(limits: tuple[tuple[str, int], ...]) -> None:
    """In a rank to be, as the daemon's user. Raises ValueError that names the limit which this user may not set."""
    for name, value in limits:
        number = RESOURCES[name]
        wanted = resource.RLIM_INFINITY if value == UNLIMITED else value
        try:
            resource.setrlimit(number, (wanted, wanted))
        except (ValueError, OSError) as error:
            _, hard = resource.getrlimit(number)
            allowed = "unlimited" if hard == resource.RLIM_INFINITY else hard
            raise ValueError(f"{name} {value}: {error}; the daemon's own hard limit is {allowed}") from None
