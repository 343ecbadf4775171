"""Escapes text of jobs and nodes for a page: no markup, and no characters that change the direction of the text."""

import html
import json
import re

from muster.agent.text import clean, plain

#: How muster marks a command in a sentence.
COMMAND = re.compile("`([^`]+)`")
#: What Markdown takes for markup.
_MARKS = re.compile(r"([\\`*_{}\[\]<>#|~!])")


def escaped(text: str) -> str:
    """For HTML, in text and in quoted attributes."""
    return html.escape(clean(plain(text)), quote=True)


def script_data(value: object) -> str:
    """As JSON in a `script` element, which nothing in it can end."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def marked_down(text: str) -> str:
    """For a line of Markdown, in a cell of a table, too."""
    return _MARKS.sub(r"\\\1", clean(plain(text)).replace("\t", " ").replace("\n", " "))


def sentence_marked_down(text: str) -> str:
    """A sentence of muster's, with its commands as code."""
    words = COMMAND.split(text)  # every other one is a command
    return "".join(f"`{clean(plain(word))}`" if at % 2 else marked_down(word) for at, word in enumerate(words))


def code_block(lines: list[str]) -> str:
    """Lines as they are, in a fence that none of them ends."""
    cleaned = [clean(plain(line)).replace("\n", " ") for line in lines]
    longest = max((len(run) for line in cleaned for run in re.findall("`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return "\n".join([fence, *cleaned, fence])
