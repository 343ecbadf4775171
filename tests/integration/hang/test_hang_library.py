"""A suspected job whose library can be asked: it names who did not come to a collective.

The ranks answer at PyTorch's pipe as PyTorch does, with dumps of a real job on gloo of which one rank did not come
(tests/record_flight_dumps.py), or write into CANN's log as HCCL's detector does.
"""

import json
import sys
from pathlib import Path

import pytest

from muster.v1 import job_pb2
from tests.conftest import Daemon, eventually
from tests.corpus.acted import IDLE, WORK, Watcher, looks
from tests.fakes import FakeCards, NoCompiler
from tests.integration.hang.test_hang import CONFIG

DUMPS = Path("tests/fixtures/flight_recorder").resolve()
RANKS, ODD = 4, 3
RANK = """
import os, sys, threading
rank, dumps = os.environ["RANK"], sys.argv[1]
pipe = os.environ["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"] + rank + ".pipe"
os.mkfifo(pipe)

def recorder():
    for moment in ("hung", *["later"] * 1000):
        with open(pipe, "rb") as asked:
            asked.read()
        with open(f"{dumps}/{moment}-{rank}", "rb") as source:
            dump = source.read()
        with open(os.environ["TORCH_FR_DUMP_TEMP_FILE"] + rank, "wb") as file:
            file.write(dump)

if os.fork() == 0:  # in PyTorch a thread that Python does not know
    recorder()
threading.Event().wait()
"""


@pytest.mark.slow
@pytest.mark.parametrize("whose", ["the job's", "muster's"])
def test_who_did_not_come_by_the_flight_recorder_is_to_blame(tmp_path: Path, whose: str) -> None:
    """`whose`: who sets the variables."""
    config = CONFIG.replace("hung_s = 6", "hung_s = 300\nproof_s = 8\nsuspect_soon_s = 3\nstacks_apart_s = 1")
    if whose == "muster's":
        config = config.replace("[hang]", "[hang]\nflight_recorder = true")
    try:
        made = FakeCards.make(tmp_path / "cards", "nvidia", RANKS)
    except NoCompiler as error:
        pytest.skip(str(error))
    with made as cards:
        daemon = Daemon(tmp_path, config, cards.env)
        try:
            daemon.start()
            for card in cards:
                WORK.on(card)
            env = {
                "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": str(tmp_path / "ask_"),
                "TORCH_FR_DUMP_TEMP_FILE": str(tmp_path / "dump_"),
            }
            spec = job_pb2.JobSpec(job_id="ddp", command=[sys.executable, "-c", RANK, str(DUMPS)])
            spec.cards.count = RANKS
            if whose == "the job's":
                spec.env.update(env)
            daemon.jobs.Start(job_pb2.StartRequest(spec=spec), timeout=60)
            with Watcher(daemon).watching() as watcher:
                assert watcher.wait("ddp", 0.0, looks(40))
            for card in cards:  # neither they nor the frames say that three wait for the fourth
                IDLE.on(card)
            found = eventually(lambda: (hang := daemon.get("ddp").hang).verdict == "HUNG" and hang, 120)
            evidence = json.loads(found.evidence)
            assert list(found.ranks) == [ODD], evidence
            assert evidence["row"] == "proof by stacks"
            assert f"rank {ODD} did not come" in evidence["library"]
            assert evidence["culprit"]["peers"] == [rank for rank in range(RANKS) if rank != ODD]
        finally:
            cards.restore()
            daemon.close()


#: A rank of HCCL: its detector logs, some seconds into the silence, that the last rank is stuck.
LOGGING_RANK = """
import os, sys, time
rank, odd, quiet = os.environ["RANK"], sys.argv[1], sys.argv[2]
folder = os.environ["ASCEND_PROCESS_LOG_PATH"] + "/run/plog"
os.makedirs(folder)
while not os.path.exists(quiet):
    time.sleep(0.1)
time.sleep(4)
with open(f"{folder}/plog-{os.getpid()}_20251023075000000.log", "w") as log:
    log.write(
        f"[INFO] HCCL({os.getpid()},python):{time.strftime('%Y-%m-%d-%H:%M:%S')}.191.363 [heartbeat.cc:951] [8970]"
        f"[TaskExecStage][HeartbeatAbnormal]local rank [10.0.0.1/{rank}]: crimer rank [10.0.0.1/{odd}] status[STUCK] "
        f"by informer rank [10.0.0.1/{odd}]\\n"
    )
while True:
    time.sleep(1000)
"""


@pytest.mark.slow
def test_what_hccl_has_logged_is_in_the_evidence(tmp_path: Path) -> None:
    config = CONFIG.replace("hung_s = 6", "hung_s = 60\nproof_s = 300\nsuspect_soon_s = 3\nstacks_apart_s = 1")
    try:
        made = FakeCards.make(tmp_path / "cards", "ascend", RANKS)
    except NoCompiler as error:
        pytest.skip(str(error))
    quiet = tmp_path / "quiet"
    with made as cards:
        daemon = Daemon(tmp_path, config, cards.env)
        try:
            daemon.start()
            for card in cards:
                WORK.on(card)
            command = [sys.executable, "-c", LOGGING_RANK, str(ODD), str(quiet)]
            spec = job_pb2.JobSpec(job_id="npu", command=command, env={"TZ": "XYZ-5:45"})
            spec.cards.count = RANKS
            daemon.jobs.Start(job_pb2.StartRequest(spec=spec), timeout=60)
            with Watcher(daemon).watching() as watcher:
                assert watcher.wait("npu", 0.0, looks(40))
            for card in cards:
                IDLE.on(card)
            quiet.touch()
            said = eventually(lambda: json.loads(daemon.get("npu").hang.evidence or "{}").get("library"), 120)
            assert said == f"HCCL: rank {ODD} has begun no collective for 612 s"
        finally:
            cards.restore()
            daemon.close()
