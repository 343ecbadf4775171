import resource
from typing import Any

import pytest

from muster.supervisors.launch import limits
from muster.supervisors.launch.limits import RESOURCES
from muster.supervisors.model.spec_fields import UNLIMITED
from tests.unit.supervision import in_own_process

NUMBERS = {name: getattr(resource, f"RLIMIT_{name.upper()}") for name in RESOURCES}


def test_every_limit_of_a_spec_is_one_of_the_kernel():
    assert sorted(NUMBERS) == ["core", "memlock", "nofile", "nproc", "stack"]
    for name, number in NUMBERS.items():
        assert limits.of(name, 7)[:2] == (number, 7)


def test_no_limit_is_the_kernels_infinity():
    assert limits.of("core", UNLIMITED)[1] == resource.RLIM_INFINITY


@pytest.mark.parametrize(("hard", "shown"), [(128, "128"), (resource.RLIM_INFINITY, "unlimited")])
def test_our_own_hard_limit_is_shown(hard: int, shown: str):
    def work() -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(resource, "getrlimit", lambda _: (0, hard))
            return limits.of("nofile", 5)[2]

    assert in_own_process(work) == shown
