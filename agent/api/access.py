"""Authorization: the only module that finds and checks the role of a call.

A unix socket has a role, and the mode of its file decides who may connect. Over TCP, the configuration maps the names
in the client's certificate to a role. Every method that is not in LOOKS needs the operator role. Whose jobs a caller
may reach: own_jobs.py. Which user it is: on a unix socket the token of identity.py says it.
"""

import contextlib
import enum
import os
import time
from collections.abc import Callable, Collection
from contextvars import ContextVar
from typing import Any

from muster.agent.api import certificate, own_jobs
from muster.agent.api.identity import PeerProcess, Tokens
from muster.agent.api.own_jobs import EVERYTHING, PACKAGE, Reach
from muster.agent.config.access_settings import AccessTable
from muster.agent.errors import ApiError, IdentityNeeded, NotAllowed, NotKnown, TokenRefused
from muster.agent.text import utc
from muster.client.own_token import CLAIM_HEADER, HEADER, by_command
from muster.probes.kernel.dataclass import dataclass


class Role(enum.Enum):
    """What a caller may do."""

    READER = "reader"
    OPERATOR = "operator"


_MAX_CLAIM = 128
#: The client in whose name those call who do not show who they are.
_UNKNOWN = "clients without a token"
#: Calls that change nothing and run nothing. GetStacks and RunChecks are not here: they run programs as root.
LOOKS = frozenset(
    {
        f"{PACKAGE}EventService/Watch",
        f"{PACKAGE}ExecService/ListSessions",
        f"{PACKAGE}JobService/Get",
        f"{PACKAGE}JobService/GetReport",
        f"{PACKAGE}JobService/List",
        f"{PACKAGE}JobService/Wait",
        f"{PACKAGE}LogService/ReadLogs",
        f"{PACKAGE}LogService/ReadNodeLogs",
        f"{PACKAGE}NodeService/GetNode",
        f"{PACKAGE}ProbeService/ListChecks",
        f"{PACKAGE}TelemetryService/GetHistory",
        f"{PACKAGE}TelemetryService/GetTelemetry",
        f"{PACKAGE}TelemetryService/RecordTelemetry",
    }
)
#: gRPC's own services: health and reflection.
_PUBLIC = ("/grpc.health.v1.", "/grpc.reflection.")


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls. `role`: None if the configuration gives none. `name`: for people: a process, socket or certificate.
    `client`: the certificate or the user, which tells clients apart; empty: it cannot be told, or may do all that the
    daemon may. `peer`: the process at the other end of a unix socket, if it showed a token. `reach`: whose jobs it may
    reach. `refused`: why it may call nothing."""

    role: Role | None
    name: str
    client: str = ""
    peer: PeerProcess | None = None
    reach: Reach = EVERYTHING
    refused: ApiError | None = None


#: Who makes the present call. Handlers can be called without a boundary, as by tests.
PRESENT: ContextVar[Caller] = ContextVar("caller", default=Caller(Role.OPERATOR, "nobody"))  # noqa: B039  # frozen


def reach() -> Reach:
    """Whose jobs the present caller may reach."""
    return PRESENT.get().reach


def is_look(method: str) -> bool:
    """Whether a method ("/muster.v1.JobService/Get") changes nothing and runs nothing."""
    return method in LOOKS or method.startswith(_PUBLIC)


def check(method: str, caller: Caller) -> None:
    """Raises NotKnown if the caller has no role, NotAllowed if the role does not suffice, NotTheirs if the call is for
    those who reach all jobs, IdentityNeeded or TokenRefused if it is not known who calls."""
    if caller.role is None:
        raise NotKnown(caller.name)
    if method.startswith(_PUBLIC):
        return
    if caller.refused is not None and not (isinstance(caller.refused, IdentityNeeded) and own_jobs.is_of_node(method)):
        raise caller.refused
    if caller.role is not Role.OPERATOR and not is_look(method):
        raise NotAllowed(method.rpartition(".")[2], caller.name)
    own_jobs.check(caller.reach, method)


def of_socket(role: Role, path: object, tokens: Tokens, table: Callable[[], AccessTable]) -> Callable[[Any], Caller]:
    """Finds the caller of a unix socket by its token. Without one, or with a bad one, all that is known of it is the
    socket."""

    def find(context: Any) -> Caller:
        access = table()
        token = _metadata(context, HEADER)
        name = f"a client of {path}"
        if not token:
            if access.own_jobs_only:  # all of them together have the share of one client
                return Caller(role, name, _UNKNOWN, refused=IdentityNeeded(name))
            return Caller(role, name)
        try:
            peer = tokens.peer(token)
        except TokenRefused as error:
            return Caller(role, name, _UNKNOWN if access.own_jobs_only else "", refused=error)
        mine = peer.uid in (0, os.geteuid())
        reach = own_jobs.of_user(access, peer.uid, peer.user, mine=mine)
        return Caller(role, f"{peer} by {path}", "" if mine else f"user {peer.user}", peer, reach)

    return find


def of_certificate(
    names: Callable[[], tuple[Collection[str], Collection[str]]], table: Callable[[], AccessTable] = AccessTable
) -> Callable[[Any], Caller]:
    """Finds the caller by its verified certificate. `names` returns the names of operators and of readers.

    Each call checks the certificate's expiry again: a connection may outlive it, and TLS does not verify a resumed
    session.
    """

    def find(context: Any) -> Caller:
        found = certified(context)
        if found and time.time() > (end := _expires(context)):
            when = utc(end)
            return Caller(None, f"certificate {found[0]}, which expired at {when}, from {context.peer()}")
        operators, readers = names()
        for role, known in ((Role.OPERATOR, operators), (Role.READER, readers)):
            for name in found:
                if name in known:
                    reach = own_jobs.of_certificate(table(), name)
                    client = f"certificate {name}"
                    return Caller(role, f"{client} from {context.peer()}", client, reach=reach)
        return Caller(None, f"certificate {found[0] if found else 'without a name'} from {context.peer()}")

    return find


def certified(context: Any) -> tuple[str, ...]:
    """The names in a caller's certificate; none on a unix socket."""
    with contextlib.suppress(ValueError):
        return certificate.names(_presented(context))
    return ()


def _expires(context: Any) -> float:
    """The certificate's expiry in seconds since the epoch; 0 if it cannot be read."""
    with contextlib.suppress(ValueError):
        return certificate.expires(_presented(context))
    return 0.0


def _presented(context: Any) -> bytes:
    """The caller's certificate in PEM; empty on a unix socket."""
    return next(iter(context.auth_context().get("x509_pem_cert", ())), b"")


def claimed(context: Any) -> str:
    """The name that a client claims in the metadata `muster-caller`, cut to 128 printable characters; empty if absent.
    It is not an identity: any client that may open the socket may claim any name."""
    text = _metadata(context, CLAIM_HEADER)
    return "".join(char for char in text if char.isprintable())[:_MAX_CLAIM].strip()


def named(context: Any) -> str:
    """Who calls, for journal and events: what is proven of the user or the certificate, then the name that the client
    claims, in quotes. A claim may look like anything that is proven."""
    says, peer = claimed(context), PRESENT.get().peer
    names = () if peer is not None else certified(context)
    who = str(peer) if peer is not None else f"certificate {names[0]}" if names else ""
    # The command `muster` claims what the token shows.
    if peer is not None and says in (by_command(user, peer.pid) for user in (peer.user, f"uid {peer.uid}")):
        return who
    if not says:
        return who or "a client of the unix socket"
    return f"{who}, calling itself {says!r}" if who else repr(says)


def _metadata(context: Any, wanted: str) -> str:
    """An entry of the call's metadata; empty if absent."""
    for key, value in context.invocation_metadata() or ():
        if key == wanted:
            return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    return ""
