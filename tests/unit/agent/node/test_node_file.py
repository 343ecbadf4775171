"""What of the node's health is on disk: node.json and faults.json."""

import itertools
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from muster.agent.errors import NoRoom
from muster.agent.host import state_file
from muster.agent.host.state_file import write_text
from muster.agent.node.conditions import Condition, Latched, Moment
from muster.agent.node.faults_file import FAULT_S, MAX_FAULTS, FaultsFile
from muster.agent.node.node_file import MAX_BOOTS, MAX_PAIRS, DrainState, Fault, NodeState, XidMemory, node_file
from muster.agent.node.node_watch import CheckSchedule
from muster.probes.checks.result import Status
from tests.unit.waiting import until

NOW = 1_700_000_000.0
CONDITION = Condition(
    "gpu-lost", "card 3", Status.CRITICAL, "GPU_LOST", "it is gone", NOW, NOW, clears="reboot", card=3
)
STATE = NodeState(
    boot="one",
    kernel_seq=77,
    drain=DrainState("a new fan", "ops", NOW),
    conditions=[Latched(CONDITION, 5.0, 1, 2.0)],
    faults=[Fault("Xid 79", "GPU_OFF_BUS", 3, NOW, 5.0)],
    xids={"GPU-1/79": ["one"]},
)


@asynccontextmanager
async def running(part: Any) -> AsyncIterator[None]:
    async with anyio.create_task_group() as tasks:
        await tasks.start(part.run)
        yield
        tasks.cancel_scope.cancel()


async def test_what_was_written_is_read_again(tmp_path: Path):
    path = tmp_path / "node.json"
    written = node_file(path, lambda: STATE)
    assert await written.load() is None
    async with running(written):
        written.changed()
        await written.written()
    assert await node_file(path, NodeState).load() == STATE
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["node.json"]


async def test_changes_in_quick_succession_are_few_writes_and_the_last_one_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    writes: list[str] = []
    monkeypatch.setattr("muster.agent.host.state_file.write_text", lambda path, text, synced: writes.append(text))
    boot = ""
    written = node_file(tmp_path / "node.json", lambda: NodeState(boot=boot), save_s=60)
    async with running(written):
        for i in range(200):
            boot = str(i)
            written.changed()
            await anyio.lowlevel.checkpoint()
    assert len(writes) <= 3
    assert json.loads(writes[-1])["boot"] == "199"  # at the end at the latest
    async with running(written):
        pass
    assert len(writes) <= 3  # nothing has changed


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"version": "2"}',
        '{"conditions": [{"seen_up": 1}]}',
        '{"drain": 7}',
        '{"kernel_seq": 1e999}',
        "\xff",
    ],
)
async def test_a_damaged_file_is_set_aside_and_said(tmp_path: Path, text: str):
    path = tmp_path / "node.json"
    path.write_bytes(text.encode("latin-1"))
    damaged = node_file(path, NodeState)
    assert await damaged.load() is None
    (trouble,) = damaged.trouble
    assert str(path) in trouble
    assert "drain" in trouble
    (aside,) = os.listdir(tmp_path)
    assert aside.startswith("node.json.damaged-")
    assert (tmp_path / aside).read_bytes() == text.encode("latin-1")


async def test_a_full_disk_is_reported_and_mends_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "node.json"
    full = True

    def write(path: Path, text: str, synced: bool) -> None:
        if full:
            raise OSError(28, "No space left on device")
        write_text(path, text, synced=synced)

    monkeypatch.setattr("muster.agent.host.state_file.write_text", write)
    written = node_file(path, lambda: STATE, save_s=0.01)
    async with running(written):
        written.changed()
        with pytest.raises(
            NoRoom, match=r"node\.json: cannot be written: No space left on device: make room .*: it is in force"
        ):
            await written.written()
        assert len(written.trouble) == 1
        full = False
        await written.written()
        assert written.trouble == []
    assert await node_file(path, NodeState).load() == STATE


async def test_a_disk_that_does_not_answer_is_not_waited_for_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(state_file, "WAIT_S", 0.05)
    written = node_file(tmp_path / "node.json", NodeState)  # nobody runs it
    written.changed()
    with pytest.raises(NoRoom, match="did not answer"):
        await written.written()


async def read(path: Path) -> dict[str, Any]:
    await until(path.exists)
    return said(path)


def said(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_bytes()))


async def test_supervisors_find_what_is_grave_and_nothing_else(tmp_path: Path):
    path = tmp_path / "faults.json"
    faults = FaultsFile(path, "one")
    warning = Condition("ib", "mlx5_0/1", Status.WARN, "IB_PORT_DOWN", "it is down", NOW, NOW)
    unsure = Condition("driver", "card 4", Status.UNKNOWN, "DRIVER_HANG", "no answer", NOW, NOW, card=4)
    disk = Condition("mounts", "/data", Status.CRITICAL, "FS_NOT_MOUNTED", "is not mounted", NOW, NOW)
    drill = Condition("gpu-lost", "card 5", Status.CRITICAL, "GPU_LOST", "a drill", NOW, NOW, injected=True, card=5)
    faults.add([Fault("Xid 48", "GPU_XID_RESET", 3, NOW, 100.0), Fault("it is gone", "GPU_LOST", 3, NOW, 100.0)])
    async with running(faults):
        faults.put([CONDITION, warning, unsure, disk, drill], Moment(NOW + 1, 101.0))
        found = await read(path)
    assert found["boot"] == "one"
    assert found["at"] == NOW + 1
    assert found["cards"].keys() == {"3", "5"}
    event, condition = found["cards"]["3"]  # what a condition says as well is said once
    assert event.startswith("Xid 48 (GPU_XID_RESET) at ")
    assert found["ups"] == {event: 100.0}, "by which a supervisor knows what was over before its job"
    assert condition.startswith("it is gone (GPU_LOST) since ")
    assert found["cards"]["5"][0].endswith("(injected for a drill)")
    (node,) = found["node"]
    assert node.startswith("/data: is not mounted (FS_NOT_MOUNTED) since ")


async def test_a_card_that_is_missing_is_a_fault_of_who_has_it_and_of_nobody_else(tmp_path: Path):
    path = tmp_path / "faults.json"
    faults = FaultsFile(path, "one")
    missing = Condition("inventory", "0000:9d:00.0", Status.CRITICAL, "CARD_MISSING", "it was here", NOW, NOW)
    mine = replace(missing, device="0000:9e:00.0", card=6)
    async with running(faults):
        faults.put([missing, mine], Moment(NOW, 100.0))
        found = await read(path)
    assert found["node"] == [] and found["cards"].keys() == {"6"}


async def test_a_fatal_event_counts_for_an_hour_or_until_it_is_cleared(tmp_path: Path):
    path = tmp_path / "faults.json"
    faults = FaultsFile(path, "one")
    faults.add([Fault("Xid 48", "GPU_XID_RESET", 3, NOW, 100.0), Fault("Xid 79", "GPU_OFF_BUS", 4, NOW, 200.0)])
    async with running(faults):
        faults.put([], Moment(NOW, 99.0 + FAULT_S))
        assert (await read(path))["cards"].keys() == {"3", "4"}
        faults.put([], Moment(NOW, 100.0 + FAULT_S))
        await until(lambda: said(path)["cards"].keys() == {"4"})
        faults.forget("GPU_OFF_BUS", 4)
        faults.put([], Moment(NOW, 100.0 + FAULT_S))
        await until(lambda: said(path)["cards"] == {})
    faults.add(Fault(str(i), "X", 1, NOW, 1.0) for i in range(1000))
    assert len(faults.faults) == MAX_FAULTS


async def test_the_same_again_is_not_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    writes: list[dict[str, Any]] = []
    monkeypatch.setattr(
        "muster.agent.node.faults_file.replace_file", lambda path, data: writes.append(json.loads(data))
    )
    faults = FaultsFile(tmp_path / "faults.json", "one")
    async with running(faults):
        faults.put([CONDITION], Moment(NOW, 1.0))
        await until(lambda: len(writes) == 1)
        faults.put([CONDITION], Moment(NOW + 50, 51.0))
        await anyio.lowlevel.checkpoint()
        faults.put([], Moment(NOW + 60, 61.0))
        await until(lambda: writes[-1]["cards"] == {})
    assert [write["at"] for write in writes] == [NOW, NOW + 60]


async def test_a_folder_that_cannot_be_written_is_reported(tmp_path: Path):
    faults = FaultsFile(tmp_path / "none" / "faults.json", "one")
    async with running(faults):
        faults.put([CONDITION], Moment(NOW, 1.0))
        await until(lambda: faults.trouble)
        assert "No such file or directory" in faults.trouble


def test_the_memory_of_xids_counts_boots_not_times():
    memory = XidMemory("three", {"GPU-1/79": ["one", "two"], "GPU-1/48": ["three"]})
    assert memory.earlier("GPU-1", 79) == 2
    assert memory.earlier("GPU-1", 48) == 0
    assert memory.earlier("GPU-2", 79) == 0
    for _ in range(5):
        memory.note(["GPU-1", "0000:9d:00.0", ""], 79)
    assert memory.earlier("GPU-1", 79) == 2
    later = XidMemory("four", memory.kept())
    assert later.earlier("GPU-1", 79) == 3
    assert later.earlier("0000:9d:00.0", 79) == 1
    assert "/79" not in later.kept()


def test_the_memory_of_xids_is_bounded():
    kept: dict[str, list[str]] = {}
    for boot in range(40):
        memory = XidMemory(str(boot), kept)
        memory.note(["GPU-1"], 79)
        kept = memory.kept()
    assert len(kept["GPU-1/79"]) == MAX_BOOTS
    for number in range(2 * MAX_PAIRS):
        memory.note(["GPU-2"], number)
    assert len(memory.kept()) == MAX_PAIRS


def test_checks_take_turns_and_stay_apart():
    rota = CheckSchedule(first_s=5)
    items = {f"check-{i}": 60.0 for i in range(20)} | {"quick": 1.0}
    rota.arrange(items, 100.0)
    turns: dict[str, list[float]] = {item: [] for item in items}
    most = 0
    now = 100.0
    while now < 460:
        due = rota.due(now)
        most = max(most, len(due))
        for item in due:
            turns[item].append(now)
        now += 0.1
    assert most <= 4
    assert all(times[0] <= 105.1 for times in turns.values())
    for item, times in turns.items():
        gaps = [b - a for a, b in itertools.pairwise(times[1:])]
        assert all(abs(gap - items[item]) < 0.2 for gap in gaps)
    seconds = sorted(turns[f"check-{i}"][1] for i in range(20))
    assert seconds[-1] - seconds[0] > 20


def test_missed_turns_are_not_made_up_for_and_a_new_interval_counts_at_once():
    rota = CheckSchedule()
    rota.arrange({"a": 10.0}, 0.0)
    assert rota.due(1000.0) == ["a"]
    assert rota.due(1000.1) == []
    assert rota.due(1010.0) == ["a"]
    rota.arrange({"a": 1000.0}, 1010.0)
    assert rota.due(1020.0) == ["a"]
    rota.arrange({"a": 2.0, "b": 5.0}, 1021.0)
    assert rota.due(1023.0) == ["a", "b"]
    rota.arrange({}, 1023.0)
    assert rota.next_at() is None
    assert rota.due(10_000.0) == []
