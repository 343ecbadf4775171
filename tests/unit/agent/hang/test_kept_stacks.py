"""Stacks on disk: few, whole, bounded, and readable after whatever happened to them."""

from pathlib import Path

import pytest

from muster.agent.hang import kept_stacks
from muster.agent.hang.kept_stacks import MAX_BYTES, MAX_KEPT, MAX_REQUESTED, JobStacks
from muster.probes.stacks import ProcessStacks, PythonThread, Task


def made(at: float, occasion: str = "request", processes: tuple[ProcessStacks, ...] = ()) -> JobStacks:
    return JobStacks(at, occasion, 2, processes, ("a note",))


def process(rank: int, tasks: int = 3, threads: int = 2, frames: int = 4) -> ProcessStacks:
    return ProcessStacks(
        *(rank, 100 + rank, 7, "python t.py", "S", tasks),
        tuple(
            Task(100 + rank + i, f"worker{i}", "S", "futex_do_wait", ("futex_do_wait", "x" * 50)) for i in range(tasks)
        ),
        tuple(
            PythonThread(100 + rank + i, f"t{i}", False, ("f (a.py:1)",) * frames, ("f (a.py:1)",) * frames)
            for i in range(threads)
        ),
    )


def test_what_was_kept_is_read_again(tmp_path: Path):
    first, second = made(1.5, "suspected hang", (process(0), process(1))), made(2.5)
    kept_stacks.write(tmp_path, first)
    path = kept_stacks.write(tmp_path, second)
    assert kept_stacks.read_all(tmp_path) == [first, second]
    assert (path.name, path.stat().st_mode & 0o777) == ("stacks-2.json", 0o600)


def test_asking_often_does_not_cost_what_was_taken_at_the_hang(tmp_path: Path):
    kept_stacks.write(tmp_path, made(1, "suspected hang"))
    kept_stacks.write(tmp_path, made(2, "hung"))
    for number in range(20):
        kept_stacks.write(tmp_path, made(10 + number))
    assert [found.at for found in kept_stacks.read_all(tmp_path)] == [1, 2, 27, 28, 29]
    assert MAX_REQUESTED == 3


def test_the_oldest_go_where_many_were_taken_by_themselves(tmp_path: Path):
    for number in range(2 * MAX_KEPT):
        kept_stacks.write(tmp_path, made(number, "suspected hang"))
    assert [found.at for found in kept_stacks.read_all(tmp_path)] == list(range(MAX_KEPT, 2 * MAX_KEPT))
    assert len(list(tmp_path.iterdir())) == MAX_KEPT


def test_what_is_damaged_or_strange_is_left_out(tmp_path: Path):
    kept_stacks.write(tmp_path, made(1, "hung"))
    (tmp_path / "stacks-2.json").write_bytes(b'{"at": 1, "occasion"')
    (tmp_path / "stacks-3.json").write_bytes(b"[]")
    (tmp_path / "stacks-x.json").write_bytes(b"{}")
    (tmp_path / "journal").write_bytes(b"")
    (tmp_path / "stacks-4.json").mkdir()
    assert [found.at for found in kept_stacks.read_all(tmp_path)] == [1]
    assert kept_stacks.write(tmp_path, made(5, "hung")).name == "stacks-5.json"
    assert [found.at for found in kept_stacks.read_all(tmp_path)] == [1, 5]


def test_a_job_that_was_deleted_gets_no_folder_again(tmp_path: Path):
    with pytest.raises(FileNotFoundError):
        kept_stacks.write(tmp_path / "gone", made(1))
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_left_where_it_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(path: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "rename", full)
    with pytest.raises(OSError, match="No space"):
        kept_stacks.write(tmp_path, made(1))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("most", [200_000, 60_000, 20_000, 3000])
def test_what_is_too_much_is_thinned_out_from_what_tells_least(tmp_path: Path, most: int):
    many = made(1, "hung", tuple(process(rank, tasks=40, threads=6) for rank in range(50)))
    data = kept_stacks.encoded(many, most)
    assert len(data) <= most
    (tmp_path / "stacks-1.json").write_bytes(data)
    (found,) = kept_stacks.read_all(tmp_path)
    assert found.processes[0].python[0].frames == ("f (a.py:1)",) * 4
    assert found.processes[0].main is not None
    if len(found.processes) < 50:
        assert f"{50 - len(found.processes)} of 50 processes left out" in found.notes[-1]


def test_a_file_is_bounded(tmp_path: Path):
    path = kept_stacks.write(tmp_path, made(1, "hung", tuple(process(rank, 500, 100, 100) for rank in range(256))))
    assert path.stat().st_size <= MAX_BYTES
