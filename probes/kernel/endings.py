"""How a process ended, as a sentence."""

import os
import signal


def signal_name(number: int) -> str:
    """SIGKILL for 9; "signal 34" for a real-time one."""
    known = number in signal.valid_signals() and number < signal.SIGRTMIN
    return signal.Signals(number).name if known else f"signal {number}"


def describe(status: int | None) -> str:
    """ "exited with code 7", "was killed by SIGSEGV (core dumped)". `status`: as wait(2) gives it; None: unknown."""
    if status is None:
        return "ended with an unknown status"
    if os.WIFSIGNALED(status):
        return f"was killed by {signal_name(os.WTERMSIG(status))}" + (" (core dumped)" if os.WCOREDUMP(status) else "")
    return f"exited with code {os.WEXITSTATUS(status)}"


def describe_code(code: int) -> str:
    """The same for a code as `subprocess` gives it: -9 for SIGKILL."""
    return f"exited with code {code}" if code >= 0 else f"was killed by {signal_name(-code)}"
