"""The version of NCCL that a process has mapped."""

import os
from pathlib import Path

import pytest

from muster.probes.library import SAFE_FROM, mapped_version, nccl_version, version_of
from muster.probes.library.nccl_version import Version, library_of


def lines(path: str) -> list[str]:
    return [
        "7f0000000000-7f0000001000 r--p 00000000 08:01 17    /usr/lib/libc.so.6\n",
        f"7f1000000000-7f1000001000 r-xp 00001000 08:01 18    {path}\n",
        "7f2000000000-7f2000001000 rw-p 00000000 00:00 0 \n",
    ]


@pytest.mark.parametrize(
    ("path", "version"),
    [
        ("/usr/lib/x86_64-linux-gnu/libnccl.so.2.29.2", (2, 29, 2)),
        ("/opt/nccl_2.28.9-1+cuda12.9_x86_64/lib/libnccl.so.2", (2, 28, 9)),
        ("/nix/store/abc-nccl-2.21.5-1/lib/libnccl.so.2", (2, 21, 5)),
        ("/v/site-packages/nvidia/nccl/lib/libnccl.so.2", None),
        ("/with space/libnccl.so.2.30.7", (2, 30, 7)),
        ("/x/libnccl.so.2.29.2 (deleted)", None),
        ("/x/libnccl-net.so.2.29.2", None),
        ("/x/libother.so", None),
    ],
)
def test_by_the_path(path: str, version: Version | None) -> None:
    assert version_of(lines(path)) == version


def test_the_library() -> None:
    assert library_of(lines("/v/nvidia/nccl/lib/libnccl.so.2")) == "/v/nvidia/nccl/lib/libnccl.so.2"
    assert library_of(lines("/v/other.so")) == "" and library_of([]) == ""
    assert SAFE_FROM == (2, 29, 2)


def process(proc: Path, root: Path, path: str) -> None:
    """This process, as having mapped `path` in `root`."""
    folder = proc / str(os.getpid())
    folder.mkdir(parents=True)
    (folder / "maps").write_text("".join(lines(path)))
    (folder / "root").symlink_to(root)


@pytest.mark.parametrize("before", [0, 100, (4 << 20) - 20, (4 << 20) - 12, 9 << 20])
async def test_by_the_text_in_the_library(tmp_path: Path, before: int) -> None:
    process(tmp_path / "proc", tmp_path, "/lib/libnccl.so.2")
    (tmp_path / "lib").mkdir()
    text = b"\0NCCL version \0NCCL version 2.29.12+cuda12.9\0" + bytes(1000)
    (tmp_path / "lib/libnccl.so.2").write_bytes(bytes(before) + text)
    assert await mapped_version(os.getpid(), 60.0, tmp_path / "proc") == (2, 29, 12)


async def test_a_library_without_a_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process(tmp_path / "proc", tmp_path, "/libnccl.so.2")
    assert await mapped_version(os.getpid(), 60.0, tmp_path / "proc") is None  # it was removed
    library = tmp_path / "libnccl.so.2"
    os.mkfifo(library)
    assert await mapped_version(os.getpid(), 60.0, tmp_path / "proc") is None
    library.unlink()
    library.write_bytes(bytes(5 << 20) + b"NCCL version 2.29.2+cuda12.9")
    monkeypatch.setattr(nccl_version, "MAX_LIBRARY_BYTES", 1 << 20)
    assert await mapped_version(os.getpid(), 60.0, tmp_path / "proc") is None


async def test_a_process_without_it(tmp_path: Path) -> None:
    assert await mapped_version(os.getpid(), 60.0) is None
    assert await mapped_version(os.getpid(), 60.0, tmp_path) is None
    process(tmp_path / "proc", tmp_path, "/lib/libc.so")
    assert await mapped_version(os.getpid(), 60.0, tmp_path / "proc") is None
