"""The settings of who may reach whose jobs."""

from muster.probes.kernel.dataclass import dataclass
from muster.probes.settings import Settings, setting


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
    """Whose jobs a client may reach ([security.md](concepts/security.md#own-jobs))."""

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
        "With `own_jobs_only`: the user of the node that a certificate stands for, `NAME=USER`, as in "
        '"alice.example=alice". '
        "A certificate that is neither here nor in `admins` reaches no job.",
        what='texts of the form NAME=USER, as in ["alice.example=alice"]',
        rule=_pairs,
    )

    def user_of(self, certificate: str) -> str:
        """The user that a certificate with this name stands for; empty: none."""
        pairs = dict(entry.rpartition("=")[::2] for entry in self.certificates)
        return pairs.get(certificate, "")
