"""Where the daemon listens, and whether anything answers there. No gRPC here: these answers must be quick."""

import errno
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from agent.cli.errors import NoDaemon, Why
from supervisors.paths import Root

F = TypeVar("F", bound=Callable[..., Any])
#: Linux' limit for the path of a unix socket, in bytes.
_MAX_PATH = 107


@dataclass(frozen=True, slots=True)
class Address:
    """Path of the daemon's unix socket. `explicit`: somebody named just this one (--address, MUSTER_ADDRESS)."""

    path: Path
    explicit: bool = False

    def __str__(self) -> str:
        return f"unix:{self.path}"

    def probe(self, timeout: float = 5.0) -> None:
        """Connects once and hangs up. Raises NoDaemon, which says what is wrong with the address and what to do."""
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
                sock.settimeout(timeout)
                sock.connect(os.fspath(self.path))
        except FileNotFoundError:
            raise NoDaemon(
                f"no daemon at {self}: there is no such socket; start musterd, or say where with --root or --address",
                Why.ABSENT,
            ) from None
        except PermissionError:
            raise NoDaemon(
                f"no access to {self}: permission denied; its owner and group may use it (see ls -l {self.path})",
                Why.FORBIDDEN,
            ) from None
        except OSError as error:
            if error.errno == errno.ECONNREFUSED:
                what = "a socket is there but nobody listens; start musterd again"
                raise NoDaemon(f"no daemon at {self}: {what}", Why.REFUSED) from None
            what = error.strerror or str(error)  # a timeout has no number
            raise NoDaemon(f"no daemon at {self}: {what}", Why.OTHER) from None


def parse(text: str) -> Path:
    """The path of `unix:PATH`, `unix:///PATH` or a plain path. Raises ValueError."""
    if text.startswith("unix://"):
        path = text.removeprefix("unix://")
        if not path.startswith("/"):
            raise ValueError(f"{text!r}: after unix:// comes an absolute path, as in unix:///run/muster/muster.sock")
    elif text.startswith("unix:"):
        path = text.removeprefix("unix:")
    elif "/" in text:
        path = text
    else:
        raise ValueError(f"{text!r}: a unix socket is wanted, as in unix:/run/muster/muster.sock")
    # Two slashes at the beginning stay two in POSIX; here they are a slip.
    return _fitting(Path(os.path.abspath(path)))


def _fitting(path: Path) -> Path:
    if not path.name or "\0" in os.fspath(path):
        raise ValueError(f"{os.fspath(path)!r}: is no path of a socket")
    length = len(os.fsencode(path))
    if length > _MAX_PATH:
        raise ValueError(f"{path}: has {length} bytes, the path of a socket at most {_MAX_PATH}: use a shorter --root")
    return path


def _under(root: str) -> Path:
    if not root:
        raise ValueError("the folder's name is empty")
    return _fitting(Root.under(Path(os.path.abspath(root))).socket)


def _resolve(context: click.Context) -> Address:
    """The address that options (of the command before those of the group) or else the environment name."""
    named = context.meta.get(_META, {})
    address, root = named.get("address"), named.get("root")
    try:
        if address is not None and root is not None:
            raise ValueError("--address and --root: give one of the two")
        if address is not None:
            return Address(parse(address), explicit=True)
        if root is not None:
            return Address(_under(root))
        if text := os.environ.get("MUSTER_ADDRESS"):
            return Address(parse(text), explicit=True)
        if text := os.environ.get("MUSTER_ROOT"):
            return Address(_under(text))
    except ValueError as error:
        raise click.UsageError(str(error), context) from None
    return Address(Root.system().socket)


def named_root(context: click.Context) -> Root:
    """The folders of this node: below --root or MUSTER_ROOT, else the system's."""
    root = context.meta.get(_META, {}).get("root") or os.environ.get("MUSTER_ROOT")
    return Root.under(Path(os.path.abspath(root))) if root else Root.system()


_META = "muster.address"


def address_options(command: F) -> F:
    """`--address` and `--root`, which may stand before or behind the command's name; see `pass_address`."""

    def keep(context: click.Context, option: click.Parameter, value: str | None) -> None:
        if value is not None:
            assert option.name is not None
            context.meta.setdefault(_META, {})[option.name] = value

    root = click.option(
        "--root",
        metavar="DIR",
        expose_value=False,
        callback=keep,
        help="Folder that the daemon was given with --root.  [env: MUSTER_ROOT]",
    )
    address = click.option(
        "--address",
        metavar="ADDRESS",
        expose_value=False,
        callback=keep,
        help="The daemon's socket, unix:PATH.  [env: MUSTER_ADDRESS; default: unix:/run/muster/muster.sock]",
    )
    return address(root(command))


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
