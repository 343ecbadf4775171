"""What the processes of a job may not do, as it was decided when the job was accepted."""

from collections.abc import Iterable
from typing import Any, Self

from muster.probes.kernel.dataclass import dataclass

#: What a private /tmp stands for.
TMP_PLACES = ("/tmp", "/var/tmp")
#: As much of a job's id as is in the names of its folders there.
ID_PART = 64


def is_below(path: str, folder: str) -> bool:
    """Whether it is the folder itself, or in it."""
    return path == folder or folder == "/" or path.startswith(f"{folder}/")


@dataclass(frozen=True, slots=True)
class Hardening:
    """The defaults stand for nothing of it, as for jobs of a version that did not know it.

    `capabilities`: what their bounding set has at most; None: all. `pids`: processes and threads of the job, at most;
    0: any number. `private_tmp`: a random word in the names of its folders for /tmp; empty: it has none. `seccomp`:
    the profile's path; the filter made of it is in the job's folder.
    """

    no_new_privs: bool = False
    capabilities: tuple[str, ...] | None = None
    pids: int = 0
    private_tmp: str = ""
    read_only: tuple[str, ...] = ()
    seccomp: str = ""

    @property
    def has_mounts(self) -> bool:
        """Whether its processes have a view of the file system of their own."""
        return bool(self.private_tmp or self.read_only)

    def tmp_name(self, job_id: str) -> str:
        """What the folders of a job's own /tmp are called."""
        return f"muster-{job_id[:ID_PART]}-{self.private_tmp}"

    def on_node(self, job_id: str, path: str, same: Iterable[str] = ()) -> str:
        """Where the node has what the job's processes have at this path. `same`: folders that both have there."""
        if not self.private_tmp or any(is_below(path, folder) for folder in same if folder):
            return path
        place = next((place for place in TMP_PLACES if path.startswith(f"{place}/")), "")
        return f"{place}/{self.tmp_name(job_id)}/tmp{path[len(place) :]}" if place else path

    def to_record(self) -> dict[str, Any]:
        """For the journal; nothing of what is not set."""
        usual = type(self)()
        changed = {name: getattr(self, name) for name in self.__slots__ if getattr(self, name) != getattr(usual, name)}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in changed.items()}

    @classmethod
    def from_record(cls, raw: dict[str, Any]) -> Self:
        """Inverse of `to_record`, without what only a newer version knows. Raises TypeError."""
        known: dict[str, Any] = {name: value for name, value in dict(raw).items() if name in cls.__slots__}
        for name, value in known.items():
            known[name] = tuple(value) if isinstance(value, list) else value
        return cls(**known)
