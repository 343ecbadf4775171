"""A libnvidia-ml.so.1 that says what a real one said: made of a record (scripts/record_gpu.py), with the C compiler.

Each function of the record is exported. A call is answered by the recorded one with the same arguments, of the scene
whose name is in the file `scene` beside the library ("idle" if there is none), else of any scene; answers come in their
order, and the last one stays. Values of fields and GPM metrics are found one by one, however a call puts them together.
What was never recorded is NVML's 3, not supported, and its name is appended to the file `missed`.
"""

import hashlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.fakes import build

_NAME = "libnvidia-ml.so.1"
_FLAGS = ("-std=gnu11", "-O1", "-w", "-fvisibility=hidden", "-pthread", "-shared", "-fPIC", f"-Wl,-soname,{_NAME}")
_LIMIT_S = 300.0
_PLAYER = Path(__file__).with_name("replay.h")
#: Answered by the player itself: samples and event sets are memory of the caller's, no event was recorded, and fields
#: and metrics are looked up one by one.
_BY_HAND = (
    *("nvmlDeviceGetFieldValues", "nvmlGpmMetricsGet", "nvmlGpmSampleAlloc", "nvmlGpmSampleGet", "nvmlGpmSampleFree"),
    *("nvmlEventSetCreate", "nvmlEventSetFree", "nvmlEventSetWait_v2", "nvmlDeviceRegisterEvents"),
)
#: Offsets and sizes in nvml.h: nvmlFieldValue_t; nvmlGpmMetricsGet_t, nvmlGpmMetric_t.
_FIELD, _METRICS_AT, _METRIC = 40, 24, 40


class Replay:
    """The library in `folder`, which a program finds with `env`."""

    def __init__(self, folder: Path, record: Path) -> None:
        """Raises NoCompiler, and RuntimeError with the compiler's words."""
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _NAME).write_bytes(_built(record).read_bytes())
        self.env = {"LD_LIBRARY_PATH": str(folder), "MUSTER_REPLAY": str(folder)}

    def scene(self, name: str) -> None:
        """What the card does from here on: "idle", "load", "after"."""
        unfinished = self.folder / "scene.new"
        unfinished.write_text(name)
        unfinished.rename(self.folder / "scene")

    @property
    def missed(self) -> set[str]:
        """What was asked and is not in the record."""
        file = self.folder / "missed"
        return set(file.read_text().split()) if file.exists() else set()


def _built(record: Path) -> Path:
    command, version = build.compiler()
    source = "".join(_source([json.loads(line) for line in record.read_text().splitlines()]))
    key = hashlib.sha256("\0".join((version, source, _PLAYER.read_text(), *_FLAGS)).encode()).hexdigest()
    folder = build.cache() / f"replay-{key[:16]}"
    built = folder / _NAME
    if not built.exists():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "replay.c").write_text(source)
        unfinished = folder / "unfinished"
        ended = subprocess.run(
            [*command, *_FLAGS, "-I", str(_PLAYER.parent), "-o", unfinished, folder / "replay.c"],
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
        if ended.returncode:
            raise RuntimeError(f"the replay of {record} does not compile:\n{ended.stderr}")
        unfinished.rename(built)
    return built


def _source(lines: list[dict[str, Any]]) -> Iterator[str]:
    scenes: list[str] = []
    calls: dict[str, list[str]] = {}
    values: list[str] = []
    metrics: list[str] = []
    for line in lines:
        if "scene" in line:
            scenes.append(line["scene"])
        name = line.get("call", "")
        if not name or "missing" in line:
            continue
        scene = len(scenes) - 1
        if name == "nvmlDeviceGetFieldValues":
            values += _fields(line, scene)
        elif name == "nvmlGpmMetricsGet":
            metrics += _metrics(line, scene)
        if name not in _BY_HAND:
            arguments = "".join(_argument(each) for each in line["args"])
            many, times = len(line["args"]), line.get("times", 1)
            calls.setdefault(name, []).append(
                f"{{{scene}, {line['ret']}, {times}, 0, {many}, (struct argument[]){{{arguments}}}}}"
            )
    yield '#include "replay.h"\n'
    yield f"const char *const scenes[] = {{{', '.join(json.dumps(name) for name in scenes)}, 0}};\n"
    yield f"struct value values[] = {{{', '.join(values)}{', ' if values else ''}{{-1}}}};\n"
    yield f"struct value metrics[] = {{{', '.join(metrics)}{', ' if metrics else ''}{{-1}}}};\n"
    for name, answers in calls.items():
        yield f"static struct answer of_{name}[] = {{\n" + ",\n".join(answers) + f"\n}};\nCALL({name})\n"


def _argument(argument: Any) -> str:
    if not isinstance(argument, dict):
        value = argument if isinstance(argument, int) else 0
        return f"{{0, {value & 0xFFFFFFFFFFFFFFFF}ull, 0, {{0, 0}}, {{0, 0}}}}, "
    return f"{{1, 0, {argument['size']}, {_bytes(argument['in'])}, {_bytes(argument['out'])}}}, "


def _bytes(told: str) -> str:
    escaped = "".join(f"\\{byte:03o}" for byte in bytes.fromhex(told))
    return f'{{{len(told) // 2}, "{escaped}"}}'


def _padded(argument: dict[str, Any]) -> bytes:
    return bytes.fromhex(argument["out"]).ljust(argument["size"], b"\0")


def _fields(line: dict[str, Any], scene: int) -> Iterator[str]:
    handle, count, memory = line["args"]
    content = _padded(memory)
    for at in range(0, count * _FIELD, _FIELD):
        one = content[at : at + _FIELD]
        if not line["ret"]:
            number, scope = int.from_bytes(one[:4], "little"), int.from_bytes(one[4:8], "little")
            yield f"{{{scene}, {handle}ull, {number}u, {scope}u, {_bytes(one.hex())}}}"


def _metrics(line: dict[str, Any], scene: int) -> Iterator[str]:
    content = _padded(line["args"][0])
    for place in range(int.from_bytes(content[4:8], "little")):
        at = _METRICS_AT + place * _METRIC
        # The names of metrics are pointers of the process that was recorded.
        one = content[at : at + 16] + bytes(_METRIC - 16)
        if not line["ret"]:
            yield f"{{{scene}, 0, {int.from_bytes(one[:4], 'little')}u, 0u, {_bytes(one.hex())}}}"
