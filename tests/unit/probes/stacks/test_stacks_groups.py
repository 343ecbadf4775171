"""Which stacks are equal, and what is said of those that are: no process is needed for that."""

from hypothesis import given
from hypothesis import strategies as st

from muster.probes.stacks import ProcessStacks, PythonThread, Task, grouped, normal
from muster.probes.stacks.groups import KERNEL, MAX_CHARACTERS, MAX_LINES, PYTHON, WCHAN

FRAMES = st.lists(st.sampled_from(["a (a.py:1)", "a (a.py:2)", "b (b.py:1)", "c (c.py:9)"]), max_size=6)


def thread(*frames: str, tid: int = 0, name: str = "MainThread", active: bool = False) -> PythonThread:
    return PythonThread(tid, name, active, frames, frames)


def process(
    rank: int, *threads: PythonThread, state: str = "S", kernel: tuple[str, ...] = (), wchan: str = "", pid: int = 0
) -> ProcessStacks:
    pid = pid or 100 + rank
    return ProcessStacks(rank, pid, 1, "python", state, 1, (Task(pid, "python", state, wchan, kernel),), threads)


def ranks(*processes: ProcessStacks) -> list[list[int]]:
    return [[owner.rank for owner in group.owners] for group in grouped(processes)]


# --- equal stacks -----------------------------------------------------------------------------------------------------


def test_the_odd_one_out_comes_first():
    wait, data = thread("all_reduce (dist.py:7)", "train (t.py:3)"), thread("read (data.py:1)", "train (t.py:2)")
    found = [process(rank, data if rank == 5 else wait) for rank in (7, 6, 5, 4, 3, 2, 1, 0)]
    assert ranks(*found) == [[5], [0, 1, 2, 3, 4, 6, 7]]
    assert grouped(found)[0].lines[0] == "read (data.py:1)"


def test_another_line_is_another_place():
    assert ranks(process(0, thread("f (a.py:1)")), process(1, thread("f (a.py:2)"))) == [[0], [1]]


def test_stopped_and_stuck_threads_are_apart_from_waiting_ones_in_the_same_frame():
    same = thread("f (a.py:1)")
    states = {0: "S", 1: "S", 2: "T", 3: "S", 4: "D", 5: "R"}
    assert ranks(*(process(rank, same, state=state) for rank, state in states.items())) == [[2], [4], [0, 1, 3, 5]]


def test_the_kernel_tells_of_a_stuck_process_where_it_is():
    found = process(0, thread("f (a.py:1)"), state="D", kernel=("nfs_wait", "nfs_read"), wchan="nfs_wait")
    (group,) = grouped([found])
    assert group.source == PYTHON
    assert group.lines == (
        *("f (a.py:1)", "", "waits in the kernel and cannot be killed (D) in nfs_wait:"),
        *("    nfs_wait", "    nfs_read"),
    )


def test_a_program_without_python_is_described_by_the_kernel():
    a = process(0, kernel=("futex_do_wait", "do_futex"), wchan="futex_do_wait")
    b = process(1, kernel=("futex_do_wait", "do_futex"), wchan="futex_do_wait")
    c = process(2, wchan="pipe_read")
    found = grouped([a, b, c])
    assert [(group.source, len(group.owners)) for group in found] == [(WCHAN, 1), (KERNEL, 2)]
    assert found[0].lines == ("waits in pipe_read",)
    assert found[1].lines == ("futex_do_wait", "do_futex")


def test_one_of_which_nothing_is_known_says_why():
    (group,) = grouped([ProcessStacks(3, 9, 1, trouble="reading its files in /proc hangs")])
    assert (group.source, group.lines) == (WCHAN, ("reading its files in /proc hangs",))


def test_groups_of_a_size_stand_in_the_order_of_what_they_tell():
    stopped, python, c = process(3, state="T"), process(2, thread("f (a.py:1)")), process(1, wchan="pipe_read")
    assert ranks(c, python, stopped) == [[3], [2], [1]]


# --- the thread that tells ------------------------------------------------------------------------------------------


JOIN = ("Thread._wait_for_tstate_lock (threading.py:1139)", "Thread.join (threading.py:1119)", "<module> (t.py:9)")
POOL = ("wait (threading.py:327)", "get (queue.py:171)", "_worker (concurrent/futures/thread.py:81)")


def test_a_main_thread_that_joins_another_is_recognized_by_that():
    train = thread("step (t.py:3)", "Thread.run (threading.py:982)", tid=7, name="train")
    found = process(0, thread(*JOIN, tid=100), thread(*POOL, tid=5, name="pool_0"), train)
    (group,) = grouped([found])
    assert group.lines[0] == "step (t.py:3)"
    assert "of thread 'train', for which the main thread waits" in group.lines
    assert "thread 'MainThread':" in group.lines


def test_the_main_thread_is_known_by_its_number_then_by_its_name():
    other, main = thread("g (b.py:1)", tid=7, name="MainThread"), thread("f (a.py:1)", tid=100, name="renamed")
    assert grouped([process(0, other, main)])[0].lines[0] == "f (a.py:1)"
    other, main = thread("g (b.py:1)", name="pump"), thread("f (a.py:1)")
    assert grouped([process(0, other, main)])[0].lines[0] == "f (a.py:1)"


def test_other_threads_do_not_part_ranks_at_the_same_place():
    def one(rank: int, other: str) -> ProcessStacks:
        return process(
            rank,
            thread("f (a.py:1)", tid=100 + rank),
            thread("read (io.py:2)", tid=8, name="reader"),
            thread("read (io.py:2)", tid=9, name="reader-2"),
            thread(other, tid=7, name="beat"),
        )

    (group,) = grouped([one(0, "beat (b.py:1)"), one(1, "beat (b.py:2)")])
    assert group.lines == (
        *("f (a.py:1)", "", "thread 'reader', and 1 more like it:", "    read (io.py:2)"),
        *("", "2 other Python threads differ between these processes: show one rank with --rank"),
    )


def test_threads_without_python_are_counted():
    tasks = (
        Task(100, "python", "S", "futex_do_wait"),
        *(Task(200 + i, f"pt_worker_{i}", "S", "futex_do_wait") for i in range(12)),
        Task(300, "nccl", "D", "uvm_ioctl", ("uvm_ioctl [nvidia_uvm]", "ioctl")),
    )
    found = ProcessStacks(0, 100, 1, "python", "S", 20, tasks, (thread("f (a.py:1)", tid=100),))
    assert grouped([found])[0].lines[1:] == (
        *("", "other threads:", "    1 x nccl D uvm_ioctl [nvidia_uvm] < ioctl"),
        *("    6 x (not looked at)", "    12 x pt_worker_* S futex_do_wait"),
    )


# --- the form in which they are equal -------------------------------------------------------------------------------


def test_addresses_and_the_own_pid_are_no_difference():
    one = normal.frame("f (/tmp/run-4711/gen_0x7f12ab34cd00.py:4711)", 4711)
    assert one == normal.frame("f (/tmp/run-99/gen_0x7f0000004711.py:4711)", 99) == "f (/tmp/run-PID/gen_0x*.py:4711)"


def test_a_thread_that_runs_is_known_by_what_it_does_not_leave():
    looks = [
        ("hash (h.py:9)", "spin (t.py:5)", "main (t.py:8)"),
        ("spin (t.py:6)", "main (t.py:8)"),
        ("spin (t.py:5)", "main (t.py:8)"),
    ]
    assert normal.held(looks) == ("spin (t.py)", "main (t.py:8)")
    assert normal.held([("b (b.py:1)", "a (a.py:1)"), ("c (c.py:1)", "a (a.py:1)")]) == ("a (a.py)",)
    assert normal.held([("a (a.py:1)",), ("b (b.py:1)",)]) == ()


def test_ranks_that_spin_at_the_same_place_are_one_group():
    def spinning(rank: int, *looks: tuple[str, ...]) -> ProcessStacks:
        return process(rank, PythonThread(100 + rank, "MainThread", True, looks[0], normal.held(looks)))

    one = spinning(0, ("spin (t.py:5)", "main (t.py:8)"), ("spin (t.py:6)", "main (t.py:8)"))
    other = spinning(1, ("hash (h.py:2)", "spin (t.py:4)", "main (t.py:8)"), ("spin (t.py:5)", "main (t.py:8)"))
    (group,) = grouped([one, other])
    assert group.lines == ("spin (t.py)", "main (t.py:8)")
    (alone,) = grouped([other])
    assert alone.lines == (
        *("hash (h.py:2)", "(above: it runs, and was elsewhere at another look)"),
        *("spin (t.py)", "main (t.py:8)"),
    )


@given(st.lists(FRAMES, min_size=1, max_size=4))
def test_what_is_held_is_in_every_look(looks: list[list[str]]):
    held = normal.held(looks)
    for look in looks:
        there = [normal.without_line(frame) for frame in look]
        assert [normal.without_line(frame) for frame in held] == there[len(there) - len(held) :]


@given(FRAMES)
def test_a_thread_that_stays_holds_all_its_frames(frames: list[str]):
    assert normal.held([frames, frames, frames]) == tuple(frames)


def test_a_text_is_bounded():
    deep = thread(*(f"f{i} ({'x' * 200}.py:{i})" for i in range(3000)))
    (group,) = grouped([process(0, deep)])
    assert len(group.lines) <= MAX_LINES + 1
    assert sum(len(line) for line in group.lines) <= MAX_CHARACTERS + 300
    assert group.lines[-1].endswith("more lines)")
