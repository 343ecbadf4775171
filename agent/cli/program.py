"""The program `muster`, as it is installed."""

from muster.agent import leave_out_here

#: Objects that are made before Python looks for garbage. The imports of one command make more than a hundred times the
#: usual 700, none of it garbage, and looking costs a tenth of the command's time.
_OBJECTS = 50_000


def main() -> None:
    """Runs the command line of this process, and ends it."""
    leave_out_here()
    import gc
    import signal

    from muster.agent.host.early_signals import is_init, leave_when_asked

    if is_init():  # a container may be stopped in the imports, too
        leave_when_asked()
    gc.set_threshold(_OBJECTS, 20, 100)
    # Ctrl-C in the imports ends the process as it ends any other, without a traceback: nothing has begun.
    raises = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if raises:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from muster.agent.cli import main as command  # only now: these are the imports

    if raises:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    command.main()
