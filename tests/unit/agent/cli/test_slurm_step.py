"""What a standalone run takes from Slurm's environment of its step."""

import pytest

from muster.agent.cli.exits import CommandFailed, Exit
from muster.agent.cli.spec import slurm_step
from muster.agent.cli.spec.job_spec import Draft
from muster.supervisors.model.spec import FIELDS

#: The second of two nodes.
STEP = {
    "SLURM_JOB_ID": "12077",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NODELIST": "gpu-[009-010]",
    "SLURM_NODEID": "1",
    "SLURM_GPUS_ON_NODE": "8",
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gpu-[001-003],cpu5", "gpu-001 gpu-002 gpu-003 cpu5"),
        ("n[009-11]", "n009 n010 n011"),
        ("n[9-11]", "n9 n10 n11"),
        ("a[1-3,07-09]b[0-1],c", "a1b0 a1b1 a2b0 a2b1 a3b0 a3b1 a07b0 a07b1 a08b0 a08b1 a09b0 a09b1 c"),
        ("tux[0-1][0-1]", "tux00 tux01 tux10 tux11"),
        (" n1, n2", "n1 n2"),
        ("one", "one"),
    ],
)
def test_a_list_of_nodes(text: str, expected: str) -> None:
    """As `scontrol show hostnames` of Slurm 22.05 expands them."""
    assert slurm_step.hosts(text) == tuple(expected.split())


@pytest.mark.parametrize(
    "text", ["", "n[3-1]", "n[]", "n[1", "n1]", "n[1-2", "a,,b", "a,", "n[1-999999]", "n[1-300]m[1-300]", "a b", "n[-]"]
)
def test_what_is_no_list_of_nodes_is_refused(text: str) -> None:
    with pytest.raises(CommandFailed, match="give --nodes and --node-rank") as caught:
        slurm_step.hosts(text)
    assert caught.value.exit_code == Exit.USAGE and len(str(caught.value)) < 500


def filled(env: dict[str, str], **said: object) -> dict[str, object]:
    """What is taken from the environment, by field."""
    draft = Draft()
    for name, value in said.items():
        draft.say(FIELDS[name], value, f"--{name}")
    slurm_step.fill(draft, env)
    return {name: getattr(draft.asked, name) for name in draft.written if name not in said}


def test_one_muster_on_each_node_is_a_part_of_the_job_over_all() -> None:
    assert filled(STEP) == {
        "job_id": "12077",
        "nodes": ("gpu-009", "gpu-010"),
        "node_rank": 1,
        "master_port": 22077,
        "card_count": 8,
    }


def test_what_somebody_says_wins() -> None:
    assert filled(STEP, job_id="mine", ranks=4, master_port=1, nodes=("a", "b"), node_rank=0) == {}
    assert "card_count" not in filled(STEP, card_indices=(0, 1))


def test_another_step_of_a_job_has_another_id_and_port() -> None:
    found = filled(STEP | {"SLURM_STEP_ID": "3"})
    assert (found["job_id"], found["master_port"]) == ("12077.3", 25104)


def test_steps_of_neighbouring_jobs_have_ports_of_their_own() -> None:
    steps = [(str(job), str(step)) for job in range(12000, 12100) for step in range(8)]
    ports = {filled(STEP | {"SLURM_JOB_ID": job, "SLURM_STEP_ID": step})["master_port"] for job, step in steps}
    assert len(ports) == len(steps)


def test_several_musters_on_a_node_are_jobs_of_their_own(capfd: pytest.CaptureFixture[str]) -> None:
    """The usual mistake of who has started one process per card so far: one of them says so."""
    several = STEP | {"SLURM_STEP_NUM_TASKS": "16"}
    assert filled(several | {"SLURM_PROCID": "1"}) == {}
    assert capfd.readouterr().err == ""
    assert filled(several | {"SLURM_PROCID": "0"}) == {}
    assert capfd.readouterr().err == (
        "muster: this Slurm step has 16 tasks on 2 nodes, and each starts a job of its own: for one job over all cards "
        "give srun --ntasks-per-node=1\n"
    )


def test_one_node_and_a_batch_script_are_jobs_on_one_node() -> None:
    one = STEP | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_NUM_NODES": "1"}
    assert filled(one) == {"job_id": "12077", "card_count": 8}
    assert filled({"SLURM_JOB_ID": "5", "SLURM_NODEID": "0", "SLURM_NNODES": "4"}) == {"job_id": "5"}


def test_a_requeued_job_has_a_label() -> None:
    assert filled(STEP | {"SLURM_RESTART_COUNT": "2"})["labels"] == {"slurm-restarts": "2"}
    draft = Draft()
    draft.say(FIELDS["labels"], {"team": "x"}, "--label")
    slurm_step.fill(draft, STEP | {"SLURM_RESTART_COUNT": "2"})
    assert draft.asked.labels == {"team": "x", "slurm-restarts": "2"}


def test_elsewhere_nothing_is_taken() -> None:
    assert filled({}) == {} and filled({"SLURM_JOB_ID": "../x"}) == {}
