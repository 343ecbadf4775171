import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from muster.supervisors.launch.modes import boot
from muster.supervisors.launch.modes.boot import JobFacts, Process, package_of, problems, processes
from muster.supervisors.model.spec import Boot, JobSpec
from muster.supervisors.supervision_errors import NotStartable

ONE = JobFacts("train-7", (), 0, 1, 8, "10.0.0.1", 29400, "", "/log/train-7", "/opt/muster/bin/python")
TWO = replace(ONE, nodes=("node-a", "node-b"), node_count=2, node_rank=1, master_addr="node-a", master_port=6000)
X = (
    "-x LD_LIBRARY_PATH -x HOROVOD_MPI_THREADS_DISABLE=1 -x NCCL_DEBUG=INFO -x NCCL_SOCKET_IFNAME=ib0,bond0,eth0"
    " -x NCCL_SOCKET_FAMILY=AF_INET -x NCCL_IB_DISABLE=0"
)
MCA = "-mca pml ob1 -mca btl '^openib' -mca plm_rsh_no_tree_spawn true"


def spec_of(mode: str, command: str = "train.py --lr 0.1", facts: JobFacts = ONE, **changes: Any) -> JobSpec:
    fields: dict[str, Any] = {
        "boot": mode,
        "nodes": facts.nodes,
        "node_count": facts.node_count,
        "node_rank": facts.node_rank,
        "card_count": facts.cards,
    }
    return JobSpec(facts.job_id, tuple(shlex.split(command)), **fields | changes)


def start(mode: str, command: str = "train.py --lr 0.1", facts: JobFacts = ONE, **env: str) -> list[Process]:
    return processes(spec_of(mode, command, facts), facts, env)


def line(mode: str, command: str = "train.py --lr 0.1", facts: JobFacts = ONE, **env: str) -> str:
    (only,) = start(mode, command, facts, **env)
    return shlex.join(only.argv)


# --- ranks ------------------------------------------------------------------------------------------------------------


def test_ranks_are_the_command_once_per_card():
    assert start("ranks", "./run.sh a 'b c'") == [Process(("./run.sh", "a", "b c"), {}, "rank")] * 8


# --- command ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "argv"),
    [("bash main.sh x", "bash main.sh x"), ("train.py --lr 0.1", "python train.py --lr 0.1"), ("./run", "./run")],
)
def test_the_command_once_per_node_knows_its_node(command, argv):
    (only,) = start("command", command, TWO)
    assert (shlex.join(only.argv), only.role) == (argv, "launcher")
    assert only.env == {"NODE_RANK": "1", "NNODES": "2"}


def test_what_the_job_says_of_its_nodes_stays():
    spec = spec_of("command", facts=TWO, env={"NODE_RANK": "7"})
    (only,) = processes(spec, TWO, spec.env)
    assert only.env == {"NNODES": "2"}


# --- torchrun ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "handed_over"),
    [
        ("train.py --lr 0.1", "train.py --lr 0.1"),
        ("python train.py --lr 0.1", "train.py --lr 0.1"),
        ("python3 train --lr 0.1", "train --lr 0.1"),
        ("python -m pkg.train --lr 0.1", "-m pkg.train --lr 0.1"),
        ("-m pkg.train", "-m pkg.train"),
        ("python -u train.py", "--no-python python -u train.py"),
        ("python", "--no-python python"),
        ("bash run.sh", "--no-python bash run.sh"),
        ("./train -x", "--no-python ./train -x"),
    ],
)
def test_torchrun_on_one_node(command, handed_over):
    assert line("torchrun", command) == f"torchrun --standalone --nnodes=1 --nproc_per_node=8 {handed_over}"


def test_torchrun_on_several_nodes_meets_at_the_master():
    assert line("torchrun", facts=TWO) == (
        "torchrun --nnodes=2 --nproc_per_node=8 --node_rank=1 --master_addr=node-a --master_port=6000"
        " --rdzv_id=6000 --rdzv_backend=static train.py --lr 0.1"
    )


@pytest.mark.parametrize(
    ("of_spec", "of_env", "port"), [(0, "", TWO.master_port), (0, "7777", 7777), (6000, "7777", 6000)]
)
def test_the_port_of_torchrun(of_spec, of_env, port):
    spec = spec_of("torchrun", facts=TWO, master_port=of_spec)
    (only,) = processes(spec, TWO, {"MA_TORCHRUN_MASTER_PORT": of_env})
    assert f"--master_port={port}" in only.argv


def test_extra_parameters_of_torchrun_come_last_so_that_they_win():
    extra = "--rdzv_conf=timeout=7200 --role 'a b'"
    assert line("torchrun", MA_EXTRA_TORCHRUN_PARAMS=extra) == (
        "torchrun --standalone --nnodes=1 --nproc_per_node=8 --rdzv_conf=timeout=7200 --role 'a b' train.py --lr 0.1"
    )


def test_an_interpreter_that_is_named_is_the_one_that_torchrun_uses():
    (only,) = start("torchrun", "/venv/bin/python3.11 train.py")
    assert (only.argv[-1], only.env, only.role) == ("train.py", {"PYTHON_EXEC": "/venv/bin/python3.11"}, "launcher")


# --- msrun ------------------------------------------------------------------------------------------------------------


def test_msrun_on_one_node():
    assert line("msrun", "python train.py --lr 0.1") == (
        "msrun --worker_num=8 --local_worker_num=8 --node_rank=0 --master_port=29400 --log_dir=/log/train-7/msrun"
        " --join=True --cluster_time_out=600 train.py --lr 0.1"
    )


def test_msrun_on_several_nodes():
    assert line("msrun", facts=TWO, MSRUN_CLUSTER_TIME_OUT="90", MUSTER_ATTEMPT="2") == (
        "msrun --worker_num=16 --local_worker_num=8 --master_addr=node-a --node_rank=1 --master_port=6000"
        " --log_dir=/log/train-7/msrun-2 --join=True --cluster_time_out=90 train.py --lr 0.1"
    )


@pytest.mark.parametrize(
    ("asked", "table", "given"),
    [("True", "/t", True), ("true", "/t", True), ("False", "/t", False), ("", "/t", False), ("True", "", False)],
)
def test_msrun_gets_the_rank_table_where_it_is_asked_to_use_it(asked, table, given):
    argv = line("msrun", facts=replace(ONE, rank_table=table), MS_RANKTABLE_ENABLE=asked)
    assert (" --cluster_time_out=600 --rank_table_file=/t train.py" in argv) is given
    assert ("rank_table_file" in argv) is given


@pytest.mark.parametrize(
    ("command", "handed_over", "path"),
    [
        ("train.py", "train.py", None),
        ("python train.py", "train.py", None),
        ("python3 train.py", "python3 train.py", None),
        ("python -u train.py", "python -u train.py", None),
        ("python -m pkg", "python -m pkg", None),
        ("pytest x.py", "pytest x.py", None),
        ("/venv/bin/python train.py", "train.py", "/venv/bin:/usr/bin"),
        ("/venv/bin/python3 -u train.py", "python3 -u train.py", "/venv/bin:/usr/bin"),
    ],
)
def test_what_msrun_is_handed_over(command, handed_over, path):
    (only,) = start("msrun", command, PATH="/usr/bin")
    assert shlex.join(only.argv).partition("--cluster_time_out=600 ")[2] == handed_over
    assert only.env.get("PATH") == path


# --- pytorch ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "interpreter", "begins"),
    [
        ("train.py --lr 0.1", "", "python train.py --lr 0.1"),
        ("train.py --lr 0.1", "/venv/bin/python -u", "/venv/bin/python -u train.py --lr 0.1"),
        ("python train.py --lr 0.1", "ignored", "python train.py --lr 0.1"),
        ("python -u train.py", "", "python -u train.py"),
        ("bash run.sh", "", "bash run.sh"),
    ],
)
def test_pytorch_on_one_node(command, interpreter, begins):
    (only,) = start("pytorch", command, MA_SCRIPT_INTERPRETER=interpreter)
    assert shlex.join(only.argv) == f"{begins} --init_method tcp://10.0.0.1:29400"
    assert (only.role, only.serves) == ("worker", False)


def test_pytorch_on_several_nodes():
    assert line("pytorch", facts=TWO) == (
        "python train.py --lr 0.1 --init_method tcp://node-a:6000 --rank 1 --world_size 2"
    )


def test_an_ipv6_address_stands_in_brackets():
    assert line("pytorch", facts=replace(ONE, master_addr="fd00::2")).endswith(" 'tcp://[fd00::2]:29400'")


# --- tensorflow -------------------------------------------------------------------------------------------------------


def test_tensorflow_on_one_node_is_the_boot_file_alone():
    assert start("tensorflow") == [Process(("python", "train.py", "--lr", "0.1"), {}, "worker")]


def test_tensorflow_on_several_nodes_is_a_parameter_server_and_a_worker():
    ps, worker = start("tensorflow", facts=TWO)
    hosts = "node-a:6000,node-b:6000", "node-a:6001,node-b:6001"
    common = f"python train.py --lr 0.1 --task_index 1 --ps_hosts {hosts[0]} --worker_hosts {hosts[1]} --job_name"
    assert shlex.join(ps.argv) == f"{common} ps"
    assert shlex.join(worker.argv) == f"{common} worker"
    assert [(p.role, p.serves, p.env["MA_TASK_NAME"]) for p in (ps, worker)] == [
        ("ps", True, "ps"),
        ("worker", False, "worker"),
    ]
    assert (ps.env["TF_PS_HOSTS"], worker.env["TF_WORKER_HOSTS"]) == hosts


@pytest.mark.parametrize("port", [29400, 4999, 10000, 5000, 9999])
def test_ports_of_tensorflow_are_in_their_range_and_every_nodes_the_same(port):
    found = set()
    for rank in range(2):
        # Without --job-id each node has an id of its own.
        facts = replace(TWO, job_id=f"train-{rank}", master_port=port, node_rank=rank)
        ps, _ = start("tensorflow", facts=facts)
        found.add((ps.env["TF_PS_HOSTS"], ps.env["TF_WORKER_HOSTS"]))
    ((ps_hosts, worker_hosts),) = found
    ports = [int(hosts.rpartition(":")[2]) for hosts in (ps_hosts, worker_hosts)]
    assert ports[1] == ports[0] + 1
    assert 5000 <= ports[0] < ports[1] <= 10000
    assert (ports[0] == port) is (5000 <= port < 10000)


def test_hosts_of_tensorflow_that_the_environment_names_are_taken():
    ps, _ = start("tensorflow", facts=TWO, TF_PS_HOSTS="a:1,b:1", TF_WORKER_HOSTS="a:2,b:2")
    assert ps.argv[-6:] == ("--ps_hosts", "a:1,b:1", "--worker_hosts", "a:2,b:2", "--job_name", "ps")


# --- mpi --------------------------------------------------------------------------------------------------------------


def test_mpi_on_one_node_neither_waits_nor_listens():
    (lead,) = start("mpi")
    assert lead.role == "mpi-lead"
    assert shlex.join(lead.argv) == (
        "/opt/muster/bin/python -I -m muster.supervisors.launch.mpi.mpi lead --job-id=train-7 --ready-timeout=600"
        " --env-file=train-7.mpienv --program=python --hostfile=train-7.hostfile --slots=8 -- mpirun -np 8"
        " -hostfile train-7.hostfile"
        " -mca plm_rsh_args '-p 22' -tune train-7.mpienv -bind-to none -map-by slot"
        f" {X} {MCA} python train.py --lr 0.1"
    )


def test_mpi_on_node_0_gathers_the_others():
    facts = replace(TWO, node_rank=0)
    spec = replace(spec_of("mpi", facts=facts), ready_timeout=30.0)
    (lead,) = processes(spec, facts, {"SSHD_PORT": "2222"})
    words = list(lead.argv)
    split = words.index("--")
    assert words[7:split] == [
        "--env-file=train-7.mpienv",
        "--program=python",
        "--hostfile=train-7.hostfile",
        "--slots=8",
        "--hosts=node-a,node-b",
        "--sshd-port=2222",
        "--listen=6000",
    ]
    assert "--ready-timeout=30" in words
    assert words[split + 1 : split + 9] == [
        *("mpirun", "-np", "16", "-hostfile", "train-7.hostfile", "-mca", "plm_rsh_args", "-p 2222"),
    ]


def test_mpi_on_the_other_nodes_waits():
    (wait,) = start("mpi", facts=TWO)
    assert wait.role == "mpi-wait"
    assert shlex.join(wait.argv) == (
        "/opt/muster/bin/python -I -m muster.supervisors.launch.mpi.mpi wait --job-id=train-7 --ready-timeout=600"
        " --env-file=train-7.mpienv --node-rank=1 --lead=node-a:6000 --lead-name=node-a"
    )


def test_arguments_of_mpirun_may_come_from_the_environment():
    env = {
        "OPENMPI_BIND_ARGS": "-bind-to core",
        "OPENMPI_X_ARGS": "-x A=1",
        "OPENMPI_MCA_ARGS": "-mca btl self,tcp",
        "OPENMPI_EXTRA_ARGS": "--tag-output",
        "MA_SCRIPT_INTERPRETER": "python3",
    }
    _, _, mpirun = line("mpi", "train.py --lr 0.1", ONE, **env).partition(" -tune ")
    assert mpirun == ("train-7.mpienv -bind-to core -x A=1 -mca btl self,tcp --tag-output python3 train.py --lr 0.1")


def test_the_jobs_own_setting_wins_over_mpiruns_default():
    assert " -x NCCL_DEBUG -x NCCL_SOCKET_IFNAME=ib0,bond0,eth0 " in line("mpi", NCCL_DEBUG="WARN")


def named(facts: JobFacts, **env: str) -> list[str]:
    argv = start("mpi", facts=facts, **env)[0].argv
    return [argv[i + 1] for i, word in enumerate(argv) if word == "-x"]


def test_ranks_on_other_nodes_are_given_the_variables_of_the_job():
    env = {"LR": "0.1", "MUSTER_JOB_ID": "train-7", "MASTER_ADDR": "node-a", "NCCL_DEBUG": "WARN"}
    kept = {"HOME": "/root", "MUSTER_NONCE": "n", "CUDA_VISIBLE_DEVICES": "0", "OMPI_MCA_a": "b", "a-b": "c"}
    in_file = {"MA_NUM_GPUS": "8", "PATH": "/bin"}
    defaults = X.replace("NCCL_DEBUG=INFO", "NCCL_DEBUG").split()[1::2]
    facts = replace(TWO, node_rank=0)
    assert named(facts, **env, **kept, **in_file) == [*defaults, "LR", "MASTER_ADDR", "MUSTER_JOB_ID"]
    assert named(ONE, **env, **kept, **in_file) == defaults, "on one node they inherit them"


# --- what can be wrong ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", list(Boot))
def test_as_many_processes_as_are_counted_and_no_problem(mode):
    for facts in (ONE, TWO, replace(TWO, node_rank=0)):
        spec = spec_of(mode, facts=facts, command="python train.py")
        made = processes(spec, facts, {})
        assert problems(spec) == []
        assert len(made) == spec.processes
        assert all(word for process in made for word in process.argv)


@pytest.mark.parametrize(
    ("mode", "env", "field", "text"),
    [
        ("torchrun", {"MA_EXTRA_TORCHRUN_PARAMS": "--role 'a"}, "MA_EXTRA_TORCHRUN_PARAMS", "No closing quotation"),
        ("torchrun", {"MA_TORCHRUN_MASTER_PORT": "65536"}, "MA_TORCHRUN_MASTER_PORT", "'65536'"),
        ("torchrun", {"MA_TORCHRUN_MASTER_PORT": "8 "}, "MA_TORCHRUN_MASTER_PORT", "from 1 to 65535"),
        ("msrun", {"MSRUN_CLUSTER_TIME_OUT": "soon"}, "MSRUN_CLUSTER_TIME_OUT", "'soon'"),
        ("pytorch", {"MA_SCRIPT_INTERPRETER": "'"}, "MA_SCRIPT_INTERPRETER", "shell"),
        ("tensorflow", {"TF_PS_HOSTS": "a:1"}, "TF_PS_HOSTS", "1 entries for 2 nodes"),
        ("tensorflow", {"TF_WORKER_HOSTS": "a:1,b:1,c:1"}, "TF_WORKER_HOSTS", "3 entries for 2 nodes"),
        ("mpi", {"SSHD_PORT": "0"}, "SSHD_PORT", "'0'"),
        ("mpi", {"OPENMPI_X_ARGS": '"'}, "OPENMPI_X_ARGS", "shell"),
    ],
)
def test_variables_that_cannot_be_used(mode, env, field, text):
    (found,) = problems(spec_of(mode, facts=TWO, env=env))
    assert found.field == f"env[{field!r}]"
    assert text in found.description
    with pytest.raises(NotStartable, match=field):  # as pre_start may have set it
        processes(spec_of(mode, facts=TWO), TWO, env)


@pytest.mark.parametrize("mode", ["tensorflow", "mpi"])
def test_modes_that_need_the_nodes_names(mode):
    (found,) = problems(spec_of(mode, facts=TWO, nodes=()))
    assert (found.field, mode in found.description) == ("nodes", True)


def test_tensorflow_needs_no_names_where_the_hosts_are_given():
    env = {"TF_PS_HOSTS": "a:1,b:1", "TF_WORKER_HOSTS": "a:2,b:2"}
    assert problems(spec_of("tensorflow", facts=TWO, nodes=(), env=env)) == []


def test_a_rank_table_that_msrun_is_to_use_must_be_there():
    (found,) = problems(spec_of("msrun", env={"MS_RANKTABLE_ENABLE": "TRUE"}))
    assert found.field == "rank_table"


def test_an_interpreter_that_msrun_would_take_for_a_script():
    (found,) = problems(spec_of("msrun", "/usr/bin/python3.11 train.py"))
    assert (found.field, "'python3.11'" in found.description) == ("command[0]", True)


@pytest.mark.parametrize("program", ["torchrun", "msrun", "mpirun", "sshd"])
def test_every_launcher_has_a_package(program):
    assert "install" in package_of(program)
    assert package_of("train.py") == ""


def test_no_mode_is_forgotten():
    assert set(boot.MODES) == set(Boot)


def test_the_contract_names_every_boot_mode():
    proto = (Path(__file__).parents[4] / "proto/muster/v1/job.proto").read_text()
    words = " ".join(line.strip().removeprefix("//") for line in proto.splitlines())
    comment = words[words.index("Who spawns the ranks:") : words.index("string boot =")]
    assert set(re.findall(r'"([a-z]+)"', comment)) == {mode.value for mode in Boot}
