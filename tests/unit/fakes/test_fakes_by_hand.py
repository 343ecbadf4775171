"""How the fake libraries are built, and steered by hand."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from muster.v1 import job_pb2
from tests.fakes import FakeCards, Process, build
from tests.fakes.__main__ import main
from tests.fakes.models import MODELS
from tests.fakes.play import Follower

GIB = 1 << 30


#: Builds through a compiler that notes each run and takes its time.
BUILDER = """
import sys
from pathlib import Path
from tests.fakes import build
folder = Path(sys.argv[1])
build.cache = lambda: folder
build.compiler = lambda: (["sh", str(folder / "compiler")], "1")
sys.stdin.readline()
print(build.library("nvidia"))
"""


def test_a_library_is_built_once_however_many_want_it(tmp_path):
    (tmp_path / "compiler").write_text(
        f'echo run >> {tmp_path}/runs; while [ "$1" != -o ]; do shift; done; sleep 0.3; echo built > "$2"\n'
    )
    root = Path(__file__).parents[3]
    command = [sys.executable, "-c", BUILDER, str(tmp_path)]
    builders = [
        subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    for builder in builders:
        assert builder.stdin is not None
        builder.stdin.write("go\n")
        builder.stdin.flush()
    paths = {builder.communicate(timeout=60)[0] for builder in builders}
    assert len(paths) == 1 and Path(paths.pop().strip()).read_text() == "built\n"
    assert (tmp_path / "runs").read_text() == "run\n"


def test_a_source_that_does_not_compile_leaves_nothing_behind(tmp_path, monkeypatch):
    (tmp_path / "compiler").write_text("echo what >&2; exit 7\n")
    monkeypatch.setattr(build, "cache", lambda: tmp_path)
    monkeypatch.setattr(build, "compiler", lambda: (["sh", str(tmp_path / "compiler")], "1"))
    with pytest.raises(RuntimeError, match="ended with 7:\nwhat"):
        build.library("ascend")
    assert not list(tmp_path.rglob("libdcmi*"))


def test_without_a_compiler(monkeypatch, tmp_path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(build.NoCompiler, match="ziglang"):
        FakeCards.make(tmp_path / "cards")
    with pytest.raises(pytest.skip.Exception, match="ziglang"):
        FakeCards.for_test(tmp_path / "cards")


@pytest.fixture
def by_hand(tmp_path, capsys):
    folder = str(tmp_path / "by hand")

    def run(command, *args, code=0):
        assert main([command, folder, *args]) == code
        streams = capsys.readouterr()
        return streams.err if code else streams.out

    try:
        build.library("nvidia")
    except build.NoCompiler as error:
        pytest.skip(str(error))
    run("up", "--cards", "2")
    return run


def test_by_hand(by_hand, asker, tmp_path, sleeper):
    ask = asker(FakeCards.open(tmp_path / "by hand"))
    by_hand("set", "1", "util=40", "power_w=300.5", "mem_used=20GiB", "cpus=0,3", "serial=77")
    assert ask("[util(1), p.nvmlDeviceGetPowerUsage(h[1]), p.nvmlDeviceGetSerial(h[1])]") == [40, 300500, "77"]
    by_hand("hold", "all", str(sleeper.pid), "8GiB")
    by_hand("hang", "0", "nvmlDeviceGetUtilizationRates")
    by_hand("fail", "1", "nvmlDeviceGetPowerUsage", "4")
    shown = by_hand("show").splitlines()
    assert shown[1].startswith("   0    0%    8.5 /  79.6     70   35")
    assert shown[1].endswith(f"pids {sleeper.pid}; nvmlDeviceGetUtilizationRates hangs, 0 waiting")
    assert "28.5 /  79.6" in shown[2] and shown[2].endswith("nvmlDeviceGetPowerUsage gives 4")
    by_hand("clear", "all")
    by_hand("release", "0,1", str(sleeper.pid))
    assert ask("[util(0), running(0), p.nvmlDeviceGetPowerUsage(h[1])]") == [0, [], 300500]
    ask("events = p.nvmlEventSetCreate()")
    ask("p.nvmlDeviceRegisterEvents(h[1], 0x8, events)")
    by_hand("xid", "1", "79")
    assert ask("wait(events, 60000)") == [1, 0x8, 79]
    by_hand("lose", "1")
    assert ask("util(1)") == {"error": 15}
    by_hand("back", "1")
    by_hand("curve", "1", "util", "0:30", "10:30")
    assert ask("util(1)") == 30
    by_hand("play")
    assert ask("p.nvmlDeviceGetPowerUsage(h[0])") > 100_000
    by_hand("unload")
    assert ask("util(1)") == {"error": 999}


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("set", "1", "utl=1"), "'utl=1': wanted is NAME=VALUE"),
        (("set", "2", "util=1"), "no card 2: there are 2"),
        (("set", "1", "util=much"), "much"),
        (("hang", "1", "nvmlNope"), "no function 'nvmlNope'"),
        (("up",), "has cards already"),
    ],
)
def test_what_cannot_be_done_is_reported(by_hand, command, words):
    assert words in by_hand(*command, code=1)


def test_a_folder_without_cards(tmp_path, capsys):
    assert main(["show", str(tmp_path)]) == 1
    assert f"`python -m tests.fakes up {tmp_path}` makes some" in capsys.readouterr().err


def test_the_ranks_of_a_daemon_are_on_their_cards(cards, make_daemon):
    daemon = make_daemon("[cards]\nslots = 4\n")
    follower = Follower(cards, daemon.root)
    cards[1].hold(4194303, GIB, lives=False)
    job_id = start_on(daemon, 1, 2)
    job = daemon.until_running(job_id)
    follower.look()
    assert cards[0].processes == []
    assert {it.pid for it in cards[1].processes} == {4194303, job.ranks[0].pid}
    assert cards[2].processes == [Process(job.ranks[1].pid, int(cards[2].mem_total * 0.7), lives=True)]
    assert cards[2].util > 0 and cards[2].power_w > MODELS[cards[2].model].idle and cards[0].util == 0
    daemon.stop(job_id, grace_s=0)
    daemon.wait(job_id)
    assert cards[2].processes == []  # at once: they are on it only as long as they live
    follower.look()
    assert [it.pid for it in cards[1].processes] == [4194303] and cards[2].util == 0
    follower.close()


def start_on(daemon, *indices):
    return daemon.run("sleep", "600", ranks=0, cards=job_pb2.CardRequest(indices=indices)).job_id
