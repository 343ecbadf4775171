"""A driver's library (NVML, DCMI) may crash the process that calls it: `muster check` then goes on without it."""

import contextlib
import faulthandler
import os
import signal
import sys
import threading

import click

from muster.probes.active import bounded

#: How a library ends a process.
CRASHES = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE})
#: What the parent waits for: the child's end, and what the command may be sent.
_WAITED_FOR = {
    *(signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP),
    *(signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2),
}
#: Seconds between two looks at the child where no signal tells of it; and until it is sent what it may have got itself.
_LOOK_S, _ITSELF_S = 1.0, 0.5


def fork() -> str:
    """Forks. The child returns "" and does the work; the parent waits, and leaves as the child did.

    The parent only returns where a driver's library crashed the child, with a sentence that names the call: it then
    does the work itself, without the driver. The stack is on stderr. Where there are threads already, or no process is
    to be had, it returns "" without a fork: a crash is the end then, with the stack on stderr.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # closed
            stream.flush()
    if threading.active_count() > 1:
        return _unguarded()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # where it is ignored, nobody learns how a child ended
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED_FOR)
    try:
        return _forked()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _unguarded() -> str:
    with contextlib.suppress(RuntimeError, OSError, AttributeError):  # stderr is closed
        if not faulthandler.is_enabled():
            faulthandler.enable(all_threads=False)
    return ""


def _forked() -> str:
    try:
        reading, writing = os.pipe()
        parent, child = os.getpid(), os.fork()
    except OSError:
        return _unguarded()
    if child:
        os.close(writing)
        return _ended(_status(child), reading)
    os.close(reading)
    with contextlib.suppress(OSError):
        bounded.end_with_parent(signal.SIGTERM)
    if os.getppid() != parent:
        os._exit(128 + signal.SIGTERM)
    faulthandler.enable(writing, all_threads=False)
    return ""


def _status(child: int) -> int:
    """Waits for it. What the command is sent meanwhile is passed on, but for what a terminal sends to both. `timeout`
    and others send to the whole group, which does not show: who ends soon has got it itself."""
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return status
        told = signal.sigtimedwait(_WAITED_FOR, _LOOK_S)
        by_kernel = told is not None and told.si_code > 0  # sigaction(2): SI_KERNEL and the like
        if told is None or told.si_signo == signal.SIGCHLD or by_kernel:
            continue
        signal.sigtimedwait({signal.SIGCHLD}, _ITSELF_S)
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return status
        os.kill(child, told.si_signo)  # it is ours, and not waited for yet


def _ended(status: int, reading: int) -> str:
    """The rest of the parent's part of `fork`."""
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
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {how})
    os.kill(os.getpid(), how)
    os._exit(128 + how)
