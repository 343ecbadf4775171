"""`muster run` in place of ModelArts' launcher, `python run_ascend.py COMMAND`: in a container, without a daemon.

What is expected is what the launcher does; docs/guides/drop-in.md tells it, and in what muster differs.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import BIN
from tests.integration.box import mounted
from tests.integration.launch.tables import DUMP, ONE, TWO, TWO_CONVERTED, changed, put, template2


@pytest.fixture
def container() -> Iterator[Path]:
    """Folders of a container of the platform, with a table that is not completed yet."""
    with tempfile.TemporaryDirectory(prefix="m-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        root = Path(folder)
        for name in ("mount/log", "here", "tmp"):
            (root / name).mkdir(parents=True)
        put(root / "config" / "jobstart_hccl.json", {"status": "initializing"})
        yield root


def in_container(container: Path, **more: str | None) -> dict[str, str]:
    """The environment of a container; None takes a variable away."""
    env: dict[str, str | None] = {name: value for name, value in os.environ.items() if not name.startswith("MUSTER_")}
    env |= {
        "NO_COLOR": "1",
        "TMPDIR": str(container / "tmp"),
        "MUSTER_ROOT": str(container / "none"),
        "MA_VJ_NAME": "ma-job-7",
        "MA_MOUNT_PATH": str(container / "mount"),
        "MA_CURRENT_INSTANCE_NAME": "job-train-9",
        "RANK_TABLE_FILE": str(container / "config"),
        "TOKEN": "of the caller",
    }
    return {name: value for name, value in (env | more).items() if value is not None}


def complete(container: Path, table: object = TWO) -> None:
    put(container / "config" / "jobstart_hccl.json", table)


def run(container: Path, *args: str, **more: str | None) -> "subprocess.CompletedProcess[str]":
    command = [str(BIN / "muster"), "run", *args]
    env = in_container(container, **more)
    here = container / "here"
    return subprocess.run(command, env=env, cwd=here, capture_output=True, text=True, timeout=110, check=False)


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


#: What the launcher would leave in MA_MOUNT_PATH of the first node of TWO, and the log of muster's own beside it.
LEFT = sorted(
    [
        *("log", "rank_table", "rank_table/jobstart_hccl.json", "workspace"),
        *(f"workspace/device{i}" for i in range(3)),
        *(f"log/modelarts-job-7-proc-rank-{i}-device-{i}.txt" for i in range(3)),
        *("log/modelarts-job-7", "log/modelarts-job-7/ascend", "log/modelarts-job-7/ascend/process_log"),
        *(f"log/modelarts-job-7/ascend/process_log/rank_{i}" for i in range(3)),
    ]
)


def left_in(mount: Path) -> list[str]:
    """Over the job's own log, whatever it is called, and the report of a job that has failed."""
    return [name for name in names(mount) if not name.endswith((".log", "-muster-0.html"))]


def test_the_command_alone_is_enough(container: Path) -> None:
    """With nothing said but the command, as `python run_ascend.py COMMAND` would be."""
    complete(container)
    done = run(container, "--no-label", "--", sys.executable, "-c", DUMP)
    assert done.returncode == 0, done.stderr
    mount = container / "mount"
    ranks = sorted((json.loads(line) for line in done.stdout.splitlines()), key=lambda rank: rank["env"]["RANK_ID"])
    assert len(ranks) == 3
    for index, rank in enumerate(ranks):
        expected = {
            "JOB_ID": "modelarts-job-7",
            "ASCEND_DEVICE_ID": str(index),
            "DEVICE_ID": str(index),
            "RANK_ID": str(index),
            "RANK_SIZE": "5",
            "HCCL_CONNECT_TIMEOUT": "1800",
            "ASCEND_PROCESS_LOG_PATH": f"{mount}/log/modelarts-job-7/ascend/process_log/rank_{index}",
            "RANK_TABLE_FILE": f"{mount}/rank_table/jobstart_hccl.json",
            "TOKEN": "of the caller",
            "MA_VJ_NAME": "ma-job-7",
        }
        assert {name: rank["env"].get(name) for name in expected} == expected
        assert rank["cwd"] == str(mount / "workspace" / f"device{index}")
        file = mount / "log" / f"modelarts-job-7-proc-rank-{index}-device-{index}.txt"
        assert json.loads(file.read_text()) == rank
    assert left_in(mount) == LEFT
    assert json.loads((mount / "rank_table" / "jobstart_hccl.json").read_text()) == TWO_CONVERTED
    assert (names(container / "here"), names(container / "tmp")) == ([], [])


def test_the_launchers_place_is_taken_with_options_too(container: Path) -> None:
    complete(container)
    options = ["--job-id", "mine", "--log-dir", str(container / "logs"), "--workdir", "."]
    done = run(container, "--standalone", *options, "--", sys.executable, "-c", DUMP)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line.removeprefix(f"[rank {line[6]}] ")) for line in done.stdout.splitlines()]
    assert {rank["cwd"] for rank in found} == {str(container / "here")}
    assert {rank["env"]["JOB_ID"] for rank in found} == {"modelarts-job-7"}
    plogs = {f"{container}/logs/modelarts-job-7/ascend/process_log/rank_{i}" for i in range(3)}
    assert {rank["env"]["ASCEND_PROCESS_LOG_PATH"] for rank in found} == plogs
    assert {name for name in names(container / "logs") if name.endswith(".txt")} == {
        f"mine-proc-rank-{i}-device-{i}.txt" for i in range(3)
    }
    assert names(container / "mount") == ["log", "rank_table", "rank_table/jobstart_hccl.json"]


def test_the_output_of_one_device_has_no_label(container: Path) -> None:
    """How many ranks there are is known only once the table is there."""
    complete(container, template2([("job-train-9", "s", [("0", "")])]))
    assert run(container, "--standalone", "--", "printf", "as it is").stdout == "as it is"


def test_where_they_meet_may_be_the_callers(container: Path) -> None:
    """The launcher hands MASTER_ADDR and MASTER_PORT on as they are."""
    complete(container)
    said = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "18999"}
    done = run(container, "--standalone", "--", "sh", "-c", "echo $MASTER_ADDR $MASTER_PORT", **said)
    assert sorted(done.stdout.splitlines()) == [f"[rank {i}] 127.0.0.1 18999" for i in range(3)], done.stderr


@pytest.mark.parametrize("given", ["config", "config/jobstart_hccl.json"])
def test_a_path_may_be_relative_to_the_callers_folder(container: Path, given: str) -> None:
    complete(container)
    done = run(container, "--standalone", "--", "sh", "-c", "echo $RANK_TABLE_FILE", RANK_TABLE_FILE=f"../{given}")
    table = f"{container}/mount/rank_table/jobstart_hccl.json"
    assert sorted(done.stdout.splitlines()) == [f"[rank {i}] {table}" for i in range(3)], done.stderr


def test_without_the_platforms_folders_it_works_where_it_is(container: Path) -> None:
    """There would be no launcher without MA_VJ_NAME. The table is the job's all the same."""
    complete(container)
    taken = {"MA_VJ_NAME": None, "MA_MOUNT_PATH": None}
    done = run(container, "--log-dir", "logs", "--standalone", "--", sys.executable, "-c", DUMP, **taken)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line.partition("] ")[2]) for line in done.stdout.splitlines()]
    assert {rank["cwd"] for rank in found} == {str(container / "here")}
    assert [json.loads(rank["table"]) for rank in found] == [TWO_CONVERTED] * 3
    assert names(container / "tmp") == []


def test_a_name_that_cannot_be_an_id(container: Path) -> None:
    complete(container)
    done = run(container, "--standalone", "--", "true", MA_VJ_NAME="../../x")
    assert done.returncode == 0 and "MA_VJ_NAME is '../../x'" in done.stderr
    assert not list(container.rglob("x"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_wait_for_the_table(container: Path, number: int) -> None:
    command = [str(BIN / "muster"), "run", "-v", "--standalone", "--", "true"]
    with subprocess.Popen(
        command, env=in_container(container), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stderr is not None
            assert "accepted" in process.stderr.readline()
            process.send_signal(number)
            out, err = process.communicate(timeout=110)
        finally:
            process.kill()
    assert (process.returncode, out) == (128 + signal.SIGTERM, ""), err
    assert left_in(container / "mount") == ["log"]
    assert names(container / "tmp") == []


def test_the_launcher_waits_for_the_table(container: Path) -> None:
    command = [str(BIN / "muster"), "run", "-v", "--standalone", "--", "sh", "-c", "echo $RANK_ID"]
    with subprocess.Popen(
        command, env=in_container(container), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stderr is not None
            assert "accepted" in process.stderr.readline()
            complete(container)
            out, err = process.communicate(timeout=110)
        finally:
            process.kill()
    assert (process.returncode, sorted(out.splitlines())) == (0, [f"[rank {i}] {i}" for i in range(3)]), err


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("[ $RANK_ID = 1 ] && exit 7; exec sleep 1000", 7),
        ("[ $RANK_ID = 1 ] && kill -9 $$; exec sleep 1000", 137),
    ],
)
def test_the_first_failure_ends_the_gang_and_is_the_result(container: Path, script: str, code: int) -> None:
    complete(container)
    done = run(container, "--standalone", "--", "sh", "-c", script)
    assert done.returncode == code, done.stderr
    assert left_in(container / "mount") == LEFT
    assert (container / "mount" / "log" / "modelarts-job-7-muster-0.html").exists()


def test_sigterm_gives_the_ranks_time_for_their_last_words(container: Path) -> None:
    complete(container)
    script = "trap 'echo saved $RANK_ID; exit 0' TERM; echo up; while :; do sleep 0.05; done"
    options = ["-q", "--standalone", "--no-label", "--grace", "60s"]
    command = [str(BIN / "muster"), "run", *options, "--", "sh", "-c", script]
    env = in_container(container)
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            seen = b""
            while seen.count(b"up\n") < 3:
                data = os.read(process.stdout.fileno(), 65536)
                assert data, process.communicate(timeout=60)
                seen += data
            process.send_signal(signal.SIGTERM)
            out, _ = process.communicate(timeout=110)
        finally:
            process.kill()
    assert sorted(line for line in out.decode().splitlines() if line.startswith("saved")) == [
        f"saved {i}" for i in range(3)
    ]
    assert process.returncode == 0


def test_a_table_that_cannot_be_ends_the_launcher_with_the_place(container: Path) -> None:
    complete(container, changed(TWO, "group_list", 0, "device_count", to="8"))
    done = run(container, "--standalone", "--", "true")
    assert (done.returncode, done.stdout) == (125, "")
    assert f"{container}/config/jobstart_hccl.json: group_list[0].device_count: is 8, but" in done.stderr
    assert left_in(container / "mount") == ["log"]


def test_without_a_mount_path_the_launchers_folders_are_at_the_root(container: Path) -> None:
    """/tmp/log and /cache/device<N>, each a file system of its own here."""
    complete(container, ONE)
    made = [folder for folder in (Path("/cache"), Path("/tmp/log")) if not folder.exists()]
    try:
        inside = mounted("mkdir -p /cache /tmp/log\nmount -t tmpfs none /cache\nmount -t tmpfs none /tmp/log")
        script = '"$@"; code=$?; cd /; find cache tmp/log -type f -o -type d | sort; exit $code'
        muster = [str(BIN / "muster"), "run", "-q", "--standalone", "--skip-check", "--", "sh", "-c", "pwd"]
        env = in_container(container, MA_MOUNT_PATH=None)
        done = subprocess.run(
            [*inside, "sh", "-c", script, "sh", *muster],
            env=env, cwd=container / "here", capture_output=True, text=True, timeout=110, check=False,
        )  # fmt: skip
    finally:
        for folder in made:
            shutil.rmtree(folder, ignore_errors=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert sorted(lines[:2]) == ["[rank 0] /cache/device1", "[rank 1] /cache/device0"]
    assert [line for line in lines[2:] if not line.endswith(".log")] == [
        *("cache", "cache/device0", "cache/device1", "tmp/log", "tmp/log/modelarts-job-7"),
        *("tmp/log/modelarts-job-7-proc-rank-0-device-1.txt", "tmp/log/modelarts-job-7-proc-rank-1-device-0.txt"),
        *("tmp/log/modelarts-job-7/ascend", "tmp/log/modelarts-job-7/ascend/process_log"),
        *(f"tmp/log/modelarts-job-7/ascend/process_log/rank_{i}" for i in range(2)),
    ]


@pytest.mark.parametrize(("node", "ranks"), [("0", ["0", "1"]), ("1", ["2"])])
def test_the_example(container: Path, node: str, ranks: list[str]) -> None:
    """As its README has it, on either node."""
    example = Path(__file__).parents[3] / "examples" / "modelarts"
    given = {"RANK_TABLE_FILE": str(example / "config"), "MA_CURRENT_INSTANCE_NAME": f"job-demo-{node}"}
    done = run(container, "--standalone", "python3", str(example / "train.py"), **given)
    assert done.returncode == 0, done.stdout + done.stderr
    mount = container / "mount"
    for index, rank in enumerate(ranks):
        said = (mount / "log" / f"modelarts-job-7-proc-rank-{rank}-device-{index}.txt").read_text()
        assert f"RANK_ID={rank}\n" in said and "RANK_SIZE=3\n" in said and "fitted y = 2." in said
        assert (mount / "workspace" / f"device{index}" / "model.json").is_file()
    assert len(list(mount.rglob("model.json"))) == len(ranks)


@pytest.mark.slow
def test_what_lies_beside_the_boot_file_is_used(container: Path) -> None:
    """ma-pre-start.sh changes the environment of the ranks, pip-requirements.txt is installed before; both by name."""
    complete(container)
    code = container / "demo-code"
    (code / "package").mkdir(parents=True)
    # In one piece: lines of several ranks that nobody labels may mix.
    (code / "train.py").write_text(
        "import os, beside; os.write(1, f\"{os.environ['GLOG_v']} {beside.WORD}\\n\".encode())\n"
    )
    (code / "ma-pre-start.sh").write_text('echo "[ma-pre-start] Set ENV"\nexport GLOG_v=2\n')
    (code / "package" / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
        '[project]\nname = "beside"\nversion = "1"\n[tool.hatch.build.targets.wheel]\ninclude = ["beside.py"]\n'
    )
    (code / "package" / "beside.py").write_text("WORD = 'installed'\n")
    wheel = ["wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(code)]
    subprocess.run([sys.executable, "-m", "pip", *wheel, str(code / "package")], timeout=100, check=True)
    (package,) = code.glob("*.whl")
    (code / "pip-requirements.txt").write_text(f"{package}\n")
    done = run(container, "--no-label", "-q", "--", sys.executable, str(code / "train.py"))
    assert (done.returncode, done.stdout) == (0, "2 installed\n" * 3), done.stderr
    (log,) = (container / "mount" / "log").glob("*-muster-*.log")
    said = log.read_text()
    assert f"{code}/ma-pre-start.sh" in said and f"{code}/pip-requirements.txt" in said and "Set ENV" in said


@pytest.mark.slow
def test_what_lies_beside_the_boot_file_may_be_left_alone(container: Path) -> None:
    complete(container)
    code = container / "demo-code"
    code.mkdir()
    (code / "train.py").write_text(
        "import os; os.write(1, f\"{os.environ.get('GLOG_v')} {os.environ.get('MINE')}\\n\".encode())\n"
    )
    (code / "ma-pre-start.py").write_text("import os; os.environ['GLOG_v'] = '3'\n")
    (container / "mine.sh").write_text("export MINE=1\n")
    words = ("--no-label", "-q")
    command = ("--", sys.executable, "-u", str(code / "train.py"))
    assert run(container, *words, *command).stdout == "3 None\n" * 3
    assert run(container, *words, "--no-boot-files", *command).stdout == "None None\n" * 3
    assert run(container, *words, "--pre-start", str(container / "mine.sh"), *command).stdout == "None 1\n" * 3
    # Elsewhere than on the platform such a name means nothing.
    elsewhere: dict[str, str | None] = dict.fromkeys(("MA_VJ_NAME", "MA_MOUNT_PATH", "RANK_TABLE_FILE"))
    done = run(container, *words, "--standalone", "--skip-check", *command, MA_CURRENT_INSTANCE_NAME=None, **elsewhere)
    assert done.stdout == "None None\n"
