"""Where dumps are, whose they must be, how one is asked for and waited for."""

import os
from pathlib import Path

import anyio
import pytest

from muster.probes.kernel.process import read_stat
from muster.probes.library import (
    DumpBeingWritten,
    DumpSource,
    DumpUnreadable,
    ask_for_dump,
    dump_source,
    dump_stamps,
    fresh_dump,
    latest_dump,
)
from muster.probes.library.job_files import open_within

DUMPS = Path(__file__).parents[3] / "fixtures" / "flight_recorder"
HUNG, OTHER = (DUMPS / "hung-2").read_bytes(), (DUMPS / "hung-3").read_bytes()
STAT = Path("/proc/self/stat").read_bytes()
LIMIT_S = 60.0


def source(*files: Path, pipe: Path | str = "", uid: int | None = None, start: int | None = None) -> DumpSource:
    """Of this process."""
    found = read_stat(os.getpid())
    assert found is not None
    uid, start = os.getuid() if uid is None else uid, found.start if start is None else start
    return DumpSource(2, os.getpid(), start, uid, tuple(map(str, files)), str(pipe))


# --- places -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "files", "pipe"),
    [
        ([], ("/tmp/nccl_trace_rank_3",), ""),
        ([b"HOME=/h"], ("/h/.cache/torch/comm_lib_trace_rank_3", "/tmp/nccl_trace_rank_3"), ""),
        ([b"HOME=/h", b"XDG_CACHE_HOME=/c"], ("/c/torch/comm_lib_trace_rank_3", "/tmp/nccl_trace_rank_3"), ""),
        ([b"TORCH_NCCL_DEBUG_INFO_TEMP_FILE=/d/old_", b"HOME=/h"], ("/d/old_3",), ""),
        ([b"TORCH_NCCL_DEBUG_INFO_TEMP_FILE=/o_", b"TORCH_FR_DUMP_TEMP_FILE=/n_"], ("/n_3", "/o_3"), ""),
        ([b"TORCH_FR_DUMP_TEMP_FILE=relative_"], (), ""),
        ([b"TORCH_FR_DUMP_TEMP_FILE=/n_", b"TORCH_NCCL_DEBUG_INFO_PIPE_FILE=/p/fr_"], ("/n_3",), "/p/fr_3.pipe"),
        ([b"TORCH_FR_DUMP_TEMP_FILE=/n_", b"TORCH_FR_DEBUG_INFO_PIPE_FILE=/x_"], ("/n_3",), "/x_3.pipe"),
        ([b"TORCH_HCCL_DEBUG_INFO_TEMP_FILE=/n_", b"TORCH_HCCL_DEBUG_INFO_PIPE_FILE=/x_"], ("/n_3",), "/x_3.pipe"),
    ],
)
def test_the_environment_says_where(environ: list[bytes], files: tuple[str, ...], pipe: str) -> None:
    assert dump_source(3, 7, 8, 9, [*environ, b"", b"no pair"]) == DumpSource(3, 7, 8, 9, files, pipe)


# --- files ------------------------------------------------------------------------------------------------------------


async def test_the_latest_dump(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_bytes(OTHER)
    new.write_bytes(HUNG)
    written = new.stat().st_mtime_ns
    os.utime(old, ns=(written, written - 1_000_000_000))
    assert "0" in (await latest_dump(source(old, new, tmp_path / "none"))).groups
    assert (await latest_dump(source(old, new))).groups["0"].enqueued == 2
    os.utime(old, ns=(written, written + 1_000_000_000))
    assert (await latest_dump(source(old, new))).groups["0"].enqueued == 1


async def test_a_dump_that_is_being_written(tmp_path: Path) -> None:
    (tmp_path / "dump").write_bytes(HUNG[:700])
    with pytest.raises(DumpBeingWritten):
        await latest_dump(source(tmp_path / "dump"))


async def test_files_that_are_not_read(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.write_bytes(HUNG)
    (tmp_path / "link").symlink_to(real)
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "large").touch()
    os.truncate(tmp_path / "large", (64 << 20) + 1)
    (tmp_path / "before").write_bytes(HUNG)
    os.utime(tmp_path / "before", (1, 1))
    for name, said in {
        "link": "not a regular file",
        "folder": "not a regular file",
        "fifo": "not a regular file",
        "large": "larger than 64 MiB",
        "before": "older than the rank's process",
        "none": "No such file",
    }.items():
        with pytest.raises(DumpUnreadable, match=said):
            await latest_dump(source(tmp_path / name))
    with pytest.raises(DumpUnreadable, match=f"belongs to uid {os.getuid()} instead of {os.getuid() + 1}"):
        await latest_dump(source(real, uid=os.getuid() + 1))
    with pytest.raises(DumpUnreadable, match="no path"):
        await latest_dump(source())


async def test_a_process_that_has_ended(tmp_path: Path) -> None:
    (tmp_path / "dump").write_bytes(HUNG)
    with pytest.raises(DumpUnreadable, match="has ended"):
        await latest_dump(source(tmp_path / "dump", start=1))
    with pytest.raises(DumpUnreadable):
        await latest_dump(source(tmp_path / "dump"), proc=tmp_path)


async def test_a_fresh_dump_is_waited_for(tmp_path: Path) -> None:
    file = tmp_path / "dump"
    file.write_bytes(OTHER)
    asked = source(file, tmp_path / "none")
    before = await dump_stamps(asked)
    assert set(before) == {str(file)}
    with pytest.raises(DumpUnreadable, match=r"wrote no dump within 0\.5 s"):
        await fresh_dump(asked, before, 0.5)
    found = []

    async def wait() -> None:
        found.append(await fresh_dump(asked, before, LIMIT_S))

    async with anyio.create_task_group() as group:
        group.start_soon(wait)
        file.write_bytes(HUNG[:500])
        await anyio.lowlevel.checkpoint()
        file.write_bytes(HUNG)
    assert found[0].groups["0"].enqueued == 2


async def test_one_that_is_none_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "dump").write_bytes(b"cos\nsystem\n.")
    with pytest.raises(DumpUnreadable, match="opcode GLOBAL"):
        await fresh_dump(source(tmp_path / "dump"), {}, LIMIT_S)


# --- the job's root ---------------------------------------------------------------------------------------------------


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A job's root, in which links lead about; beside it a file that is not the job's."""
    (tmp_path / "secret").write_text("secret")
    folder = tmp_path / "root"
    (folder / "data/inner").mkdir(parents=True)
    (folder / "data/inner/file").write_text("ours")
    (folder / "secret").write_text("ours")
    (folder / "absolute").symlink_to("/data/inner")
    (folder / "data/relative").symlink_to("inner")
    (folder / "up").symlink_to("../..")
    (folder / "out").symlink_to(tmp_path)
    (folder / "loop").symlink_to("loop")
    (folder / "last").symlink_to("/data/inner/file")
    return folder


def content(root: Path, path: str) -> str:
    folder = os.open(root, os.O_PATH | os.O_DIRECTORY)
    try:
        found = open_within(folder, path)
        try:
            return os.readlink(f"/proc/self/fd/{found}") + " " + Path(f"/proc/self/fd/{found}").read_text()
        finally:
            os.close(found)
    finally:
        os.close(folder)


@pytest.mark.parametrize(
    "path",
    [
        "/data/inner/file",
        "absolute/file",
        "/data/relative//./file",
        "/data/../absolute/../inner/file",
        "secret",
        "/../../secret",
        "/up/secret",
        "/up/up/../secret",
    ],
)
def test_paths_stay_within_the_root(root: Path, path: str) -> None:
    where, text = content(root, path).split()
    assert text == "ours" and Path(where).is_relative_to(root)


@pytest.mark.parametrize("path", ["/out/secret", "/loop/secret", "/secret/x", "/", "..", "/a" * 5000, "data/" * 100])
def test_paths_that_lead_nowhere(root: Path, path: str) -> None:
    with pytest.raises(OSError):
        content(root, path)


def test_the_last_link_is_not_followed(root: Path) -> None:
    with pytest.raises(OSError):
        content(root, "/last")


async def test_a_dump_is_looked_for_in_the_root_of_the_rank(root: Path, tmp_path: Path) -> None:
    folder = tmp_path / "proc" / str(os.getpid())
    folder.mkdir(parents=True)
    (folder / "root").symlink_to(root)
    (folder / "stat").write_bytes(STAT)
    (root / "data/dump").write_bytes(HUNG)
    found = await latest_dump(source(Path("/up/data/dump")), proc=tmp_path / "proc")
    assert found.version == "2.10"


# --- the pipe ---------------------------------------------------------------------------------------------------------


async def test_the_pipe_gets_one_byte(tmp_path: Path) -> None:
    pipe = tmp_path / "fr_2.pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert await ask_for_dump(source(pipe=pipe)) == ""
        assert os.read(reader, 100) == b"1"
    finally:
        os.close(reader)


async def test_pipes_that_are_not_written(tmp_path: Path) -> None:
    pipe, file, full = tmp_path / "pipe", tmp_path / "file", tmp_path / "full"
    os.mkfifo(pipe)
    os.mkfifo(full)
    file.write_text("")
    (tmp_path / "link").symlink_to(pipe)
    assert "TORCH_NCCL_DEBUG_INFO_PIPE_FILE was not set" in await ask_for_dump(source())
    assert "nothing reads the pipe" in await ask_for_dump(source(pipe=pipe))
    assert "is not a FIFO" in await ask_for_dump(source(pipe=file))
    assert "No such file" in await ask_for_dump(source(pipe=tmp_path / "none"))
    assert "has ended" in await ask_for_dump(source(pipe=pipe, start=1))
    both = os.open(full, os.O_RDWR | os.O_NONBLOCK)
    try:
        with pytest.raises(BlockingIOError):
            while True:
                os.write(both, bytes(4096))
        assert "is full" in await ask_for_dump(source(pipe=full))
        assert "instead of" in await ask_for_dump(source(pipe=full, uid=os.getuid() + 1))
    finally:
        os.close(both)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert "is not a FIFO" in await ask_for_dump(source(pipe=tmp_path / "link"))
        assert os.read(reader, 1) == b""
    finally:
        os.close(reader)
    assert file.read_text() == ""
