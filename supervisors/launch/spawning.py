"""Spawns the processes of a job: all ranks of a gang behind one gate, or one step behind it."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

from muster.probes.kernel import marks, number_lists
from muster.probes.kernel.known_names import ASCEND, ASCEND_LOGS, RANK_TABLE
from muster.supervisors.launch import child, environment, job_services, user_folder
from muster.supervisors.launch.child import Account, Confinement, ProcessSpec
from muster.supervisors.launch.creation.new_processes import NewProcesses
from muster.supervisors.launch.creation.underway import Waiting
from muster.supervisors.launch.environment import Changes
from muster.supervisors.launch.hardening import confinement
from muster.supervisors.launch.limits import RESOURCES
from muster.supervisors.launch.modes import boot, modelarts, presets
from muster.supervisors.model.job_logs import fifo_of
from muster.supervisors.model.lifecycle import Job, Rank
from muster.supervisors.model.spec import Boot, JobSpec, TrainingMode
from muster.supervisors.model.staging_progress import CODE
from muster.supervisors.model.states import STEP
from muster.supervisors.paths import Root
from muster.supervisors.system import trust
from muster.supervisors.system.settings_file import SettingsFile


def spawn(
    specs: list[ProcessSpec],
    unborn: Path,
    meanwhile: Callable[[], None],
    record: Callable[[list[int]], None],
    say: Callable[[str], object],
) -> Waiting[None]:
    """Creates all of them, does what is to be done `meanwhile` (while they get as far as the gate), has their pids put
    on `record`, and lets them go by one write. `say`: see NewProcesses. Raises OSError and what `record` raises, with
    none of them left."""
    gate = os.pipe()
    children: NewProcesses | None = None
    try:
        line_file = child.open_unborn(unborn, len(specs))
        try:
            children = NewProcesses(specs, gate, line_file, say)
            children.begin()
            meanwhile()
            pids = yield from children.pids()
        finally:
            os.close(line_file)
        record(pids)
    except BaseException:
        for fd in gate:
            os.close(fd)  # a process that survives the rest sees the gate's end and leaves
        if children is not None:
            children.end()
        raise
    # One write, so that all are let go or none: at most 4096 ranks, and PIPE_BUF is 4096.
    os.write(gate[1], b"1" * len(pids))
    os.close(gate[0])
    os.close(gate[1])


def spawn_alone(spec: ProcessSpec) -> Waiting[tuple[int, int]]:
    """One that no record waits for: its pid, and a descriptor from which the line can be read that it left should it
    have given up before its command (`child.read_unborn_line`). Raises OSError, with no process left."""
    fds: list[int] = []
    try:
        fds += os.pipe()
        fds += os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        gate_read, gate_write, said, line = fds
        children = NewProcesses([spec], (gate_read, gate_write), line)
        try:
            children.begin()
            (pid,) = yield from children.pids()
        except BaseException:
            children.end()
            raise
        # Not before: who already runs may end by SIGKILL, and would be taken for one that the kernel did not let begin.
        os.write(gate_write, b"1")
        fds.remove(said)
        return pid, said
    finally:
        for fd in fds:
            os.close(fd)


class ProcessBuilder:
    """Knows what each process of a job needs to start."""

    def __init__(self, root: Root, spec: JobSpec, job: Job, account: Account) -> None:
        self._root, self._spec, self._job = root, spec, job
        self.account = account
        self._paths = root.job(spec.job_id)
        self.common = environment.common(root, spec, job, account)
        settings = SettingsFile(root.settings).now
        self._records, self._by_program = settings.flight_recorder, settings.spawn_program

    def make_folders(self) -> str:
        """Those which only we can make. Returns a sentence about what is not as usual, or nothing. Raises OSError,
        NotStartable."""
        self._paths.workspace.mkdir(exist_ok=True)
        self._paths.workspace.chmod(0o711)  # to be passed through by the job's user, whatever our umask is
        unusual = ""
        ascend = self._job.has_table or self._job.card_kind == ASCEND
        diagnosed = self._spec.training_mode == TrainingMode.DIAGNOSIS
        if self._records or self._spec.boot != Boot.RANKS or ascend or diagnosed:
            name = modelarts.job_name(self._spec.job_id, self._spec.env)
            unusual = user_folder.make_logs(self._root, name, self._spec.job_id, self.account)
        names = [] if self._has_folders() else [f"device{rank.device}" for rank in self._job.ranks]
        if self._spec.code and not modelarts.above_code(self._spec):
            names = [os.path.basename(self.code_folder)]
        if names:
            user_folder.make_all(self._paths.workspace, names, self._spec.job_id, self.account)
        return unusual

    @property
    def code_folder(self) -> str:
        """Where the job's code goes; see `modelarts.folders`."""
        return modelarts.code_folder(self._root, self._spec)

    def make_private(self, path: Path) -> None:
        """An empty private file of the job's user. Raises OSError."""
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.fchown(fd, self.account.uid, self.account.gid)
        finally:
            os.close(fd)

    def step(self, name: str, argv: tuple[str, ...], more: dict[str, str]) -> ProcessSpec:
        """A process before or after the ranks; its output goes to the job's log."""
        workdir = os.path.dirname(self.code_folder) if name == CODE else ""  # it makes the folder
        if name == "pre_start":
            workdir = modelarts.folder_of_pre_start(self._spec)
        return self._alone(STEP, argv, self.common | {marks.STEP: name} | more, workdir)

    def services(self, changes: Changes) -> list[ProcessSpec]:
        """What runs beside the ranks; `changes`: what pre_start changed of the environment. Raises OSError,
        NotStartable."""
        env = environment.changed(self.common, changes)
        if job_services.has_sshd(self._job.services):
            self.make_own(self._paths.sshd)
        return [
            self._alone(one.rank, one.argv, env | {marks.SERVICE: str(one.local_rank)}) for one in self._job.services
        ]

    def _alone(self, number: int, argv: tuple[str, ...], env: dict[str, str], elsewhere: str = "") -> ProcessSpec:
        workspace = self._workspace(self._job.ranks[0]) if self._job.ranks else str(self._paths.workspace)
        workdir = elsewhere or workspace
        is_made = not self._spec.workdir or elsewhere not in ("", self._spec.workdir)
        return ProcessSpec(
            rank=number,
            argv=argv,
            env=env,
            workdir=workdir,
            fifo=self._paths.job_fifo if number == STEP else fifo_of(self._paths, number),
            cgroup=self._job.cgroup,
            account=self.account,
            folders=(workdir,) if is_made else (),
            umask=self._umask,
            v1_cgroups=tuple(self._job.v1_cgroups.values()),
            confinement=self._confinement(),
            by_program=self._by_program,
        )

    def gang(self, changes: Changes) -> tuple[list[ProcessSpec], list[boot.Process]]:
        """All ranks, or the launchers that make them; `changes`: what pre_start changed of the environment."""
        job, spec = self._job, self._spec
        common, facts = environment.changed(self.common, changes), self._facts()
        if self._records:
            prefix = os.path.join(facts.log_dir, "flight-recorder-")
            common |= presets.flight_recorder(common, prefix, job.card_kind == ASCEND)
        processes = boot.processes(spec, facts, common)
        if len(processes) != len(job.ranks):
            raise AssertionError(f"{len(processes)} processes for {len(job.ranks)} places")
        specs = []
        # The nursery may have been started by another daemon, with other CPUs.
        mine = os.sched_getaffinity(0)
        confined = self._confinement()
        for rank, made in zip(job.ranks, processes, strict=True):
            env = environment.of_rank(self._root, spec, job, rank, common) | made.env
            env |= presets.folders(spec.training_mode, facts.log_dir, env)
            workdir = self._workspace(rank)
            specs.append(
                ProcessSpec(
                    rank=rank.rank,
                    argv=made.argv,
                    env=env,
                    workdir=workdir,
                    fifo=self._paths.fifo(rank.rank),
                    cgroup=job.cgroup,
                    account=self.account,
                    folders=self._folders(env, workdir),
                    files=self._files(),
                    limits=tuple((name, int(value)) for name, value in spec.limits.items() if name in RESOURCES),
                    umask=self._umask,
                    nice=spec.nice,
                    cpus=number_lists.parse(rank.cpus) & mine,
                    v1_cgroups=tuple(job.v1_cgroups.values()),
                    confinement=confined,
                    by_program=self._by_program,
                )
            )
        return specs, processes

    def beside(self, rank: Rank, changes: Changes) -> ProcessSpec:
        """Like this rank, or launcher: for what is to run beside it."""
        specs, _ = self.gang(changes)
        return specs[rank.local_rank]

    def _confinement(self) -> Confinement:
        return confinement.of(self._root, self._spec.job_id, self._job, self._spec.workdir)

    @property
    def _umask(self) -> int:
        return child.DEFAULT_UMASK if self._spec.umask is None else self._spec.umask

    def _facts(self) -> boot.JobFacts:
        spec, job = self._spec, self._job
        logs = os.path.realpath(modelarts.further_logs(self._root, spec.job_id, spec.env))
        return boot.JobFacts(
            job_id=spec.job_id,
            nodes=spec.nodes,
            node_rank=job.node_rank,
            node_count=job.node_count,
            cards=job.local_ranks,
            master_addr=job.master_addr,
            master_port=job.master_port,
            rank_table=self.common.get(RANK_TABLE, "") if job.has_table else "",
            log_dir=logs,
            python=sys.executable,
            own_sshd=job_services.has_sshd(job.services),
        )

    def _has_folders(self) -> bool:
        """Whether the ranks' working folders are elsewhere."""
        return bool(self._spec.workdir or (self._spec.rank_table and modelarts.working_folder(self._spec.env, 0)))

    def _workspace(self, rank: Rank) -> str:
        """Its working folder."""
        if self._spec.workdir:
            return self.code_folder or self._spec.workdir
        elsewhere = modelarts.working_folder(self._spec.env, rank.local_rank) if self._spec.rank_table else ""
        return elsewhere or self.code_folder or f"{self._paths.workspace}/device{rank.device}"

    def _folders(self, env: dict[str, str], workdir: str) -> tuple[str, ...]:
        """Folders that are made as the job's user, who may be the only one who can (a network file system)."""
        found = [workdir] if self._has_folders() and not self._spec.workdir else []
        named = [ASCEND_LOGS]
        if self._spec.training_mode == TrainingMode.DIAGNOSIS:
            named += presets.FOLDERS
        return (*found, *dict.fromkeys(env[name] for name in named if env.get(name)))

    def _files(self) -> tuple[tuple[str, str], ...]:
        path = modelarts.table_path(self._spec.env)
        if not path or self._job.table != str(self._paths.rank_table):
            return ()
        return ((path, trust.read(self._paths.rank_table).decode()),)

    def make_own(self, folder: Path) -> None:
        """A folder of the job's user. Raises OSError, NotStartable."""
        user_folder.make(folder, self._spec.job_id, self.account)
