"""The tasks of all live jobs."""

import anyio
from anyio.abc import TaskGroup

from muster.agent.jobs.entry import Entry
from muster.agent.jobs.job_folder import HeldJob
from muster.agent.jobs.live.job_task import JobTask
from muster.agent.jobs.live.unsupervised import Surroundings


class JobTasks:
    """At most one task per job."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._group: TaskGroup | None = None
        self._tasks: dict[str, JobTask] = {}
        self._scopes: dict[str, anyio.CancelScope] = {}

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._tasks

    def start(self, group: TaskGroup) -> None:
        """From now on tasks can begin; they run in this group."""
        self._group = group
        group.start_soon(self._around.rounds.run, name="looks at jobs")

    def begin(self, entry: Entry, held: HeldJob | None) -> None:
        """`held` as JobTask has it."""
        assert self._group is not None
        task = self._tasks[entry.job_id] = JobTask(entry, self._around, held)
        scope = self._scopes[entry.job_id] = anyio.CancelScope()
        self._group.start_soon(self._follow, task, scope, name=f"job {entry.job_id}")

    def get(self, job_id: str) -> JobTask | None:
        """None once the job has ended and its supervisor has left."""
        return self._tasks.get(job_id)

    def cancel(self, job_id: str) -> None:
        """Ends the task of a job that can never reach its end."""
        if (scope := self._scopes.get(job_id)) is not None:
            scope.cancel()

    async def wait_done(self, job_id: str, limit_s: float) -> None:
        """Returns when the job has no task, or after `limit_s` seconds."""
        if (task := self._tasks.get(job_id)) is not None:
            with anyio.move_on_after(limit_s):
                await task.done.wait()

    async def _follow(self, task: JobTask, scope: anyio.CancelScope) -> None:
        job_id = task.entry.job_id
        try:
            with scope:
                await task.run()
        finally:
            if self._tasks.get(job_id) is task:
                del self._tasks[job_id]
            if self._scopes.get(job_id) is scope:
                del self._scopes[job_id]
