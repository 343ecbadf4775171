"""Slots of calls: per listener and client, with a reserve for operators."""

import time
from types import SimpleNamespace
from typing import Any

import pytest

from muster.agent.api import slots
from muster.agent.api.access import Caller, Role
from muster.agent.api.server import connections
from muster.agent.api.slots import MAX_CALLS, MAX_UNTAKEN, HeldSlot, Listeners, SlotKind, Slots, kind_of
from muster.agent.config.schema import ExecTable, LimitsTable
from muster.agent.errors import NoSlot
from muster.agent.exposition import Page

READER, OPERATOR = Caller(Role.READER, "a socket"), Caller(Role.OPERATOR, "a socket")


def certificate(name: str, role: Role = Role.READER) -> Caller:
    return Caller(role, f"certificate {name} from ipv4:10.0.0.1:7", f"certificate {name}")


@pytest.fixture
def config() -> Any:
    return SimpleNamespace(limits=LimitsTable(max_followers=8, max_watchers=4), exec=ExecTable(max_streams=2))


@pytest.fixture
def listeners(config: Any) -> Listeners:
    return Listeners(lambda: config)


def end(held: HeldSlot) -> None:
    with held.handling():
        pass
    held.done()


def fill(of: Slots, kind: SlotKind, caller: Caller) -> list[HeldSlot]:
    """As many as there are."""
    found = []
    with pytest.raises(NoSlot):
        while True:
            found.append(of.take(kind, caller))
    return found


@pytest.mark.parametrize(
    ("method", "kind"),
    [
        ("/muster.v1.LogService/ReadLogs", SlotKind.LOGS),
        ("/muster.v1.LogService/ReadNodeLogs", SlotKind.LOGS),
        ("/muster.v1.EventService/Watch", SlotKind.EVENTS),
        ("/muster.v1.TelemetryService/RecordTelemetry", SlotKind.RECORDS),
        ("/muster.v1.ExecService/Exec", SlotKind.EXEC),
        ("/muster.v1.ExecService/RunCommand", SlotKind.EXEC),
        ("/muster.v1.JobService/Wait", SlotKind.CALLS),
        ("/grpc.health.v1.Health/Watch", SlotKind.CALLS),
        ("/muster.v1.JobService/Stop", None),
        ("/muster.v1.JobService/Start", None),
        ("/muster.v1.ExecService/EndSession", None),
    ],
)
def test_what_a_call_counts_as(method: str, kind: SlotKind | None) -> None:
    assert kind_of(method) == kind


def test_listeners_and_kinds_are_counted_apart(listeners: Listeners) -> None:
    readers, operators = listeners.add("readers", "r.sock"), listeners.add("operators", "o.sock")
    assert [len(fill(readers, kind, READER)) for kind in SlotKind] == [8, 4, 4, 2, MAX_CALLS]
    assert [len(fill(operators, kind, OPERATOR)) for kind in SlotKind] == [8, 4, 4, 2, MAX_CALLS]


def test_a_slot_comes_back_when_handler_and_call_are_over(listeners: Listeners) -> None:
    readers = listeners.add("readers", "r.sock")
    held = fill(readers, SlotKind.EXEC, READER)
    held[0].done()  # the client has left, and the handler hangs in a disk
    with pytest.raises(NoSlot):
        readers.take(SlotKind.EXEC, READER)
    with held[0].handling():
        pass
    again = readers.take(SlotKind.EXEC, READER)
    with again.handling():  # it answered, and the client does not read
        pass
    with pytest.raises(NoSlot):
        readers.take(SlotKind.EXEC, READER)
    again.done()
    end(readers.take(SlotKind.EXEC, READER))


def test_a_new_limit_holds_for_the_next_call(config: Any, listeners: Listeners) -> None:
    readers = listeners.add("readers", "r.sock")
    assert len(fill(readers, SlotKind.EVENTS, READER)) == 4
    config.limits = LimitsTable(max_watchers=6)
    assert len(fill(readers, SlotKind.EVENTS, READER)) == 2


def test_the_refusal_names_what_where_how_many_and_the_setting(listeners: Listeners) -> None:
    readers = listeners.add("readers", "/run/muster/reader.sock")
    fill(readers, SlotKind.LOGS, READER)
    with pytest.raises(NoSlot) as caught:
        readers.take(SlotKind.LOGS, READER)
    what = "too many readers of logs at /run/muster/reader.sock: the limit is 8"
    assert str(caught.value) == f"{what}; try again later, or raise max_followers in [limits]"
    assert caught.value.reason == "TOO_MANY_STREAMS"
    assert caught.value.metadata() == {
        "what": "readers of logs", "limit": "8", "listener": "/run/muster/reader.sock"
    }  # fmt: skip
    fill(readers, SlotKind.EXEC, OPERATOR)
    with pytest.raises(NoSlot, match="max_streams in") as caught:
        readers.take(SlotKind.EXEC, OPERATOR)
    assert caught.value.reason == "TOO_MANY"


def test_one_certificate_gets_a_part_in_every_role(listeners: Listeners) -> None:
    tls = listeners.add("tls", "[::]:7", shared=True)
    for caller in (certificate("a"), certificate("b", Role.OPERATOR)):
        held = fill(tls, SlotKind.LOGS, caller)
        assert len(held) == 4
        with pytest.raises(NoSlot, match=rf"of {caller.client} at .*: the limit is 4; .* client_percent in \[limits\]"):
            tls.take(SlotKind.LOGS, caller)
        end(held.pop())
        held.append(tls.take(SlotKind.LOGS, caller))
        for one in held:
            end(one)


def test_readers_leave_a_part_to_operators(listeners: Listeners) -> None:
    tls = listeners.add("tls", "[::]:7", shared=True)
    assert [len(fill(tls, SlotKind.LOGS, certificate(name))) for name in "abc"] == [4, 2, 0]
    assert len(fill(tls, SlotKind.LOGS, certificate("o", Role.OPERATOR))) == 2


def test_a_reader_always_gets_one(config: Any, listeners: Listeners) -> None:
    config.limits = LimitsTable(max_followers=1, client_percent=1, reserved_percent=90)
    assert len(fill(listeners.add("tls", "[::]:7", shared=True), SlotKind.LOGS, certificate("a"))) == 1


def test_answers_that_are_not_taken_count_by_their_bytes(listeners: Listeners) -> None:
    tls = listeners.add("tls", "[::]:7", shared=True)
    greedy = certificate("a")
    held = tls.take(SlotKind.CALLS, greedy)
    held.answered(MAX_UNTAKEN // 2)
    with pytest.raises(NoSlot, match="bytes of answers that clients have not taken of certificate a"):
        tls.take(SlotKind.CALLS, greedy)
    end(tls.take(SlotKind.CALLS, certificate("b")))
    end(held)
    end(tls.take(SlotKind.CALLS, greedy))


def test_metrics(listeners: Listeners, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    readers = listeners.add("readers", "r.sock")
    held = fill(readers, SlotKind.EVENTS, READER)
    for who in ("alice (muster, pid 1)", "alice (muster, pid 1)", "bob (muster, pid 2)"):
        with pytest.raises(NoSlot):
            readers.take(SlotKind.EVENTS, READER, who)

    def shown() -> dict[str, str]:
        page = Page()
        listeners.fill(page)
        lines = [line for line in page.text().decode().splitlines() if 'kind="events"' in line]
        return {line.partition("{")[0]: line.rpartition(" ")[2] for line in lines}

    names = ("muster_streams", "muster_streams_limit", "muster_streams_waiting", "muster_streams_refused_total")
    # Two of them said who they are, and one did not.
    assert shown() == dict(zip(names, ("4", "4", "3", "4"), strict=True))
    end(held.pop())
    readers.take(SlotKind.EVENTS, READER, "bob (muster, pid 2)")
    assert shown()["muster_streams_waiting"] == "2"
    now += slots.WAITS_S + 1  # they have given up
    assert shown()["muster_streams_waiting"] == "0"


@pytest.mark.parametrize(("descriptors", "readers", "operators"), [(1 << 20, 256, 1024), (1024, 128, 256), (64, 8, 16)])
def test_connections_leave_half_of_the_descriptors(descriptors: int, readers: int, operators: int) -> None:
    assert connections(LimitsTable(), operators=False, descriptors=descriptors) == readers
    assert connections(LimitsTable(), operators=True, descriptors=descriptors) == operators
    assert 2 * readers + operators <= descriptors / 2
