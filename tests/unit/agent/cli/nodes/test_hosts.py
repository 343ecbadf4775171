"""The spec of a job that one command starts on several daemons."""

from muster.agent.cli.client.address import Address
from muster.agent.cli.nodes import hosts
from muster.agent.cli.nodes.hosts import GangHost
from muster.agent.cli.spec import job_spec


def test_nodes_that_know_each_other_by_the_jobs_id_get_the_one_that_the_command_makes_up() -> None:
    nodes = [GangHost(name, name, Address(None, host=name, port=7443), name) for name in "ab"]
    spec = hosts.spec_of(job_spec.from_table({"command": ["x"], "boot": "mpi"}), nodes)
    assert spec.job_id.startswith("x-")
    assert (spec.nodes, spec.node_count) == (("a", "b"), 2)
