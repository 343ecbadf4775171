"""Builds the fake libraries and programs: with the machine's `cc`, else with zig, which comes as a Python package.

What was built lies in the virtual environment, in a folder for each state of the sources and of the compiler.
"""

import fcntl
import functools
import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

_HERE = Path(__file__).parent
#: The source of each library, and the name under which it is looked for.
SOURCES = {
    "nvidia": ("nvml.c", "libnvidia-ml.so.1"),
    "ascend": ("dcmi.c", "libdcmi.so"),
    "clock": ("clock.c", "libfakeclock.so"),
    "cuda": ("cuda.c", "libcuda.so.1"),
}
_FLAGS = ("-std=gnu11", "-Wall", "-Wextra", "-O2", "-fno-sanitize=undefined", "-fvisibility=hidden", "-pthread", "-s")
#: A first build of zig's takes some seconds; on a loaded machine some more.
_LIMIT_S = 300.0


class NoCompiler(RuntimeError):
    """Raised where the machine has neither `cc` nor zig, or not the headers of what is built."""


def library(kind: str) -> Path:
    """The built library of a kind, a key of SOURCES, from the cache where it is there.

    Processes that want it at the same time wait for the one that builds it. Raises NoCompiler, and RuntimeError with
    the compiler's words.
    """
    source, name = SOURCES[kind]
    # NVIDIA's own header: what the fake says is held to its prototypes and structs.
    header: tuple[str, ...] = ()
    if kind == "nvidia":
        version = importlib.metadata.version("nvidia-nvml-dev")
        header = (f"-I{nvml_header().parent}", f'-DHEADER_VERSION="{version}"')
    return _built(source, name, (*_FLAGS, *header, "-shared", "-fPIC", f"-Wl,-soname,{name}"))


def nvml_header() -> Path:
    """NVIDIA's nvml.h, of the package nvidia-nvml-dev. Raises NoCompiler where that is not installed."""
    try:
        files = importlib.metadata.files("nvidia-nvml-dev") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.name == "nvml.h":
            return Path(str(file.locate()))
    raise NoCompiler("the fake NVML needs NVIDIA's nvml.h: the package nvidia-nvml-dev is missing (make setup)")


def program(name: str) -> Path:
    """The built program whose source is `name`.c, from the cache where it is there. Raises as `library`."""
    return _built(f"{name}.c", name, _FLAGS)


def _built(source: str, name: str, flags: tuple[str, ...]) -> Path:
    command, version = compiler()
    key = hashlib.sha256("\0".join((version, platform.machine(), source, *flags)).encode())
    for file in (_HERE / source, *sorted(_HERE.glob("*.h")), *sorted((_HERE / source).with_suffix("").glob("*.h"))):
        key.update(file.read_bytes())
    folder = cache() / key.hexdigest()[:16]
    built = folder / name
    if built.exists():
        return built
    folder.mkdir(parents=True, exist_ok=True)
    with open(cache() / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not built.exists():
            unfinished = folder / f"{name}.unfinished"
            zig = cache() / "zig"
            ended = subprocess.run(
                [*command, *flags, "-o", unfinished, _HERE / source],
                check=False,
                capture_output=True,
                text=True,
                timeout=_LIMIT_S,
                env=os.environ | {"ZIG_GLOBAL_CACHE_DIR": str(zig), "ZIG_LOCAL_CACHE_DIR": str(zig)},
            )
            if ended.returncode:
                raise RuntimeError(f"{' '.join(command)} ended with {ended.returncode}:\n{ended.stderr}")
            unfinished.rename(built)
    return built


def install(built: Path, folder: Path, without: Iterable[str] = ()) -> None:
    """Puts a copy of a library into a folder, without some functions. Raises ValueError for one that it has not."""
    target = folder / built.name
    content = built.read_bytes()
    for name in without:
        # A symbol that nobody finds by its name is one that is not there.
        if b"\0" + name.encode() + b"\0" not in content:
            raise ValueError(f"the fake {built.name} has no function {name!r}")
        content = content.replace(b"\0" + name.encode() + b"\0", b"\0" + b"_" + name.encode()[1:] + b"\0")
    unfinished = target.with_name(target.name + ".unfinished")
    unfinished.write_bytes(content)
    shutil.copymode(built, unfinished)
    unfinished.rename(target)


def cache() -> Path:
    """The folder of what was built: in the virtual environment, so that it goes with that."""
    if sys.prefix != sys.base_prefix and os.access(sys.prefix, os.W_OK):
        folder = Path(sys.prefix) / "fake-cards"
    else:
        folder = Path(tempfile.gettempdir()) / f"muster-fake-cards-{os.getuid()}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@functools.cache
def _found(cc: str) -> str:
    """The version of a machine's compiler, or "" where it cannot compile: the C library's headers may be missing."""
    asked = subprocess.run(
        [cc, "-fsyntax-only", "-x", "c", "-"],
        input="#include <pthread.h>\n",
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )
    if asked.returncode:
        return ""
    return subprocess.run([cc, "--version"], capture_output=True, text=True, timeout=_LIMIT_S, check=False).stdout


def compiler() -> tuple[list[str], str]:
    """The command, and its version. `cc` first: the first build with zig also builds parts of zig's C library."""
    if (cc := shutil.which("cc")) and (version := _found(cc)):
        return [cc], version
    if importlib.util.find_spec("ziglang"):
        return [sys.executable, "-m", "ziglang", "cc"], f"ziglang {importlib.metadata.version('ziglang')}"
    raise NoCompiler("the fake cards need a compiler: the package ziglang (make setup), or a `cc` in PATH")
