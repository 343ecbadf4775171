"""The program `muster`, as it is installed."""

import gc

#: Objects that are made before Python looks for garbage. The imports of one command make more than a hundred times the
#: usual 700, none of it garbage, and looking costs a tenth of the command's time.
_OBJECTS = 50_000


def main() -> None:
    """Runs the command line of this process, and ends it."""
    gc.set_threshold(_OBJECTS, 20, 100)
    from muster.agent.cli import main as command  # only now: these are the imports

    command.main()
