"""Custom checks as real scripts."""

import os
import time

import anyio
import psutil
import pytest

from muster.probes.calls import script
from muster.probes.cards.driver import Driver
from muster.probes.cards.driver_settings import DriverSettings
from muster.probes.checks import custom, precheck
from muster.probes.checks.precheck import CardsWanted, CheckRequest, CheckSettings
from muster.probes.checks.result import Action, Code, Status


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "checks"
    path.mkdir(mode=0o755)
    return path


def write(folder, name, text, mode=0o755):
    path = folder / name
    path.write_text(text)
    path.chmod(mode)
    return path


async def run(folder, *items, deadline_s=60.0):
    settings = CheckSettings(custom_dir=str(folder), host_files="", deadline_s=deadline_s)
    driver = Driver(lambda: DriverSettings(slots=7), [], dev=folder)
    await driver.open()
    request = CheckRequest(cards=CardsWanted(count=8), driver=driver, user="bob")
    results = await precheck.run(settings, request, items or ("custom",))
    await driver.close()
    return {r.item.removeprefix("custom "): r for r in results}


@pytest.mark.parametrize(
    ("end", "status", "code"),
    [
        ("exit 0", Status.OK, Code.CUSTOM_OK),
        ("exit 1", Status.WARN, Code.CUSTOM_WARN),
        ("exit 2", Status.CRITICAL, Code.CUSTOM_CRITICAL),
        ("exit 3", Status.UNKNOWN, Code.CUSTOM_UNKNOWN),
        ("exit 4", Status.UNKNOWN, Code.CUSTOM_BAD_EXIT_CODE),
        ("exit 255", Status.UNKNOWN, Code.CUSTOM_BAD_EXIT_CODE),
        ("kill -KILL $$", Status.UNKNOWN, Code.CUSTOM_SIGNALLED),
    ],
)
async def test_nagios_exit_codes(folder, end, status, code):
    write(folder, "ib", f"#!/bin/sh\necho 'port 1 says so'\necho second\n{end}\n")
    (found,) = (await run(folder)).values()
    assert (found.item, found.status, found.code) == ("custom ib", status, code)
    assert found.reason.endswith("port 1 says so")
    assert found.action is {Status.OK: Action.NONE, Status.CRITICAL: Action.DRAIN}.get(status, Action.INVESTIGATE)


async def test_stderr_speaks_where_stdout_is_silent(folder):
    write(folder, "a", "#!/bin/sh\necho trouble >&2\nexit 1\n")
    write(folder, "b", "#!/bin/sh\nexit 1\n")
    found = await run(folder)
    assert (found["a"].reason, found["b"].reason) == ("trouble", "no message")


async def test_a_script_gets_a_small_environment(folder, monkeypatch):
    monkeypatch.setenv("SECRET", "hunter2")
    write(folder, "env", '#!/bin/sh\necho "$MUSTER_CARDS_WANTED/$MUSTER_CARDS_FOUND $MUSTER_USER [$SECRET]"\n')
    assert (await run(folder))["env"].reason == "8/7 bob []"


async def test_a_script_gets_no_descriptors_and_default_signals(folder):
    write(folder, "fds", "#!/bin/sh\n[ -e /proc/$$/fd/77 ] && echo leaked || echo clean\n")
    write(folder, "sig", "#!/bin/sh\nsed -n 's/^SigIgn:.//p' /proc/$$/status\n")
    inheritable = os.dup2(2, 77)
    try:
        found = await run(folder)
    finally:
        os.close(inheritable)
    assert found["fds"].reason == "clean"
    # glibc lets a spawned process ignore its two internal signals, 32 and 33.
    assert int(found["sig"].reason, 16) & ~0x180000000 == 0


async def test_control_characters_do_not_reach_a_log(folder):
    write(folder, "x", "#!/bin/sh\nprintf 'a\\033[31mb\\377\\n'\n")
    assert (await run(folder))["x"].reason == "a\\x1b[31mb\N{REPLACEMENT CHARACTER}"


async def test_what_is_no_check_is_passed_over(folder):
    write(folder, "README", "text\n", mode=0o644)
    write(folder, ".hidden", "#!/bin/sh\n")
    write(folder, "old~", "#!/bin/sh\n")
    (folder / "sub").mkdir()
    (folder / "dangling").symlink_to("nowhere")
    assert await run(folder) == {}


async def test_what_cannot_be_executed_is_unknown(folder):
    write(folder, "no-interpreter", "#!/nonexistent/sh\n")
    write(folder, "no-format", "just text\n")
    found = await run(folder)
    assert {r.code for r in found.values()} == {Code.CUSTOM_NOT_EXECUTABLE}
    assert "Exec format error" in found["no-format"].reason


async def test_what_others_may_write_is_not_run(folder, tmp_path):
    mark = tmp_path / "ran"
    write(folder, "open", f"#!/bin/sh\ntouch {mark}\n", mode=0o777)
    found = (await run(folder))["open"]
    assert (found.status, found.code) == (Status.UNKNOWN, Code.CUSTOM_UNSAFE)
    assert "chmod go-w" in found.reason
    folder.chmod(0o777)
    write(folder, "open", f"#!/bin/sh\ntouch {mark}\n", mode=0o755)
    assert (await run(folder))["open"].code is Code.CUSTOM_UNSAFE
    assert not mark.exists()


@pytest.mark.slow
async def test_a_hanging_script_and_its_children_are_killed(folder, tmp_path):
    pids = tmp_path / "pids"
    write(folder, "hang", f"#!/bin/sh\ntrap '' TERM\nsleep 300 &\necho $$ $! > {pids}\nwait\n")
    write(folder, "quick", "#!/bin/sh\necho fine\n")
    began = time.monotonic()
    found = await run(folder, deadline_s=8.0)  # in which the quick one is to have ended
    assert time.monotonic() - began < 120  # and not the 300 s of its sleep
    assert (found["hang"].status, found["hang"].code) == (Status.UNKNOWN, Code.PROBE_TIMED_OUT)
    assert found["quick"].status is Status.OK
    gone(pids)
    again = await run(folder, "custom hang", deadline_s=2.0)
    assert "still hangs" not in again["hang"].reason


async def test_a_background_child_does_not_hold_the_result_up(folder, tmp_path):
    pids = tmp_path / "pids"
    write(folder, "bg", f"#!/bin/sh\nsleep 300 &\necho $! > {pids}\necho done\n")
    began = time.monotonic()
    assert (await run(folder))["bg"].reason == "done"
    assert time.monotonic() - began < 60
    gone(pids)


def until(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def gone(pids):
    """Waits until all processes named in the file have ended (as zombies they may wait for an init that is slow)."""
    for pid in map(int, pids.read_text().split()):
        until(lambda pid=pid: ended(pid))


def ended(pid):
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


async def test_cancelling_the_run_kills_the_script(folder, tmp_path):
    pids = tmp_path / "pids"
    write(folder, "hang", f"#!/bin/sh\necho $$ > {pids}.new; mv {pids}.new {pids}\nsleep 300\n")
    async with anyio.create_task_group() as group:
        group.start_soon(run, folder)
        await anyio.to_thread.run_sync(until, pids.exists)
        group.cancel_scope.cancel()
    gone(pids)


async def test_output_is_bounded(folder):
    write(folder, "much", "#!/bin/sh\nhead -c 300000 /dev/zero | tr '\\0' x\nexit 1\n")
    write(folder, "endless", "#!/bin/sh\nexec yes\n")
    found = await run(folder)
    assert found["much"].status is Status.WARN
    assert found["much"].reason == "x" * script.KEPT
    assert (found["endless"].status, found["endless"].code) == (Status.UNKNOWN, Code.CUSTOM_TOO_MUCH_OUTPUT)


@pytest.mark.slow
def test_no_zombie_and_no_descriptor_is_left(folder):
    write(folder, "ok", "#!/bin/sh\necho ok\n")
    write(folder, "hang", "#!/bin/sh\nexec sleep 300\n")

    async def main():
        return await run(folder, deadline_s=5.0)

    # uvloop, as in the daemon; it keeps two descriptors after its first run.
    found = anyio.run(main, backend_options={"use_uvloop": True})
    assert found["ok"].status is Status.OK
    before = len(os.listdir("/proc/self/fd"))
    anyio.run(main, backend_options={"use_uvloop": True})
    assert len(os.listdir("/proc/self/fd")) == before
    assert [p for p in psutil.Process().children() if p.status() == psutil.STATUS_ZOMBIE] == []


def test_killed_before_it_was_started():
    run_once = script.Script("/bin/sleep", {})
    run_once.kill()
    ended = run_once.run()
    # sleep without an argument fails by itself should it be quicker than the signal.
    assert ended.returncode in (-9, 1)


def test_find_names_items_by_file(folder):
    write(folder, "b", "#!/bin/sh\n")
    write(folder, "a\nb", "#!/bin/sh\n")
    assert [f.item for f in custom.find(str(folder))] == ["custom a\\nb", "custom b"]
