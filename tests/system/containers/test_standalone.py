"""`muster run --standalone` as PID 1 of a container: the job's end is the container's."""

from collections.abc import Callable
from pathlib import Path

from tests.conftest import eventually
from tests.system.containers.engine import IMAGE, Container, Engine
from tests.system.containers.marks import MARKS, SAVES

pytestmark = MARKS

RUN = ("muster", "run", "--standalone", "--skip-check", "--job-id", "train")
#: No file but below /tmp can be written, there is no shared memory, and the user has no right and no name.
STRIPPED = ("--read-only", "--read-only-tmpfs=false", "--tmpfs", "/tmp", "--ipc", "none", "--cap-drop", "all")
NOBODY = ("--user", "4321:4321")


def job(script: str, ranks: int = 2) -> tuple[str, ...]:
    return (*RUN, "--ranks", str(ranks), "--", "sh", "-c", script)


def test_the_exit_code_and_the_verdict_are_the_containers(engine: Engine) -> None:
    first = "[ $RANK = 1 ] || { : > /tmp/said; exec sleep 100; }; until [ -e /tmp/said ]; do sleep 0.01; done"
    done = engine.run(IMAGE, *job(f"echo out $RANK; {first}; exit 7"))
    assert done.returncode == 7
    assert "[rank 0] out 0\n" in done.stdout and "[rank 1] out 1\n" in done.stdout
    assert "muster: job train FAILED: rank 1 (device 1) exited with code 7; 1 other rank was stopped" in done.stderr


def test_podman_stop_gives_the_ranks_their_grace(engine: Engine) -> None:
    """Without any right, without /dev/shm, and asked twice: a second SIGTERM at once counts as the first."""
    with engine.container(*STRIPPED, *NOBODY, IMAGE, *job(SAVES)) as run:
        run.wait_for("up\n", 2)
        assert run.exec("sh", "-c", "ls /dev/shm").returncode != 0, "there is a /dev/shm"
        assert run.exec("sh", "-c", "touch /x /opt/muster/x").returncode != 0, "the root can be written"
        run.podman("kill", "--signal", "TERM")
        run.podman("stop", "-t", "60")
        assert run.exit_code() == 3
        seen = run.logs()
    assert seen.count("saved\n") == 2
    assert "muster: job train STOPPED: stopped by " in seen and ": SIGTERM" in seen


def test_orphans_do_not_stay_as_zombies(engine: Engine) -> None:
    with engine.container(IMAGE, *job("trap 'exit 0' TERM; echo up; while :; do sleep 0.05; done", 1)) as run:
        run.wait_for("up\n")
        orphans = 'for i in 1 2 3; do sh -c "sleep 0.2 & exec true"; done; echo done'
        assert run.exec("sh", "-c", orphans).stdout == "done\n"
        look = "grep -l '^State:.Z' /proc/[0-9]*/status"
        eventually(lambda: not run.exec("sh", "-c", look).stdout, 60, "no zombie is left")


def test_a_stop_that_is_shorter_than_the_grace(engine: Engine, volume: Callable[..., str]) -> None:
    """SIGKILL to all: no rank stays, and what they have written stays."""
    deaf = "trap '' TERM; echo up; while :; do sleep 0.05; done"
    logs = volume()
    words = [*RUN, "--log-dir", "/logs", "--ranks", "2", "--", "sh", "-c", deaf]
    with engine.container("-v", f"{logs}:/logs:U", IMAGE, *words) as run:
        run.wait_for("up\n", 2)
        inside = _processes(run)
        assert len(inside) > 3
        run.podman("stop", "-t", "1")
        assert run.exit_code() == 137
        eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in inside), 60, "all to have ended")
    found = engine.run("-v", f"{logs}:/logs", IMAGE, "sh", "-c", "cat /logs/train-proc-rank-*.txt")
    assert found.stdout == "up\nup\n", found


def _processes(container: Container) -> list[int]:
    """Of its PID namespace, as their numbers are outside."""
    space = Path(f"/proc/{container.pid()}/ns/pid").readlink()
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "ns/pid").readlink() == space:
                found.append(int(entry.name))
        except OSError:
            continue
    return found
