"""Which processes came since the last look, without a listing of /proc where the kernel's counter of pids tells.

Linux gives out pids in ascending order and begins anew at the top. /proc/loadavg ends with the newest one. So whatever
came between two looks has a pid between the two readings; so have threads, which are no processes. A listing of 10,000
processes takes 13 ms of CPU, the counter and a few new processes a hundredth of that.

The counter is believed only after a listing has confirmed it: every pid that was new to the listing lay between the
readings, and there was one. A container may show the /proc of another PID namespace or a made-up loadavg, and a
restored checkpoint chooses its pids. Each listing confirms or refutes the counter again.
"""

from muster.probes.kernel.dataclass import dataclass
from muster.probes.kernel.procfs import Procfs

#: New pids since the last look, at most, that are tried one by one: more of them cost as much as a listing.
MOST_TRIED = 1000
#: Every process is looked at each so many looks: a pid that was given out again is seen then at the latest. On a node
#: of more than `FEW` processes that is rarer in proportion, so that these looks cost the same per hour on any node.
FULL_EACH = 20
FEW = 2000


@dataclass(slots=True)
class _Reading:
    """One look: the counter (None: it is of no use here), what came by it, and all pids where they were listed."""

    counter: int | None
    came: set[int]
    listed: set[int] | None = None


class Arrivals:
    """Who came, from one look to the next. Not for several threads at once."""

    def __init__(self, procfs: Procfs) -> None:
        self._procfs = procfs
        self._last = _Reading(None, set())
        self._now = self._last
        #: Of the last listing.
        self._listed: set[int] = set()
        self._listed_at: int | None = None
        self._confirmed = False
        self._looks = 0

    def look(self, every: bool) -> set[int]:
        """Pids of processes that came since the last look that was `taken`; with `every`, and each `FULL_EACH` looks,
        of all processes. Raises OSError where /proc cannot be listed, or there are no descriptors to read it with."""
        full = every or self._looks % (FULL_EACH * max(1, len(self._listed) // FEW)) == 0
        counter, before = self._procfs.newest_pid(), self._last.counter
        usable = self._confirmed and counter is not None and before is not None and 0 <= counter - before <= MOST_TRIED
        if usable and not full:
            assert counter is not None and before is not None
            tried = range(before + 1, counter + 1)
            self._now = _Reading(counter, {pid for pid in tried if self._procfs.is_process(pid)})
            # Those of the last look once more: a parent may have ended between the two reads, and with it the line.
            return self._now.came | self._last.came
        listed = self._procfs.pids()
        self._now = _Reading(counter, set(), listed)
        return listed if full else listed - self._listed

    def taken(self) -> None:
        """What the last look gave was dealt with. Without it, the next look begins at the same place."""
        self._looks += 1
        self._last = self._now
        if self._now.listed is not None:
            self._confirm(self._now.listed, self._now.counter)
            self._listed, self._listed_at = self._now.listed, self._now.counter

    def _confirm(self, listed: set[int], counter: int | None) -> None:
        after, begin = self._procfs.newest_pid(), self._listed_at
        if counter is None or after is None or begin is None:
            self._confirmed = False
        elif begin <= counter <= after:  # not over the top
            new = listed - self._listed
            if new:
                self._confirmed = min(new) > begin and max(new) <= after
