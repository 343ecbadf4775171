"""The settings of who may reach the daemon, and whose jobs."""

from muster.agent.config import rules
from muster.probes.kernel.dataclass import dataclass
from muster.probes.settings import FileMode, Settings, setting


def _pairs(entries: tuple[str, ...]) -> str:
    """What is wrong with the entries of `certificates`."""
    for entry in entries:
        name, equals, user = entry.rpartition("=")
        if not (name and equals and user):
            return f'{entry!r}: must be NAME=USER, as in "alice.example=alice"'
    names = [entry.rpartition("=")[0] for entry in entries]
    twice = next((name for name in names if names.count(name) > 1), "")
    return f"{twice!r}: stands for two users: leave one out" if twice else ""


@dataclass(frozen=True, slots=True)
class AccessTable(Settings):
    """Whose jobs a client may reach ([Security: own jobs](concepts/security.md#own-jobs))."""

    own_jobs_only: bool = setting(
        False,
        "Whether users of the node start, see, stop and enter only jobs that run as themselves. Root, the user of "
        "musterd and `admins` reach all jobs. Clients show who they are with a token of `identity.sock`.",
    )
    admins: tuple[str, ...] = setting(
        (),
        "With `own_jobs_only`: who reaches every job, and drains and checks the node: names or numbers of users, and "
        "`certificate:NAME` for the name in a client's certificate.",
    )
    certificates: tuple[str, ...] = setting(
        (),
        "With `own_jobs_only`: the user of the node that a certificate belongs to, `NAME=USER`, as in "
        '"alice.example=alice". '
        "A certificate that is neither here nor in `admins` reaches no job.",
        what='texts of the form NAME=USER, as in ["alice.example=alice"]',
        rule=_pairs,
    )

    def user_of(self, certificate: str) -> str:
        """The user that a certificate with this name stands for; empty: none."""
        pairs = dict(entry.rpartition("=")[::2] for entry in self.certificates)
        return pairs.get(certificate, "")


@dataclass(frozen=True, slots=True)
class SocketTable(Settings):
    """The unix sockets of the daemon."""

    mode: FileMode = setting(
        FileMode(0o660),
        "Mode of the operators' socket. A user who may write to it may run commands as every user that the daemon can "
        "become.",
        restart=True,
    )
    group: str = setting(
        "muster",
        "Group of the operators' socket. musterd ignores the default where the group does not exist or it may not use "
        "it; it refuses to start with any other group that it cannot use.",
        restart=True,
    )
    reader: bool = setting(
        True, "Whether musterd serves a second socket, `reader.sock`, with read-only access.", restart=True
    )
    reader_mode: FileMode = setting(FileMode(0o660), "Mode of the readers' socket.", restart=True)
    reader_group: str = setting("muster-readers", "Group of the readers' socket, as `group`.", restart=True)


@dataclass(frozen=True, slots=True)
class TlsTable(Settings):
    """TCP, with certificates on both sides. [TCP with certificates](guides/certificates.md) shows how to make them."""

    listen: str = setting(
        "",
        "`HOST:PORT`, as in `0.0.0.0:7443`. Empty: musterd does not listen on TCP; the keys below then have no "
        "meaning.",
        restart=True,
    )
    certificate: str = rules.restart_path(
        "Absolute path of the daemon's certificate, PEM. musterd rereads it when it changes."
    )
    key: str = rules.restart_path(
        "Absolute path of the key of that certificate, PEM. musterd rereads it when it changes."
    )
    client_authority: str = rules.restart_path(
        "Absolute path of the certificates that sign those of clients, PEM. musterd rereads it when it changes."
    )
    operators: tuple[str, ...] = setting(
        (), "Names in clients' certificates (subject alternative names, common name) with access to every call."
    )
    readers: tuple[str, ...] = setting((), "Names in clients' certificates with read-only access.")

    def check_together(self) -> None:
        """Raises ValueError."""
        if not self.listen:
            return
        host, _, port = self.listen.rpartition(":")
        if not host or not port.isdigit() or not 0 <= int(port) <= 65535:
            raise ValueError(f"listen: {self.listen!r}: must be HOST:PORT, as in 0.0.0.0:7443")
        for key in ("certificate", "key", "client_authority"):
            path = getattr(self, key)
            if not path.startswith("/"):
                raise ValueError(f"{key}: {path!r}: must be an absolute path: TCP is served with mutual TLS only")
        if not self.operators and not self.readers:
            raise ValueError("operators: []: name operators or readers: without them no client has access over TCP")
        if both := sorted(set(self.operators) & set(self.readers)):
            raise ValueError(f"readers: {both[0]!r}: is among the operators, too: remove it from one of the lists")
