"""Work that blocks, in threads: the one place where the daemon hands any of it to one."""

from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

import anyio
import structlog
from anyio import CapacityLimiter, to_thread

from muster.probes.kernel.backoff import Backoff

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

#: Seconds between two tries to start a thread, at first and at most; and between two words about it.
_PAUSE_S, _PAUSE_MOST_S, _SAY_S = 0.02, 1.0, 60.0

_log = structlog.get_logger(__name__)


class _Word:
    """Said at most once a minute, however many wait."""

    def __init__(self) -> None:
        self._at = float("-inf")

    def say(self, error: RuntimeError) -> None:
        now = anyio.current_time()
        if now - self._at >= _SAY_S:
            self._at = now
            _log.warning("threads.none_to_be_had", error=f"{error}: raise the limit of processes; trying again")


_word = _Word()


class Pool:
    """Threads for one kind of work: so many at once, and each piece of work under the same rules.

    `at_once`: how many (None: as many as anyio gives to all others). `abandon_on_cancel`: a cancelled caller does not
    wait for the function, for what may hang in the kernel. `here_after`: as in `run`.
    """

    def __init__(
        self, at_once: int | None = None, *, abandon_on_cancel: bool = False, here_after: float | None = None
    ) -> None:
        self._limiter = None if at_once is None else CapacityLimiter(at_once)
        self._abandon_on_cancel, self._here_after = abandon_on_cancel, here_after

    async def run(self, function: Callable[[*Ts], T], *args: *Ts, here_after: float | None = None) -> T:
        """The result of `function(*args)`; raises what the function raises.

        Where the node has no thread to give (a limit of processes that jobs use up, too) it waits until there is one,
        or until the caller is cancelled: the daemon must not end because somebody else's fork bomb is at its limit.
        `here_after`: seconds after which the work is done on the loop instead, which serves nobody meanwhile. For what
        must not wait, above all for ending the processes that use the threads up.
        """
        here_after = self._here_after if here_after is None else here_after
        begun = False

        def work(*given: *Ts) -> T:
            nonlocal begun
            begun = True
            return function(*given)

        pause, since = Backoff(_PAUSE_S, _PAUSE_MOST_S), anyio.current_time()
        while True:
            try:
                return await to_thread.run_sync(
                    work, *args, limiter=self._limiter, abandon_on_cancel=self._abandon_on_cancel
                )
            except RuntimeError as error:
                if begun or "start new thread" not in str(error):
                    raise
                _word.say(error)
            if here_after is not None and anyio.current_time() - since >= here_after:
                return function(*args)
            await anyio.sleep(pause.next())


_ANY = Pool()


async def run(function: Callable[[*Ts], T], *args: *Ts, here_after: float | None = None) -> T:
    """Work without a pool of its own: see `Pool.run`."""
    return await _ANY.run(function, *args, here_after=here_after)
