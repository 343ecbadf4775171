"""The two formats of a page, read by the parsers of Prometheus' own library."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from muster.agent.exposition import Catalogue, Distribution, Page, wants_openmetrics

ALL = Catalogue()
PLAIN = ALL.gauge("plain", 'Says \\ and \n and "quotes".')
LABELLED = ALL.gauge("labelled", "With labels.", "a", "b")
GROWS = ALL.counter("grows_total", "Grows.", "a")
ODD = ALL.counter("ODD_COUNTER", "A counter of somebody else's.")
SPREAD = ALL.histogram("spread_seconds", "Spreads.")


def samples(families):
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}


def full() -> Page:
    page = Page()
    page.add(PLAIN, 1.5)
    page.add(LABELLED, True, 'x"y\\z\n', "ü")
    page.add(GROWS, 10**17 + 1, "v")
    page.add(ODD, 7)
    page.add_distribution(SPREAD, Distribution(((0.1, 2), (1.0, 3)), 4, 12.5))
    return page


@pytest.mark.parametrize(
    ("openmetrics", "parse", "odd"),
    # The library's parser of the text format gives every counter the suffix; Prometheus does not.
    [(False, parse_text, "ODD_COUNTER_total"), (True, parse_openmetrics, "ODD_COUNTER")],
)
def test_a_page_says_the_same_in_both_formats(openmetrics, parse, odd):
    families = list(parse(full().text(openmetrics=openmetrics).decode()))
    assert samples(families) == {
        ("plain", ()): 1.5,
        ("labelled", (("a", 'x"y\\z\n'), ("b", "ü"))): 1,
        ("grows_total", (("a", "v"),)): 10**17 + 1,
        (odd, ()): 7,
        ("spread_seconds_bucket", (("le", "0.1"),)): 2,
        ("spread_seconds_bucket", (("le", "1.0"),)): 3,
        ("spread_seconds_bucket", (("le", "+Inf"),)): 4,
        ("spread_seconds_sum", ()): 12.5,
        ("spread_seconds_count", ()): 4,
    }
    assert families[0].documentation == 'Says \\ and \n and "quotes".'


def test_types():
    """OpenMetrics knows no counter without `_total`; the text format does."""
    text = full().text().decode()
    assert "# TYPE ODD_COUNTER counter" in text and "# TYPE grows_total counter" in text
    openmetrics = full().text(openmetrics=True).decode()
    assert "# TYPE ODD_COUNTER unknown" in openmetrics and "# TYPE grows counter" in openmetrics
    assert openmetrics.endswith("# EOF\n")


def test_what_is_not_known_is_not_there():
    page = Page()
    page.add(PLAIN, None)
    assert page.text() == b""
    assert list(parse_openmetrics(page.text(openmetrics=True).decode())) == []


def test_a_label_set_stands_once():
    page = Page()
    page.add(LABELLED, 1, "x", "y")
    page.add(LABELLED, 2, "x", "y")
    assert samples(parse_text(page.text().decode())) == {("labelled", (("a", "x"), ("b", "y"))): 2}


def test_counts_have_a_zero_for_what_is_none():
    page = Page()
    page.add_counts(GROWS, ("one", "none"), ["one", "one", "other"])
    assert samples(parse_text(page.text().decode())) == {
        ("grows_total", (("a", "one"),)): 2,
        ("grows_total", (("a", "none"),)): 0,
        ("grows_total", (("a", "other"),)): 1,
    }


@given(st.text(), st.floats(allow_nan=False))
def test_any_label_and_any_number_can_be_read_again(text, value):
    page = Page()
    page.add(LABELLED, value, text, "")
    page.add(PLAIN, value)
    for openmetrics, parse in ((False, parse_text), (True, parse_openmetrics)):
        found = samples(parse(page.text(openmetrics=openmetrics).decode()))
        told = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        assert found == {("labelled", (("a", told), ("b", ""))): value, ("plain", ()): value}


def test_bytes_that_are_no_text_are_shown_as_such():
    page = Page()
    page.add(LABELLED, 1, "/mnt/\udcff", "")
    assert b"/mnt/\xef\xbf\xbd" in page.text()


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        ("", False),
        ("*/*", False),
        ("text/plain", False),
        ("application/openmetrics-text", True),
        ("application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1", True),
        ("application/openmetrics-text; version=0.0.1; q=0.75, text/plain", False),
        ("text/plain;q=0.9,application/openmetrics-text;version=1.0.0;q=0.2", False),
        ("application/openmetrics-text;q=0", False),
        ("application/openmetrics-text;q=many", False),
        (";;,=,;q", False),
        # As Prometheus 2.55 and 3 ask.
        (
            "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
            "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,"
            "text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
            True,
        ),
    ],
)
def test_which_format_a_client_gets(accept, wanted):
    assert wants_openmetrics(accept) is wanted
