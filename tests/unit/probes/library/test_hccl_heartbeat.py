"""HCCL's own detector, in lines as the troubleshooting guide of HCCL has them."""

import os
import pwd
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from muster.probes.kernel import process
from muster.probes.library import (
    LibraryVerdict,
    PlogSource,
    judge_heartbeats,
    parse_heartbeats,
    plog_source,
    read_heartbeats,
)
from muster.probes.library.hccl_heartbeat import LATE_S

#: The guide's two examples: newer releases have a status, older ones had none.
GUIDE = (
    "[INFO] HCCL(686,python):2025-10-23-07:52:59.191.363 [heartbeat.cc:951] [8970][TaskExecStage][HeartbeatAbnormal]"
    "local rank [127.10.0.1/1]: crimer rank [127.10.0.2/2]{} by informer rank [127.10.0.3/3]"
)
AT = 1761205979.0  # 2025-10-23 07:52:59 UTC
STUCK_S = 612.0


def line(own: int, who: int, status: str, at: float = AT, by: int | None = None) -> str:
    """Of the log of the rank on device `own`, about the one on device `who`."""
    by = who if by is None else by
    stamp = time.strftime("%Y-%m-%d-%H:%M:%S", time.gmtime(at))
    return (
        f"[INFO] HCCL({700 + own},python):{stamp}.191.363 [heartbeat.cc:951] [8970][TaskExecStage][HeartbeatAbnormal]"
        f"local rank [10.0.0.1/{own}]: crimer rank [10.0.0.1/{who}] status[{status}] by informer rank [10.0.0.1/{by}]"
    )


def judged(said: dict[int, Sequence[str]], since: float, now: float):
    """`said`: the log of each rank; rank N is on device N."""
    found = {rank: parse_heartbeats("\n".join(lines), AT + 5, STUCK_S) for rank, lines in said.items()}
    return judge_heartbeats({rank: one for rank, one in found.items() if one is not None}, since, now)


@pytest.mark.parametrize(("status", "expected"), [(" status[LOST]", "LOST"), ("", "")])
def test_the_lines_of_the_guide(status: str, expected: str) -> None:
    found = parse_heartbeats(GUIDE.format(status), AT + 3)
    assert found is not None and found.uid == "127.10.0.1/1"
    (event,) = found.events
    assert (event.at, event.who, event.status, event.by) == (AT, "127.10.0.2/2", expected, "127.10.0.3/3")


@pytest.mark.parametrize("hours", [-11, -3.5, 0, 5.75, 8, 13])
def test_lines_in_the_time_zone_of_the_job(hours: float) -> None:
    """The file was written when its last line was, by whatever clock the lines go."""
    later = "\n[INFO] HCCL(686,python):2025-10-23-07:53:10.191.363 [x.cc:1] [8970]something else"
    found = parse_heartbeats(GUIDE.format(" status[STUCK]") + later, AT + 11 - hours * 3600)
    assert found is not None
    assert found.events[0].at == AT - hours * 3600


@pytest.mark.parametrize("text", ["", "no line of it", GUIDE.replace("heartbeat", "x").replace("HeartbeatAb", "Ab")])
def test_a_log_without_it(text: str) -> None:
    assert parse_heartbeats(text.format(" status[LOST]"), AT) is None


def test_hostile_lines_name_nobody() -> None:
    text = "\n".join([
        GUIDE.format(" status[LOST]").replace("127.10.0.2/2", "\x1b[31mred/2"),
        GUIDE.format(" status[LOST]").replace("127.10.0.2/2", "a" * 200 + "/2"),
        GUIDE.format(" status[LOST]").replace("2025-10-23", "9999-99-99"),
        "[INFO] HCCL(686,python):" + "1" * 100_000,
    ])  # fmt: skip
    found = parse_heartbeats(text, AT)
    assert found is not None
    assert [event.at for event in found.events] == [pytest.approx(AT, abs=900)]


def test_a_stuck_rank_is_named_at_once_and_blamed_once_the_others_had_their_time() -> None:
    said: dict[int, Sequence[str]] = {rank: [line(rank, 3, "STUCK")] for rank in range(4)}
    early = judged(said, AT - 700, AT + 60)
    assert early is not None and not early.stands_still
    assert early.reason == "HCCL: rank 3 has begun no collective for 612 s"
    late = judged(said, AT - 700, AT + STUCK_S + LATE_S)
    assert late is not None and (late.verdict, late.culprits) == (LibraryVerdict.ABSENT, (3,))
    assert late.reason == "HCCL: rank 3 has begun no collective for 612 s; ranks 0-2 wait in a collective"
    (collective,) = late.stuck
    assert (collective.inside, collective.absent) == ((0, 1, 2), (3,))


def test_where_all_are_stuck_nobody_waits_for_anybody() -> None:
    """An evaluation on the CPU, say: no rank calls a collective for long."""
    said: dict[int, Sequence[str]] = {rank: [line(rank, who, "STUCK") for who in range(4)] for rank in range(4)}
    found = judged(said, AT - 700, AT + 10_000)
    assert found is not None and not found.stands_still and found.culprits == ()


def test_a_stuck_rank_on_another_node() -> None:
    other = line(0, 7, "STUCK").replace("10.0.0.1/7", "10.0.0.2/7")
    found = judged({0: [other], 1: [other.replace("local rank [10.0.0.1/0]", "local rank [10.0.0.1/1]")]}, 0, AT + 9999)
    assert found is not None and (found.verdict, found.culprits) == (LibraryVerdict.ABSENT, ())
    assert "the rank on 10.0.0.2/7 has begun no collective" in found.reason
    assert found.stuck[0].elsewhere == ("the rank on 10.0.0.2/7",)


def test_what_was_logged_before_the_silence_is_not_about_it() -> None:
    lately = "[INFO] HCCL(700,python):2025-10-23-07:52:59.191.363 [x.cc:1] [8970]something else"
    assert judged({0: [line(0, 1, "STUCK", AT - 5000), lately]}, AT - 700, AT) is None


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        ("LOST", "rank 1 sends no heartbeat: its process has ended, or the network is disconnected"),
        ("ERROR CQE", "rank 1 has an error of its network (CQE)"),
    ],
)
def test_a_lost_rank_is_named_and_proves_nothing(status: str, reason: str) -> None:
    said: dict[int, Sequence[str]] = {0: [line(0, 1, status, by=0)], 1: [line(1, 0, "OK")]}
    found = judged(said, AT - 100, AT + 10_000)
    assert found is not None and (found.verdict, found.reason) == (LibraryVerdict.UNDECIDED, f"HCCL: {reason}")


# --- files ------------------------------------------------------------------------------------------------------------


def source(folder: Path, rank: int = 0) -> PlogSource:
    """Of this process."""
    seen = process.read_stat(os.getpid())
    assert seen is not None
    environ = [b"HCCL_EXEC_TIMEOUT=600", b"ASCEND_PROCESS_LOG_PATH=" + os.fsencode(folder)]
    return plog_source(rank, os.getpid(), seen.start, os.getuid(), 4711, environ)


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / "run" / "plog" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")
    os.utime(path, (AT, AT))
    return path


async def test_the_log_of_the_rank_is_read(tmp_path: Path) -> None:
    written(tmp_path, "plog-4711_20251023075000000.log", line(0, 3, "STUCK"))
    written(tmp_path, "plog-9_20251023075000000.log", line(1, 2, "LOST"))  # another process'
    found = await read_heartbeats([source(tmp_path)], 10)
    assert found[0].uid == "10.0.0.1/0" and found[0].stuck_s == 200
    assert [(event.who, event.status) for event in found[0].events] == [("10.0.0.1/3", "STUCK")]


@pytest.mark.parametrize("how", ["absent", "fifo", "link", "folder"])
async def test_what_is_no_log_of_the_rank_is_not_read(tmp_path: Path, how: str) -> None:
    path = written(tmp_path, "plog-4711_1.log", line(0, 3, "STUCK"))
    other = path.rename(tmp_path / "other")
    if how == "fifo":
        os.mkfifo(path)
    elif how == "link":
        path.symlink_to(other)
    elif how == "folder":
        path.mkdir()
    assert await read_heartbeats([source(tmp_path)], 10) == {}


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a file away")
async def test_a_file_of_somebody_else_is_not_read(tmp_path: Path) -> None:
    path = written(tmp_path, "plog-4711_1.log", line(0, 3, "STUCK"))
    os.chown(path, pwd.getpwnam("nobody").pw_uid, -1)
    assert await read_heartbeats([source(tmp_path)], 10) == {}
