"""The loop of `muster kube`: asks the daemon for its verdict, and keeps the Node object as that says.

What the object is comes from the API server alone, so a loop that was killed goes on where it was. A graver verdict is
written at once; a better one once it has lasted. What cannot be written is tried again, later and later.
"""

import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from muster.agent.cli.commands.kube.node_api import CUT, GONE, KubeFailed, NodeApi
from muster.agent.cli.commands.kube.node_marks import KubeChange, KubeMarks, changes, farewell, is_older, shown
from muster.agent.cli.fitness.gate import NOT_FIT, Fitness
from muster.probes.kernel.backoff import Backoff
from muster.probes.kernel.dataclass import dataclass

#: Seconds: between two rounds of writes at least; between two tries that fail, first and at most; at most for the end.
_GAP_S, _FIRST_S, _MOST_S, _END_S = 2.0, 1.0, 60.0, 20.0
#: A watch that breaks sooner is one that does not work.
_LASTED_S = 30.0
#: How often a write is repeated at once because somebody else changed the object.
_CONFLICTS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class KubePace:
    """Seconds between two questions to the daemon, and for which a better verdict must last before it counts."""

    every_s: float = 10.0
    settle_s: float = 60.0


class NodeView:
    """The object as it is now: read, then watched in a thread of its own. `woken` is called at each change."""

    def __init__(self, api: NodeApi, woken: Callable[[], None], tell: Callable[[str], None]) -> None:
        self._api, self._woken, self._tell = api, woken, tell
        self._node: dict[str, Any] | None = None

    @property
    def node(self) -> dict[str, Any] | None:
        """None until it has been read."""
        return self._node

    def begin(self) -> None:
        """Starts the thread, which ends with the process."""
        threading.Thread(target=self._follow, name="node", daemon=True).start()

    def take(self, node: dict[str, Any]) -> None:
        """What a write has returned."""
        self._node = node

    def refresh(self) -> dict[str, Any]:
        """Reads it now. Raises KubeFailed."""
        self._node = node = self._api.read()
        return node

    def _follow(self) -> None:
        pause, told = Backoff(_FIRST_S, _MOST_S), ""
        while True:
            began = time.monotonic()
            try:
                node = self.refresh()
                self._woken()
                while True:
                    version, since = node["metadata"]["resourceVersion"], time.monotonic()
                    for node in self._api.follow(version):
                        if self._node is None or not is_older(node, self._node):
                            self.take(node)
                            self._woken()
                    if time.monotonic() - since < _LASTED_S:  # not again at once: it may be no API server that answers
                        raise KubeFailed(f"the watch of node {self._api.name} ended at once: {CUT}", GONE)
            except Exception as error:  # also of ours: without this thread the loop hears of nothing
                failure = error if isinstance(error, KubeFailed) else KubeFailed(f"a defect of muster: {error!r}")
                if time.monotonic() - began > _LASTED_S:
                    pause, told = Backoff(_FIRST_S, _MOST_S), ""
                # 410 is how a server says that what it kept of the past is over.
                if str(failure) != told and not failure.gone:
                    self._tell(told := str(failure))
                time.sleep(max(pause.next(), failure.retry_after))


class KubeLoop:
    """One loop for one node. `ask` returns the daemon's verdict, and blocks for seconds at most; `tell` writes a line
    for people, `warn` one about trouble."""

    def __init__(
        self,
        api: NodeApi,
        ask: Callable[[], Fitness],
        marks: KubeMarks,
        pace: KubePace,
        tell: Callable[[str], None],
        warn: Callable[[str], None],
        *,
        dry: bool = False,
    ) -> None:
        self._api, self._ask, self._marks, self._pace = api, ask, marks, pace
        self._tell, self._warn, self._dry = tell, warn, dry
        #: The one queue that a signal handler may put into; True: end.
        self._wakes: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._view = NodeView(api, lambda: self._wakes.put(False), warn)
        #: The verdict of the last round that was carried out.
        self.verdict = -1
        #: The one of the last answer, and since when it is the same, in seconds of a monotonic clock.
        self._latest, self._since = -1, 0.0
        self._trouble = ""

    def end(self) -> None:
        """Lets `run` return. May be called by a signal handler."""
        self._wakes.put(True)

    def once(self) -> None:
        """One round, without waiting for a better verdict to last. Raises KubeFailed."""
        self._write(self._view.refresh(), self._ask())

    def run(self) -> None:
        """Until `end`."""
        self._view.begin()
        pause = Backoff(_FIRST_S, _MOST_S)
        while True:
            wait = self._pace.every_s
            node = self._view.node
            if node is not None:
                try:
                    self._round(node)
                    pause.reset()
                    self._say_trouble("")
                except KubeFailed as failure:
                    self._say_trouble(str(failure))
                    wait = max(pause.next(), failure.retry_after)
            if self._ended(wait):
                return

    def leave(self, how: str) -> None:
        """What is left on the object: farewell in node_marks. Tries for some seconds."""
        if how == "keep":
            return
        until = time.monotonic() + _END_S
        while True:
            try:
                for change in farewell(self._view.refresh(), how, self._marks, time.time()):
                    self._apply(change)
                return
            except KubeFailed as failure:
                if time.monotonic() + _FIRST_S > until:
                    self._warn(f"{failure}; what muster wrote there stays")
                    return
                time.sleep(_FIRST_S)

    def _round(self, node: Mapping[str, Any]) -> None:
        found, now = self._ask(), time.monotonic()
        if found.code != self._latest:
            self._latest, self._since = found.code, now
        before = shown(node, self._marks)
        lasts = now - self._since >= self._pace.settle_s
        if found.code == NOT_FIT or before in (None, found.code) or lasts:
            self._write(node, found)
        self.verdict = found.code

    def _write(self, node: Mapping[str, Any], found: Fitness) -> None:
        for _ in range(_CONFLICTS):
            try:
                for change in changes(node, found, self._marks, time.time()):
                    self._apply(change)
                return
            except KubeFailed as failure:
                if not failure.conflict:
                    raise
                node = self._view.refresh()
        raise KubeFailed(f"node {self._api.name} changes all the time: nothing was written")

    def _apply(self, change: KubeChange) -> None:
        if not self._dry:
            self._view.take(self._api.patch(change.patch, status=change.status))
        if change.text:
            self._tell(f"{'would write: ' if self._dry else ''}{change.text}")

    def _ended(self, wait: float) -> bool:
        """Waits for so long, or until something happens; but so that writes are _GAP_S apart."""
        began = time.monotonic()
        while True:
            left = wait - (time.monotonic() - began)
            try:
                if self._wakes.get(timeout=max(left, 0.0)):
                    return True
            except queue.Empty:
                return False
            wait = min(wait, _GAP_S)

    def _say_trouble(self, text: str) -> None:
        if text and text != self._trouble:
            self._warn(text)
        elif self._trouble and not text:
            self._tell("the API server takes changes again")
        self._trouble = text
