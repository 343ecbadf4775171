import re
from pathlib import Path

import pytest

from muster.probes.active import active_check
from muster.probes.checks import precheck
from muster.probes.checks.codes import EXPLANATIONS, Clears, UnknownCode, explain
from muster.probes.checks.result import Action, Code, Status
from muster.probes.node.node_checks import catalogue
from muster.probes.node.node_settings import NodeSettings

PAGE = (Path(__file__).parents[4] / "docs/reference/checks.md").read_text()
#: Of results that say that nothing is wrong, or nothing at all.
QUIET = (Status.OK, Status.NOT_APPLICABLE)


def test_every_code_is_explained():
    assert set(EXPLANATIONS) == set(Code)


@pytest.mark.parametrize("code", Code)
def test_an_explanation_is_whole(code):
    row = EXPLANATIONS[code]
    assert re.fullmatch(r"[A-Z`].*[.]", row.what) and re.fullmatch(r"[A-Z`].*[.]", row.remedy)
    if row.status in QUIET:
        assert not row.condition and row.action is Action.NONE
    if row.status is Status.CRITICAL:
        assert row.condition and row.action is not Action.NONE
    if row.status is Status.UNKNOWN:
        assert row.action is Action.INVESTIGATE and row.clears is Clears.READING
    assert (row.age_s > 0) == (row.clears is Clears.AGE)
    assert row.condition or row.clears is Clears.READING


def test_what_times_out_or_hangs_is_never_held_against_a_node():
    for code in (Code.PROBE_TIMED_OUT, Code.PROBE_FAILED, Code.DRIVER_HANG, Code.KERNEL_LOG_UNREADABLE):
        assert EXPLANATIONS[code].status is Status.UNKNOWN


@pytest.mark.parametrize("written", ["GPU_LOST", "gpu_lost", " Gpu_Lost "])
def test_a_code_in_upper_and_lower_case(written):
    code, row = explain(written)
    assert code is Code.GPU_LOST and row is EXPLANATIONS[code]


def test_a_code_that_does_not_exist_names_the_nearest():
    with pytest.raises(UnknownCode, match=r"no code 'GPU_LOOST'.*GPU_LOST"):
        explain("GPU_LOOST")


def test_the_page_explains_each_code_once():
    rows = re.findall(r"^\| `([A-Z_]+)` \| (\w+) \| `(\w+)` \| ([^|]*) \| (.*) \|$", PAGE, re.MULTILINE)
    assert sorted(code for code, *_ in rows) == sorted(Code)
    for code, status, action, ends, text in rows:
        row = EXPLANATIONS[Code(code)]
        assert (status, action, bool(ends.strip())) == (row.status, row.action, row.condition), code
        assert row.what in text and (row.remedy in text or row.remedy == "Nothing."), code


def test_the_page_has_each_check():
    for check in catalogue(NodeSettings()):
        period = f"{check.interval_s:g} s" if check.interval_s else "events"
        assert f"| `{check.item}` | {check.looks_at} | {period} |" in PAGE, check.item
    for entry in precheck.catalogue():
        assert f"| `{entry.item}` | {entry.checks} |" in PAGE, entry.item


def test_every_code_belongs_to_a_check():
    common = {Code.NODE_OK, Code.NODE_PENDING, Code.NODE_NOT_APPLICABLE, Code.NODE_NOT_TOLD}
    of_node = {code for check in catalogue(NodeSettings()) for code in check.codes}
    of_start = {code for entry in precheck.catalogue() for code in entry.codes}
    of_work = {code for entry in active_check.catalogue() for code in entry.codes}
    of_daemon = {Code.SUPERVISOR_CRASHING, Code.DAEMON_DEGRADED, Code.OUTPUT_LOST, Code.PRIVATE_TMP_LEFT}
    assert of_node | of_start | of_work | common | of_daemon == set(Code)
    assert not of_node & of_start and not of_work & (of_node | of_start)


@pytest.mark.parametrize("code", [Code.GPU_LOST, Code.NPU_LOST])
def test_the_remedy_for_a_lost_card_is_no_reset_that_muster_refuses(code):
    """`muster node reset` of such a card is refused without --force: only a reboot, or a power cycle, helps."""
    assert "`muster node reset CARD`" not in EXPLANATIONS[code].remedy
