"""The command line of musterd."""

import pytest

from muster.agent import musterd


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--nope"], "musterd: no such option '--nope'"),
        (["--root"], "musterd: option '--root' requires an argument"),
        (["now"], "musterd: got unexpected extra argument (now)"),
    ],
)
def test_a_usage_error_begins_with_the_name_of_the_program(
    arguments: list[str], says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["musterd", *arguments])
    with pytest.raises(SystemExit) as ended:
        musterd.main()
    assert ended.value.code == 2
    assert says in capsys.readouterr().err.splitlines()


def test_help_exits_with_0(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["musterd", "--help"])
    with pytest.raises(SystemExit) as ended:
        musterd.main()
    assert ended.value.code == 0 and capsys.readouterr().out.startswith("Usage: musterd ")
