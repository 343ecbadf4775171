"""The program `musterd`, as it is installed."""

import gc

from muster.agent import lazy_import

#: What structlog would show errors with, where that is installed: it takes as long as gRPC, and we show them plainly.
_UNWANTED = ("rich", "better_exceptions")


def main() -> None:
    """Runs the command line of this process, and ends it."""
    # The imports make a hundred thousand objects, none of it garbage; `heap.collect` has Python look for some again.
    gc.disable()
    with lazy_import.without(*_UNWANTED):
        import structlog  # noqa: F401  (before everybody else does)
    from muster.agent import daemon_command  # only now: these are the imports

    daemon_command.main()


if __name__ == "__main__":
    main()
