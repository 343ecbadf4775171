"""The TCP listener's credentials: mutual TLS, reloaded when a file has changed."""

import errno
import os
import re
import stat
import time
from contextlib import suppress
from pathlib import Path

import grpc
import structlog

from muster.agent.api import certificate
from muster.agent.config.access_settings import TlsTable
from muster.agent.errors import StartupError
from muster.agent.text import utc

#: Seconds before the expiry of the daemon's certificate from which on a warning is shown.
SOON_S = 7 * 86400.0
#: The first certificate of a file is the daemon's own; the others signed it.
_FIRST = re.compile(rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)

_log = structlog.get_logger(__name__)


class Credentials:
    """Loads certificate, key and the clients' authority. If the new set is unusable, the old one stays in use."""

    def __init__(self, table: TlsTable) -> None:
        """Raises StartupError."""
        self._certificate, self._key = Path(table.certificate), Path(table.key)
        self._authority = Path(table.client_authority)
        self._refused = ""
        #: The certificate's expiry, in seconds since the epoch; None if it cannot be read.
        self._until: float | None = None
        try:
            self._stamp = self._stamps()
            self._now = self._read()
        except OSError as error:
            raise StartupError(f"tls: {_told(error)}") from error

    @property
    def trouble(self) -> list[str]:
        """Sentences for an operator: unusable files, a certificate that has expired or soon expires."""
        found = [f"tls: the previous certificate stays in use: {self._refused}"] if self._refused else []
        if self._until is not None and (left := self._until - time.time()) < SOON_S:
            when = utc(self._until)
            how = (
                f"expires in {left / 86400:.1f} days, at {when}"
                if left > 0
                else f"expired at {when}: clients reject it"
            )
            found.append(f"tls: {self._certificate}: the certificate {how}: replace certificate and key")
        return found

    def server(self) -> grpc.ServerCredentials:
        """Credentials for a port that requires a client certificate."""
        return grpc.dynamic_ssl_server_credentials(self._now, self._again, require_client_authentication=True)  # type: ignore[arg-type]  # None is "as before": the stubs know no such answer

    def _again(self) -> grpc.ServerCertificateConfiguration | None:
        """gRPC calls it before each handshake, in its own thread. Usually it costs three stats."""
        try:
            stamp = self._stamps()
            if stamp == self._stamp:
                return None
            self._now, self._stamp = self._read(), stamp
        except OSError as error:
            if _told(error) != self._refused:  # once, not with each handshake
                self._refused = _told(error)
                _log.error("tls.not_reloaded", error=self._refused)
            return None
        self._refused = ""
        _log.info("tls.reloaded")
        return self._now

    def _stamps(self) -> list[tuple[int, ...]]:
        found = [os.stat(path) for path in (self._certificate, self._key, self._authority)]
        return [(each.st_mtime_ns, each.st_size, each.st_ino, each.st_mode) for each in found]

    def _read(self) -> grpc.ServerCertificateConfiguration:
        """Raises OSError, also if certificate and key do not match, as while an operator replaces them."""
        import ssl  # only here: most daemons listen on sockets of the node alone

        chain, key, authority = self._certificate.read_bytes(), self._secret(), self._authority.read_bytes()
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self._certificate, self._key, lambda: "")
        except ssl.SSLError as error:
            why = f"does not match the key {self._key}, or one of the two is not PEM: {error.reason or error}"
            raise OSError(error.errno, why, str(self._certificate)) from error
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(self._authority)
        except ssl.SSLError as error:
            why = f"holds no PEM certificate: {error.reason or error}"
            raise OSError(error.errno, why, str(self._authority)) from error
        self._until = _end_of(chain)
        return grpc.ssl_server_certificate_configuration([(key, chain)], authority)

    def _secret(self) -> bytes:
        """The key. Raises OSError, also if everybody may read or write it: with the key one can pose as this daemon."""
        with self._key.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & (stat.S_IROTH | stat.S_IWOTH):
                why = f"its mode {mode:04o} lets everybody read or write the key: chmod 600 {self._key}"
                raise OSError(errno.EACCES, why, str(self._key))
            return file.read()


def _end_of(chain: bytes) -> float | None:
    if (first := _FIRST.search(chain)) is not None:
        with suppress(ValueError):
            return certificate.expires(first[0])
    return None


def _told(error: OSError) -> str:
    return f"{error.filename}: {error.strerror}"
