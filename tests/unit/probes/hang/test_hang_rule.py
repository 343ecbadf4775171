"""Verdicts of the full rule on small traces without noise, and what a detector promises over time."""

import json
import random
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.probes.hang import Change, Detector, HangSettings, HangVerdict
from muster.probes.hang.hang_records import read
from tests.corpus.measure import trace
from tests.corpus.scaled import scaled
from tests.corpus.scenarios import BY_NAME, SCENARIOS

STEP = 15.0
Line = dict[str, Any]


class Node:
    """A job of some ranks; each step all of them do what they are told."""

    def __init__(self, ranks: int = 2, kind: str = "nvidia") -> None:
        self.t = 1_700_000_000.0
        self.kind = kind
        self.counters: list[Line] = [{"cpu_s": 5.0, "rchar": 10**7, "wchar": 10**4, "log": 0} for _ in range(ranks)]
        self.fabric = [10**12] * ranks
        self.starts = [100 + rank for rank in range(ranks)]
        self.net = 10**9

    def step(self, does: Callable[[int], Line] | Line, seconds: float = STEP, **more: Any) -> Line:
        self.t += seconds
        procs, cards = [], []
        for rank, counter in enumerate(self.counters):
            act = does(rank) if callable(does) else does
            counter["cpu_s"] += act.get("cpu", 0.0) * seconds
            counter["rchar"] += int(act.get("read", 0) * seconds)
            counter["wchar"] += int((act.get("write", 0) + act.get("log", 0)) * seconds)
            counter["log"] += int(act.get("log", 0) * seconds)
            self.fabric[rank] += int(act.get("fabric", 0) * seconds)
            if not act.get("gone"):
                procs.append(
                    {
                        "pid": 1000 + rank,
                        "start": self.starts[rank],
                        "rank": rank,
                        "role": "rank",
                        "cpu_s": counter["cpu_s"],
                        "rchar": counter["rchar"],
                        "wchar": counter["wchar"],
                        "read_bytes": 0,
                        "write_bytes": 0,
                        "state": act.get("state", "S"),
                        "wchan": act.get("wchan", "futex_wait_queue"),
                    }
                )
            if child := act.get("child"):
                still = {"cpu_s": 1.0, "rchar": 1, "wchar": 1, "read_bytes": 0, "write_bytes": 0}
                procs.append(
                    {"pid": 2000 + rank, "start": 200, "rank": rank, "role": "worker", "state": child, **still}
                )
            cards.append(
                {
                    "index": rank,
                    "kind": self.kind,
                    "util": act.get("util", 0),
                    "mem_util": act.get("mem", 0),
                    "power_w": act.get("power", 90.0),
                    "power_limit_w": 700.0,
                    "fabric_bytes": self.fabric[rank],
                    "rank": rank,
                }
            )
        log = {str(rank): counter["log"] for rank, counter in enumerate(self.counters)}
        return {
            "t": self.t,
            "job": "j",
            "procs": procs,
            "cards": cards,
            "log_bytes": log,
            "net_bytes": self.net,
            "nodes": 1,
        } | more

    def steps(self, minutes: float, does: Callable[[int], Line] | Line) -> list[Line]:
        return [self.step(does) for _ in range(round(minutes * 60 / STEP))]


WORK: Line = {"util": 100, "power": 560.0, "mem": 40, "fabric": 2e9, "cpu": 1.0, "state": "R"}
SPIN: Line = {"util": 100, "power": 110.0, "cpu": 1.5}
SLEEP: Line = {"util": 0, "power": 90.0}


def fed(lines: Iterable[Line], detector: Detector | None = None) -> list[Change]:
    detector = detector or Detector()
    return [change for line in lines for change in detector.feed(read(line))]


def verdicts(changes: Iterable[Change]) -> list[str]:
    return [str(change.verdict) for change in changes]


# --- verdicts ---------------------------------------------------------------------------------------------------------


def test_a_spin_after_steady_work_is_suspected_after_a_minute_and_hung_after_seven_and_a_half() -> None:
    node = Node()
    lines = node.steps(10, WORK)
    began = node.t
    changes = fed([*lines, *node.steps(12, SPIN)])
    assert verdicts(changes) == ["ALIVE", "SUSPECT", "HUNG"]
    assert [round((c.t - began) / 60) for c in changes[1:]] == [1, 8]
    assert changes[-1].evidence["limit_s"] == 450
    hung = changes[-1]
    assert (hung.kind, hung.ranks) == ("spin", (0, 1))
    assert hung.confidence > 0.8
    assert hung.evidence["cards"][0]["power_w_median"] == 110
    assert hung.evidence["cards"][0]["power_w_active"] == pytest.approx(560, rel=0.03)
    assert hung.evidence["missing"] == []
    assert "power near the active median" in hung.evidence["would_clear"]


def test_a_rank_that_is_seen_to_be_stopped_a_moment_later_than_its_peers_wait_is_stopped() -> None:
    node = Node()
    lines = [*node.steps(20, WORK), node.step(lambda rank: SLEEP if rank else SPIN)]
    changes = fed([*lines, *node.steps(12, lambda rank: SLEEP | {"state": "T"} if rank else SPIN)])
    assert [c.kind for c in changes if c.verdict is HangVerdict.HUNG] == ["stopped"]


def test_the_missing_participant_is_named() -> None:
    node = Node(ranks=4)
    lines = node.steps(10, WORK)
    changes = fed([*lines, *node.steps(12, lambda rank: SLEEP | {"gone": True} if rank == 2 else SPIN)])
    assert changes[-1].verdict is HangVerdict.HUNG
    assert (changes[-1].kind, changes[-1].ranks) == ("spin", (2,))
    assert changes[-1].evidence["odd_ranks"] == {"2": "its process has ended"}


def test_a_rank_that_cannot_go_on_is_named_though_its_card_waits_as_the_others_do() -> None:
    node = Node(4)
    lines = node.steps(20, WORK)
    began = node.t
    stopped = fed([*lines, *node.steps(12, lambda rank: SPIN | {"state": "T"} if rank == 3 else SPIN)])[-1]
    assert (stopped.verdict, stopped.kind, stopped.ranks) == ("HUNG", "stopped", (3,))
    # A slow file server is waited for.
    saves = {"state": "D", "wchan": "nfs_wait_bit_killable"}
    changes = fed([*lines, *node.steps(32, lambda rank: SPIN | saves if rank == 0 else SPIN)])
    assert (changes[-1].verdict, changes[-1].kind, changes[-1].ranks) == ("HUNG", "io_blocked", (0,))
    assert (changes[-1].t - began) / 60 >= 30


def test_a_stopped_rank_is_named() -> None:
    node = Node()
    lines = node.steps(10, WORK)
    changes = fed([*lines, *node.steps(12, lambda rank: SLEEP | {"state": "T"} if rank else SPIN)])
    assert (changes[-1].verdict, changes[-1].kind, changes[-1].ranks) == ("HUNG", "stopped", (1,))


def test_a_process_in_the_kernel_is_given_longer_where_it_waits_for_a_file_system() -> None:
    for wchan, hung in (("fifo_open", True), ("nfs_wait_bit_killable", False)):
        node = Node(1)
        lines = node.steps(10, WORK)
        changes = fed([*lines, *node.steps(20, SLEEP | {"state": "D", "wchan": wchan})])
        assert (changes[-1].verdict == "HUNG") is hung, wchan
        assert changes[-1].kind == "io_blocked"


def test_after_a_burst_of_writes_a_silence_may_be_longer() -> None:
    for rate, hung in ((100.0, True), (50e6, False)):
        node = Node(1)
        lines = [*node.steps(10, WORK), *node.steps(1, SLEEP | {"write": rate})]
        changes = fed([*lines, *node.steps(15, SLEEP)])
        assert ("HUNG" in verdicts(changes)) is hung, rate
        assert verdicts(changes)[1] == "SUSPECT"


def test_a_burst_of_writes_long_ago_explains_no_silence_where_no_card_tells_anything() -> None:
    node = Node(1)
    lines = [*node.steps(10, WORK), *node.steps(1, WORK | {"write": 50e6}), *node.steps(20, WORK)]
    lines += node.steps(25, SLEEP)
    unseen = {"util": None, "mem_util": None, "power_w": None}
    changes = fed([line | {"cards": [card | unseen for card in line["cards"]]} for line in lines])
    assert changes[-1].verdict is HangVerdict.HUNG
    assert changes[-1].evidence["limit_s"] == 1200


def test_what_a_rank_does_whose_cards_spin_says_nothing_though_it_has_one_that_it_never_used() -> None:
    node = Node(2)
    lines = [*node.steps(20, WORK), *node.steps(12, lambda rank: SPIN if rank else SLEEP | {"gone": True})]
    for line in lines:
        line["cards"].append(
            line["cards"][1] | {"index": 2, "util": 0, "mem_util": 0, "power_w": 90.0, "fabric_bytes": 7}
        )
    changes = fed(lines)
    assert verdicts(changes) == ["ALIVE", "SUSPECT", "HUNG"]
    assert (changes[-1].kind, changes[-1].ranks) == ("spin", (0,))


def test_npus_that_pause_between_two_slow_looks_work_steadily() -> None:
    """A pipeline that is seen each 30 s may be seen idle twice in a row."""
    node = Node(kind="ascend")
    lines = [node.step(SLEEP if look % 3 else WORK | {"util": 60}, 30.0) for look in range(41)]
    lines += [node.step(SLEEP, 30.0) for _ in range(13)]
    assert [c.kind for c in fed(lines) if c.verdict is HangVerdict.HUNG] == ["notify_wait"]


def test_work_in_bursts_is_work() -> None:
    """Also where cards pause for more than half of the time; a blip now and then is none."""
    for looks, last in ((3, "HUNG"), (20, "IDLE")):
        node = Node(1)
        lines = [node.step(SLEEP if look % looks else WORK | {"log": 1}) for look in range(120)]
        assert verdicts(fed([*lines, *node.steps(15, SLEEP)]))[-1] == last, looks


def test_a_power_around_the_threshold_begins_no_new_silence() -> None:
    """Half of the power of work, a little more or less in turns of minutes."""
    node = Node(2)
    lines = node.steps(20, WORK)
    began = node.t
    for minute in range(13):
        lines += node.steps(1, SPIN | {"power": 284.0 if minute % 4 > 1 else 276.0})
    changes = fed(lines)
    assert verdicts(changes) == ["ALIVE", "SUSPECT", "HUNG"]
    assert (changes[-1].t - began) / 60 < 11


def test_what_waits_does_not_become_usual() -> None:
    """At more than half of the power of work, and with neither memory nor fabric in use, which both were."""
    node = Node(2)
    lines = node.steps(6, WORK)
    began = node.t
    changes = fed([*lines, *node.steps(30, SPIN | {"power": 380.0})])
    assert verdicts(changes) == ["ALIVE", "SUSPECT", "HUNG"]
    assert (changes[-1].t - began) / 60 < 11


def test_weak_evidence_takes_longer_and_is_a_livelock() -> None:
    node = Node(1)
    lines = node.steps(10, WORK)
    began = node.t
    changes = fed([*lines, *node.steps(25, SLEEP | {"log": 16})])
    assert changes[-1].kind == "livelock"
    assert 19.5 <= (changes[-1].t - began) / 60 <= 21


def test_a_busy_host_is_hung_after_an_hour_only() -> None:
    node = Node(1)
    lines = node.steps(10, WORK)
    began = node.t
    changes = fed([*lines, *node.steps(65, SLEEP | {"cpu": 1.0})])
    assert verdicts(changes) == ["ALIVE", "BUSY_HOST", "HUNG"]
    assert changes[-1].kind == "livelock"
    assert 59 <= (changes[-1].t - began) / 60 <= 61


LOGS: Line = {"log": 40.0}


@pytest.mark.parametrize(("more", "confidence"), [(LOGS, None), ({"write": 1000.0}, 0.4), ({}, 0.65)])
def test_a_busy_host_that_writes_lines_is_at_work_and_one_with_a_little_io_less_surely_hung(
    more: Line, confidence: float | None
) -> None:
    node = Node(1)
    changes = fed([*node.steps(15, WORK | LOGS), *node.steps(150, {"cpu": 1.0, "state": "R"} | more)])
    hung = [c.confidence for c in changes if c.verdict is HangVerdict.HUNG]
    assert hung == ([confidence] if confidence else [])


@pytest.mark.parametrize("mem", [2, None])
def test_peers_that_spin_for_a_rank_that_evaluates_on_its_card_wait(mem: int | None) -> None:
    node = Node(4)
    work = WORK | {"mem": 40 if mem else None}
    evaluates = SPIN | LOGS | {"power": 270.0, "mem": mem}
    lines = [*node.steps(20, work), *node.steps(40, lambda rank: SPIN | {"mem": mem and 0} if rank else evaluates)]
    assert "HUNG" not in verdicts(fed(lines))
    if mem is None:  # nor does anything else tell: its power alone does
        assert "HUNG" in verdicts(fed(lines, Detector(HangSettings(power_apart_factor=3.5))))
    # ... and are hung when it says nothing any more.
    silent = [*node.steps(30, lambda rank: SPIN | {"mem": mem and 0} if rank else evaluates | {"log": 0})]
    assert verdicts(fed([*lines, *silent]))[-1] == "HUNG"


@pytest.mark.parametrize(("ranks", "power"), [(1, 230.0), (2, 380.0)])
@pytest.mark.parametrize("log", [40.0, 0.0])
def test_small_kernels_are_work_where_lines_are_written(ranks: int, power: float, log: float) -> None:
    node = Node(ranks)
    lines = [*node.steps(20, WORK | LOGS), *node.steps(30, {"util": 100, "power": power, "cpu": 1.0, "log": log})]
    assert ("HUNG" in verdicts(fed(lines))) == (log == 0.0)


@pytest.mark.parametrize("waits", [SPIN, SLEEP])
def test_ranks_of_other_nodes_may_be_what_all_here_wait_for(waits: Line) -> None:
    def hung(nodes: int, does: Callable[[int], Line] | Line) -> Change:
        node = Node(4)
        lines = [line | {"nodes": nodes} for line in [*node.steps(20, WORK), *node.steps(15, does)]]
        return next(change for change in fed(lines) if change.verdict is HangVerdict.HUNG)

    alone, one_of_three = hung(1, waits), hung(3, waits)
    assert alone.confidence >= HangSettings().action_confidence > one_of_three.confidence
    assert one_of_three.confidence == pytest.approx(alone.confidence - 0.5)
    assert "other nodes" in one_of_three.evidence["missing"] and "other nodes" not in alone.evidence["missing"]
    assert one_of_three.evidence["rule"].endswith("; 2 other nodes are not seen")
    # A rank of this node that is the reason is that for all of them.
    stopped = hung(3, lambda rank: waits if rank else SLEEP | {"state": "T"})
    assert stopped.ranks == (0,) and stopped.confidence >= HangSettings().action_confidence


def test_a_rank_that_sleeps_while_its_peers_spin_for_it_may_wait_for_another_node() -> None:
    node = Node(4)
    waits = SLEEP | {"wchan": "ep_poll", "cpu": 0.02}
    lines = [*node.steps(20, WORK), *node.steps(15, lambda rank: SPIN if rank else waits)]
    (alone,) = [c for c in fed(lines) if c.verdict is HangVerdict.HUNG]
    (one_of_two,) = [c for c in fed(line | {"nodes": 2} for line in lines) if c.verdict is HangVerdict.HUNG]
    assert alone.ranks == one_of_two.ranks == (0,)
    assert alone.confidence >= HangSettings().action_confidence > one_of_two.confidence


@pytest.mark.parametrize("kind", ["nvidia", "ascend"])
@pytest.mark.parametrize("ended", [{"gone": True}, {"state": "Z"}])
def test_a_rank_that_has_ended_is_the_reason_also_where_cards_idle(kind: str, ended: Line) -> None:
    node = Node(4, kind)
    lines = [*node.steps(20, WORK), *node.steps(12, lambda rank: SLEEP | (ended if rank == 2 else {}))]
    (hung,) = [c for c in fed(line | {"nodes": 2} for line in lines) if c.verdict is HangVerdict.HUNG]
    assert hung.ranks == (2,) and hung.confidence >= HangSettings().action_confidence
    # But not one that left long before, without which the others worked on.
    node = Node(4, kind)
    left: Line = SLEEP | ended
    worked_on = node.steps(20, lambda rank: left if rank == 2 else WORK)
    lines = [*node.steps(20, WORK), *worked_on, *node.steps(12, lambda rank: left if rank == 2 else SLEEP)]
    (hung,) = [c for c in fed(lines) if c.verdict is HangVerdict.HUNG]
    assert hung.evidence["odd_ranks"] == {}


def test_a_rank_that_left_long_before_is_not_named_where_the_others_cards_wait() -> None:
    node = Node(4)
    left: Line = SLEEP | {"gone": True}
    lines = [*node.steps(20, WORK), *node.steps(20, lambda rank: left if rank == 2 else WORK)]
    waits = node.steps(12, lambda rank: {2: left, 1: SLEEP}.get(rank, SPIN))
    (hung,) = [c for c in fed([*lines, *waits]) if c.verdict is HangVerdict.HUNG]
    assert hung.ranks == (1,)


def test_the_rank_that_computes_for_ever_is_the_reason() -> None:
    node = Node(4)
    lines = [*node.steps(20, WORK), *node.steps(75, lambda rank: SLEEP | ({"cpu": 1.0} if rank == 2 else {}))]
    (hung,) = [c for c in fed(lines) if c.verdict is HangVerdict.HUNG]
    assert (hung.kind, hung.ranks) == ("livelock", (2,))


def test_ranks_that_share_few_cpus_are_busy() -> None:
    node = Node(8)
    lines = [*node.steps(20, WORK), *node.steps(40, SLEEP | {"cpu": 0.25, "state": "R"})]
    assert verdicts(fed(lines))[-1] == "BUSY_HOST"


def test_a_card_that_tells_nothing_beside_one_that_spins_changes_nothing() -> None:
    node = Node(2)
    silent = dict.fromkeys(("util", "mem_util", "power_w", "power_limit_w", "fabric_bytes")) | {
        "index": 7,
        "kind": "nvidia",
        "rank": 0,
    }
    lines = [*node.steps(20, WORK), *node.steps(15, SPIN | {"wchan": None})]
    assert verdicts(fed(line | {"cards": [*line["cards"], silent]} for line in lines))[-1] == "HUNG"


@pytest.mark.parametrize("minutes", [5, 8, 12])
def test_another_limit_of_power_ends_no_hang(minutes: int) -> None:
    node = Node(2)
    lines = [*node.steps(20, WORK), *node.steps(30, SPIN)]
    for line in lines[(20 + minutes) * 4 :]:
        for card in line["cards"]:
            card["power_limit_w"] = 300.0
    (hung,) = [c for c in fed(lines) if c.verdict is HangVerdict.HUNG]
    assert hung.evidence["silent_s"] == pytest.approx(450, abs=60)


def test_who_may_be_waited_for_gets_ten_minutes() -> None:
    def hung_after(act: Line | Callable[[int], Line], **more: object) -> int:
        node = Node(2)
        lines = [*node.steps(20, WORK), *node.steps(15, act)]
        began = lines[80]["t"]
        (hung,) = [c for c in fed(line | more for line in lines) if c.verdict is HangVerdict.HUNG]
        return round((float(hung.t) - float(began)) / 60 - 0.3)

    assert hung_after(SPIN) == 7
    assert hung_after(SPIN, nodes=2) == 10
    assert hung_after(lambda rank: SPIN | {"wchan": "do_epoll_wait"} if rank else SPIN) == 10
    assert hung_after(lambda rank: SPIN | {"state": "R", "wchan": None} if rank else SPIN) == 10
    assert hung_after(SPIN | {"wchan": None}) == 10


@pytest.mark.parametrize(
    ("moves", "minutes"),
    [
        (lambda _: {"log": 3.0}, 60),
        (lambda rank: {} if rank else {"log": 3.0}, 20),
        (lambda _: {"fabric": 4e6}, 60),
        (lambda _: {"fabric": 1e4}, 8),
    ],
)
def test_cards_that_wait_while_data_or_lines_move_are_hung_later_and_not_acted_upon(
    moves: Callable[[int], Line], minutes: int
) -> None:
    """Small kernels look so. A little data is none, and the lines of one rank may be a monitor's."""
    node = Node(2)
    lines = [*node.steps(20, WORK), *node.steps(64, lambda rank: SPIN | moves(rank))]
    (hung, *_) = [c for c in fed(lines) if c.verdict is HangVerdict.HUNG]
    assert round((hung.t - lines[80]["t"]) / 60) == minutes
    assert (hung.confidence < HangSettings().action_confidence) == (minutes > 10)


def test_a_process_that_was_left_out_for_a_while_did_nothing_new() -> None:
    node = Node(2)
    lines = [*node.steps(20, WORK | {"child": "S"}), *node.steps(40, SLEEP | {"child": "S"})]
    for at, line in enumerate(lines[80:]):
        if at % 20 < 6:
            line["procs"] = [proc for proc in line["procs"] if proc["pid"] != 1000]
    assert verdicts(fed(lines))[-1] == "HUNG"


def test_a_file_server_that_is_not_told_may_be_what_a_process_waits_for() -> None:
    def hung(wchan: str | None) -> float:
        node = Node(2)
        blocked = SLEEP | {"state": "D", "wchan": wchan}
        lines = [*node.steps(20, WORK), *node.steps(15, lambda rank: SPIN if rank else blocked)]
        (found,) = [c for c in fed(lines) if c.verdict is HangVerdict.HUNG]
        assert found.kind == "io_blocked"
        return found.confidence

    assert hung("uvm_gpu_wait") >= HangSettings().action_confidence > hung(None)


@pytest.mark.parametrize("mem", [0, 1])
def test_small_kernels_of_all_ranks_are_work_where_lines_are_written(mem: int) -> None:
    node = Node(4)
    small: Line = {"util": 99, "power": 260.0, "mem": mem, "cpu": 1.0}
    assert "HUNG" not in verdicts(fed([*node.steps(20, WORK | LOGS), *node.steps(25, small | LOGS)]))
    assert verdicts(fed([*node.steps(20, WORK | LOGS), *node.steps(25, small)]))[-1] == "HUNG"


def test_for_one_card_whose_rank_writes_a_little_nobody_is_stopped() -> None:
    def hung(write: float) -> float:
        node = Node(1)
        lines = [*node.steps(20, WORK), *node.steps(15, SPIN | {"power": 150.0, "write": write})]
        (found,) = [c for c in fed(lines) if c.verdict is HangVerdict.HUNG]
        return found.confidence

    assert hung(0.0) >= HangSettings().action_confidence > hung(300.0)


def test_a_child_that_is_kept_stopped_is_no_reason() -> None:
    node = Node(1)
    paused: Line = {"child": "T"}
    lines = [*node.steps(20, WORK | paused), *node.steps(25, {"cpu": 1.0, "state": "R"} | paused)]
    assert verdicts(fed(lines))[-1] == "BUSY_HOST"
    # Nor is it when the rank sleeps: the job worked while it was stopped.
    (hung,) = [c for c in fed([*lines, *node.steps(15, SLEEP | paused)]) if c.verdict is HangVerdict.HUNG]
    assert hung.kind == "deadlock"


def test_a_child_that_was_stopped_while_its_rank_waits_for_it_is_the_reason() -> None:
    node = Node(1)
    lines = [*node.steps(20, WORK | {"child": "S"}), *node.steps(1, WORK | {"child": "T"})]
    hung = fed([*lines, *node.steps(15, SLEEP | {"child": "T"})])[-1]
    assert (hung.verdict, hung.kind) == ("HUNG", "stopped")


def test_peers_that_wait_for_a_busy_rank_are_waiting() -> None:
    node = Node()
    lines = node.steps(10, WORK)
    changes = fed([*lines, *node.steps(40, lambda rank: SPIN if rank else SLEEP | {"cpu": 1.0})])
    assert verdicts(changes) == ["ALIVE", "WAITING"]
    assert changes[-1].ranks == (0,)


def test_what_never_was_active_is_idle_and_never_hung() -> None:
    node = Node()
    assert verdicts(fed(node.steps(300, SLEEP))) == ["IDLE"]


def test_cards_that_wait_from_the_start_are_given_an_hour() -> None:
    node = Node()
    changes = fed(node.steps(75, SPIN))
    assert verdicts(changes) == ["WAITING", "HUNG"]
    assert 59 <= (changes[-1].t - 1_700_000_000) / 60 <= 62
    assert changes[-1].confidence < 0.8


def test_helpers_are_no_veto_unless_the_whole_tree_counts() -> None:
    helper = {"pid": 7, "start": 1, "rank": None, "role": "helper", "cpu_s": 0, "state": "S", "wchan": None}

    def lines() -> list[Line]:
        node = Node()
        found = [*node.steps(10, WORK), *node.steps(12, SPIN)]
        for i, line in enumerate(found):
            line["procs"].append(helper | {"rchar": i * 10**8, "wchar": i * 10**8, "read_bytes": 0, "write_bytes": 0})
        return found

    assert fed(lines())[-1].verdict == "HUNG"
    assert verdicts(fed(lines(), Detector(HangSettings(io_scope="tree")))) == ["ALIVE"]


def test_npus_that_wait_are_hung_after_five_minutes() -> None:
    node = Node(kind="ascend")
    lines = node.steps(10, WORK)
    began = node.t
    changes = fed([*lines, *node.steps(8, SLEEP | {"fabric": 100})])
    assert (changes[-1].verdict, changes[-1].kind) == ("HUNG", "notify_wait")
    assert (changes[-1].t - began) / 60 <= 6
    assert verdicts(changes) == ["ALIVE", "SUSPECT", "HUNG"]


def test_npus_that_worked_for_a_minute_only_are_given_longer() -> None:
    node = Node(kind="ascend")
    lines = [line for _ in range(6) for line in (*node.steps(1, WORK), *node.steps(8, SLEEP))]
    assert "HUNG" not in verdicts(fed(lines))


def test_a_driver_that_hangs_is_reported_at_once_and_its_end_too() -> None:
    node = Node()
    lines = node.steps(5, WORK)
    for _ in range(8):
        line = node.step(WORK)
        line["cards"] = [{"index": c["index"], "rank": c["rank"], "trouble": "HANG"} for c in line["cards"]]
        lines.append(line)
    changes = fed([*lines, *node.steps(2, WORK)])
    assert verdicts(changes) == ["ALIVE", "DRIVER_HANG", "ALIVE"]
    assert changes[1].ranks == (0, 1)
    assert changes[2].evidence["recovered"]["from"] == "DRIVER_HANG"


def without_cards(lines: list[Line]) -> list[Change]:
    return fed([line | {"cards": []} for line in lines])


def test_a_job_without_cards_is_reported_with_low_confidence() -> None:
    node = Node(1)
    lines = [*node.steps(30, {"cpu": 1.0, "read": 10**6}), *node.steps(25, SLEEP)]
    changes = without_cards(lines)
    assert verdicts(changes) == ["ALIVE", "SUSPECT", "HUNG"]
    assert changes[-1].confidence < 0.5
    assert "cards" in changes[-1].evidence["missing"]
    assert 20 <= (changes[-1].t - lines[119]["t"]) / 60 <= 20.5


def test_the_evidence_of_a_job_without_cards_does_not_speak_of_their_utilization() -> None:
    node = Node(1)
    changes = without_cards([*node.steps(30, {"cpu": 1.0, "read": 10**6}), *node.steps(25, SLEEP)])
    evidence = changes[-1].evidence
    assert evidence["limit"] == "weak_s: no card shows whether the job works"
    assert evidence["would_clear"] == ["IO of a rank above its floor", "30 s of CPU a minute"]


def test_ranks_without_cards_that_fall_silent_together_after_steady_work_are_hung_sooner() -> None:
    node = Node(3)
    steady = {"cpu": 0.01, "log": 40}
    lines = [*node.steps(2, {"cpu": 1.0}), *node.steps(20, steady), *node.steps(25, SLEEP | {"cpu": 0.0})]
    changes = without_cards(lines)
    assert verdicts(changes) == ["ALIVE", "SUSPECT", "HUNG"]
    assert changes[-1].confidence > 0.5
    assert 10 <= (changes[-1].t - lines[87]["t"]) / 60 <= 10.5


@pytest.mark.parametrize("steady", [{"cpu": 0.005}, {"cpu": 0.0, "log": 3}, {"cpu": 0.0, "write": 100}])
def test_without_cards_each_sign_of_the_processes_counts(steady: Line) -> None:
    """A small model that steps once in a second, say: it takes a third of a second of CPU in a minute."""
    node = Node(3)
    assert "HUNG" not in verdicts(without_cards([*node.steps(3, {"cpu": 1.0}), *node.steps(180, steady)]))


LIGHT: Line = {"cpu": 0.04, "log": 40}
POLLS: Line = {"cpu": 0.02}


def test_a_young_job_whose_logs_lose_their_rhythm_is_suspected_although_its_ranks_poll() -> None:
    node = Node()
    lines = node.steps(2, LIGHT)
    began = node.t
    quiet, again = node.steps(4, POLLS), node.steps(2, LIGHT)
    for line in [*lines, *quiet, *again]:
        line["log_lines"] = {rank: size // 80 for rank, size in line["log_bytes"].items()}
    changes = without_cards([*lines, *quiet, *again])
    assert verdicts(changes) == ["ALIVE", "SUSPECT", "ALIVE"]
    assert 60 <= changes[1].t - began <= 90
    assert changes[1].evidence["row"] == "only traces, no cards"
    assert changes[2].evidence["recovered"]["how"] == "by itself"


def test_growths_of_a_log_count_as_lines_where_these_are_not_counted() -> None:
    node = Node()
    assert verdicts(without_cards([*node.steps(2, LIGHT), *node.steps(4, POLLS)])) == ["ALIVE"]
    assert verdicts(without_cards([*node.steps(6, LIGHT), *node.steps(4, POLLS)])) == ["ALIVE", "SUSPECT"]


def test_lines_at_once_are_no_rhythm() -> None:
    node = Node()
    lines = [*node.steps(2, POLLS), *node.steps(0.5, LIGHT), *node.steps(6, POLLS)]
    for line in lines:
        line["log_lines"] = dict(line["log_bytes"])
    assert verdicts(without_cards(lines)) == ["ALIVE"]


def test_a_light_job_that_computes_while_its_logs_are_silent_is_alive() -> None:
    node = Node()
    assert verdicts(without_cards([*node.steps(6, LIGHT), *node.steps(20, {"cpu": 0.1})])) == ["ALIVE"]


def test_without_cards_a_trace_of_what_was_usual_is_no_sign() -> None:
    node = Node(3)
    lines = [*node.steps(20, {"cpu": 0.1}), *node.steps(60, {"cpu": 0.01})]
    assert verdicts(without_cards(lines))[-1] == "HUNG"


def test_of_ranks_that_wait_the_one_that_waits_for_nobody_is_named() -> None:
    node = Node(3)
    lines = node.steps(20, {"cpu": 1.0})
    waits = node.steps(15, lambda rank: {"wchan": "hrtimer_nanosleep" if rank == 1 else "futex_wait_queue"})
    hung = without_cards([*lines, *waits])[-1]
    assert (hung.verdict, hung.kind, hung.ranks) == ("HUNG", "deadlock", (1,))
    assert "hrtimer_nanosleep" in hung.evidence["odd_ranks"]["1"]


@pytest.mark.parametrize("power", [525.0, None])
def test_cards_without_utilization_work_at_the_power_of_work(power: float | None) -> None:
    """Whatever the processes do; and a job that was never seen to do more is active by that."""
    node = Node(2)

    def unseen(lines: list[Line], power: float | None) -> list[Line]:
        return [
            line | {"cards": [c | {"util": None, "mem_util": None, "power_w": power} for c in line["cards"]]}
            for line in lines
        ]

    working = unseen(node.steps(60, WORK | {"cpu": 0.0, "log": 0, "read": 0, "write": 0}), power)
    changes = fed([*working, *unseen(node.steps(30, SLEEP), 70.0 if power else None)])
    assert verdicts(changes) == (["ALIVE", "SUSPECT", "HUNG"] if power else ["UNKNOWN", "HUNG"])
    assert not changes or changes[-1].confidence < 0.5


def test_a_job_without_cards_may_compute_for_ever() -> None:
    node = Node()
    lines = [*node.steps(10, {"cpu": 1.0, "read": 10**6}), *node.steps(300, {"cpu": 1.0})]
    assert verdicts(without_cards(lines)) == ["ALIVE"]


def test_without_cards_ranks_wait_for_one_that_computes_an_hour_at_most() -> None:
    node = Node(3)
    one = [*node.steps(20, {"cpu": 1.0}), *node.steps(65, lambda rank: {"cpu": 1.0 if rank == 1 else 0.0})]
    changes = without_cards([*one, *node.steps(5, {"cpu": 1.0})])
    assert verdicts(changes) == ["ALIVE", "WAITING", "HUNG", "ALIVE"]
    assert {change.ranks for change in changes[1:3]} == {(1,)}
    assert changes[2].kind == "livelock" and changes[2].confidence < 0.5
    # One that writes as well is at work.
    saves = node.steps(120, lambda rank: {"cpu": 1.0, "write": 500} if rank == 1 else {"cpu": 0.0})
    assert "HUNG" not in verdicts(without_cards([*one[:80], *saves]))


def test_without_cards_a_rank_that_a_debugger_holds_is_the_one_that_is_waited_for() -> None:
    """Before it is held for long, the other one seems to be."""
    node = Node(2)
    lines = node.steps(20, {"cpu": 1.0, "log": 100})
    lines += node.steps(12, lambda rank: {"cpu": 1.0, "log": 100} if rank == 0 else {"cpu": 0.0, "state": "t"})
    changes = without_cards(lines)
    assert [(str(change.verdict), change.ranks) for change in changes[1:]] == [("WAITING", (0,)), ("WAITING", (1,))]
    assert changes[-1].evidence["row"] == "a debugger"


def test_ranks_that_fall_silent_one_after_another_leave_one_that_is_waited_for() -> None:
    node = Node(3)
    lines = node.steps(20, {"cpu": 1.0, "log": 100})
    lines += node.steps(0.5, lambda rank: {"cpu": 1.0 if rank < 2 else 0.0})
    changes = without_cards([*lines, *node.steps(10, lambda rank: {"cpu": 1.0 if rank == 1 else 0.0})])
    assert [(str(change.verdict), change.ranks) for change in changes[1:]] == [("WAITING", (0, 1)), ("WAITING", (1,))]


@pytest.mark.parametrize("power", [350.0, 260.0])
def test_slower_steps_are_slow(power: float) -> None:
    node = Node()
    slow = WORK | {"power": power, "fabric": 0.8e9, "mem": 18}
    assert verdicts(fed([*node.steps(15, WORK), *node.steps(20, slow)])) == ["ALIVE", "SLOW"]


def test_memory_in_use_is_life_however_low_the_power_is() -> None:
    node = Node(1)
    assert verdicts(fed([*node.steps(10, WORK), *node.steps(30, SPIN | {"mem": 12})])) == ["ALIVE"]


def test_a_capped_power_limit_is_no_hang() -> None:
    node = Node(1)
    lines = node.steps(15, WORK | {"mem": 0, "fabric": 0})
    capped = node.steps(40, WORK | {"mem": 0, "fabric": 0, "power": 250.0})
    for line in capped:
        line["cards"][0]["power_limit_w"] = 300.0
    assert verdicts(fed([*lines, *capped])) == ["ALIVE"]


# --- recovery, restarts, clocks -------------------------------------------------------------------------------------


def test_recovery_is_reported_and_remembered() -> None:
    node = Node(1)
    detector = Detector()
    changes = fed([*node.steps(10, WORK), *node.steps(13, SLEEP), *node.steps(5, WORK)], detector)
    assert verdicts(changes) == ["ALIVE", "SUSPECT", "HUNG", "ALIVE"]
    told = changes[-1].evidence["recovered"]
    assert (told["from"], told["kind"], told["how"]) == ("HUNG", "deadlock", "by itself")
    assert told["silence_s"] == pytest.approx(780, abs=100)
    # It is given longer next time: 1.25 times that.
    assert verdicts(fed(node.steps(15, SLEEP), detector)) == ["SUSPECT"]
    assert verdicts(fed(node.steps(3, SLEEP), detector)) == ["HUNG"]


def test_a_restart_begins_anew() -> None:
    node = Node()
    lines = [*node.steps(10, WORK), *node.steps(7, SLEEP)]
    for rank, counter in enumerate(node.counters):
        counter.update(cpu_s=0.0, rchar=0, wchar=0)
        node.starts[rank] += 50_000
    changes = fed([*lines, *node.steps(20, SLEEP | {"cpu": 0.1}), *node.steps(5, WORK)])
    assert verdicts(changes) == ["ALIVE", "SUSPECT", "IDLE", "ALIVE"]
    assert changes[2].evidence["recovered"]["how"] == "restarted"


def test_a_restarted_job_that_never_gets_going_is_hung_after_an_hour() -> None:
    node = Node()
    lines = node.steps(10, WORK)
    for rank, counter in enumerate(node.counters):
        counter.update(cpu_s=0.0, rchar=0, wchar=0)
        node.starts[rank] += 50_000
    changes = fed([*lines, *node.steps(70, SLEEP)])
    assert verdicts(changes) == ["ALIVE", "IDLE", "HUNG"]


def test_time_without_records_proves_nothing() -> None:
    node = Node()
    lines = [*node.steps(10, WORK), *node.steps(0.5, SLEEP)]
    node.t += 3600
    changes = fed([*lines, *node.steps(0.25, SLEEP)])
    assert verdicts(changes) == ["ALIVE"]


@pytest.mark.parametrize("jump", [-7200.0, -40.0, 7200.0])
def test_a_step_of_the_clock_changes_no_verdict(jump: float) -> None:
    node = Node()
    lines = [*node.steps(10, WORK), *node.steps(4, SPIN)]
    node.t += jump
    changes = fed([*lines, *node.steps(12, SPIN)])
    assert verdicts(changes) == ["ALIVE", "SUSPECT", "HUNG"]


def test_records_of_two_nodes_of_a_job_are_joined() -> None:
    """Each record holds one node's ranks; a rank that saves on one node keeps the waiting ones of the other."""
    node = Node()
    lines = node.steps(10, WORK)
    lines += node.steps(15, lambda rank: SPIN if rank else SLEEP | {"write": 45e6, "cpu": 0.5})
    joined = []
    for line in lines:
        for rank in (0, 1):
            half = {key: [item for item in line[key] if item["rank"] == rank] for key in ("procs", "cards")}
            joined.append(line | half | {"t": line["t"] + 0.3 * rank, "net_bytes": 10**9 * (rank + 1)})
    assert verdicts(fed(joined)) == ["ALIVE", "WAITING"]
    alone = [line for line in joined if line["cards"][0]["rank"] == 1]
    assert verdicts(fed(alone))[-1] == "HUNG"


def test_a_child_that_is_waited_for_is_no_new_io_of_its_parent() -> None:
    node = Node(1)
    worker = {"pid": 9, "start": 9, "rank": 0, "role": "worker", "cpu_s": 2.0, "read_bytes": 0, "write_bytes": 0}
    lines = [*node.steps(10, WORK), *node.steps(4, SPIN)]
    for line in lines:
        line["procs"].append(worker | {"rchar": 10**9, "wchar": 3 * 10**9, "state": "S", "wchan": None})
    node.counters[0]["rchar"] += 10**9
    node.counters[0]["wchar"] += 3 * 10**9
    node.counters[0]["cpu_s"] += 2.0
    began = node.t - 4 * 60
    changes = fed([*lines, *node.steps(9, SPIN)])
    assert verdicts(changes) == ["ALIVE", "SUSPECT", "HUNG"]
    assert (changes[-1].t - began) / 60 <= 11


def test_time_may_be_scaled() -> None:
    node = Node()
    lines = [node.step(WORK, 0.25) for _ in range(40)]
    began = node.t
    lines += [node.step(SPIN, 0.25) for _ in range(60)]
    changes = fed(lines, Detector(scaled(HangSettings(), 60)))
    assert verdicts(changes) == ["ALIVE", "SUSPECT", "HUNG"]
    assert changes[-1].t - began <= 11


# --- properties -------------------------------------------------------------------------------------------------------

_READING = st.one_of(
    st.none(), st.floats(allow_nan=True), st.integers(-5, 10**20), st.text(max_size=3), st.booleans(), st.just([])
)
_PROC = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys(
        ("start", "rank", "cpu_s", "rchar", "wchar", "read_bytes", "write_bytes", "state", "wchan"), _READING
    )
    | {"pid": st.one_of(st.integers(1, 4), _READING), "role": st.sampled_from(["rank", "worker", "helper", "x", 3])},
)
_CARD = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys(("kind", "util", "mem_util", "power_w", "power_limit_w", "fabric_bytes", "rank"), _READING)
    | {"index": st.one_of(st.integers(0, 2), _READING)},
)
_RECORD = st.fixed_dictionaries(
    {"t": st.floats(-1e9, 1e10), "job": st.just("j")},
    optional={
        "procs": st.one_of(_READING, st.lists(st.one_of(_PROC, _READING), max_size=4)),
        "cards": st.one_of(_READING, st.lists(st.one_of(_CARD, _READING), max_size=4)),
        "log_bytes": st.one_of(_READING, st.dictionaries(st.sampled_from(["0", "1", "x", "-1"]), _READING, max_size=3)),
        "net_bytes": _READING,
        "driver": st.sampled_from(["HANG", None, 1]),
    },
)


@settings(max_examples=60, deadline=None)
@given(st.lists(_RECORD, max_size=25))
def test_no_reading_breaks_it(lines: list[Line]) -> None:
    detector = Detector()
    for change in fed(lines, detector):
        json.dumps(change.as_dict(), allow_nan=False)
    json.dumps(detector.state(), allow_nan=False)


@settings(max_examples=12, deadline=None)
@given(st.sampled_from([s.name for s in SCENARIOS]), st.integers(0, 50), st.booleans(), st.floats(0.05, 0.95))
@pytest.mark.slow
def test_a_stored_detector_goes_on_as_if_nothing_had_been(name: str, seed: int, harsh: bool, share: float) -> None:
    _, lines = trace(BY_NAME[name], seed, harsh=harsh)
    whole, first = Detector(), Detector()
    cut = int(len(lines) * share)
    before = fed(lines[:cut], first)
    second = Detector.restored(json.loads(json.dumps(first.state())))
    changes = [*before, *fed(lines[cut:], second)]
    assert [c.as_dict() for c in changes] == [c.as_dict() for c in fed(lines, whole)]
    assert second.state() == whole.state()


@settings(max_examples=12, deadline=None)
@given(st.sampled_from([s.name for s in SCENARIOS]), st.integers(0, 50), st.integers())
@pytest.mark.slow
def test_the_order_within_a_record_says_nothing(name: str, seed: int, shuffle: int) -> None:
    _, lines = trace(BY_NAME[name], seed)
    rng = random.Random(shuffle)
    mixed = [
        line
        | {
            "procs": rng.sample(line["procs"], len(line["procs"])),
            "cards": rng.sample(line["cards"], len(line["cards"])),
        }
        for line in lines
    ]
    assert [c.as_dict() for c in fed(mixed)] == [c.as_dict() for c in fed(lines)]


@pytest.mark.parametrize("state", [{}, {"version": 0}, {"version": 1, "rule": "full", "job": {"cards": 3}}])
def test_a_strange_state_is_refused(state: Line) -> None:
    with pytest.raises(ValueError, match="start a new detector"):
        Detector.restored(state)


# --- stacks, and the communication library ----------------------------------------------------------------------------


def test_what_a_rank_writes_while_it_is_asked_for_a_dump_is_no_sign_of_life() -> None:
    def verdict_of(**marked: Any) -> HangVerdict:
        node = Node()
        lines = [*node.steps(10, WORK), *node.steps(2, SPIN)]
        dumping = [node.step(SPIN | {"write": 2e6, "log": 100}, **marked) for _ in range(2)]
        detector = Detector()
        fed([*lines, *dumping], detector)
        assert detector.verdict is not None
        return detector.verdict

    assert verdict_of() is HangVerdict.ALIVE
    assert verdict_of(asked=True) is HangVerdict.SUSPECT


@pytest.mark.parametrize(
    "broken",
    [
        {"stacks": 7, "library": 7},
        {"stacks": [7, {}, {"t": 1}, {"t": "x", "rank": 0, "pid": 1, "state": "S"}], "library": {"t": None}},
        {"stacks": [{"t": 1.0, "rank": 0, "pid": 1, "state": "S", "frames": [7, None], "switches": -1, "others": "x"}]},
        {"library": {"t": 1.0, "inside": [7, [1], ["x", "y"], [1, 2]], "absent": ["x", -1, 2.5], "text": 7}},
    ],
)
def test_stacks_that_are_none_are_left_out(broken: Line) -> None:
    node = Node()
    assert verdicts(fed([*node.steps(10, WORK), *[node.step(SPIN, **broken) for _ in range(8)]])) == [
        "ALIVE",
        "SUSPECT",
    ]
