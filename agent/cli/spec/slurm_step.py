"""What Slurm says in the environment of a step: used by a standalone run wherever its options say nothing.

One muster per node (`srun --ntasks-per-node=1`) is one part of a job over the step's nodes. The variables are those of
srun(1) and sbatch(1), the host lists as slurmctld 22.05 expands them.
"""

import re
from collections.abc import Mapping

from muster.agent.cli.exits import CommandFailed, Exit
from muster.agent.cli.printing import note
from muster.agent.cli.spec.job_spec import HOW_MANY, Draft
from muster.supervisors.model.spec import FIELDS
from muster.supervisors.model.spec_fields import JOB_ID

#: The label with the number of requeues.
RESTARTS = "slurm-restarts"
#: Ports where the ranks of several nodes meet, one for each step: below the range of Linux' own (32768 and up).
PORTS = range(20_000, 30_000)
_STEPS_APART = 1009
#: As many nodes as a job may have.
_MAX_NODES = 65536
#: A part of a host list: a name with ranges in brackets.
_PART = re.compile(r"[A-Za-z0-9._-]*(?:\[[0-9,-]+\][A-Za-z0-9._-]*)*")
_RANGES = re.compile(r"([A-Za-z0-9._-]*)(?:\[([0-9,-]+)\])?")
#: A comma that is not in brackets.
_COMMA = re.compile(r",(?![^\[\]]*\])")


def fill(draft: Draft, env: Mapping[str, str]) -> None:
    """Says of job id, nodes, node rank, port and cards what Slurm says, where nobody has said anything; how often Slurm
    has requeued the job is a label. Raises CommandFailed for a list of nodes that is none."""
    job, step = env.get("SLURM_JOB_ID", ""), env.get("SLURM_STEP_ID", "0")
    tasks, nodes = env.get("SLURM_STEP_NUM_TASKS", "1"), env.get("SLURM_STEP_NUM_NODES", "1")
    if not job.isdigit():
        return
    if tasks != nodes:
        if env.get("SLURM_PROCID") == "0" and tasks.isdigit() and nodes.isdigit():
            where = "node" if nodes == "1" else "nodes"
            note(
                f"this Slurm step has {tasks} tasks on {nodes} {where}, and each starts a job of its own: for one job "
                "over all cards give srun --ntasks-per-node=1"
            )
        return
    name = job if step in ("", "0") else f"{job}.{step}"
    if JOB_ID.fullmatch(name):
        _say(draft, "job_id", name, "SLURM_JOB_ID")
    if nodes.isdigit() and int(nodes) > 1 and not draft.written.keys() & {"nodes", "rank_table"}:
        listed = hosts(env.get("SLURM_STEP_NODELIST", ""))
        _say(draft, "nodes", listed, "SLURM_STEP_NODELIST")
        rank = env.get("SLURM_NODEID", "")
        if rank.isdigit():
            _say(draft, "node_rank", int(rank), "SLURM_NODEID")
        _say(draft, "master_port", _port(int(job), int(step) if step.isdigit() else 0), "SLURM_JOB_ID")
    restarts = env.get("SLURM_RESTART_COUNT", "")  # none at the first start
    if restarts.isdigit() and RESTARTS not in draft.asked.labels:
        draft.say(FIELDS["labels"], {**draft.asked.labels, RESTARTS: restarts}, "SLURM_RESTART_COUNT")
    cards = env.get("SLURM_GPUS_ON_NODE", "")
    if cards.isdigit() and int(cards) and not draft.written.keys() & {*HOW_MANY, "rank_table"}:
        _say(draft, "card_count", int(cards), "SLURM_GPUS_ON_NODE")


def _port(job: int, step: int) -> int:
    """Where the ranks of a step meet. Jobs with numbers close to each other run at the same time, and may share a node:
    the second step of one is not to have the port of the next one's first."""
    return PORTS[(job + _STEPS_APART * step) % len(PORTS)]


def _say(draft: Draft, field: str, value: object, written: str) -> None:
    if field not in draft.written:
        draft.say(FIELDS[field], value, written)


def hosts(text: str) -> tuple[str, ...]:
    """The names in a host list: "n[1-2],m[07-08]" is n1, n2, m07, m08. The width of a range is that of its lower bound;
    of several brackets the last runs fastest. Raises CommandFailed."""
    found: list[str] = []
    for part in _COMMA.split(text):
        found += _expanded(part.strip(), text, _MAX_NODES - len(found))
    if not all(found) or not found:
        raise _no_list(text, "a name is empty")
    return tuple(found)


def _expanded(part: str, text: str, most: int) -> list[str]:
    if not _PART.fullmatch(part):
        raise _no_list(text, f"{part[:80]!r} is not a name with ranges")
    found = [""]
    for name, ranges in _RANGES.findall(part):
        numbers = [number for one in ranges.split(",") for number in _numbers(one, text)] if ranges else [""]
        if len(found) * len(numbers) > most:
            raise _no_list(text, f"it has more than {_MAX_NODES} nodes")
        found = [before + name + number for before in found for number in numbers]
    return found


def _numbers(one: str, text: str) -> list[str]:
    low, dash, high = one.partition("-")
    high = high if dash else low
    if not (low.isdigit() and high.isdigit()) or len(low + high) > 18 or int(low) > int(high):
        raise _no_list(text, f"{one!r} is not a range")
    if int(high) - int(low) >= _MAX_NODES:
        raise _no_list(text, f"it has more than {_MAX_NODES} nodes")
    return [f"{number:0{len(low)}d}" for number in range(int(low), int(high) + 1)]


def _no_list(text: str, why: str) -> CommandFailed:
    shown = text if len(text) <= 200 else text[:200] + "..."
    return CommandFailed(
        f"SLURM_STEP_NODELIST: {shown!r} is not a list of nodes: {why}: give --nodes and --node-rank", Exit.USAGE
    )
