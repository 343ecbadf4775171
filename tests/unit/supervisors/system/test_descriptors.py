import os
import resource
import subprocess
import sys
from typing import Any

import pytest

from muster.supervisors.system import descriptors
from muster.supervisors.system.spare import Spare
from tests.unit.supervision import in_own_process


def test_ranks_get_the_descriptors_that_the_nursery_was_given():
    def work() -> Any:
        resource.setrlimit(resource.RLIMIT_NOFILE, (100, 200))
        inherited = descriptors.limit_for_ranks()
        descriptors.raise_limit()
        raised = resource.getrlimit(resource.RLIMIT_NOFILE)
        given = descriptors.limit_for_ranks()
        resource.setrlimit(resource.RLIMIT_NOFILE, (90, 90))
        return [inherited, raised, given, descriptors.limit_for_ranks()]

    assert in_own_process(work, few_descriptors=True) == [None, [200, 200], [100, 200], [90, 90]]


_CLOSE = """
import os
from muster.supervisors.system import descriptors

def is_open(fd):
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True

kept, closed = os.pipe()
descriptors.close_all_but({0, 1, 2, kept})
print([fd for fd in range(1000) if is_open(fd)] == [0, 1, 2, kept])
"""


def test_all_descriptors_but_some_are_closed():
    with open("/dev/null") as passed_on:
        done = subprocess.run(
            [sys.executable, "-c", _CLOSE],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
            pass_fds=(passed_on.fileno(),),
        )
    assert done.stdout == "True\n"


def _as_who_may_not_raise(patch: pytest.MonkeyPatch) -> None:
    """Root may raise its hard limit: of others the kernel says so."""
    real = resource.setrlimit

    def setrlimit(number: int, pair: tuple[int, int]) -> None:
        if pair[1] > resource.getrlimit(number)[1]:
            raise ValueError("not allowed to raise maximum limit")
        real(number, pair)

    patch.setattr(resource, "setrlimit", setrlimit)


def test_a_limit_that_was_lowered_is_raised_again():
    def work() -> Any:
        with pytest.MonkeyPatch.context() as patch:
            _as_who_may_not_raise(patch)
            resource.setrlimit(resource.RLIMIT_NOFILE, (100, 200))
            descriptors.raise_limit()
            resource.setrlimit(resource.RLIMIT_NOFILE, (10, 200))
            return [
                descriptors.lowered_to(),
                descriptors.raise_again(),
                resource.getrlimit(resource.RLIMIT_NOFILE),
                descriptors.lowered_to(),
                descriptors.raise_again(),
            ]

    assert in_own_process(work, few_descriptors=True) == [10, True, [200, 200], None, False]


def test_a_hard_limit_that_may_not_be_raised_is_named():
    def work() -> Any:
        with pytest.MonkeyPatch.context() as patch:
            _as_who_may_not_raise(patch)
            resource.setrlimit(resource.RLIMIT_NOFILE, (100, 200))
            descriptors.raise_limit()
            resource.setrlimit(resource.RLIMIT_NOFILE, (10, 50))
            return [descriptors.raise_again(), descriptors.lowered_to(), descriptors.raise_again()]

    assert in_own_process(work, few_descriptors=True) == [True, 50, False]


def test_room_is_made_by_the_limit_first_and_then_by_the_reserve():
    def work() -> Any:
        with pytest.MonkeyPatch.context() as patch:
            _as_who_may_not_raise(patch)
            said: list[str] = []
            resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
            descriptors.raise_limit()
            spare = Spare(4, said.append)
            spare.on_exhausted = lambda: said.append("nothing more")
            resource.setrlimit(resource.RLIMIT_NOFILE, (50, 100))
            found = [spare.make_room(), len(said), spare.full, spare.make_room(), spare.full, spare.make_room()]
            return [*found, said[1:], len(os.listdir("/proc/self/fd")) < 50]

    assert in_own_process(work, few_descriptors=True) == [True, 1, True, True, False, False, ["nothing more"], True]
