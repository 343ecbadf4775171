"""A private Slurm cluster on the loopback, for the time of a benchmark or a test."""

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

#: In a Debian system: apt-get install --no-install-recommends slurm-wlm munge
PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sinfo", "salloc", "scancel")
_UP_S = 60.0
_END_S = 10.0

# Nothing that costs time without need: no accounting, no cgroups; and more CPUs than any benchmark asks for, so that
# no job waits for another's.
_CONF = """\
ClusterName=bench
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={controller}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
SlurmdParameters=config_overrides
MessageTimeout=30
PartitionName=bench Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
_NODE = "NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs=1024 State=UNKNOWN\n"


class NoSlurm(Exception):
    """Raised when there is no Slurm to compare with; the text is the reason."""


def find(program: str) -> str | None:
    """Where a program lies; daemons are not in every user's PATH."""
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin:/usr/local/sbin")


class Cluster:
    """munged, slurmctld and one slurmd per node in one folder."""

    def __init__(self, folder: Path, nodes: Sequence[str] = ("bench",)) -> None:
        """Starts them and returns once the nodes are idle. Raises NoSlurm."""
        self._processes: list[subprocess.Popen[bytes]] = []
        self._folder = folder
        self.env = os.environ | {"SLURM_CONF": str(folder / "slurm.conf"), "LC_ALL": "C"}
        key = folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        controller, *ports = _free_ports(1 + len(nodes))
        conf = _CONF.format(folder=folder, controller=controller)
        conf += "".join(_NODE.format(name=name, port=port) for name, port in zip(nodes, ports, strict=True))
        (folder / "slurm.conf").write_text(conf)
        (folder / "state").mkdir()
        try:
            self._spawn(
                "munged", "--foreground", f"--key-file={key}", f"--socket={folder}/munge.sock",
                f"--pid-file={folder}/munged.pid", f"--log-file={folder}/munged.log", f"--seed-file={folder}/seed",
            )  # fmt: skip
            self._until("munged listens", (folder / "munge.sock").exists)
            self._spawn("slurmctld", "-D", "-f", str(folder / "slurm.conf"))
            for name in nodes:
                (folder / f"spool-{name}").mkdir()
                self._spawn("slurmd", "-D", "-N", name, "-f", str(folder / "slurm.conf"))
            self._until("the nodes are idle", self._idle)
        except BaseException:
            self.close()
            raise

    def srun(self, *args: str) -> Sequence[str]:
        """The command line of an srun."""
        return [_must_find("srun"), "--quiet", "--mpi=none", *args]

    def allocate(self, tasks: int) -> str:
        """Makes an allocation that stays until `release`, and returns its id. Raises NoSlurm."""
        command = [_must_find("salloc"), "--no-shell", f"-n{tasks}", "-J", "muster-bench"]
        done = subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=_UP_S, check=False)
        words = done.stderr.replace("\n", " ").split()
        if done.returncode or "allocation" not in words:
            raise NoSlurm(f"salloc: {done.stderr.strip()}")
        return words[words.index("allocation") + 1]

    def release(self, allocation: str) -> None:
        subprocess.run([_must_find("scancel"), allocation], env=self.env, timeout=_UP_S, check=False)

    def step_daemons(self) -> list[int]:
        """Pids of this cluster's slurmstepd, told from others by the configuration in their environment."""
        found = []
        for folder in Path("/proc").iterdir():
            if not folder.name.isdigit():
                continue
            with contextlib.suppress(OSError):
                if (folder / "comm").read_text().strip() != "slurmstepd":
                    continue
                if os.fsencode(self.env["SLURM_CONF"]) in (folder / "environ").read_bytes():
                    found.append(int(folder.name))
        return found

    def close(self) -> None:
        """Ends what was started, the last one first."""
        for process in reversed(self._processes):
            process.terminate()
            try:
                process.wait(timeout=_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _spawn(self, program: str, *args: str) -> None:
        with open(self._folder / f"{program}.out", "wb") as out:
            self._processes.append(
                subprocess.Popen(
                    [_must_find(program), *args], env=self.env, stdin=subprocess.DEVNULL, stdout=out, stderr=out
                )
            )

    def _until(self, what: str, test: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _UP_S
        while not test():
            for process in self._processes:
                if process.poll() is not None:
                    program = Path(str(process.args[0] if isinstance(process.args, list) else process.args)).name
                    said = (self._folder / f"{program}.out").read_text()[-300:].strip()
                    raise NoSlurm(f"{program} ended with {process.returncode}: {said}")
            if time.monotonic() > deadline:
                raise NoSlurm(f"not within {_UP_S:g} s: {what}")
            time.sleep(0.1)

    def _idle(self) -> bool:
        command = [_must_find("sinfo"), "-h", "-N", "-o", "%T"]
        done = subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=_UP_S, check=False)
        return set(done.stdout.split()) == {"idle"}


@contextlib.contextmanager
def cluster(nodes: Sequence[str] = ("bench",)) -> Iterator[Cluster]:
    """A cluster for the time of the block. Raises NoSlurm, with the reason."""
    missing = [name for name in PROGRAMS if find(name) is None]
    if missing:
        raise NoSlurm(f"not installed: {', '.join(missing)}")
    if os.geteuid() != 0:
        raise NoSlurm("slurmd needs root")
    folder = Path(tempfile.mkdtemp(prefix="muster-bench-slurm-"))
    folder.chmod(0o755)  # munged refuses a socket that others cannot reach
    try:
        made = Cluster(folder, nodes)
        try:
            yield made
        finally:
            made.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _must_find(program: str) -> str:
    path = find(program)
    if path is None:
        raise NoSlurm(f"not installed: {program}")
    return path


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for sock in sockets:
            sock.bind(("127.0.0.1", 0))
        return [sock.getsockname()[1] for sock in sockets]
