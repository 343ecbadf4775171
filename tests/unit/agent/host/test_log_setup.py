"""The daemon's own log."""

import io
import json
from collections.abc import Iterator

import pytest
import structlog

from muster.agent.host import log_setup


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    structlog.reset_defaults()


@pytest.mark.parametrize("form", ["json", "console"])
def test_an_exception_is_reported_without_the_values_of_variables(form: str) -> None:
    out = io.StringIO()
    log_setup.configure("debug", form, out)  # type: ignore[arg-type]  # one of the two

    def fails(_env: dict[str, str]) -> None:
        raise KeyError("nothing")

    try:
        fails({"TOKEN": "hunter" + "2"})
    except KeyError as error:
        structlog.get_logger("a").error("a call failed", exc_info=error)
    assert "KeyError" in out.getvalue() and "in fails" in out.getvalue()
    assert "hunter2" not in out.getvalue()
    if form == "json":
        assert json.loads(out.getvalue())["event"] == "a call failed"
