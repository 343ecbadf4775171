"""TelemetryService: what cards and jobs do, and what they did."""

import math
import time
from typing import TYPE_CHECKING

import anyio
from google.protobuf.duration_pb2 import Duration

from muster.agent import protobuf_times
from muster.agent.api import access, own_jobs
from muster.agent.api.services import ServerContext
from muster.agent.api.services.card_message import cards_of
from muster.agent.errors import InvalidRequest
from muster.agent.messages import convert
from muster.agent.telemetry.history.history_rows import METRICS, FoundSeries
from muster.agent.telemetry.job_usage import RankUsage
from muster.agent.telemetry.records import Lost, TelemetryRecord, encoded
from muster.agent.telemetry.sampling import JobSample, card_key
from muster.probes.cards.accelerator import ASCEND, NVIDIA
from muster.supervisors.model.spec import Violation
from muster.v1 import telemetry_pb2
from muster.v1.telemetry_pb2_grpc import TelemetryServiceServicer

if TYPE_CHECKING:
    from google.protobuf.timestamp_pb2 import Timestamp
    from grpc import aio

    _Unary = aio.ServicerContext[telemetry_pb2.GetHistoryRequest, telemetry_pb2.GetHistoryResponse]
    _Now = aio.ServicerContext[telemetry_pb2.GetTelemetryRequest, telemetry_pb2.GetTelemetryResponse]
    _Stream = aio.ServicerContext[telemetry_pb2.RecordTelemetryRequest, telemetry_pb2.RecordTelemetryResponse]

#: Steps of an answer where no step is asked for, and at most.
POINTS, MAX_POINTS = 1000, 20_000
#: Points of all series together: more would not fit into a message as clients take it (4 MiB).
MAX_TOGETHER = 80_000
#: How the metrics of a row are called where they are those of a card of this kind.
_OF_CARDS = {
    NVIDIA: {
        "util": "gpuUtil",
        "card_mem": "gpuMemUsage",
        "sm": "gpuSmUtil",
        "tensor": "gpuTensorUtil",
        "dram": "gpuDramUtil",
    },
    ASCEND: {"util": "npuUtil", "card_mem": "npuMemUsage"},
}
_OF_HOSTS = {"cpu": "cpuUsage", "mem": "memUsage", "power": "power"}
NAMES = (*_OF_HOSTS.values(), *(name for names in _OF_CARDS.values() for name in names.values()))
_HOUR_S = 3600.0
#: Seconds between two looks whether the job whose records are read has ended.
LOOK_S = 2.0


class TelemetryService(TelemetryServiceServicer):
    """Shows what `muster.agent.telemetry.sampling` has."""

    def __init__(self, context: ServerContext) -> None:
        self._server = context
        self._telemetry = context.telemetry

    async def GetTelemetry(
        self, request: telemetry_pb2.GetTelemetryRequest, context: "_Now"
    ) -> telemetry_pb2.GetTelemetryResponse:
        """See telemetry.proto. Raises JobNotFound."""
        self._telemetry.watched()
        cards = await cards_of(self._server)
        if request.job_id:
            entry = await self._server.registry.get(request.job_id)
            samples = [await self._telemetry.job(entry)]
            cards = [card for card in cards if card.job_id == request.job_id]
        else:
            reach = access.reach()
            samples = [sample for sample in self._telemetry.jobs() if reach.covers(sample.entry.spec.user)]
        answer = telemetry_pb2.GetTelemetryResponse(
            at=protobuf_times.timestamp(time.time()), cards=cards, jobs=[self._job(sample) for sample in samples]
        )
        node = self._telemetry.node
        if node is not None and node.cpu is not None:
            answer.cpu_usage = node.cpu
        if node is not None and node.mem is not None:
            answer.mem_usage = node.mem
        return answer

    async def GetHistory(
        self, request: telemetry_pb2.GetHistoryRequest, context: "_Unary"
    ) -> telemetry_pb2.GetHistoryResponse:
        """See telemetry.proto. Raises InvalidRequest, JobNotFound, HistoryUnreadable."""
        start, end, step = self._range(request)
        history = self._telemetry.history
        if request.job_id:
            start = max(start, own_jobs.since(access.reach(), self._server.registry, request.job_id))
            found = [] if start >= end else await history.job(request.job_id, start, end, step)
            if not found:
                await self._server.registry.get(request.job_id)
        elif request.HasField("card"):
            card = self._server.driver.view.cards.get(request.card)
            found = await history.card(card_key(card).name if card else "", request.card, start, end, step)
            if not found and card is None:
                there = ", ".join(str(index) for index in self._server.driver.view.cards) or "none"
                raise InvalidRequest([Violation("card", f"{request.card}: the cards of this node are: {there}")])
        else:
            found = await history.node(start, end, step)
        answer = telemetry_pb2.GetHistoryResponse(step=_duration(step))
        wanted = frozenset(request.metrics or NAMES)
        points = 0
        for one in found:
            for series in _series(one, wanted, start, step):
                points += len(series.points)
                answer.series.append(series)
        if points > MAX_TOGETHER:
            what = (
                f"{step:g} s gives {points} points in {len(answer.series)} series: at most {MAX_TOGETHER} are allowed"
            )
            raise InvalidRequest([Violation("step", f"{what}: ask for longer steps, a shorter time, or fewer metrics")])
        return answer

    async def RecordTelemetry(  # type: ignore[override]  # the generated base wants an iterator: those are finalised by grpc in another task
        self, request: telemetry_pb2.RecordTelemetryRequest, context: "_Stream"
    ) -> None:
        """See telemetry.proto; ends when the job has ended. Raises JobNotFound."""
        registry, reach = self._server.registry, access.reach()
        entry = await registry.get(request.job_id) if request.job_id else None

        def sees(record: TelemetryRecord) -> bool:
            return record.t >= own_jobs.since(reach, registry, record.job)

        with self._telemetry.records.subscribed(request.job_id, sees) as subscription:
            while entry is None or not entry.job.state.final:
                records: list[TelemetryRecord | Lost] = []
                with anyio.move_on_after(LOOK_S):
                    records = await subscription.some()
                for record in records:
                    await context.write(telemetry_pb2.RecordTelemetryResponse(line=encoded(record).decode()))

    def _job(self, sample: JobSample) -> telemetry_pb2.JobTelemetry:
        usage, change = sample.usage, self._server.hangs.slow(sample.entry)
        slow = change.ranks if change is not None else ()
        return telemetry_pb2.JobTelemetry(
            job_id=sample.entry.job_id,
            state=convert.state_to(sample.entry.job.state),
            ranks=[_rank(rank, rank.rank in slow) for rank in sample.ranks],
            card_utilization=sample.mean,
            underused=sample.underused,
            processes=usage.processes if usage else 0,
            slow_ranks=slow,
        )

    def _range(self, request: telemetry_pb2.GetHistoryRequest) -> tuple[float, float, float]:
        """Begin, end and step, in seconds; the begin is a multiple of the step. Raises InvalidRequest."""
        found: list[Violation] = []
        unknown = [name for name in request.metrics if name not in NAMES]
        if unknown:
            found.append(Violation("metrics", f"{unknown[0]!r}: is not a metric: the metrics are {', '.join(NAMES)}"))
        if request.job_id and request.HasField("card"):
            found.append(Violation("card", "together with job_id: a job's history has all its cards; leave one out"))
        now = time.time()
        end = _seconds(request.end, "end", found) if request.HasField("end") else now
        start = _seconds(request.start, "start", found) if request.HasField("start") else end - _HOUR_S
        settings = self._server.config().telemetry
        if not found and start >= end:
            found.append(Violation("start", "is not before the end: give an earlier start, or a later end"))
        # Older rows do not exist, and a range that begins in 1970 must not make steps of a month.
        start = max(start, now - (settings.history_days + 1) * 86400)
        end = min(end, now + settings.readings_s)
        length = max(0.0, end - start)
        if request.HasField("step"):
            step = protobuf_times.seconds(request.step, "step", found)
            if step <= 0:
                found.append(Violation("step", f"{step:g} s: must be above 0"))
            elif length / step > MAX_POINTS:
                found.append(
                    Violation("step", f"{step:g} s gives {length / step:.0f} points: at most {MAX_POINTS} are allowed")
                )
        else:
            step = _default_step(length, settings.readings_s, start >= now - _HOUR_S)
        if found:
            raise InvalidRequest(found)
        return math.floor(start / step) * step, end, step


def _default_step(length: float, readings_s: float, fresh: bool) -> float:
    """As fine as what is kept: the readings of the last hour, minutes of the days before."""
    kept = readings_s if fresh else max(60.0, readings_s)
    return kept * max(1, math.ceil(length / kept / POINTS))


def _seconds(stamp: "Timestamp", field: str, found: list[Violation]) -> float:
    """Since the epoch. What protobuf itself does not allow is added to `found`."""
    if not (-62_135_596_800 <= stamp.seconds <= 253_402_300_799 and 0 <= stamp.nanos <= 999_999_999):
        found.append(
            Violation(field, f"{stamp.seconds} s and {stamp.nanos} ns: is not a valid google.protobuf.Timestamp")
        )
        return 0.0
    return stamp.seconds + stamp.nanos / 1e9


def _duration(seconds: float) -> Duration:
    whole = math.floor(seconds)
    return Duration(seconds=whole, nanos=round((seconds - whole) * 1e9))


def _series(found: FoundSeries, wanted: frozenset[str], start: float, step: float) -> list[telemetry_pb2.Series]:
    """One for each metric that has any point."""
    names = _OF_HOSTS | _OF_CARDS.get(found.card_kind, {})
    answer = []
    for number, metric in enumerate(METRICS):
        name = names.get(metric)
        if name is None or name not in wanted:
            continue
        series = telemetry_pb2.Series(metric=name)
        if found.key.kind == "card" and found.card is not None:
            series.card = found.card
        for place in sorted(found.steps):
            triple = found.steps[place].values[number]
            if triple is not None:
                at = protobuf_times.timestamp_ns(round((start + place * step) * 1e6) * 1000)
                series.points.add(at=at, mean=triple[0], least=triple[1], most=triple[2])
        if series.points:
            answer.append(series)
    return answer


def _rank(usage: RankUsage, slow: bool) -> telemetry_pb2.RankTelemetry:
    return telemetry_pb2.RankTelemetry(
        rank=usage.rank,
        device=usage.device,
        pid=usage.pid,
        processes=usage.processes,
        cpu=usage.cpu,
        memory_bytes=usage.memory_bytes,
        read_rate=usage.read_rate,
        write_rate=usage.write_rate,
        state=usage.state,
        at=protobuf_times.timestamp(usage.at),
        slow=slow,
    )
