"""The live screen of `muster top`: what is on it, in which order, and what the keys do."""

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from muster.agent.cli.live import top_screen
from muster.agent.cli.live.recent import Recent
from muster.agent.cli.live.top_choice import HELPS, SPANS, TopChoice, keys
from muster.v1 import job_pb2, node_pb2, telemetry_pb2

T = 1_780_300_800


def look(at: int) -> telemetry_pb2.GetTelemetryResponse:
    """Eight cards: six of a job, of which card 5 does little; card 7 is free and has a fault. Rank 3 is slow."""
    cards = [
        node_pb2.Card(
            index=index, kind="nvidia", job_id="llama" if index < 6 else "", health="CRITICAL" if index == 7 else "OK",
            memory_bytes=80 << 30,
            reading=node_pb2.CardReading(
                utilization=20 if index == 5 else 95 + (at + index) % 5, memory_used_bytes=40 << 30, power_watts=650,
                power_limit_watts=700, temperature=60,
            ),
        )
        for index in range(8)
    ]  # fmt: skip
    ranks = [
        telemetry_pb2.RankTelemetry(
            rank=number, device=number, pid=4000 + number, cpu=900 if number == 4 else 100, memory_bytes=1 << 30,
            read_rate=1.0, write_rate=0.0, state="R", processes=1, slow=number == 3, at=Timestamp(seconds=at),
        )
        for number in range(6)
    ]  # fmt: skip
    job = telemetry_pb2.JobTelemetry(job_id="llama", state=job_pb2.JOB_STATE_RUNNING, ranks=ranks, slow_ranks=[3])
    return telemetry_pb2.GetTelemetryResponse(at=Timestamp(seconds=at), cards=cards, jobs=[job])


@pytest.fixture
def seen() -> tuple[telemetry_pb2.GetTelemetryResponse, Recent]:
    recent = Recent()
    now = look(T)
    for at in range(T, T + 200):
        recent.take(now := look(at))
    return now, recent


def _column(text: str, place: int) -> list[str]:
    return [line.split()[place] for line in text.splitlines() if line[:4].strip().isdecimal() and "%  " in line]


def test_what_stands_out_comes_first_and_all_fits(seen: tuple[telemetry_pb2.GetTelemetryResponse, Recent]) -> None:
    now, recent = seen
    text = top_screen.screen(now, recent, TopChoice(), 80, 24)
    lines = text.splitlines()
    assert len(lines) == 24 and max(map(len, lines)) <= 80 and lines[-1] == HELPS[0]
    cards = lines[3:11]
    assert [line.split()[0] for line in cards] == ["7", "5", "0", "1", "2", "3", "4", "6"]
    assert cards[0].endswith("  CRITICAL free") and cards[1].endswith("  ODD llama")
    # The curve has the last minutes, of which the first was not seen.
    curve = cards[2][11:47]
    assert curve.startswith(" " * 11) and set(curve.strip()) == {"█"}
    assert [line.split()[0] for line in lines[14:20]] == ["3", "4", "0", "1", "2", "5"]
    by_number = top_screen.screen(now, recent, TopChoice(by_number=True), 80, 24).splitlines()
    assert [line.split()[0] for line in by_number[3:11]] == [str(number) for number in range(8)]
    # Small and large screens.
    for width, height in ((56, 8), (200, 60), (20, 11), (10, 5)):
        for choice in (TopChoice(), TopChoice(card=5), TopChoice(rank=("llama", 3))):
            lines = top_screen.screen(now, recent, choice, width, height).splitlines()
            assert len(lines) == height and max(map(len, lines)) <= width
    narrow = top_screen.screen(now, recent, TopChoice(), 20, 11).splitlines()
    assert narrow[1] == "CARD UTIL -5m  JOB" and narrow[-1] == HELPS[2]
    assert narrow[2].split()[0] == "7" and narrow[3].startswith("   5  20%") and narrow[3].endswith(" ODD …")
    card = top_screen.screen(now, recent, TopChoice(card=5), 20, 11).splitlines()
    assert card[1].startswith("CARD 5") and card[4].startswith("      100 |") and card[8].split() == ["Memory", "50%"]
    rank = top_screen.screen(now, recent, TopChoice(rank=("llama", 4)), 20, 11).splitlines()
    assert rank[2:4] == ["RANK    CPU   MEMORY", "   4   900%   1.0GiB"]


@pytest.mark.parametrize(("width", "curve"), [(80, 29), (40, 15)])
def test_jobs_whose_names_begin_alike_differ_on_the_screen(
    seen: tuple[telemetry_pb2.GetTelemetryResponse, Recent], width: int, curve: int
) -> None:
    now, recent = seen
    for card in now.cards[:6]:
        card.job_id = f"llama-7b-pretrain-{'ab'[card.index % 2]}"
    lines = top_screen.screen(now, recent, TopChoice(), width, 24).splitlines()
    assert max(map(len, lines)) <= width and "q quit" in lines[-1]
    head = next(line for line in lines if line.startswith("CARD"))
    cards = [line for line in lines[lines.index(head) + 1 :] if line[:4].strip().isdecimal()][:8]
    shown = {line[head.index("JOB") :].split()[-1] for line in cards}
    narrow = {"llama-7…rain-a", "llama-7…rain-b", "llama…in-b", "free"}
    assert shown == ({now.cards[0].job_id, now.cards[1].job_id, "free"} if width == 80 else narrow), cards
    begin = cards[2].index("%") + (2 if width < 56 else 3)
    assert head.index("JOB") - begin >= curve


def test_the_screen_says_what_it_cuts_and_a_long_name_hides_no_state(
    seen: tuple[telemetry_pb2.GetTelemetryResponse, Recent],
) -> None:
    now, recent = seen
    lines = top_screen.screen(now, recent, TopChoice(), 80, 18).splitlines()
    assert lines[-2] == "... 2 more lines: j shows one job, r one rank, a taller terminal all"
    assert lines[-3].split()[0] == "1"
    assert "more lines" not in top_screen.screen(now, recent, TopChoice(), 80, 21)
    other = telemetry_pb2.GetTelemetryResponse()
    other.CopyFrom(now)
    other.jobs[0].job_id = "llama-70b-" * 12
    other.cards[0].reading.ClearField("power_watts")
    lines = top_screen.screen(other, recent, TopChoice(by_number=True), 80, 24, silent="NO ANSWER for 5s").splitlines()
    (job,) = (line for line in lines if line.startswith("JOB "))
    assert len(job) == 80 and job.startswith("JOB llama-70b-") and job.endswith("…  RUNNING  devices 0-5  SLOW rank 3")
    assert lines[1] == "NO ANSWER for 5s" and lines[3].split()[3:6] == ["50%", "-", "60C"]


def test_keys_lead_through_jobs_cards_and_ranks(seen: tuple[telemetry_pb2.GetTelemetryResponse, Recent]) -> None:
    now, recent = seen
    choice = TopChoice()

    def press(*typed: str) -> str:
        for key in typed:
            choice.press(key, now)
        return top_screen.screen(now, recent, choice, 80, 24)

    assert "CARD 0  " in press("c") and "CARD 2  " in press("c", "c") and "CARD 1  " in press("C")
    text = press("C", "C", "C")  # behind the first come all, then the last
    assert "CARD 7  " in text and "memory 40.0/80.0G  power 650/700W  60C  CRITICAL" in text
    assert "RANK 0 of job llama" in press("r") and "RANK 5 of job llama" in press("R", "R")
    assert "RANK 4 of job llama" in press("R") and "1000 |" in press()
    assert "job llama, 5m" in press("j") and "   7 " not in press()
    assert choice.job == "llama" and press("j") and choice.job == ""
    assert press("c", "a") == press("escape") == top_screen.screen(now, recent, TopChoice(), 80, 24)
    assert [press("t") and choice.span for _ in SPANS] == [*SPANS[1:], SPANS[0]]
    assert press("s", "q") and choice.by_number and choice.over
    assert keys(b"jC\x1b[A\x1b[1;5Bq\x1bOPs") == ["j", "C", "q", "s"] and keys(b"\x1b") == ["escape"]


def test_the_past_of_cards_is_the_daemons_and_pauses_are_seen() -> None:
    recent = Recent()
    points = [telemetry_pb2.Point(at=Timestamp(seconds=T + at), mean=50.0) for at in range(0, 100, 4)]
    points += [telemetry_pb2.Point(at=Timestamp(seconds=T + at), mean=100.0) for at in range(200, 300, 4)]
    recent.fill(
        telemetry_pb2.GetHistoryResponse(series=[telemetry_pb2.Series(metric="npuUtil", card=3, points=points)])
    )
    found = [column and column.mean for column in recent.columns((3, "utilization"), T + 300.0, 300.0, 30)]
    assert found[:10] == [50.0] * 10 and found[12:19] == [None] * 7 and found[20:] == [100.0] * 10
    assert recent.columns((4, "utilization"), T + 300.0, 300.0, 3) == [None] * 3


def test_a_mean_of_a_minute_fills_its_minute() -> None:
    recent = Recent()
    points = [telemetry_pb2.Point(at=Timestamp(seconds=T + at), mean=50.0 + at) for at in (0, 60, 240)]
    series = telemetry_pb2.Series(metric="gpuUtil", card=0, points=points)
    recent.fill(telemetry_pb2.GetHistoryResponse(step=Duration(seconds=60), series=[series]))
    found = [column and column.mean for column in recent.columns((0, "utilization"), T + 300.0, 300.0, 60)]
    assert found[:23] == [50.0] * 11 + [110.0] * 12 and found[47:] == [290.0] * 13
    assert found[27:47] == [None] * 20
