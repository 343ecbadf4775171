"""The daemon's own log."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from muster.agent.host import log_setup


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    structlog.reset_defaults()


@pytest.mark.parametrize("form", ["json", "console"])
def test_an_exception_is_reported_without_the_values_of_variables(form: str, tmp_path: Path) -> None:
    out = (tmp_path / "log").open("w")
    log_setup.configure("debug", form, out)  # type: ignore[arg-type]  # one of the two

    def fails(_env: dict[str, str]) -> None:
        raise KeyError("nothing")

    try:
        fails({"TOKEN": "hunter" + "2"})
    except KeyError as error:
        structlog.get_logger("a").error("a call failed", exc_info=error)
    log_setup.own_log(out.fileno()).settle(60)
    said = Path(out.name).read_text()
    out.close()
    assert "KeyError" in said and "in fails" in said
    assert "hunter2" not in said
    if form == "json":
        assert json.loads(said)["event"] == "a call failed"
