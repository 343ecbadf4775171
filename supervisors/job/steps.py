"""The steps before and after the ranks: requirements, pre_start, epilog.

Each step is one process. It runs as the job's user in the job's environment, behind the same gate and with the same
records as a rank, so the successor of a dead supervisor finds it, waits for it, and knows how it ended.
"""

import os
import shlex
from collections.abc import Mapping

from muster.supervisors.model import verdict
from muster.supervisors.model.lifecycle import Job, Rank, Verdict
from muster.supervisors.model.spec import DEFAULT_REQUIREMENTS_S, DEFAULT_SCRIPT_S, JobSpec
from muster.supervisors.model.states import EXPLAINED, Outcome, State
from muster.supervisors.wire.explained_end import CauseFound

REQUIREMENTS, PRE_START, EPILOG = "requirements", "pre_start", "epilog"
#: From SIGTERM to SIGKILL of a step whose time is over, in seconds.
STEP_GRACE_S = 5.0
#: A service that has run so long has started, in seconds (supervisord's startsecs); the ranks begin then.
SERVICE_START_S = 1.0

#: $0: the script, read into this very shell, so that its exports can be read. No variable and no argument of ours
#: is in its way, it may end by itself or set a trap of its own, and its status is the step's unless we fail.
_SOURCE = """set --; trap {trap} EXIT; . "$0"
case $? in 0) {keep};; *) exit $?;; esac"""
_KEEP = "command -p env -0 >|{out}"
_RUN = r"""
import os, runpy, sys
script, out = sys.argv[1:3]
sys.argv[:] = [script]
sys.path[0] = os.path.dirname(script)
try:
    runpy.run_path(script, run_name="__main__")
finally:
    with open(out, "wb") as file:
        file.write(b"".join(name + b"=" + value + b"\0" for name, value in os.environb.items()))
"""


def due(spec: JobSpec, job: Job) -> str:
    """The next step before the ranks of this attempt; empty where they can be made."""
    if spec.requirements and REQUIREMENTS not in job.steps_done:
        return REQUIREMENTS
    if spec.pre_start and PRE_START not in job.steps_done:
        return PRE_START
    return ""


def time_limit(name: str, spec: JobSpec) -> float:
    """Seconds."""
    asked = getattr(spec, f"{name}_timeout")
    return float(asked if asked is not None else DEFAULT_REQUIREMENTS_S if name == REQUIREMENTS else DEFAULT_SCRIPT_S)


def command(name: str, spec: JobSpec, env: Mapping[str, str], packages: str, exports: str) -> tuple[str, ...]:
    """The command line of a step. `env` is what it runs in; it leaves its results in `packages` and `exports`."""
    if name == REQUIREMENTS:
        pip = ("-m", "pip", "install", "--no-input", "--disable-pip-version-check", "--upgrade", "--target", packages)
        return (*_python(spec, env), *pip, "-r", spec.requirements)
    script = spec.pre_start if name == PRE_START else spec.epilog
    out = exports if name == PRE_START else os.devnull
    if script.endswith(".py"):
        return (*_python(spec, env), "-c", _RUN, script, out)
    shell = "bash" if _is_there("bash", env) else "sh"
    if name == EPILOG and os.access(script, os.X_OK):
        return (
            shell,
            "-c",
            'exec "$0"',
            script,
        )  # the kernel refuses one without "#!", which a shell then reads itself
    keep = _KEEP.format(out=shlex.quote(out))
    return (shell, "-c", _SOURCE.format(trap=shlex.quote(f"{keep} || exit 1"), keep=keep), script)


def _python(spec: JobSpec, env: Mapping[str, str]) -> tuple[str, ...]:
    """The interpreter of the job: what is installed must fit what the ranks run."""
    if given := env.get("MA_SCRIPT_INTERPRETER", "").strip():
        try:
            return tuple(shlex.split(given))
        except ValueError:  # no words as a shell has them
            return (given,)
    if os.path.basename(spec.command[0]).startswith("python"):
        return (spec.command[0],)
    return ("python3" if _is_there("python3", env) else "python",)


def _is_there(program: str, env: Mapping[str, str]) -> bool:
    """Whether the PATH of the job has it. (shutil would bring half a megabyte into every supervisor.)"""
    return any(os.access(os.path.join(folder, program), os.X_OK) for folder in env.get("PATH", "").split(os.pathsep))


def environment_of_epilog(state: State, end: Verdict, reason: str, found: CauseFound | None) -> dict[str, str]:
    """`reason`: as in Verdict of job.proto. `found`: by the daemon; None: it has not explained this end in time, or
    there is nothing to explain."""
    early = found is None and state in EXPLAINED
    return {
        "MUSTER_STATE": state,
        "MUSTER_EXIT_CODE": str(end.exit_code),
        "MUSTER_REASON": reason,
        "MUSTER_SUMMARY": end.summary,
        "MUSTER_RECOMMENDATION": end.recommendation if found is None else found.recommendation,
        "MUSTER_RECOMMENDATION_STAGE": "early" if early else "explained",
        "MUSTER_CAUSE": "" if found is None else found.cause,
    }


def shown(name: str, spec: JobSpec) -> str:
    """The step and what it runs, for people."""
    return f"{name} {getattr(spec, name)}"


def succeeded(step: Rank) -> bool:
    """Whether it exited by itself, with code 0."""
    return step.outcome is Outcome.EXITED and step.status == 0


def failure(step: Rank, trouble: str, last_lines: tuple[str, ...]) -> tuple[State, Verdict]:
    """Of a job whose step before the ranks failed. `trouble`: which one, and how."""
    code = verdict.shell_code(step.status) if step.status else verdict.OWN_FAILURE
    reason = "the job's own preparation failed, and no fault of the node is known"
    return State.FAILED, Verdict(code, f"{trouble}; no rank was started", None, last_lines, (), "FAIL", reason)
