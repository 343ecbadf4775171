"""SIGTERM to everybody at once, as from Slurm, the init of a container or a shell: command, own daemon, nursery,
supervisor and ranks, in any order, all of them or some."""

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.conftest import BIN, alive, eventually
from tests.standalone import Run, running

pytestmark = pytest.mark.timeout(180)

#: Says that it was asked, and ends a moment later with 3: its checkpoint takes time.
SAVES = "trap 'sleep 1; echo saved; exit 3' TERM; echo up; while :; do sleep 0.05; done"
#: Ends with what a shell makes of SIGTERM, at once.
LEAVES = "trap 'exit 143' TERM; echo up; while :; do sleep 0.05; done"
#: Has saved all, and ends well, at once.
ENDS_WELL = "trap 'exit 0' TERM; echo up; while :; do sleep 0.05; done"


@pytest.mark.slow
@pytest.mark.parametrize(
    "who",
    [
        ("client", "daemon", "nursery", "ranks"),
        ("ranks", "nursery", "daemon", "client"),
        ("daemon", "ranks"),
        ("daemon",),
        ("client",),
    ],
    ids=" ".join,
)
def test_the_job_is_stopped_with_its_grace(short_tmp: Path, who: tuple[str, ...]) -> None:
    """And the verdict is reported, for any receivers of the signal, in any order."""
    with running(short_tmp, SAVES) as run:
        run.send(*who)
        code, out, err = run.end()
        assert code == 3
        assert sorted(line for line in out if "saved" in line) == ["[rank 0] saved", "[rank 1] saved"]
        (verdict,) = (line for line in err if "job x " in line)
        assert verdict.startswith("muster: job x STOPPED: stopped by ") and ": SIGTERM" in verdict
        assert f"muster: the logs of the ranks are in {run.log_folder()}" in err
        assert not any("Ctrl-C" in line for line in err)
        assert "STOPPED: stopped by" in (run.log_folder() / "x-muster-0.log").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(("script", "expected"), [(LEAVES, 143), (ENDS_WELL, 0)], ids=["143", "0"])
def test_ranks_that_end_before_the_stop_comes_were_stopped(short_tmp: Path, script: str, expected: int) -> None:
    with running(short_tmp, script) as run:
        run.send("ranks", "nursery", "daemon", "client")
        code, _, err = run.end()
        assert code == expected
        assert any(line.startswith("muster: job x STOPPED: stopped by ") for line in err), err


@pytest.mark.slow
def test_a_signal_to_the_ranks_alone_is_a_failure(short_tmp: Path) -> None:
    with running(short_tmp, LEAVES) as run:
        run.send("ranks")
        code, _, err = run.end()
        assert code == 143
        assert any(line.startswith("muster: job x FAILED: rank ") for line in err), err


@pytest.mark.slow
def test_what_comes_twice_counts_once(short_tmp: Path) -> None:
    """SIGTERM, SIGCONT, SIGTERM, as Slurm sends them at a time limit: the grace stays."""
    with running(short_tmp, SAVES, "--grace", "60s") as run:
        # Looked up beforehand: the first signal may have ended them before the last one is sent.
        everybody = [pid for who in ("client", "daemon", "nursery", "ranks") for pid in run.pids(who)]
        for number in (signal.SIGTERM, signal.SIGCONT, signal.SIGTERM):
            for pid in everybody:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
        code, out, err = run.end()
        assert code == 3
        assert sum("saved" in line for line in out) == 2
        assert not any("killing" in line for line in err)


@pytest.mark.slow
def test_a_terminal_that_is_closed_stops_the_job(short_tmp: Path) -> None:
    with running(short_tmp, SAVES) as run:
        run.send("client", "daemon", number=signal.SIGHUP)
        code, _, err = run.end()
        assert code == 3
        assert "muster: SIGHUP: stopping the job; another SIGHUP after 4 s kills it" in err
        assert any("STOPPED: stopped by" in line and line.endswith(": SIGHUP") for line in err), err


@pytest.mark.slow
def test_the_command_is_killed_in_the_middle_of_it(short_tmp: Path) -> None:
    with running(short_tmp, SAVES) as run:
        ranks = run.pids("ranks")
        run.send("daemon", "ranks")
        run.send("client", number=signal.SIGKILL)
        eventually(lambda: not any(alive(pid) for pid in ranks), 60)
        eventually(run.gone, 60)
        log = (run.log_folder() / "x-muster-0.log").read_text()
        assert "STOPPED: stopped by" in log
        assert all("saved" in path.read_text() for path in run.log_folder().glob("x-proc-rank-?-device-?.txt"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "who",
    [
        ("client",),
        ("client", "daemon"),
        ("client", "nursery"),
        ("client", "supervisor"),
        ("client", "daemon", "nursery but no supervisor"),
        ("client", "daemon", "supervisor"),
    ],
    ids=" ".join,
)
def test_the_job_ends_with_its_command_also_if_daemon_or_nursery_are_killed_too(
    short_tmp: Path, who: tuple[str, ...]
) -> None:
    """By SIGKILL: the last signal of a scheduler without a cgroup, or the kernel's for want of memory."""
    with running(short_tmp, SAVES) as run:
        ranks, spared = run.pids("ranks"), run.pids("supervisor")
        doomed = [pid for name in who for pid in run.pids(name.split()[0])]
        for pid in [pid for pid in doomed if "no supervisor" not in who[-1] or pid not in spared]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        eventually(lambda: not any(alive(pid) for pid in ranks), 60)
        eventually(run.gone, 60, "nothing of it is left")
        log = (run.log_folder() / "x-muster-0.log").read_text()
        assert "STOPPED: stopped by muster" in log and log.endswith(": the command that started it has ended\n")
        assert [p.read_text().count("saved") for p in run.log_folder().glob("x-proc-rank-?-device-?.txt")] == [1, 1]


@pytest.mark.slow
def test_all_but_the_command_are_killed_and_the_job_goes_on(short_tmp: Path) -> None:
    with running(short_tmp, SAVES) as run:
        ranks = run.pids("ranks")
        run.send("daemon", "nursery", number=signal.SIGKILL)
        eventually(lambda: run.daemons() and run.find("supervisor"), 60, "another daemon, and what it starts")
        assert all(alive(pid) for pid in ranks)
        run.send("client")
        code, out, _ = run.end()
        assert code == 3
        assert sum("saved" in line for line in out) == 2


@pytest.mark.slow
def test_an_epilog_is_not_shortened_because_two_saw_the_end_of_the_command(short_tmp: Path) -> None:
    epilog = short_tmp / "epilog.sh"
    epilog.write_text(f"sleep 7; touch {short_tmp}/through\n")
    with running(short_tmp, ENDS_WELL, "--epilog", str(epilog)) as run:
        run.send("client", number=signal.SIGKILL)
        eventually(run.gone, 60)
        assert (short_tmp / "through").exists()


@pytest.mark.slow
def test_its_own_daemon_is_killed_and_another_one_takes_the_job_over(short_tmp: Path) -> None:
    # The first that exits ends the other: neither does before both have written.
    script = "echo up; until [ -e DIR/go ]; do sleep 0.05; done; echo on; : >DIR/on$RANK; "
    script += "until [ -e DIR/on0 ] && [ -e DIR/on1 ]; do sleep 0.05; done; exit 5"
    with running(short_tmp, script.replace("DIR", str(short_tmp))) as run:
        daemon = run.pids("daemon")
        run.send("daemon", number=signal.SIGKILL)
        eventually(lambda: set(run.daemons()) - set(daemon), 60)
        (short_tmp / "go").touch()
        code, out, err = run.end()
        assert code == 5, err
        assert sorted(out) == [f"[rank {rank}] {word}" for rank in (0, 1) for word in ("on", "up")]
        assert any("starting another" in line for line in err)


def test_a_signal_before_there_is_a_job(short_tmp: Path) -> None:
    """Whether it comes before the job is started or right behind that: 143, one line that says so, nothing left."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("MUSTER_")}
    words = [str(BIN / "muster"), "run", "--standalone", "--skip-check", "--job-id", "x", "--", "sleep", "1000"]
    with subprocess.Popen(
        words, env=env | {"TMPDIR": str(short_tmp)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            eventually(lambda: list(short_tmp.iterdir()), 60)
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=100)
        finally:
            process.kill()
    assert (process.returncode, out) == (143, ""), err
    assert "SIGTERM: stopped before the job started" in err or "job x STOPPED" in err


@pytest.mark.slow
def test_a_later_sigterm_ends_the_grace(short_tmp: Path) -> None:
    script = "trap '' TERM; echo up; while :; do sleep 0.05; done"
    with running(short_tmp, script, "--grace", "100s") as run:
        began = time.monotonic()
        run.send("client")
        assert run.process.stderr is not None
        assert b"stopping" in run.process.stderr.readline()
        while run.process.poll() is None and time.monotonic() - began < 60:
            run.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                run.process.wait(0.5)
        assert run.process.returncode == 137
        assert time.monotonic() - began >= 4


@pytest.mark.parametrize("killed", ["", "supervisor"])
def test_no_process_remains_after_the_end_of_the_command(short_tmp: Path, killed: str) -> None:
    """Not even its nursery, which has no job and no daemon then."""
    with running(short_tmp, "echo up; while [ ! -e go ]; do sleep 0.05; done", "--workdir", str(short_tmp)) as run:
        if killed:
            run.send(killed, number=signal.SIGKILL)
        (short_tmp / "go").touch()
        code, _, err = run.end()
        assert run.gone()
        assert code == 0, err


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2], ids=lambda number: signal.Signals(number).name)
@pytest.mark.parametrize("who", [("client",), ("client", "daemon", "nursery", "ranks")], ids=" ".join)
def test_a_signal_for_ranks_reaches_each_of_them_once_and_ends_nobody_else(
    short_tmp: Path, who: tuple[str, ...], number: signal.Signals
) -> None:
    """As Slurm sends before a time limit, so that ranks save their state."""
    name = number.name[3:]
    script = f"trap 'echo saved' {name}; echo up; while [ ! -e go ]; do sleep 0.05; done"
    with running(short_tmp, script, "--workdir", str(short_tmp)) as run:
        run.send(*who, number=number)
        assert run.process.stderr is not None
        told = run.process.stderr.readline().decode()
        (short_tmp / "go").touch()
        code, out, err = run.end()
        assert (code, sum("saved" in line for line in out)) == (0, 2), err
        twice = "it went to the daemon as well, and so to all: not sent again"
        assert told == f"muster: {number.name}{f': {twice}' if len(who) > 1 else ' sent to ranks 0-1'}\n"


def test_a_daemon_that_just_starts_does_not_end_by_a_signal_for_ranks(short_tmp: Path) -> None:
    run = Run(short_tmp, "echo up; while [ ! -e go ]; do sleep 0.05; done", "--workdir", str(short_tmp))
    try:
        children = Path(f"/proc/{run.process.pid}/task/{run.process.pid}/children")
        sent = 0
        end = time.monotonic() + 60
        while time.monotonic() < end and sent < 500:  # from its first moment on
            for pid in map(int, children.read_text().split()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGUSR1)
                sent += 1
        run.wait_up()
        (short_tmp / "go").touch()
        code, _, err = run.end()
        assert (sent, code) == (500, 0), err
    finally:
        run.process.kill()
        run.process.communicate()
        eventually(run.gone, 60, "nothing of it is left")
