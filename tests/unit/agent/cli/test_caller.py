"""What a job takes from where its command was typed."""

import pytest

from muster.agent.cli.spec import caller
from muster.agent.cli.spec.job_spec import Draft, from_table


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """In which train.py lies in `other` alone, and own.py here; `bin` has a python, `none` has not."""
    for name in ("here", "other", "bin", "none"):
        (tmp_path / name).mkdir()
    (tmp_path / "here/own.py").touch()
    (tmp_path / "other/train.py").touch()
    (tmp_path / "bin/python").touch(0o755)
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def filled(**table: object) -> Draft:
    draft = from_table(table)
    caller.fill(draft)
    return draft


def test_a_bare_script_of_this_folder_has_python(here):
    draft = filled(command=["own.py", "-x"])
    assert (draft.asked.command, draft.asked.workdir) == (("python3", "own.py", "-x"), str(here))
    assert filled(command=["train.py"]).asked.command == ("train.py",)


@pytest.mark.parametrize("folder", ["{}/other", "../other"])
def test_a_bare_script_of_the_named_working_folder_has_python(here, folder):
    folder = folder.format(here.parent)
    assert filled(command=["train.py"], workdir=folder).asked.command == ("python3", "train.py")
    assert filled(command=["own.py"], workdir=folder).asked.command == ("own.py",)


@pytest.mark.parametrize(
    ("env", "command"),
    [
        ({"MA_SCRIPT_INTERPRETER": "python -X dev", "PATH": "none"}, ("own.py",)),
        ({"PATH": "bin"}, ("python3", "own.py")),
        ({"PATH": "none"}, ("python3", "own.py")),
    ],
)
@pytest.mark.parametrize("boot", ["pytorch", "command", "torchrun", ""])
def test_other_boot_modes_choose_the_interpreter(here, boot, env, command):
    env = env | ({"PATH": str(here.parent / env["PATH"])} if "PATH" in env else {})
    if not boot:
        env["MA_RUN_METHOD"] = "msrun"
    assert filled(command=["own.py"], boot=boot, env=env).asked.command == command
