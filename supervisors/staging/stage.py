"""Copies what its order names: `python -I -m muster.supervisors.staging.stage ORDER PROGRESS`.

A step of a job, which runs as the job's user, in the working folder of the ranks. The order is a file, so that no
command line has URLs (`supervisors/job/steps.py`, `order`). What it has copied stays when it is killed, and another one
goes on from there. Exit codes: 73 no room, 75 another try may help, 1 anything else.
"""

import json
import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterable
from typing import Any, NoReturn

from muster.probes.kernel import process
from muster.supervisors.model.rules import boot_files, staging_urls
from muster.supervisors.model.staging_progress import OUTPUTS
from muster.supervisors.staging import credentials
from muster.supervisors.staging.copies import Copies
from muster.supervisors.staging.reporting import Reporting, write_line
from muster.supervisors.staging.troubles import NoRoomHere, NotCopyable, SecretMask, TryAgain

FAILED, NO_ROOM, TRY_AGAIN = 1, 73, 75
#: Of the grace of a step (steps.py, STEP_GRACE_S), in seconds: for what is to be taken back elsewhere.
GIVE_UP_S = 3.0
#: Of the job's environment: what is nobody's business.
_SECRET_VARIABLES = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_ACCESS_KEY_ID")


class Stage:
    """One step, from its order to its end."""

    def __init__(self, order: dict[str, Any], reporting: Reporting, mask: SecretMask) -> None:
        self._order, self._reporting, self._mask = order, reporting, mask
        self._copies: Copies | None = None
        #: What holds it ends this program: the copy that is done, or the signal. It is never given back.
        self._last_word = threading.Lock()
        # A thread waits for them. A handler would interrupt this one anywhere, also where it has the lock of something
        # that the end needs; and a second signal the end.
        signal.pthread_sigmask(signal.SIG_BLOCK, process.END_SIGNALS)
        threading.Thread(target=self._end, name="end", daemon=True).start()

    def run(self) -> int:
        """The exit code. Raises NotCopyable, TryAgain. Never returns where a signal has come before."""
        try:
            return self._run()
        finally:
            self._last_word.acquire()

    def _run(self) -> int:
        order, mask = self._order, self._mask
        mask.add(os.environ.get(name, "") for name in _SECRET_VARIABLES)
        mask.add(_behind_mark(order["copies"].values()))
        table = credentials.read(order["credentials"])
        mask.add(credentials.secrets(table))
        copies = self._copies = Copies(order["tries"], table, self._reporting)
        if path := staging_urls.twice(map(os.path.abspath, order["copies"])):
            raise NotCopyable(f"{path}: is named twice: give each URL a path of its own")
        here = {_absolute(path): url for path, url in order["copies"].items()}
        if order["step"] != OUTPUTS:
            copies.download(here)
            if command := order.get("command"):
                [folder] = here
                self._reporting.found(boot_files.beside(command, folder))
            return 0
        failed = copies.upload(here)
        if failed:
            self._reporting.failed("; ".join(failed))
        return FAILED if failed else 0

    def _end(self) -> NoReturn:
        number = signal.sigwait(process.END_SIGNALS)
        self._last_word.acquire()
        what = "no other output is delivered" if self._order["step"] == OUTPUTS else "what is copied stays"
        write_line(f"{self._order['step']}: ended by {signal.Signals(number).name}; {what}")
        if self._copies is not None:
            self._copies.give_up(GIVE_UP_S)
        os._exit(128 + number)


def _absolute(path: str) -> str:
    """A / at its end stays: it says that the path is a folder."""
    return os.path.abspath(path) + ("/" if path.endswith("/") and os.path.abspath(path) != "/" else "")


def _behind_mark(urls: Iterable[str]) -> Iterable[str]:
    """What is behind ? in URLs: a signature, perhaps."""
    return [url.partition("?")[2] for url in urls]


def _quiet() -> None:
    """What libraries tell might have secrets in it."""
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")


def main(words: list[str]) -> int:
    """Returns the exit code."""
    _quiet()
    mask = SecretMask()
    try:
        with open(words[0], encoding="utf-8") as file:
            order = json.load(file)
        progress = os.open(words[1], os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:
        what = f"cannot open {error.filename}: {error.strerror}"
        write_line(f"{what}: the job's user must be able to reach the state folder")
        return FAILED
    reporting = Reporting(progress, order["step"], mask)

    try:
        return Stage(order, reporting, mask).run()
    except (NotCopyable, TryAgain) as error:
        reporting.say(f"{order['step']}: {error}")
        reporting.failed(str(error))
        return NO_ROOM if isinstance(error, NoRoomHere) else TRY_AGAIN if isinstance(error, TryAgain) else FAILED
    except Exception as error:  # without a traceback, which shows what is in the libraries' hands
        reporting.say(f"{order['step']}: a defect of muster or of a library: {type(error).__name__}: {error}")
        reporting.failed(f"{type(error).__name__}: {error}")
        return FAILED


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)  # threads of libraries may still wait for a server
