"""A user who owns a folder above muster's, or gets files of their own among them: renames, forged specs, links, FIFOs.

Everything that the hostile user does is done by a process of that user.
"""

import json
import os
import pwd
import re
import shutil
import signal
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from muster.supervisors.model import journal
from muster.v1 import job_pb2
from tests.conftest import BIN, Daemon, alive, eventually, remove

NOBODY = 65534
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, who is to be fooled")


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder of root's that everybody may look into."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    remove(folder)


def as_nobody(script: str, *words: object) -> None:
    """Runs a shell script as the hostile user; it must work."""
    subprocess.run(
        ["sh", "-ec", script, "sh", *map(str, words)], check=True, user=NOBODY, group=NOBODY, extra_groups=[], cwd="/"
    )


def musterd(*words: object) -> subprocess.CompletedProcess[str]:
    """Until it ends; one that starts after all is ended."""
    command = [str(BIN / "musterd"), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def refused(*words: object) -> str:
    """The sentence, which is the same for a look and for a start."""
    checked, started = musterd(*words, "--check-config"), musterd(*words)
    assert checked.returncode == started.returncode == 1, (checked, started)
    assert checked.stderr == started.stderr
    return started.stderr


# --- a folder of theirs above -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_tree_that_was_put_in_the_place_of_ours_is_not_started_on(place: Path):
    """Root's tree lies below the user's folder, who renames it and puts one with a forged job there."""
    upper, proof = place / "upper", place / "proof"
    (upper / "m").mkdir(parents=True)
    daemon = Daemon(upper / "m")
    try:
        daemon.start()
        daemon.run("true", job_id="x")
        daemon.wait("x")
        (place / "journal").write_bytes(daemon.root.job("x").journal.read_bytes())  # what the user may know
    finally:
        daemon.close()
    (place / "journal").chmod(0o644)
    os.chown(upper, NOBODY, NOBODY)
    as_nobody(
        'cd "$1"; mv m away; mkdir -p m/state/jobs/x m/run m/log; echo "muster-state 1" > m/state/version; '
        'head -n 1 "$2" > m/state/jobs/x/journal; : > m/state/jobs/x/lock; printf %s "$3" > m/state/jobs/x/spec.json',
        upper,
        place / "journal",
        json.dumps({"job_id": "x", "command": ["touch", str(proof)]}),
    )
    said = refused("--root", upper / "m")
    assert said.startswith(f"musterd: {upper}: belongs to ") and "uid 65534" in said, said
    assert f"{upper}/m" in said and said.endswith(f"chown 0 {upper}\n"), said
    # Nor where only the tree itself is theirs still.
    os.chown(upper, 0, 0)
    said = refused("--root", upper / "m")
    assert said.startswith(f"musterd: {upper}/m: belongs to "), said
    assert not proof.exists() and sorted(os.listdir(upper / "m")) == ["log", "run", "state"]


@pytest.mark.parametrize(
    ("above", "mode", "remedy"),
    [(0, 0o777, "chmod o-w"), (0, 0o775, "chmod g-w"), (NOBODY, 0o1777, "chown 0"), (0, 0o1777, "")],
)
def test_who_else_may_write_above(place: Path, above: int, mode: int, remedy: str):
    upper = place / "a" / "upper"
    root = upper / "b" / "m"
    root.mkdir(parents=True)
    os.chown(upper, above, 4711)
    upper.chmod(mode)
    if remedy:
        said = refused("--root", root)
        assert f"musterd: {upper}: " in said and f"{remedy} {upper}\n" in said, said
        assert os.listdir(root) == []
    else:
        assert musterd("--root", root, "--check-config").returncode == 0


@pytest.mark.parametrize("name", ["run", "state", "log", "config", "link"])
def test_a_part_of_it_below_a_folder_of_theirs(place: Path, name: str):
    """By a link that root made, or that they did."""
    root, theirs = place / "m", place / "theirs"
    root.mkdir()
    (theirs / "below").mkdir(parents=True)
    os.chown(theirs, NOBODY, NOBODY)
    words: list[object] = ["--root", root]
    if name == "config":
        (theirs / "below" / "musterd.toml").touch()
        words += ["--config", theirs / "below" / "musterd.toml"]
    elif name == "link":
        as_nobody('ln -s "$1" "$2"/link', root, theirs)
        words = ["--root", theirs / "link"]
    elif name == "log":
        (root / "etc").mkdir()
        as_nobody('ln -s "$1" "$2"/logs', root / "etc", theirs)
        (root / "log").symlink_to(theirs / "logs")
    else:
        (root / name).symlink_to(theirs / "below")
    said = refused(*words)
    bad = f"{theirs}/logs: is a link that " if name == "log" else f"{theirs}: belongs to "
    assert said.startswith(f"musterd: {bad}") and "uid 65534" in said, said


def test_a_daemon_of_a_user_trusts_no_other_user(place: Path):
    """Only root and the user itself."""
    python = shutil.which("python3", path="/usr/bin:/usr/local/bin")
    if python is None:
        pytest.skip("needs a Python that everybody may run")
    (place / "theirs" / "mine").mkdir(parents=True)
    os.chown(place / "theirs", 1, 1)
    os.chown(place / "theirs" / "mine", NOBODY, NOBODY)
    package = place / "package" / "muster"
    source = Path(journal.__file__).parents[2]
    for each in ("supervision_errors.py", "system/trust.py"):
        (package / "supervisors" / each).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source / "supervisors" / each, package / "supervisors" / each)
    look = (
        "import sys; sys.path.insert(0, sys.argv[1])\nfrom pathlib import Path\n"
        "from muster.supervisors.system import trust\ntrust.check(Path(sys.argv[2]))"
    )
    as_nobody('"$@"', python, "-c", look, package.parent, place / "own" / "x")
    with pytest.raises(subprocess.CalledProcessError):
        as_nobody('"$@" 2>/dev/null', python, "-c", look, package.parent, place / "theirs" / "mine" / "x")


def test_an_environment_that_others_can_change_is_not_run_as_root(place: Path):
    """As `muster service install` refuses it."""
    theirs = place / "theirs"
    (theirs / "site").mkdir(parents=True)
    package = BIN.parent.parent / "proto" / "muster"
    shutil.copytree(package, theirs / "site" / "muster", ignore=shutil.ignore_patterns("__pycache__"))
    os.chown(theirs, NOBODY, NOBODY)
    command = [str(BIN / "python"), "-m", "muster.agent.musterd", "--root", str(place / "m"), "--check-config"]
    env = os.environ | {"PYTHONPATH": str(theirs / "site")}
    done = subprocess.run(command, cwd=theirs / "site", env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and f"musterd: {theirs}: belongs to " in done.stderr, done
    assert "/opt/muster" in done.stderr and "--trust-environment" in done.stderr
    taken = [*command, "--trust-environment"]
    subprocess.run(taken, cwd=theirs / "site", env=env, capture_output=True, check=True)


@pytest.mark.parametrize(
    ("what", "mode"),
    [
        ("site", 0o777),
        ("site/grpc", 0o777),
        ("site/x.pth", 0o666),
        ("pyvenv.cfg", 0o666),
        ("added", 0o777),
        ("muster/agent", 0o777),
        ("muster/agent/errors.py", 0o666),
        ("", 0),
    ],
)
def test_an_environment_with_a_part_that_others_can_change_is_not_run_as_root(place: Path, what: str, mode: int):
    """The folders of its packages, what Python reads at its start, $PYTHONPATH, and what muster imports."""
    subprocess.run([str(BIN / "python"), "-m", "venv", "--without-pip", str(place / "venv")], check=True)
    site = next((place / "venv" / "lib").glob("python*/site-packages"))
    (site / "grpc").mkdir()
    (site / "x.pth").touch()
    (place / "added").mkdir()
    mine = place / "own" / "muster"
    shutil.copytree(BIN.parent.parent / "proto" / "muster", mine, ignore=shutil.ignore_patterns("__pycache__"))
    parts = {"site": site, "muster": mine, "pyvenv.cfg": place / "venv" / "pyvenv.cfg", "added": place / "added"}
    first, *rest = what.split("/")
    path = parts[first].joinpath(*rest) if what else None
    if path is not None:
        path.chmod(mode)
    installed = sysconfig.get_path("purelib", vars={"base": str(BIN.parent), "platbase": str(BIN.parent)})
    command = [str(place / "venv" / "bin" / "python"), "-P", "-m", "muster.agent.musterd", "--root", str(place / "m")]
    env = os.environ | {"PYTHONPATH": f"{place / 'own'}:{place / 'added'}:{installed}"}
    done = subprocess.run([*command, "--check-config"], env=env, capture_output=True, text=True, check=False)
    if path is None:
        assert done.returncode == 0, done
    else:
        assert done.returncode == 1 and f"musterd: {path}: its mode 0{mode:o} lets everybody write" in done.stderr, done
        assert f"chmod o-w {path}" in done.stderr and "--trust-environment" in done.stderr


@pytest.mark.parametrize("added", ["/x:", ":/x", "/x::/y", ":"])
def test_the_present_folder_is_none_that_muster_imports_from(place: Path, added: str):
    """$PYTHONPATH with nothing between or behind colons names it, before Python's own library; CANN's images have such
    a variable. Ranks get it as it is."""
    for name in ("queue", "token", "click", "uvloop", "anyio"):
        (place / f"{name}.py").write_text(f"raise SystemExit('the present folder: {name}')\n")
    env = os.environ | {"PYTHONPATH": added, "XDG_STATE_HOME": str(place / "state")}
    run = ("muster", "run", "--standalone", "--skip-check", "--", "sh", "-c", 'echo "$PYTHONPATH"')
    for words in (("muster", "--version"), ("musterd", "--version"), run):
        program = [str(BIN / words[0]), *words[1:]]
        done = subprocess.run(program, cwd=place, env=env, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done
        assert "--version" in words or done.stdout == f"{added}\n", done


# --- files of theirs among ours ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["node.json", "digest.key", "settings.json", "faults.json", "notify.json", "version"])
def test_a_file_of_theirs_in_the_state_folder(place: Path, name: str):
    daemon = Daemon(place)
    daemon.start()
    daemon.close()
    path = daemon.root.state / name
    path.touch()
    os.chown(path, NOBODY, NOBODY)
    said = refused("--root", place)
    assert f"musterd: {path}: belongs to " in said and f"chown 0 {path}\n" in said, said


@pytest.mark.slow
@pytest.mark.parametrize("name", ["spec.json", "journal", "."])
def test_a_job_with_a_file_of_theirs_is_not_believed(place: Path, name: str):
    """Others are, and it can be removed."""
    daemon = Daemon(place).start()
    try:
        for job_id in ("x", "other"):
            daemon.run("true", job_id=job_id)
            daemon.wait(job_id)
        daemon.kill()
        path = daemon.root.job("x").folder / name
        os.chown(path, NOBODY, NOBODY)
        daemon.start()
        assert daemon.get("other").state == job_pb2.JOB_STATE_SUCCEEDED
        job = daemon.get("x")
        assert job.state == job_pb2.JOB_STATE_LOST
        assert re.search(f"{path}: belongs to .*uid 65534", job.warnings[0])
        removed = daemon.cli("rm", "x")
        assert removed.returncode == 0 and not daemon.root.job("x").folder.exists(), removed
    finally:
        daemon.close()


def test_a_forged_spec_is_not_taken_over(place: Path):
    """The supervisor dies, and the spec is another user's by then; once it is given back, the job goes on."""
    proof = place / "proof"
    daemon = Daemon(place).start()
    try:
        daemon.run("sleep", "1000", job_id="x", epilog="")
        daemon.until_running("x")
        rank, spec = daemon.rank_pid("x"), daemon.root.job("x").spec
        good = spec.read_text()
        forged = json.loads(good) | {"max_restarts": 3, "command": ["touch", str(proof)]}
        spec.write_text(json.dumps(forged))
        os.chown(spec, NOBODY, NOBODY)
        os.kill(daemon.supervisor_pid("x"), signal.SIGKILL)
        said = eventually(
            lambda: [line for line in daemon.root.nursery_log.read_text().splitlines() if "belongs" in line]
        )
        assert f"{spec}: belongs to" in said[0] and "uid 65534" in said[0]
        assert alive(rank) and not proof.exists()
        eventually(lambda: f"no supervisor: {spec}: belongs to" in " ".join(daemon.get("x").warnings))
        spec.write_text(good)
        os.chown(spec, 0, 0)
        daemon.kill()
        daemon.start()
        eventually(lambda: daemon.supervisor_pid("x"), message="the job has a supervisor again")
        daemon.stop("x", grace_s=0)
        daemon.wait("x")
        eventually(lambda: not alive(rank))
    finally:
        daemon.close()


# --- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"job_id": "audit.log"}, "job_id"),
        ({"job_id": "x-proc-rank-0-device-0.idx"}, "job_id"),
        ({"env": {"MA_VJ_NAME": "audit.log.1"}}, "env['MA_VJ_NAME']"),
    ],
)
def test_no_job_has_the_name_of_a_file_of_musters(daemon: Daemon, fields: dict[str, Any], field: str):
    with pytest.raises(grpc.RpcError) as caught:
        daemon.run("true", boot="torchrun", **fields)
    assert isinstance(caught.value, grpc.Call)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert f"{field}: " in (caught.value.details() or "") and "choose another name" in (caught.value.details() or "")


#: Stands in for msrun: puts a file where it is told to put its logs, and stays.
_LAUNCHER = """#!/bin/sh
for word; do case $word in --log_dir=*) mkdir -p "${word#*=}"; id -u > "${word#*=}/who";; esac; done
exec sleep 1000
"""


def test_two_users_with_one_name_of_the_platform(open_daemon: Daemon):
    """Both run at once; the second is told where its further logs are, and nothing of the first goes with it."""
    daemon = open_daemon
    programs = daemon.folder / "bin"
    programs.mkdir()
    (programs / "msrun").write_text(_LAUNCHER)
    for path in (programs, programs / "msrun"):
        path.chmod(0o755)
    env = {"MA_VJ_NAME": "ma-job-x", "PATH": f"{programs}:/usr/bin:/bin"}
    usual, own = daemon.root.log / "modelarts-job-x", daemon.root.log / "second.logs"
    for job_id, user, folder in (("first", "daemon", usual), ("second", "nobody", own)):
        daemon.run("x.py", job_id=job_id, user=user, env=env, boot="msrun", workdir="/")
        uid = pwd.getpwnam(user).pw_uid
        who = folder / "msrun" / "who"
        eventually(lambda who=who, uid=uid: who.exists() and who.read_text() == f"{uid}\n")  # type: ignore[misc]
        assert folder.stat().st_uid == uid
    assert not list(daemon.get("first").warnings)
    (warning,) = eventually(lambda: list(daemon.get("second").warnings))  # comes after its ranks
    assert str(usual) in warning and str(own) in warning
    assert str(own) in daemon.cli("status", "second").stdout
    daemon.stop("second", grace_s=0)
    daemon.wait("second")
    daemon.jobs.Delete(job_pb2.DeleteRequest(job_id="second"), timeout=60)
    assert (usual / "msrun" / "who").exists() and not own.exists()


def test_a_volume_for_logs_whose_owner_plays_tricks(place: Path):
    """Root's daemon logs into a volume of the user's, by a link, as it may. The user puts other folders, links and
    FIFOs where muster makes its own: nothing of root's is written to or given away."""
    volume, secret = place / "volume", place / "secret"
    (volume / "logs").mkdir(parents=True)
    secret.mkdir()
    (secret / "file").write_text("root's\n")
    for folder in (volume, volume / "logs"):
        os.chown(folder, NOBODY, NOBODY)
    (place / "m").mkdir()
    daemon = Daemon(place / "m")
    daemon.root.log.symlink_to(volume / "logs")
    as_nobody('mkfifo "$1"/audit.log "$1"/nursery.log; ln -s "$2" "$1"/x', volume / "logs", secret)
    try:
        daemon.start()
        daemon.run("x.py", job_id="x", user="nobody", boot="msrun", workdir="/")
        job = daemon.wait("x")
        assert job.state == job_pb2.JOB_STATE_FAILED and "log/x" in str(job.verdict), job
        # The whole folder, for a link to one of root's.
        as_nobody('cd "$1"; mv logs away; ln -s "$2" logs', volume, secret)
        daemon.run("echo", "hello", job_id="y", user="nobody", workdir="/")
        assert "is a link that" in " ".join(daemon.wait("y").warnings)
        assert daemon.cli("node", "drain", "a reason").returncode == 0
        eventually(lambda: "is a link that " in daemon.stderr.read_text())
        assert f"{volume}/logs" in daemon.stderr.read_text()
    finally:
        daemon.close()
    assert os.listdir(secret) == ["file"] and (secret / "file").stat().st_uid == secret.stat().st_uid == 0


PLANTED = {
    "a link": 'ln -s "$1" "$2"',
    "a FIFO": 'mkfifo "$2"',
    "a folder": 'mkdir "$2"',
    "a file that stays locked": """touch "$2"; flock "$2" sh -c 'while [ -e "$0" ]; do sleep 0.1; done' "$2" &
        while flock -n "$2" true; do sleep 0.01; done""",
}


@pytest.mark.parametrize("planted", [*PLANTED, "another name of a file of root's"])
def test_what_the_owner_of_a_volume_puts_in_the_place_of_files_beside_a_log(place: Path, planted: str):
    """The records of what is gone, the worker log: nothing of root's is written, cut or given away, and neither daemon
    nor supervisor waits for anybody."""
    volume, secret = place / "volume", place / "secret"
    volume.mkdir()
    os.chown(volume, NOBODY, NOBODY)
    secret.write_text("root's\n")
    (place / "m").mkdir()
    daemon = Daemon(place / "m", '[logs]\nworker_log = "plain"\n')
    daemon.root.log.symlink_to(volume)
    log = daemon.root.rank_log("x", 0, 0)
    removed, worker = volume / f"{log.name}.removed", volume / "x-worker-0.log"
    try:
        daemon.start()
        daemon.run("sh", "-c", "echo one; while [ ! -e ../../go ]; do sleep 0.02; done; echo two", job_id="x")
        eventually(lambda: worker.exists() and "one" in worker.read_text())
        as_nobody('rm "$1"', worker)
        for path in (removed, worker):
            if planted in PLANTED:
                as_nobody(f"({PLANTED[planted]}) >/dev/null 2>&1", secret, path)
            else:
                os.link(secret, path)  # as a user may where fs.protected_hardlinks is 0
        as_nobody('rm "$1"', log)
        (daemon.root.job("x").folder / "go").touch()
        job = daemon.wait("x")
        assert job.state == job_pb2.JOB_STATE_SUCCEEDED, job
        assert daemon.cli("node").returncode == 0
        daemon.cli("logs", "x")
    finally:
        daemon.close()
    assert secret.read_text() == "root's\n" and secret.stat().st_uid == 0
    assert not daemon.stderr.read_text().count("defect")
