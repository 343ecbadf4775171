import resource
from typing import Any

import pytest

from muster.supervisors.launch import limits
from muster.supervisors.launch.limits import RESOURCES
from muster.supervisors.model.spec_fields import UNLIMITED
from tests.unit.supervision import in_own_process

NUMBERS = {name: getattr(resource, f"RLIMIT_{name.upper()}") for name in RESOURCES}


def apply_and_look(*wanted: tuple[str, int], before: dict[str, tuple[int, int]] | None = None) -> Any:
    """The limits of a process of its own behind `apply`, or the sentence that says why not."""

    def work() -> Any:
        for name, pair in (before or {}).items():
            resource.setrlimit(NUMBERS[name], pair)
        try:
            limits.apply(wanted)
        except ValueError as error:
            return str(error)
        return {name: list(resource.getrlimit(number)) for name, number in NUMBERS.items()}

    return in_own_process(work)


def test_every_limit_of_a_spec_is_one_of_the_kernel():
    given = {name: list(resource.getrlimit(number)) for name, number in NUMBERS.items()}
    assert apply_and_look() == given
    sizes = {"nofile": 64, "memlock": 1 << 16, "stack": 1 << 22, "core": 0, "nproc": 500}
    assert apply_and_look(*sizes.items()) == {name: [size, size] for name, size in sizes.items()}


def test_what_is_not_asked_for_stays():
    before = {"core": (5, 10), "nofile": (64, 128)}
    found = apply_and_look(("core", 7), before=before)
    assert (found["core"], found["nofile"]) == ([7, 7], [64, 128])


def test_no_limit_is_no_limit():
    """-1 in a spec is the kernel's own infinity; whoever may not have it is told so."""
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    found = apply_and_look(("core", UNLIMITED))
    if isinstance(found, str):
        assert hard != resource.RLIM_INFINITY
        assert found.startswith("core -1: ")
    else:
        assert found["core"] == [resource.RLIM_INFINITY] * 2


@pytest.mark.parametrize(("value", "shown"), [(1 << 40, str(1 << 40)), (UNLIMITED, "-1")])
def test_a_limit_that_may_not_be_set_is_named_with_what_is_allowed(value, shown):
    """Descriptors without end are nobody's, not even root's (fs.nr_open)."""
    text = apply_and_look(("core", 0), ("nofile", value), before={"nofile": (64, 128)})
    assert text.startswith(f"nofile {shown}: ")
    assert text.endswith("the daemon's own hard limit is 128")


def test_an_unlimited_hard_limit_is_shown_so():
    def work() -> str:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(resource, "getrlimit", lambda _: (0, resource.RLIM_INFINITY))
            patch.setattr(resource, "setrlimit", _refuse)
            with pytest.raises(ValueError) as caught:
                limits.apply((("stack", 5),))
            return str(caught.value)

    assert in_own_process(work) == "stack 5: not allowed; the daemon's own hard limit is unlimited"


def _refuse(*_: object) -> None:
    raise ValueError("not allowed")
