"""The daemons of an app: one connection each."""

import getpass
import os
import threading
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from pathlib import Path

import grpc

from muster.client import BlockingClient, connect_blocking
from muster.torchx.daemon_hosts import TLS_OPTIONS, DaemonHost, HostTls, WrongOption

#: Seconds within which a list must be answered, of which one daemon's part is missed less than the others are waited
#: for.
LISTED_S = 5.0
#: Seconds for which a daemon that has exited, or is full, is asked again, as it may be restarting: for a status; before
#: a start, and for a cancellation.
GLANCE_S, LOOK_S = 0.5, 3.0


class DaemonPool:
    """Connections to daemons, made when they are asked for and kept until `close`. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open = ExitStack()
        self._clients: dict[tuple[str, HostTls], BlockingClient] = {}

    def client(self, host: DaemonHost, tls: HostTls) -> BlockingClient:
        """Raises WrongOption where a file of TLS is missing or unreadable; never because of the daemon."""
        where = (host.address, tls)
        with self._lock:
            if where not in self._clients:
                credentials = None if host.local else _credentials(host, tls)
                self._clients[where] = self._open.enter_context(connect_blocking(host.address, _caller(), credentials))
            return self._clients[where]

    def close(self) -> None:
        """Closes all connections; may be called again, and the pool may be used again."""
        with self._lock:
            self._clients.clear()
            self._open.close()


def named(hosts: Iterable[DaemonHost]) -> str:
    """Their addresses, for a sentence."""
    return ", ".join(dict.fromkeys(host.address for host in hosts))


def _credentials(host: DaemonHost, tls: HostTls) -> grpc.ChannelCredentials:
    data = []
    for (option, variable), path in zip(TLS_OPTIONS.items(), (tls.ca, tls.cert, tls.key), strict=True):
        if not path:
            text = f"{host.address}: TCP needs a certificate: give -cfg {option}=FILE or set {variable}"
            raise WrongOption(option, text)
        try:
            data.append(Path(path).read_bytes())
        except OSError as error:
            raise WrongOption(option, f"cannot read {path}: {error.strerror or error}") from None
    authority, certificate, key = data
    return grpc.ssl_channel_credentials(authority, key, certificate)


def _caller() -> str:
    name = f"uid {os.getuid()}"
    with suppress(KeyError, OSError):  # a number without a name, as in containers
        name = getpass.getuser()
    return f"{name} (torchx, pid {os.getpid()})"
