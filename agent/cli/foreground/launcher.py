"""What a launcher without a daemon takes from its surroundings: environment, folder, and the variables of ModelArts,
Slurm and Kubernetes."""

import os
from dataclasses import replace

from muster.agent.cli.exits import CommandFailed, Exit
from muster.agent.cli.printing import note
from muster.agent.cli.spec import caller
from muster.agent.cli.spec.job_spec import Draft, is_utf8
from muster.supervisors.launch.modes import modelarts
from muster.supervisors.model.spec import Boot


def fill(draft: Draft, log_dir: str | None, *, boot_files: bool) -> str | None:
    """Fills the draft up with what a launcher without a daemon would take from its surroundings; returns the folder for
    the logs, None for one of our own. Raises CommandFailed."""
    caller.fill_umask(draft)
    asked = draft.asked
    env = _environment() | asked.env
    asked = replace(asked, env=env)
    draft.asked = asked = replace(asked, command=caller.with_python(asked))
    table = asked.rank_table or modelarts.rank_table(asked.boot, env)
    if not os.path.isabs(table):
        draft.asked = replace(draft.asked, rank_table=table)  # relative to this folder, as the launcher would take it
    if not table and not modelarts.in_container(env):
        from muster.agent.cli.spec import kube_pod, slurm_step, visible_cards

        if env.get("SLURM_JOB_ID"):
            slurm_step.fill(draft, env)
        elif kube_pod.concerns(env):
            kube_pod.fill(draft, env)
        visible_cards.keep_to(draft, env)
        _refuse_restarts_of_one_node(draft)
    if "workdir" not in draft.written and not (table and modelarts.working_folder(env, 0)):
        draft.asked = replace(draft.asked, workdir=caller.here())
    if not modelarts.in_container(env):
        return log_dir
    caller.fill_boot_files(draft, wanted=boot_files)
    if table:
        address, port = modelarts.meeting_point(env)
        address, port = asked.master_addr or address, asked.master_port or port
        draft.asked = replace(draft.asked, master_addr=address, master_port=port)
    if "job_id" not in draft.written:
        draft.asked = replace(draft.asked, job_id=modelarts.job_name("", env))
        if trouble := modelarts.name_trouble("another id", env):
            note(trouble)
    return log_dir or modelarts.log_folder(env)


def _refuse_restarts_of_one_node(draft: Draft) -> None:
    """The ranks of one node alone would start again, and those of the others would wait for them. A launcher below
    (torchrun) restarts the ranks of all nodes itself. Raises CommandFailed."""
    asked, others = draft.asked, max(len(draft.asked.nodes), draft.asked.node_count) - 1
    if others > 0 and "max_restarts" in draft.written and asked.max_restarts and asked.boot != Boot.TORCHRUN:
        whose = f"the {others} other nodes" if others > 1 else "the other node"
        raise CommandFailed(
            f"{draft.written['max_restarts']} {asked.max_restarts}: would start the ranks of this node again and not "
            f"those of {whose}: let the scheduler start the whole job again (Slurm: --requeue), use --boot torchrun, "
            "or `muster run --hosts`",
            Exit.USAGE,
        )


def _environment() -> dict[str, str]:
    """This process' environment, as far as it can be passed on."""
    env = {}
    for name, value in os.environ.items():
        if (name + value).isascii() or is_utf8(name + value):
            env[name] = value
        else:
            note(f"environment: leaving out {name!a}: its value is not UTF-8")
    return env
