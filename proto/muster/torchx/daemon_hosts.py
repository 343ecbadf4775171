"""Which daemons a command talks to: their notation, and where it is read from."""

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

#: The daemon of this node, where nothing else is named.
LOCAL_SOCKET = Path("/run/muster/muster.sock")
#: Daemons for all commands of a shell, in the notation of the option `hosts`.
HOSTS_VARIABLE = "MUSTER_HOSTS"
#: Run options that name files of TLS, and the variables that do, as for the command `muster`.
TLS_OPTIONS = {"tls_ca": "MUSTER_TLS_CA", "tls_cert": "MUSTER_TLS_CERT", "tls_key": "MUSTER_TLS_KEY"}
#: Linux' limit for the path of a unix socket, in bytes.
MAX_SOCKET = 107


class WrongOption(ValueError):
    """Raised when a run option, or what stands for it, cannot be used. `option`: its name."""

    def __init__(self, option: str, text: str) -> None:
        super().__init__(text)
        self.option = option


@dataclass(frozen=True, slots=True)
class DaemonHost:
    """A daemon. `address`: `unix:PATH` or HOST:PORT. `name`: where other nodes reach this one; empty: its host, or for
    a socket this machine."""

    address: str
    name: str = ""

    @property
    def local(self) -> bool:
        """Whether it is a socket of this machine."""
        return self.address.startswith("unix:")

    def reached_at(self, all_local: bool) -> str:
        """Host name or address for the replicas on other nodes. `all_local`: they are all on this machine."""
        if self.name:
            return self.name
        if not self.local:
            return self.address.rpartition(":")[0].removeprefix("[").removesuffix("]")
        return "localhost" if all_local else socket.gethostname()

    def __str__(self) -> str:
        return f"{self.name}@{self.address}" if self.name else self.address


@dataclass(frozen=True, slots=True)
class HostTls:
    """Files in PEM for daemons over TCP; empty: not given."""

    ca: str = ""
    cert: str = ""
    key: str = ""


@dataclass(frozen=True, slots=True)
class KnownHosts:
    """Daemons in the order of their nodes, and the files for those over TCP."""

    hosts: tuple[DaemonHost, ...] = ()
    tls: HostTls = HostTls()


def parse_host(text: str) -> DaemonHost:
    """`[NAME@]ADDRESS`, where ADDRESS is unix:PATH, unix:///PATH, a path, or HOST:PORT. Raises WrongOption."""
    name, _, where = text.strip().rpartition("@")
    if "@" in text and not name:
        raise WrongOption("hosts", f"{text!r}: the name before @ is empty: give NAME@ADDRESS or ADDRESS")
    path = where.removeprefix("unix:")
    if path != where or where.startswith(("/", "./", "../")):
        path = f"/{path.lstrip('/')}" if path.startswith("//") else path
        if not path or "\0" in path:
            raise WrongOption("hosts", f"{text!r}: has no path of a socket: give unix:/run/muster/muster.sock")
        path = os.path.abspath(path)
        if (length := len(os.fsencode(path))) > MAX_SOCKET:
            raise WrongOption("hosts", f"{path}: has {length} bytes, the path of a socket has at most {MAX_SOCKET}")
        return DaemonHost(f"unix:{path}", name)
    host, _, port = where.rpartition(":")
    if host and port.isascii() and port.isdigit() and 0 < int(port[:6]) <= 65535:
        return DaemonHost(where, name)
    raise WrongOption("hosts", f"{text!r}: must be HOST:PORT or unix:PATH: write gpu1:7443;gpu2:7443")


def parse_hosts(words: Sequence[str]) -> tuple[DaemonHost, ...]:
    """In the order given; one that is named twice takes two replicas. Raises WrongOption."""
    return tuple(parse_host(word) for word in words if word.strip())


def chosen(
    options: Mapping[str, object], settings: Callable[[], Mapping[str, object]], *, or_local: bool = True
) -> KnownHosts:
    """What `options` name, else `settings`, those of .torchxconfig, else the environment, else this node's own daemon.
    In this order, because `torchx run` makes options of the settings.

    Raises WrongOption.
    """
    read: Mapping[str, object] | None = None

    def value(option: str, variable: str) -> object:
        nonlocal read
        found = options.get(option)
        if not found:
            read = settings() if read is None else read
            found = read.get(option)
        return found or os.environ.get(variable)

    given = value("hosts", HOSTS_VARIABLE)
    words = given if isinstance(given, list) else [given or ""]
    hosts = parse_hosts([part for word in words for part in str(word).replace(";", ",").split(",")])
    if not hosts and or_local and LOCAL_SOCKET.exists():
        hosts = (DaemonHost(f"unix:{LOCAL_SOCKET}"),)
    if all(host.local for host in hosts):
        return KnownHosts(hosts)
    files = {option: str(value(option, variable) or "") for option, variable in TLS_OPTIONS.items()}
    return KnownHosts(hosts, HostTls(*(os.path.abspath(file) if file else "" for file in files.values())))
