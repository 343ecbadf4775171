import contextlib
import errno
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import IO, Any

import pytest

from muster.probes.kernel import mount_table, process
from muster.supervisors.launch.containment import ENOUGH_SCANS, Containment
from muster.supervisors.model.lifecycle import Rank
from muster.supervisors.model.spec_fields import JOB_ID
from muster.supervisors.model.states import Outcome
from muster.supervisors.paths import Root
from muster.supervisors.system import cgroups, scope
from muster.supervisors.system.cgroups import make_cgroup
from muster.supervisors.system.controllers import hierarchies
from muster.supervisors.system.controllers.job_limits import JobLimits, set_limits
from tests.unit.supervision import in_own_process, until

#: One for each process that runs tests: they look for its bearers on the whole machine, and end them.
NONCE = f"0badcafe-{os.getpid()}-1"

#: A rank with a process that left it: double-forked, in a session of its own. Writes both pids, then a T for each
#: SIGTERM that either of them gets. The argument is a cgroup to enter, or empty.
_RANK = """
import os, signal, sys
if sys.argv[1]:
    with open(sys.argv[1] + "/cgroup.procs", "w") as file:
        file.write("0")
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
def answer():
    while True:
        signal.sigwait({signal.SIGTERM})
        os.write(1, b"T")
read, write = os.pipe()
if os.fork() == 0:
    os.setsid()
    pid = os.fork()
    if pid:
        os.write(write, b"%d" % pid)
        os._exit(0)
    answer()
os.wait()
os.write(1, b"%d %s\\n" % (os.getpid(), os.read(read, 100)))
answer()
"""

#: Starts its arguments and keeps them, as a nursery does. Ends, and all that is left with it, with its stdin.
_KEEPER = """
import ctypes, os, signal, subprocess, sys
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
subprocess.Popen(sys.argv[1:], start_new_session=True, stdin=subprocess.DEVNULL)
sys.stdin.read()
me = str(os.getpid())
while True:
    for pid in open(f"/proc/{me}/task/{me}/children").read().split():
        os.kill(int(pid), signal.SIGKILL)
    try:
        os.wait()
    except ChildProcessError:
        break
"""


@dataclass
class Tree:
    """A rank and the process that left it."""

    rank: int
    escaped: int
    output: FileIO
    #: What the two wrote after `kept` was left.
    rest: bytes = b""

    def answers(self, count: int) -> str:
        """So many words from the output."""
        words = b""
        while len(words) < count:
            word = self.output.read(1)
            assert word, "all writers have ended"
            words += word
        return words.decode()

    def ranks(self) -> list[Rank]:
        stat = process.read_stat(self.rank)
        assert stat is not None
        return [Rank(0, 0, 0, pid=self.rank, start=stat.start)]

    @property
    def pids(self) -> list[int]:
        return sorted((self.rank, self.escaped))


def _raw(pipe: IO[bytes] | None) -> FileIO:
    """Of Popen with bufsize=0: what one of us does not read, the next can."""
    assert isinstance(pipe, FileIO)
    return pipe


def alive(pid: int) -> bool:
    stat = process.read_stat(pid)
    return stat is not None and not stat.ended


def pids_of(job: Containment) -> list[int]:
    return sorted(stat.pid for stat in job.members())


def plant(nonce: str = NONCE, cgroup: str = "") -> Tree:
    """A rank of this very process, which must be a subreaper."""
    env = {"PATH": os.environ["PATH"], "MUSTER_NONCE": nonce}
    rank = subprocess.Popen(
        [sys.executable, "-c", _RANK, cgroup], start_new_session=True, stdout=subprocess.PIPE, env=env, bufsize=0
    )
    assert rank.stdout is not None
    pid, escaped = rank.stdout.readline().split()
    rank.returncode = 0  # not Popen's to wait for
    return Tree(int(pid), int(escaped), _raw(rank.stdout))


@contextlib.contextmanager
def kept(nonce: str = NONCE, cgroup: str = "") -> Iterator[Tree]:
    """A rank of somebody else, no descendant of who looks for it."""
    env = {"PATH": os.environ["PATH"], "MUSTER_NONCE": nonce}
    argv = [sys.executable, "-c", _KEEPER, sys.executable, "-c", _RANK, cgroup]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, bufsize=0) as keeper:
        assert keeper.stdout is not None
        pid, escaped = keeper.stdout.readline().split()
        tree = Tree(int(pid), int(escaped), _raw(keeper.stdout))
        try:
            yield tree
        finally:
            tree.rest = keeper.communicate(b"")[0]


@pytest.fixture
def no_cgroup(monkeypatch):
    monkeypatch.setattr(cgroups, "find_cgroup_root", lambda: None)


@pytest.fixture
def cgroup(tmp_path, monkeypatch) -> Iterator[str]:
    """A job's own cgroup."""
    monkeypatch.setattr(scope, "is_available", lambda: False)
    folder, _ = make_cgroup(Root.under(tmp_path), "job")
    if not folder:
        pytest.skip("needs a cgroup v2 tree that we may make subtrees in, and cgroup.kill")
    yield folder
    for path, _, _ in os.walk(folder, topdown=False):
        with contextlib.suppress(OSError):
            os.rmdir(path)


def contain(cgroup: str, ranks: list[Rank], nonce: str, adopted: bool) -> Containment:
    """Of ranks that stay the same."""
    return Containment(cgroup, lambda: ranks, nonce, adopted)


def kill_all(job: Containment) -> None:
    until(lambda: not job.kill(), "all processes of the job killed")


# --- our own ranks ----------------------------------------------------------------------------------------------------


def test_a_process_that_left_its_rank_is_found_and_killed(no_cgroup):
    def work() -> Any:
        tree = plant()
        job = contain(make_cgroup(Root.under(Path("/x")), "job")[0], tree.ranks(), NONCE, adopted=False)
        found = pids_of(job)
        kill_all(job)
        return [found == tree.pids, alive(tree.rank), alive(tree.escaped), pids_of(job)]

    assert in_own_process(work) == [True, False, False, []]


def test_what_is_left_of_a_rank_that_has_ended_is_found(no_cgroup):
    def work() -> Any:
        tree = plant()
        ranks = tree.ranks()
        os.kill(tree.rank, signal.SIGKILL)
        os.waitpid(tree.rank, 0)
        ranks[0].outcome = Outcome.SIGNALLED
        job = contain("", ranks, NONCE, adopted=False)
        found = pids_of(job)
        sent = job.signal(signal.SIGTERM)
        word = tree.answers(1)
        kill_all(job)
        return [found == [tree.escaped], sent, word, alive(tree.escaped)]

    assert in_own_process(work) == [True, 1, "T", False]


def test_zombies_are_no_members(no_cgroup):
    def work() -> Any:
        tree = plant()
        job = contain("", tree.ranks(), NONCE, adopted=False)
        for pid in tree.pids:
            os.kill(pid, signal.SIGKILL)
        until(lambda: not any(alive(pid) for pid in tree.pids), "both ended")
        return [process.read_stat(tree.rank) is not None, pids_of(job), job.kill()]

    assert in_own_process(work) == [True, [], []]


def test_a_job_without_processes_has_none(no_cgroup):
    assert in_own_process(lambda: pids_of(contain("", [Rank(0, 0, 0)], NONCE, adopted=False))) == []


@pytest.mark.parametrize("adopted", [False, True])
def test_each_process_gets_a_signal_once(no_cgroup, adopted):
    def work() -> Any:
        tree = plant()
        job = contain("", tree.ranks(), NONCE, adopted=adopted)
        sent = job.signal(signal.SIGTERM)
        first = tree.answers(2)
        kill_all(job)
        return [sent, first + tree.output.readall().decode()]

    assert in_own_process(work) == [2, "TT"]


def test_a_stopped_process_can_act_on_a_signal(no_cgroup):
    def work() -> Any:
        tree = plant()
        job = contain("", tree.ranks(), NONCE, adopted=False)
        for pid in tree.pids:
            os.kill(pid, signal.SIGSTOP)
            until(lambda pid=pid: (s := process.read_stat(pid)) and s.state == "T", "stopped")  # type: ignore[misc]
        job.signal(signal.SIGTERM)
        answer = tree.answers(2)
        kill_all(job)
        return answer

    assert in_own_process(work) == "TT"


def test_who_belongs_to_the_job_is_asked_anew_each_time(no_cgroup):
    """A step, then the ranks: what runs changes under one supervisor, also after a takeover of a step."""

    def work() -> Any:
        step, rank = plant(), plant()
        running: list[Rank] = []
        job = Containment("", lambda: running, "another nonce", adopted=True)
        nobody = groups_signalled(job, running)
        running[:] = step.ranks()
        of_step = groups_signalled(job, running)
        running[:] = rank.ranks()
        of_rank = groups_signalled(job, running)
        kill_all(job)
        return [nobody == [], of_step == [step.rank], of_rank == [rank.rank]]

    def groups_signalled(job: Containment, running: list[Rank]) -> list[int]:
        found: list[int] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "killpg", lambda group, number: found.append(group) if number == signal.SIGTERM else None)
            patch.setattr(process, "send", lambda *_: True)
            job.signal(signal.SIGTERM)
        return found

    assert in_own_process(work) == [True, True, True]


# --- is anything left? ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("adopted", [False, True])
def test_a_job_has_ended_when_nothing_of_it_lives_and_no_sooner(no_cgroup, adopted):
    def work() -> Any:
        tree = plant()
        job = contain("", tree.ranks(), NONCE, adopted=adopted)
        answers = [job.gone(), job.gone()]
        os.kill(tree.rank, signal.SIGKILL)
        os.waitpid(tree.rank, 0)
        answers += [job.gone(), job.gone()]
        os.kill(tree.escaped, signal.SIGKILL)
        os.waitpid(tree.escaped, 0)
        looks = next(number for number in range(1, ENOUGH_SCANS + 1) if job.gone())
        return [*answers, looks == 1 or adopted]

    assert in_own_process(work) == [False, False, False, False, True]


def test_an_empty_scan_counts_only_if_no_process_was_made_meanwhile(no_cgroup, monkeypatch):
    """A process that forks and exits all the time is never seen, and is never gone."""
    job = contain("", [], NONCE, adopted=True)
    pids = iter(range(1000))
    monkeypatch.setattr(process, "last_pid", lambda: next(pids))
    assert [job.gone() for _ in range(ENOUGH_SCANS)] == [False] * (ENOUGH_SCANS - 1) + [True]
    monkeypatch.setattr(process, "last_pid", lambda: 4711)
    assert contain("", [], NONCE, adopted=True).gone()


@pytest.mark.parametrize("adopted", [False, True])
def test_a_job_is_not_gone_while_its_cgroup_is_populated(cgroup, adopted):
    with kept(nonce="other", cgroup=cgroup) as tree:
        assert in_own_process(lambda: _kill_with_gone(cgroup, adopted)) == [False, True]
        assert not any(alive(pid) for pid in tree.pids)
    contain(cgroup, [], NONCE, adopted).remove()

    def without() -> bool:
        """One scan proves nothing while others make processes."""
        job = contain(cgroup, [], NONCE, adopted)
        until(job.gone, "a proof without the cgroup")
        return True

    assert in_own_process(without) is True


def _kill_with_gone(cgroup: str, adopted: bool) -> Any:
    job = contain(cgroup, [], NONCE, adopted=adopted)
    before = job.gone()
    job.kill()
    until(job.gone, "the end of all in the cgroup")
    return [before, job.gone()]


# --- strangers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("adopted", [False, True])
def test_a_stranger_that_looks_the_same_is_never_touched(no_cgroup, adopted):
    """The same program, the same environment but for the nonce; and one whose pid a rank had before."""
    with kept(nonce=NONCE + "0") as stranger, kept(nonce=NONCE[:-1]) as other:
        reused = stranger.ranks()[0]
        reused.start -= 1

        def work() -> Any:
            tree = plant()
            job = contain("", [*tree.ranks(), reused], NONCE, adopted=adopted)
            found = pids_of(job)
            job.signal(signal.SIGTERM)
            kill_all(job)
            return found == tree.pids

        assert in_own_process(work) is True
        assert all(alive(pid) for pid in (*stranger.pids, *other.pids))
        for tree in (stranger, other):  # an earlier SIGTERM would have been answered before this one
            for pid in tree.pids:
                os.kill(pid, signal.SIGTERM)
            assert tree.answers(2) == "TT"
    assert stranger.rest == other.rest == b""


# --- after a takeover -------------------------------------------------------------------------------------------------


def test_orphans_of_a_dead_supervisor_are_found_by_the_nonce(no_cgroup):
    with kept() as tree:
        ranks = tree.ranks()

        def work() -> Any:
            job = contain("", ranks, NONCE, adopted=True)
            found = pids_of(job)
            kill_all(job)
            return found

        assert in_own_process(work) == tree.pids
        assert not any(alive(pid) for pid in tree.pids)


def test_an_orphan_is_found_though_its_rank_has_ended(no_cgroup):
    with kept() as tree:
        ranks = tree.ranks()
        os.kill(tree.rank, signal.SIGKILL)
        until(lambda: not alive(tree.rank), "the rank's end")
        ranks[0].outcome = Outcome.SIGNALLED
        assert in_own_process(lambda: pids_of(contain("", ranks, NONCE, adopted=True))) == [tree.escaped]


def test_a_cgroup_that_cannot_be_read_proves_nothing(tmp_path):
    """Its file system was taken away while an orphan of the job lives."""
    with kept() as tree:
        ranks = tree.ranks()
        os.kill(tree.rank, signal.SIGKILL)
        until(lambda: not alive(tree.rank), "the rank's end")
        ranks[0].outcome = Outcome.SIGNALLED

        def work() -> Any:
            job = contain(str(tmp_path / "missing"), ranks, NONCE, adopted=True)
            before = job.gone()
            kill_all(job)
            until(job.gone, "nothing is left")
            return before

        assert in_own_process(work) is False
        assert not alive(tree.escaped)


def test_without_a_takeover_only_descendants_count(no_cgroup):
    """The search through all processes is for orphans alone: our own cannot leave, and it costs."""
    with kept() as tree:
        assert in_own_process(lambda: pids_of(contain("", [], NONCE, adopted=False))) == []
        assert alive(tree.rank)


# --- cgroup -----------------------------------------------------------------------------------------------------------


def test_the_kernel_knows_every_process_in_the_cgroup(cgroup):
    """Nobody's descendant here, another nonce: only the cgroup tells."""
    with kept(nonce="other", cgroup=cgroup) as tree:

        def work() -> Any:
            job = contain(cgroup, [], NONCE, adopted=False)
            found = pids_of(job)
            sent = job.signal(signal.SIGTERM)
            kill_all(job)
            return [found, sent]

        assert in_own_process(work) == [tree.pids, 2]
        assert not any(alive(pid) for pid in tree.pids)


def test_cgroup_kill_reaches_all_at_once(cgroup, monkeypatch):
    """And not only who could be listed and signalled one by one."""
    with kept(nonce="other", cgroup=cgroup) as tree:
        job = contain(cgroup, [], NONCE, adopted=False)
        monkeypatch.setattr(job.__class__, "members", lambda _: [])
        job.kill()
        until(lambda: not any(alive(pid) for pid in tree.pids), "both killed")


def test_an_empty_cgroup_is_removed_and_a_full_one_stays(cgroup):
    with kept(cgroup=cgroup) as tree:
        job = contain(cgroup, [], NONCE, adopted=False)
        job.remove()
        assert os.path.isdir(cgroup)
        for pid in tree.pids:
            os.kill(pid, signal.SIGKILL)
        until(lambda: not Path(cgroup, "cgroup.procs").read_text(), "the cgroup to be empty")
        job.remove()
        assert not os.path.exists(cgroup)
        job.remove()


def test_cgroups_that_the_job_made_in_its_own_are_searched_and_removed(cgroup):
    inner = os.path.join(cgroup, "a", "b")
    os.makedirs(inner)
    with kept(cgroup=inner) as tree:

        def work() -> Any:
            job = contain(cgroup, [], NONCE, adopted=False)
            found = pids_of(job)
            kill_all(job)
            return found

        assert in_own_process(work) == tree.pids
        until(lambda: not Path(inner, "cgroup.procs").read_text(), "the cgroup to be empty")
        contain(cgroup, [], NONCE, adopted=False).remove()
        assert not os.path.exists(cgroup)


def test_what_an_attempt_made_in_the_cgroup_is_not_there_in_the_next(cgroup, tmp_path):
    os.makedirs(os.path.join(cgroup, "a", "b"))
    assert make_cgroup(Root.under(tmp_path), "job") == (cgroup, "")
    assert not os.path.exists(os.path.join(cgroup, "a"))


def test_a_jobs_cgroup_is_taken_over_and_others_have_another(cgroup, tmp_path):
    assert make_cgroup(Root.under(tmp_path), "job") == (cgroup, "")
    for state, job_id in ((tmp_path, "job2"), (tmp_path / "other", "job")):
        other, _ = make_cgroup(Root.under(state), job_id)
        assert other not in ("", cgroup)
        os.rmdir(other)


def test_a_cgroup_that_takes_no_process_is_none(cgroup, tmp_path, monkeypatch):
    """As it is below one whose threads have a controller of their own."""
    above = Path(cgroup)
    (above / "threads").mkdir()
    (above / "threads" / "cgroup.type").write_text("threaded")
    monkeypatch.setattr(cgroups, "find_cgroup_root", lambda: above)
    monkeypatch.setattr(hierarchies, "folder_of", lambda *_: None)
    assert make_cgroup(Root.under(tmp_path), "other") == ("", "")
    assert [path.name for path in above.iterdir() if path.is_dir()] == ["threads"]


def test_where_there_is_no_cgroup_there_is_none(tmp_path, monkeypatch):
    for root in (None, tmp_path / "missing", tmp_path):  # none; cannot be made; no cgroup.kill
        monkeypatch.setattr(cgroups, "find_cgroup_root", lambda root=root: root)
        monkeypatch.setattr(hierarchies, "folder_of", lambda *_: None)
        assert make_cgroup(Root.under(tmp_path), "job") == ("", "")
    assert list(tmp_path.iterdir()) == [], "nothing is left of the attempt"


def test_a_daemon_with_a_cgroup_of_its_own_makes_those_of_jobs_beside_it(tmp_path, monkeypatch):
    """As DelegateSubgroup of systemd has it: the cgroup above has no process, and can hand controllers down."""
    mounts, own = f"30 1 0:26 / {tmp_path} rw - cgroup2 cgroup2 rw\n", "/above/muster-daemon"
    (tmp_path / "above" / "muster-daemon").mkdir(parents=True)
    (tmp_path / "muster-daemon").mkdir()
    monkeypatch.setattr(mount_table, "read", lambda kind: mount_table.parse(mounts, kind))
    monkeypatch.setattr(process, "cgroup", lambda *_: own)
    assert cgroups.find_cgroup_root() == tmp_path / "above"
    own = "/muster-daemon"  # not the root of all
    assert cgroups.find_cgroup_root() == tmp_path / "muster-daemon"


def test_a_scope_has_leaves_and_hands_the_controllers_down_to_them(tmp_path, monkeypatch):
    """Each controller by a write of its own: one that is not there keeps none from the other."""
    (tmp_path / "ranks").mkdir()
    (tmp_path / "ranks" / "cgroup.kill").touch()  # the kernel makes it with the folder
    written = []
    real = Path.write_text

    def write(path: Path, text: str) -> int:
        written.append((str(path.relative_to(tmp_path)), text))
        if path.name == "cgroup.subtree_control" and text == "+cpu":
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(path, text)

    root = Root.under(tmp_path / "root")
    monkeypatch.setattr(Path, "write_text", write)
    monkeypatch.setattr(scope, "is_available", lambda: False)
    monkeypatch.setattr(scope, "own", lambda: scope.unit_of(root, "job"))
    monkeypatch.setattr(cgroups, "find_cgroup_root", lambda: tmp_path)
    assert make_cgroup(root, "job") == (str(tmp_path / "ranks"), "")
    # The kernel takes no controller while the supervisor is in the folder itself.
    assert written[0] == ("supervisor/cgroup.procs", "0")
    assert sorted(written[1:]) == [("cgroup.subtree_control", "+cpu"), ("cgroup.subtree_control", "+memory")]
    monkeypatch.setattr(cgroups, "find_cgroup_root", lambda: tmp_path / "supervisor")  # as of a second attempt
    assert make_cgroup(root, "job") == (str(tmp_path / "ranks"), "")


def test_no_job_has_the_scope_of_a_nursery(tmp_path):
    for root in (Root.system(), Root.under(tmp_path)):
        unit = scope.of_nursery(root, 4711)
        assert re.fullmatch(r"muster-[A-Za-z0-9:_.-]*nursery:4711\.scope", unit), "nothing that systemd would escape"
        assert unit not in {scope.unit_of(root, name) for name in ("nursery-4711", "nursery_4711")}
    assert not JOB_ID.fullmatch("nursery:4711")


# --- limits of a cgroup -----------------------------------------------------------------------------------------------


@pytest.fixture
def folders(tmp_path) -> tuple[Path, Path]:
    """A folder as a cgroup whose parent hands the controllers down, and that parent."""
    folder = tmp_path / "job"
    folder.mkdir()
    (tmp_path / "cgroup.subtree_control").write_text("cpu memory")
    for name in ("memory.max", "cpu.max"):
        (folder / name).write_text("max")
    return folder, tmp_path


@pytest.mark.parametrize(
    ("memory", "cpus", "written"),
    [
        (None, None, ("max", "max")),
        (64.0 * 2**30, None, ("68719476736", "max")),
        (None, 2.5, ("max", "250000 100000")),
        (1e9, 0.5, ("1000000000", "50000 100000")),
        (None, 0.000001, ("max", "1000 100000")),  # the kernel's least: 1 ms of each 100 ms
        (2.0**62, 4096.0, ("4611686018427387904", "409600000 100000")),
    ],
)
def test_limits_as_the_kernel_reads_them(folders, memory, cpus, written):
    folder, parent = folders
    assert set_limits(str(folder), {}, JobLimits(memory, cpus)) == ""
    assert ((folder / "memory.max").read_text(), (folder / "cpu.max").read_text()) == written
    assert (parent / "cgroup.subtree_control").read_text() == "cpu memory", "nothing is asked for that is there"


def test_within_a_limit_of_memory_there_is_no_swap(folders):
    folder, _ = folders
    (folder / "memory.swap.max").write_text("max")
    assert set_limits(str(folder), {}, JobLimits(None, 1.0)) == ""
    assert (folder / "memory.swap.max").read_text() == "max"
    assert set_limits(str(folder), {}, JobLimits(4096.0, None)) == ""
    assert (folder / "memory.swap.max").read_text() == "0"


def test_a_controller_is_handed_down_where_it_is_not_yet(folders):
    folder, parent = folders
    (folder / "memory.max").unlink()
    assert set_limits(str(folder), {}, JobLimits(4096.0, 1.0)) == ""
    assert (parent / "cgroup.subtree_control").read_text() == "+memory"
    assert (folder / "memory.max").read_text() == "4096"


@pytest.mark.parametrize(("memory", "cpus", "name"), [(1.0, None, "memory"), (None, 1.0, "cpu"), (1.0, 1.0, "memory")])
def test_limits_without_a_cgroup_are_reported_as_not_in_force(memory, cpus, name):
    text = set_limits("", {}, JobLimits(memory, cpus))
    assert text.startswith(f"the limit of {name} is not in force")
    assert "no cgroup that muster may use" in text
    assert set_limits("", {}, JobLimits(None, None)) == "", "nothing was asked for"


def test_a_limit_that_cannot_be_written_is_reported_as_not_in_force(folders):
    """A real kernel refuses to hand a controller down while processes are in the folder above."""
    folder, parent = folders
    (folder / "memory.max").unlink()
    (parent / "cgroup.subtree_control").unlink()
    (parent / "cgroup.subtree_control").mkdir()
    text = set_limits(str(folder), {}, JobLimits(1.0, None))
    assert text == f"the limit of memory is not in force: {folder}/memory.max: Is a directory"
    (folder / "memory.max").mkdir()
    assert set_limits(str(folder), {}, JobLimits(1.0, None)) == text


def test_the_limits_of_a_real_cgroup(cgroup):
    """Where controllers can be handed down the kernel has the numbers; elsewhere the sentence says why not."""
    text = set_limits(cgroup, {}, JobLimits(64.0 * 2**20, None))
    if text:
        assert text.startswith(f"the limit of memory is not in force: {cgroup}/memory.max: ")
    else:
        assert Path(cgroup, "memory.max").read_text().strip() == str(64 << 20)
