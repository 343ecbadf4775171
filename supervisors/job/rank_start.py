"""The ranks of an attempt, or the launchers that make them, from the spec to the moment when they are let go."""

import time

from muster.probes.kernel import process
from muster.supervisors.job.ends import Ends
from muster.supervisors.launch import environment, spawning
from muster.supervisors.launch.child import Account, ProcessSpec
from muster.supervisors.launch.modes import boot
from muster.supervisors.model.ledger import Ledger
from muster.supervisors.model.lifecycle import Rank
from muster.supervisors.model.spec import JobSpec
from muster.supervisors.model.states import Kind
from muster.supervisors.output.output import Output
from muster.supervisors.paths import Root
from muster.supervisors.wire.link import NurseryLink


class RankStart:
    """Has the builder of the job; what follows from the ranks' ends is decided elsewhere (gang.py)."""

    def __init__(
        self, root: Root, spec: JobSpec, ledger: Ledger, output: Output, ends: Ends, link: NurseryLink
    ) -> None:
        self._root, self._spec, self._ledger, self._output = root, spec, ledger, output
        self._paths = root.job(spec.job_id)
        self._ends, self._link = ends, link
        self._builder: spawning.ProcessBuilder | None = None

    def prepare(self, account: Account) -> str:
        """All that an attempt needs in the job's folder, and the folder for further logs. Returns a sentence about what
        is not as usual, or nothing. Raises OSError, NotStartable."""
        self._builder = spawning.ProcessBuilder(self._root, self._spec, self._ledger.job, account)
        return self._builder.make_folders()

    def builder(self) -> spawning.ProcessBuilder:
        """Raises NotStartable where the job's user is not known (any more)."""
        if self._builder is None:
            self._builder = spawning.ProcessBuilder(
                self._root, self._spec, self._ledger.job, Account.of(self._spec.user)
            )
        return self._builder

    def spawn(self) -> None:
        """Raises OSError, NotStartable, with no rank left."""
        builder, job = self.builder(), self._ledger.job
        # All is ready before the first fork: each fork makes us copy again every page that we touch behind it.
        born, processes = builder.gang(self._changes(builder))
        owner = (born[0].account.uid, born[0].account.gid)
        self._output.make_fifos(job.ranks, owner)

        def open_output() -> None:
            self._link.hold(self._output.open(job.ranks, owner, fresh=True))
            if job.past:
                self._output.mark(f"attempt {job.attempt} {time.strftime('%Y-%m-%dT%H:%M:%S')}")

        spawning.spawn(born, self._paths.unborn, open_output, lambda pids: self._record(pids, processes))

    def beside(self, rank: Rank) -> ProcessSpec:
        """How what runs beside a rank is born. Raises OSError, NotStartable."""
        builder = self.builder()
        return builder.beside(rank, self._changes(builder))

    def _changes(self, builder: spawning.ProcessBuilder) -> environment.Changes:
        return environment.read_exports(self._paths.exports, builder.common) if self._spec.pre_start else {}

    def _record(self, pids: list[int], processes: list[boot.Process]) -> None:
        ranks = self._ledger.job.ranks
        spawned = [[rank.rank, *process.identity(pid)] for rank, pid in zip(ranks, pids, strict=True)]
        record: dict[str, object] = {"kind": Kind.SPAWNED, "ranks": spawned, "boot": process.boot_id()}
        if any(made.role != "rank" for made in processes):
            record["argv"] = [list(made.argv) for made in processes]
            record["roles"] = [made.role for made in processes]
            record["serves"] = [made.serves for made in processes]
        self._link.tell("ranks", pids=pids)
        self._ledger.commit(record)
        self._ends.watch()
