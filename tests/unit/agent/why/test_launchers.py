"""Reports of launchers, as real ones wrote them (tests/fixtures/launchers/), become the failure of a worker."""

import os
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from muster.agent.logs.log_reading import RankLogFile
from muster.agent.why import launchers, log_signs
from muster.agent.why.causes.advice import advise
from muster.agent.why.causes.probable_cause import causes
from muster.agent.why.facts import Facts
from muster.agent.why.launchers import LauncherReport
from muster.agent.why.log_signs import Launched, Searched, Wanted
from muster.agent.why.signatures import builtin
from muster.agent.why.worker_logs import Place
from muster.probes.kernel.kmsg import Crash
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


def launcher_said(
    tmp_path: Path, output: bytes, code: int = 1, place: Place | None = None, pid: int | None = None, **more: object
) -> Facts:
    """Of a job whose one rank is a launcher that wrote this; `place`: where it ran."""
    log = RankLogFile(0, tmp_path / "x-proc-rank-0-device-0.txt", tmp_path / "x-proc-rank-0-device-0.idx")
    log.path.write_bytes(output)
    searched = log_signs.search_file(Wanted(0, log, place=place, pid=pid), builtin())
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
    # Lines of other workers are not its, if some may be.
    of_others = b"it may be rank 1\n[rank2]: Connection closed by peer\n" + text("torchrun-code").split(b"\n", 1)[1]
    again = launchers.read(of_others)
    assert again is not None
    assert launchers.last_words(of_others, again).lines == ("it may be rank 1",)


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


def test_a_worker_that_exited_with_a_code_was_not_killed(tmp_path: Path) -> None:
    line = "Memory cgroup out of memory: Killed process 32735 (python)"
    known = launcher_said(tmp_path, text("torchrun-code"), happenings=(happening("node.event", line, code="OOM_KILL"),))
    assert [cause.text for cause in causes(known)][:1] == ["rank 1 exited with code 9, as torchrun reports"]
    assert causes(known)[1].kind == "memory"


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


# --- msrun and the workers' own logs ----------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path) -> Place:
    (tmp_path / "LOGDIR").mkdir()
    return Place(os.getuid(), str(tmp_path), 1000.0)


def worker_log(tmp_path: Path, rank: int, text: str) -> Path:
    path = tmp_path / "LOGDIR" / f"worker_{rank}.log"
    path.write_text(text)
    return path


@pytest.mark.parametrize(("name", "code"), [("msrun-code", 9), ("msrun-raise", 1), ("msrun-kill", -9)])
def test_a_worker_of_msrun(name: str, code: int) -> None:
    found = report(name)
    (first,) = found.workers
    assert (first.launcher, first.rank, first.code, found.log_dir) == ("msrun", None, code, "LOGDIR")
    assert not any("process_entity" in line for line in launchers.last_words(text(name), found).lines)


def test_a_worker_of_msrun_before_it_told_codes() -> None:
    old = text("msrun-code").replace(b" Error code: 9.", b"")
    found = launchers.read(old)
    assert found is not None and (found.first.pid, found.first.ending) == (22372, "failed")


def test_the_rank_is_that_whose_log_names_the_process(tmp_path: Path, place: Place) -> None:
    for number in range(3):
        said = f"[WARNING] DISTRIBUTED({22371 + number},7f0d,python):2026-11-23 [x.cc:1] up\nstep {number}\n"
        worker_log(tmp_path, number, said)
    known = launcher_said(tmp_path, text("msrun-code"), place=place)
    assert launched(known).workers[0].rank == 1
    assert causes(known)[0].text == "rank 1 exited with code 9, as msrun reports"
    assert launched(known).words.lines[-1] == "step 1"
    assert launched(known).words.whose == str(tmp_path / "LOGDIR" / "worker_1.log")


def test_the_rank_is_that_which_alone_tells_of_an_error(tmp_path: Path, place: Place) -> None:
    worker_log(tmp_path, 0, "step 7\n")
    said = 'Traceback (most recent call last):\n  File "w.py", line 9, in <module>\nRuntimeError: bad shape (3, 4)\n'
    path = worker_log(tmp_path, 2, said)
    known = launcher_said(tmp_path, text("msrun-raise"), place=place)
    cause = causes(known)[0]
    assert cause.text.startswith("rank 2 exited with code 1: the program raised RuntimeError: bad shape")
    assert cause.sign is not None and (cause.sign.hit.worker, cause.sign.file) == (2, str(path))


def test_the_rank_is_that_which_was_seen_as_this_process() -> None:
    found = report("msrun-code").naming({22372: 2, 22371: 1})
    assert (found.first.rank, found.first.ending) == (2, "exited with code 9")
    torchrun = report("torchrun-code")
    assert torchrun.naming({32667: 5}) == torchrun  # the launcher itself tells it


def test_no_rank_is_guessed(tmp_path: Path, place: Place) -> None:
    for number in range(3):
        worker_log(tmp_path, number, "step 7\n")
    known = launcher_said(tmp_path, text("msrun-kill"), place=place)
    assert causes(known)[0].text == "a worker (pid 22487) was killed by SIGKILL, as msrun reports"


def test_only_plain_files_of_the_jobs_user_are_read(tmp_path: Path, place: Place) -> None:
    secret = tmp_path / "secret"
    secret.write_text("OSError: [Errno 28] No space left on device\n")
    folder = tmp_path / "LOGDIR"
    (folder / "worker_0.log").symlink_to(secret)
    os.link(secret, folder / "worker_1.log")
    os.mkfifo(folder / "worker_2.log")
    (folder / "worker_3.log").mkdir()
    known = launcher_said(tmp_path, text("msrun-code"), place=place)
    assert not any(sign.file for sign in known.signs)
    worker_log(tmp_path, 4, secret.read_text())
    foreign = Place(place.uid + 1, place.folder, place.began)
    assert not any(sign.file for sign in launcher_said(tmp_path, text("msrun-code"), place=foreign).signs)
    assert any(sign.file for sign in launcher_said(tmp_path, text("msrun-code"), place=place).signs)


def test_logs_of_an_earlier_attempt_are_not_read(tmp_path: Path, place: Place) -> None:
    path = worker_log(tmp_path, 0, "OSError: [Errno 28] No space left on device\n")
    os.utime(path, (900.0, 900.0))
    assert not any(sign.file for sign in launcher_said(tmp_path, text("msrun-code"), place=place).signs)


def test_the_log_of_a_worker_of_torchrun(tmp_path: Path, place: Place) -> None:
    for run, local, said in (("a_1", 1, "of an earlier run"), ("b_2", 0, "of another"), ("b_2", 1, "it broke")):
        folder = tmp_path / "logs" / run / "attempt_0" / str(local)
        folder.mkdir(parents=True)
        (folder / "stderr.log").write_text(f"torch.OutOfMemoryError: CUDA out of memory. Tried\n{said}\n")
        os.utime(folder, (2000.0 if run == "a_1" else 3000.0,) * 2)
    where = Place(place.uid, place.folder, place.began, ("logs",))
    known = launcher_said(tmp_path, text("torchrun-code"), place=where)
    assert launched(known).words.lines[-1] == "it broke"
    cause = causes(known)[0]
    assert cause.text.startswith("rank 1 exited with code 9: the memory of a card was full")
    assert cause.sign is not None and cause.sign.file.endswith("b_2/attempt_0/1/stderr.log")


def test_the_log_of_cann(tmp_path: Path, place: Place) -> None:
    said = "[ERROR] HCCL(4000,python):2026-11-23-17:08:21.9 [x.cc:1] EI0011: Failed to allocate memory\n"
    for folder, pid in (("own", 77), ("shared", 4000), ("shared", 4001)):
        path = tmp_path / folder / "debug" / "plog" / f"plog-{pid}_2026.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(said)
    shared = Place(place.uid, place.folder, place.began, (), (), (str(tmp_path / "shared"),))
    files = [sign.file for sign in launcher_said(tmp_path, b"step\n", place=shared, pid=4000).signs]
    assert files == [str(tmp_path / "shared/debug/plog/plog-4000_2026.log")]
    own = Place(place.uid, place.folder, place.began, (), (str(tmp_path / "own"),))
    known = launcher_said(tmp_path, b"step\n", place=own, pid=4000)
    assert causes(known)[0].signature == "npu-out-of-memory"


def test_what_the_kernel_says_of_the_worker(tmp_path: Path) -> None:
    known = launcher_said(tmp_path, text("mpirun-handler"))
    line = "python3[11358]: segfault at 1 ip 00007f0c sp 00007ffc error 4 in libx.so[1,7f0c+1]"
    told = replace(known, crashes=(Crash(11358, "python3", known.zero, line),))
    cause = causes(told)[0]
    assert cause.text.startswith("rank 1 was killed by SIGSEGV: ") and f"the kernel log says: {line}" in cause.evidence


@pytest.mark.parametrize(
    ("output", "pids"),
    [
        (b"seg.sh: line 1:   685 Segmentation fault      python3 w2.py\n", (685,)),
        (b"bash: 29653 Segmentation fault      python3 -c x\n", (29653,)),
        (b"train.sh: line 12: 77 Aborted                 (core dumped) ./train\n", (77,)),
        (b"step: 77 done\nloss: 0.1\n", ()),
    ],
)
def test_processes_that_a_shell_names(output: bytes, pids: tuple[int, ...]) -> None:
    assert launchers.told_by_shell(output) == pids
