"""Following the kernel's log: wait, read what is new, say why where it cannot be read."""

import time

import anyio
import anyio.lowlevel

from muster.probes.checks.result import CheckResult, Code
from muster.probes.kernel import kmsg
from muster.probes.kernel.kmsg import KernelLog, KernelRecord
from muster.probes.node.node_check import About, NodeCheck

CHECK = NodeCheck("kernel-log", "the kernel's log can be read", 300.0, (Code.KERNEL_LOG_UNREADABLE,))
#: A log that cannot be read is tried again so often; without anything new a wait ends after so long, in seconds.
RETRY_S, QUIET_S = 60.0, 30.0
#: A flood of lines is read so often at most, in seconds: 500 records each time, and what else there is at once after.
PACE_S = 0.2


class Following:
    """The log of one Looker. Somebody who waits for records, and looks beside it: never both read."""

    def __init__(self, log: KernelLog) -> None:
        self._log = log
        self._more = True
        self._open = False
        self._tried = float("-inf")
        #: Somebody waits for what is new; looks leave it to him.
        self.followed = False
        #: Why the log cannot be read; empty: it can, or was not tried.
        self.trouble = ""

    @property
    def position(self) -> kmsg.Position | None:
        """The position after the last record that was read; None before the first record."""
        return self._log.position

    @property
    def lost(self) -> int:
        """Records that the kernel overwrote before they were read."""
        return self._log.lost

    async def next(self) -> list[KernelRecord]:
        """The next records, as soon as there are some; none after a while, or where the log cannot be read."""
        self.followed = True
        if not self._ready():
            await anyio.sleep(RETRY_S)
            return []
        if self._more:
            # A checkpoint: a log that is never at its end must not keep the loop.
            await anyio.lowlevel.checkpoint()
        else:
            with anyio.move_on_after(QUIET_S):
                await anyio.wait_readable(self._log.fileno())
                await anyio.sleep(PACE_S)
        return self.read()

    def read(self) -> list[KernelRecord]:
        """What there is now. Does not wait, and is a matter of milliseconds: the log is memory of the kernel's."""
        if not self._ready():
            return []
        try:
            records, self._more = self._log.read()
        except OSError as error:
            self._fail(error)
            return []
        return records

    @property
    def more(self) -> bool:
        """Whether the end of the log was not reached yet."""
        return self._open and self._more

    def close(self) -> None:
        """Closes the log."""
        self._log.close()
        self._open = False

    def _ready(self) -> bool:
        if self._open:
            return True
        now = time.monotonic()
        if self.trouble and now - self._tried < RETRY_S:
            return False
        self._tried = now
        try:
            self._log.open()
        except OSError as error:
            self._fail(error)
            return False
        self._open, self._more, self.trouble = True, True, ""
        return True

    def _fail(self, error: OSError) -> None:
        self.trouble = kmsg.unreadable(error, self._log.path)
        self.close()

    def judge(self) -> CheckResult:
        """Whether it can be read. Records that were overwritten unread are reported, and are no fault of the node."""
        say = About(CHECK.item)
        if self.trouble:
            return say.found(Code.KERNEL_LOG_UNREADABLE, self.trouble, "unreadable", "readable")
        lost = f", {self.lost} records were overwritten before muster read them" if self.lost else ""
        return say.ok(f"it can be read{lost}")
