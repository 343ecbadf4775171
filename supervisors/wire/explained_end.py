"""The epilog of a failed job waits a moment for the daemon to explain the verdict: its environment then holds the
recommendation that all others read. Without a daemon it does not wait."""

from typing import NamedTuple

from muster.supervisors.model.states import EXPLAINED, State
from muster.supervisors.system.loop import Alarm, Loop
from muster.supervisors.wire.control import ControlClient, Handler, JournalServer
from muster.supervisors.wire.messages import Message

#: The longest wait, in seconds.
WAIT_S = 2.0


class CauseFound(NamedTuple):
    """What the daemon finds out about a job that failed. `cause`: a sentence."""

    recommendation: str
    cause: str


class ExplainedEnd:
    """Of one job. `found` is None until the daemon has explained it."""

    def __init__(self, loop: Loop, control: JournalServer) -> None:
        self.found: CauseFound | None = None
        self._control = control
        self._wait = Alarm(loop)
        self._waits = False

    def handlers(self) -> dict[str, Handler]:
        """What the daemon sends over the control socket."""
        return {"explained": self._on_explained}

    def is_due(self, state: State) -> bool:
        """Whether the explanation of a job that ends so may still come; from the first call on, WAIT_S at most."""
        if self.found is not None or state not in EXPLAINED or not self._control.is_watched:
            return False
        if not self._waits:
            self._waits = True
            self._wait.set(WAIT_S)
        return self._wait.is_set

    def _on_explained(self, message: Message, _: ControlClient) -> Message:
        told = [message.get(name) for name in ("recommendation", "cause")]
        texts = [text for text in told if isinstance(text, str) and "\0" not in text]
        if len(texts) < len(told):
            return {"ok": False, "error": "recommendation and cause must be text"}
        self.found = CauseFound(*texts)
        return {"ok": True}
