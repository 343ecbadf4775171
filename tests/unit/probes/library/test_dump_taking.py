"""New dumps of all ranks, asked for by their pipes."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import pytest

from muster.probes.kernel.process import read_stat
from muster.probes.library import DumpSource, LibraryVerdict, find_laggards, take_dumps

DUMPS = Path(__file__).parents[3] / "fixtures" / "flight_recorder"
LIMIT_S = 60.0


def source(rank: int, folder: Path, *, pipe: bool = True) -> DumpSource:
    """A rank of this process."""
    found = read_stat(os.getpid())
    assert found is not None
    name = str(folder / f"fr_{rank}.pipe") if pipe else ""
    return DumpSource(rank, os.getpid(), found.start, os.getuid(), (str(folder / f"dump_{rank}"),), name)


@contextmanager
def recorders(folder: Path, moments: tuple[str, ...], ranks: range = range(4)) -> Iterator[None]:
    """Ranks that write the next of their recorded dumps whenever their pipe is written."""

    def work(rank: int, pipe: int) -> None:
        for moment in moments:
            if not os.read(pipe, 128):
                break
            # A new file each time: two writes into one may fall into one tick of the file system's clock.
            (folder / f"new_{rank}").write_bytes((DUMPS / f"{moment}-{rank}").read_bytes())
            os.replace(folder / f"new_{rank}", folder / f"dump_{rank}")

    threads, pipes = [], []
    for rank in ranks:
        os.mkfifo(folder / f"fr_{rank}.pipe")
        pipes.append(os.open(folder / f"fr_{rank}.pipe", os.O_RDWR))  # its own end too: the reader waits for a byte
        threads.append(Thread(target=work, args=(rank, pipes[-1])))
        threads[-1].start()
    try:
        yield
    finally:
        for pipe in pipes:
            for _ in moments:
                os.write(pipe, b"1")
        for thread in threads:
            thread.join()
        for pipe in pipes:
            os.close(pipe)


async def test_two_takes_name_the_rank_that_did_not_come(tmp_path: Path) -> None:
    sources = [source(rank, tmp_path) for rank in range(4)]
    with recorders(tmp_path, ("hung", "later")):
        first = await take_dumps(sources, LIMIT_S)
        second = await take_dumps(sources, LIMIT_S)
    assert first.missing == {} and second.missing == {}
    found = find_laggards(first.dumps, second.dumps, range(4))
    assert (found.verdict, found.culprits) == (LibraryVerdict.ABSENT, (3,))


async def test_each_rank_without_a_dump_has_a_reason(tmp_path: Path) -> None:
    sources = [source(0, tmp_path), source(1, tmp_path, pipe=False), source(2, tmp_path)]
    with recorders(tmp_path, ("hung",), range(1)):
        taken = await take_dumps(sources, LIMIT_S)
    assert list(taken.dumps) == [0] and list(taken.missing) == [1, 2]
    assert "was not set when it started" in taken.missing[1] and "No such file" in taken.missing[2]


@pytest.mark.parametrize("deadline_s", [0.0, 0.3])
async def test_the_deadline(tmp_path: Path, deadline_s: float) -> None:
    with recorders(tmp_path, (), range(1)):
        taken = await take_dumps([source(0, tmp_path)], deadline_s)
    assert taken.dumps == {} and taken.missing[0]
