import json
import os
import shutil
import subprocess
import sys
import types
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from muster.supervisors.job import steps
from muster.supervisors.job.steps import EPILOG, PRE_START, REQUIREMENTS
from muster.supervisors.launch import environment
from muster.supervisors.model.lifecycle import Job, Rank, Verdict
from muster.supervisors.model.spec import DEFAULT_REQUIREMENTS_S, DEFAULT_SCRIPT_S, JobSpec
from muster.supervisors.model.states import STEP, Outcome, State
from muster.supervisors.wire.explained_end import CauseFound

SPEC = JobSpec("j", ("sh", "-c", "train"), pre_start="/s/pre.sh", requirements="/s/req.txt", epilog="/s/end.sh")
SHELLS = [shell for shell in ("bash", "dash", "sh") if shutil.which(shell)]
PATH = os.environ["PATH"]


# --- which, and how long ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "done", "expected"),
    [
        ((), (), ""),
        ((REQUIREMENTS,), (), REQUIREMENTS),
        ((REQUIREMENTS, PRE_START), (), REQUIREMENTS),
        ((REQUIREMENTS, PRE_START), (REQUIREMENTS,), PRE_START),
        ((REQUIREMENTS, PRE_START), (PRE_START,), REQUIREMENTS),
        ((REQUIREMENTS, PRE_START), (REQUIREMENTS, PRE_START), ""),
        ((PRE_START,), (REQUIREMENTS,), PRE_START),
        ((EPILOG,), (), ""),  # comes behind the ranks
    ],
)
def test_what_is_next_before_the_ranks(asked, done, expected):
    spec = JobSpec("j", ("x",), **dict.fromkeys(asked, "/path"))  # type: ignore[arg-type]
    assert steps.due(spec, Job(steps_done=set(done))) == expected


def test_time_limits():
    assert [steps.time_limit(name, SPEC) for name in (REQUIREMENTS, PRE_START, EPILOG)] == [
        DEFAULT_REQUIREMENTS_S,
        DEFAULT_SCRIPT_S,
        DEFAULT_SCRIPT_S,
    ]
    asked = replace(SPEC, requirements_timeout=1.0, pre_start_timeout=2, epilog_timeout=0.5)
    assert [steps.time_limit(name, asked) for name in (REQUIREMENTS, PRE_START, EPILOG)] == [1.0, 2.0, 0.5]


def test_a_step_and_what_it_runs_in_words():
    assert steps.shown(PRE_START, SPEC) == "pre_start /s/pre.sh"
    assert steps.shown(REQUIREMENTS, SPEC) == "requirements /s/req.txt"


# --- requirements -----------------------------------------------------------------------------------------------------


def pip_of(command: str, **env: str) -> tuple[str, ...]:
    return steps.command(REQUIREMENTS, replace(SPEC, command=(command,)), env, "/job/packages", "/job/exports")


@pytest.mark.parametrize(
    ("command", "env", "python"),
    [
        ("python", {}, ("python",)),
        ("/opt/conda/bin/python3.9", {}, ("/opt/conda/bin/python3.9",)),
        ("/opt/conda/bin/python3.9", {"MA_SCRIPT_INTERPRETER": "/ma/python"}, ("/ma/python",)),
        ("bash", {"MA_SCRIPT_INTERPRETER": "/ma/python -u"}, ("/ma/python", "-u")),  # words, as in the boot modes
        ("bash", {"MA_SCRIPT_INTERPRETER": "/ma's/python"}, ("/ma's/python",)),
        ("bash", {"MA_SCRIPT_INTERPRETER": " "}, ("python",)),
        ("train.py", {"PATH": "/nowhere"}, ("python",)),
    ],
)
def test_packages_are_installed_by_the_jobs_own_interpreter(command, env, python):
    assert pip_of(command, **{"PATH": "/nowhere"} | env)[: len(python) + 3] == (*python, "-m", "pip", "install")


def test_python3_where_there_is_one():
    folder = os.path.dirname(shutil.which("python3") or pytest.skip("needs python3"))
    assert pip_of("bash", PATH=folder)[0] == "python3"


def test_packages_are_installed_for_this_job_alone():
    argv = pip_of("python")
    assert argv[argv.index("--target") + 1] == "/job/packages"
    assert argv[argv.index("-r") + 1] == "/s/req.txt"
    assert "--no-input" in argv, "nobody is there to answer"


# --- scripts ----------------------------------------------------------------------------------------------------------


def run(
    folder: Path,
    script: str,
    *,
    name: str = PRE_START,
    shell: str = "",
    suffix: str = ".sh",
    env: Mapping[str, str] = types.MappingProxyType({}),
) -> tuple[int, str, dict[str, str | None]]:
    """Runs a step as it is, and returns its exit code, its output and what it changed of the environment."""
    path, exports = folder / f"it's a script{suffix}", folder / "the exports"
    path.write_text(script)
    exports.touch(0o600)
    before = {"PATH": PATH, "GIVEN": "1", **env}
    spec = replace(SPEC, command=(sys.executable,), pre_start=str(path), epilog=str(path))
    argv = steps.command(name, spec, before, "/packages", str(exports))
    if shell:  # as on a node that has this one
        argv = (shell, *argv[1:])
    done = subprocess.run(
        argv, env=before | {"MUSTER_STEP": name}, cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, done.stdout + done.stderr, environment.read_exports(exports, before)


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_script_exports_variables(tmp_path, shell):
    script = "export NEW=\"a b\n'c'\"; unset GIVEN; NOT_EXPORTED=1; export PATH=/x:$PATH"
    assert run(tmp_path, script, shell=shell) == (0, "", {"NEW": "a b\n'c'", "GIVEN": None, "PATH": f"/x:{PATH}"})


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("export A=1; exit 0", 0),
        ("export A=1; exit 7", 7),
        ("export A=1; set -e; false; export A=2", 1),
        ("export A=1; (exit 3)", 3),
        ("export A=1; return 4", 4),
        ("set -eu; export A=1; trap : EXIT", 0),  # a trap of its own in the place of ours
        ("set -e; export A=1; test -n '' || true", 0),
        ("set -C; export A=1", 0),
        ("set -a; A=1", 0),
        ("export A=1; env() { return 9; }; export PATH=/nowhere; unset PATH; export PATH='" + PATH + "'", 0),
        ("export A=1; cd /", 0),
        ("export A=1; umask 0777; set -u", 0),
    ],
)
def test_the_code_of_a_shell_script_is_the_steps(tmp_path, shell, script, code):
    """However it comes to its end; what it exported counts where it ended well."""
    found, output, changes = run(tmp_path, script, shell=shell)
    assert (found, output) == (code, "")
    if code == 0:
        assert changes == {"A": "1"}


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_has_no_arguments_and_may_set_its_own(tmp_path, shell):
    """Nor do they lead what it exports elsewhere."""
    code, output, changes = run(tmp_path, "echo $#; set -- a b; shift; export A=$1", shell=shell)
    assert (code, output, changes) == (0, "0\n", {"A": "b"})
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["it's a script.sh", "the exports"]


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_knows_its_own_name(tmp_path, shell):
    """It may want to read what lies beside it."""
    assert run(tmp_path, 'echo "$0"', shell=shell)[1] == f"{tmp_path}/it's a script.sh\n"


@pytest.mark.parametrize("shell", SHELLS)
def test_no_variable_of_the_job_is_touched(tmp_path, shell):
    names = ("code", "out", "script", "status", "name", "i")
    assert run(tmp_path, "", shell=shell, env=dict.fromkeys(names, "mine"))[2] == {}


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_that_becomes_another_program_exports_nothing(tmp_path, shell):
    assert run(tmp_path, "export A=1; exec sh -c 'echo other; exit 3'", shell=shell) == (3, "other\n", {})


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_that_does_not_parse_or_is_not_there_fails(tmp_path, shell):
    code, output, changes = run(tmp_path, "if then", shell=shell)
    assert (code != 0, "yntax" in output, changes) == (True, True, {})
    argv = steps.command(PRE_START, replace(SPEC, pre_start=str(tmp_path / "no.sh")), {}, "", str(tmp_path / "x"))
    done = subprocess.run([shell, *argv[1:]], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert str(tmp_path / "no.sh") in done.stderr


@pytest.mark.parametrize("shell", [*SHELLS, "python"])
@pytest.mark.parametrize("ending", ["", "exit(0)"])
def test_exports_that_cannot_be_kept_are_a_failure(tmp_path, shell, ending):
    """Else the ranks would run without them, and nobody would know."""
    exports = tmp_path / "missing" / "exports"
    path = tmp_path / ("pre.py" if shell == "python" else "pre.sh")
    path.write_text(ending if shell == "python" else ending.replace("(0)", " 0"))
    spec = replace(SPEC, command=(sys.executable,), pre_start=str(path))
    argv = steps.command(PRE_START, spec, {"PATH": PATH}, "", str(exports))
    argv = argv if shell == "python" else (shell, *argv[1:])
    done = subprocess.run(argv, env={"PATH": PATH}, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert str(exports) in done.stderr


def test_bash_is_taken_where_it_is():
    assert steps.command(PRE_START, SPEC, {"PATH": PATH}, "", "/x")[0] == ("bash" if shutil.which("bash") else "sh")
    assert steps.command(PRE_START, SPEC, {"PATH": "/nowhere"}, "", "/x")[0] == "sh"


@pytest.mark.skipif(not shutil.which("bash"), reason="needs bash")
def test_bash_finds_the_scripts_own_file(tmp_path):
    assert run(tmp_path, 'echo "${BASH_SOURCE[0]}"', shell="bash")[1] == f"{tmp_path}/it's a script.sh\n"


def test_a_python_script_exports_variables(tmp_path):
    script = """
import os, sys
os.environ["NEW"] = "a b\\nc"
del os.environ["GIVEN"]
print(__name__, sys.argv == [__file__], sys.path[0] == os.path.dirname(__file__))
"""
    assert run(tmp_path, script, suffix=".py") == (0, "__main__ True True\n", {"NEW": "a b\nc", "GIVEN": None})


@pytest.mark.parametrize(
    ("ending", "code", "said"),
    [
        ("", 0, ""),
        ("raise SystemExit", 0, ""),
        ("import sys; sys.exit(5)", 5, ""),
        ("raise SystemExit('no data')", 1, "no data"),
        ("1 / 0", 1, "ZeroDivisionError"),
        ("import beside_it_is_nothing", 1, "ModuleNotFoundError"),
        ("def (", 1, "SyntaxError"),
    ],
)
def test_the_code_of_a_python_script_is_the_steps(tmp_path, ending, code, said):
    found, output, changes = run(tmp_path, f"import os; os.environ['A'] = '1'\n{ending}\n", suffix=".py")
    assert (found, said in output) == (code, True)
    assert code or changes == {"A": "1"}


def test_a_python_script_imports_what_lies_beside_it(tmp_path):
    (tmp_path / "beside.py").write_text("VALUE = 'x'\n")
    script = "import os, beside; os.environ['A'] = beside.VALUE"
    assert run(tmp_path, script, suffix=".py")[2] == {"A": "x"}


# --- the epilog -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "mode", "said"),
    [
        (f"#!{sys.executable}\nimport sys; print('python', sys.argv[1:]); sys.exit(3)\n", 0o755, "python []"),
        ("echo shell $#; exit 3\n", 0o755, "shell 0"),
        ("echo shell $#; exit 3\n", 0o644, "shell 0"),
    ],
    ids=["with its interpreter", "without one", "not executable"],
)
@pytest.mark.parametrize("path", [os.environ["PATH"], "/nowhere"])
def test_an_epilog_is_executed_or_read_by_a_shell(tmp_path, text, mode, said, path):
    script = tmp_path / "the end"
    script.write_text(text)
    script.chmod(mode)
    words = steps.command(EPILOG, replace(SPEC, epilog=str(script)), {"PATH": path}, "", "/x")
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.strip()) == (3, said)


@pytest.mark.parametrize("suffix", [".sh", ".py"])
def test_an_epilog_exports_nothing(tmp_path, suffix):
    script = "export A=1; exit 3" if suffix == ".sh" else "import os, sys; os.environ['A'] = '1'; sys.exit(3)"
    assert run(tmp_path, script, name=EPILOG, suffix=suffix) == (3, "", {})


def test_an_epilog_learns_how_the_job_ended():
    end = Verdict(7, "rank 0 exited with code 7", recommendation="FAIL")
    env = steps.environment_of_epilog(State.FAILED, end, "", None)
    assert env == {
        "MUSTER_STATE": "FAILED",
        "MUSTER_EXIT_CODE": "7",
        "MUSTER_REASON": "",
        "MUSTER_SUMMARY": "rank 0 exited with code 7",
        "MUSTER_RECOMMENDATION": "FAIL",
        "MUSTER_RECOMMENDATION_STAGE": "early",
        "MUSTER_FAULTY_NODE": "",
        "MUSTER_CAUSE": "",
    }
    told = steps.environment_of_epilog(State.FAILED, end, "", CauseFound("RETRY_ELSEWHERE", "the card is lost"))
    assert told == env | {
        "MUSTER_RECOMMENDATION": "RETRY_ELSEWHERE",
        "MUSTER_RECOMMENDATION_STAGE": "explained",
        "MUSTER_CAUSE": "the card is lost",
    }
    # Of a job that did not fail there is nothing to explain.
    well = steps.environment_of_epilog(State.SUCCEEDED, Verdict(0, "all ranks exited with code 0"), "", None)
    assert (well["MUSTER_RECOMMENDATION"], well["MUSTER_RECOMMENDATION_STAGE"]) == ("NONE", "explained")
    assert json.loads(json.dumps(env)) == env
    assert {type(value) for value in env.values()} <= {str, State}


# --- how a step ended -------------------------------------------------------------------------------------------------


def ended(outcome: Outcome, status: int | None, detail: str = "") -> Rank:
    return Rank(STEP, 0, 0, pid=9, outcome=outcome, status=status, detail=detail)


@pytest.mark.parametrize("outcome", Outcome)
def test_only_a_code_of_0_that_was_seen_is_a_success(outcome):
    for status in (0, 7 << 8, 9, None):
        assert steps.succeeded(ended(outcome, status)) == (outcome is Outcome.EXITED and status == 0)


def test_a_step_that_runs_has_not_succeeded():
    assert not steps.succeeded(Rank(STEP, 0, 0, pid=9))


@pytest.mark.parametrize(
    ("step", "code"),
    [
        (ended(Outcome.EXITED, 7 << 8), 7),
        (ended(Outcome.SIGNALLED, 15), 143),  # its time was over
        (ended(Outcome.EXITED, 0), 125),  # it left processes behind
        (ended(Outcome.NOT_STARTED, 127 << 8), 127),
        (ended(Outcome.LOST, None), 125),
    ],
)
def test_a_step_that_failed_is_the_jobs_failure(step, code):
    state, end = steps.failure(Job(step=step), step, "pre_start /s/pre.sh went wrong", ("last", "words"))
    assert (state, end.exit_code, end.last_lines) == (State.FAILED, code, ("last", "words"))
    assert end.summary == "pre_start /s/pre.sh went wrong; no rank was started"
    assert (end.first_failed, end.victims, bool(end.recommendation_reason)) == (None, (), True)
    assert end.recommendation == "FAIL"


# --- copies of code, inputs and outputs -------------------------------------------------------------------------------

COPIES = JobSpec("j", ("x",), code="s3://b/c", inputs={"d": "s3://b/d"}, outputs={"o": "s3://b/o"}, epilog="/e.sh")


def test_code_and_inputs_come_first_and_once():
    assert steps.due(COPIES, Job()) == "code"
    assert steps.due(COPIES, Job(steps_done={"code"})) == "inputs"
    assert steps.due(COPIES, Job(steps_done={"code", "inputs"})) == ""


@pytest.mark.parametrize(
    ("state", "always", "ran", "expected"),
    [
        (State.SUCCEEDED, False, True, ["outputs", "epilog"]),
        (State.FAILED, False, True, ["epilog"]),
        (State.FAILED, True, True, ["outputs", "epilog"]),
        (State.STOPPED, True, True, ["outputs", "epilog"]),
        (State.FAILED, True, False, ["epilog"]),
    ],
)
def test_what_follows_the_ranks(state, always, ran, expected):
    job = Job(spawned=ran, step=None if ran else Rank(STEP, 0, 0))
    assert steps.after(replace(COPIES, output_always=always), job, state) == expected


@pytest.mark.parametrize(
    ("name", "outcome", "count", "ending", "expected"),
    [
        ("inputs", Outcome.SIGNALLED, 1, "", True),
        ("outputs", Outcome.LOST, 2, "", True),
        ("outputs", Outcome.LOST, 3, "", False),
        ("inputs", Outcome.EXITED, 1, "", False),
        ("inputs", Outcome.SIGNALLED, 1, "did not end within 1 s", False),
        (PRE_START, Outcome.SIGNALLED, 1, "", False),
    ],
)
def test_a_copy_that_was_killed_is_taken_up(name, outcome, count, ending, expected):
    job = Job(step=Rank(STEP, 0, 0, outcome=outcome), step_name=name, step_counts={name: count}, step_ending=ending)
    assert steps.is_taken_up(job) is expected


def test_the_order_of_a_copy():
    job = Job(node_rank=1)
    assert json.loads(steps.order("code", COPIES, job, "/w/c")) == {
        "step": "code", "copies": {"/w/c/": "s3://b/c"}, "credentials": "", "tries": 8,
    }  # fmt: skip
    assert json.loads(steps.order("outputs", COPIES, job, ""))["copies"] == {"o": "s3://b/o"}
    apart = replace(COPIES, job_id="j", outputs={"o": "s3://b/{job}/node-{node}"})
    assert json.loads(steps.order("outputs", apart, job, ""))["copies"] == {"o": "s3://b/j/node-1"}
    assert steps.shown("inputs", replace(COPIES, inputs={"d": "s3://b/d?sig=x"})) == "inputs s3://b/d?..."
    assert [steps.time_limit(name, COPIES) for name in ("code", "outputs")] == [7200.0, 7200.0]


@pytest.mark.parametrize(
    ("outcome", "status", "ending", "advice"),
    [
        (Outcome.EXITED, 1 << 8, "", "FAIL"),
        (Outcome.EXITED, 73 << 8, "", "RETRY_ELSEWHERE"),
        (Outcome.EXITED, 75 << 8, "", "RETRY_HERE"),
        (Outcome.EXITED, 143 << 8, "did not end within 5 s", "RETRY_HERE"),
        (Outcome.SIGNALLED, 9, "", "RETRY_HERE"),
        (Outcome.LOST, None, "", "RETRY_HERE"),
        (Outcome.OUT_OF_MEMORY, 9, "", "FAIL"),
    ],
)
def test_what_to_do_about_inputs_that_did_not_come(outcome, status, ending, advice):
    step = Rank(STEP, 0, 0, outcome=outcome, status=status, role="inputs")
    job = Job(step=step, step_name="inputs", step_ending=ending)
    assert steps.failure(job, step, "inputs: no", ())[1].recommendation == advice


def test_outputs_that_are_not_delivered_are_no_success():
    state, end = steps.undelivered(State.SUCCEEDED, Verdict(0, "all ranks exited with code 0"), "outputs: no")
    assert (state, end.exit_code, end.recommendation) == (State.FAILED, 125, "FAIL")
    failed = Verdict(3, "rank 0 exited with code 3", 0)
    assert steps.undelivered(State.FAILED, failed, "outputs: no") == (State.FAILED, failed)
