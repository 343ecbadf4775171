"""`muster top` of cards whose tensor cores are known."""

from collections import defaultdict, deque

from muster.agent.cli.live import top_table
from muster.v1 import node_pb2, telemetry_pb2


def lines(*readings: node_pb2.CardReading) -> list[str]:
    cards = [
        node_pb2.Card(index=index, kind="nvidia", memory_bytes=80 << 30, health="OK", job_id="a", reading=reading)
        for index, reading in enumerate(readings)
    ]
    sparks: defaultdict[int, deque[float | None]] = defaultdict(lambda: deque[float | None]([100.0] * 16, maxlen=16))
    return top_table.screen(telemetry_pb2.GetTelemetryResponse(cards=cards), sparks, 80).splitlines()[2:]


def test_a_busy_card_with_idle_tensor_cores_is_seen():
    idle = node_pb2.CardReading(utilization=100, activity=node_pb2.CardActivity(tensor=0.3))
    head, one, other = lines(idle, node_pb2.CardReading(utilization=100))
    assert head.split()[:4] == ["CARD", "UTIL", "TENSOR", "MEMORY"]
    assert one.split()[:3] == ["0", "100%", "0%"]
    assert other.split()[:3] == ["1", "100%", "-"]
    end = head.index("TENSOR") + len("TENSOR")
    assert one[:end].endswith("0%") and other[:end].endswith("-")


def test_without_them_there_is_no_column_and_the_line_is_as_long():
    plain = lines(node_pb2.CardReading(utilization=50))
    with_it = lines(node_pb2.CardReading(utilization=50, activity=node_pb2.CardActivity(tensor=40)))
    assert "TENSOR" not in plain[0]
    assert len(plain[0]) == len(with_it[0]) and len(plain[1]) == len(with_it[1])
