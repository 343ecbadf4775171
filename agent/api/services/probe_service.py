"""ProbeService: the checks of the node, and the conditions that they made."""

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import structlog

from muster.agent import threads
from muster.agent.api import access
from muster.agent.api.services import ServerContext
from muster.agent.api.services.condition_message import condition_message, result_message
from muster.agent.errors import InvalidRequest
from muster.agent.messages.spec_message import duration
from muster.agent.node import all_checks
from muster.agent.node.condition_rules import explained
from muster.agent.text import plain
from muster.probes.checks import precheck
from muster.probes.checks.precheck import UnknownItem
from muster.probes.checks.result import CheckResult, Code
from muster.supervisors.model.spec import Violation
from muster.supervisors.system import descriptors
from muster.v1 import probe_pb2, probe_pb2_grpc

if TYPE_CHECKING:
    from grpc import aio

    from muster.v1 import job_pb2

    _Context = aio.ServicerContext[Any, Any]

#: Items that one request may name.
MAX_ITEMS = 256
#: Results that one report may have: every test of every card that muster counts.
MAX_RESULTS = 1024

_log = structlog.get_logger(__name__)


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
        gone = await self._server.health.clear(request.code, request.device, access.named(context))
        if request.code == Code.ACTIVE_SLOW and (uuids := {c.uuid for c in gone if c.uuid and not c.injected}):
            await self._forget_figures(uuids)
        return probe_pb2.ClearConditionsResponse(conditions=[condition_message(condition) for condition in gone])

    async def _forget_figures(self, uuids: Collection[str]) -> None:
        from muster.agent.node import active_look  # most daemons never test a card

        try:
            await threads.run(active_look.forget, self._server.root.active_figures, uuids)
        except OSError as error:
            _log.warning("active.not_forgotten", error=str(error))

    async def InjectCondition(
        self, request: probe_pb2.InjectConditionRequest, context: "_Context"
    ) -> probe_pb2.InjectConditionResponse:
        """See probe.proto. Raises InvalidRequest, NoRoom."""
        card = request.card if request.HasField("card") else None
        made = await self._server.health.inject(request.code, card, request.reason, access.named(context))
        return probe_pb2.InjectConditionResponse(condition=condition_message(made))

    async def ReportResults(
        self, request: probe_pb2.ReportResultsRequest, context: "_Context"
    ) -> probe_pb2.ReportResultsResponse:
        """See probe.proto. Raises InvalidRequest, NoRoom."""
        if len(request.results) > MAX_RESULTS:
            many = f"{len(request.results)} results: at most {MAX_RESULTS} are allowed"
            raise InvalidRequest([Violation("results", many)])
        shown = self._server.driver.view.cards
        results = [_reported(result, shown) for result in request.results]
        there = await self._server.health.report(results, access.named(context))
        return probe_pb2.ReportResultsResponse(conditions=[condition_message(condition) for condition in there])


def _reported(told: "job_pb2.CheckResult", shown: Collection[int]) -> CheckResult:
    """Raises InvalidRequest for what is no result of an active check, or of no card of this node."""
    from muster.probes.active import active_check  # with all that it runs, of which a daemon needs nothing else

    entry = next((one for one in active_check.catalogue() if one.item == told.item), None)
    if entry is None or told.code not in entry.codes:
        raise InvalidRequest([Violation("results", f"{told.item!r}, {told.code!r}: no result of an active check")])
    number = told.device.removeprefix("card ")
    if not number.isdecimal() or int(number) not in shown:
        raise InvalidRequest([Violation("results", f"{told.device!r}: must name a card of this node, as in 'card 0'")])
    code, meaning = explained(told.code)
    return CheckResult(
        told.item,
        meaning.status,
        code,
        plain(told.reason),
        plain(told.observed),
        action=meaning.action,
        device=told.device,
        card=int(number),
    )
