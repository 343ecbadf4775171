"""Counts of many hours, over a restart of the daemon and over a reboot."""

from collections.abc import Callable

import msgspec
import pytest

from muster.probes import typed
from muster.probes.checks.result import Code
from muster.probes.node import infiniband, kept_counts
from muster.probes.node.infiniband import Port
from muster.probes.node.kept_counts import KeptCounts
from muster.probes.node.memory import Memory
from muster.probes.node.nics import CHANGES
from muster.probes.node.node_settings import NodeSettings

HOUR = 3600.0
CODE = 0x80E01801  # twice a day is too often
SETTINGS = NodeSettings()
UP = Port("mlx5_0/1", True, "ACTIVE, LinkUp", 400.0)
DOWN = Port("mlx5_0/1", False, "DOWN, Polling", 400.0)
Restart = Callable[[Memory], tuple[Memory, float]]


def restarted(memory: Memory) -> tuple[Memory, float]:
    """The next daemon a minute later, and the time since the boot then."""
    return through_file(memory, ("one", 10 * HOUR + 60, 1e9 + 60)), 10 * HOUR + 60


def rebooted(memory: Memory) -> tuple[Memory, float]:
    """An hour later, five minutes after a boot."""
    return through_file(memory, ("two", 300.0, 1e9 + HOUR)), 300.0


def through_file(memory: Memory, then: tuple[str, float, float]) -> Memory:
    data = msgspec.json.encode(kept_counts.kept(memory, "one", 10 * HOUR, 1e9))
    after = Memory()
    kept_counts.restore(after, typed.decode(data, KeptCounts), *then)
    return after


@pytest.mark.parametrize("restart", [restarted, rebooted])
def test_an_error_code_that_comes_again(restart: Restart) -> None:
    memory = Memory()
    memory.repeats.look("GPU/7", [CODE], 9 * HOUR)
    memory.repeats.look("GPU/7", [], 9.5 * HOUR)
    after, now = restart(memory)
    assert after.repeats.too_often("GPU/7", now) == {}
    after.repeats.look("GPU/7", [CODE], now)
    assert after.repeats.too_often("GPU/7", now) == {CODE: 2}
    assert after.repeats.too_often("GPU/7", now + 23 * HOUR) == {}, "the first is older than a day by now"


@pytest.mark.parametrize("since", [1, 5 * HOUR, 30 * HOUR])
def test_an_error_code_that_is_still_there_after_a_restart_came_once(since: float) -> None:
    memory = Memory()
    memory.repeats.look("NPU-7", [CODE], 10 * HOUR - since)
    after, now = restarted(memory)
    after.repeats.look("NPU-7", [CODE], now)
    assert after.repeats.too_often("NPU-7", now) == {}
    after.repeats.look("NPU-7", [], now + 30)
    after.repeats.look("NPU-7", [CODE], now + 60)
    assert after.repeats.too_often("NPU-7", now + 60) == ({} if since > 24 * HOUR else {CODE: 2})


def test_an_error_code_that_no_look_could_see_for_a_while_came_once() -> None:
    repeats = Memory().repeats
    repeats.look("NPU-7", [CODE], HOUR)
    repeats.look("NPU-7", [CODE], 3 * HOUR)
    repeats.came("NPU-7", CODE, 4 * HOUR, stays=True)
    assert repeats.too_often("NPU-7", 4 * HOUR) == {}


def test_what_the_driver_reports_between_two_looks_counts_each_time() -> None:
    repeats = Memory().repeats
    for second in (0, 20):
        repeats.came("NPU-7", CODE, HOUR + second, stays=True)
        repeats.look("NPU-7", [], HOUR + second + 1)  # it asked before
        repeats.look("NPU-7", [CODE], HOUR + second + 3)
        assert repeats.too_often("NPU-7", HOUR + 30) == ({CODE: 2} if second else {})
        repeats.went("NPU-7", CODE, HOUR + second + 4)
        repeats.look("NPU-7", [CODE], HOUR + second + 5)  # likewise
    repeats.look("NPU-7", [], HOUR + 60)
    assert repeats.too_often("NPU-7", HOUR + 60) == {CODE: 2}


def test_an_incident_without_an_end_counts_each_time_and_a_code_that_an_operator_has_seen_does_not() -> None:
    repeats = Memory().repeats
    repeats.came("NPU-7", CODE, HOUR, stays=False)
    assert repeats.too_often("NPU-7", HOUR) == {}
    repeats.came("NPU-7", CODE, HOUR + 1, stays=False)
    assert repeats.too_often("NPU-7", HOUR + 1) == {CODE: 2}
    repeats.look("NPU-7", [CODE], HOUR + 20)
    repeats.forget("NPU-7")
    repeats.look("NPU-7", [CODE], HOUR + 50)
    repeats.look("NPU-7", [], HOUR + 80)
    repeats.look("NPU-7", [CODE], HOUR + 110)
    assert repeats.too_often("NPU-7", HOUR + 110) == {}, "once since then"


def flap(memory: Memory, now: float) -> list[Code]:
    infiniband.judge([UP], memory.ports, SETTINGS, now)
    infiniband.judge([DOWN], memory.ports, SETTINGS, now + 1)
    return [result.code for result in infiniband.judge([UP], memory.ports, SETTINGS, now + 31)]


@pytest.mark.parametrize("restart", [restarted, rebooted])
def test_interruptions_of_a_port(restart: Restart) -> None:
    memory = Memory()
    assert flap(memory, 8 * HOUR) == flap(memory, 9 * HOUR) == [Code.NODE_OK]
    after, now = restart(memory)
    assert flap(after, now) == [Code.IB_PORT_FLAPPING]


def test_a_port_that_is_down_was_up_before_a_restart_but_after_a_reboot_it_may_be_unused() -> None:
    memory = Memory()
    infiniband.judge([UP], memory.ports, SETTINGS, 9 * HOUR)
    infiniband.judge([DOWN], memory.ports, SETTINGS, 10 * HOUR - 300)
    after, now = restarted(memory)
    assert [r.code for r in infiniband.judge([DOWN], after.ports, SETTINGS, now)] == [Code.IB_PORT_DOWN]
    after, now = rebooted(memory)
    assert [r.code for r in infiniband.judge([DOWN], after.ports, SETTINGS, now)] == [Code.NODE_NOT_APPLICABLE]


def test_changes_of_a_carrier_count_on_and_begin_anew_with_a_boot() -> None:
    memory, window = Memory(), 12 * HOUR
    rate = memory.rate((*CHANGES, "eth0"))
    for hour, count in ((1, 100), (2, 100), (3, 102), (4, 104)):
        rate.growth(count, hour * HOUR, window)
    after, now = restarted(memory)
    assert after.rate((*CHANGES, "eth0")).growth(106, now, window) == 6
    assert after.rate((*CHANGES, "eth0")).growth(106, 15.5 * HOUR, window) == 4, "one is out of the window"
    after, now = rebooted(memory)
    assert after.rate((*CHANGES, "eth0")).growth(108, now, window) == 0


def test_a_wall_clock_that_was_set_back_makes_nothing_younger() -> None:
    memory = Memory()
    memory.repeats.look("NPU-7", [CODE], 9 * HOUR)
    after = through_file(memory, ("two", 300.0, 0.0))
    after.repeats.look("NPU-7", [CODE], 300.0)
    assert after.repeats.too_often("NPU-7", 300.0) == {CODE: 2}
    assert after.repeats.too_often("NPU-7", 300.0 + 23 * HOUR) == {}


def test_only_what_was_counted_is_a_change() -> None:
    memory = Memory()
    memory.repeats.look("NPU-7", [CODE], 9 * HOUR)
    before = kept_counts.kept(memory, "one", 9 * HOUR, 1e9)
    memory.repeats.look("NPU-7", [CODE], 9 * HOUR + 30)
    memory.rate((*CHANGES, "eth0")).growth(100, 9 * HOUR, HOUR)
    assert not kept_counts.kept(memory, "one", 9 * HOUR + 30, 1e9 + 30).differs(before)
    flap(memory, 9 * HOUR)
    assert kept_counts.kept(memory, "one", 9 * HOUR + 60, 1e9 + 60).differs(before)
