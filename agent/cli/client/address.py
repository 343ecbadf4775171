"""Where the daemon listens, and whether anything answers there. No gRPC here: these answers must be quick."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from muster.agent.cli.exits import NoDaemon, Why
from muster.probes.kernel import process
from muster.probes.kernel.dataclass import dataclass
from muster.supervisors.paths import MAX_SOCKET, ROOT_VARIABLE, Root

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Tls:
    """Credentials for TCP: files in PEM. `authority` signed the daemon's certificate."""

    authority: Path
    certificate: Path
    key: Path


@dataclass(frozen=True, slots=True)
class Address:
    """Path of the daemon's unix socket; or `host` and `port`, with `tls`. `explicit`: the user named it
    (--address, MUSTER_ADDRESS)."""

    path: Path | None
    explicit: bool = False
    host: str = ""
    port: int = 0
    tls: Tls | None = None

    def __str__(self) -> str:
        if self.path is not None:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def root(self) -> Root:
        """The folders of the daemon on this node, by where its socket lies."""
        system = Root.system()
        if self.path is None or self.path.parent == system.run:
            return system
        return Root.under(self.path.parent.parent)

    def probe(self, timeout: float = 5.0) -> None:
        """Connects once and hangs up. Raises NoDaemon with the problem and the remedy."""
        if self.path is None:
            self._probe_tcp(timeout)
            return
        import socket  # here and below: `muster --help` asks nobody

        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
                sock.settimeout(timeout)
                sock.connect(os.fspath(self.path))
        except FileNotFoundError:
            raise NoDaemon(
                f"no daemon at {self}: no such socket: start musterd, or give --root or --address",
                Why.ABSENT,
            ) from None
        except PermissionError:
            raise NoDaemon(
                f"no access to {self}: permission denied: only its owner and group may use it, see `ls -l {self.path}`",
                Why.FORBIDDEN,
            ) from None
        except OSError as error:
            if error.errno == errno.ECONNREFUSED:
                what = "no process listens on the socket: start musterd"
                raise NoDaemon(f"no daemon at {self}: {what}", Why.REFUSED) from None
            what = error.strerror or str(error)  # a timeout has no number
            raise NoDaemon(f"no daemon at {self}: {what}", Why.OTHER) from None

    def listener(self, timeout: float = 5.0) -> int:
        """Pid of the process that listens on the unix socket, whether or not it answers; 0 where it is in a PID
        namespace that cannot be seen from here, and over TCP. Raises OSError."""
        import socket

        if self.path is None:
            return 0
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(timeout)
            sock.connect(os.fspath(self.path))
            return process.peer(sock)[0]

    def _probe_tcp(self, timeout: float) -> None:
        import socket
        import ssl  # costs 10 ms, which commands on the node itself save

        assert self.tls is not None  # no address over TCP is made without
        try:
            context = ssl.create_default_context(cafile=self.tls.authority)
            context.load_cert_chain(self.tls.certificate, self.tls.key, _no_password)
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.set_alpn_protocols(["h2"])
        except (OSError, ValueError) as error:
            where = f"{self.tls.authority}, {self.tls.certificate} and {self.tls.key}"
            raise NoDaemon(f"{where} do not work together: {error}", Why.FORBIDDEN) from None
        try:
            with (
                socket.create_connection((self.host, self.port), timeout) as plain,
                context.wrap_socket(plain, server_hostname=self.host) as sock,
            ):
                # With TLS 1.3 a client hears only behind the handshake that it is not wanted; or else a greeting.
                if not sock.recv(1):
                    raise ConnectionResetError
        except ssl.SSLCertVerificationError as error:
            what = f"cannot verify its certificate: {error.verify_message} (authority: {self.tls.authority})"
            raise NoDaemon(f"no daemon at {self}: {what}", Why.FORBIDDEN) from None
        except (ssl.SSLError, ConnectionResetError) as error:
            why = getattr(error, "reason", "") or "it closed the connection"
            what = f"it rejected the certificate {self.tls.certificate} ({why}): check its dates and its authority"
            raise NoDaemon(f"no access to {self}: {what}", Why.FORBIDDEN) from None
        except ConnectionRefusedError:
            what = "no process listens there: set `listen` in [tls] of the daemon's configuration"
            raise NoDaemon(f"no daemon at {self}: {what}", Why.REFUSED) from None
        except TimeoutError:
            raise NoDaemon(f"no daemon at {self}: no answer: see whether its node and musterd run", Why.OTHER) from None
        except OSError as error:
            raise NoDaemon(f"no daemon at {self}: {error.strerror or error}", Why.OTHER) from None


def _no_password() -> str:
    """Without it, OpenSSL would ask for the password on the terminal."""
    raise ValueError("the key has a password: use a key without one, readable by you only")


def parse(text: str) -> Path | tuple[str, int]:
    """The path of `unix:PATH`, `unix:///PATH` or a plain path; host and port of `HOST:PORT`. Raises ValueError."""
    if text.startswith("unix://"):
        path = text.removeprefix("unix://")
        if not path.startswith("/"):
            raise ValueError(
                f"{text!r}: must have an absolute path after unix://, as in unix:///run/muster/muster.sock"
            )
    elif text.startswith("unix:"):
        path = text.removeprefix("unix:")
    elif "/" in text:
        path = text
    else:
        host, _, port = text.rpartition(":")
        if host and port.isascii() and port.isdigit() and 0 < int(port[:6]) <= 65535:
            return host.removeprefix("[").removesuffix("]"), int(port)
        raise ValueError(f"{text!r}: must be a unix socket, as in unix:/run/muster/muster.sock, or HOST:PORT")
    # Two slashes at the beginning stay two in POSIX; here they are a slip.
    return _fitting(Path(os.path.abspath(path)))


def _fitting(path: Path) -> Path:
    if not path.name or "\0" in os.fspath(path):
        raise ValueError(f"{os.fspath(path)!r}: is not the path of a socket")
    length = len(os.fsencode(path))
    if length > MAX_SOCKET:
        raise ValueError(
            f"{path}: has {length} bytes, the path of a socket has at most {MAX_SOCKET}: use a shorter --root"
        )
    return path


def _under(root: str) -> Path:
    if not root:
        raise ValueError("the folder's name is empty: name a folder")
    return _fitting(Root.under(Path(os.path.abspath(root))).socket)


def _named(text: str, files: dict[str, str]) -> Address:
    """The address that somebody wrote. Raises ValueError."""
    where = parse(text)
    if isinstance(where, Path):
        return Address(where, explicit=True)
    paths = []
    for name in _TLS:
        path = files.get(name) or os.environ.get(f"MUSTER_{name.upper()}")
        if not path:
            raise ValueError(f"{text}: TCP needs a certificate: give --{name.replace('_', '-')}")
        if not os.access(path, os.R_OK):
            raise ValueError(
                f"--{name.replace('_', '-')}: {path}: {'is not readable' if os.path.exists(path) else 'does not exist'}"
            )
        paths.append(Path(path))
    return Address(None, True, *where, Tls(*paths))


def named(context: click.Context, text: str) -> Address:
    """An address of several, with the files of TLS of the command line and the environment. Raises ValueError."""
    return _named(text, context.meta.get(_META, {}))


def _resolve(context: click.Context) -> Address:
    """The address that options (of the command before those of the group) or else the environment name."""
    named = context.meta.get(_META, {})
    address, root = named.get("address"), named.get("root")
    try:
        if address is not None and root is not None:
            raise ValueError("--address and --root: give only one of them")
        if address is not None:
            return _named(address, named)
        if root is not None:
            return Address(_under(root))
        if text := os.environ.get("MUSTER_ADDRESS"):
            return _named(text, named)
        if text := os.environ.get(ROOT_VARIABLE):
            return Address(_under(text))
    except ValueError as error:
        raise click.UsageError(str(error), context) from None
    return Address(Root.system().socket)


def named_root(context: click.Context) -> Root:
    """The folders of this node: below --root or MUSTER_ROOT, else the system's."""
    root = context.meta.get(_META, {}).get("root") or os.environ.get(ROOT_VARIABLE)
    return Root.under(Path(os.path.abspath(root))) if root else Root.system()


def naming_option(context: click.Context) -> str:
    """The option of the command line that names a daemon, if one does; not what the environment says."""
    named = context.meta.get(_META, {})
    return next((f"--{name}" for name in ("root", "address") if name in named), "")


_META = "muster.address"
#: Options for TCP, in the order of `Tls`.
_TLS = {
    "tls_ca": "Authority that signed the daemon's certificate, for HOST:PORT.",
    "tls_cert": "Certificate of this client, for HOST:PORT.",
    "tls_key": "Key of that certificate, for HOST:PORT.",
}


def address_options(command: F) -> F:
    """`--address`, `--root` and `--tls-*`, which may stand before or behind the command's name; see `pass_address`."""

    def keep(context: click.Context, option: click.Parameter, value: str | None) -> None:
        if value is not None:
            assert option.name is not None
            context.meta.setdefault(_META, {})[option.name] = value

    root = click.option(
        "--root",
        metavar="DIR",
        expose_value=False,
        callback=keep,
        help="Folder of the daemon, as in its --root.  [env: MUSTER_ROOT]",
    )
    address = click.option(
        "--address",
        metavar="ADDRESS",
        expose_value=False,
        callback=keep,
        help="The daemon's socket, unix:PATH, or HOST:PORT with --tls-ca, --tls-cert and --tls-key.  "
        "[env: MUSTER_ADDRESS; default: unix:/run/muster/muster.sock]",
    )
    # click lists options in the reverse order of this list: what is put before all others comes last in the help.
    mine: list[click.Parameter] = []
    others = getattr(command, "__click_params__", [])
    command.__click_params__ = mine  # type: ignore[attr-defined]  # click's own
    for name, text in reversed(_TLS.items()):
        option = f"--{name.replace('_', '-')}"
        text = f"{text}  [env: MUSTER_{name.upper()}]"
        command = click.option(option, type=click.Path(), metavar="FILE", expose_value=False, callback=keep, help=text)(
            command
        )
    command = address(root(command))
    mine.extend(others)
    return command


def pass_address(function: F) -> F:
    """For a command that talks to the daemon: adds the options and hands the `Address` in as first argument."""

    @click.pass_context
    def with_address(context: click.Context, /, *args: Any, **kwargs: Any) -> Any:
        return context.invoke(function, _resolve(context), *args, **kwargs)

    with_address.__doc__ = function.__doc__
    with_address.__name__ = function.__name__
    # click collects the parameters of the decorators below on the function that they wrap.
    with_address.__click_params__ = getattr(function, "__click_params__", [])  # type: ignore[attr-defined]  # click's own
    return address_options(with_address)  # type: ignore[return-value]  # the first argument is bound
