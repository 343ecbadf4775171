"""The settings of what jobs of other users may not do."""

from muster.probes.kernel.dataclass import dataclass
from muster.probes.settings import Settings, absolute_path, setting
from muster.supervisors.model.rules import capabilities
from muster.supervisors.model.spec_fields import MAX_PATHS, Paths


def _paths(paths: tuple[str, ...]) -> str:
    return next((f"{part}: {text}".lstrip(": ") for part, text in Paths("", "").problems(paths)), "")


@dataclass(frozen=True, slots=True)
class HardeningTable(Settings):
    """Restrictions of jobs that run as another user than root, if musterd runs as root. Other jobs have none of them. A
    job may choose others; with `own_jobs_only` a user's job may only add to them
    ([Lock a node down: jobs](guides/lock-down.md#jobs))."""

    no_new_privs: bool = setting(
        True,
        "Whether no program of the job can gain privileges by its file: `sudo`, `su`, `fusermount`, `newuidmap` and "
        "other setuid programs, and file capabilities, have no effect in the job.",
    )
    capabilities: tuple[str, ...] = setting(
        (capabilities.NONE,),
        "The capabilities that programs of the job can have at most (bounding set): names, or `none`, or `all`.",
        what='a list of names of capabilities, as in ["sys_nice"], or ["none"], or ["all"]',
        rule=capabilities.problem,
    )
    max_pids_percent: float = setting(
        80.0,
        "Processes and threads that a job can have, as a share of those that the node can have at all "
        "(`kernel.pid_max`, `kernel.threads-max`), so that a fork bomb leaves some to the node. It needs the pids "
        "controller. 0: no limit.",
        most=100,
    )
    private_tmp: bool = setting(
        False,
        "Whether the job has a `/tmp` and `/var/tmp` of its own. Not by default: what a prolog unpacked there, and "
        "the sockets of CUDA's MPS (`/tmp/nvidia-mps`) and of other services, would be hidden.",
    )
    read_only: tuple[str, ...] = setting(
        (),
        "Paths that the job cannot write to, also where its user may.",
        what=f"a list of at most {MAX_PATHS} absolute paths",
        rule=_paths,
    )
    seccomp_profile: str = setting(
        "", "Absolute path of the seccomp profile of jobs that name none. Empty: none.", rule=absolute_path
    )
