"""What the name of a file in the log folder says: whose log it is, and which part of it. `paths.py` gives the names."""

import re

from muster.probes.kernel.dataclass import dataclass
from muster.supervisors.model.spec_fields import JOB_ID

#: A log's own name, then what follows it: a time if it was set aside for a later job with that id, a segment.
_NAME = re.compile(
    rf"(?P<log>(?P<job>{JOB_ID.pattern})-"
    r"(?:proc-rank-(?P<rank>\d+)-device-(?P<device>\d+)\.(?:txt|idx)|(?P<own>muster|worker)-(?P<node>\d+)\.(?:log|idx)|"
    r"(?P<service>service)-(?P<of>\d+)-\d+\.(?:log|idx)))"
    r"(?P<aside>\.\d{9,12}\+*)?"
    r"(?P<more>\.\d{16,}-\d{16,}(?:\.gz(?:\.part)?)?|\.removed|\.new)?"
    r"(?P<late>\.\d{9,12}\+*)?"
)


@dataclass(frozen=True, slots=True)
class LogName:
    """The parts of a file's name. `aside`: when it was set aside, empty for a file of the present job with this id;
    `kind`: "output", "job", "service", "worker", "index"; `rank` and `device`, or else `node`: its numbers; `more`:
    what makes it a segment, or a file beside one."""

    job_id: str
    log: str
    aside: str
    kind: str
    rank: int | None
    device: int | None
    node: int | None
    more: str

    @property
    def passing(self) -> bool:
        """Whether it is a temporary file, or only records a removal."""
        return self.more.endswith((".part", ".new", ".removed"))


def parsed(name: str) -> LogName | None:
    """None: muster gives no file such a name."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    own = {"muster": "job", "worker": "worker", "service": "service", None: "output"}[found["own"] or found["service"]]
    kind = "index" if found["log"].endswith(".idx") else own
    numbers = {key: int(found[key]) if found[key] else None for key in ("rank", "device", "node", "of")}
    node = numbers["of"] if numbers["node"] is None else numbers["node"]
    return LogName(
        found["job"],
        found["log"],
        found["aside"] or found["late"] or "",
        kind,
        numbers["rank"],
        numbers["device"],
        node,
        found["more"] or "",
    )
