import itertools

import pytest

from muster.probes.checks.result import CheckResult, Code, Status, final_line, log_lines, worst


def result(status, reason="because", item="dns"):
    return CheckResult(item, status, Code.DNS_OK, reason, seconds=0.25)


ORDER = [Status.OK, Status.WARN, Status.UNKNOWN, Status.CRITICAL]


@pytest.mark.parametrize(("low", "high"), list(itertools.combinations(ORDER, 2)))
def test_worst_is_by_gravity_not_by_exit_code(low, high):
    assert worst([result(low), result(high)]) is high
    assert worst([result(high), result(low)]) is high


def test_nothing_and_not_applicable_are_ok():
    assert worst([]) is Status.OK
    assert worst([result(Status.NOT_APPLICABLE)]) is Status.OK


def test_exit_codes_are_nagios():
    assert [s.exit_code for s in Status] == [0, 1, 2, 3, 0]


def test_one_log_line_per_item_with_word_result_and_seconds():
    lines = log_lines([result(Status.OK), result(Status.WARN, item="disk-size root")])
    assert len(lines) == 2
    assert lines[1] == "pre-check item: disk-size root, result: WARN (DNS_OK), 0.250 s: because"


def test_a_reason_cannot_forge_a_line():
    (line,) = log_lines([result(Status.OK, "fine\npre-check item: dns, result: OK\x1b[2J\udc80")])
    assert line.isprintable()
    assert "\\n" in line and "\\x1b" in line


def test_the_last_line_says_what_modelarts_says_and_names_the_items():
    results = [
        result(Status.CRITICAL),
        result(Status.UNKNOWN, item="ulimit"),
        result(Status.CRITICAL, item="custom a\nb"),
    ]
    assert final_line(results) == "pre-check failed (item: dns, custom a\\nb): error,exiting"
    assert final_line([]).endswith("error,exiting")
