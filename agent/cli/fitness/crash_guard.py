"""A driver's library (NVML, DCMI) may crash the process that calls it: `muster check` then goes on without it."""

import contextlib
import ctypes
import faulthandler
import os
import signal
import sys
from types import FrameType

import click

#: How a library ends a process.
CRASHES = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE})
#: What the shell, `timeout` or a scheduler send to the command; ^C reaches both processes by itself.
_PASSED_ON = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_PR_SET_PDEATHSIG = 1


def fork() -> str:
    """Forks. The child returns "" and does the work; the parent waits, and leaves as the child did.

    The parent only returns where a driver's library crashed the child, with a sentence that names the call: it then
    does the work itself, without the driver. The stack is on stderr. To be called before there are threads. Without a
    process to be had it returns "", and a crash is the end, with the stack on stderr.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # closed
            stream.flush()
    try:
        reading, writing = os.pipe()
        parent, child = os.getpid(), os.fork()
    except OSError:
        with contextlib.suppress(RuntimeError, OSError, AttributeError):
            faulthandler.enable(all_threads=False)
        return ""
    if child == 0:
        os.close(reading)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(128 + signal.SIGTERM)
        faulthandler.enable(writing, all_threads=False)
        return ""
    os.close(writing)
    return _waited(child, reading)


def _waited(child: int, reading: int) -> str:
    """The parent's part of `fork`."""

    def pass_on(number: int, frame: FrameType | None) -> None:
        os.kill(child, number)  # it is ours, and not waited for yet

    before = {number: signal.signal(number, pass_on) for number in _PASSED_ON}
    before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.SIG_IGN)
    _, status = os.waitpid(child, 0)
    for number, handler in before.items():
        signal.signal(number, handler)
    if os.WIFEXITED(status):
        raise click.exceptions.Exit(os.WEXITSTATUS(status))
    os.set_blocking(reading, False)  # a process that the child left behind may still have the other end
    with open(reading, "rb", buffering=0) as file:
        stack = (file.read(1 << 16) or b"").decode(errors="replace")
    how = signal.Signals(os.WTERMSIG(status))
    if how in CRASHES:
        from muster.agent.node import driver_crashes

        with contextlib.suppress(OSError, ValueError, AttributeError):
            print(stack, file=sys.stderr, flush=True)
        library, function = driver_crashes.blamed(stack)
        if library:
            return f"{library} crashed `muster check` in {function} ({how.name}): reload the driver, or reboot"
    _leave_by(how)
    return ""


def _leave_by(how: signal.Signals) -> None:
    """Who waits for this process is to see what ended the other."""
    with contextlib.suppress(OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # one core file is enough
        signal.signal(how, signal.SIG_DFL)
    os.kill(os.getpid(), how)
    os._exit(128 + how)
