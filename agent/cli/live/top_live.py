"""`muster top` at a terminal: looks at the daemon, keys, and the screen that follows from both."""

import os
import select
import shutil
import signal
import time
from types import FrameType

from muster.agent.cli.client.calls import DaemonConnection, may_pass
from muster.agent.cli.exits import CallFailed, CommandFailed, NoDaemon
from muster.agent.cli.live import top_screen
from muster.agent.cli.live.recent import KEPT_S, METRICS, PAST_STEP_S, Recent
from muster.agent.cli.live.status_line import clock
from muster.agent.cli.live.top_choice import TopChoice, keys
from muster.agent.cli.terminal import LiveScreen, Terminal, restored
from muster.agent.text import clean
from muster.v1 import telemetry_pb2

#: Columns where the terminal does not tell; seconds that the past may take, and a look: keys wait for it.
_WIDTH, _PAST_S, _LOOK_S = 80, 5.0, 3.0


class TopLive:
    """For the length of the command."""

    def __init__(self, connection: DaemonConnection, job: str) -> None:
        self._connection, self._job = connection, job
        self._recent, self._choice = Recent(), TopChoice()
        self._terminal, self._screen = Terminal(), LiveScreen(live=True)
        #: Whether Ctrl-Z is handled: where somebody ignores it, so do we.
        self._stops = signal.getsignal(signal.SIGTSTP) is signal.SIG_DFL
        self._now: telemetry_pb2.GetTelemetryResponse | None = None
        #: Since when no daemon has answered, and why.
        self._silent_since, self._why = 0.0, ""

    def run(self, interval: float, looks: int) -> None:
        """Until `q`, or so many looks, if `looks` is not 0. Raises CommandFailed and KeyboardInterrupt."""
        self._past()
        restored(self._take, lambda: self._looks(interval, looks), self._give_back)

    def _looks(self, interval: float, most: int) -> None:
        done = 0
        while not self._choice.over:
            self._look()
            done += 1
            if most and done >= most:
                return
            self._wait(interval)

    def _past(self) -> None:
        """Of the cards. A daemon that cannot tell it shows what comes."""
        start = time.time() - KEPT_S
        request = telemetry_pb2.GetHistoryRequest(metrics=METRICS)
        # Of an hour, the daemon would choose steps of a minute: several columns of a curve.
        request.step.FromSeconds(PAST_STEP_S)
        request.start.FromNanoseconds(round(start * 1e9))
        try:
            self._recent.fill(self._connection.call(self._connection.telemetry.GetHistory, request, _PAST_S))
        except CommandFailed:
            pass

    def _look(self) -> None:
        """A daemon that goes away meanwhile is waited for, for as long as somebody looks: the screen says so."""
        request, method = telemetry_pb2.GetTelemetryRequest(job_id=self._job), self._connection.telemetry.GetTelemetry
        try:
            if self._now is None:
                self._now = self._connection.patiently(method, request)
            else:
                self._now = self._connection.call(method, request, _LOOK_S)
            self._silent_since = 0.0
            self._recent.take(self._now)
        except (CallFailed, NoDaemon) as failure:
            if self._now is None or not may_pass(failure):
                raise
            self._silent_since, self._why = self._silent_since or time.time(), failure.message
        self._draw()

    def _draw(self) -> None:
        if self._now is not None:
            columns, rows = shutil.get_terminal_size((_WIDTH, 24))
            silent = ""
            if self._silent_since:
                silent = f"NO ANSWER for {clock(time.time() - self._silent_since)}: {clean(self._why)}"
            size = (columns, max(rows - 1, 5))
            self._screen.draw(top_screen.screen(self._now, self._recent, self._choice, *size, silent=silent))

    def _wait(self, seconds: float) -> None:
        """Until the next look; each key has its effect at once."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and not self._choice.over:
            if not self._terminal.there:
                time.sleep(left)
            elif select.select([0], [], [], left)[0]:
                typed = os.read(0, 256)
                if not typed:  # the terminal was closed
                    self._choice.over = True
                for key in keys(typed):
                    if self._now is not None:
                        self._choice.press(key, self._now)
                self._draw()

    def _take(self) -> None:
        """The terminal: keys come one by one, and Ctrl-Z leaves it as it was."""
        self._screen.show()
        self._terminal.keys()
        if self._stops:
            signal.signal(signal.SIGTSTP, self._stop)

    def _give_back(self) -> None:
        if self._stops:  # first: where somebody goes on behind Ctrl-Z, the terminal is not taken once more
            signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        self._terminal.restore()
        self._screen.leave()

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._terminal.restore()
        self._screen.leave()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, self._stop)
        self._screen.show()
        self._terminal.keys()
        self._draw()
