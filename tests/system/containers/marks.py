"""Marks of the modules here."""

import pytest

from tests.system.containers import engine

_WHY = engine.missing()
MARKS = [
    pytest.mark.system,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("containers"),
    pytest.mark.skipif(bool(_WHY), reason=_WHY or "there are containers"),
]
#: A rank that saves what it has when it is asked to end, and takes a moment for it.
SAVES = "trap 'sleep 1; echo saved; exit 3' TERM; echo up; while :; do sleep 0.05; done"
