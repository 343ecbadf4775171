"""What a command does if the daemon has no slot for its call (agent/api/slots.py): it says so, waits and tries again.
If the daemon refuses its token, it gets another one."""

import random
import time
from collections.abc import Callable

from muster.agent.cli.exits import CallFailed, CommandFailed
from muster.agent.cli.printing import note
from muster.agent.text import span

#: Seconds of waiting after which a command says so, and until it says so again.
SAY_S = 1.0
SAY_AGAIN_S = 60.0
#: Reasons of a call whose token is too old, or of a daemon before this one; and of one that has none, as that of a
#: daemon that was too busy to give one. And so often another one is asked for.
NO_GOOD_TOKEN = ("TOKEN_REFUSED", "IDENTITY_NEEDED")
_TOKENS = 3


class SlotWait:
    """Of one call, from its first try on."""

    def __init__(self, seconds: float | None = None, say: Callable[[str], None] = note) -> None:
        """`seconds`: for how long; None: until there is a slot. `say` is given a line for stderr."""
        self._seconds = seconds
        self._say = say
        self._began: float | None = None
        self._say_at = 0.0
        self._said = False
        self._renewed = 0

    def renews(self, failure: CommandFailed) -> bool:
        """Whether the call failed only because of its token, which a new one mends: the next try has it."""
        if not isinstance(failure, CallFailed) or failure.reason not in NO_GOOD_TOKEN or self._renewed >= _TOKENS:
            return False
        self._renewed += 1
        return True

    @staticmethod
    def helps(failure: CommandFailed) -> bool:
        """Whether the call failed only because there was no slot."""
        return (
            isinstance(failure, CallFailed) and failure.status == "RESOURCE_EXHAUSTED" and "listener" in failure.facts
        )

    def wait_or_raise(self, failure: CommandFailed) -> None:
        """Pauses, for another try; raises `failure` where it has another reason, or the time is over. Blocks."""
        if self.renews(failure):
            return
        if not isinstance(failure, CallFailed) or not self.helps(failure):
            raise failure
        now = time.monotonic()
        if self._began is None:
            self._began, self._say_at = now, now + SAY_S
        # Not all that wait ask at the same moment.
        until = now + (failure.retry_after or 1.0) * random.uniform(1.0, 1.3)
        if self._seconds is not None and until > self._began + self._seconds:
            raise failure
        if self._say_at <= until:
            time.sleep(max(0.0, self._say_at - now))
            facts = failure.facts
            setting = f" ({facts['setting']})" if "setting" in facts else ""
            count = f"{facts['limit']} " if facts.get("limit") else ""
            full = f"{facts['listener']} serves {count}{facts.get('what', 'calls')}, its limit{setting}"
            self._say(f"waiting for a free slot: {full}; no action needed")
            self._said, self._say_at = True, self._say_at + SAY_AGAIN_S
        time.sleep(max(0.0, until - time.monotonic()))

    def over(self) -> None:
        """The call has its slot."""
        if self._said and self._began is not None:
            self._say(f"got a slot after {span(time.monotonic() - self._began)}")
        self._began, self._said, self._renewed = None, False, 0
