"""When a soak says that something grows."""

import os
import random
import subprocess

import pytest

from benchmarks import processes
from tests.conftest import eventually

_NOISE = random.Random(1)


@pytest.mark.parametrize(
    ("what", "values", "grows"),
    [
        ("the same all the time", [7.0] * 60, False),
        ("a leak", [50 + i / 10 for i in range(60)], True),
        ("a leak among noise", [50 + i / 10 + _NOISE.uniform(-1, 1) for i in range(60)], True),
        ("noise", [50 + _NOISE.uniform(-3, 3) for _ in range(60)], False),
        ("what warms up", [20.0, 30, 40, 45, 48, 50] + [50.0] * 54, False),
        ("a cache that fills and is full", [50 + min(i, 25) / 4 for i in range(60)], False),
        ("what is given back", [50.0, 90] * 30, False),
        ("less than is allowed", [50 + i / 60 for i in range(60)], False),
        ("what shrinks", [50 - i / 10 for i in range(60)], False),
        ("only begun", [50.0], False),
    ],
)
def test_what_grows(what, values, grows):
    assert processes.grows(values, 3.0) is grows


def test_one_more_descriptor_that_stays_is_no_leak_and_one_after_the_other_is():
    assert not processes.grows([33.0] * 30 + [34.0] * 30, 1)
    assert processes.grows([33.0 + i // 10 for i in range(60)], 1)


def test_what_a_process_holds():
    before = processes.held(os.getpid())
    # `false` ends; nobody waits for it as long as the `with` lasts.
    with subprocess.Popen(["false"], stdin=subprocess.PIPE) as ended, subprocess.Popen(["cat"], stdin=subprocess.PIPE):
        eventually(lambda: processes.held(os.getpid()).zombies == before.zombies + 1)
        now = processes.held(os.getpid())
        assert now.children == before.children + 1
        assert now.descriptors == before.descriptors + 2
        assert ended.pid in processes.descendants(os.getpid())
    assert processes.held(os.getpid()).children == before.children
    assert 0 < now.pss <= now.rss * 1.1
