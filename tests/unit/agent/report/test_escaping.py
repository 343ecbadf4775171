"""Nothing that a job wrote is markup."""

import html
import json
import re

from hypothesis import given
from hypothesis import strategies as st

from muster.agent.report.escaping import code_block, escaped, marked_down, script_data, sentence_marked_down


@given(st.text())
def test_no_text_is_markup_in_html(text: str) -> None:
    found = escaped(text)
    assert not set(found) & set("<>\"'\0\x1b\u202e\u2066")
    assert re.sub(r"&(lt|gt|amp|quot|#x27);", "", found).count("&") == 0
    html.unescape(found).encode()  # no lone surrogates


@given(
    st.recursive(st.none() | st.text() | st.integers(), lambda each: st.lists(each) | st.dictionaries(st.text(), each))
)
def test_no_data_ends_its_script(value: object) -> None:
    found = script_data(value)
    assert "<" not in found and found.isascii()
    assert json.loads(found) == value


@given(st.text())
def test_no_text_is_markup_in_a_line_of_markdown(text: str) -> None:
    found = marked_down(text)
    assert not re.search(r"(?<!\\)(?:\\\\)*[`*_<>\[\]|#~!]", found)
    assert "\n" not in found and "\x1b" not in found


@given(st.lists(st.text()))
def test_no_line_ends_its_block(lines: list[str]) -> None:
    first, *inside, last = code_block(lines).split("\n")
    assert first == last and set(first) == {"`"} and len(inside) == len(lines)
    assert not any(re.match(rf"\s*{first}", line) for line in inside)


def test_a_command_in_a_sentence_is_code_and_the_rest_is_no_markup() -> None:
    assert sentence_marked_down("Read *it*: `muster logs j_1 -r 2`.") == r"Read \*it\*: `muster logs j_1 -r 2`."
    assert sentence_marked_down("one ` alone") == r"one \` alone"
