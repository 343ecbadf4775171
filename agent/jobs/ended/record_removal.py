"""Removes records of ended jobs together. Everything here blocks."""

import contextlib
import secrets
from collections.abc import Iterable

from muster.agent.host.state_file import sync_folder
from muster.agent.jobs.ended.collected_logs import CollectedLogs
from muster.agent.jobs.ended.ended_row import Ended
from muster.agent.jobs.job_folder import remove_tree
from muster.supervisors.paths import Root
from muster.supervisors.system import lock as job_lock


def collect(root: Root, rows: Iterable[Ended], logs: CollectedLogs) -> tuple[list[Ended], str]:
    """Removes the folders of these ended jobs, and notes who owns their log files. Returns the jobs whose folders were
    removed, and a sentence about what could not be removed, or "".

    A folder is first moved aside as a whole: if the daemon is killed, the next start removes it.
    """
    there = [row for row in rows if not (row.damaged and job_lock.holder(root.job(row.job_id).lock))]
    if not there:
        return [], ""
    aside = root.jobs / f".collected.{secrets.token_hex(4)}"
    gone, trouble = [], ""
    try:
        logs.add(there)
        aside.mkdir(0o700)
    except OSError as error:
        return [], f"{error.filename or root.state}: cannot remove records: {error.strerror}"
    for row in there:
        folder = root.job(row.job_id).folder
        try:
            folder.rename(aside / row.job_id)
        except FileNotFoundError:
            pass  # somebody else removed it
        except OSError as error:
            trouble = f"{folder}: cannot remove it: {error.strerror}"
            continue
        gone.append(row)
    with contextlib.suppress(OSError):
        sync_folder(root.jobs)
    return gone, remove_tree(aside) or trouble
