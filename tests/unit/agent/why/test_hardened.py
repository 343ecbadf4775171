"""What the report says of a job whose own hardening does not allow what it tried."""

from typing import Any

import pytest

from muster.agent.why.causes.advice import advise
from muster.agent.why.causes.probable_cause import causes
from muster.agent.why.facts import Facts
from muster.supervisors.model.hardening import Hardening
from muster.supervisors.model.lifecycle import Verdict
from muster.supervisors.model.states import Outcome
from tests.unit.why_facts import facts, rank, sign, victim

EARLY = Verdict(1, "rank 0 exited with code 1", 0, recommendation="FAIL", recommendation_reason="early")


def failed(name: str, line: str, **hardening: Any) -> Facts:
    ranks = (rank(0, Outcome.EXITED, code=1), victim(1))
    return facts(*ranks, signs=(sign(name, line=line),), verdict=EARLY, hardening=Hardening(**hardening))


@pytest.mark.parametrize(
    ("name", "line", "hardening", "said", "option"),
    [
        (
            *("read-only", "OSError: [Errno 30] Read-only file system: '/usr/lib/x.so'", {"read_only": ("/usr",)}),
            *("with /usr read-only", "--read-only /usr"),
        ),
        (
            *("read-only", "touch: cannot touch '/data/../usr/x': Read-only file system", {"read_only": ("/usr",)}),
            *("with /usr read-only", "--read-only /usr"),
        ),
        (
            *("file-not-found", "python3: can't open file '/tmp/train.py': [Errno 2] No such file or directory"),
            *({"private_tmp": "0123"}, "a /tmp of its own", "--private-tmp no"),
        ),
        (
            *("cuda-mps", "RuntimeError: Error 805: MPS client failed to connect to the MPS control daemon"),
            *({"private_tmp": "0123"}, "a /tmp of its own", "--private-tmp no"),
        ),
        (
            *("setuid-program", 'sudo: The "no new privileges" flag is set, which prevents sudo from running as root.'),
            *({"no_new_privs": True}, "without new privileges", "--no-new-privs no"),
        ),
    ],
)
def test_what_nothing_else_explains_is_the_jobs_own(
    name: str, line: str, hardening: dict[str, Any], said: str, option: str
) -> None:
    known = failed(name, line, **hardening)
    (cause, *_) = found = causes(known)
    assert said in cause.evidence[0] and option in cause.steps[0]
    advice = advise(known, found)
    assert advice.action == "FAIL" and said in advice.reason


@pytest.mark.parametrize(
    ("name", "line", "hardening", "said"),
    [
        ("read-only", "OSError: [Errno 30] Read-only file system", {"read_only": ("/usr", "/data")}, "/usr, /data"),
        (
            *("permission", "PermissionError: [Errno 1] Operation not permitted: 'x'"),
            *({"capabilities": (), "no_new_privs": True}, "without new privileges, with the capabilities none"),
        ),
        ("too-many-processes", "fork: retry: Resource temporarily unavailable", {"pids": 100}, "at most 100 processes"),
    ],
)
def test_what_may_have_other_reasons_is_a_hint(name: str, line: str, hardening: dict[str, Any], said: str) -> None:
    known = failed(name, line, **hardening)
    (cause, *_) = found = causes(known)
    assert said in cause.evidence[0]
    assert said not in advise(known, found).reason


@pytest.mark.parametrize(
    ("name", "line", "hardening"),
    [
        ("read-only", "OSError: [Errno 30] Read-only file system: '/usr2/x'", {"read_only": ("/usr",)}),
        ("read-only", "OSError: [Errno 30] Read-only file system: '/usr/x'", {}),
        ("file-not-found", "FileNotFoundError: [Errno 2] No such file: '/data/x'", {"private_tmp": "0123"}),
        ("permission", "PermissionError: [Errno 13] Permission denied: '/data/x'", {"no_new_privs": True}),
        ("no-space", "OSError: [Errno 28] No space left on device: '/usr/x'", {"read_only": ("/usr",)}),
    ],
)
def test_other_errors_say_nothing_of_it(name: str, line: str, hardening: dict[str, Any]) -> None:
    (cause, *_) = causes(failed(name, line, **hardening))
    assert not any("was started" in text for text in cause.evidence)
