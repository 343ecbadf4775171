"""Reports of launchers, as real ones wrote them (tests/fixtures/launchers/), become the failure of a worker."""

from datetime import datetime
from pathlib import Path

import pytest

from muster.agent.logs.log_reading import RankLogFile
from muster.agent.why import launchers, log_signs
from muster.agent.why.causes.advice import advise
from muster.agent.why.causes.cause import causes
from muster.agent.why.facts import Facts
from muster.agent.why.launchers import LauncherReport
from muster.agent.why.log_signs import Launched, Searched, Wanted
from muster.agent.why.signatures import builtin
from muster.supervisors.model.lifecycle import Verdict
from muster.supervisors.model.states import Outcome
from tests.unit.why_facts import facts, happening, rank

TEXTS = Path(__file__).parents[3] / "fixtures" / "launchers"


def text(name: str) -> bytes:
    return (TEXTS / f"{name}.txt").read_bytes()


def report(name: str) -> LauncherReport:
    found = launchers.read(text(name))
    assert found is not None
    return found


def launcher_said(tmp_path: Path, output: bytes, code: int = 1, **more: object) -> Facts:
    """Of a job whose one rank is a launcher that wrote this."""
    log = RankLogFile(0, tmp_path / "x-proc-rank-0-device-0.txt", tmp_path / "x-proc-rank-0-device-0.idx")
    log.path.write_bytes(output)
    searched = log_signs.search_file(Wanted(0, log), builtin())
    verdict = Verdict(code, "it failed", 0, recommendation="FAIL", recommendation_reason="the job failed by itself")
    known = facts(rank(0, Outcome.EXITED, code=code), verdict=verdict, **more)  # type: ignore[arg-type]
    return Facts(
        known.entry, known.now, known.zero, known.around, known.first, known.failed, happenings=known.happenings,
        searched=Searched(searched.signs, searched.missing, searched.launched),
    )  # fmt: skip


def launched(known: Facts) -> Launched:
    assert known.launched is not None
    return known.launched


# --- torchrun ---------------------------------------------------------------------------------------------------------


def test_the_failure_table_of_torchrun() -> None:
    first, *others = report("torchrun-code").workers
    assert (first.launcher, first.rank, first.local_rank, first.pid, first.code) == ("torchrun", 1, 1, 32667, 9)
    assert (first.host, first.error_file, first.said) == ("localhost", "", ())
    assert first.at == datetime(2026, 11, 23, 16, 51, 57).timestamp()
    assert (first.who, first.ending) == ("rank 1", "exited with code 9")
    assert [(one.rank, one.code) for one in others] == [(0, -15), (2, -15)]


def test_a_worker_of_torchrun_that_was_killed() -> None:
    first = report("torchrun-kill").first
    assert (first.rank, first.killed_by, first.ending, first.said) == (1, 9, "was killed by SIGKILL", ())


def test_the_traceback_that_a_worker_recorded() -> None:
    first = report("torchrun-record").first
    assert first.said[0] == "Traceback (most recent call last):" and first.said[-1] == "ValueError: bad shape (3, 4)"
    assert first.error_file.endswith("/attempt_0/1/error.json")


def test_the_table_of_versions_before_one_ten() -> None:
    old = b"""*****************************
   train.py FAILED
=============================
Root Cause:
[0]:
  time: 2021-08-01_12:00:00
  rank: 3 (local_rank: 1)
  exitcode: -9 (pid: 77)
  error_file: <N/A>
  msg: "Signal 9 (SIGKILL) received by PID 77"
=============================
Other Failures:
  <NO_OTHER_FAILURES>
*****************************
"""
    found = launchers.read(old)
    assert found is not None
    assert [(one.rank, one.local_rank, one.pid, one.code) for one in found.workers] == [(3, 1, 77, -9)]


@pytest.mark.parametrize("name", ["torchrun-code", "torchrun-kill", "torchrun-record"])
def test_a_report_that_is_cut_off_is_none_or_right(name: str) -> None:
    whole = text(name)
    for end in range(0, len(whole), 7):
        found = launchers.read(whole[:end])
        assert found is None or found.first.rank == 1
    for begin in range(0, len(whole), 7):
        found = launchers.read(whole[begin:])
        assert found is None or found.first.rank == 1


def test_an_old_report_is_not_what_the_launcher_ended_with() -> None:
    assert launchers.read(text("torchrun-code") + b"step\n" * 100) is not None
    assert launchers.read(text("torchrun-code") + b"step\n" * 10_000) is None


def test_which_lines_are_the_workers() -> None:
    found = launchers.last_words(text("torchrun-code"), report("torchrun-code"))
    assert (found.lines, found.whose) == (("epoch 3: cannot go on",), "all workers")
    found = launchers.last_words(text("torchrun-record"), report("torchrun-record"))
    assert (found.lines[-1], found.whose) == ("ValueError: bad shape (3, 4)", "the worker")
    tagged = b"[default0]:fine\n[rank1]: lost\n[default1]:it broke\n" + text("torchrun-code")
    again = launchers.read(tagged)
    assert again is not None
    found = launchers.last_words(tagged, again)
    assert (found.lines, found.whose) == (("lost", "it broke"), "the worker")


def test_the_cause_of_an_exit_code(tmp_path: Path) -> None:
    known = launcher_said(tmp_path, text("torchrun-code"))
    cause = causes(known)[0]
    assert (cause.text, cause.kind) == ("rank 1 exited with code 9, as torchrun reports", "job")
    assert advise(known, causes(known)).action == "FAIL"


def test_the_cause_of_a_kill(tmp_path: Path) -> None:
    known = launcher_said(tmp_path, text("torchrun-kill"))
    cause = causes(known)[0]
    assert cause.text == "rank 1 was killed by SIGKILL, as torchrun reports"
    assert advise(known, causes(known)).action == "RETRY_HERE"


def test_the_kernel_killed_the_worker(tmp_path: Path) -> None:
    line = "Memory cgroup out of memory: Killed process 32735 (python)"
    known = launcher_said(tmp_path, text("torchrun-kill"), happenings=(happening("node.event", line, code="OOM_KILL"),))
    cause = causes(known)[0]
    assert (cause.kind, cause.confidence) == ("memory", "high") and "the kernel killed rank 1" in cause.text
    assert advise(known, causes(known)).action == "FAIL"


def test_the_cause_of_an_exception_is_the_workers(tmp_path: Path) -> None:
    """The launcher's own traceback is none."""
    cause = causes(launcher_said(tmp_path, text("torchrun-record")))[0]
    assert cause.sign is not None
    assert (cause.signature, cause.sign.hit.worker) == ("python-exception", 1)
    assert cause.sign.hit.line == "ValueError: bad shape (3, 4)"
    assert cause.text.startswith("rank 1 exited with code 1: ")


def test_a_known_error_of_a_worker(tmp_path: Path) -> None:
    said = b"[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n"
    known = launcher_said(tmp_path, said + text("torchrun-code"))
    cause = causes(known)[0]
    assert (cause.signature, cause.kind) == ("cuda-out-of-memory", "memory")
    assert cause.text.startswith("rank 1 exited with code 9: the memory of a card was full")
    other = launcher_said(tmp_path, said.replace(b"rank1", b"rank2") + text("torchrun-code"))
    assert causes(other)[0].text.endswith("; torchrun reports that rank 1 failed first: exited with code 9")


def test_an_exception_of_a_survivor_does_not_explain_a_kill(tmp_path: Path) -> None:
    said = b'Traceback (most recent call last):\n  File "x.py", line 1, in <module>\nKeyError: 3\n'
    known = launcher_said(tmp_path, said + text("torchrun-kill"))
    assert causes(known)[0].text == "rank 1 was killed by SIGKILL, as torchrun reports"


def test_output_without_a_report(tmp_path: Path) -> None:
    known = launcher_said(tmp_path, b"Root Cause (first observed failure):\nnone\n")
    assert known.launched is None
    assert launched(launcher_said(tmp_path, text("torchrun-code"))).rank == 0


# --- mpirun -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "ending", "line"),
    [
        ("mpirun-code", "exited with code 9", "step 7: cannot go on"),
        ("mpirun-tag", "exited with code 9", "step 7: cannot go on"),
        ("mpirun-raise", "exited with code 1", "ValueError: bad shape (3, 4)"),
        ("mpirun-kill", "was killed by SIGKILL", "step 7: cannot go on"),
        ("mpirun-segv", "was killed by SIGSEGV", "step 7: cannot go on"),
        ("mpirun-handler", "was killed by SIGSEGV", "[n0:11358] Failing at address: 0x1"),
        ("mpirun-abort", "called MPI_Abort with code 7", "step 7: cannot go on"),
    ],
)
def test_a_worker_of_open_mpi(name: str, ending: str, line: str) -> None:
    found = report(name)
    (first,) = found.workers
    assert (first.launcher, first.rank, first.ending) == ("mpirun", 1, ending)
    words = launchers.last_words(text(name), found)
    assert words.lines[-1] == line and words.whose == ("the worker" if name == "mpirun-tag" else "all workers")


@pytest.mark.parametrize(("name", "program"), [("mpirun-start", "/nonexistent"), ("mpirun-find", "nosuchprog")])
def test_a_worker_that_open_mpi_cannot_start(tmp_path: Path, name: str, program: str) -> None:
    first = report(name).first
    assert (first.rank, first.host, first.code) == (0, "n0", None)
    cause = causes(launcher_said(tmp_path, text(name), 132))[0]
    assert f"rank 0 could not be started: {program} cannot be found" in cause.text


def test_the_process_that_open_mpis_handler_names() -> None:
    assert report("mpirun-handler").first.pid == 11358


#: As Open MPI 5 (PRRTE), Hydra of MPICH and of Intel MPI write it.
PRRTE_CODE = b"""--------------------------------------------------------------------------
prterun detected that one or more processes exited with non-zero status,
thus causing the job to be terminated. The first process to do so was:

   Process name: [prterun-gpu013-1009179@1,3]
   Exit code:    1
--------------------------------------------------------------------------
"""
PRRTE_SIGNAL = b"""--------------------------------------------------------------------------
prterun noticed that process rank 2 with PID 1617008 on node cpu155 exited on
signal 4 (Illegal instruction).
--------------------------------------------------------------------------
"""
PRRTE_ABORT = b"""--------------------------------------------------------------------------
MPI_ABORT was invoked on rank 5 in communicator MPI_COMM_WORLD
  Proc: [[21087,1],5]
  Errorcode: 3

NOTE: invoking MPI_ABORT causes Open MPI to kill all MPI processes.
--------------------------------------------------------------------------
"""
BORDER = b"=" * 83 + b"\n"
BAD = b"=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n"
MPICH = (
    BORDER + BAD + b"=   PID 3714 RUNNING AT n7\n=   EXIT CODE: 139\n=   CLEANING UP REMAINING PROCESSES\n"
    b"=   YOU CAN IGNORE THE BELOW CLEANUP MESSAGES\n" + BORDER +
    b"YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Segmentation fault (signal 11)\n"
    b"This typically refers to a problem with your application.\nPlease see the FAQ page for debugging suggestions\n"
)  # fmt: skip
MPICH_CODE = BORDER + BAD + b"=   PID 3714 RUNNING AT n7\n=   EXIT CODE: 9\n" + BORDER
INTEL = b"\n".join(
    BORDER + BAD + f"=   RANK {rank} PID {5490 + rank} RUNNING AT gn59\n=   KILLED BY SIGNAL: {how}\n".encode() + BORDER
    for rank, how in ((0, "9 (Killed)"), (1, "11 (Segmentation fault)"), (2, "9 (Killed)"))
)
MPICH_ABORT = b"Abort(7) on node 1 (rank 1 in comm 0): application called MPI_Abort(MPI_COMM_WORLD, 7) - process 1\n"


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (PRRTE_CODE, (3, None, "", "exited with code 1")),
        (PRRTE_SIGNAL, (2, 1617008, "cpu155", "was killed by SIGILL")),
        (PRRTE_ABORT, (5, None, "", "called MPI_Abort with code 3")),
        (MPICH, (None, 3714, "n7", "was killed by SIGSEGV")),
        (MPICH_CODE, (None, 3714, "n7", "exited with code 9")),
        (INTEL, (1, 5491, "gn59", "was killed by SIGSEGV")),
        (MPICH_ABORT, (1, None, "", "called MPI_Abort with code 7")),
    ],
)
def test_other_mpis(output: bytes, expected: tuple[int | None, int | None, str, str]) -> None:
    found = launchers.read(b"step 7\n" + output)
    assert found is not None
    first = found.first
    assert (first.rank, first.pid, first.host, first.ending) == expected
    assert launchers.last_words(b"step 7\n" + output, found).lines == ("step 7",)


def test_the_worker_that_hydra_does_not_name(tmp_path: Path) -> None:
    known = launcher_said(tmp_path, MPICH_CODE, 9)
    assert causes(known)[0].text == "a worker (pid 3714) exited with code 9, as mpirun reports"
