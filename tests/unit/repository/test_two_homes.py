"""Facts that have two homes, since the client and the plugin for TorchX import nothing of the daemon's: both say the
same."""

from pathlib import Path

import pytest

from muster.agent.cli.spec import slurm_step
from muster.client import exec_state, gang, own_token
from muster.probes.kernel.known_names import DEFAULT_PATH
from muster.supervisors import paths
from muster.supervisors.model.spec import Boot
from muster.supervisors.model.states import State
from muster.supervisors.paths import Root
from muster.supervisors.wire import frames
from muster.torchx import daemon_hosts
from muster.v1 import job_pb2


def test_the_bytes_of_a_session_that_are_on_their_way():
    assert (exec_state.WINDOW, exec_state.MAX_DATA) == (frames.WINDOW, frames.MAX_DATA)


def test_the_socket_of_tokens():
    root = Root.under(Path("/data/muster"))
    assert own_token.beside(root.socket) == root.identity_socket


def test_the_states_of_a_job_that_has_ended():
    names = {job_pb2.JobState.Name(state) for state in gang.FINAL}
    assert names == {f"JOB_STATE_{state}" for state in State if state.final}


def test_boot_modes_whose_launcher_counts_the_ranks():
    assert set(gang.COUNT_THEMSELVES) <= set(Boot)


def test_the_ports_at_which_nodes_meet():
    assert slurm_step.PORTS == gang.PORTS


def test_the_socket_of_the_daemon():
    assert Root.system().socket == daemon_hosts.LOCAL_SOCKET
    assert daemon_hosts.MAX_SOCKET == paths.MAX_SOCKET


def test_the_path_of_a_process_that_is_given_none():
    pytest.importorskip("torchx")
    from muster.torchx import app_parts

    assert app_parts.DEFAULT_PATH == DEFAULT_PATH
