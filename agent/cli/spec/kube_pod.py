"""What Kubernetes' operators say in the environment of a pod: used by a standalone run where its options say nothing.

PyTorchJob and TrainJob (Kubeflow's trainer, which makes JobSets) set torchrun's PET_*. In a JobSet of one's own
the manifest sets the same, but for the number of the pod, which Kubernetes sets (JOB_COMPLETION_INDEX). A
LeaderWorkerSet sets LWS_*. Volcano's svc plugin names the hosts of each task (`volcano_hosts`). Its pytorch plugin,
older training operators and manifests by hand set MASTER_ADDR, MASTER_PORT, and RANK and WORLD_SIZE, which count pods.
"""

import os
from collections.abc import Mapping

from muster.agent.cli.exits import CommandFailed, Exit
from muster.agent.cli.spec import volcano_hosts
from muster.agent.cli.spec.job_spec import HOW_MANY, OF_POD, Draft
from muster.probes.kernel.known_names import IN_POD
from muster.supervisors.launch.modes.modelarts import MASTER_PORT
from muster.supervisors.model.spec import FIELDS
from muster.supervisors.model.spec_fields import JOB_ID

#: Of an indexed Job of Kubernetes, and so of each Job of a JobSet.
_INDEX = "JOB_COMPLETION_INDEX"
#: Who says how many pods there are says which of them this is.
_WHERE = frozenset({"nodes", "node_count", "node_rank", "rank_table"})
#: Set for ranks by muster and torchrun: WORLD_SIZE and RANK count ranks there, and not pods.
_OF_A_RANK = frozenset({"TORCHELASTIC_RUN_ID", "LOCAL_RANK", "LOCAL_WORLD_SIZE"})
#: What says how many pods there are and which one this is, in full; a port is needed with both.
_REMEDY = "give --nodes, --node-rank and --master-port"


def concerns(env: Mapping[str, str]) -> bool:
    """Whether these are the variables of a pod, or of somebody who sets them as an operator does."""
    return IN_POD in env or "PET_NNODES" in env


def fill(draft: Draft, env: Mapping[str, str]) -> None:
    """Says of job id (the pod's name), nodes, node rank, meeting point and cards what the pod's variables say, where
    nobody has said anything. Raises CommandFailed where there are several pods, and it is not said which one this is.
    """
    pod = env.get(OF_POD, "")
    if IN_POD in env and "job_id" not in draft.written and JOB_ID.fullmatch(pod):
        draft.say(FIELDS["job_id"], pod, OF_POD)
    if not draft.written.keys() & _WHERE:
        _place(draft, env)
    per_node = env.get("PET_NPROC_PER_NODE", "")
    if per_node and not draft.written.keys() & {*HOW_MANY, "rank_table"}:
        _processes(draft, per_node)


def _place(draft: Draft, env: Mapping[str, str]) -> None:
    """From the first source that says something; `concerns` says that this is a pod, or that PET_NNODES is set."""
    if "PET_NNODES" in env:
        index = "PET_NODE_RANK" if "PET_NODE_RANK" in env else _INDEX
        _fill(draft, env, "PET_NNODES", index, "PET_MASTER_ADDR", "PET_MASTER_PORT")
        return
    if env.get("LWS_GROUP_SIZE"):
        _fill(draft, env, "LWS_GROUP_SIZE", "LWS_WORKER_INDEX", "LWS_LEADER_ADDRESS", "MASTER_PORT", MASTER_PORT)
        return
    found = volcano_hosts.find(env)
    is_said = env.get("WORLD_SIZE") and (env.get("RANK") or env.get("MASTER_ADDR"))
    counted = env["WORLD_SIZE"] if is_said and not _OF_A_RANK & env.keys() else ""
    if found.nodes:
        _meet_at_first(draft, env, found)
    elif counted and (env.get("RANK") or not found.trouble):
        index = _INDEX if not env.get("RANK") and env.get(_INDEX) else "RANK"
        _fill(draft, env, "WORLD_SIZE", index, "MASTER_ADDR", "MASTER_PORT")
    elif found.trouble:
        raise CommandFailed(f"{found.trouble}: {_REMEDY}; --nodes with this pod alone is a job on one node", Exit.USAGE)
    elif (hosts := _of_tensorflow(env)) > 1 and IN_POD in env:
        raise CommandFailed(f"TF_CONFIG names {hosts} hosts, and muster does not read it: {_REMEDY}", Exit.USAGE)


def _meet_at_first(draft: Draft, env: Mapping[str, str], found: volcano_hosts.Found) -> None:
    """At the place of Volcano's pytorch plugin if it says one: that is the first host, too."""
    draft.say(FIELDS["nodes"], found.nodes, found.written)
    draft.say(FIELDS["node_rank"], found.index, found.written)
    port = _number(env.get("MASTER_PORT", ""), 1) or _number(env.get("MA_TORCHRUN_MASTER_PORT", ""), 1) or MASTER_PORT
    if "master_port" not in draft.written:
        draft.say(FIELDS["master_port"], port, "MASTER_PORT")


def _of_tensorflow(env: Mapping[str, str]) -> int:
    """How many hosts TF_CONFIG names; 0 where it says nothing that could be read."""
    if not env.get("TF_CONFIG"):
        return 0
    import json  # in such a pod alone

    try:
        cluster = json.loads(env["TF_CONFIG"])["cluster"]
        return sum(len(hosts) for hosts in cluster.values() if isinstance(hosts, list))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return 0  # the program's own to complain about


def _fill(
    draft: Draft, env: Mapping[str, str], pods: str, index: str, addr: str, port: str, default_port: int | None = None
) -> None:
    """The names of the variables; `default_port`: where its variable is not set."""
    least, _, most = env[pods].partition(":")
    count = _number(least, 1)
    if most and _number(most, 1) != count:
        raise CommandFailed(
            f"{pods}={env[pods]}: an elastic job, whose pods come and go, needs torchrun: give --boot torchrun and "
            "--nodes, or a fixed number of pods",
            Exit.USAGE,
        )
    if count is None:
        raise _wrong(pods, env[pods], "not a number of pods", _REMEDY)
    if count == 1:
        return
    if index == _INDEX and not env.get(_INDEX):
        raise CommandFailed(f"{pods} is {count}, and neither PET_NODE_RANK nor {_INDEX} is set: {_REMEDY}", Exit.USAGE)
    rank = _number(env.get(index, ""), 0)
    if rank is None or rank >= count:
        raise _wrong(index, env.get(index, ""), f"not 0 to {count - 1}, and {pods} is {count}", _REMEDY)
    meets = {"master_addr": (addr, env.get(addr)), "master_port": (port, _number(env.get(port, ""), 1))}
    if default_port and not env.get(port):
        meets["master_port"] = (port, default_port)
    for field, (name, value) in meets.items():
        if field not in draft.written and not value:
            what = f"not a port, and {pods} is {count}"
            raise _wrong(name, env.get(name, ""), what, "give --master-addr and --master-port")
    draft.say(FIELDS["node_count"], count, pods)
    draft.say(FIELDS["node_rank"], rank, index)
    for field, (name, value) in meets.items():
        if field not in draft.written:
            draft.say(FIELDS[field], value, name)


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


def _wrong(name: str, value: str, what: str, remedy: str) -> CommandFailed:
    """`what`: behind "is", of a value; of a variable that is not set only what follows a comma."""
    said = f"{name}: {value[:80]!r} is {what}" if value else f"{name} is not set, {what.partition(', ')[2]}"
    return CommandFailed(f"{said}: {remedy}", Exit.USAGE)
