"""What a person sees at a terminal: the status line of `muster run`, and `muster top` with its keys."""

import os
import re
import signal
import subprocess
import termios
from pathlib import Path

import pytest

pytest.importorskip("pyte")
from tests.conftest import BIN, Daemon, eventually, pending
from tests.screen import PATIENCE_S, Screen

MUSTER = str(BIN / "muster")
#: Makes a progress bar, and waits in the middle of it for the file; and earlier for that or the one beside it, `.more`.
BAR = r"""printf 'begin\n'; printf '\r  5%% # step 5'; until [ -e "$0" ] || [ -e "$0.more" ]; do sleep 0.05; done
sleep 0.4; printf '\r 10%% # step 10'
until [ -e "$0" ]; do sleep 0.05; done; printf '\r100%% # step 100\n\033[31mred'"""


def _of(daemon: Daemon) -> dict[str, str]:
    return {"MUSTER_ROOT": str(daemon.folder), "PS1": "$ "}


def _run(job_id: str, go: Path, *options: str) -> list[str]:
    return [MUSTER, "run", "--skip-check", "--job-id", job_id, *options, "--", "sh", "-c", BAR, str(go)]


def _await(terminal: Screen, wanted: bytes) -> None:
    while wanted not in terminal.raw:
        assert terminal.read(PATIENCE_S), terminal.raw


def test_a_line_stands_below_a_progress_bar_and_is_gone_in_the_end(shared: Daemon, tmp_path: Path) -> None:
    go = tmp_path / "go"
    with Screen(_run("bar", go), 80, 9, env=_of(shared)) as terminal:
        terminal.until(lambda seen: seen[-1].startswith("RUNNING") and "  5% # step 5" in seen)
        (tmp_path / "go.more").touch()  # steps that are seen at once have no rate
        # The bar is whole, and the line is below it.
        found = terminal.until(lambda seen: "RUNNING" in seen[-1] and "steps/s" in seen[-1] and seen[-2:])
        assert found[0] == " 10% # step 10"
        assert found[1].startswith("RUNNING  ") and "  1 rank  " in found[1] and found[1].endswith("  bar")
        go.touch()
        assert terminal.end() == 0
        # What muster says of the start may come behind the first output.
        lines = [line for line in terminal.lines if not line.startswith("muster: ")]
        assert lines[0] == "begin" and lines[-2:] == ["100% # step 100", "red"]
        # Not behind a line that has not ended.
        assert terminal.lines[-2:] == ["red", "muster: job bar SUCCEEDED: rank 0 exited with code 0"]
        assert not any("RUNNING" in line for line in terminal.lines)


def test_the_line_fits_into_a_terminal_whose_size_changes(shared: Daemon, tmp_path: Path) -> None:
    """What was under way for the wide one may be broken into several lines by the narrow one, as by any terminal."""
    go = tmp_path / "go"
    with Screen(_run("resized", go), 80, 9, env=_of(shared)) as terminal:
        terminal.until(lambda seen: seen[-1].startswith("RUNNING") and "  5% # step 5" in seen)
        terminal.resize(20, 9)
        terminal.until(lambda seen: seen[-1].startswith("RUNNING") and len(seen[-1]) < 20)
        terminal.resize(80, 9)
        terminal.until(lambda seen: seen[-1].endswith("  resized"))
        go.touch()
        assert terminal.end() == 0
        assert terminal.lines[-3:] == [
            "100% # step 100",
            "red",
            "muster: job resized SUCCEEDED: rank 0 exited with code 0",
        ]


def test_before_the_ranks_run_and_wait_show_the_last_line_of_a_step(shared: Daemon, tmp_path: Path) -> None:
    go, step = tmp_path / "go", tmp_path / "prepare.sh"
    step.write_text(f"echo unpacking shard 7 of 9\nuntil [ -e {go} ]; do sleep 0.05; done\n")
    command = [MUSTER, "run", "--skip-check", "--job-id", "prepared", "--pre-start", str(step), "--", "true"]
    with Screen(command, env=_of(shared)) as terminal:
        line = r"PREPARING  pre_start  .*s  unpacking shard 7 of 9"
        terminal.until(lambda seen: re.fullmatch(line, seen[-1]))
        with Screen([MUSTER, "wait", "prepared"], env=_of(shared)) as waiting:
            while not re.match(line, "".join(waiting.lines)):
                assert waiting.read(PATIENCE_S)
            go.touch()
            assert waiting.end() == 0 and waiting.lines == ["prepared SUCCEEDED"]
        assert terminal.end() == 0
        assert not any("unpacking" in line for line in terminal.lines)


def test_a_shell_gets_a_clean_terminal_with_ctrl_z_and_the_line_is_back_with_fg(shared: Daemon, tmp_path: Path) -> None:
    with Screen(["bash", "--norc", "--noprofile", "-i"], env=_of(shared)) as terminal:
        command = " ".join(_run("shell", tmp_path / "go", "--ranks", "2")[1:7])
        terminal.type(f"{MUSTER} {command} -- sh -c 'echo up; exec sleep 1000'\n".encode())
        terminal.until(lambda seen: seen[-1].startswith("RUNNING") and "2 of 2 ranks" in seen[-1])
        terminal.type(b"\x1a")
        terminal.until(lambda seen: any("Stopped" in line for line in seen) and seen[-1] == "$")
        assert not any(line.startswith("RUNNING") for line in terminal.lines)
        terminal.type(b"echo mine; fg\n")
        terminal.until(lambda seen: "mine" in seen and seen[-1].startswith("RUNNING"))
        terminal.type(b"\x03")
        terminal.until(lambda seen: any("press Ctrl-C again" in line for line in seen))
        terminal.until(lambda seen: seen[-1] == "$" and any("STOPPED" in line for line in seen))
        assert not any(line.startswith(("RUNNING", "STOPPING")) for line in terminal.lines)
        terminal.type(b"exit\n")
        terminal.end()


@pytest.mark.parametrize("env", [{"TERM": "dumb"}, {"NO_COLOR": "1"}], ids=lambda env: next(iter(env)))
def test_a_terminal_that_can_or_may_not_gets_no_sequences(shared: Daemon, tmp_path: Path, env: dict[str, str]) -> None:
    (name,) = env
    go = tmp_path / "go"
    with Screen(_run(f"plain-{name.lower()}", go), env={**_of(shared), **env}) as terminal:
        _await(terminal, b"step 5" if name == "TERM" else b"\x1b7")
        go.touch()
        assert terminal.end() == 0
        assert "100% # step 100" in terminal.lines
        raw = terminal.raw.replace(b"\x1b[31mred", b"")
        assert b"\x1b" not in raw if name == "TERM" else b"\x1b7" in raw and not re.search(rb"\x1b\[[1-9][0-9;]*m", raw)


def test_a_pipe_and_a_file_get_the_bytes_of_the_rank_alone(shared: Daemon, tmp_path: Path) -> None:
    (go := tmp_path / "go").touch()
    wanted = subprocess.run(["sh", "-c", BAR, str(go)], stdout=subprocess.PIPE, check=True).stdout
    read, write = os.pipe()
    with Screen(_run("pipe", go), env=_of(shared), stdout=write) as terminal:
        os.close(write)
        assert terminal.end() == 0
        with open(read, "rb") as pipe:
            assert pipe.read() == wanted
        # Who reads the pipe may write to this terminal: notes come, and no line.
        assert b"\x1b" not in terminal.raw and terminal.lines[-1].startswith("muster: job pipe SUCCEEDED")
    go = tmp_path / "later"
    with (tmp_path / "out").open("wb") as out, Screen(_run("file", go), env=_of(shared), stdout=out) as terminal:
        _await(terminal, b"\x1b7")  # the line is drawn
        go.touch()
        assert terminal.end() == 0
        assert all(line.startswith("muster: ") for line in terminal.lines)
    assert (tmp_path / "out").read_bytes() == wanted


def test_top_shows_a_rank_at_a_key_and_leaves_the_terminal_as_it_was(shared: Daemon) -> None:
    shared.run("sleep", "1000", job_id="keys", ranks=2)
    shared.until_running("keys")
    with Screen([MUSTER, "top", "keys"], 80, 24, env=_of(shared)) as terminal:
        before = termios.tcgetattr(terminal.slave)
        terminal.until(lambda seen: any(line.startswith("JOB keys  RUNNING") for line in seen))
        terminal.until(lambda seen: seen[-1].startswith("j job  c card  r rank"))
        terminal.type(b"rr")
        terminal.until(lambda seen: any(line == "RANK 1 of job keys" for line in seen))
        terminal.type(b"q")
        assert terminal.end() == 0
        assert terminal.raw.endswith(b"\x1b[?1049l")
        assert termios.tcgetattr(terminal.slave) == before
    shared.stop("keys", grace_s=0)


@pytest.mark.parametrize("command", ["top", "ps"])
def test_a_signal_ends_what_is_shown_live_and_the_terminal_is_as_it_was(shared: Daemon, command: str) -> None:
    words = ["top", "--interval", "100ms"] if command == "top" else ["ps", "--watch", "--all"]
    shared.wait(shared.run("true").job_id)
    with Screen([MUSTER, *words], 80, 24, env=_of(shared)) as terminal:
        before = termios.tcgetattr(terminal.slave)
        terminal.until(lambda seen: seen[0].startswith(("muster top", "JOB")))
        terminal.process.send_signal(signal.SIGTERM)
        assert terminal.end() == 128 + signal.SIGTERM
        assert terminal.raw.endswith(b"\x1b[?1049l")
        assert termios.tcgetattr(terminal.slave) == before


@pytest.mark.slow
def test_a_second_ctrl_c_does_not_keep_top_from_giving_the_terminal_back(shared: Daemon) -> None:
    with Screen([MUSTER, "top", "--interval", "100ms"], 80, 24, env=_of(shared)) as terminal:
        before = termios.tcgetattr(terminal.slave)
        terminal.until(lambda seen: seen[0].startswith("muster top"))
        # It draws again and again, until the terminal takes no more.
        pid = terminal.process.pid
        eventually(lambda: Path(f"/proc/{pid}/wchan").read_text() in ("wait_woken", "n_tty_write"), 60)
        terminal.process.send_signal(signal.SIGINT)
        eventually(lambda: termios.tcgetattr(terminal.slave) == before, 60)
        terminal.process.send_signal(signal.SIGINT)
        eventually(lambda: signal.SIGINT not in pending(pid), 60)
        assert terminal.end() == 0
        assert terminal.raw.endswith(b"\x1b[?1049l")


@pytest.mark.slow
def test_top_says_that_a_daemon_is_away_and_goes_on_with_the_next(daemon: Daemon) -> None:
    with Screen([MUSTER, "top"], 80, 24, env=_of(daemon)) as terminal:
        terminal.until(lambda seen: seen[0].startswith("muster top") and "j job" in seen[-1])
        daemon.kill()
        terminal.until(lambda seen: seen[1].startswith("NO ANSWER for "))
        daemon.start()
        terminal.until(lambda seen: not seen[1].startswith("NO ANSWER"))
        daemon.kill()
        terminal.until(lambda seen: seen[1].startswith("NO ANSWER for "))
        terminal.type(b"q")  # keys have their effect all the time
        assert terminal.end() == 0
