"""The copies of one step: looks at all of them before the first byte, then copies file by file, with further tries."""

import functools
import threading
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

from muster.probes.kernel.backoff import Backoff
from muster.probes.kernel.dataclass import dataclass
from muster.supervisors.model.rules import staging_urls
from muster.supervisors.staging import staged_file
from muster.supervisors.staging.local_files import LocalSink, LocalSource, Source, refuse_without_room
from muster.supervisors.staging.remote_files import FileSystem, RemoteSink, RemoteSource
from muster.supervisors.staging.reporting import Reporting
from muster.supervisors.staging.staged_file import StagedFile
from muster.supervisors.staging.troubles import FileChanged, NotCopyable, TryAgain

#: Files at a time, and seconds between two looks at how far they are.
AT_A_TIME, LOOK_S = 4, 0.5
#: Seconds for the server to forget what was sent in vain.
GIVE_UP_S = 10.0
#: Pauses between tries, in seconds; tries of a file that changes.
FIRST_PAUSE_S, LONGEST_PAUSE_S, CHANGES = 1.0, 60.0, 2

T = TypeVar("T")


@dataclass(slots=True)
class Copy:
    """One entry of the order: `what` it copies, for people."""

    what: str
    source: Source
    sink: LocalSink | RemoteSink
    items: list[StagedFile]


class Copies:
    """All of one step."""

    def __init__(self, tries: int, table: dict[str, dict[str, Any]], reporting: Reporting) -> None:
        """`table`: the credentials."""
        self._tries, self._table, self._reporting = tries, table, reporting
        self._over = threading.Event()
        self._sinks: list[LocalSink | RemoteSink] = []

    def download(self, wanted: dict[str, str]) -> None:
        """By path the URL. Raises NotCopyable, with nothing of it left here, and TryAgain."""
        copies: list[Copy] = []
        try:
            for path, url in wanted.items():
                copies.append(self._persist(self._opened, path, url))
            rooms: dict[int, int] = {}
            places: dict[int, str] = {}
            for copy in copies:
                assert isinstance(copy.sink, LocalSink)
                device, size, place = copy.sink.prepare(copy.items)
                rooms[device] = rooms.get(device, 0) + size
                places[device] = place
            refuse_without_room(rooms, places)
            self._reporting.expect([item.size or 0 for copy in copies for item in copy.items])
            for copy in copies:
                self._copy(copy)
        except NotCopyable:
            for copy in reversed(copies):
                if isinstance(copy.sink, LocalSink):
                    copy.sink.undo()
            raise

    def upload(self, wanted: dict[str, str]) -> list[str]:
        """By path the URL. Each is tried, whatever becomes of the others. Returns a sentence for each that failed."""
        failed = []
        for path, url in wanted.items():
            try:
                copy = self._persist(self._delivery, path, url)
                self._reporting.expect([item.size or 0 for item in copy.items])
                self._copy(copy)
            except (NotCopyable, TryAgain) as error:
                self.give_up(GIVE_UP_S)
                self._over.clear()
                failed.append(f"{path}: {error}")
                self._reporting.say(f"{path} -> {staging_urls.shown(url)}: not delivered: {error}")
        return failed

    def give_up(self, seconds: float) -> None:
        """Ends the copies of outputs that are not through, with nothing of them left there: within so many seconds,
        else some of it stays."""
        self._over.set()
        sinks = self._sinks

        def end() -> None:
            for sink in sinks:
                sink.give_up(self._reporting.say)

        thread = threading.Thread(target=end, daemon=True)
        thread.start()
        thread.join(seconds)
        self._sinks = []  # only now: a signal in the middle of this does it once more, in another thread

    def _opened(self, path: str, url: str) -> Copy:
        source: Source
        if staging_urls.scheme(url) == "file":
            source = LocalSource(url.partition("://")[2])
        else:
            source = RemoteSource(FileSystem(url, self._table))
        items = source.items(self._reporting.say)
        staged_file.refuse_unsafe(items, source.shown)
        return Copy(f"{staging_urls.shown(url)} -> {path}", source, LocalSink(path, source), items)

    def _delivery(self, path: str, url: str) -> Copy:
        source = LocalSource(path)
        items = source.items(self._reporting.say)
        sink: LocalSink | RemoteSink
        if staging_urls.scheme(url) == "file":
            sink = LocalSink(url.partition("://")[2], source)
            self._sinks = [sink]
            device, size, place = sink.prepare(items)
            refuse_without_room({device: size}, {device: place})
        else:
            sink = RemoteSink(FileSystem(url, self._table), source)
            self._sinks = [sink]
            sink.prepare(items)
        return Copy(f"{path} -> {staging_urls.shown(url)}", source, sink, items)

    def _copy(self, copy: Copy) -> None:
        """Raises the first NotCopyable or TryAgain."""
        self._reporting.begin(copy.what)
        self._over.clear()
        with ThreadPoolExecutor(AT_A_TIME) as pool:
            left: set[Future[None]] = {pool.submit(self._one, copy, item) for item in copy.items}
            while left:
                done, left = wait(left, LOOK_S, FIRST_COMPLETED)
                self._reporting.write()
                failed = next((error for future in done if (error := future.exception()) is not None), None)
                if failed is not None:
                    self._over.set()
                    pool.shutdown(cancel_futures=True)
                    raise failed
        self._reporting.done(copy.what, len(copy.items), sum(item.size or 0 for item in copy.items))

    def _one(self, copy: Copy, item: StagedFile) -> None:
        tries, follow = Tries(self._tries, self._over, self._reporting), self._reporting.follow()
        seen = item

        def at(position: int) -> None:
            if self._over.is_set():
                raise TryAgain(f"{copy.what}: stopped, because another file failed")
            tries.reached = max(tries.reached, position)
            follow(position)

        def work() -> None:
            nonlocal seen
            try:
                if copy.sink.has(seen):
                    at(seen.size or 0)
                elif isinstance(copy.sink, LocalSink):
                    copy.sink.write(seen, copy.source, at)
                else:
                    copy.sink.write(seen, at)
            except FileChanged:
                seen = copy.source.look(item)
                raise

        tries.run(work)
        self._reporting.file_done()

    def _persist(self, work: Callable[[str, str], Copy], path: str, url: str) -> Copy:
        return Tries(self._tries, self._over, self._reporting).run(functools.partial(work, path, url))


class Tries:
    """Further tries of one thing, after pauses that grow. A try that brings not one byte more counts as failed, in a
    row."""

    def __init__(self, most: int, over: threading.Event, reporting: Reporting) -> None:
        """`over`: there is to be no other try."""
        self._most, self._over, self._reporting = most, over, reporting
        self._backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        self._failures = self._changes = self._before = 0
        #: The furthest byte so far.
        self.reached = 0

    def run(self, work: Callable[[], T]) -> T:
        """Raises NotCopyable, and TryAgain when all tries are used up."""
        while True:
            try:
                return work()
            except FileChanged as error:
                self._changes += 1
                if self._changes >= CHANGES:
                    raise NotCopyable(f"{error}: copy it when nobody writes to it") from None
                self._again(error)
            except TryAgain as error:
                self._again(error)

    def _again(self, error: TryAgain) -> None:
        if self.reached > self._before:
            self._failures, self._before = 0, self.reached
            self._backoff.reset()
        self._failures += 1
        if self._failures >= self._most:
            raise TryAgain(f"{error} ({self._failures} tries in a row)") from None
        pause = self._backoff.next()
        self._reporting.retried(str(error), pause)
        if self._over.wait(pause):
            raise error
