"""The command `muster` against a real daemon."""

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from muster.supervisors.output.time_index import INDEX_RECORD
from tests.conftest import BIN, Daemon, alive, eventually, running
from tests.small_disk import needs_root, small_disk

MUSTER = str(BIN / "muster")


def environment(daemon: Daemon | None = None, **more: str) -> dict[str, str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("MUSTER_")}
    if daemon is not None:
        env["MUSTER_ROOT"] = str(daemon.folder)
    return env | {"NO_COLOR": "1"} | more


@contextlib.contextmanager
def started(daemon: Daemon | None, *args: str, **options: Any) -> Iterator["subprocess.Popen[bytes]"]:
    """`muster` in the background, ended with the `with`; stdout and stderr are pipes unless said otherwise."""
    env = environment(daemon, **options.pop("env", {}))
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    with subprocess.Popen([MUSTER, *args], env=env, stdin=subprocess.DEVNULL, **pipes) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def read_until(process: "subprocess.Popen[bytes]", wanted: bytes) -> bytes:
    assert process.stdout is not None
    seen = b""
    while wanted not in seen:
        data = os.read(process.stdout.fileno(), 65536)
        assert data, f"ended without {wanted!r}: {seen!r}"
        seen += data
    return seen


# --- run --------------------------------------------------------------------------------------------------------------


def test_run_gives_one_ranks_output_byte_for_byte_and_nothing_else(daemon):
    with started(daemon, "run", "--", "printf", r"a\377\r\nno newline") as process:
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, b"a\xff\r\nno newline", b"")


def test_run_labels_the_lines_of_several_ranks(daemon):
    done = daemon.cli("run", "--ranks", "3", "--", "sh", "-c", "echo $RANK of $WORLD_SIZE; printf end")
    assert done.returncode == 0
    assert sorted(done.stdout.splitlines()) == [f"[rank {r}] {text}" for r in range(3) for text in (f"{r} of 3", "end")]
    bare = daemon.cli("run", "--ranks", "2", "--no-label", "--", "echo", "x")
    assert bare.stdout == "x\nx\n"


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        (["sh", "-c", "exit 7"], 7, "exited with code 7"),
        (["sh", "-c", "kill -9 $$"], 137, "SIGKILL"),
        (["no-such-program-anywhere"], 127, "not found"),
        (["/etc/passwd"], 126, "not executable"),
    ],
)
def test_run_ends_with_the_jobs_exit_code_and_says_why_and_what_to_do(daemon, command, code, said):
    done = daemon.cli("run", "--", *command)
    assert (done.returncode, done.stdout) == (code, "")
    verdict, advice = done.stderr.splitlines()
    assert said in verdict
    assert re.match(r"muster: (FAIL|RETRY_HERE|RETRY_ELSEWHERE): ", advice)
    assert "muster why " in advice
    assert daemon.cli("run", "-q", "--", *command).stderr == ""


def test_run_takes_options_of_the_command_as_they_are(daemon):
    assert daemon.cli("run", "echo", "--ranks", "2", "--", "-x").stdout == "--ranks 2 -- -x\n"


def test_run_reads_a_file_and_options_win(daemon, tmp_path):
    file = tmp_path / "job.toml"
    file.write_text('command = ["sh", "-c", "echo $A $B"]\nranks = 4\n[env]\nA = "file"\nB = "file"\n')
    done = daemon.cli("run", "-f", str(file), "--ranks", "1", "--env", "B=option")
    assert done.stdout == "file option\n"


@pytest.mark.parametrize(
    ("text", "said"), [("command = [", "Invalid value"), ("a = " + "[" * 5000 + "]" * 5000, "is nested too deeply")]
)
def test_a_file_that_cannot_be_understood_is_reported_in_one_sentence(daemon, tmp_path, text, said):
    file = tmp_path / "job.toml"
    file.write_text(text)
    done = daemon.cli("run", "-f", str(file))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done
    assert done.stderr.startswith(f"muster: {file}: {said}"), done


def test_with_a_daemon_the_callers_environment_stays_here(daemon):
    done = daemon.cli(
        "run", "--env", "GIVEN", "--", "sh", "-c", "echo $GIVEN-$SECRET", env={"SECRET": "1", "GIVEN": "2"}
    )
    assert done.stdout == "2-\n"


#: What a rank sees of where it runs.
WHERE = ("sh", "-c", "pwd; umask")


@pytest.mark.parametrize("how", ["run", "start"])
def test_ranks_run_where_the_command_was_typed(daemon, tmp_path, how):
    """As under srun and torchrun: in this folder, with this umask, a bare script by python3."""

    def seen(job_id, *words, **options):
        done = daemon.cli(how, "--job-id", job_id, *words, cwd=tmp_path, umask=0o027, **options)
        assert done.returncode == 0, done
        return daemon.output(daemon.wait(job_id)).decode()

    assert seen("here", *WHERE) == f"{tmp_path}\n0027\n"
    (tmp_path / "train.py").write_text("print('ran')\n")
    assert seen("script", "train.py") == "ran\n"
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "there.py").write_text("print('ran there')\n")
    assert seen("script-there", "--workdir", str(tmp_path / "code"), "there.py") == "ran there\n"
    assert seen("there", "--workdir", "/", "--umask", "077", *WHERE) == "/\n0077\n"
    (tmp_path / "job.toml").write_text('workdir = "/"\numask = "022"\n')
    assert seen("file", "-f", "job.toml", *WHERE) == "/\n0022\n"
    # ModelArts says itself where ranks run, and the ranks of another user may not be let in here.
    assert str(tmp_path) not in seen("platform", "--env", "MA_VJ_NAME=ma-job-x", *WHERE)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_ranks_of_another_user_have_their_own_folder(open_daemon, tmp_path):
    done = open_daemon.cli("run", "--user", "nobody", *WHERE, cwd=tmp_path, umask=0o027)
    assert done.returncode == 0 and str(tmp_path) not in done.stdout and done.stdout.endswith("\n0027\n")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root and mount namespaces")
@pytest.mark.parametrize("how", ["run", "start"])
def test_a_command_in_another_container_than_the_daemon_names_a_folder(open_daemon, tmp_path, how):
    """One of the same name is another one there; without a word of it the job would run among other files."""
    script = 'mount -t tmpfs none "$1"; cd "$1"; shift; exec "$@"'
    command = ["unshare", "--mount", "sh", "-ec", script, "sh", str(tmp_path), str(MUSTER)]
    address = ["--address", open_daemon.address]

    def done(*options):
        words = [*command, how, *address, *options, "--", *WHERE]
        return subprocess.run(words, env=environment(open_daemon), capture_output=True, text=True, check=False)

    refused = done("--job-id", "x")
    assert refused.returncode == 2 and "x" not in open_daemon.cli("ps", "-aq").stdout.split(), refused
    assert f"workdir: '{tmp_path}': is another folder than the command's there" in refused.stderr
    assert "give --workdir" in refused.stderr
    assert done("--job-id", "y", "--workdir", str(tmp_path)).returncode == 0
    assert open_daemon.output(open_daemon.wait("y")).startswith(f"{tmp_path}\n".encode())


def test_a_folder_that_was_removed_is_named(daemon, tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    done = subprocess.run(
        ["sh", "-c", f"rmdir {gone}; exec {MUSTER} run true"],
        cwd=gone,
        env=environment(daemon),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "the current folder was removed: change to another, or give --workdir" in done.stderr


def test_what_the_daemon_refuses(daemon, tmp_path):
    file = tmp_path / "file"
    file.touch()
    done = daemon.cli("run", "--workdir", str(file), "--", "true")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("muster: workdir: ")
    assert daemon.cli("run", "--cards", "2", "--", "true").returncode == 5
    assert daemon.cli("ps", "-a", "-q").stdout == ""
    assert daemon.cli("start", "--job-id", "x", "--", "true").stdout == "x\n"
    assert daemon.cli("start", "--job-id", "x", "--", "true").stdout == "x\n"
    assert daemon.cli("run", "--job-id", "x", "--", "false").returncode == 5


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_stops_the_job_and_shows_its_last_words(daemon, number):
    script = "trap 'echo bye; exit 3' TERM; echo up; while :; do sleep 0.05; done"
    with started(daemon, "run", "--job-id", "x", "--", "sh", "-c", script) as process:
        read_until(process, b"up\n")
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    job = daemon.wait("x")
    assert out.endswith(b"bye\n")  # the shell may add a word about its own child
    said = b"Ctrl-C: stopping the job" if number == signal.SIGINT else b"SIGTERM: stopping the job"
    assert said in err and (b"Ctrl-C" in err) == (number == signal.SIGINT)
    reason = "Ctrl-C" if number == signal.SIGINT else "SIGTERM"
    assert job.verdict.summary.endswith(f": {reason}")
    assert process.returncode == job.verdict.exit_code
    assert daemon.cli("ps", "-a", "-o", "json").stdout.count("JOB_STATE_STOPPED") == 1


@pytest.mark.slow
def test_a_second_ctrl_c_kills_the_job(daemon):
    script = "trap '' TERM; echo up; while :; do sleep 0.05; done"
    with started(daemon, "run", "--job-id", "x", "--grace", "60s", "--", "sh", "-c", script) as process:
        read_until(process, b"up\n")
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        assert b"again" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (137, b"")
    assert b"killing" in err


def test_when_nobody_reads_the_job_goes_on(daemon):
    script = "while :; do echo line; sleep 0.01; done"
    with started(daemon, "run", "--job-id", "x", "--", "sh", "-c", script) as process:
        read_until(process, b"line\n")
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        err = process.stderr.read()
        assert process.wait(60) == 141
    assert b"continues" in err
    assert daemon.cli("ps", "-q").stdout == "x\n"


@pytest.mark.slow
def test_a_restart_of_the_daemon_loses_and_doubles_nothing(daemon):
    script = 'i=0; while [ $i -lt 1500 ]; do echo "line $i"; i=$((i+1)); sleep 0.001; done; exit 9'
    with started(daemon, "run", "-v", "--job-id", "x", "--ranks", "2", "--", "sh", "-c", script) as process:
        seen = read_until(process, b"line 100\n")
        daemon.kill(signal.SIGKILL)
        daemon.restart()
        seen += read_until(process, b"line 600\n")
        daemon.kill(signal.SIGTERM)
        daemon.restart()
        out, err = process.communicate(timeout=200)
    lines = (seen + out).decode().splitlines()
    for rank in range(2):
        mine = [line for line in lines if line.startswith(f"[rank {rank}] ")]
        last = int(mine[-1].split()[-1])
        assert mine == [f"[rank {rank}] line {i}" for i in range(last + 1)]
    assert "[rank 0] line 1499" in lines or "[rank 1] line 1499" in lines
    assert process.returncode == 9, err


def test_progress_is_for_terminals(daemon):
    master, slave = pty.openpty()
    with started(daemon, "run", "--ranks", "2", "--", "sh", "-c", "exit $RANK", stderr=slave) as process:
        os.close(slave)
        out, _ = process.communicate(timeout=60)
    told = b""
    with contextlib.suppress(OSError):
        while data := os.read(master, 65536):
            told += data
    os.close(master)
    assert out == b""
    assert b"accepted" in told
    assert b"rank 1 exited with code 1" in told
    assert b"FAILED" in told


# --- run with a daemon of its own -------------------------------------------------------------------------------------


@pytest.fixture
def short_tmp() -> Iterator[Path]:
    """A folder whose name is short enough for a socket in it."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="m-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def standalone(short_tmp: Path, *args: str, **options: Any) -> "subprocess.CompletedProcess[str]":
    env = environment(TMPDIR=str(short_tmp), MUSTER_ROOT=str(short_tmp / "none"), HERE="here")
    return subprocess.run(
        [MUSTER, "run", *args], env=env, capture_output=True, text=True, timeout=60, check=False, **options
    )


def no_muster_below(folder: Path) -> bool:
    """No process is left that knows the folder."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if str(folder).encode() in (entry / "cmdline").read_bytes():
                    return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize("how", [["--standalone"], []])
def test_standalone_is_a_drop_in_launcher(short_tmp, how):
    done = standalone(
        short_tmp, *how, "--skip-check", "--ranks", "2", "--", "sh", "-c", "pwd; echo $HERE", cwd=short_tmp
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == sorted(
        f"[rank {r}] {t}" for r in (0, 1) for t in (str(short_tmp), "here")
    )
    assert done.stderr.count("\n") == (0 if how else 1), done.stderr
    assert list(short_tmp.iterdir()) == []
    eventually(lambda: no_muster_below(short_tmp))


def test_standalone_keeps_only_the_logs_of_a_job_that_failed(short_tmp):
    done = standalone(short_tmp, "--standalone", "--skip-check", "--job-id", "x", "--", "sh", "-c", "echo oh; exit 5")
    assert done.returncode == 5
    (root,) = short_tmp.iterdir()
    assert str(root / "log") in done.stderr
    assert (root / "log" / "x-proc-rank-0-device-0.txt").read_text() == "oh\n"
    assert not (root / "state").exists()
    assert not (root / "run").exists()


def test_a_bare_script_is_run_by_python_as_under_torchrun(short_tmp):
    (short_tmp / "train.py").write_text("import sys; print('ran', sys.argv)\n")
    done = standalone(short_tmp, "--standalone", "--skip-check", "-q", "train.py", "--lr", "1", cwd=short_tmp)
    assert (done.returncode, done.stdout) == (0, "ran ['train.py', '--lr', '1']\n")
    # One that says itself what runs it is left to that.
    (short_tmp / "train.py").write_text("#!/bin/sh\necho shell\n")
    (short_tmp / "train.py").chmod(0o755)
    done = standalone(short_tmp, "--standalone", "--skip-check", "-q", "./train.py", cwd=short_tmp)
    assert (done.returncode, done.stdout) == (0, "shell\n")


def test_standalone_puts_the_logs_where_they_are_wanted(short_tmp):
    logs = short_tmp / "a" / "b"
    done = standalone(
        short_tmp, "--standalone", "--log-dir", str(logs), "--skip-check", "--job-id", "x", "--", "echo", "hi"
    )
    assert done.returncode == 0, done.stderr
    assert (logs / "x-proc-rank-0-device-0.txt").read_text() == "hi\n"
    assert [entry.name for entry in short_tmp.iterdir()] == ["a"]


@needs_root
def test_standalone_with_logs_on_a_read_only_mount_is_refused(short_tmp):
    """Its output would be lost, on the terminal, too."""
    logs = short_tmp / "logs"
    with small_disk(logs, "1m,ro"):
        done = standalone(short_tmp, "--standalone", "--log-dir", str(logs), "--skip-check", "--", "echo", "hi")
    assert (done.returncode, done.stdout) == (2, "")
    said = f"muster: cannot use {logs} for logs: Read-only file system: name another folder with --log-dir\n"
    assert done.stderr == said
    assert [entry.name for entry in short_tmp.iterdir()] == ["logs"]


@pytest.mark.parametrize("named", [("--root", "there"), ("--address", "unix:there")])
def test_standalone_and_the_name_of_a_daemon_exclude_each_other(short_tmp, named):
    """Its daemon would be elsewhere, and its logs not where the author looks for them."""
    done = standalone(short_tmp, *named, "--standalone", "--", "true")
    assert done.returncode == 2
    assert f"{named[0]} names a daemon, but --standalone starts one of its own" in done.stderr
    assert list(short_tmp.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("first", ["runs", "was killed"])
def test_a_second_standalone_run_of_one_id_and_folder_is_refused(short_tmp, first):
    """Both would write the same files. The job of a command that was killed ends with its grace."""
    logs = short_tmp / "logs"
    words = ("--standalone", "--log-dir", str(logs), "--skip-check", "--job-id", "x", "--grace", "100s", "--")
    deaf = "trap '' TERM; echo one; while [ ! -e end ]; do sleep 0.05; done; echo two"
    with running(
        [BIN / "muster", "run", *words, "sh", "-c", deaf],
        cwd=short_tmp,
        env=dict(os.environ, TMPDIR=str(short_tmp), MUSTER_ROOT=str(short_tmp / "none")),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as one:
        log = logs / "x-proc-rank-0-device-0.txt"
        eventually(lambda: log.exists() and log.read_text() == "one\n")
        if first == "was killed":
            one.kill()
            one.wait()
        try:
            done = standalone(short_tmp, *words, "echo", "other")
            assert (done.returncode, done.stdout) == (5, "")
            assert f"pid {one.pid} on" in done.stderr and "another --job-id or --log-dir" in done.stderr, done.stderr
        finally:
            (short_tmp / "end").touch()
        eventually(lambda: log.read_text() == "one\ntwo\n")
    eventually(lambda: no_muster_below(short_tmp), 60)
    assert log.read_text() == "one\ntwo\n"
    assert standalone(short_tmp, *words, "echo", "other").stdout == "other\n"
    assert not [path for path in logs.iterdir() if path.name.endswith(".run")]


def without_places(environ, *mounted):
    """A standalone run where the usual folders take no file."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to make the folders read-only for one process")
    mounts = "mount -o remount,bind,ro /" + "".join(
        f"; mount --bind {place} {place}; mount -o remount,bind,ro {place}" for place in ("/tmp", "/var/tmp")
    )
    mounts += "".join(f"; mount --bind {place} {place}; mount -o remount,bind,rw {place}" for place in mounted)
    words = [MUSTER, "run", "--standalone", "--skip-check", "--", "echo", "hi"]
    return subprocess.run(
        ["unshare", "-m", "sh", "-ec", f'{mounts}; cd /; exec "$@"', "sh", *words],
        env=environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_standalone_where_no_folder_takes_a_file():
    """As in a container whose root is read-only, or on a full disk: words, no traceback."""
    done = without_places(environment(TMPDIR="/tmp", MUSTER_ROOT=""))
    assert done.returncode == 125 and done.stderr.count("\n") == 1, done
    assert done.stderr.startswith("muster: cannot make a folder in /tmp: Read-only file system: set TMPDIR"), done


def test_standalone_with_one_writable_folder(short_tmp):
    """As in a container whose root is read-only: the folder that a daemon would use serves."""
    done = without_places(environment(TMPDIR="/tmp", MUSTER_ROOT=str(short_tmp)), short_tmp)
    assert (done.returncode, done.stdout) == (0, "hi\n"), done
    assert list(short_tmp.iterdir()) == []


def test_standalone_refuses_a_wrong_spec_without_leaving_anything(short_tmp):
    done = standalone(short_tmp, "--standalone", "--workdir", "/etc/passwd", "--", "true")
    assert (done.returncode, done.stdout) == (2, "")


@pytest.mark.slow
def test_standalone_that_is_killed_takes_its_job_along(short_tmp):
    env = {"TMPDIR": str(short_tmp)}
    script = "echo $$; exec sleep 1000"
    with started(None, "run", "--standalone", "--skip-check", "--", "sh", "-c", script, env=env) as process:
        pid = int(read_until(process, b"\n"))
        process.kill()
        process.wait()
    eventually(lambda: not alive(pid))
    eventually(lambda: no_muster_below(short_tmp))


def test_standalone_stops_its_job_at_ctrl_c_of_the_whole_terminal(short_tmp):
    env = {"TMPDIR": str(short_tmp)}
    script = "trap 'echo bye; exit 3' TERM; echo up; while :; do sleep 0.05; done"
    with started(
        None, "run", "--standalone", "--skip-check", "--", "sh", "-c", script, env=env, process_group=0
    ) as process:
        read_until(process, b"up\n")
        os.killpg(process.pid, signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    assert out.endswith(b"bye\n")  # the shell may add a word about its own child
    assert process.returncode in (3, 143)


def test_a_named_address_is_the_only_place(short_tmp):
    done = standalone(short_tmp, "--address", f"unix:{short_tmp}/nobody", "--", "true")
    assert done.returncode == 4
    assert "no daemon at" in done.stderr


@pytest.mark.parametrize("command", [("logs", "job", "-r", "0"), ("logs", "-f", "job"), ("logs", "--node")])
def test_where_there_is_no_daemon_nobody_waits_for_output(short_tmp, command):
    command = (MUSTER, "--address", f"unix:{short_tmp}/nobody", *command)
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 4 and "no daemon at" in done.stderr, done
    assert len(done.stderr.splitlines()) == 1, "a command that waits for a daemon says so first"


# --- looking at jobs --------------------------------------------------------------------------------------------------


@pytest.fixture
def failed(daemon: Daemon) -> Daemon:
    """With the job x, of whose three ranks the second has failed."""
    said = daemon.folder / "said"
    script = (
        f"echo out $RANK; printf 'esc\\033[31m\\n'; : > {said}$RANK; [ $RANK = 1 ] || exec sleep 100; "
        f"until [ -e {said}0 ] && [ -e {said}2 ]; do sleep 0.01; done; exit 7"
    )
    daemon.cli("run", "--job-id", "x", "--ranks", "3", "--label", "k=v", "--", "sh", "-c", script)
    daemon.explained("x")
    return daemon


def test_why(failed):
    shown = failed.cli("why", "x").stdout
    assert shown.startswith("x: FAILED at ")
    assert "First failure: rank 1 on device 1" in shown
    assert "exited with code 7" in shown
    assert "Victims: rank 0,2" in shown
    assert "  | out 1\n  | esc\n" in shown
    assert "Recommendation: FAIL" in shown
    told = json.loads(failed.cli("why", "x", "-o", "json").stdout)
    assert told["firstFailure"]["rank"] == 1
    assert told["verdict"]["exitCode"] == 7


def test_status(failed):
    lines = failed.cli("status", "x").stdout.splitlines()
    assert "state       FAILED" in lines
    assert "labels      k=v" in lines
    (rank,) = (line.split() for line in lines if line.startswith("1 "))
    assert rank[3:5] == ["exited", "7"]
    told = json.loads(failed.cli("status", "x", "-o", "json").stdout)
    assert (told["jobId"], told["state"], told["ranks"][0]["rank"]) == ("x", "JOB_STATE_FAILED", 0)
    assert told["acceptedAt"].endswith("Z")


def test_ps(failed):
    assert failed.cli("ps").stdout.splitlines()[1:] == []
    (row,) = failed.cli("ps", "-a").stdout.splitlines()[1:]
    assert row.split()[:3] == ["x", "FAILED", "3"]
    assert failed.cli("ps", "-aq", "--label", "k=v").stdout == "x\n"
    assert failed.cli("ps", "-aq", "--label", "k=other").stdout == ""
    assert [job["jobId"] for job in json.loads(failed.cli("ps", "-a", "-o", "json").stdout)["jobs"]] == ["x"]
    assert json.loads(failed.cli("ps", "-o", "json").stdout) == {"jobs": []}


def test_ps_shows_every_page(daemon, monkeypatch):
    from muster.agent.cli import main
    from muster.agent.cli.commands import ps

    for i in range(5):
        daemon.run("true", job_id=f"x{i}")
    monkeypatch.setattr(ps, "PAGE", 2)
    monkeypatch.setenv("MUSTER_ROOT", str(daemon.folder))
    written: list[str] = []
    monkeypatch.setattr(ps, "emit", written.append)
    assert main.execute(["ps", "-aq"]) == 0
    assert "".join(written).split() == [f"x{i}" for i in (4, 3, 2, 1, 0)]


def test_logs(failed):
    shown = failed.cli("logs", "x").stdout
    lines = sorted(line for line in shown.splitlines() if "] out" in line)
    assert lines == [f"[rank {r}] out {r}" for r in range(3)]
    assert "\x1b[31m" in shown  # passed on as it is
    assert failed.cli("logs", "x", "-r", "1").stdout == "out 1\nesc\x1b[31m\n"
    assert failed.cli("logs", "x", "-r", "1", "--tail", "1").stdout == "esc\x1b[31m\n"
    assert failed.cli("logs", "x", "-r", "0", "-r", "2", "--tail", "0").stdout == ""
    assert failed.cli("logs", "x", "--since", "2100-01-01T00:00:00Z").stdout == ""
    stamped = failed.cli("logs", "x", "-r", "1", "--timestamps").stdout.splitlines()[0]
    assert stamped.endswith("Z out 1")
    assert failed.cli("logs", "x", "-r", "9").returncode == 2


def test_logs_follow_to_the_end(daemon):
    daemon.run("sh", "-c", "for i in 1 2 3; do echo $i; sleep 0.1; done", job_id="x")
    assert daemon.cli("logs", "-f", "x").stdout == "1\n2\n3\n"


def test_times_of_a_file_that_somebody_emptied(daemon, tmp_path):
    """The index speaks of what is there, and not of what was."""
    script = f"echo first; sleep 0.3; echo second; while [ ! -e {tmp_path}/go ]; do sleep 0.01; done; echo new"
    with started(daemon, "run", "--job-id", "x", "--", "sh", "-c", script) as run:
        read_until(run, b"second")
        log = Path(daemon.get("x").ranks[0].log_path)
        records = list(INDEX_RECORD.iter_unpack(log.with_suffix(".idx").read_bytes()))
        os.truncate(log, 0)
        emptied = datetime.now(UTC)
        (tmp_path / "go").touch()
        assert run.wait(60) == 0
    since = datetime.fromtimestamp(records[-1][1] / 1e9, UTC).isoformat()
    assert daemon.cli("logs", "x", "--since", since).stdout == "new\n"
    stamp, _, line = daemon.cli("logs", "x", "--timestamps").stdout.partition(" ")
    assert line == "new\n"
    assert datetime.fromisoformat(stamp) > emptied


def test_events(failed):
    shown = failed.cli("events", "x").stdout
    assert [line.split()[2] for line in shown.splitlines()][0::9] == [
        "job.accepted:",
        "job.ended:",
    ] or "job.ended" in shown
    told = [json.loads(line) for line in failed.cli("events", "-o", "json").stdout.splitlines()]
    assert told[0]["event"]["kind"] == "node.started"
    assert [each["event"]["kind"] for each in told[-2:]] == ["job.ended", "job.explained"]
    again = failed.cli("events", "-o", "json", "--cursor", told[-2]["cursor"]).stdout.splitlines()
    assert [json.loads(line) for line in again] == told[-1:]


def test_events_follow_over_a_restart(daemon):
    with started(daemon, "events", "-f", "-o", "json") as process:
        read_until(process, b"node.started")
        daemon.kill(signal.SIGKILL)
        daemon.restart()
        seen = read_until(process, b"node.started")
        daemon.run("true", job_id="x")
        seen += read_until(process, b"job.ended")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    assert seen.count(b"job.accepted") == 1


def test_node(daemon):
    assert f"pid {daemon.pid}" in daemon.cli("node").stdout
    assert json.loads(daemon.cli("node", "-o", "json").stdout)["apiVersion"] == "muster.v1"


@pytest.mark.parametrize("words", ["status", "why", "logs", "wait", "stop", "rm", "rm -f", "logs -f"])
def test_no_such_job(daemon, words):
    done = daemon.cli(*words.split(), "nobody")
    assert (done.returncode, done.stdout) == (3, "")
    assert "no job 'nobody'" in done.stderr


# --- ending jobs ------------------------------------------------------------------------------------------------------


def test_wait(daemon):
    daemon.run("sh", "-c", "sleep 0.3; exit 4", job_id="x")
    done = daemon.cli("wait", "x")
    assert (done.returncode, done.stdout) == (4, "x FAILED\n")
    daemon.run("sleep", "100", job_id="y")
    done = daemon.cli("wait", "y", "--timeout", "100ms")
    assert (done.returncode, done.stdout) == (124, "")
    assert json.loads(daemon.cli("wait", "x", "-o", "json").stdout)["jobId"] == "x"


def connections(daemon) -> int:
    """Ends of connections at the daemon's socket."""
    return Path("/proc/net/unix").read_text().count(str(daemon.root.socket))


def test_wait_over_a_restart(daemon):
    daemon.run("sh", "-c", "while [ ! -e go ]; do sleep 0.01; done; exit 4", job_id="x")
    before = connections(daemon)
    with started(daemon, "wait", "x") as process:
        eventually(lambda: connections(daemon) > before)
        daemon.get("x")  # answered behind what came over that connection
        daemon.kill(signal.SIGKILL)
        daemon.restart()
        (daemon.root.job("x").workspace / "device0" / "go").touch()
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (4, b"x FAILED\n"), err


def test_stop_and_rm(daemon):
    for name in ("x", "y", "z"):
        daemon.run("sh", "-c", "echo up; exec sleep 1000", job_id=name)
    for name in ("x", "y", "z"):  # one that is stopped before it begins has no log
        eventually(lambda: daemon.output(daemon.get(name)))  # noqa: B023
    assert daemon.cli("rm", "x").returncode == 5
    done = daemon.cli("stop", "x", "nobody", "y", "--reason", "enough")
    assert (done.returncode, done.stdout) == (3, "x STOPPED\ny STOPPED\n")
    assert "enough" in daemon.cli("why", "x").stdout
    log = Path(daemon.get("x").ranks[0].log_path)
    assert daemon.cli("rm", "x", "--keep-logs").stdout == "x\n"
    assert log.exists()
    log = Path(daemon.get("z").ranks[0].log_path)
    assert daemon.cli("rm", "--force", "y", "z").stdout == "y\nz\n"
    assert not log.exists()
    assert daemon.cli("ps", "-aq").stdout == ""


def test_stop_that_does_not_end_in_time(daemon):
    script = "trap '' TERM; echo up; while :; do sleep 0.05; done"
    daemon.run("sh", "-c", script, job_id="x")
    eventually(lambda: daemon.cli("logs", "x").stdout)
    done = daemon.cli("stop", "x", "--grace", "30s", "--timeout", "100ms")
    assert (done.returncode, done.stdout) == (1, "")
    assert "has not ended: it is STOPPING" in done.stderr
    assert daemon.cli("stop", "x", "--grace", "0").stdout == "x STOPPED\n"


# --- where the output goes --------------------------------------------------------------------------------------------


#: What Python buffers differs.
BUFFERED = pytest.mark.parametrize("unbuffered", ["", "1"])


@BUFFERED
def test_a_full_disk_is_reported(failed, unbuffered):
    env = {"PYTHONUNBUFFERED": unbuffered}
    for words in (["ps", "-a"], ["logs", "x"], ["--help"], ["node", "--help"], ["--version"]):
        with open("/dev/full", "wb") as full, started(failed, *words, stdout=full, env=env) as process:
            _, err = process.communicate(timeout=60)
        assert (process.returncode, err) == (1, b"muster: standard output: No space left on device\n")


@BUFFERED
@pytest.mark.parametrize("option", ["--help", "--version", "--default-config"])
def test_musterd_reports_a_full_disk(option: str, unbuffered: str) -> None:
    env = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [BIN / "musterd", option], stdout=full, stderr=subprocess.PIPE, env=env, timeout=60, check=False
        )
    assert (done.returncode, done.stderr) == (1, b"musterd: standard output: No space left on device\n")


@BUFFERED
def test_nobody_reads(failed, unbuffered):
    env = {"PYTHONUNBUFFERED": unbuffered}
    for words in (["ps", "-a"], ["logs", "x"], ["events"], ["status", "x"], ["--help"], ["--version"]):
        read_end, write_end = os.pipe()
        os.close(read_end)
        with started(failed, *words, stdout=write_end, env=env) as process:
            os.close(write_end)
            _, err = process.communicate(timeout=60)
        assert (process.returncode, err) == (141, b"")


def test_without_a_stdout_the_job_runs_all_the_same(daemon):
    done = subprocess.run(
        ["sh", "-c", f"{MUSTER} run -- sh -c 'echo x; exit 3' >&-"],
        env=environment(daemon),
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 3


@pytest.mark.slow
def test_check(tmp_path, daemon):
    config = tmp_path / "musterd.toml"
    for status, code in (("warn", 1), ("critical", 2), ("unknown", 3)):
        folder = tmp_path / status
        folder.mkdir()
        probe = folder / "mine"
        probe.write_text(f"#!/bin/sh\necho it is so\nexit {code}\n")
        probe.chmod(0o755)
        config.write_text(f'[checks]\ncustom_dir = "{folder}"\ndeadline_s = 60.0\n')
        done = daemon.cli("check", "--config", str(config), "custom")
        assert done.returncode == code, done
        told = json.loads(daemon.cli("check", "--config", str(config), "-o", "json", "custom").stdout)
        assert told["status"] == status.upper()
        assert told["checks"][0]["reason"]
    assert daemon.cli("check", "--list").returncode == 0
    assert "disk-size root" in daemon.cli("check", "--list").stdout


def test_ctrl_c_in_the_imports_shows_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "click").mkdir()
    begun = tmp_path / "begun"
    (tmp_path / "click" / "__init__.py").write_text(f"import time\nopen({str(begun)!r}, 'w')\ntime.sleep(1000)\n")
    with subprocess.Popen(
        [BIN / "muster", "ps"], env=os.environ | {"PYTHONPATH": str(tmp_path)}, stderr=subprocess.PIPE, text=True
    ) as command:
        eventually(begun.exists, 60)
        command.send_signal(signal.SIGINT)
        assert command.communicate(timeout=60)[1] == ""
    assert command.returncode == -signal.SIGINT
