"""What a job takes from where its command was typed: working folder and umask, as under srun and torchrun."""

import os
import pwd
from dataclasses import replace

from muster.agent.cli.exits import CommandFailed, Exit
from muster.agent.cli.spec.job_spec import Draft
from muster.supervisors.launch.modes import modelarts
from muster.supervisors.launch.modes.boot import INTERPRETER
from muster.supervisors.model.spec import Boot, JobSpec


def fill(draft: Draft) -> tuple[int, int] | None:
    """Where the draft says nothing: this folder, this process's umask; and python3 before a bare `train.py`. For a
    daemon of this node only. Returns device and inode of this folder where the draft has it from here: in another
    container the daemon has another folder of this name, or none.

    A platform that names the working folder (ModelArts), and ranks of another user, who may have no access to this
    folder, keep the folders that muster makes for them. Raises CommandFailed (usage) where this folder was removed.
    """
    fill_umask(draft)
    asked = draft.asked
    table = asked.rank_table or modelarts.rank_table(asked.boot, asked.env)
    has_folder = modelarts.in_container(asked.env) or (table and modelarts.working_folder(asked.env, 0))
    if "workdir" in draft.written:
        draft.asked = replace(asked, command=with_python(asked))
    elif not has_folder and _is_me(asked.user):
        draft.asked = replace(asked, workdir=here(), command=with_python(asked))
        found = os.stat(".")
        return found.st_dev, found.st_ino
    return None


def fill_umask(draft: Draft) -> None:
    """This process's, where the draft has none."""
    if "umask" not in draft.written:
        mask = os.umask(0o077)
        os.umask(mask)
        draft.asked = replace(draft.asked, umask=mask)


def fill_boot_files(draft: Draft, *, wanted: bool) -> None:
    """With the variables of a container of ModelArts what lies beside the boot file is used, as on the platform;
    `wanted`: the caller has not said that it is to be left alone."""
    asked = draft.asked
    draft.asked = replace(asked, boot_files=wanted and (asked.boot_files or modelarts.in_container(asked.env)))


def with_python(asked: JobSpec) -> tuple[str, ...]:
    """The command. A bare `train.py` of the working folder (this one, unless another is named), or of `code` that is
    copied, has Python before it, as under torchrun, unless another boot mode runs it with the job's own interpreter."""
    script, env = asked.command[0] if asked.command else "", asked.env
    if not script.endswith(".py"):
        return asked.command
    if env.get(INTERPRETER) and modelarts.boot_mode(asked.boot, env) != Boot.RANKS:
        return asked.command
    if not (asked.code and not os.path.isabs(script)):
        path = os.path.join(asked.workdir, script)
        if not os.path.isfile(path) or os.access(path, os.X_OK):
            return asked.command
    return ("python3", *asked.command)


def here() -> str:
    """This folder. Raises CommandFailed (usage) where it was removed."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise CommandFailed(
            "the current folder was removed: change to another, or give --workdir", Exit.USAGE
        ) from None


def _is_me(user: str) -> bool:
    """Whether ranks of `user` (a name or a number; empty: the daemon's) are the caller's own, or root's."""
    if not user or user == str(os.getuid()):
        return True
    try:
        return pwd.getpwnam(user).pw_uid == os.getuid()
    except KeyError:
        return False
