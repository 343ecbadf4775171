"""musterd as PID 1 of a PID namespace, as in a container: its end is that of every process in it."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.supervisors.model import journal
from muster.supervisors.model.lifecycle import Job
from muster.supervisors.model.replay import replay
from muster.v1 import job_pb2
from tests.conftest import BIN, Daemon, alive, eventually, running

pytestmark = pytest.mark.timeout(180)

SAVES = "trap 'sleep 1; echo saved; exit 3' TERM; echo up; while :; do sleep 0.05; done"
#: As SAVES, but the trap waits for the file $GO: until then the daemon cannot end.
SAVES_LATE = SAVES.replace("sleep 1;", 'until [ -e "$GO" ]; do sleep 0.05; done;')
NAMESPACE = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]


def _unshares() -> bool:
    return os.geteuid() == 0 and subprocess.run([*NAMESPACE, "true"], capture_output=True, check=False).returncode == 0


needs_namespaces = pytest.mark.skipif(not _unshares(), reason="needs root and unshare(1) with PID and mount namespaces")
#: Makes all but the daemon's folder read-only, and becomes a user whom nobody knows, without capabilities.
STRIPPED = """
mount --bind "$1" "$1" && mount -o remount,bind,ro / || exit 9
awk '{print $5}' /proc/self/mountinfo | while read -r at; do
  case "$at" in /|/proc*|"$1") ;; *) mount -o remount,bind,ro "$at" 2>/dev/null ;; esac
done
if touch /tmp/muster-was-writable 2>/dev/null; then exit 8; fi
place=$1 user=$2
shift 2
exec env -u HOME setpriv --reuid "$user" --regid "$user" --clear-groups --no-new-privs --bounding-set=-all \\
  --inh-caps=-all "$@"
"""


class Init(Daemon):
    """A daemon whose `process` is unshare(1), and which is its child."""

    @property
    def init(self) -> int:
        """PID 1, as its number is outside."""
        (child,) = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return int(child)

    def inside(self) -> dict[int, tuple[int, str, str]]:
        """Of each process of the namespace, by its number there: parent, state and command line."""
        space = os.readlink(f"/proc/{self.init}/ns/pid")
        found = {}
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and os.readlink(entry / "ns/pid") == space:
                    status = dict(line.split(":\t", 1) for line in (entry / "status").read_text().splitlines())
                    words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                    inner = int(status["NSpid"].split()[-1])
                    found[inner] = (int(status["PPid"]), status["State"][0], f"{entry.name} {words}")
        return found

    def outside(self, words: str) -> list[int]:
        """Numbers outside of the processes in the namespace whose command line has these words."""
        return [int(line.split()[0]) for _, _, line in self.inside().values() if words in line]

    def run_saving(self) -> Any:
        """Starts the job x, of two ranks that save their work once `ended_by_sigterm` lets them."""
        job = self.run("sh", "-c", SAVES_LATE, job_id="x", ranks=2, env={"GO": str(self.folder / "go")})
        eventually(lambda: all(b"up" in self.output(job, rank) for rank in (0, 1)), 60)
        return job

    def ended_by_sigterm(self) -> Any:
        """Sends SIGTERM to the daemon, and returns the job x as a call tells it that was open when it ended. Until all
        ranks have saved, the daemon goes on to answer."""
        waiting = self.jobs.Wait.future(job_pb2.WaitRequest(job_id="x"), timeout=120)
        os.kill(self.init, signal.SIGTERM)
        eventually(lambda: self.get("x").state == job_pb2.JOB_STATE_STOPPING)
        (self.folder / "go").touch()
        return waiting.result().job

    def job(self, job_id: str) -> Job:
        return replay(journal.read(self.root.job(job_id).journal).records)


@pytest.fixture
def make_init() -> Iterator[Callable[..., Init]]:
    with contextlib.ExitStack() as stack:

        def make(*command: str, config: str = "") -> Init:
            folder = Path(
                stack.enter_context(tempfile.TemporaryDirectory(prefix="m-", dir="/tmp", ignore_cleanup_errors=True))
            )
            init = Init(folder, config)
            init.musterd = [*NAMESPACE, *(command or [str(BIN / "musterd")])]
            stack.callback(ended, init)
            return init

        def ended(init: Init) -> None:
            if init.process is not None:
                init.process.kill()  # --kill-child: and the kernel ends the namespace
                init.process.wait()
            if init.channel is not None:
                init.channel.close()

        yield make


@needs_namespaces
def test_sigterm_stops_the_jobs_before_the_end_of_everything(make_init: Callable[..., Init]) -> None:
    init = make_init()
    init.start()
    job = init.run_saving()
    assert init.process is not None
    ended = init.ended_by_sigterm()
    assert ended.state == job_pb2.JOB_STATE_STOPPED and ended.verdict.summary == "stopped by musterd: SIGTERM"
    assert init.process.wait(60) == 0
    init.process = None
    assert all(init.output(job, rank).endswith(b"saved\n") for rank in (0, 1))  # the shell tells of its own child
    assert (init.job("x").state, init.job("x").verdict.exit_code) == ("STOPPED", 3)  # type: ignore[union-attr]


@needs_namespaces
def test_it_waits_for_orphans_and_not_for_what_others_wait_for(make_init: Callable[..., Init]) -> None:
    """Those of a container; programs of the operator that end with a code; a rank whose supervisor and nursery were
    killed, whose zombie tells its successor how it ended."""
    init = make_init(config='[notify]\ncommand = ["/bin/sh", "-c", "exit 0"]\n')
    init.start()
    os.mkfifo(init.folder / "go")
    job = init.run("sh", "-c", "echo up; read line < $GO; exit 7", job_id="x", env={"GO": str(init.folder / "go")})
    eventually(lambda: b"up" in init.output(job), 60)
    enter = ["nsenter", "-t", str(init.init), "-p", "-m"]
    orphans = 'for i in 1 2 3; do sh -c "sleep 0.2 & exec true"; done; echo done'
    subprocess.run([*enter, "setsid", "sh", "-c", orphans], check=True, timeout=60, capture_output=True)
    for _ in range(3):
        doomed = [*init.outside("muster.supervisors.nursery.nursery"), init.supervisor_pid("x")]
        for pid in doomed:
            if pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
    with open(init.folder / "go", "w") as go:
        go.write("\n")
    ended = init.wait("x", 100)
    assert (ended.state, ended.verdict.exit_code) == (job_pb2.JOB_STATE_FAILED, 7), ended.verdict.summary
    eventually(lambda: not [s for s in init.inside().values() if s[1] == "Z"], 60, "no zombie is left")
    assert init.process is not None and init.process.poll() is None


@pytest.mark.slow
@needs_namespaces
def test_muster_run_as_pid_1_waits_for_orphans_too(tmp_path: Path) -> None:
    """Of the container; and not for a rank whose supervisor and nursery were killed, nor for its own daemon."""
    with tempfile.TemporaryDirectory(prefix="m-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        go = tmp_path / "go"
        os.mkfifo(go)
        words = [*NAMESPACE, str(BIN / "muster"), "run", "--standalone", "--skip-check", "--job-id", "x", "--"]
        env = {name: value for name, value in os.environ.items() if not name.startswith("MUSTER_")}
        with subprocess.Popen(
            [*words, "sh", "-c", f"echo up; read line < {go}; exit 7"],
            env=env | {"TMPDIR": folder},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline() == "up\n"
                init = Init(Path(folder))
                init.process = process  # type: ignore[assignment]
                enter = ["nsenter", "-t", str(init.init), "-p", "-m"]
                orphans = 'for i in 1 2 3; do sh -c "sleep 0.2 & exec true"; done; echo done'
                subprocess.run([*enter, "setsid", "sh", "-c", orphans], check=True, timeout=60, capture_output=True)
                for pid in init.outside("muster.supervisors.nursery.nursery"):
                    os.kill(pid, signal.SIGKILL)
                for pid in init.outside("muster.agent.musterd"):
                    os.kill(pid, signal.SIGKILL)
                # Before the rank goes on: with the job the whole namespace ends.
                eventually(lambda: not [s for s in init.inside().values() if s[1] == "Z"], 60, "no zombie is left")
                with open(go, "w") as writer:
                    writer.write("\n")
                _, err = process.communicate(timeout=100)
            finally:
                process.kill()
        assert process.returncode == 7, err
        assert "starting another" in err


@needs_namespaces
def test_a_command_as_pid_1_ends_by_sigterm(make_daemon: Callable[..., Daemon]) -> None:
    """Although the kernel gives PID 1 no signal that it does not handle."""
    daemon = make_daemon()
    daemon.run("sleep", "1000", job_id="x")
    words = [*NAMESPACE, str(BIN / "muster"), "--address", str(daemon.root.socket), "wait", "x"]
    with subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            init = Init(daemon.folder)
            init.process = process
            eventually(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text)
            eventually(lambda: init.outside("wait x"), 60)
            handled = 1 << (signal.SIGTERM - 1)

            def handles() -> bool:
                status = Path(f"/proc/{init.init}/status").read_text()
                return bool(int(status.split("SigCgt:")[1].split()[0], 16) & handled)

            eventually(handles, 60)
            os.kill(init.init, signal.SIGTERM)
            assert process.wait(60) == 143
        finally:
            process.kill()


def _passable(path: Path) -> bool:
    return all(folder.stat().st_mode & 0o001 for folder in path.resolve().parents)


@needs_namespaces
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv(1)")
@pytest.mark.skipif(
    not (_passable(Path(sys.executable)) and _passable(Path(__file__))),
    reason=f"needs an interpreter that every user can execute: {Path(sys.executable).resolve()} is none",
)
def test_a_read_only_root_no_capabilities_and_a_user_without_a_name(make_init: Callable[..., Init]) -> None:
    uid = 12345
    init = make_init("sh", "-c", STRIPPED, "sh")
    init.folder.chmod(0o755)
    for path in (init.folder, init.config):
        os.chown(path, uid, uid)
    daemon = [sys.executable, "-m", "muster.agent.musterd", "--root", str(init.folder), "--config", str(init.config)]
    init.musterd = [*init.musterd, str(init.folder), str(uid), *daemon]
    init.start()
    init.run_saving()
    status = Path(f"/proc/{init.init}/status").read_text()
    assert f"Uid:\t{uid}" in status and "CapEff:\t0000000000000000" in status
    assert init.ended_by_sigterm().verdict.exit_code == 3
    assert init.process is not None and init.process.wait(60) == 0
    init.process = None


@needs_namespaces
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv(1)")
@pytest.mark.skipif(
    not (_passable(Path(sys.executable)) and _passable(Path(__file__))),
    reason=f"needs an interpreter that every user can execute: {Path(sys.executable).resolve()} is none",
)
@pytest.mark.parametrize("ends", ["by itself", "with its pod"])
def test_the_entrypoint_of_a_pod(ends: str) -> None:
    """Without rights and with one folder to write in; the kubelet's SIGTERM, and the message that it reads."""
    uid = 12345
    with tempfile.TemporaryDirectory(prefix="m-", dir="/tmp", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        message = folder / "termination-log"
        message.touch()
        for path in (folder, message):
            os.chown(path, uid, uid)
        pod = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "HOSTNAME": "train-worker-1", "TMPDIR": name}
        pod |= {"PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "localhost", "PET_MASTER_PORT": "29500"}
        pod |= {"PET_NPROC_PER_NODE": "2", "RANK": "1", "WORLD_SIZE": "4", "MUSTER_TERMINATION_LOG": str(message)}
        # The first failure ends the other rank: it has to wait until both have said who they are.
        both = f"touch {name}/said-$RANK; until [ -e {name}/said-2 ] && [ -e {name}/said-3 ]; do sleep 0.05; done"
        rank = f"{both}; echo ModuleNotFoundError: No module named x >&2; exit 3"
        script = f"echo $RANK of $WORLD_SIZE; {rank if ends == 'by itself' else SAVES}"
        command = [*NAMESPACE, "sh", "-c", STRIPPED, "sh", name, str(uid), sys.executable, str(BIN / "muster")]
        words = ["run", "--standalone", "--ranks", "2", "--skip-check", "--", "sh", "-c", script]
        with running([*command, *words], env=os.environ | pod, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            seen = ""
            while seen.count("of 4") < 2 or (ends != "by itself" and seen.count("up\n") < 2):
                line = process.stdout.readline()
                assert line, seen
                seen += line
            assert "[rank 2] 2 of 4" in seen and "[rank 3] 3 of 4" in seen, "of pods, and of ranks in them"
            if ends != "by itself":
                (init,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
                assert "CapEff:\t0000000000000000" in Path(f"/proc/{init}/status").read_text()
                os.kill(int(init), signal.SIGTERM)
            seen += process.stdout.read()
            assert process.wait(60) == 3
        told = message.read_text()
        if ends == "by itself":
            assert "job train-worker-1 FAILED: rank " in told and "\nFAIL: " in told, "what, and what to do"
        else:
            assert seen.count("saved\n") == 2
            assert told.startswith("job train-worker-1 STOPPED: stopped by "), told


# --- the setting ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_always(make_daemon: Callable[..., Daemon]) -> None:
    """By setting, for a daemon behind the init of a container."""
    daemon = make_daemon('[daemon]\nstop_jobs = "always"\n')
    job = daemon.run("sh", "-c", SAVES, job_id="x")
    eventually(lambda: b"up" in daemon.output(job), 60)
    pid = daemon.rank_pid("x")
    assert daemon.process is not None
    daemon.process.send_signal(signal.SIGTERM)
    assert daemon.process.wait(60) == 0
    daemon.process = None
    assert not alive(pid)
    daemon.restart()
    assert daemon.get("x").verdict.summary == "stopped by musterd: SIGTERM"
    assert daemon.output(job).endswith(b"saved\n")


@pytest.mark.slow
def test_a_start_while_the_daemon_ends_says_what_it_waits_for_and_goes_on(make_daemon: Callable[..., Daemon]) -> None:
    daemon = make_daemon('[daemon]\nstop_jobs = "always"\n[jobs]\ngrace_steps = [60]\n')
    job = daemon.run("sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.05; done", job_id="x")
    eventually(lambda: b"up" in daemon.output(job), 60)
    pid = daemon.rank_pid("x")
    assert daemon.process is not None
    daemon.process.send_signal(signal.SIGTERM)
    eventually(lambda: daemon.get("x").state == job_pb2.JOB_STATE_STOPPING)
    command = [str(BIN / "muster"), "--address", daemon.address, "start", "--job-id", "y", "--", "true"]
    with running(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as start:
        assert start.stderr is not None
        said = start.stderr.readline()
        assert "waiting up to 60 s for a daemon at" in said, said
        assert "the daemon is stopping its jobs and then exits; it starts no new job" in said, said
        os.kill(pid, signal.SIGKILL)
        assert daemon.process.wait(60) == 0
        daemon.process = None
        daemon.restart()
        assert start.wait(60) == 0
    assert daemon.wait("y").state == job_pb2.JOB_STATE_SUCCEEDED
