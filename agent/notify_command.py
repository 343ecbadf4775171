"""Hands a notification to a program of the operator's, on its standard input."""

import os
import signal
import threading

import anyio

from agent.notify_item import Item, NotTaken, Refused
from probes import watched
from probes.result import one_line
from probes.script import Ended, Script

#: Seconds that a killed program may take to be gone before its thread is left alone with it.
LINGER_S = 1.0
#: Exit code that says "never again with this one"; EX_DATAERR of sysexits.h.
REFUSED = 65
#: It gets this and what says which event it is, never the daemon's own variables: those may be secrets.
_ENV = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
_SHELL = "/bin/sh"
#: The first argument is the file that is to be standard input, the rest is what to run.
_FED = 'exec "$@" <"$0"'


async def run(argv: tuple[str, ...], item: Item, body: bytes, timeout_s: float) -> None:
    """Runs it once, with `body` on its standard input, as the daemon's user; after `timeout_s` it is killed, and what
    it has left behind in its process group always is. Raises NotTaken, Refused."""
    env = _ENV | {
        "MUSTER_EVENT": item.event,
        "MUSTER_JOB_ID": item.job,
        "MUSTER_STATE": item.attributes.get("state", ""),
    }
    fed = _Fed(argv, env, body)
    name = argv[0]
    try:
        with anyio.fail_after(timeout_s):
            ended = await watched.call(f"run {name}", fed.run, on_cancel=fed.kill, linger_s=LINGER_S)
    except TimeoutError:
        raise NotTaken(f"{name}: had not ended after {timeout_s:g} s and was killed (timeout_s in [notify])") from None
    except watched.StillHanging as error:
        raise NotTaken(str(error)) from None
    except OSError as error:
        raise NotTaken(f"{name}: cannot be executed: {error.strerror or error}") from None
    _judge(name, ended)


def _judge(name: str, ended: Ended) -> None:
    if ended.flooded:
        raise NotTaken(f"{name}: wrote without end and was killed")
    if ended.returncode == 0:
        return
    said = one_line(ended.stderr.decode(errors="replace").strip())[:200]
    how = f"ended by {_name(-ended.returncode)}" if ended.returncode < 0 else f"ended with code {ended.returncode}"
    text = f"{name}: {how}" + (f": {said}" if said else "")
    raise Refused(text) if ended.returncode == REFUSED else NotTaken(text)


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


class _Fed:
    """A script whose standard input has a text: in memory, so that it needs no disk. `run` in a thread, `kill` in any
    other."""

    def __init__(self, argv: tuple[str, ...], env: dict[str, str], text: bytes) -> None:
        self._argv = argv
        self._env = env
        self._text = text
        self._lock = threading.Lock()
        self._script: Script | None = None
        self._killed = False

    def run(self) -> Ended:
        """As Script.run."""
        fd = os.memfd_create("event", os.MFD_CLOEXEC)
        try:
            with open(fd, "wb", closefd=False) as file:
                file.write(self._text)
            # A script's own standard input is /dev/null; a shell opens the other one and becomes the program.
            script = Script(_SHELL, self._env, ("-c", _FED, f"/proc/{os.getpid()}/fd/{fd}", *self._argv))
            with self._lock:
                self._script = script
                if self._killed:
                    script.kill()
            return script.run()
        finally:
            os.close(fd)

    def kill(self) -> None:
        """As Script.kill."""
        with self._lock:
            self._killed = True
            if self._script is not None:
                self._script.kill()
