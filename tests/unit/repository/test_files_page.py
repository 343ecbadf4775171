"""docs/reference/files.md names each file whose path the code has."""

import re
from pathlib import Path

import pytest

from muster.supervisors.paths import JobPaths, Root

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "reference" / "files.md").read_text()
NODE = Root.under(Path("/DIR"))
JOB = JobPaths(Path("/DIR/state/jobs/ID"), NODE.run)


def properties(owner: Root | JobPaths) -> list[Path]:
    names = [name for name, value in vars(type(owner)).items() if isinstance(value, property)]
    return [path for name in names if isinstance(path := getattr(owner, name), Path)]


def names() -> list[str]:
    """The last part of each path, without what differs from job to job and from version to version."""
    made = [
        JOB.fifo(0),
        NODE.stop_order("ID"),
        NODE.rank_log("ID", 0, 0),
        NODE.job_log("ID", 0),
        NODE.worker_log("ID", 0),
        NODE.own_job_logs("ID"),
    ]
    variable = {
        "rank-0.fifo": "rank-<r>.fifo",
        "ID": "RUN/stops/<id>",
        "ID-proc-rank-0-device-0.txt": "LOG/<job>-proc-rank-<r>-device-<d>.txt",
        "ID-muster-0.log": "LOG/<job>-muster-<node rank>.log",
        "ID-worker-0.log": "LOG/<job>-worker-<node rank>.log",
        "ID.logs": "LOG/<id>.logs/",
        "ID.gaps": "RUN/counts/<id>.gaps/<n>",
        NODE.nursery_socket.name: "RUN/nursery-<code>.sock",
        NODE.nursery_lock.name: "RUN/nursery-<code>.sock`, `.lock`",
        NODE.rehearsal.name: "RUN/nursery-<code>.rehearsal/",
    }
    found = [variable.get(path.name, path.name) for path in [*properties(NODE), *properties(JOB), *made]]
    return sorted(set(found))


def test_there_are_names() -> None:
    assert {"journal", "musterd.lock", "faults.json"} <= set(names())


@pytest.mark.parametrize("name", names())
def test_the_page_names_each_file(name: str) -> None:
    assert re.search(rf"(?<![\w.]){re.escape(name)}(?![\w])", PAGE), f"docs/reference/files.md lacks {name}"
