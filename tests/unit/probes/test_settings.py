"""What a declaration of a setting does: which values it takes, and what it says of others."""

from dataclasses import dataclass
from typing import Literal

import pytest

from muster.probes.settings import FileMode, Settings, absolute_path, setting, settings_of, toml


@dataclass(frozen=True, slots=True)
class Probe(Settings):
    """Settings of each kind."""

    period_s: float = setting(10.0, "How often.", above=0, most=60)
    tries: int = setting(3, "How often at most.", least=1)
    share: float = setting(0.5, "Which share.", most=1)
    on: bool = setting(True, "Whether.")
    when: Literal["always", "never"] = setting("always", "When.")
    path: str = setting("", "Where.", what="an absolute path, or empty", rule=absolute_path)
    token: str = setting(
        "", "Its password.", what="a word of a to z", secret=True, rule=lambda text: text and "is wrong"
    )
    names: tuple[str, ...] = setting((), "Who.")
    steps: tuple[float, ...] = setting((1.0, 2.0), "How.")
    mode: FileMode = setting(FileMode(0o640), "Which mode.", restart=True)


@dataclass(frozen=True, slots=True)
class Table(Probe):
    policy: Literal["warn", "off"] = setting("warn", "What to do.")
    most: int = setting(5, "At most.")

    def check_together(self) -> None:
        if self.most < self.tries:
            raise ValueError(f"most: {self.most}: must be at least tries, which is {self.tries}")


def test_what_is_missing_has_its_default():
    assert Probe.read({}) == Probe()
    assert Probe.read({"tries": 5}) == Probe(tries=5)


@pytest.mark.parametrize(
    ("name", "written", "value"),
    [
        ("period_s", 5, 5.0),
        ("period_s", 0.5, 0.5),
        ("on", False, False),
        ("when", "never", "never"),
        ("path", "/x", "/x"),
        ("names", ["a", "b"], ("a", "b")),
        ("steps", [1, 0.5], (1.0, 0.5)),
        ("mode", "0600", 0o600),
        ("mode", 0o600, 0o600),
    ],
)
def test_a_value_of_a_file_is_taken(name: str, written: object, value: object):
    found = getattr(Probe.read({name: written}), name)
    assert found == value and type(found) is type(getattr(Probe(), name))


@pytest.mark.parametrize(
    ("name", "written", "says"),
    [
        ("period_s", 0, "period_s: 0: must be a number above 0, at most 60 (seconds)"),
        ("period_s", 61, "period_s: 61: must be a number above 0, at most 60 (seconds)"),
        ("period_s", float("nan"), "period_s: nan: must be a number above 0, at most 60 (seconds)"),
        ("period_s", 10**400, "must be a number above 0"),
        ("period_s", True, "period_s: true: must be a number"),
        ("period_s", "5", "period_s: '5': must be a number"),
        ("share", -0.1, "share: -0.1: must be a number, 0 to 1"),
        ("tries", 0, "tries: 0: must be a whole number, 1 or more"),
        ("tries", 1.0, "tries: 1: must be a whole number"),
        ("on", 1, "on: 1: must be true or false"),
        ("when", "often", "when: 'often': must be always or never"),
        ("path", "x", "path: 'x': must be an absolute path"),
        ("path", "/a\0", "path: must not contain a NUL character"),
        ("path", ["/x"], 'path: ["/x"]: must be an absolute path, or empty'),
        ("token", ["hush"], "token: must be a word of a to z"),
        ("token", "hush", "token: is wrong"),
        ("names", "a", "names: 'a': must be a list of texts"),
        ("names", ["a", 1], 'names: ["a", 1]: must be a list of texts'),
        ("names", ["a\0"], "names: must not contain a NUL character"),
        ("mode", "0999", "mode: '0999': must be octal text"),
        ("mode", 0o060, "mode: 48: must be octal text"),
        ("trys", 3, "unknown key 'trys': did you mean 'tries'?"),
        ("wrong", 3, "unknown key 'wrong': known are period_s, tries"),
    ],
)
def test_a_value_that_is_not_allowed_is_refused(name: str, written: object, says: str):
    with pytest.raises(ValueError) as caught:
        Probe.read({name: written})
    assert says in str(caught.value) and "hush" not in str(caught.value) and len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("period_s", "5", 5.0),
        ("tries", "7", 7),
        ("on", "false", False),
        ("when", "never", "never"),
        ("path", "/x", "/x"),
    ],
)
def test_a_value_of_a_command_line_is_taken(name: str, text: str, value: object):
    assert getattr(Probe().with_written({name: text}), name) == value


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("period_s", "soon", "period_s: 'soon': must be a number above 0"),
        ("tries", "1.5", "tries: '1.5': must be a whole number, 1 or more"),
        ("on", "yes", "on: 'yes': must be true or false"),
        ("trys", "3", "unknown key 'trys'"),
    ],
)
def test_a_text_that_is_no_value_is_refused(name: str, text: str, says: str):
    with pytest.raises(ValueError) as caught:
        Probe().with_written({name: text})
    assert says in str(caught.value)


def test_a_table_that_derives_from_settings_has_its_own_first_and_both_rules():
    assert list(settings_of(Table)) == ["policy", "most", *settings_of(Probe)]
    assert isinstance(Table.read({"policy": "off", "tries": 4}), Probe)
    with pytest.raises(ValueError, match="most: 2: must be at least tries, which is 3"):
        Table.read({"most": 2})
    with pytest.raises(ValueError, match="tries: 0: must be"):
        Table(tries=0)


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.0, "1"), (0.25, "0.25"), (True, "true"), (("a", 'b"'), '["a", "b\\""]'), (FileMode(0o60), '"0060"')],
)
def test_a_value_as_a_file_has_it(value: object, text: str):
    assert toml(value) == text
