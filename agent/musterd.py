"""The program `musterd`, as it is installed."""

from muster.agent import leave_out_here


def main() -> None:
    """Runs the command line of this process, and ends it."""
    leave_out_here()
    import gc
    import signal

    from muster.agent.host.pid_one import is_init, leave_when_asked

    if is_init():  # a container may be stopped in the imports, too
        leave_when_asked()
    # The imports make a hundred thousand objects, none of it garbage; `heap.collect` has Python look for some again.
    gc.disable()
    from muster.probes.kernel.process import USER_SIGNALS

    # A handler and not SIG_IGN, which the programs that we execute would inherit.
    for number in USER_SIGNALS:
        signal.signal(number, lambda *_: None)
    from muster.agent import daemon_command  # only now: these are the imports

    daemon_command.main()


if __name__ == "__main__":
    main()
