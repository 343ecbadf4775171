import errno
import os
import signal
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from muster.probes.kernel import process
from muster.supervisors.launch import child, environment, spawning, user_folder
from muster.supervisors.launch.child import Account, ProcessSpec, read_unborn
from muster.supervisors.launch.creation import forked_start
from muster.supervisors.launch.creation.program_start import PROGRAM
from muster.supervisors.launch.modes import boot
from muster.supervisors.launch.spawning import ProcessBuilder
from muster.supervisors.model.lifecycle import Job, Rank
from muster.supervisors.model.spec import JobSpec
from muster.supervisors.output import tee
from muster.supervisors.paths import Root
from muster.supervisors.supervision_errors import NotStartable
from muster.supervisors.system import settings_file
from muster.supervisors.system.settings_file import SupervisorSettings
from tests.unit.supervision import created, in_own_process, until, wait_ended

SPEC = JobSpec("j", ("python", "x.py"), ranks=2)


def us() -> Account:
    return Account.of("")


# --- all behind one gate ----------------------------------------------------------------------------------------------


def births_in(folder: Path, count: int, *argv: str) -> list[ProcessSpec]:
    tee.make_fifo(folder / "fifo", os.geteuid(), os.getegid())
    usual = ProcessSpec(0, argv, {"PATH": os.environ["PATH"]}, "/", folder / "fifo", cgroup="", account=us())
    return [replace(usual, rank=i) for i in range(count)]


def test_all_are_let_go_once_they_are_on_record(way, tmp_path):
    """Not before: what ran is on record."""

    def work() -> Any:
        story: list[Any] = []
        made = births_in(tmp_path, 3, "sh", "-c", f"mktemp {tmp_path}/ran.XXXXXX")
        out = os.open(tmp_path / "fifo", os.O_RDWR | os.O_NONBLOCK)

        def record(pids: list[int]) -> None:
            story.append(["record", len(pids), len(list(tmp_path.glob("ran.*")))])
            recorded.extend(pids)

        recorded: list[int] = []
        created(spawning.spawn(made, tmp_path / "unborn", lambda: story.append("meanwhile"), record, story.append))
        codes = [os.waitpid(pid, 0)[1] for pid in recorded]
        os.close(out)
        return [story, codes, len(list(tmp_path.glob("ran.*"))), read_unborn(tmp_path / "unborn")]

    story, codes, ran, unborn = in_own_process(work)
    assert story == ["meanwhile", ["record", 3, 0]]
    assert (codes, ran, unborn) == ([0, 0, 0], 3, {})


@pytest.mark.parametrize("who", ["meanwhile", "record", "fork", "unborn"])
def test_where_something_fails_none_is_left(way, tmp_path, who):
    """Nor a descriptor of the gate, by which somebody could still be let go."""

    def fail(*_: object) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def work() -> Any:
        made = births_in(tmp_path, 3, "touch", str(tmp_path / "ran"))
        forked = [0]
        real = forked_start.fork

        def fork(*args: Any) -> int:
            forked[0] += 1
            if who == "fork" and forked[0] == 3:
                fail()
            return real(*args)

        if who == "fork":
            PROGRAM.close()
        before = len(os.listdir("/proc/self/fd"))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(forked_start, "fork", fork)
            if who == "unborn":
                patch.setattr(child, "open_unborn", fail)
            with pytest.raises(OSError, match="No space left"):
                begins = fail if who == "meanwhile" else lambda: None
                record = fail if who == "record" else lambda _: None
                created(spawning.spawn(made, tmp_path / "unborn", begins, record, pytest.fail))
        try:
            os.waitpid(-1, os.WNOHANG)
            left = True
        except ChildProcessError:
            left = False
        return [left, len(os.listdir("/proc/self/fd")) - before, (tmp_path / "ran").exists(), forked[0]]

    forks = {"fork": 3, "unborn": 0}.get(who, 0 if way == "program" else 3)
    assert in_own_process(work) == [False, 0, False, forks]


def test_a_signal_that_comes_meanwhile_is_not_taken_for_the_childs(tmp_path):
    """Its handler is ours, and would run in a copy of us."""

    def work() -> Any:
        heard: list[int] = []
        signal.signal(signal.SIGUSR1, lambda *_: heard.append(os.getpid()))
        made = births_in(tmp_path, 1, "sleep", "600")
        real = forked_start.fork

        def fork(*args: Any) -> int:
            os.kill(os.getpid(), signal.SIGUSR1)
            return real(*args)

        pids: list[int] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(forked_start, "fork", fork)
            created(spawning.spawn(made, tmp_path / "unborn", lambda: None, pids.extend, pytest.fail))
        alive = os.waitpid(pids[0], os.WNOHANG)[0] == 0
        return [heard == [os.getpid()], alive]

    assert in_own_process(work) == [True, True]


# --- one for which no record waits ------------------------------------------------------------------------------------


def test_a_session_is_let_go_once_its_process_is_known(way, tmp_path):
    """One that ran before could end by SIGKILL, as one does that the kernel does not let begin."""

    def work() -> Any:
        (made,) = births_in(tmp_path, 1, "sh", "-c", f"echo ran >> {tmp_path}/ran; kill -9 $$")
        out = os.open(tmp_path / "fifo", os.O_RDWR | os.O_NONBLOCK)
        begun = spawning.spawn_alone(made)
        states: list[str] = []
        if way == "program":
            program, _ = next(begun)
            wait_ended(program)  # it is not waited for yet, as the one that it created
            states = until(lambda: at_rest() if len(at_rest()) == 2 else [], "the process at the gate")
            pid, said = finished(begun)
        else:
            pid, said = created(begun)
        status = os.waitpid(pid, 0)[1]
        os.close(out)
        return [sorted(states), status, (tmp_path / "ran").read_text(), child.read_unborn_line(said)]

    def finished(begun: Any) -> Any:
        with pytest.raises(StopIteration) as end:
            begun.send(True)
        return end.value.value

    def at_rest() -> list[str]:
        return [s.state for s in process.all_stats().values() if s.ppid == os.getpid() and s.state in "SZ"]

    at_the_gate = ["S", "Z"] if way == "program" else []
    assert in_own_process(work) == [at_the_gate, signal.SIGKILL, "ran\n", None]


# --- what each is given -----------------------------------------------------------------------------------------------


@pytest.fixture
def root(tmp_path) -> Root:
    made = Root.under(tmp_path)
    made.job("j").folder.mkdir(parents=True)
    made.log.mkdir()
    return made


def job(ranks: int = 2, **changes: Any) -> Job:
    made = Job(master_addr="a", master_port=7, cgroup="/cg", local_ranks=ranks, world_size=ranks)
    made.ranks = [Rank(4 + i, i, 2 * i) for i in range(ranks)]
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def builder(root: Root, made: Job | None = None, account: Account | None = None, **changes: Any) -> ProcessBuilder:
    return ProcessBuilder(root, replace(SPEC, **changes), made or job(), account or us())


def test_the_process_spec_of_a_rank(root):
    made, processes = builder(root).gang({})
    folder = root.job("j").folder
    first, second = f"{folder}/workspace/device0", f"{folder}/workspace/device2"
    assert [(b.rank, b.argv, b.fifo, b.workdir, b.folders) for b in made] == [
        (4, ("python", "x.py"), folder / "rank-4.fifo", first, ()),
        (5, ("python", "x.py"), folder / "rank-5.fifo", second, ()),
    ]
    assert {(b.cgroup, b.account, b.files, b.limits, b.umask, b.nice) for b in made} == {
        ("/cg", us(), (), (), child.DEFAULT_UMASK, 0)
    }
    assert [(b.env["RANK"], b.env["MASTER_PORT"]) for b in made] == [("4", "7"), ("5", "7")]
    assert [process.role for process in processes] == ["rank", "rank"]


def test_limits_and_the_rest_are_the_specs(root):
    limits = {"nofile": 64.0, "core": -1.0, "memory": 1e9, "cpus": 2.0}
    made, _ = builder(root, limits=limits, umask=0, nice=5, workdir="/w").gang({})
    assert made[0].limits == (("nofile", 64), ("core", -1)), "those of the cgroup are no setrlimit's"
    assert (made[0].umask, made[0].nice) == (0, 5), "a mask of 0 is one that is asked for"
    assert (made[0].workdir, made[0].folders) == ("/w", ())


def test_what_pre_start_exported_is_the_ranks(root):
    made, _ = builder(root, env={"GONE": "x"}).gang({"NEW": "1", "GONE": None, "RANK": "9", "MUSTER_JOB_ID": "forged"})
    assert {(b.env["NEW"], b.env["MUSTER_JOB_ID"], "GONE" in b.env) for b in made} == {("1", "j", False)}
    assert [b.env["RANK"] for b in made] == ["4", "5"]


def test_by_a_setting_each_rank_has_a_flight_recorder(root):
    settings_file.write(root.settings, SupervisorSettings(flight_recorder=True))
    made = builder(root, env={"TORCH_NCCL_DUMP_ON_TIMEOUT": "0"})
    made.make_folders()
    prefix = f"{root.log}/j/flight-recorder-"
    for rank in made.gang({"TORCH_FR_BUFFER_SIZE": "7"})[0]:
        assert rank.env["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"] == rank.env["TORCH_FR_DUMP_TEMP_FILE"] == prefix
        assert (rank.env["TORCH_FR_BUFFER_SIZE"], rank.env["TORCH_NCCL_DUMP_ON_TIMEOUT"]) == ("7", "0")
    assert (root.log / "j").is_dir()


def test_a_launcher_is_one_process_with_its_own_command(root):
    made, processes = builder(root, job(1), boot="torchrun").gang({})
    assert made[0].argv == processes[0].argv
    assert made[0].argv[:2] == ("torchrun", "--standalone")
    assert "RANK" not in made[0].env


def test_a_variable_that_a_launcher_cannot_take_is_reported(root):
    with pytest.raises(NotStartable, match="MA_EXTRA_TORCHRUN_PARAMS"):
        builder(root, job(1), boot="torchrun").gang({"MA_EXTRA_TORCHRUN_PARAMS": "'unclosed"})


def test_as_many_places_as_processes(root):
    with pytest.raises(AssertionError, match="1 processes for 2 places"):
        builder(root, boot="torchrun").gang({})


def test_a_rank_table_goes_where_the_launcher_puts_it(root):
    paths = root.job("j")
    paths.rank_table.write_text('{"status": "completed"}')
    env = {"MA_MOUNT_PATH": "/mnt"}
    made, _ = builder(root, job(table=str(paths.rank_table)), env=env, rank_table="/user/config").gang({})
    assert made[0].files == (("/mnt/rank_table/jobstart_hccl.json", '{"status": "completed"}'),)
    assert [b.workdir for b in made] == ["/mnt/workspace/device0", "/mnt/workspace/device1"]
    plog = f"{root.log}/j/ascend/process_log"
    assert [b.folders for b in made] == [
        ("/mnt/workspace/device0", f"{plog}/rank_4"),
        ("/mnt/workspace/device1", f"{plog}/rank_5"),
    ]
    own, _ = builder(root, job(table=str(paths.rank_table)), rank_table="/user/config").gang({})
    assert own[0].files == ()
    as_it_is, _ = builder(root, job(table="/t/v1.json"), env=env, rank_table="/t/v1.json").gang({})
    assert as_it_is[0].files == (), "one that needed no conversion is used where it lies"


def test_a_step_is_spawned_with_the_jobs_log(root):
    paths = root.job("j")
    birth = builder(root, umask=0o77).step("pre_start", ("sh", "x"), {"MORE": "1"})
    assert (birth.argv, birth.fifo, birth.umask) == (("sh", "x"), paths.job_fifo, 0o77)
    assert birth.workdir == f"{paths.folder}/workspace/device0"
    assert (birth.env["MUSTER_STEP"], birth.env["MORE"], "RANK" in birth.env) == ("pre_start", "1", False)
    assert builder(root, workdir="/w").step("epilog", ("x",), {}).workdir == "/w"
    beside = "/h/code/ma-pre-start.py"
    assert builder(root, pre_start=beside, workdir="/w").step("pre_start", ("x",), {}).workdir == "/h"
    assert builder(root, pre_start=beside, env={"MA_JOB_DIR": "/m"}).step("pre_start", ("x",), {}).workdir == "/m"
    assert builder(root, pre_start="/h/mine.sh", workdir="/w").step("pre_start", ("x",), {}).workdir == "/w"
    assert builder(root, job(0)).step("epilog", ("x",), {}).workdir == f"{paths.folder}/workspace"


def test_what_a_step_gets_of_itself_does_not_reach_the_ranks(root):
    """Through what it exports: all that was in its environment."""
    maker = builder(root)
    step = maker.step("pre_start", ("sh",), {})
    exports = root.job("j").exports
    exports.write_bytes(b"".join(f"{name}={value}\0".encode() for name, value in step.env.items()))
    made, _ = maker.gang(environment.read_exports(exports, maker.common))
    plain, _ = maker.gang({})
    assert [b.env for b in made] == [b.env for b in plain]


# --- folders ----------------------------------------------------------------------------------------------------------


def mode_of(path: Path) -> str:
    return oct(stat.S_IMODE(path.stat().st_mode))


def test_folders_in_the_jobs_own(root):
    before = os.umask(0o077)
    try:
        builder(root).make_folders()
        builder(root).make_folders()  # of the next attempt
    finally:
        os.umask(before)
    workspace = root.job("j").workspace
    assert sorted(path.name for path in workspace.iterdir()) == ["device0", "device2"]
    assert mode_of(workspace) == "0o711", "whatever our mask is the job's user gets through, and sees no other's"
    assert not root.job_logs("j").exists()


@pytest.mark.parametrize(
    ("changes", "made"),
    [({"boot": "torchrun"}, job(1)), ({}, job(table="/t")), ({}, job(card_kind="ascend", cards=(0, 1)))],
)
def test_further_logs_have_a_folder(root, changes, made):
    builder(root, made, **changes).make_folders()
    assert root.job_logs("j").is_dir()


def test_no_working_folder_is_made_that_is_not_used(root):
    builder(root, workdir="/w").make_folders()
    builder(root, job(table="/t"), rank_table="/t", env={"MA_MOUNT_PATH": "/mnt"}).make_folders()
    assert list(root.job("j").workspace.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_folders_belong_to_the_jobs_user(root):
    nobody = Account("nobody", 65534, 65534, "/", "/bin/sh")
    maker = builder(root, job(card_kind="ascend", cards=(0, 1)), nobody)
    maker.make_folders()
    maker.make_private(root.job("j").exports)
    maker.make_own(root.job("j").packages)
    paths = root.job("j")
    owned = [paths.workspace / "device0", root.job_logs("j"), paths.exports, paths.packages]
    assert [(path.stat().st_uid, path.stat().st_gid) for path in owned] == [(65534, 65534)] * 4
    assert (mode_of(paths.exports), paths.workspace.stat().st_uid) == ("0o600", 0)


def test_an_existing_file_in_place_of_a_folder_keeps_its_owner(root):
    """A job may be called as a file of muster's own is."""
    (root.log / "nursery.log").touch()
    (root.log / "link").symlink_to("/etc")
    for name in ("nursery.log", "link"):
        before = os.lstat(root.log / name)
        with pytest.raises(FileExistsError):
            builder(root, account=Account("nobody", 65534, 65534, "/", "/bin/sh")).make_own(root.log / name)
        assert os.lstat(root.log / name).st_uid == before.st_uid


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
@pytest.mark.parametrize(("earlier", "user"), [(65534, 0), (0, 65534), (65533, 65534)])
def test_a_folder_that_another_user_may_have_filled_is_refused(root, earlier, user):
    """Links in it would be written through, and root's would become the user's."""
    logs = root.job_logs("j")
    logs.mkdir()
    os.chown(logs, earlier, earlier)
    maker = builder(root, account=Account("somebody", user, user, "/", "/bin/sh"))
    with pytest.raises(NotStartable) as caught:
        maker.make_own(logs)
    for said in (str(logs), f"uid {earlier}", "somebody", "remove it"):
        assert said in str(caught.value)
    assert logs.stat().st_uid == earlier
    assert list(root.log.iterdir()) == [logs]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_the_same_user_is_shared_and_one_that_was_not_finished_is_no_hindrance(root):
    logs = root.job_logs("MA-name")
    account = Account("nobody", 65534, 65534, "/", "/bin/sh")
    (root.log / ".j.new").mkdir()  # and the supervisor was killed
    builder(root, account=account).make_own(logs)
    assert (logs.stat().st_uid, mode_of(logs), list(root.log.iterdir())) == (65534, "0o750", [logs])
    (logs / "content").touch()
    builder(root, account=account, job_id="other").make_own(logs)
    builder(root, account=account).make_own(logs)
    assert [path.name for path in logs.iterdir()] == ["content"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_where_root_is_squashed_its_own_folders_are_known_all_the_same(root, monkeypatch):
    made = os.mkdir

    def squashed(path, mode, dir_fd):
        made(path, mode, dir_fd=dir_fd)
        os.chown(path, 65534, 65534, dir_fd=dir_fd)

    monkeypatch.setattr(os, "mkdir", squashed)
    logs = root.job_logs("j")
    for _ in range(2):
        builder(root, account=Account("root", 0, 0, "/", "/bin/sh")).make_own(logs)
    assert list(root.log.iterdir()) == [logs]


ENV = {"MA_VJ_NAME": "ma-job-x"}


def plog(root: Root, maker: ProcessBuilder) -> str:
    made, _ = maker.gang({})
    return made[0].env["ASCEND_PROCESS_LOG_PATH"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_two_users_with_one_name_of_the_platform(root, monkeypatch):
    one, two = (Account(f"user {uid}", uid, uid, "/", "/bin/sh") for uid in (65533, 65534))
    ascend = job(card_kind="ascend", cards=(0, 1))
    first, again, second = (
        builder(root, ascend, account, job_id=name, env=ENV)
        for account, name in ((one, "first"), (one, "again"), (two, "second"))
    )
    for name in ("first", "again", "second"):
        root.job(name).folder.mkdir()
    usual, own = root.job_logs("modelarts-job-x"), root.log / "second.logs"
    assert (first.make_folders(), again.make_folders()) == ("", "")
    said = second.make_folders()
    assert str(usual) in said and str(own) in said and "MA_VJ_NAME" in said
    assert (usual.stat().st_uid, own.stat().st_uid) == (65533, 65534)
    assert plog(root, first) == plog(root, again) == f"{usual}/ascend/process_log/rank_4"
    assert plog(root, second) == f"{own}/ascend/process_log/rank_4"
    # It stays so, for a successor and the next attempt, although the other name becomes free.
    usual.rmdir()
    assert "second.logs" in second.make_folders() and not usual.exists()
    assert plog(root, second).startswith(f"{own}/")
    own.rename(root.log / "away")
    own.mkdir()  # another's: of an earlier job of this id, say
    with pytest.raises(NotStartable, match=f"{own} already exists and belongs to uid 0"):
        second.make_folders()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
@pytest.mark.parametrize("knows", [True, False])
def test_a_folder_that_comes_meanwhile_is_not_replaced(root, monkeypatch, knows):
    """Nor where the file system has no renameat2(2)."""
    account = Account("nobody", 65534, 65534, "/", "/bin/sh")
    logs = root.job_logs("j")
    given = os.fchown

    def late(fd, uid, gid):
        given(fd, uid, gid)
        logs.mkdir(exist_ok=True)
        (logs / "content").touch()

    monkeypatch.setattr(os, "fchown", late)
    if not knows:
        monkeypatch.setattr(user_folder, "RENAME_NOREPLACE", 1 << 31)
    with pytest.raises(NotStartable, match="belongs to uid 0"):
        builder(root, account=account).make_own(logs)
    assert (logs.stat().st_uid, os.listdir(logs), list(root.log.iterdir())) == (0, ["content"], [logs])


def test_a_private_file_is_emptied_and_a_link_not_followed(root):
    path = root.job("j").exports
    path.write_text("of the attempt before")
    builder(root).make_private(path)
    assert path.read_text() == ""
    path.unlink()
    path.symlink_to(root.log / "elsewhere")
    with pytest.raises(OSError) as caught:
        builder(root).make_private(path)
    assert caught.value.errno == errno.ELOOP


def test_facts_for_the_launchers(root, monkeypatch):
    seen: list[boot.JobFacts] = []

    def processes(spec: JobSpec, facts: boot.JobFacts, env: object) -> list[boot.Process]:
        seen.append(facts)
        return [boot.Process(("x",), {}, "launcher")]

    monkeypatch.setattr(boot, "processes", processes)
    made = job(1, node_rank=1, node_count=2, local_ranks=8, table="/t/v1.json")
    builder(root, made, nodes=("a", "b"), rank_table="/t/v1.json").gang({})
    (facts,) = seen
    assert (facts.job_id, facts.nodes, facts.node_rank, facts.node_count, facts.cards) == ("j", ("a", "b"), 1, 2, 8)
    assert (facts.master_addr, facts.master_port, facts.rank_table) == ("a", 7, "/t/v1.json")
    assert facts.log_dir == os.path.realpath(root.job_logs("j"))
    builder(root, job(1)).gang({})
    assert seen[1].rank_table == ""
