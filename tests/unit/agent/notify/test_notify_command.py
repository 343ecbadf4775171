"""A program that is told."""

import json
import os
from pathlib import Path

import anyio
import pytest

from muster.agent.notify import command
from muster.agent.notify.notification import Item, NotificationRefused, NotTaken
from tests.conftest import alive
from tests.unit.waiting import until

ITEM = Item("0123456789abcdef-7", "failed", "job.ended", 1000.0, "job-1", "it failed", {"state": "FAILED"})
BODY = b'{"id": "0123456789abcdef-7"}'
LONG_S = 60.0


async def run(script: str, *args: str, timeout_s: float = LONG_S, body: bytes = BODY) -> None:
    with anyio.fail_after(60):
        await command.run(("/bin/sh", "-c", script, "sh", *args), ITEM, body, timeout_s)


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


async def test_it_gets_the_event_on_its_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THE_DAEMON", "x")
    body = json.dumps({"text": "ä" * 200_000}).encode()  # more than fits into a pipe
    await run('cat > "$1"; env > "$2"; pwd >> "$2"', str(tmp_path / "in"), str(tmp_path / "env"), body=body)
    assert (tmp_path / "in").read_bytes() == body
    env = lines(tmp_path / "env")
    assert {"MUSTER_EVENT=failed", "MUSTER_JOB_ID=job-1", "MUSTER_STATE=FAILED"} <= set(env)
    assert {line.partition("=")[0] for line in env if "=" in line} <= {
        *("MUSTER_EVENT", "MUSTER_JOB_ID", "MUSTER_STATE", "PATH", "LANG"),
        *("PWD", "OLDPWD", "SHLVL", "_"),  # a shell's own
    }


async def test_its_arguments_are_not_read_by_a_shell(tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    odd = ["", "a b", "$HOME", '"', "*", "; false", "-n"]
    await run('out=$1; shift; for word; do printf "%s\\n" "$word" >> "$out"; done', out, *odd)
    assert lines(Path(out)) == odd


async def test_it_need_not_read(tmp_path: Path) -> None:
    await run("exit 0", body=b"x" * (1 << 20))


async def test_it_inherits_nothing(tmp_path: Path) -> None:
    await run('ls /proc/self/fd > "$1"', str(tmp_path / "fds"))
    # The last one is the folder's own, with which it is listed.
    assert lines(tmp_path / "fds") == ["0", "1", "2", "3"]


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("exit 1", "/bin/sh: exited with code 1"),
        ("echo no luck >&2; exit 3", "/bin/sh: exited with code 3: no luck"),
        ("kill -9 $$", "/bin/sh: was killed by SIGKILL"),
        ("while :; do echo flood; done", "/bin/sh: wrote without end and was killed"),
    ],
)
async def test_it_is_tried_again_later(script: str, said: str) -> None:
    with pytest.raises(NotTaken) as caught:
        await run(script)
    assert str(caught.value) == said


async def test_it_says_never_again() -> None:
    with pytest.raises(NotificationRefused, match="exited with code 65: what is this"):
        await run("echo what is this >&2; exit 65")


async def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(NotTaken, match=r"no-such: cannot be executed: No such file or directory"):
        await command.run((str(tmp_path / "no-such"),), ITEM, BODY, LONG_S)
    (tmp_path / "plain").touch(0o644)
    with pytest.raises(NotTaken, match=r"plain: cannot be executed: Permission denied"):
        await command.run((str(tmp_path / "plain"),), ITEM, BODY, LONG_S)


async def test_it_is_killed_with_all_its_group_when_its_time_is_over(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    script = 'sleep 1000 & echo $! $$ >> "$1"; while :; do sleep 1000; done'
    while not pids.exists():  # where the machine is so slow that it did not even begin
        with pytest.raises(NotTaken, match=r"had not ended after 0\.5 s and was killed \(timeout_s in \[notify\]\)"):
            await run(script, str(pids), timeout_s=0.5)
    await until(lambda: not any(alive(int(pid)) for line in lines(pids) for pid in line.split()))


async def test_what_it_leaves_behind_is_killed_too(tmp_path: Path) -> None:
    await run('sleep 1000 & echo $! > "$1"', str(tmp_path / "pid"))
    (pid,) = lines(tmp_path / "pid")
    await until(lambda: not alive(int(pid)))


async def test_it_does_not_outlive_the_daemons_wish_to_end(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run, 'echo $$ > "$1.new"; mv "$1.new" "$1"; sleep 1000', str(pid))
            await until(pid.exists)
            tasks.cancel_scope.cancel()
    await until(lambda: not alive(int(lines(pid)[0])))


async def test_no_descriptor_is_left(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        await run("cat > /dev/null")
        with pytest.raises(NotTaken):
            await run("sleep 1000", timeout_s=0.01)
    await until(lambda: len(os.listdir("/proc/self/fd")) <= before)
