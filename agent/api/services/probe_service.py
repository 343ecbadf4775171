"""ProbeService: the checks of the node, and the conditions that they made."""

from typing import TYPE_CHECKING, Any

from muster.agent.api.services import ServerContext, caller
from muster.agent.api.services.condition_message import condition_message, result_message
from muster.agent.errors import InvalidRequest
from muster.agent.messages.spec_message import duration
from muster.agent.node import all_checks
from muster.agent.text import plain
from muster.probes.checks import precheck
from muster.probes.checks.precheck import UnknownItem
from muster.supervisors.model.spec import Violation
from muster.supervisors.system import descriptors
from muster.v1 import probe_pb2, probe_pb2_grpc

if TYPE_CHECKING:
    from grpc import aio

    _Context = aio.ServicerContext[Any, Any]

#: Items that one request may name.
MAX_ITEMS = 256


class ProbeService(probe_pb2_grpc.ProbeServiceServicer):
    """Both kinds of checks: those before a job's start, whose results are answers only, and those of the node, from
    which conditions follow."""

    def __init__(self, context: ServerContext) -> None:
        self._server = context

    async def ListChecks(
        self, request: probe_pb2.ListChecksRequest, context: "_Context"
    ) -> probe_pb2.ListChecksResponse:
        """See probe.proto."""
        config = self._server.config()
        off = 'switched off: [checks] policy is "off"' if config.checks.policy == "off" else ""
        answer = probe_pb2.ListChecksResponse()
        for entry in precheck.catalogue():
            answer.checks.add(
                item=entry.item, looks_at=entry.checks, codes=entry.codes, when=["start"], not_applicable=off
            )
        off = 'switched off: [health] policy is "off"' if config.health.policy == "off" else ""
        for check, why in self._server.health.checks():
            periodic = check.interval_s > 0
            answer.checks.add(
                item=check.item,
                looks_at=check.looks_at,
                codes=[str(code) for code in check.codes],
                when=["start", "period"] if periodic else ["event"],
                interval=duration(check.interval_s) if periodic else None,
                not_applicable=plain(off or why),
            )
        return answer

    async def RunChecks(self, request: probe_pb2.RunChecksRequest, context: "_Context") -> probe_pb2.RunChecksResponse:
        """See probe.proto. Raises InvalidRequest."""
        if len(request.items) > MAX_ITEMS:
            raise InvalidRequest([Violation("items", f"{len(request.items)} items: at most {MAX_ITEMS} are allowed")])
        server = self._server
        # As for a job that wants every card.
        cards = precheck.CardsWanted(every=True)
        asked = precheck.CheckRequest(
            cards=cards,
            driver=server.driver,
            nursery=server.registry.nursery_pid,
            nofile=descriptors.given_limit(),
        )
        of_node = [check.item for check, _ in server.health.checks()]
        try:
            results = await all_checks.run(
                server.config().checks, asked, server.health.look, of_node, list(request.items)
            )
        except UnknownItem as error:
            raise InvalidRequest([Violation("items", str(error))]) from None
        return probe_pb2.RunChecksResponse(results=[result_message(result) for result in results])

    async def ClearConditions(
        self, request: probe_pb2.ClearConditionsRequest, context: "_Context"
    ) -> probe_pb2.ClearConditionsResponse:
        """See probe.proto. Raises InvalidRequest, ConditionNotFound, NoRoom."""
        gone = await self._server.health.clear(request.code, request.device, caller(context))
        return probe_pb2.ClearConditionsResponse(conditions=[condition_message(condition) for condition in gone])

    async def InjectCondition(
        self, request: probe_pb2.InjectConditionRequest, context: "_Context"
    ) -> probe_pb2.InjectConditionResponse:
        """See probe.proto. Raises InvalidRequest, NoRoom."""
        card = request.card if request.HasField("card") else None
        made = await self._server.health.inject(request.code, card, request.reason, caller(context))
        return probe_pb2.InjectConditionResponse(condition=condition_message(made))
