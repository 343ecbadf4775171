"""The commented configuration file: it holds every setting, and each line is one that musterd takes."""

import re
import tomllib
from pathlib import Path

import pytest

from muster.agent.config import loading
from muster.agent.config.commented import commented
from muster.agent.config.schema import TABLES, Config
from muster.probes.settings import settings_of

ALL = [(table, name) for table, kind in TABLES.items() for name in settings_of(kind)]


def test_the_file_as_it_is_has_every_default(tmp_path: Path):
    path = tmp_path / "musterd.toml"
    path.write_text(commented())
    assert loading.load(path) == Config()


def test_each_setting_with_its_comment_removed_has_its_default():
    raw = tomllib.loads(re.sub(r"^#(\w+ = )", r"\1", commented(), flags=re.MULTILINE))
    assert [(table, name) for table, values in raw.items() for name in values] == ALL
    assert loading.parse(raw) == Config()


def test_lines_fit_a_terminal():
    assert all(len(line) <= 120 for line in commented().splitlines() if line.startswith("# "))


@pytest.mark.parametrize(("table", "name"), ALL)
def test_each_setting_says_what_it_is_and_what_is_allowed(table: str, name: str):
    declared = settings_of(TABLES[table])[name]
    assert declared.help[0].isupper() or declared.help.startswith(("`", "musterd ", "muster "))
    assert declared.help.endswith(".") and declared.allowed() and not declared.allowed().endswith(".")
    assert (
        declared.read(list(declared.default) if isinstance(declared.default, tuple) else declared.default) is not None
    )
