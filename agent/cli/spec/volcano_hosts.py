"""The hosts that Volcano's svc plugin names in each pod, task by task (VC_TRAINER_HOSTS=j-trainer-0.j,j-trainer-1.j).

The index of a pod (VC_TASK_INDEX, of the env plugin) counts within its task. So a pod finds its place by its own name
in these lists, and by the index only where there is one list.
"""

from collections.abc import Mapping

from muster.probes.kernel.dataclass import dataclass

_BEFORE, _BEHIND = "VC_", "_HOSTS"
_INDEX = "VC_TASK_INDEX"
#: Two tasks that are one job, as Volcano's pytorch plugin counts them.
_LEADER, _REST = "MASTER", "WORKER"


@dataclass(frozen=True, slots=True)
class Found:
    """`nodes`: of the job, empty if the lists do not say them. `index`: which of them this is. `written`: what says so.
    `trouble`: why a pod beside others does not know its place."""

    nodes: tuple[str, ...] = ()
    index: int = 0
    written: str = ""
    trouble: str = ""


def find(env: Mapping[str, str]) -> Found:
    """The nodes of the job are the hosts of the only task, or of master and worker. Which other tasks are one job is
    not known."""
    lists = {
        name[len(_BEFORE) : -len(_BEHIND)]: hosts
        for name, value in env.items()
        if name.startswith(_BEFORE) and name.endswith(_BEHIND) and (hosts := _names(value))
    }
    if sum(map(len, lists.values())) < 2:
        return Found()
    is_led = lists.keys() >= {_LEADER, _REST}
    tasks = [_LEADER, _REST] if is_led else sorted(lists)
    nodes = tuple(host for task in tasks for host in lists[task])
    written, pod = ", ".join(_BEFORE + task + _BEHIND for task in tasks), env.get("HOSTNAME", "")
    several = f"{written}: {len(nodes)} hosts"
    if len(tasks) > 1 and not is_led:
        return Found(trouble=f"{several} of {len(tasks)} tasks, and it is not known which of them are one job")
    own = [i for i, host in enumerate(nodes) if _is_same(host, pod)]
    if len(own) == 1:
        return Found(nodes, own[0], written)
    index = env.get(_INDEX, "")
    if len(lists) > 1:
        return Found(trouble=f"{several}, and HOSTNAME={pod[:80]} is none of them")
    if not (index.isascii() and index.isdigit() and len(index) < 7 and int(index) < len(nodes)):
        said = f"is {index[:40]!r}" if index else "is not set"
        return Found(trouble=f"{several}, HOSTNAME={pod[:80]} is none of them, and {_INDEX} {said}")
    return Found(nodes, int(index), f"{written}, {_INDEX}")


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _is_same(host: str, pod: str) -> bool:
    """Whether both name one pod, with or without its domain (setHostnameAsFQDN)."""
    short = pod.partition(".")[0]
    return host == pod or (host.partition(".")[0] == short and not short.isdigit())
