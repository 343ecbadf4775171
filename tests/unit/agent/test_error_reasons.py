from collections import Counter
from collections.abc import Iterator

from muster.agent import errors
from muster.agent.api.boundary import Defect
from muster.client.error_reasons import REASONS


def raised(base: type[errors.ApiError] = errors.ApiError) -> Iterator[tuple[str, str]]:
    for one in base.__subclasses__():
        if one is not errors.StartupError:
            yield one.code, one.reason
            yield from raised(one)


def test_the_table_has_each_reason_that_the_daemon_gives_and_no_other():
    assert (Defect.code, Defect.reason) in raised()
    assert {(row.code, row.reason) for row in REASONS if row.reason} == {*raised()}


def test_each_error_is_explained_once():
    assert set(Counter((row.code, row.reason) for row in REASONS).values()) == {1}
