"""What Kubernetes' operators say in the environment of a pod: used by a standalone run where its options say nothing.

PyTorchJob and TrainJob (Kubeflow's trainer, which makes JobSets) set torchrun's PET_*. In a JobSet of one's own
the manifest sets the same, but for the number of the pod, which Kubernetes sets (JOB_COMPLETION_INDEX). Volcano's
pytorch plugin sets MASTER_ADDR, MASTER_PORT, and RANK and WORLD_SIZE, which count pods. What its svc plugin says
(VC_*_HOSTS) is understood as on ModelArts (supervisors/launch/modes/modelarts.py).
"""

import os
from collections.abc import Mapping

from muster.agent.cli.exits import CommandFailed, Exit
from muster.agent.cli.spec.job_spec import HOW_MANY, Draft
from muster.probes.kernel.known_names import IN_POD
from muster.supervisors.model.spec import FIELDS
from muster.supervisors.model.spec_fields import JOB_ID

#: Of an indexed Job of Kubernetes, and so of each Job of a JobSet.
_INDEX = "JOB_COMPLETION_INDEX"
#: Who says how many pods there are says which of them this is.
_WHERE = frozenset({"nodes", "node_count", "node_rank", "rank_table"})


def concerns(env: Mapping[str, str]) -> bool:
    """Whether these are the variables of a pod, or of somebody who sets them as an operator does."""
    return IN_POD in env or "PET_NNODES" in env


def fill(draft: Draft, env: Mapping[str, str]) -> None:
    """Says of job id (the pod's name), nodes, node rank, meeting point and cards what the pod's variables say, where
    nobody has said anything. Raises CommandFailed where there are several pods, and it is not said which one this is.
    """
    pod = env.get("HOSTNAME", "")
    if IN_POD in env and "job_id" not in draft.written and JOB_ID.fullmatch(pod):
        draft.say(FIELDS["job_id"], pod, "HOSTNAME")
    if draft.written.keys() & _WHERE:
        pass
    elif "PET_NNODES" in env:
        _fill(draft, env, "PET_NNODES", "PET_NODE_RANK" if "PET_NODE_RANK" in env else _INDEX, "PET_MASTER_")
    elif "VK_TASK_INDEX" in env and "WORLD_SIZE" in env:
        _fill(draft, env, "WORLD_SIZE", "RANK", "MASTER_")
    per_node = env.get("PET_NPROC_PER_NODE", "")
    if per_node and not draft.written.keys() & {*HOW_MANY, "rank_table"}:
        _processes(draft, per_node)


def _fill(draft: Draft, env: Mapping[str, str], pods: str, index: str, master: str) -> None:
    """The variables' names; `master` with ADDR and PORT."""
    least, _, most = env[pods].partition(":")
    count = _number(least, 1)
    if most and _number(most, 1) != count:
        raise CommandFailed(
            f"{pods}={env[pods]}: an elastic job, whose pods come and go, needs torchrun: give --boot torchrun and "
            "--nodes, or a fixed number of pods",
            Exit.USAGE,
        )
    if count is None:
        raise _wrong(pods, env[pods], "no number of pods")
    if count == 1:
        return
    rank, port = _number(env.get(index, ""), 0), _number(env.get(f"{master}PORT", ""), 1)
    if index == _INDEX and not env.get(_INDEX):
        raise CommandFailed(
            f"{pods} is {count}, and neither PET_NODE_RANK nor {_INDEX} is set: give --nodes and --node-rank",
            Exit.USAGE,
        )
    if rank is None or rank >= count:
        raise _wrong(index, env.get(index, ""), f"not 0 to {count - 1}, and {pods} is {count}")
    if not env.get(f"{master}ADDR") or port is None:
        raise _wrong(f"{master}ADDR, {master}PORT", "", f"no place to meet, and {pods} is {count}")
    draft.say(FIELDS["node_count"], count, pods)
    draft.say(FIELDS["node_rank"], rank, index)
    for field, name, value in (("master_addr", "ADDR", env[f"{master}ADDR"]), ("master_port", "PORT", port)):
        if field not in draft.written:
            draft.say(FIELDS[field], value, master + name)


def _processes(draft: Draft, per_node: str) -> None:
    """torchrun's --nproc-per-node: a number, gpu, cpu, or auto, which is gpu where there are cards, else cpu."""
    from muster.probes.cards import no_cards  # in such a pod alone

    count, cards = _number(per_node, 1), bool(no_cards.present()[1])
    if count is not None:
        draft.say(FIELDS["card_count" if cards else "ranks"], count, "PET_NPROC_PER_NODE")
    elif per_node == "gpu" or (per_node == "auto" and cards):
        draft.say(FIELDS["card_count"], True, "PET_NPROC_PER_NODE")
    elif per_node in ("auto", "cpu"):
        draft.say(FIELDS["ranks"], len(os.sched_getaffinity(0)), "PET_NPROC_PER_NODE")
    else:
        raise CommandFailed(
            f"PET_NPROC_PER_NODE: {per_node!r} is neither a number nor auto, gpu or cpu: give --cards, or --ranks",
            Exit.USAGE,
        )


def _number(text: str, least: int) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 7 and int(text) >= least else None


def _wrong(name: str, value: str, what: str) -> CommandFailed:
    said = f"{value[:80]!r} is" if value else "is"
    return CommandFailed(f"{name}: {said} {what}: give --nodes and --node-rank", Exit.USAGE)
