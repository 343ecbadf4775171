"""The daemon's own log."""

import importlib
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from muster.agent.host import log_setup
from tests.unit.waiting import until


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


def test_a_client_that_goes_away_as_it_is_answered_is_no_error(tmp_path: Path) -> None:
    out = (tmp_path / "log").open("w")
    log_setup.configure("info", "json", out)
    failed = importlib.import_module("grpc._cython.cygrpc").ExecuteBatchError
    unsent, misused = failed('Failed "execute_batch": (...)'), failed("Failed grpc_call_start_batch: 8")
    for error in (unsent, misused, ValueError("another")):
        try:
            raise error
        except Exception:
            logging.getLogger("grpc._cython.cygrpc").exception("raised by servicer method")
    log_setup.own_log(out.fileno()).settle(60)
    out.close()
    first, second = [json.loads(line) for line in Path(out.name).read_text().splitlines()]
    assert first["level"] == second["level"] == "error"
    assert "start_batch: 8" in first["exception"] and "ValueError: another" in second["exception"]


def test_lines_that_a_full_disk_does_not_take_are_counted(tmp_path: Path) -> None:
    out = (tmp_path / "log").open("w")
    log_setup.configure("info", "json", out)
    log, written = log_setup.own_log(out.fileno()), os.dup(out.fileno())
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, out.fileno())
    for number in range(3):
        structlog.get_logger("a").info("refused", number=number)
    log.settle(60)
    assert "No space left on device; the daemon's log lacks 3 line(s)" in log.trouble
    os.dup2(written, out.fileno())
    structlog.get_logger("a").info("taken")
    log.settle(60)
    assert not log.trouble
    out.close()
    said = [json.loads(line) for line in Path(out.name).read_text().splitlines()]
    assert [(line["event"], line.get("lines")) for line in said] == [("log.lost", 3), ("taken", None)]
    os.close(full)
    os.close(written)


async def test_a_pipe_that_nobody_reads_holds_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_setup, "STUCK_S", 1e-9)
    monkeypatch.setattr(log_setup, "MAX_WAITING", 1 << 20)
    read, write = os.pipe()
    log = log_setup.OwnLog(write)
    log.lost_line = lambda lines, since: f"lost {lines}"
    line = "x" * (1 << 14)
    for _ in range(100):
        log.msg(line)
    await until(lambda: "nobody reads it" in log.trouble)
    assert "lacks" in log.trouble
    found = b""
    with os.fdopen(read, "rb", buffering=0) as reader:
        while found.count(b"\n") < 63:
            found += reader.read(1 << 16)
        log.settle(60)
        log.msg("last")
        log.settle(60)
        os.close(write)
        found += reader.read()
    *whole, lost, last = found.decode().splitlines()
    assert set(whole) == {line} and last == "last"
    assert lost == f"lost {100 - len(whole)}"
    assert not log.trouble
