"""The wheels of an image: what is refused before anything is fetched."""

from pathlib import Path

import pytest

from scripts import image, wheelhouse


@pytest.mark.parametrize("version", ["3.10", "2.7", "x", ""])
def test_a_python_that_muster_does_not_run_on_is_refused(
    version: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        image.main(["--ascend", "--python", version])
    assert caught.value.code == 2
    assert f"--python: {version!r}: muster needs Python >=3.11: give a version such as" in capsys.readouterr().err
    kept = tmp_path / "kept"
    kept.touch()
    with pytest.raises(SystemExit):
        wheelhouse.main([str(tmp_path), "--python", version])
    assert kept.exists()


@pytest.mark.parametrize("version", ["3.11", "3.11.2", "3.14"])
def test_a_python_that_muster_runs_on(version: str) -> None:
    assert wheelhouse.unfit(version) == ""
