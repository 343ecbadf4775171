import contextlib
import errno
import json
import os
import pwd
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from supervisors import child, tee
from supervisors.child import Account, Birth, environment, explain_exec, nonce, read_unborn
from supervisors.errors import NotStartable
from supervisors.lifecycle import Job, Rank
from supervisors.paths import Root
from supervisors.spec import JobSpec
from tests.unit.supervision import in_own_process

ROOT = Root.under(Path("/data/muster"))
ACCOUNT = Account("ann", 1234, 1235, "/home/ann", "/bin/zsh")


def job(ranks: int = 2, **changes: Any) -> Job:
    made = Job(master_addr="10.0.0.1", master_port=29500, attempt=3, accepted_at=17.25, **changes)
    made.ranks = [Rank(4 + i, i, 2 * i) for i in range(ranks)]
    return made


def env_of(rank: int = 1, account: Account = ACCOUNT, card_kind: str = "slot", **changes: Any) -> dict[str, str]:
    spec = replace(JobSpec("train", ("x",), node_count=3, node_rank=2), **changes)
    made = job(card_kind=card_kind)
    return environment(ROOT, spec, made, made.ranks[rank], account)


# --- environment ------------------------------------------------------------------------------------------------------


def test_the_whole_environment_of_a_rank_without_cards():
    assert env_of() == {
        "PATH": child.DEFAULT_PATH,
        "HOME": "/home/ann",
        "USER": "ann",
        "LOGNAME": "ann",
        "SHELL": "/bin/zsh",
        "LANG": "C.UTF-8",
        "RANK": "5",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "6",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "2",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RUN_ID": "train",
        "TORCHELASTIC_RESTART_COUNT": "3",
        "MUSTER_JOB_ID": "train",
        "MUSTER_ATTEMPT": "3",
        "MUSTER_NONCE": nonce(ROOT, "train", job()),
    }


def test_nothing_of_our_own_environment_is_passed_on(monkeypatch):
    monkeypatch.setenv("MUSTER_TEST_SECRET", "x")
    assert "MUSTER_TEST_SECRET" not in env_of()


def test_the_specs_variables_are_over_the_defaults_and_under_the_ranks_own():
    env = env_of(env={"PATH": "/mine", "HOME": "/h", "LANG": "de", "EMPTY": "", "RANK": "99", "MUSTER_NONCE": "forged"})
    assert (env["PATH"], env["HOME"], env["LANG"], env["EMPTY"]) == ("/mine", "/h", "de", "")
    assert (env["RANK"], env["MUSTER_NONCE"]) == ("5", nonce(ROOT, "train", job()))


def test_an_account_without_a_shell_has_the_standard_one():
    assert env_of(account=Account("a", 1, 1, "/", ""))["SHELL"] == "/bin/sh"


CARD_VARIABLES = {"CUDA_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES", "RANK_ID", "DEVICE_ID"}


def test_nvidia_ranks_see_the_cards_of_the_job():
    env = env_of(card_kind="nvidia", card_count=2, env={"CUDA_VISIBLE_DEVICES": "7"})
    assert CARD_VARIABLES & set(env) == {"CUDA_VISIBLE_DEVICES"}
    assert env["CUDA_VISIBLE_DEVICES"] == "0,2"


def test_without_wanting_cards_none_are_named():
    for kind in ("nvidia", "ascend", "slot"):
        assert not CARD_VARIABLES & set(env_of(card_kind=kind, ranks=2))
    assert not CARD_VARIABLES & set(env_of(card_kind="slot", card_count=2))


def test_ascend_ranks_have_what_modelarts_launcher_gives():
    env = env_of(card_kind="ascend", card_indices=(0, 2))
    assert {name: env[name] for name in env if name not in env_of()} == {
        "ASCEND_RT_VISIBLE_DEVICES": "0,2",
        "JOB_ID": "train",
        "ASCEND_DEVICE_ID": "1",
        "DEVICE_ID": "1",
        "RANK_ID": "5",
        "RANK_SIZE": "6",
        "HCCL_CONNECT_TIMEOUT": "1800",
        "ASCEND_PROCESS_LOG_PATH": "/data/muster/log/train/ascend/process_log/rank_5",
    }


def test_on_ascend_some_may_be_given_by_the_spec():
    given = {
        "HCCL_CONNECT_TIMEOUT": "60",
        "ASCEND_PROCESS_LOG_PATH": "/p",
        "MA_VJ_NAME": "ma-job-x-ma-job",
        "JOB_ID": "q",
    }
    env = env_of(card_kind="ascend", card_count=2, env=given)
    assert (env["HCCL_CONNECT_TIMEOUT"], env["ASCEND_PROCESS_LOG_PATH"]) == ("60", "/p")
    assert env["JOB_ID"] == "modelarts-job-x-ma-job"


def test_the_nonce_tells_jobs_apart():
    other_time = job()
    other_time.accepted_at = 17.5
    made = [
        nonce(ROOT, "a", job()),
        nonce(ROOT, "b", job()),
        nonce(Root.under(Path("/other")), "a", job()),
        nonce(ROOT, "a", other_time),
    ]
    assert len(set(made)) == 4
    assert nonce(ROOT, "a", job()) == made[0]


# --- accounts ---------------------------------------------------------------------------------------------------------


def test_an_account_by_name_number_or_our_own():
    me = pwd.getpwuid(os.geteuid())
    expected = Account(me.pw_name, me.pw_uid, me.pw_gid, me.pw_dir, me.pw_shell)
    assert Account.of("") == Account.of(me.pw_name) == Account.of(str(me.pw_uid)) == expected


def test_a_number_without_an_entry_is_a_user_all_the_same():
    free = next(uid for uid in range(54321, 65000) if not _known(uid))
    assert Account.of(str(free)) == Account(str(free), free, free, "/", "/bin/sh")


def _known(uid: int) -> bool:
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True


@pytest.mark.parametrize("user", ["no-such-user-here", "a:b", "-1", " ", "99999999999", "4294967295", "²", "٣", "ü"])
def test_a_user_that_cannot_be_is_told(user):
    with pytest.raises(NotStartable) as caught:
        Account.of(user)
    assert user in str(caught.value)


# --- birth ------------------------------------------------------------------------------------------------------------


def birth(folder: Path, *argv: str, gate: bytes | None = b"1", before: Any = None, **changes: Any) -> dict[str, Any]:
    """Forks a child and lets it go by `gate` (None: the supervisor dies). Its pid, status, output and `unborn` line."""
    fifo, unborn = folder / "fifo", folder / "unborn"

    def work() -> Any:
        if before is not None:
            before()
        account = Account.of("")
        tee.make_fifo(fifo, account.uid, account.gid)
        out = os.open(fifo, os.O_RDWR | os.O_NONBLOCK)
        read, write = os.pipe()
        notes = os.open(unborn, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        usual = Birth(3, argv, {"PATH": os.environ["PATH"]}, "/", fifo, cgroup="", account=account)
        pid = child.fork(replace(usual, **changes), read, write, notes)
        os.close(read)
        if gate is not None:
            os.write(write, gate)
        os.close(write)
        _, status = os.waitpid(pid, 0)
        try:
            output = os.read(out, 65536).decode()
        except BlockingIOError:
            output = ""
        entries = read_unborn(unborn)
        return {"pid": pid, "status": status, "output": output, "unborn": entries.get(pid), "lines": len(entries)}

    return dict(in_own_process(work))


_SHOW = """
import json, os
print(json.dumps([os.getpid(), os.getsid(0), os.getpgrp(), os.getcwd(), dict(os.environ),
    [os.readlink(f"/proc/self/fd/{i}") for i in range(3)], sorted(map(int, os.listdir("/proc/self/fd"))),
    open("/proc/self/oom_score_adj").read().strip()]))
"""


def test_a_rank_has_its_own_session_its_folder_its_environment_and_the_fifo(tmp_path):
    folder = tmp_path / "work"
    folder.mkdir()

    def before() -> None:  # what the nursery does at its start: the test's own caller may have left some open
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                os.set_inheritable(int(name), False)

    env = {"A": "ä b", "B": "", "LC_CTYPE": "C.UTF-8"}
    show = (sys.executable, "-I", "-S", "-c", _SHOW)
    seen = birth(tmp_path, *show, workdir=str(folder), env=env, before=before)
    assert (seen["status"], seen["unborn"]) == (0, None)
    pid, session, group, cwd, environ, streams, fds, oom = json.loads(seen["output"])
    assert pid == session == group == seen["pid"]
    assert (cwd, environ) == (str(folder), env)
    assert streams == ["/dev/null", str(tmp_path / "fifo"), str(tmp_path / "fifo")]
    assert fds == [0, 1, 2, 3], "nothing of ours is open, 3 is the listing itself"
    assert oom == "0"


def test_a_rank_has_all_signals_as_a_new_process_has_them(tmp_path):
    def before() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGRTMIN + 3, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGCHLD})

    seen = birth(tmp_path, "grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status", before=before)
    _, blocked, _, ignored = seen["output"].split()
    # 32 and 33 are libc's own: no program can set them, and posix_spawn(3) ignores them for what it starts.
    assert (int(blocked, 16), int(ignored, 16) & ~0x180000000) == (0, 0)


def test_a_rank_can_open_its_streams_again(tmp_path):
    seen = birth(tmp_path, "sh", "-c", "echo one > /dev/stdout; echo two > /dev/stderr; echo three >> /dev/stdout")
    assert seen["output"] == "one\ntwo\nthree\n"


def test_the_path_of_the_jobs_environment_is_searched(tmp_path):
    (tmp_path / "prog").write_text("#!/bin/sh\necho found\n")
    (tmp_path / "prog").chmod(0o755)
    assert birth(tmp_path, "prog", env={"PATH": str(tmp_path)})["output"] == "found\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_rank_becomes_its_user_with_the_users_groups_only(tmp_path):
    account = Account("nobody", 65534, 65534, "/", "/bin/sh")
    script = "grep -E '^(Uid|Gid|Groups):' /proc/self/status; umask"
    words = birth(tmp_path, "sh", "-c", script, account=account)["output"].split()
    groups = [str(g) for g in sorted({65534, *os.getgrouplist("nobody", 65534)})]
    assert words == ["Uid:", *["65534"] * 4, "Gid:", *["65534"] * 4, "Groups:", *groups, "0022"]


@pytest.mark.parametrize("gate", [None, b""])
def test_a_closed_gate_lets_nothing_run(tmp_path, gate):
    seen = birth(tmp_path, "touch", str(tmp_path / "ran"), gate=gate)
    assert not (tmp_path / "ran").exists()
    assert os.waitstatus_to_exitcode(seen["status"]) == 125
    assert (seen["unborn"]["reason"], seen["unborn"]["rank"]) == (child.GATE_CLOSED, 3)
    assert seen["output"] == "", "what the file says is the rank's alone"


def script_in(folder: Path, name: str, content: str, mode: int) -> str:
    path = folder / name
    path.write_text(content)
    path.chmod(mode)
    return str(path)


@pytest.mark.parametrize(
    ("make", "code", "number", "text"),
    [
        (lambda _: "no-such-program", 127, errno.ENOENT, "no-such-program: not found in the PATH"),
        (lambda _: "./no/such", 127, errno.ENOENT, "./no/such: not found"),
        (lambda _: "/etc/passwd/x", 127, errno.ENOTDIR, "/etc/passwd/x: not found"),
        (
            lambda d: script_in(d, "plain", "#!/bin/sh\n", 0o644),
            126,
            errno.EACCES,
            "not executable (permission denied)",
        ),
        (lambda _: "/", 126, errno.EACCES, "not executable (permission denied)"),
        (lambda d: script_in(d, "noform", "echo hi\n", 0o755), 126, errno.ENOEXEC, "no program, and no #! line"),
        (lambda d: script_in(d, "lost", "#!/no/such/sh\n", 0o755), 127, errno.ENOENT, "the interpreter or loader"),
    ],
)
def test_a_command_that_cannot_be_executed(tmp_path, make, code, number, text):
    argv0 = make(tmp_path)
    seen = birth(tmp_path, argv0)
    assert os.waitstatus_to_exitcode(seen["status"]) == code
    assert (seen["unborn"]["reason"], seen["unborn"]["errno"], seen["unborn"]["rank"]) == ("exec", number, 3)
    sentence = explain_exec(argv0, seen["unborn"])
    assert sentence.startswith(f"{argv0}: ")
    assert text in sentence


def test_too_long_a_command_is_told(tmp_path):
    seen = birth(tmp_path, "true", "x" * 200_000)
    assert os.waitstatus_to_exitcode(seen["status"]) == 126
    assert explain_exec("true", seen["unborn"]) == f"true: cannot be executed: {os.strerror(errno.E2BIG)}"


@pytest.mark.parametrize("folder", ["/no/such/folder", "/etc/passwd"])
def test_a_folder_that_cannot_be_entered_is_told(tmp_path, folder):
    seen = birth(tmp_path, "true", workdir=folder)
    assert os.waitstatus_to_exitcode(seen["status"]) == 125
    assert seen["unborn"]["reason"] == "prepare"
    assert folder in explain_exec("true", seen["unborn"])


def test_whatever_else_goes_wrong_in_a_child_stays_there(tmp_path):
    seen = birth(tmp_path, "true", fifo=tmp_path / "missing" / "fifo")
    assert os.waitstatus_to_exitcode(seen["status"]) == 125
    assert seen["unborn"]["reason"] == "defect"
    assert "missing" in seen["unborn"]["text"]


@pytest.mark.parametrize("code", [125, 126, 127])
def test_a_ranks_own_code_leaves_no_line(tmp_path, code):
    seen = birth(tmp_path, "sh", "-c", f"exit {code}")
    assert (os.waitstatus_to_exitcode(seen["status"]), seen["unborn"]) == (code, None)


# --- the unborn file --------------------------------------------------------------------------------------------------


def test_no_file_means_nobody(tmp_path):
    assert read_unborn(tmp_path / "missing") == {}


def test_whole_lines_are_read_and_others_passed_over(tmp_path):
    path = tmp_path / "unborn"
    good = [json.dumps({"rank": i, "pid": 10 + i, "reason": "gate"}) for i in range(3)]
    path.write_text("\n".join([good[0], "garbage", "7", "{}", '{"pid": "x"}', '{"pid": null}', good[1], good[2][:-5]]))
    assert {pid: entry["rank"] for pid, entry in read_unborn(path).items()} == {10: 0, 11: 1}


@pytest.mark.parametrize(
    ("argv0", "entry", "text"),
    [
        ("x", {"reason": "exec", "errno": 2}, "x: not found in the PATH of the job's environment"),
        ("a/x", {"reason": "exec", "errno": 2}, "a/x: not found"),
        ("/bin/sh", {"reason": "exec", "errno": 2}, "/bin/sh: the file is there, but the interpreter or loader"),
        ("x", {"reason": "exec", "errno": 13}, "x: not executable (permission denied)"),
        ("x", {"reason": "exec", "errno": 8}, "x: not executable (no program, and no #! line)"),
        ("x", {"reason": "exec", "errno": 12, "text": "Cannot allocate memory"}, "x: cannot be executed: Cannot alloc"),
        ("x", {"reason": "prepare", "errno": 2, "text": "cannot enter"}, "cannot enter"),
    ],
)
def test_an_entry_in_words(argv0, entry, text):
    assert explain_exec(argv0, entry).startswith(text)
