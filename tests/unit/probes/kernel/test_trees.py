"""Who belongs to a job and as what: on a made-up /proc, where pids are what a test wants."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from muster.probes.kernel.procfs import FULL_EACH, Procfs
from muster.probes.kernel.trees import Forest, JobRoots, ProcessRole, RootProcess
from tests.unit.proc_folder import ProcFolder

SUPERVISOR = 50
#: Two ranks, as muster starts them: leaders of a session, children of the supervisor.
ROOTS = JobRoots("job", (RootProcess(0, 100, 1000), RootProcess(1, 200, 1000)), SUPERVISOR, (4, 5))
LAUNCHER = JobRoots("job", (RootProcess(0, 100, 1000, launcher=True),), SUPERVISOR, (4, 5), first_rank=8)


@pytest.fixture
def proc(tmp_path: Path) -> ProcFolder:
    made = ProcFolder(tmp_path / "proc")
    made.add(1, 0, 1, name="init")
    made.add(40, 1, 10, name="nursery")
    made.add(SUPERVISOR, 40, 900, name="supervisor")
    made.add(100, SUPERVISOR, 1000)
    made.add(200, SUPERVISOR, 1000)
    made.add(999, 1, 5, name="sshd")
    return made


@pytest.fixture
def forest(proc: ProcFolder) -> Iterator[Forest]:
    procfs = Procfs(proc.path)
    yield Forest(procfs)
    procfs.close()


def roles(
    forest: Forest, roots: JobRoots = ROOTS, holders: dict[int, int] | None = None
) -> dict[int, tuple[str, int | None]]:
    """Role and rank by pid."""
    (procs,) = forest.look([roots], holders or {}).values()
    return {p.stat.pid: (p.role.value, p.rank) for p in procs}


RANKS = {100: ("rank", 0), 200: ("rank", 1)}


def test_a_rank_its_descendants_and_the_rest(proc: ProcFolder, forest: Forest):
    proc.add(110, 100, 1100, session=100)
    proc.add(111, 110, 1200, session=111, name="sh")
    proc.add(210, 200, 1100, session=200)
    proc.add(60, SUPERVISOR, 950, name="pre_start")
    proc.add(61, 60, 951, session=60)
    assert roles(forest) == RANKS | {
        110: ("worker", 0),
        111: ("worker", 0),
        210: ("worker", 1),
        60: ("helper", None),
        61: ("helper", None),
    }


def test_readings_come_with_the_process(proc: ProcFolder, forest: Forest):
    proc.add(100, SUPERVISOR, 1000, state="D", ticks=300, rss=5, io=(1, 2, 3, 4), wchan="nfs_wait")
    proc.add(200, SUPERVISOR, 1000, state="R", io=None, wchan="not_read")
    zero, one = forest.look([ROOTS], {})["job"]
    assert (zero.stat.state, zero.wchan, zero.local) == ("D", "nfs_wait", 0)
    assert zero.io is not None and zero.io.write_bytes == 4
    assert zero.stat.cpu_s == 3.0
    assert (one.io, one.wchan, one.local) == (None, None, 1)


def test_a_child_that_comes_later_is_found_and_one_that_goes_is_forgotten(proc: ProcFolder, forest: Forest):
    assert roles(forest) == RANKS
    proc.add(110, 100, 1100, session=100)
    assert roles(forest) == RANKS | {110: ("worker", 0)}
    proc.remove(110)
    proc.remove(200)
    assert roles(forest) == {100: ("rank", 0)}


def test_helpers_are_known_by_name_and_so_is_what_they_start(proc: ProcFolder, forest: Forest):
    proc.add(110, 100, 1100, session=100, name="wandb-core")
    proc.add(111, 110, 1101, session=100, name="git")
    proc.add(120, 100, 1100, session=100, name="nvidia-smi")
    proc.add(
        130, 100, 1100, session=100, name="python3", command=("python3", "-u", "-X", "dev", "/usr/bin/tensorboard", "x")
    )
    proc.add(131, 100, 1100, session=100, name="python3", command=("python3", "-m", "wandb.service", "x"))
    proc.add(132, 100, 1100, session=100, name="python3", command=("python3", "-c", "import wandb"))
    proc.add(133, 100, 1100, session=100, name="python3", command=("python3", "train.py", "wandb"))
    proc.add(134, 100, 1100, session=100, name="wand")
    assert roles(forest) == RANKS | {
        110: ("helper", None),
        111: ("helper", None),
        120: ("helper", None),
        130: ("helper", None),
        131: ("helper", None),
        132: ("worker", 0),
        133: ("worker", 0),
        134: ("worker", 0),
    }


def test_a_command_run_by_hand_is_of_a_session_with_any_numbers(proc: ProcFolder, forest: Forest):
    by_hand = {"MUSTER_EXEC_ID": "7", "RANK": "1", "LOCAL_RANK": "1"}
    proc.add(70, SUPERVISOR, 1100, name="bash", environ=by_hand)
    proc.add(71, 70, 1101, session=70, environ=by_hand)
    proc.add(72, 70, 1102, session=72, name="wandb-core", environ=by_hand)
    proc.add(60, SUPERVISOR, 950, name="pre_start")
    by_it = {70: ("session", None), 71: ("session", None), 72: ("session", None)}
    assert roles(forest, holders={71: 4}) == RANKS | by_it | {60: ("helper", None)}
    # Its own parent's end changes nothing.
    proc.remove(70)
    proc.add(71, SUPERVISOR, 1101, session=70, environ=by_hand)
    assert roles(forest)[71] == ("session", None)


def test_under_a_launcher_too_a_session_is_no_rank(proc: ProcFolder, forest: Forest):
    proc.remove(200)
    proc.add(110, 100, 1100, environ={"RANK": "8"})
    proc.add(70, SUPERVISOR, 1100, environ={"MUSTER_EXEC_ID": "7", "RANK": "8"})
    assert roles(forest, LAUNCHER, {110: 4, 70: 5}) == {
        100: ("helper", None),
        110: ("rank", 8),
        70: ("session", None),
    }


def test_a_rank_below_a_launcher_knows_how_many_there_are(proc: ProcFolder, forest: Forest):
    proc.remove(200)
    proc.add(110, 100, 1100, environ={"RANK": "8", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "2"})
    proc.add(111, 100, 1100, environ={"OMPI_COMM_WORLD_RANK": "9", "OMPI_COMM_WORLD_SIZE": "12"})
    (procs,) = forest.look([LAUNCHER], {}).values()
    assert {p.stat.pid: (p.world, p.local_world) for p in procs} == {100: (None, None), 110: (16, 2), 111: (12, None)}


def test_the_names_of_helpers_are_a_setting(proc: ProcFolder):
    procfs = Procfs(proc.path)
    proc.add(110, 100, 1100, session=100, name="wandb-core")
    proc.add(111, 100, 1100, session=100, name="our-exporter-wi")  # as the kernel cuts it
    found = roles(Forest(procfs, ("our-exporter-with-a-long-name",)))
    procfs.close()
    assert found[110] == ("worker", 0)
    assert found[111] == ("helper", None)


def test_a_name_counts_from_the_exec_on(proc: ProcFolder, forest: Forest):
    proc.add(110, 100, 1100, session=100, name="python", before_exec=True, command=("python", "wandb"))
    assert roles(forest)[110] == ("worker", 0)
    proc.add(110, 100, 1100, session=100, name="nvidia-smi")
    assert roles(forest)[110] == ("helper", None)


def test_a_re_parented_process_keeps_its_role(proc: ProcFolder, forest: Forest):
    proc.add(110, 100, 1100, session=100)
    proc.add(111, 110, 1101, session=111)
    assert roles(forest)[111] == ("worker", 0)
    # Its parent ends; it has left the rank's session, and is the supervisor's child, then the nursery's.
    proc.remove(110)
    proc.add(111, SUPERVISOR, 1101, session=111)
    assert roles(forest) == RANKS | {111: ("worker", 0)}
    proc.add(111, 40, 1101, session=111)
    proc.add(112, 111, 1300, session=111)
    assert roles(forest) == RANKS | {111: ("worker", 0), 112: ("worker", 0)}


def test_an_orphan_seen_late_is_known_by_its_session(proc: ProcFolder, forest: Forest):
    proc.add(110, SUPERVISOR, 1100, session=200)  # its parent, a child of rank 1, was never seen
    proc.add(120, SUPERVISOR, 1100, session=120)  # left the session as well
    proc.add(130, 40, 1100, session=200)  # after a takeover it is the nursery's
    proc.add(131, 130, 1101, session=131)
    proc.add(140, 40, 900, session=200)  # from before the rank: of another who had the number
    assert roles(forest) == RANKS | {
        110: ("worker", 1),
        120: ("helper", None),
        130: ("worker", 1),
        131: ("worker", 1),
    }


def test_a_rank_that_has_ended_leaves_its_descendants(proc: ProcFolder, forest: Forest):
    proc.add(110, 100, 1100, session=100)
    assert roles(forest)[110] == ("worker", 0)
    proc.remove(100)
    proc.add(110, SUPERVISOR, 1100, session=100)
    proc.add(120, SUPERVISOR, 1200, session=100)
    assert roles(forest) == {200: ("rank", 1), 110: ("worker", 0), 120: ("worker", 0)}


def test_a_session_whose_number_is_anothers_by_now(proc: ProcFolder, forest: Forest):
    roles(forest)
    proc.remove(100)
    roles(forest)
    proc.add(100, 999, 5000, name="bash")
    proc.add(150, 1, 5001, session=100)
    assert roles(forest) == {200: ("rank", 1)}


def test_a_pid_that_was_given_out_again_is_another_process(proc: ProcFolder, forest: Forest):
    proc.add(110, 100, 1100, session=100, io=(5, 5, 5, 5))
    assert roles(forest)[110] == ("worker", 0)
    proc.remove(110)
    proc.add(110, 999, 7000, name="ls")
    assert roles(forest) == RANKS
    # And one that was not the job's becomes the job's: seen at once where it is new, else with the next full pass.
    proc.add(999, 100, 8000, session=100)
    found = [roles(forest) for _ in range(FULL_EACH)]
    assert found[-1] == RANKS | {999: ("worker", 0), 110: ("worker", 0)} or found[-1] == RANKS | {999: ("worker", 0)}


def test_a_rank_with_another_start_is_not_the_rank(proc: ProcFolder, forest: Forest):
    proc.remove(100)
    proc.add(100, 999, 4000, name="cron")
    proc.add(110, 100, 4001)
    assert roles(forest) == {200: ("rank", 1)}


def test_ranks_that_are_reported_after_they_were_seen(proc: ProcFolder, forest: Forest):
    proc.add(110, 100, 1100, session=100)
    early = JobRoots("job", (), SUPERVISOR)
    assert roles(forest, early) == {100: ("helper", None), 200: ("helper", None), 110: ("helper", None)}
    assert roles(forest) == RANKS | {110: ("worker", 0)}


def test_another_attempt_begins_anew(proc: ProcFolder, forest: Forest):
    proc.add(110, 100, 1100, session=100)
    roles(forest)
    proc.remove(100)
    proc.remove(200)
    proc.add(110, SUPERVISOR, 1100, session=100)  # left over from the first one
    proc.add(300, SUPERVISOR, 3000)
    assert roles(forest, JobRoots("job", (RootProcess(0, 300, 3000),), SUPERVISOR)) == {
        110: ("helper", None),
        300: ("rank", 0),
    }


def test_jobs_are_distinguished(proc: ProcFolder, forest: Forest):
    proc.add(70, 40, 900, name="supervisor")
    proc.add(300, 70, 2000)
    proc.add(310, 300, 2001)
    proc.add(110, 100, 1100)
    found = forest.look([ROOTS, JobRoots("other", (RootProcess(0, 300, 2000),), 70)], {})
    assert {p.stat.pid for p in found["job"]} == {100, 200, 110}
    assert {p.stat.pid for p in found["other"]} == {300, 310}
    assert {p.stat.pid for p in forest.look([ROOTS], {})["job"]} == {100, 200, 110}
    assert forest.look([], {}) == {}


def test_below_a_launcher_who_has_a_number_is_a_rank(proc: ProcFolder, forest: Forest):
    proc.remove(200)
    proc.add(100, SUPERVISOR, 1000, environ={"WORLD_SIZE": "2"})
    proc.add(105, 100, 1001, environ={"WORLD_SIZE": "2"}, name="sh")
    proc.add(110, 105, 1100, environ={"RANK": "8", "LOCAL_RANK": "0"})
    proc.add(111, 110, 1101, environ={"RANK": "8", "LOCAL_RANK": "0"}, before_exec=True)
    proc.add(112, 110, 1101, environ={"RANK": "8", "LOCAL_RANK": "0"}, name="cc1")
    proc.add(120, 105, 1100, environ={"OMPI_COMM_WORLD_RANK": "9", "OMPI_COMM_WORLD_LOCAL_RANK": "1"})
    proc.add(130, 105, 1100, environ={"RANK": "none"})
    found = forest.look([LAUNCHER], {})["job"]
    assert {p.stat.pid: (p.role, p.rank, p.local) for p in found} == {
        100: (ProcessRole.HELPER, None, 0),
        105: (ProcessRole.HELPER, None, None),
        110: (ProcessRole.RANK, 8, 0),
        111: (ProcessRole.WORKER, 8, 0),
        112: (ProcessRole.WORKER, 8, 0),
        120: (ProcessRole.RANK, 9, 1),
        130: (ProcessRole.HELPER, None, None),
    }


def test_a_number_that_the_launcher_has_itself_makes_no_rank(proc: ProcFolder, forest: Forest):
    proc.remove(200)
    proc.add(100, SUPERVISOR, 1000, environ={"RANK": "0"})
    proc.add(110, 100, 1100, environ={"RANK": "0"})
    proc.add(120, 100, 1100, environ={"RANK": "1"})
    assert roles(forest, LAUNCHER) == {100: ("helper", None), 110: ("helper", None), 120: ("rank", 1)}


def test_below_a_launcher_who_holds_a_card_is_a_rank(proc: ProcFolder, forest: Forest):
    proc.remove(200)
    proc.add(110, 100, 1100)
    proc.add(111, 110, 1101)
    assert roles(forest, LAUNCHER) == {100: ("helper", None), 110: ("helper", None), 111: ("helper", None)}
    # By place among the job's cards: 4 and 5, of ranks 8 and 9.
    assert roles(forest, LAUNCHER, {110: 5}) == {100: ("helper", None), 110: ("rank", 9), 111: ("worker", 9)}
    # A card of another job says nothing.
    assert roles(forest, LAUNCHER, {110: 7})[110] == ("helper", None)


def test_a_process_that_is_avoided_is_not_touched(proc: ProcFolder):
    (proc.path / "110").mkdir()  # without any file: a reader gets nothing
    proc.add(120, 100, 1100)
    procfs = Procfs(proc.path)
    forest = Forest(procfs, avoid=(120,))
    assert roles(forest) == RANKS
    proc.remove(120)
    assert roles(forest) == RANKS
    proc.add(120, 100, 9000)  # the number is another's
    assert roles(forest) == RANKS | {120: ("worker", 0)}
    procfs.close()


def test_a_circle_of_parents_ends(proc: ProcFolder, forest: Forest):
    """As it can be read when pids are given out again in the middle of a pass."""
    proc.add(300, 301, 1)
    proc.add(301, 302, 1)
    proc.add(302, 300, 1)
    assert roles(forest) == RANKS


@pytest.mark.slow
def test_a_long_line_of_parents(proc: ProcFolder, forest: Forest):
    parent = 100
    for pid in range(10_000, 13_000):
        proc.add(pid, parent, 1100, session=100)
        parent = pid
    assert len(roles(forest)) == 3002


def test_few_files_are_read_where_little_happens(proc: ProcFolder):
    """A pass over 500 processes of others reads none of them twice, until the next full one."""
    for pid in range(2000, 2500):
        proc.add(pid, 1, 10, name="other")
    procfs = Procfs(proc.path)
    forest = Forest(procfs)
    forest.look([ROOTS], {})
    first = procfs.reads
    assert first > 500
    counts = []
    for _ in range(FULL_EACH):
        before = procfs.reads
        forest.look([ROOTS], {})
        counts.append(procfs.reads - before)
    procfs.close()
    assert sorted(counts)[:-1] == [6] * (FULL_EACH - 1)  # stat, io and wchan of two ranks
    assert max(counts) > 500


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(parents=st.lists(st.integers(0, 30), min_size=1, max_size=30), seen=st.integers(0, 30))
def test_the_tree_is_the_same_in_every_order_of_arrival(
    tmp_path_factory: pytest.TempPathFactory, parents: list[int], seen: int
):
    """Processes come in two batches; each is child of an earlier one, of a rank, or of somebody else."""
    proc = ProcFolder(tmp_path_factory.mktemp("trees") / "proc")
    for pid, ppid, start in ((1, 0, 1), (SUPERVISOR, 1, 900), (100, SUPERVISOR, 1000), (200, SUPERVISOR, 1000)):
        proc.add(pid, ppid, start)
    bosses = [1, 100, 200, SUPERVISOR]
    truth: dict[int, tuple[str, int | None] | None] = {1: None, 100: ("worker", 0), 200: ("worker", 1)}
    truth[SUPERVISOR] = ("helper", None)
    procfs = Procfs(proc.path)
    forest = Forest(procfs)
    for number, choice in enumerate(parents):
        if number == seen:
            forest.look([ROOTS], {})
        pid, parent = 5000 - number, bosses[choice % len(bosses)]  # children have lower numbers than their parents
        proc.add(pid, parent, 1100 + number, session=pid)
        bosses.append(pid)
        truth[pid] = truth[parent]
    found = roles(forest)
    procfs.close()
    assert {pid: told for pid, told in found.items() if pid >= 1000} == {
        pid: told for pid, told in truth.items() if told is not None and pid >= 1000
    }
