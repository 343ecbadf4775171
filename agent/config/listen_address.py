"""Where metrics are shown: the settings of [metrics] as they are written."""

import ipaddress
import os
from pathlib import Path

from muster.probes.kernel.dataclass import dataclass
from muster.supervisors.paths import MAX_SOCKET


@dataclass(frozen=True, slots=True)
class Tcp:
    """A port of a loopback address."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Unix:
    """A unix socket."""

    path: Path

    def __str__(self) -> str:
        return f"unix:{self.path}"


def parse(text: str) -> Tcp | Unix | None:
    """Reads `metrics.listen`: "127.0.0.1:PORT", "[::1]:PORT", "localhost:PORT", "unix:/path"; empty: None.

    Raises ValueError with one sentence. Metrics say which jobs' cards are at work, and
    there is no password: only this machine may read them, and users whom it lets in.
    """
    if not text:
        return None
    if text.startswith("unix:"):
        path = Path(text.removeprefix("unix:"))
        if not path.is_absolute():
            raise ValueError(f'{text!r}: a socket has an absolute path, as in "unix:/run/muster/metrics.sock"')
        if (size := len(os.fsencode(path))) > MAX_SOCKET:
            raise ValueError(f"{text!r}: the path has {size} bytes, and the kernel allows {MAX_SOCKET}")
        return Unix(path)
    written, _, number = text.rpartition(":")
    host = "127.0.0.1" if written == "localhost" else written.removeprefix("[").removesuffix("]")
    if not (written and number.isascii() and number.isdigit() and 1 <= int(number) <= 65535):
        raise ValueError(f'{text!r}: must be an address and a port, as in "127.0.0.1:9835", or "unix:/path"')
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        raise ValueError(f"{text!r}: {written!r} is not a loopback address of this machine") from None
    if not address.is_loopback:
        raise ValueError(
            f"{text!r}: only a loopback address is allowed (127.0.0.1 or [::1]), since metrics are neither "
            "encrypted nor guarded; let a reverse proxy or node_exporter's textfile collector show them to others"
        )
    return Tcp(str(address), int(number))
