"""The files that mpirun is given: hostfile, and environment of the ranks on other nodes; for the job's user alone."""

import contextlib
import os
import re
from collections.abc import Iterator, Mapping

from muster.supervisors.launch.modes.boot import IN_ENV_FILE
from muster.supervisors.launch.mpi.mpi_link import NotReady

#: Values that may stand in mpirun's -tune file: the parser ends a value at white space, splits the whole at ';', and
#: gives up at words beyond 16 KB (Open MPI 4.1). Others are named without a value: mpirun has them in its environment.
_INLINE = re.compile(r"[!#-&(-:<-\[\]-_a-~]{1,4096}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def env_lines(env: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Lines of the environment file for mpirun's -tune, and the names that such a file cannot hold."""
    lines, left_out = [], []
    for name, value in sorted(env.items()):
        if not value or not IN_ENV_FILE.match(name):
            continue
        if not _NAME.fullmatch(name):
            left_out.append(name)
        else:
            lines.append(f"-x {name}={value}" if _INLINE.fullmatch(value) else f"-x {name}")
    return lines, left_out


def write_private(path: str, lines: list[str]) -> None:
    """Writes a private file atomically. Raises NotReady."""
    new = f"{path}.{os.getpid()}.new"
    try:
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            with open(fd, "w", encoding="utf-8", errors="surrogateescape") as file:
                file.writelines(f"{line}\n" for line in lines)
            os.replace(new, path)
        except BaseException:
            os.unlink(new)
            raise
    except OSError as error:
        where = f"{path} into the working folder {os.getcwd()}"
        raise NotReady(f"cannot write {where}: {error.strerror}; give the job a working folder to write in") from None


@contextlib.contextmanager
def placeholder(path: str) -> Iterator[None]:
    """An empty environment file where there is none: Open MPI's daemon on this node looks for the file that mpirun on
    node 0 was given, and warns of a missing one. Its content is node 0's alone to tell."""
    made = None
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        made = os.fstat(fd)
        os.close(fd)
    try:
        yield
    finally:
        # On a shared file system it may be node 0's by now.
        with contextlib.suppress(OSError):
            if made is not None and os.path.samestat(made, os.lstat(path)):
                os.unlink(path)
