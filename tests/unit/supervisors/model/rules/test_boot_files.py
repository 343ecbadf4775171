"""What ModelArts uses that lies beside the boot file."""

from pathlib import Path

import pytest

from muster.supervisors.model.rules.boot_files import beside


def test_the_first_script_of_the_command_is_the_boot_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = tmp_path / "code"
    code.mkdir()
    for name in ("train.py", "ma_pre_start.sh", "pip-requirements.txt"):
        (code / name).touch()
    found = {"pre_start": f"{code}/ma_pre_start.sh", "requirements": f"{code}/pip-requirements.txt"}
    assert beside(("python", f"{code}/train.py"), "/") == found
    assert beside(("python", "code/train.py"), str(tmp_path)) == found
    assert beside(("python", "missing.py", "train.py"), str(code)) == found, "the first that is there"
    assert beside(("python", "-m", "train.py"), str(code)) == beside(("true",), str(code)) == {}
    (code / "ma-pre-start.py").touch()
    assert beside(("train.py",), str(code))["pre_start"] == f"{code}/ma-pre-start.py"
    monkeypatch.chdir(code)
    assert beside(("python", "train.py"), "") == {}, "whoever looks is elsewhere than the ranks"
