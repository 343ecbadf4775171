"""The program `musterd`, as it is installed."""

from muster.agent import leave_out_here


def main() -> None:
    """Runs the command line of this process, and ends it."""
    leave_out_here()
    from muster.agent.host.early_signals import is_init, leave_to_ranks, leave_when_asked

    if is_init():  # a container may be stopped in the imports, too
        leave_when_asked()
    leave_to_ranks()
    import gc

    # The imports make a hundred thousand objects, none of it garbage; `heap.collect` has Python look for some again.
    gc.disable()
    from muster.agent import daemon_command  # only now: these are the imports

    daemon_command.main()


if __name__ == "__main__":
    main()
