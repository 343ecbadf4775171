"""`muster run --standalone` beside the launchers that it takes the place of: torchrun, mpirun and msrun, the real ones.

The tables below say what only one of the two gives to a rank, and why; docs/guides/drop-in.md says the same.
"""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import BIN
from tests.ports import free_port

pytestmark = pytest.mark.timeout(300)

needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="needs PyTorch: pip install -r examples/ddp/requirements.txt"
)
needs_mpirun = pytest.mark.skipif(shutil.which("mpirun") is None, reason="needs mpirun: apt install openmpi-bin")
#: Folder of msrun.
MSRUN = os.environ.get("MUSTER_TEST_MSRUN", "") or os.path.dirname(shutil.which("msrun") or "")
needs_msrun = pytest.mark.skipif(not MSRUN, reason="needs MindSpore (800 MB): make test-msrun")

DDP = Path(__file__).parents[3] / "examples" / "ddp" / "train_ddp.py"
TORCHRUN, MUSTER = str(BIN / "torchrun"), str(BIN / "muster")

#: Only torchrun gives these.
ONLY_TORCHRUN = {
    "TORCHELASTIC_ERROR_FILE": "where its agent looks for a traceback; muster shows the last lines of the output",
    "TORCHELASTIC_SIGNALS_TO_HANDLE": "which signals its agent hands on; muster hands on what it is told to",
    "TORCHELASTIC_USE_AGENT_STORE": "the agent's store is used; with muster rank 0 makes it, as env:// does",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "ends a rank whose peer is gone; muster ends the gang itself",
}
#: Only muster gives these.
ONLY_MUSTER = {
    "MUSTER_JOB_ID": "the job",
    "MUSTER_ATTEMPT": "how often it was restarted",
    "MUSTER_NONCE": "by which muster finds what the job has started",
    "MA_NUM_HOSTS": "ModelArts' names, for scripts that use them",
    "MA_NUM_GPUS": "the same",
    "MA_TASK_NAME": "the same",
    "VC_TASK_INDEX": "the same",
    "VC_WORKER_NUM": "the same",
    "VC_WORKER_HOSTS": "the same",
    "MA_HOME": "the same",
    "MA_JOB_DIR": "the same",
    "MA_LOG_DIR": "the same",
    "WORKSPACE": "the same",
}
#: Given by muster where the caller's environment does not have them.
DEFAULTS = {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG"}
#: Given by both, of another value.
DIFFERENT = {
    "MASTER_ADDR": "localhost, in other versions the host's name; muster: 127.0.0.1",
    "MASTER_PORT": "a free one",
    "TORCHELASTIC_RUN_ID": "a random name; muster: the job's id",
}

DUMP = """
import json, os, sys
folder, *rest = sys.argv[1:]
rank = os.environ.get("RANK") or os.environ.get("OMPI_COMM_WORLD_RANK")
about = {"env": dict(os.environ), "cwd": os.getcwd(), "argv": rest, "umask": os.umask(0o22),
         "session": os.getsid(0) == os.getpid(), "stdin": os.readlink("/proc/self/fd/0")}
with open(os.path.join(folder, rank + ".new"), "w") as file:
    json.dump(about, file)
os.rename(file.name, os.path.join(folder, rank + ".json"))  # it may be killed at any moment
for number in range(3):
    os.write(1, f"line {number} of {rank}\\n".encode())  # in one piece: the ranks of a launcher share a pipe
if rest and rest[0] == "fail" and rank == "1":
    sys.exit(int(rest[1]))
if rest and rest[0] == "kill" and rank == "1":
    os.kill(os.getpid(), int(rest[1]))
"""


@dataclass
class Side:
    """What one launcher made of the script."""

    code: int
    out: str
    err: str
    ranks: dict[str, Any]
    made: list[str]


class Place:
    """A folder with the script, in which one launcher after the other is called with the same environment."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.here = root / "here"
        self.here.mkdir()
        (self.here / "train.py").write_text(DUMP)
        self.env = {name: value for name, value in os.environ.items() if not name.startswith(("MUSTER_", "MA_", "VC_"))}
        # What is to reach the ranks, and what either launcher would set if it were not there.
        self.env |= {"TOKEN": "of the caller", "EMPTY": "", "LINES": "a\nb", "MUSTER_ROOT": str(root / "none")}
        self.env |= {"PATH": f"{BIN}:{self.env['PATH']}", "NO_COLOR": "1"}

    def call(self, command: Sequence[str], **more: str) -> Side:
        """`DUMP` in the command is the folder for what the ranks say of themselves."""
        with tempfile.TemporaryDirectory(dir=self.root) as dumps:
            words = [dumps if word == "DUMP" else word for word in command]
            before = set(self.here.rglob("*"))
            done = subprocess.run(
                words, env=self.env | more, cwd=self.here, capture_output=True, text=True, timeout=250, check=False
            )
            ranks = {path.stem: json.loads(path.read_text()) for path in Path(dumps).glob("*.json")}
            made = sorted(str(path.relative_to(self.here)) for path in set(self.here.rglob("*")) - before)
        return Side(done.returncode, done.stdout, done.stderr, ranks, made)


@pytest.fixture
def place() -> Iterator[Place]:
    with tempfile.TemporaryDirectory(prefix="m-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        yield Place(Path(folder))


def muster(*words: str) -> list[str]:
    return [MUSTER, "run", "--standalone", "--no-label", *words]


def lines(text: str) -> list[str]:
    return sorted(line for line in text.splitlines() if line.startswith("line "))


# --- torchrun ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@needs_torch
@pytest.mark.torch
@pytest.mark.parametrize("ranks", ["1", "3"])
def test_torchrun(place: Place, ranks: str) -> None:
    theirs = place.call([TORCHRUN, "--standalone", "--nproc-per-node", ranks, "train.py", "DUMP", "--lr", "0 1", ""])
    ours = place.call(muster("--ranks", ranks, "--", "python", "train.py", "DUMP", "--lr", "0 1", ""))
    assert (theirs.code, ours.code) == (0, 0), theirs.err + ours.err
    assert lines(theirs.out) == lines(ours.out) == sorted(ours.out.splitlines())
    assert (theirs.made, ours.made) == ([], [])
    assert sorted(ours.ranks) == sorted(theirs.ranks) == [str(rank) for rank in range(int(ranks))]
    for rank, their in theirs.ranks.items():
        our = ours.ranks[rank]
        assert {name: our[name] for name in ("cwd", "argv", "umask", "session")} == {
            name: their[name] for name in ("cwd", "argv", "umask", "session")
        }
        assert (our["stdin"], our["env"]["TOKEN"]) == ("/dev/null", "of the caller")
        only_theirs = their["env"].keys() - our["env"].keys()
        only_ours = our["env"].keys() - their["env"].keys() - DEFAULTS
        assert only_theirs == ONLY_TORCHRUN.keys()
        assert only_ours == ONLY_MUSTER.keys()
        both = their["env"].keys() & our["env"].keys() - DIFFERENT.keys()
        assert {name: our["env"][name] for name in both} == {name: their["env"][name] for name in both}
        assert DIFFERENT.keys() <= their["env"].keys() & our["env"].keys()
        assert our["env"]["MASTER_ADDR"] == "127.0.0.1"


@pytest.mark.slow
@needs_torch
@pytest.mark.torch
@pytest.mark.parametrize(
    ("how", "torchruns", "ours"),
    [(("fail", "7"), 1, 7), (("kill", "9"), 1, 137), (("kill", "15"), 1, 143)],
    ids=["exit code 7", "SIGKILL", "SIGTERM"],
)
def test_a_rank_of_torchruns_that_fails(place: Place, how: tuple[str, str], torchruns: int, ours: int) -> None:
    """torchrun ends with 1, whatever the rank did; muster ends with what the rank did. Neither ends with 0."""
    their = place.call([TORCHRUN, "--standalone", "--nproc-per-node", "3", "train.py", "DUMP", *how])
    mine = place.call(muster("--ranks", "3", "--", "python", "train.py", "DUMP", *how))
    assert (their.code, mine.code) == (torchruns, ours), their.err + mine.err
    assert "rank 1 (device 1)" in mine.err


@pytest.mark.slow
@needs_torch
@pytest.mark.torch
def test_a_training_ends_alike_under_torchrun(place: Place) -> None:
    """The very same script, which knows neither: equal losses, and each time equal parameters on both ranks."""
    script = [str(DDP), "--steps", "5"]
    theirs = place.call([TORCHRUN, "--standalone", "--nproc-per-node", "2", *script])
    shutil.rmtree(place.here / "checkpoint.pt", ignore_errors=True)
    ours = place.call(muster("--ranks", "2", "--", "python", *script))
    assert (theirs.code, ours.code) == (0, 0), theirs.out + theirs.err + ours.out + ours.err
    results = [[line for line in side.out.splitlines() if line.startswith("ddp ok")] for side in (theirs, ours)]
    assert results[0] == results[1] and len(results[0]) == 1


@needs_torch
@pytest.mark.torch
def test_the_caller_may_say_as_on_the_platform_that_torchrun_makes_the_ranks(place: Place) -> None:
    """MA_RUN_METHOD is understood without a daemon too: these ranks are torchrun's own."""
    side = place.call(muster("--ranks", "2", "--", "python", "train.py", "DUMP"), MA_RUN_METHOD="torchrun")
    assert side.code == 0, side.err
    assert {rank: about["env"]["TORCHELASTIC_USE_AGENT_STORE"] for rank, about in side.ranks.items()} == {
        "0": "True",
        "1": "True",
    }
    assert {about["cwd"] for about in side.ranks.values()} == {str(place.here)}


# --- mpirun -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@needs_mpirun
@pytest.mark.system
@pytest.mark.parametrize("how", [(), ("fail", "7")], ids=["0", "7"])
def test_mpirun(place: Place, how: tuple[str, ...]) -> None:
    words = [sys.executable, "train.py", "DUMP", *how]
    # What muster sets for a container, in which all runs as root.
    place.env |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    theirs = place.call(["mpirun", "-np", "3", "--oversubscribe", "-bind-to", "none", "-map-by", "slot", *words])
    ours = place.call(muster("--boot", "mpi", "--ranks", "3", "--", *words))
    assert theirs.code == ours.code == int((how or ("", "0"))[1]), theirs.err + ours.out + ours.err
    if not how:  # else mpirun may end the others before they have said anything
        assert sorted(ours.ranks) == sorted(theirs.ranks) == ["0", "1", "2"]
        assert lines(theirs.out) == lines(ours.out)
    said = theirs.ranks.keys() & ours.ranks.keys()
    assert "1" in said
    for rank in said:
        their, our = theirs.ranks[rank], ours.ranks[rank]
        for name in ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "TOKEN", "LINES"):
            assert our["env"][name] == their["env"][name]
        assert (our["cwd"], our["argv"]) == (their["cwd"], their["argv"])
    assert (theirs.made, ours.made) == ([], [])


# --- msrun ------------------------------------------------------------------------------------------------------------

MINDSPORE = """
import json, os, sys
import numpy as np
import mindspore as ms
from mindspore import ops
from mindspore.communication import get_group_size, get_rank, init
folder, code = sys.argv[1:]
ms.set_device("CPU")
init()
total = ops.AllReduce()(ms.Tensor(np.array([get_rank() + 1], np.float32)))
print(f"line rank {get_rank()} of {get_group_size()}: total {int(total.asnumpy()[0])}", flush=True)
with open(os.path.join(folder, f"{get_rank()}.new"), "w") as file:
    json.dump({"env": dict(os.environ), "cwd": os.getcwd(), "argv": sys.argv[2:]}, file)
os.rename(file.name, os.path.join(folder, f"{get_rank()}.json"))
sys.exit(int(code) if get_rank() == 1 else 0)
"""
#: Of MindSpore's own variables those that differ.
MS_DIFFERENT = {
    "MS_SCHED_PORT": "a free one",
    "MS_TOPO_TIMEOUT": "from --cluster_time_out, which ModelArts sets to 600 s",
    "MS_NODE_RANK": "-1 for a single node; muster gives --node_rank=0, as ModelArts does",
}


@needs_msrun
@pytest.mark.system
@pytest.mark.parametrize("code", ["0", "7"])
def test_real_msrun(place: Place, code: str) -> None:
    (place.here / "train.py").write_text(MINDSPORE)
    place.env["PATH"] = f"{MSRUN}:{place.env['PATH']}"
    options = ["--worker_num=2", "--local_worker_num=2", f"--master_port={free_port()}", "--join=True"]
    theirs = place.call(["msrun", *options, f"--log_dir={place.root}/theirs", "train.py", "DUMP", code])
    words = ["--boot", "msrun", "--ranks", "2", "--job-id", "x", "--log-dir", f"{place.root}/ours"]
    ours = place.call(muster(*words, "--", "python", "train.py", "DUMP", code))
    assert (theirs.code == 0, ours.code == 0) == (code == "0", code == "0"), theirs.out + ours.out + ours.err
    assert theirs.code == ours.code
    said = theirs.ranks.keys() & ours.ranks.keys()
    # Of a worker whose peer failed msrun may end all that it was about to say.
    assert {"1"} <= said if code != "0" else said == {"0", "1"}
    for rank in said:
        # msrun copies the workers' output, and does not care for whole lines.
        assert all(f"line rank {rank} of 2: total 3" in side.out for side in (theirs, ours))
        their, our = theirs.ranks[rank], ours.ranks[rank]
        names = {name for name in their["env"] if name.startswith("MS_")} - MS_DIFFERENT.keys()
        assert {name: our["env"].get(name) for name in names} == {name: their["env"][name] for name in names}
        assert (our["cwd"], our["argv"], our["env"]["TOKEN"]) == (their["cwd"], their["argv"], "of the caller")
        for folder in (place.root / "theirs", place.root / "ours" / "x" / "msrun"):
            assert lines((folder / f"worker_{rank}.log").read_text()) == [f"line rank {rank} of 2: total 3"]


@needs_msrun
@pytest.mark.system
def test_real_msrun_leaves_its_logs_where_stderr_says(place: Place) -> None:
    """It does so in the present folder, and also when all went well."""
    (place.here / "train.py").write_text(MINDSPORE)
    tmp = place.root / "t"
    tmp.mkdir()
    place.env |= {"PATH": f"{MSRUN}:{place.env['PATH']}", "TMPDIR": str(tmp)}
    side = place.call(muster("--boot", "msrun", "--ranks", "2", "--", "python", "train.py", "DUMP", "0"))
    assert side.code == 0, side.out + side.err
    (log,) = tmp.rglob("worker_1.log")
    assert str(next(tmp.iterdir()) / "log") in side.err
    assert lines(log.read_text()) == ["line rank 1 of 2: total 3"]
