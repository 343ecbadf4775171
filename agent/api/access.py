"""Authorization: the only module that finds and checks the role of a call.

A unix socket has a role, and the mode of its file decides who may connect. Over TCP, the configuration maps the names
in the client's certificate to a role. Every method that is not in LOOKS needs the operator role.
"""

import contextlib
import enum
import time
from collections.abc import Callable, Collection
from typing import Any

from muster.agent.api import certificate
from muster.agent.errors import NotAllowed, NotKnown
from muster.probes.kernel.dataclass import dataclass


class Role(enum.Enum):
    """What a caller may do."""

    READER = "reader"
    OPERATOR = "operator"


_MAX_CLAIM = 128
_PACKAGE = "/muster.v1."
#: Calls that change nothing and run nothing. GetStacks and RunChecks are not here: they run programs as root.
LOOKS = frozenset(
    {
        f"{_PACKAGE}EventService/Watch",
        f"{_PACKAGE}ExecService/ListSessions",
        f"{_PACKAGE}JobService/Get",
        f"{_PACKAGE}JobService/GetReport",
        f"{_PACKAGE}JobService/List",
        f"{_PACKAGE}JobService/Wait",
        f"{_PACKAGE}LogService/ReadLogs",
        f"{_PACKAGE}LogService/ReadNodeLogs",
        f"{_PACKAGE}NodeService/GetNode",
        f"{_PACKAGE}ProbeService/ListChecks",
        f"{_PACKAGE}TelemetryService/GetHistory",
        f"{_PACKAGE}TelemetryService/GetTelemetry",
        f"{_PACKAGE}TelemetryService/RecordTelemetry",
    }
)
#: gRPC's own services: health and reflection.
_PUBLIC = ("/grpc.health.v1.", "/grpc.reflection.")


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls. `role`: None if the configuration gives none. `name`: for people, a socket or a certificate.
    `client`: the certificate's name, which tells clients apart; empty on a unix socket."""

    role: Role | None
    name: str
    client: str = ""


def is_look(method: str) -> bool:
    """Whether a method ("/muster.v1.JobService/Get") changes nothing and runs nothing."""
    return method in LOOKS or method.startswith(_PUBLIC)


def check(method: str, caller: Caller) -> None:
    """Raises NotKnown if the caller has no role, NotAllowed if the role does not suffice."""
    if caller.role is None:
        raise NotKnown(caller.name)
    if caller.role is not Role.OPERATOR and not is_look(method):
        raise NotAllowed(method.rpartition(".")[2], caller.name)


def of_socket(role: Role, path: object) -> Callable[[Any], Caller]:
    """Finds the caller of a unix socket: the same for every connection."""
    caller = Caller(role, f"a client of {path}")
    return lambda _context: caller


def of_certificate(names: Callable[[], tuple[Collection[str], Collection[str]]]) -> Callable[[Any], Caller]:
    """Finds the caller by its verified certificate. `names` returns the names of operators and of readers.

    Each call checks the certificate's expiry again: a connection may outlive it, and TLS does not verify a resumed
    session.
    """

    def find(context: Any) -> Caller:
        found = certified(context)
        if found and time.time() > (end := _expires(context)):
            when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(end))
            return Caller(None, f"certificate {found[0]}, which expired at {when}, from {context.peer()}")
        operators, readers = names()
        for role, known in ((Role.OPERATOR, operators), (Role.READER, readers)):
            for name in found:
                if name in known:
                    return Caller(role, f"certificate {name} from {context.peer()}", f"certificate {name}")
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
    for key, value in context.invocation_metadata() or ():
        if key == "muster-caller":
            text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
            return "".join(char for char in text if char.isprintable())[:_MAX_CLAIM].strip()
    return ""
