"""What the programs say where muster-client is not installed: an upgrade by pip from a version that was one
distribution removes the client's files again, and pip never asks whether a package that it removes is needed."""

import sys

from muster.agent import __version__


def explain(error: ModuleNotFoundError) -> None:
    """Ends the program if it is the client that is missing; else raises the error."""
    if (error.name or "").split(".")[:2] not in (["muster", "client"], ["muster", "v1"]):
        raise error
    wanted = f"muster-client=={__version__}"
    pip = f"{sys.executable} -m pip install --force-reinstall --no-deps {wanted}"
    print(f"muster: the package {error.name} of {wanted} is missing: install it: {pip}", file=sys.stderr)
    sys.exit(1)
