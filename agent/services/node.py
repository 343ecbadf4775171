"""NodeService: the node itself."""

import os
import socket
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from anyio import to_thread

from agent import convert
from agent.services import ServerContext
from agent.spec_message import plain
from muster.v1 import node_pb2, node_pb2_grpc
from supervisors import process
from supervisors.containment import find_cgroup_root

if TYPE_CHECKING:
    from grpc import aio

API_VERSION = "muster.v1"


class NodeService(node_pb2_grpc.NodeServiceServicer):
    """Says what this node and its daemon are."""

    def __init__(self, context: ServerContext) -> None:
        self._server = context

    async def GetNode(
        self, request: node_pb2.GetNodeRequest, context: "aio.ServicerContext[Any, Any]"
    ) -> node_pb2.GetNodeResponse:
        """See node.proto."""
        server = self._server
        registry = server.registry
        return node_pb2.GetNodeResponse(
            node=node_pb2.Node(
                hostname=socket.gethostname(),
                boot_id=process.boot_id(),
                version=version("muster-agent"),
                api_version=API_VERSION,
                daemon_started_at=convert.timestamp(server.started_at),
                daemon_pid=os.getpid(),
                nursery_pid=registry.nursery_pid,
                cards=[node_pb2.Card(index=card.index, kind=card.kind, job_id=card.job_id) for card in registry.cards],
                active_jobs=sum(not entry.job.state.final for entry in registry.entries()),
                containment=await to_thread.run_sync(_containment),
                state_dir=plain(str(server.root.state)),
                log_dir=plain(str(server.root.log)),
                warnings=[plain(text) for text in registry.warnings()],
            )
        )


def _containment() -> str:
    return "cgroup" if find_cgroup_root() is not None else "process-group+subreaper"
