"""What `muster node`, `muster top` and `muster check` show of cards and ranks, with a real daemon and fake cards."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from muster.v1 import job_pb2, node_pb2, telemetry_pb2
from tests.conftest import Daemon, eventually
from tests.fakes import FakeCards

#: No check finds anything by itself: what is shown is what the driver says.
CONFIG = """
[health]
policy = "off"
[cards]
driver_deadline_s = 1.0
[telemetry]
readings_s = 0.1
health_s = 0.2
holders_s = 0.2
processes_s = 3600
"""


@pytest.fixture
def cards(tmp_path: Path) -> Iterator[FakeCards]:
    with FakeCards.for_test(tmp_path / "cards", "nvidia", 4) as made:
        yield made


@pytest.fixture
def daemon(make_daemon: Callable[..., Daemon], cards: FakeCards) -> Daemon:
    daemon = make_daemon(CONFIG, cards.env)
    eventually(lambda: len(read(daemon)) == 4 and all(c.reading.HasField("power_watts") for c in read(daemon)))
    return daemon


def read(daemon: Daemon) -> list[Any]:
    return list(daemon.nodes.GetNode(node_pb2.GetNodeRequest(), timeout=60).node.cards)


def healths(daemon: Daemon) -> list[str]:
    return [card.health for card in read(daemon)]


def job(daemon: Daemon, job_id: str) -> Any:
    (found,) = daemon.telemetry.GetTelemetry(telemetry_pb2.GetTelemetryRequest(job_id=job_id), timeout=60).jobs
    return found


def looked_at(daemon: Daemon, job_id: str) -> list[Any]:
    return [rank for rank in job(daemon, job_id).ranks if rank.processes]


def sleeping(daemon: Daemon, *indices: int) -> Any:
    spec = job_pb2.JobSpec(command=["sleep", "600"], cards=job_pb2.CardRequest(indices=indices))
    started = daemon.jobs.Start(job_pb2.StartRequest(spec=spec), timeout=60).job
    daemon.until_running(started.job_id)
    return daemon.get(started.job_id)


def row(text: str, index: int) -> str:
    return next(line for line in text.splitlines() if line.split()[:1] == [str(index)])


# --- health -----------------------------------------------------------------------------------------------------------


def test_a_card_that_does_not_answer_is_unknown_before_a_check_finds_it(daemon: Daemon, cards: FakeCards):
    eventually(lambda: healths(daemon) == ["OK"] * 4)
    cards[2].lose()
    # UNKNOWN until a look, which may come at any time, says that it is lost.
    eventually(lambda: [h == "OK" for h in healths(daemon)] == [True, True, False, True])
    assert {"UNKNOWN", "CRITICAL"} & set(row(daemon.cli("node").stdout, 2).split())
    assert {"UNKNOWN", "CRITICAL"} & set(row(daemon.cli("top").stdout, 2).split())
    cards[2].back()
    eventually(lambda: healths(daemon) == ["OK"] * 4, 60)


@pytest.mark.slow
def test_all_cards_are_unknown_while_the_driver_is_gone(daemon: Daemon, cards: FakeCards):
    cards.unload()
    eventually(lambda: healths(daemon) == ["UNKNOWN"] * 4)
    eventually(lambda: not any(card.reading.HasField("utilization") for card in read(daemon)))
    cards.load()
    eventually(lambda: healths(daemon) == ["OK"] * 4, 60)


def test_one_function_that_hangs_takes_the_card_and_one_that_fails_a_reading(daemon: Daemon, cards: FakeCards):
    """As docs/guides/fake-cards.md says."""
    cards[1].fail("nvmlDeviceGetPowerUsage", 3)

    def one_reading_is_missing() -> bool:
        card = read(daemon)[1].reading
        return card.HasField("utilization") and not card.HasField("power_watts") and healths(daemon) == ["OK"] * 4

    eventually(one_reading_is_missing)
    cards[3].hang("nvmlDeviceGetUtilizationRates")
    eventually(lambda: healths(daemon)[3] == "UNKNOWN" and not read(daemon)[3].HasField("reading"))
    eventually(lambda: healths(daemon)[:3] == ["OK"] * 3)
    cards[3].clear()


# --- drills -----------------------------------------------------------------------------------------------------------


def test_a_drill_is_marked_wherever_it_is_shown(daemon: Daemon):
    mark = "(injected for a drill)"
    made = daemon.cli("check", "inject", "GPU_ROW_REMAP_FAILED", "--card", "1")
    assert made.returncode == 0, made.stderr
    assert "a drill of" in made.stdout and mark in made.stdout
    shown = daemon.cli("node").stdout
    assert mark in shown
    assert "CRITICAL*" in row(shown, 1)
    assert shown.splitlines()[-1] == "* from a condition injected for a drill"
    cleared = daemon.cli("check", "clear", "GPU_ROW_REMAP_FAILED")
    assert cleared.returncode == 0 and mark in cleared.stdout
    assert "*" not in daemon.cli("node").stdout
    assert mark in daemon.cli("check", "inject", "FS_READ_ONLY", "--reason", "a drill").stdout


# --- ranks ------------------------------------------------------------------------------------------------------------


def test_the_ranks_of_a_young_job_are_shown_at_once_and_looked_at_soon(daemon: Daemon):
    """The next look would come in an hour."""
    eventually(lambda: daemon.telemetry.GetTelemetry(telemetry_pb2.GetTelemetryRequest(), timeout=60).mem_usage)
    for index in range(2):  # the second one finds processes looked at just now
        started = sleeping(daemon, index)
        assert [(r.rank, r.device, r.pid) for r in job(daemon, started.job_id).ranks] == [
            (0, index, started.ranks[0].pid)
        ]
        (rank,) = eventually(partial(looked_at, daemon, started.job_id))
        assert rank.memory_bytes > 0 and rank.HasField("at")


def test_with_telemetry_off_the_ranks_are_known_and_nothing_of_them(
    make_daemon: Callable[..., Daemon], cards: FakeCards
):
    daemon = make_daemon(CONFIG.replace("[telemetry]", "[telemetry]\nenabled = false"), cards.env)
    started = sleeping(daemon, 0, 1)
    found = job(daemon, started.job_id)
    assert [(r.rank, r.device, r.pid) for r in found.ranks] == [(r.rank, r.device, r.pid) for r in started.ranks]
    assert not any(r.HasField("at") or r.HasField("memory_bytes") or r.processes for r in found.ranks)
    text = daemon.cli("top").stdout
    assert "processes" not in text
    line = next(line for line in text.splitlines() if str(started.ranks[1].pid) in line)
    assert line.split()[3:] == ["-"] * 6
    assert max(len(line) for line in text.splitlines()) <= 80
