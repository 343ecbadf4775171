"""The configuration file with every setting as a comment: what `musterd --default-config` prints."""

import re
import textwrap
from collections.abc import Iterator

from muster.agent.config.schema import TABLES
from muster.probes.settings import Setting, settings_of, toml

_WIDTH = 110
_HEAD = (
    "Configuration of musterd. Every setting has a default, which this file shows behind `#`. To change it, remove "
    "the `#` and write your value. `musterd --check-config` checks the file; `systemctl reload musterd` has it read "
    "again."
)
_LINK = re.compile(r"\[([^]]+)\]\(([^)#]+)(#[^)]*)?\)")


def commented() -> str:
    """The whole file; musterd takes it, and has its defaults."""
    lines = [*_comment(_HEAD)]
    for name, table in TABLES.items():
        lines += ["", *_comment(table.__doc__ or ""), f"[{name}]"]
        for declared in settings_of(table).values():
            lines += ["", *_comment(_text(declared)), f"#{declared.name} = {toml(declared.default)}"]
    return "\n".join(lines) + "\n"


def _text(declared: Setting) -> str:
    allowed = declared.allowed()
    restart = " A change takes effect when musterd is started again." if declared.restart else ""
    return f"{declared.help}{restart} Allowed: {allowed}."


def _comment(text: str) -> Iterator[str]:
    plain = _LINK.sub(r"docs/\2", " ".join(text.split()))
    return (f"# {line}" for line in textwrap.wrap(plain, _WIDTH, break_long_words=False, break_on_hyphens=False))
