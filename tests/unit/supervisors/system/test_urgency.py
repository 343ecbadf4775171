import os
from typing import Any

import pytest

from muster.supervisors.system.urgency import Urgency, urgent
from tests.unit.supervision import in_own_process


def _may() -> bool:
    def work() -> bool:
        try:
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
        except OSError:
            return False
        return True

    return bool(in_own_process(work))


def _priority() -> int:
    return os.sched_getparam(0).sched_priority


def test_an_urgent_process_is_so_for_a_while_and_its_children_are_not():
    if not _may():
        pytest.skip("real-time needs CAP_SYS_NICE, or RLIMIT_RTPRIO")

    def work() -> Any:
        with urgent():
            inside, child = _priority(), in_own_process(_priority)
        return [inside, child, _priority(), os.sched_getscheduler(0)]

    assert in_own_process(work) == [1, 0, 0, os.SCHED_OTHER]


def test_two_that_overlap_leave_nothing_behind():
    def work() -> Any:
        one, two = Urgency(), Urgency()
        one.begin()
        two.begin()
        one.end()
        two.begin()
        two.end()
        one.end()
        return [_priority(), os.sched_getscheduler(0)]

    assert in_own_process(work) == [0, os.SCHED_OTHER]


def test_who_may_not_goes_on():
    def work() -> int:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "sched_setscheduler", _refuse)
            with urgent():
                return _priority()

    assert in_own_process(work) == 0


def _refuse(*_: object) -> None:
    raise PermissionError(1, "Operation not permitted")
