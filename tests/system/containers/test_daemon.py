"""musterd as PID 1 of a container of its own, with clients in other containers, and its volumes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.conftest import eventually
from tests.small_disk import small_disk
from tests.system.containers.engine import IMAGE, Container, Engine
from tests.system.containers.marks import MARKS, SAVES

pytestmark = MARKS

COUNTS = "i=0; while :; do echo $i; i=$((i+1)); sleep 0.05; done"


class Sidecar:
    """Its volumes, which outlive its containers."""

    def __init__(self, engine: Engine, volume: Callable[..., str]) -> None:
        self._engine = engine
        self.run, self.state, self.log, self.work = volume(), volume(), volume(), volume()

    @contextmanager
    def container(self, *options: str) -> Iterator[Container]:
        """Of the daemon; it answers."""
        places = {self.run: "/run/muster", self.state: "/var/lib/muster"}
        if not any("/var/log/muster" in option for option in options):
            places[self.log] = "/var/log/muster"
        mounted = [word for name, path in places.items() for word in ("-v", f"{name}:{path}")]
        mounted += ["-v", f"{self.work}:/work"]
        with self._engine.container("--read-only", "--shm-size", "1100m", *mounted, *options, IMAGE) as daemon:
            yield daemon.wait_up()

    def client(self, *words: str, options: tuple[str, ...] = ()) -> tuple[int, str, str]:
        """A command in another container, which has the socket and the folder /work of the daemon."""
        mounted = ("-v", f"{self.run}:/run/muster", "-v", f"{self.work}:/work")
        done = self._engine.run(*mounted, *options, IMAGE, *words)
        return done.returncode, done.stdout, done.stderr


def running(daemon: Container, job_id: str, script: str) -> None:
    daemon.muster("start", "--job-id", job_id, "--workdir", "/", "--ranks", "2", "--", "sh", "-c", script)
    eventually(lambda: daemon.job(job_id)["state"] == "JOB_STATE_RUNNING", 60, "the job to run")


def state(daemon: Container, job_id: str) -> str:
    return str(daemon.job(job_id)["state"]).removeprefix("JOB_STATE_")


def test_a_client_in_another_container(engine: Engine, volume: Callable[..., str]) -> None:
    sidecar = Sidecar(engine, volume)
    with sidecar.container() as daemon:
        eventually(daemon.healthy, 120, "the health check to say fit")
        where = ("sh", "-c", "echo on $(hostname)")
        code, out, err = sidecar.client("muster", "run", "--", *where)
        assert (code, out) == (2, "") and "give --workdir, a folder that musterd has" in err, err
        code, out, err = sidecar.client("muster", "run", "--workdir", "/tmp", "--", *where)
        assert (code, out) == (0, f"on {daemon.exec('hostname').stdout}"), (
            "it runs with the daemon, not with the client"
        )
        # A folder that both have is the same one: nothing is to be named.
        code, out, err = sidecar.client("muster", "run", "--", "pwd", options=("-w", "/work"))
        assert (code, out) == (0, "/work\n"), err
        code, out, err = sidecar.client("muster", "run", "--workdir", "/", "--ranks", "2", "--", "sh", "-c", "exit 9")
        assert code == 9 and "FAILED: rank " in err
        code, _, err = sidecar.client("muster", "ps", options=("--user", "4321:4321"))
        assert code == 4 and "permission denied" in err, err
        assert sidecar.client("muster", "check", "--gate")[:2] == (0, "fit\n")
    code, _, err = sidecar.client("muster", "check", "--gate")
    assert code == 2, "its daemon has ended"


def test_killed_while_jobs_run_and_started_again_on_the_same_volumes(
    engine: Engine, volume: Callable[..., str]
) -> None:
    """And then a stop, by an image's upgrade: a new container."""
    sidecar = Sidecar(engine, volume)
    with sidecar.container() as daemon:
        running(daemon, "counts", COUNTS)
        eventually(lambda: daemon.muster("logs", "counts", "-r", "0").count("\n") > 5)
        daemon.podman("kill")
        assert daemon.exit_code() == 137
        daemon.podman("start")
        daemon.wait_up()
        eventually(lambda: state(daemon, "counts") == "LOST", 60, "how it ended is unknown, and no success")
        lines = daemon.muster("logs", "counts", "-r", "0").splitlines()
        assert lines == [str(i) for i in range(len(lines))] and len(lines) > 5
        running(daemon, "saves", SAVES)
        eventually(lambda: daemon.muster("logs", "saves").count("up") == 2)
        daemon.podman("stop", "-t", "60")
        assert daemon.exit_code() == 0
    with sidecar.container() as upgraded:
        assert (state(upgraded, "counts"), state(upgraded, "saves")) == ("LOST", "STOPPED")
        ended = upgraded.job("saves")["verdict"]
        assert (ended["exitCode"], ended["summary"]) == (3, "stopped by musterd: SIGTERM")
        assert upgraded.muster("logs", "saves").count("saved") == 2
        upgraded.muster("run", "--workdir", "/", "--", "true")


def test_a_full_volume_of_logs_costs_no_rank(engine: Engine, volume: Callable[..., str], tmp_path: Path) -> None:
    sidecar, logs = Sidecar(engine, volume), tmp_path / "logs"
    with small_disk(logs, "1m,uid=65532,gid=65532"), sidecar.container("-v", f"{logs}:/var/log/muster") as daemon:
        writes = "head -c 8000000 /dev/zero | tr '\\0' x; echo $RANK >/tmp/wrote-$RANK; read line </tmp/go; exit 7"
        daemon.exec("sh", "-c", "mkfifo /tmp/go")
        running(daemon, "writes", writes)
        eventually(lambda: daemon.exec("sh", "-c", "cat /tmp/wrote-*").stdout.split() == ["0", "1"])
        daemon.exec("sh", "-c", "printf '\\n\\n' >/tmp/go")
        eventually(lambda: state(daemon, "writes") == "FAILED")
        job = daemon.job("writes")
        assert job["verdict"]["exitCode"] == 7
        assert "No space left on device" in daemon.muster("status", "writes"), daemon.muster("status", "writes")
        daemon.podman("stop", "-t", "60")
        assert daemon.exit_code() == 0


def test_one_writable_folder_any_user_and_no_rights(engine: Engine) -> None:
    rights = ("--read-only", "--read-only-tmpfs=false", "--cap-drop", "all", "--user", "4321:4321", "--ipc", "none")
    folder = ("--tmpfs", "/muster:mode=1777", "-e", "MUSTER_ROOT=/muster")
    with engine.container(*rights, *folder, IMAGE) as daemon:
        daemon.wait_up()
        running(daemon, "saves", SAVES)
        eventually(lambda: daemon.muster("logs", "saves").count("up") == 2)
        daemon.podman("kill", "--signal", "TERM")
        daemon.podman("stop", "-t", "60")
        assert daemon.exit_code() == 0
        assert '"text": "stopped by musterd: SIGTERM"' in daemon.logs()
