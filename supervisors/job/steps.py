"""The steps before and after the ranks: code, inputs, requirements, pre_start; outputs, epilog.

Each step is one process. It runs as the job's user in the job's environment, behind the same gate and with the same
records as a rank, so the successor of a dead supervisor finds it, waits for it, and knows how it ended.
"""

import json
import os
import shlex
import sys
from collections.abc import Mapping

from muster.supervisors.model import node_ends, rank_ends, verdict
from muster.supervisors.model.lifecycle import Job, Rank, Verdict
from muster.supervisors.model.rules import staging_urls
from muster.supervisors.model.spec import (
    DEFAULT_REQUIREMENTS_S,
    DEFAULT_SCRIPT_S,
    DEFAULT_STAGING_S,
    DEFAULT_STAGING_TRIES,
    JobSpec,
)
from muster.supervisors.model.staging_progress import CODE, INPUTS, OUTPUTS, STEPS
from muster.supervisors.model.states import EXPLAINED, Outcome, State
from muster.supervisors.paths import JobPaths
from muster.supervisors.wire.explained_end import CauseFound

REQUIREMENTS, PRE_START, EPILOG = "requirements", "pre_start", "epilog"
#: A copy whose process was killed, or got lost with its supervisor and nursery, is taken up again so many times.
MAX_COPIES = 3
#: From SIGTERM to SIGKILL of a step whose time is over, in seconds.
STEP_GRACE_S = 5.0
#: A service that has run so long has started, in seconds (supervisord's startsecs); the ranks begin then.
SERVICE_START_S = 1.0

#: What to do about a copy that failed, by its exit code: sysexits' "cannot create" and "temporary failure" (stage.py).
_AFTER_COPY = {
    73: ("RETRY_ELSEWHERE", "this node has too little space for the copy"),
    75: ("RETRY_HERE", "the server did not answer; another run continues the copy where it stopped"),
}
_AFTER_TIME = "RETRY_HERE", "the copy took longer than staging_timeout; another run continues it where it stopped"

#: $0: the script, read into this very shell, so that its exports can be read. No variable and no argument of ours
#: is in its way, it may end by itself or set a trap of its own, and its status is the step's unless we fail.
_SOURCE = """set --; trap {trap} EXIT; . "$0"
case $? in 0) {keep};; *) exit $?;; esac"""
#: bash 5.3 sets BASH_TRAPSIG while a trap runs, which `set -a` would export.
_KEEP = "command -p env -0 -u BASH_TRAPSIG >|{out}"
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
    for name in (CODE, INPUTS, REQUIREMENTS, PRE_START):
        if getattr(spec, name) and name not in job.steps_done:
            return name
    return ""


def after(spec: JobSpec, job: Job, state: State, *, stuck: bool = False) -> list[str]:
    """The steps after the ranks of a job that ends like this. `stuck`: some of it cannot be killed, and no epilog runs
    beside that."""
    ran = job.spawned or any(past.started_at for past in job.past)
    wanted = ran and (state is State.SUCCEEDED or spec.output_always)
    return [OUTPUTS] * bool(spec.outputs and wanted) + [EPILOG] * bool(spec.epilog and job.has_run and not stuck)


def is_taken_up(job: Job) -> bool:
    """Whether the step that has ended is a copy that somebody else killed, or whose end is lost: what it has copied
    counts, so that another process goes on from there."""
    step = job.step
    if step is None or job.step_name not in STEPS or job.step_ending or job.step_counts[job.step_name] >= MAX_COPIES:
        return False
    return step.outcome in (Outcome.SIGNALLED, Outcome.OUT_OF_MEMORY, Outcome.LOST)


def time_limit(name: str, spec: JobSpec) -> float:
    """Seconds."""
    asked = spec.staging_timeout if name in STEPS else getattr(spec, f"{name}_timeout")
    if asked is not None:
        return float(asked)
    return DEFAULT_STAGING_S if name in STEPS else DEFAULT_REQUIREMENTS_S if name == REQUIREMENTS else DEFAULT_SCRIPT_S


def copying(paths: JobPaths) -> tuple[str, ...]:
    """The command line of a step that copies. What it copies is in its order: URLs may have secrets in them, and
    everybody can read a command line."""
    program = (sys.executable, "-I", "-m", "muster.supervisors.staging.stage")
    return (*program, str(paths.staging_order), str(paths.staging_progress))


def command(name: str, spec: JobSpec, env: Mapping[str, str], packages: str, exports: str) -> tuple[str, ...]:
    """The command line of another step. `env` is what it runs in; it leaves its results in `packages` and `exports`."""
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


def order(name: str, spec: JobSpec, job: Job, code_folder: str) -> bytes:
    """What a step is to copy: a JSON object. `code_folder`: where code goes."""
    host = job.node_name or os.uname().nodename
    wanted: dict[str, str] = {code_folder + "/": spec.code} if name == CODE else getattr(spec, name)
    if name != CODE:
        of_node = staging_urls.of_node
        wanted = {path: of_node(url, node=job.node_rank, host=host, job=spec.job_id) for path, url in wanted.items()}
    tries = DEFAULT_STAGING_TRIES if spec.staging_tries is None else spec.staging_tries
    told = {"step": name, "copies": wanted, "credentials": spec.staging_credentials, "tries": tries}
    if name == CODE and spec.boot_files:  # beside which file to look
        told["command"] = spec.command
    return json.dumps(told).encode()


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
        "MUSTER_FAULTY_NODE": node_ends.faulty(end.summary, (end.recommendation, end.recommendation_reason)),
        "MUSTER_CAUSE": "" if found is None else found.cause,
    }


def shown(name: str, spec: JobSpec) -> str:
    """The step and what it runs or copies, for people."""
    what = getattr(spec, name)
    if name not in STEPS:
        return f"{name} {what}"
    urls = [staging_urls.shown(url) for url in (what.values() if isinstance(what, dict) else [what])]
    return f"{name} {', '.join(urls[:3])}" + (f" and {len(urls) - 3} more" if len(urls) > 3 else "")


def succeeded(step: Rank) -> bool:
    """Whether it exited by itself, with code 0."""
    return step.outcome is Outcome.EXITED and step.status == 0


def failure(job: Job, step: Rank, trouble: str, last_lines: tuple[str, ...]) -> tuple[State, Verdict]:
    """Of a job whose step before the ranks failed. `trouble`: which one, and how."""
    code = rank_ends.shell_code(step.status) if step.status else rank_ends.OWN_FAILURE
    advice = "FAIL", "the job's own preparation failed, and no fault of the node is known"
    if step.role in STEPS:
        advice = _AFTER_COPY.get(code, advice)
        if job.step_ending:
            advice = _AFTER_TIME
        elif step.outcome is not Outcome.EXITED:
            advice = verdict.recommend(job, step, "")
    return State.FAILED, Verdict(code, f"{trouble}; no rank was started", None, last_lines, (), *advice)


def undelivered(state: State, end: Verdict, trouble: str) -> tuple[State, Verdict]:
    """The end of a job whose outputs could not be copied: what would have been a success is none. `trouble`: why."""
    if state is not State.SUCCEEDED:
        return state, end
    reason = "the ranks succeeded, so another run would compute the same again: copy the outputs from this node"
    summary = f"{end.summary}, and the outputs were not delivered: {trouble}; muster keeps them"
    return State.FAILED, Verdict(rank_ends.OWN_FAILURE, summary, recommendation="FAIL", recommendation_reason=reason)
