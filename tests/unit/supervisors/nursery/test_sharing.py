"""What supervisors share is not copied because it is used. Each version of Python on this machine is tried."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests import interpreters

PROTO = Path(__file__).parents[4] / "proto"

#: All that a supervisor imports, and a whole job rehearsed before and behind; then what Python does by counts.
_KEEPS = """
import sys
sys.path.insert(0, sys.argv[1])
from muster.supervisors.nursery import nursery
import gc, json, os, weakref
from pathlib import Path
from muster.supervisors.nursery import sharing
from muster.supervisors.nursery.rehearsal import rehearse

UNUSED = ["bz2", "ipaddress", "lzma", "selectors"]

def run():
    return [name for name in UNUSED if type(sys.modules.get(name)).__name__ not in ("NoneType", "_LazyModule")]

class Owner:
    pass

def is_open(fd):
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True

owner, gone = Owner(), []
weakref.finalize(owner, gone.append, "owner")
file = open("/dev/null")
number = file.fileno()
told = [rehearse(Path(sys.argv[2]))]
text, numbers, floats, settings = "a constant of this program", (1, 2, 3), 1.5, {"a": 1}
gc.collect()
already = run()  # by the environment, maybe
made = sharing.make_immortal()
again = sharing.make_immortal()
told += [rehearse(Path(sys.argv[2])) for _ in range(3)]
longer = text
for _ in range(1000):
    longer += "!"
for _ in range(1000):
    floats += 0.5
more = numbers + (4,)
settings.update({"b": 2})
del settings["a"]
del owner, file
gc.collect()
print(json.dumps({
    "version": sys.version_info[:2], "made": made, "again": again, "told": told, "gone": gone, "open": is_open(number),
    "values": [text, len(longer), list(numbers), list(more), floats, settings],
    "run": [already, run()],
    "counted": sys.getrefcount(rehearse) < 1 << 30,
}))
"""

#: In kB: what a child copies by rehearsing a job, without what the nursery does before it forks, and with it.
_COPIES = """
import sys
sys.path.insert(0, sys.argv[1])
import gc, json, os
from pathlib import Path
from muster.supervisors.nursery import nursery
from muster.supervisors.nursery.rehearsal import rehearse
from muster.supervisors.nursery import sharing

def copied():
    read, write = os.pipe()
    if (pid := os.fork()) == 0:
        rehearse(Path(sys.argv[2]))
        with open("/proc/self/smaps_rollup") as rollup:
            os.write(write, "".join(line for line in rollup if line.startswith("Private_Dirty")).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    return int(os.read(read, 100).split()[1])

rehearse(Path(sys.argv[2]))
gc.collect()
before = copied()
sharing.prepare(many=True)
print(json.dumps([sys.version_info >= (3, 12), before, copied()]))
"""


def _result(python: str, program: str, folder: Path) -> Any:
    done = subprocess.run(
        [python, "-I", "-B", "-c", program, str(PROTO), str(folder / "rehearsal")],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")  # Python has torn itself down, too
    return json.loads(done.stdout)


@pytest.mark.parametrize("python", interpreters.found())
def test_all_works_as_before(python: str, tmp_path: Path) -> None:
    found = _result(python, _KEEPS, tmp_path)
    assert found["told"] == [""] * 4
    assert found["gone"] == ["owner"] and not found["open"], "what owns something still ends with its last reference"
    before, after = found["run"]
    assert after == before, "modules that others import, and supervisors do not use"
    text = "a constant of this program"
    assert found["values"] == [text, len(text) + 1000, [1, 2, 3], [1, 2, 3, 4], 501.5, {"b": 2}]
    if found["version"] < [3, 12]:
        assert found["made"] == 0 and found["counted"]
    else:
        assert found["made"] > 10_000 > found["again"] and not found["counted"]


@pytest.mark.parametrize("python", interpreters.found())
def test_a_child_copies_less(python: str, tmp_path: Path) -> None:
    immortal, before, after = _result(python, _COPIES, tmp_path)
    assert after < before * (0.75 if immortal else 1.25), (before, after)
