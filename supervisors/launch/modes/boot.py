"""Boot modes: which processes muster starts on a node, and with which arguments.

In mode "ranks" these are the ranks. In every other mode it is a launcher, or the job's own command, that makes them.
Arguments, their order and the variables are those of ModelArts' preset images; docs/guides/boot-modes.md has them all.
"""

import os
import re
import shlex
from collections.abc import Callable, Mapping

from muster.probes.kernel import marks
from muster.probes.kernel.dataclass import dataclass
from muster.probes.kernel.known_names import ASCEND_CARDS, CUDA_CARDS, RANK_TABLE
from muster.supervisors.model.lifecycle import LAUNCHER, MPI_LEAD, MPI_WAIT
from muster.supervisors.model.spec import DEFAULT_READY_S, Boot, JobSpec, Violation, variable
from muster.supervisors.supervision_errors import NotStartable

#: How long msrun's nodes wait for each other, in seconds, unless the environment says otherwise.
CLUSTER_TIME_OUT_S = 600
SSHD_PORT = 22
#: What runs a boot file that comes alone, in the modes that hand it to no launcher of Python's.
INTERPRETER = "MA_SCRIPT_INTERPRETER"
#: ModelArts gives TensorFlow's tasks ports in this range, both ends included.
TF_PORTS = (5000, 10000)
#: What ModelArts gives to mpirun; each variable replaces its default, or is appended to it.
OPENMPI = {
    "OPENMPI_BIND_ARGS": "-bind-to none -map-by slot",
    "OPENMPI_X_ARGS": "-x LD_LIBRARY_PATH -x HOROVOD_MPI_THREADS_DISABLE=1 -x NCCL_DEBUG=INFO"
    " -x NCCL_SOCKET_IFNAME=ib0,bond0,eth0 -x NCCL_SOCKET_FAMILY=AF_INET -x NCCL_IB_DISABLE=0",
    "OPENMPI_MCA_ARGS": "-mca pml ob1 -mca btl ^openib -mca plm_rsh_no_tree_spawn true",
    "OPENMPI_EXTRA_ARGS": "",
}
#: Variables that go into mpirun's environment file, by the beginning of their names.
IN_ENV_FILE = re.compile(r"MA_|SHARED_|S3_|PATH|VC_WORKER_|SCC|CRED")
#: Of the job's other variables the ranks of all nodes are given all but these, which say who and where one node is.
_OF_THIS_NODE = frozenset(
    (
        *("HOME", "USER", "LOGNAME", "SHELL", "PWD", "HOSTNAME", "TERM", "VC_TASK_INDEX", marks.NONCE),
        *("SSHD_PORT", "MY_SSHD_PORT"),
        *(CUDA_CARDS, ASCEND_CARDS, RANK_TABLE),
    )
)
#: Options of ssh for an sshd of muster's: its host key is new.
_TO_OWN_SSHD = "-o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MSRUN_STARTS = ("python", "python3", "pytest")
_PYTHON = re.compile(r"python[0-9.]*")
_WHOLE = re.compile(r"[0-9]{1,9}")
_EXTRA_TORCHRUN, _TORCHRUN_PORT = "MA_EXTRA_TORCHRUN_PARAMS", "MA_TORCHRUN_MASTER_PORT"
_PS_HOSTS, _WORKER_HOSTS = "TF_PS_HOSTS", "TF_WORKER_HOSTS"

_PACKAGES = {
    "torchrun": "it comes with PyTorch 1.11 and later: pip install torch",
    "msrun": "it comes with MindSpore 2.3 and later: pip install 'mindspore>=2.3'",
    "mpirun": "it comes with Open MPI: apt install openmpi-bin",
    "mpiexec": "it comes with Open MPI: apt install openmpi-bin",
    "orted": "it comes with Open MPI: apt install openmpi-bin",
    "sshd": "apt install openssh-server",
    "ssh": "apt install openssh-client",
}


@dataclass(frozen=True, slots=True)
class Process:
    """One process that muster starts. `env` is what it is given beyond what all processes of the node are given."""

    argv: tuple[str, ...]
    env: dict[str, str]
    #: "rank", "worker", "ps", or a role of lifecycle.py.
    role: str
    #: It never ends by itself, and is ended when all others have ended well (TensorFlow's parameter server).
    serves: bool = False


@dataclass(frozen=True, slots=True)
class JobFacts:
    """What is known of a job once it has its place."""

    job_id: str
    #: In the order of their node ranks; may be empty.
    nodes: tuple[str, ...]
    node_rank: int
    node_count: int
    #: Ranks per node.
    cards: int
    master_addr: str
    master_port: int
    #: Path of a rank table of template 1, or empty.
    rank_table: str
    #: The job's own log folder; launchers' logs go below.
    log_dir: str
    #: The interpreter that runs muster.supervisors.launch.mpi.mpi.
    python: str
    #: Whether muster starts the sshd of an MPI job, with a host key that nobody knows.
    own_sshd: bool = False


def processes(spec: JobSpec, facts: JobFacts, env: Mapping[str, str]) -> list[Process]:
    """The processes of this node, in the order of their places. `env` is the ranks' environment.

    Raises NotStartable where a variable in `env` cannot be used.
    """
    wrong = _wrong_variables(spec.boot, facts.node_count, env)
    if wrong:
        raise NotStartable(f"{wrong[0].field}: {wrong[0].description}")
    return MODES[Boot(spec.boot)](spec, facts, env)


def problems(spec: JobSpec) -> list[Violation]:
    """What is wrong with this boot mode for this spec; the number of names in `nodes` is not looked at here."""
    found = _wrong_variables(spec.boot, spec.node_count, spec.env)
    if spec.node_count > 1 and not spec.nodes and _needs_names(spec):
        need = f"{spec.boot} on {spec.node_count} nodes needs the names of all of them, in the order of their ranks"
        found.append(Violation("nodes", need))
    if spec.boot == Boot.MSRUN and _table_wanted(spec.env) and not spec.rank_table:
        found.append(
            Violation(
                "rank_table", "is empty, but MS_RANKTABLE_ENABLE in env asks msrun for one: give the rank table's path"
            )
        )
    if spec.boot == Boot.MSRUN and spec.command and _is_python(spec.command[0]):
        name = os.path.basename(spec.command[0])
        if name not in _MSRUN_STARTS:
            allowed = ", ".join(_MSRUN_STARTS)
            found.append(
                Violation("command[0]", f"{name!r}: msrun starts {allowed}, and takes anything else for a script")
            )
    return found


def knows_nodes_by_id(spec: JobSpec) -> bool:
    """Whether the nodes of this job know each other by its id, so that it must be the same on all of them."""
    return spec.boot == Boot.MPI and spec.node_count > 1


def sshd_port(env: Mapping[str, str]) -> str:
    """Where the sshd of each node of an MPI job answers; run_mpi.sh has its own name for the variable."""
    return env.get("SSHD_PORT") or env.get("MY_SSHD_PORT") or str(SSHD_PORT)


def package_of(program: str) -> str:
    """Which package has a launcher, as a remedy for who lacks it; empty for any other program."""
    return _PACKAGES.get(program, "")


# --- the modes --------------------------------------------------------------------------------------------------------


def _ranks(spec: JobSpec, facts: JobFacts, env: Mapping[str, str]) -> list[Process]:
    return [Process(spec.command, {}, "rank") for _ in range(facts.cards)]


def _torchrun(spec: JobSpec, facts: JobFacts, env: Mapping[str, str]) -> list[Process]:
    words, own = _for_torchrun(spec.command)
    argv = ["torchrun"]
    if facts.node_count == 1:
        argv.append("--standalone")
    argv += [f"--nnodes={facts.node_count}", f"--nproc_per_node={facts.cards}"]
    if facts.node_count > 1:
        port = spec.master_port or int(env.get(_TORCHRUN_PORT) or facts.master_port)
        argv += [
            f"--node_rank={facts.node_rank}",
            f"--master_addr={facts.master_addr}",
            f"--master_port={port}",
            # The same on each node: muster on another one may have made up another id of the job, and the address of
            # the first node may be written in another way there.
            f"--rdzv_id={port}",
            "--rdzv_backend=static",
        ]
    argv += shlex.split(env.get(_EXTRA_TORCHRUN, ""))
    return [Process((*argv, *words), own, LAUNCHER)]


def _msrun(spec: JobSpec, facts: JobFacts, env: Mapping[str, str]) -> list[Process]:
    words, own = _for_msrun(spec.command, env)
    argv = ["msrun", f"--worker_num={facts.node_count * facts.cards}", f"--local_worker_num={facts.cards}"]
    if facts.node_count > 1:
        argv.append(f"--master_addr={facts.master_addr}")
    argv += [
        f"--node_rank={facts.node_rank}",
        f"--master_port={facts.master_port}",
        f"--log_dir={_attempt_folder(facts.log_dir, 'msrun', env)}",
        "--join=True",
        f"--cluster_time_out={env.get('MSRUN_CLUSTER_TIME_OUT') or CLUSTER_TIME_OUT_S}",
    ]
    if _table_wanted(env) and facts.rank_table:
        argv.append(f"--rank_table_file={facts.rank_table}")
    return [Process((*argv, *words), own, LAUNCHER)]


def _pytorch(spec: JobSpec, facts: JobFacts, env: Mapping[str, str]) -> list[Process]:
    argv = [
        *_boot_file(spec.command, env),
        "--init_method",
        f"tcp://{_host_port(facts.master_addr, facts.master_port)}",
    ]
    if facts.node_count > 1:
        argv += ["--rank", str(facts.node_rank), "--world_size", str(facts.node_count)]
    return [Process(tuple(argv), {}, "worker")]


def _tensorflow(spec: JobSpec, facts: JobFacts, env: Mapping[str, str]) -> list[Process]:
    words = _boot_file(spec.command, env)
    if facts.node_count == 1:
        return [Process(words, {}, "worker")]
    port = _tf_port(facts)
    ps = env.get(_PS_HOSTS) or ",".join(_host_port(name, port) for name in facts.nodes)
    workers = env.get(_WORKER_HOSTS) or ",".join(_host_port(name, port + 1) for name in facts.nodes)
    found = []
    for task in ("ps", "worker"):
        argv = (
            *words,
            *("--task_index", str(facts.node_rank)),
            *("--ps_hosts", ps),
            *("--worker_hosts", workers),
            *("--job_name", task),
        )
        own = {"MA_TASK_NAME": task, _PS_HOSTS: ps, _WORKER_HOSTS: workers}
        found.append(Process(argv, own, task, serves=task == "ps"))
    return found


def _command(spec: JobSpec, facts: JobFacts, env: Mapping[str, str]) -> list[Process]:
    place = {"NODE_RANK": str(facts.node_rank), "NNODES": str(facts.node_count)}
    own = {name: value for name, value in place.items() if name not in spec.env}
    return [Process(_boot_file(spec.command, env), own, LAUNCHER)]


def _mpi(spec: JobSpec, facts: JobFacts, env: Mapping[str, str]) -> list[Process]:
    # -I: neither PYTHON* variables nor the working folder are to change what runs here.
    program = (facts.python, "-I", "-m", "muster.supervisors.launch.mpi.mpi")
    ready = spec.ready_timeout or DEFAULT_READY_S
    hostfile, tune = f"{facts.job_id}.hostfile", f"{facts.job_id}.mpienv"
    common = (f"--job-id={facts.job_id}", f"--ready-timeout={ready:g}", f"--env-file={tune}")
    if facts.node_rank > 0:
        where: tuple[str, ...] = (
            f"--node-rank={facts.node_rank}",
            f"--lead={_host_port(facts.master_addr, facts.master_port)}",
        )
        where += (f"--lead-name={facts.nodes[0]}",) if facts.nodes else ()
        return [Process((*program, "wait", *common, *where), {}, MPI_WAIT)]
    port = sshd_port(env)
    command = _boot_file(spec.command, env)
    lead = ["lead", *common, f"--program={command[0]}", f"--hostfile={hostfile}", f"--slots={facts.cards}"]
    x_args = _x_args(env)
    if facts.node_count > 1:
        lead += [f"--hosts={','.join(facts.nodes)}", f"--sshd-port={port}", f"--listen={facts.master_port}"]
        named = {x_args[i + 1].partition("=")[0] for i in range(len(x_args) - 1) if x_args[i] == "-x"}
        x_args += [word for name in sorted(env) if name not in named and _is_told(name) for word in ("-x", name)]
    mpirun = [
        *("mpirun", "-np", str(facts.node_count * facts.cards)),
        *("-hostfile", hostfile),
        *("-mca", "plm_rsh_args", f"-p {port}" + (f" {_TO_OWN_SSHD}" if facts.own_sshd else "")),
        *("-tune", tune),
        *_openmpi("OPENMPI_BIND_ARGS", env),
        *x_args,
        *_openmpi("OPENMPI_MCA_ARGS", env),
        *_openmpi("OPENMPI_EXTRA_ARGS", env),
        *command,
    ]
    return [Process((*program, *lead, "--", *mpirun), {}, MPI_LEAD)]


MODES: dict[Boot, Callable[[JobSpec, JobFacts, Mapping[str, str]], list[Process]]] = {
    Boot.RANKS: _ranks,
    Boot.TORCHRUN: _torchrun,
    Boot.MSRUN: _msrun,
    Boot.PYTORCH: _pytorch,
    Boot.TENSORFLOW: _tensorflow,
    Boot.MPI: _mpi,
    Boot.COMMAND: _command,
}


# --- the command, as each launcher wants it ---------------------------------------------------------------------------


def _for_torchrun(command: tuple[str, ...]) -> tuple[tuple[str, ...], dict[str, str]]:
    """torchrun starts Python itself: what it is to run, and the variable that names another interpreter than its."""
    first, second = command[0], command[1] if len(command) > 1 else "-"
    if first.endswith(".py") or first.startswith("-"):
        return command, {}
    if _is_python(first) and (second == "-m" or not second.startswith("-")):
        return command[1:], {} if first in ("python", "python3") else {"PYTHON_EXEC": first}
    return ("--no-python", *command), {}


def _for_msrun(command: tuple[str, ...], env: Mapping[str, str]) -> tuple[tuple[str, ...], dict[str, str]]:
    """msrun puts `python` before whatever does not begin with the very word python, python3 or pytest."""
    folder, name = os.path.split(command[0])
    own: dict[str, str] = {}
    if folder and name in _MSRUN_STARTS:
        own["PATH"] = os.pathsep.join(filter(None, (folder, env.get("PATH"))))
        command = (name, *command[1:])
    if command[0] == "python" and len(command) > 1 and not command[1].startswith("-"):
        command = command[1:]
    return command, own


def _boot_file(command: tuple[str, ...], env: Mapping[str, str]) -> tuple[str, ...]:
    """The command, with the interpreter before a boot file that comes alone."""
    if not command[0].endswith(".py"):
        return command
    return (*(shlex.split(env.get(INTERPRETER, "")) or ["python"]), *command)


def _is_python(word: str) -> bool:
    return _PYTHON.fullmatch(os.path.basename(word)) is not None


# --- what the variables say -------------------------------------------------------------------------------------------


def _x_args(env: Mapping[str, str]) -> list[str]:
    """The -x arguments. Of the defaults with a value, those yield that the job's environment has."""
    words = _openmpi("OPENMPI_X_ARGS", env)
    if not env.get("OPENMPI_X_ARGS"):
        words = [word.partition("=")[0] if "=" in word and word.partition("=")[0] in env else word for word in words]
    return words


def _openmpi(name: str, env: Mapping[str, str]) -> list[str]:
    return shlex.split(env.get(name) or OPENMPI[name])


def _is_told(name: str) -> bool:
    """Whether mpirun passes a variable on: not if it is for mpirun or muster, or in the environment file."""
    ours = name in _OF_THIS_NODE or name.startswith(("OPENMPI_", "OMPI_"))
    return not ours and not IN_ENV_FILE.match(name) and _PLAIN_NAME.fullmatch(name) is not None


def _table_wanted(env: Mapping[str, str]) -> bool:
    return env.get("MS_RANKTABLE_ENABLE", "").lower() == "true"


def _tf_port(facts: JobFacts) -> int:
    """Of the parameter servers; the workers have the next one. All nodes compute the same one."""
    low, high = TF_PORTS
    if low <= facts.master_port < high:
        return facts.master_port
    return low + 2 * (facts.master_port % ((high - low) // 2))


def _attempt_folder(folder: str, name: str, env: Mapping[str, str]) -> str:
    """Each attempt has a folder of its own: a restart keeps what the one before wrote."""
    attempt = env.get(marks.ATTEMPT, "0")
    return os.path.join(folder, name if attempt == "0" else f"{name}-{attempt}")


def _host_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _needs_names(spec: JobSpec) -> bool:
    if spec.boot == Boot.TENSORFLOW:
        return not (spec.env.get(_PS_HOSTS) and spec.env.get(_WORKER_HOSTS))
    return spec.boot == Boot.MPI


def _wrong_variables(mode: str, node_count: int, env: Mapping[str, str]) -> list[Violation]:
    found: list[Violation] = []

    def words(name: str) -> None:
        try:
            shlex.split(env.get(name, ""))
        except ValueError as error:
            found.append(Violation(variable(name), f"cannot be split into words as a shell would: {error}"))

    def number(name: str, least: int, most: int) -> None:
        text = env.get(name, "")
        if text and not (_WHOLE.fullmatch(text) and least <= int(text) <= most):
            found.append(Violation(variable(name), f"{text[:40]!r}: must be a whole number from {least} to {most}"))

    def hosts(name: str) -> None:
        if env.get(name) and env[name].count(",") + 1 != node_count:
            given = env[name].count(",") + 1
            found.append(
                Violation(
                    variable(name), f"{given} entries for {node_count} nodes: one host:port for each, with commas"
                )
            )

    if mode == Boot.TORCHRUN:
        words(_EXTRA_TORCHRUN)
        number(_TORCHRUN_PORT, 1, 65535)
    elif mode == Boot.MSRUN:
        number("MSRUN_CLUSTER_TIME_OUT", 1, 10**8)
    elif mode == Boot.MPI:
        number("SSHD_PORT", 1, 65535)
        number("MY_SSHD_PORT", 1, 65535)
        for name in OPENMPI:
            words(name)
    elif mode == Boot.TENSORFLOW and node_count > 1:
        hosts(_PS_HOSTS)
        hosts(_WORKER_HOSTS)
    if mode in (Boot.PYTORCH, Boot.TENSORFLOW, Boot.MPI, Boot.COMMAND):
        words(INTERPRETER)
    return found
