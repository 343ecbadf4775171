"""Fake cards, processes that ask their library, and a process that may hold one."""

import contextlib

import pytest

from tests.conftest import running
from tests.fakes import FakeCards
from tests.fakes.asker import Asker


@pytest.fixture
def make(tmp_path):
    with contextlib.ExitStack() as stack:
        made = iter(range(99))

        def make(kind="nvidia", count=4, model="", **more):
            folder = tmp_path / f"cards{next(made)}"
            return stack.enter_context(FakeCards.for_test(folder, kind, count, model, **more))

        yield make


@pytest.fixture
def cards(make):
    return make()


@pytest.fixture
def asker():
    with contextlib.ExitStack() as stack:
        yield lambda cards, **more: stack.enter_context(contextlib.closing(Asker(cards, **more)))


@pytest.fixture
def sleeper():
    with running(["sleep", "600"]) as process:
        yield process
        process.kill()
