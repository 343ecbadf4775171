"""Where a process waits. The frames of PyTorch on gloo were seen in real jobs, without native frames."""

from dataclasses import asdict

import pytest

from muster.probes.stacks import ProcessStacks, PythonThread, Task
from muster.probes.stacks.rank_stacks import rank_stack
from muster.probes.waits import RankStack, WaitKind, place
from tests.corpus.stacked import RECORDED

USER = "step (train.py:30)"
REDUCE = ("all_reduce (torch/distributed/distributed_c10d.py:2501)", "wrapper (torch/distributed/c10d_logger.py:79)")


def process(*frames: str, state: str = "S", wchan: str = "", held: int | None = None, rank: int = 0) -> ProcessStacks:
    pid = 100 + rank
    thread = PythonThread(pid, "MainThread", False, frames, frames if held is None else frames[-held:])
    python = (thread,) if frames else ()
    return ProcessStacks(rank, pid, 1, "python", state, 1, (Task(pid, "python", state, wchan),), python)


@pytest.mark.parametrize(
    ("found", "kind", "text"),
    [
        (process(*REDUCE, USER, wchan="futex_do_wait"), WaitKind.COLLECTIVE, f"waits for other ranks in {USER}"),
        (
            process("_engine_run_backward (torch/autograd/graph.py:824)", "backward (torch/_tensor.py:581)", USER),
            WaitKind.COLLECTIVE,
            f"waits for other ranks in {USER}",
        ),
        (
            process(
                "_create_c10d_store (torch/distributed/rendezvous.py:189)",
                "init_process_group (torch/distributed/distributed_c10d.py:1710)",
                "main (train.py:5)",
                wchan="hrtimer_nanosleep",
            ),
            WaitKind.RENDEZVOUS,
            "waits for other ranks to join in main (train.py:5)",
        ),
        (
            process(
                "select (selectors.py:416)",
                "wait (multiprocessing/connection.py:930)",
                "get (multiprocessing/queues.py:113)",
                "_try_get_data (torch/utils/data/dataloader.py:1131)",
                USER,
                wchan="poll_schedule_timeout",
            ),
            WaitKind.LOADER,
            f"waits for data in {USER}",
        ),
        (
            process("guilty_lock (train.py:11)", wchan="futex_do_wait"),
            WaitKind.LOCK,
            "waits in guilty_lock (train.py:11)",
        ),
        (
            process("wait (threading.py:327)", "get (queue.py:171)", USER, wchan="futex_wait_queue"),
            WaitKind.LOCK,
            f"waits in {USER}",
        ),
        (process(USER, wchan="hrtimer_nanosleep"), WaitKind.SLEEP, f"sleeps in {USER}"),
        (process(USER, wchan="poll_schedule_timeout"), WaitKind.SOCKET, f"waits for a socket or pipe in {USER}"),
        (process(USER, wchan="unix_stream_read_generic"), WaitKind.SOCKET, f"waits for a socket or pipe in {USER}"),
        (
            process("_try_wait (subprocess.py:2013)", "wait (subprocess.py:1264)", USER, wchan="do_wait"),
            WaitKind.CHILD,
            f"waits for a child process in {USER}",
        ),
        (
            process("readline (<frozen codecs>:1)", USER, wchan="n_tty_read"),
            WaitKind.PROMPT,
            f"waits at a prompt in {USER}",
        ),
        (process(USER, state="R"), WaitKind.RUNS, f"runs in {USER}"),
        (
            process("_batch_encode_plus (transformers/tokenization_utils_fast.py:553)", USER, state="R"),
            WaitKind.COMPUTES,
            "computes in _batch_encode_plus (transformers/tokenization_utils_fast.py:553)",
        ),
        (
            process("inner (train.py:9)", "validate_epoch (train.py:80)", state="R"),
            WaitKind.COMPUTES,
            "computes in inner (train.py:9)",
        ),
        (process("inner (train.py:9)", USER, held=1), WaitKind.RUNS, f"runs in {USER}"),
        (process(*REDUCE, USER, state="T"), WaitKind.STOPPED, f"is stopped by a signal (T) in {USER}"),
        (process(*REDUCE, USER, state="t"), WaitKind.TRACED, f"is held by a debugger (t) in {USER}"),
        (process(USER, state="D", wchan="nfs_wait"), WaitKind.BLOCKED, f"waits in the kernel (D) in {USER}"),
        (process(wchan="futex_do_wait"), WaitKind.LOCK, "waits in futex_do_wait"),
        (process(), WaitKind.UNKNOWN, "waits"),
        # The agent of torchrun, below which everything else runs, says nothing.
        (
            process(
                USER, "wrapper (torch/distributed/elastic/multiprocessing/errors/__init__.py:357)", wchan="futex_wait"
            ),
            WaitKind.LOCK,
            f"waits in {USER}",
        ),
    ],
)
def test_what_a_process_waits_for(found: ProcessStacks, kind: WaitKind, text: str):
    where = place(rank_stack(found))
    assert (where.kind, where.text) == (kind, text)


def test_of_a_thread_that_is_joined_its_own_wait_counts() -> None:
    join, recv = "Thread.join (threading.py:1112)", "fetch (train.py:31)"
    threads = tuple(
        PythonThread(tid, name, False, frames, frames)
        for tid, name, frames in (
            (100, "MainThread", (join, USER)),
            (101, "Thread-1", (recv, "run (threading.py:982)")),
        )
    )
    tasks = (Task(100, "python", "S", "futex_do_wait"), Task(101, "python", "S", "unix_stream_read_generic"))
    found = place(rank_stack(ProcessStacks(0, 100, 1, "python", "S", 2, tasks, threads)))
    assert (found.kind, found.line) == (WaitKind.SOCKET, recv)


@pytest.mark.parametrize(
    ("frame", "helped"),
    [("fetch (train.py:31)", True), ("wait (threading.py:327)", False), ("get (queue.py:171)", False)],
)
def test_another_thread_may_be_the_one_that_is_waited_for(frame: str, helped: bool) -> None:
    threads = tuple(
        PythonThread(tid, name, False, frames, frames)
        for tid, name, frames in ((100, "MainThread", (USER,)), (101, "Thread-1", (frame, "work (train.py:20)")))
    )
    tasks = tuple(Task(tid, "python", "S", "futex_do_wait") for tid in (100, 101))
    assert rank_stack(ProcessStacks(0, 100, 1, "python", "S", 2, tasks, threads)).helped is helped


@pytest.mark.parametrize(
    ("outer", "kind"),
    [
        ("save (torch/serialization.py:850)", WaitKind.CHECKPOINT),
        ("fetch (torch/utils/data/_utils/fetch.py:52)", WaitKind.LOADER),
    ],
)
def test_what_a_program_does_below_a_save_or_a_loader_is_part_of_that(outer: str, kind: WaitKind) -> None:
    assert place(rank_stack(process("write (train.py:60)", outer, USER, wchan="hrtimer_nanosleep"))).kind is kind


@pytest.mark.parametrize(
    "frames",
    [
        # As PyTorch 2.13 shows them where a compiler of another process was killed: its lock file stays.
        (
            "wait (torch/utils/file_baton.py:50)",
            "_jit_compile (torch/utils/cpp_extension.py:2400)",
            "load (torch/utils/cpp_extension.py:1927)",
        ),
        ("acquire (filelock/_api.py:332)", "__enter__ (filelock/_api.py:376)"),
    ],
)
def test_a_lock_file_is_not_what_is_done_below_it(frames: tuple[str, ...]) -> None:
    found = place(rank_stack(process(*frames, USER, wchan="hrtimer_nanosleep")))
    assert found.kind is WaitKind.LOCK_FILE and found.line == USER
    assert found.text.startswith("waits for a lock file") and found.plural.startswith("wait for a lock file")


@pytest.mark.parametrize("frame", ["result (concurrent/futures/_base.py:451)", "get (multiprocessing/pool.py:768)"])
def test_workers_of_its_own_are_no_lock(frame: str) -> None:
    found = process("wait (threading.py:327)", frame, USER, wchan="futex_do_wait")
    assert place(rank_stack(found)).kind is WaitKind.WORKERS


@pytest.mark.parametrize(
    ("life", "kind"),
    [
        ("mindspore-reduces", WaitKind.COLLECTIVE),
        ("mindspore-graph", WaitKind.COLLECTIVE),
        ("mindspore-guilty_lock", WaitKind.LOCK),
        ("mindspore-guilty_sleep", WaitKind.SLEEP),
        ("mindspore-loads", WaitKind.LOADER),
        ("mindspore-compiles", WaitKind.COMPILER),
        ("torch-reduce", WaitKind.COLLECTIVE),
        ("torch-evaluates", WaitKind.COMPUTES),
        ("torch-one_big_call", WaitKind.RUNS),
    ],
)
def test_recorded_stacks_of_real_processes(life: str, kind: WaitKind) -> None:
    for stack in RECORDED[life]:
        assert place(RankStack(**asdict(stack) | {"rank": 0, "pid": 1})).kind is kind
