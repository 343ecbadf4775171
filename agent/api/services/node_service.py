"""NodeService: the node itself, and whether it is in service."""

import os
import socket
from typing import TYPE_CHECKING, Any

from muster.agent import __version__, protobuf_times, threads
from muster.agent.api import access
from muster.agent.api.services import ServerContext
from muster.agent.api.services.card_message import cards_of
from muster.agent.api.services.condition_message import condition_message, drain_message
from muster.agent.errors import InvalidRequest
from muster.agent.host.build import BUILD
from muster.agent.reset.reset_report import ResetRequest, StepReport
from muster.agent.text import plain
from muster.probes.kernel import process
from muster.supervisors.model.spec import Violation
from muster.supervisors.system import scope
from muster.supervisors.system.cgroups import find_cgroup_root
from muster.supervisors.system.controllers import hierarchies
from muster.v1 import node_pb2, node_pb2_grpc

if TYPE_CHECKING:
    from grpc import aio

    _Context = aio.ServicerContext[Any, Any]

API_VERSION = "muster.v1"
MAX_REASON = 1000
#: A reset waits for jobs at most so long, in seconds.
MAX_WAIT_S = 30 * 86_400.0
#: Cards that one request may name.
MAX_CARDS = 256
_GIVE_CARD = "give a number, UUID, serial number or bus id"


class NodeService(node_pb2_grpc.NodeServiceServicer):
    """Says what this node and its daemon are, and takes it out of service."""

    def __init__(self, context: ServerContext) -> None:
        self._server = context

    async def GetNode(self, request: node_pb2.GetNodeRequest, context: "_Context") -> node_pb2.GetNodeResponse:
        """See node.proto."""
        return node_pb2.GetNodeResponse(node=await self._node())

    async def Drain(self, request: node_pb2.DrainRequest, context: "_Context") -> node_pb2.DrainResponse:
        """See node.proto. Raises InvalidRequest, NoRoom."""
        reason = request.reason.strip()
        if not reason:
            raise InvalidRequest([Violation("reason", "is empty: give the reason, for the users of the node")])
        if len(reason) > MAX_REASON:
            raise InvalidRequest(
                [Violation("reason", f"has {len(reason)} characters: at most {MAX_REASON} are allowed")]
            )
        await self._server.health.set_drain(reason, access.named(context))
        return node_pb2.DrainResponse(node=await self._node())

    async def Undrain(self, request: node_pb2.UndrainRequest, context: "_Context") -> node_pb2.UndrainResponse:
        """See node.proto. Raises ResetUnderWay, NoRoom."""
        self._server.resets.refuse_undrain()
        await self._server.health.undrain(access.named(context))
        await self._server.resets.undrained()
        return node_pb2.UndrainResponse(node=await self._node())

    async def AcceptCards(
        self, request: node_pb2.AcceptCardsRequest, context: "_Context"
    ) -> node_pb2.AcceptCardsResponse:
        """See node.proto. Raises InvalidRequest, NothingToAccept, NoRoom."""
        if bool(request.cards) is request.all:
            raise InvalidRequest([Violation("cards", "name the cards, or set `all`, not both")])
        if len(request.cards) > MAX_CARDS:
            raise InvalidRequest([Violation("cards", f"{len(request.cards)} cards: at most {MAX_CARDS} are allowed")])
        done = await self._server.health.accept(list(request.cards), access.named(context))
        accepted = [
            node_pb2.AcceptedCard(code=code, device=plain(device), reason=plain(reason))
            for code, device, reason in done
        ]
        return node_pb2.AcceptCardsResponse(accepted=accepted, node=await self._node())

    async def ResetCard(  # type: ignore[override]  # the generated base wants an iterator: those are finalised by grpc in another task
        self, request: node_pb2.ResetCardRequest, context: "_Context"
    ) -> None:
        """See node.proto. Raises InvalidRequest, NoSuchCard, CannotReset, ResetUnderWay."""
        if not request.card:
            raise InvalidRequest([Violation("card", f"is empty: {_GIVE_CARD}")])
        if len(request.card) > MAX_REASON:
            raise InvalidRequest([Violation("card", f"has {len(request.card)} characters: {_GIVE_CARD}")])
        wanted = ResetRequest(
            by=access.named(context),
            wait_s=protobuf_times.bounded(request.wait, "wait", MAX_WAIT_S) if request.HasField("wait") else 0.0,
            stop_jobs=request.stop_jobs,
            force=request.force,
            skip_active=request.skip_active,
        )
        progress = await self._server.resets.start(request.card, wanted)
        told = 0
        while not progress.over or told < len(progress.reports):
            seen = progress.changes.count
            for report in progress.reports[told:]:
                await context.write(_reset_message(report))
                told += 1
            if not progress.over:
                await progress.changes.beyond(seen)

    async def CancelReset(
        self, request: node_pb2.CancelResetRequest, context: "_Context"
    ) -> node_pb2.CancelResetResponse:
        """See node.proto. Raises ResetUnderWay."""
        self._server.resets.cancel(access.named(context))
        return node_pb2.CancelResetResponse()

    async def _node(self) -> node_pb2.Node:
        server = self._server
        registry, view, drain = server.registry, server.driver.view, server.health.drain
        return node_pb2.Node(
            hostname=socket.gethostname(),
            boot_id=process.boot_id(),
            version=__version__,
            build=BUILD,
            api_version=API_VERSION,
            daemon_started_at=protobuf_times.timestamp(server.started_at),
            daemon_pid=os.getpid(),
            nursery_pid=registry.nursery_pid,
            cards=await cards_of(server),
            active_jobs=len(registry.live()),
            containment=await threads.run(_containment),
            state_dir=plain(str(server.root.state)),
            log_dir=plain(str(server.root.log)),
            warnings=[plain(text) for text in self._warnings()],
            conditions=[condition_message(condition) for condition in server.health.conditions],
            drain=drain_message(drain) if drain is not None else None,
            accelerator=view.kind,
            driver_version=plain(view.version),
            pending_checks=server.health.pending,
            log_work=[plain(text) for text in server.keeping.work] if access.reach().is_everything else [],
        )

    def _warnings(self) -> list[str]:
        if not access.reach().is_everything:
            return []  # they name jobs, files and webhooks of others
        server = self._server
        parts = (server.health, server.telemetry, server.metrics)
        return [*server.registry.warnings(), *(text for part in parts for text in part.trouble)]


def _reset_message(report: StepReport) -> node_pb2.ResetCardResponse:
    return node_pb2.ResetCardResponse(
        step=report.step, status=report.status, text=plain(report.text), time=protobuf_times.timestamp(report.at)
    )


def _containment() -> str:
    if scope.is_available():
        return "systemd-scope"
    if find_cgroup_root() is not None:
        return "cgroup"
    return "freezer" if hierarchies.writable_folder("freezer") is not None else "process-group+subreaper"
