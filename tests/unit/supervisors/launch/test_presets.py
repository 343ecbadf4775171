import pytest

from muster.supervisors.launch.modes import presets
from muster.supervisors.model.spec import TrainingMode


@pytest.mark.parametrize("mode", TrainingMode)
def test_every_mode_is_an_environment(mode):
    env = presets.of(mode)
    assert env == presets.of(mode.value), "by its name, as a spec has it"
    assert env
    assert all(isinstance(value, str) for pair in env.items() for value in pair)


def test_the_modes_differ_as_the_training_guide_says():
    normal, fast, diagnosis = (presets.of(mode) for mode in TrainingMode)
    assert (fast["GLOG_v"], fast["ASCEND_GLOBAL_LOG_LEVEL"]) == ("3", "3"), "errors only"
    assert (diagnosis["GLOG_v"], diagnosis["ASCEND_GLOBAL_LOG_LEVEL"]) == ("1", "1"), "from INFO on"
    assert [env["MS_RDR_ENABLE"] for env in (normal, fast, diagnosis)] == ["0", "0", "1"]


@pytest.mark.parametrize("mode", ["", "NORMAL", "other"])
def test_without_a_mode_there_is_nothing(mode):
    assert presets.of(mode) == {}


def test_a_caller_may_change_its_preset():
    env = presets.of("normal")
    env["GLOG_v"] = "9"
    del env["MS_RDR_ENABLE"]
    assert presets.of("normal") == {"GLOG_v": "1", "MS_RDR_ENABLE": "0"}


@pytest.mark.parametrize(("ascend", "library"), [(False, "NCCL"), (True, "HCCL")])
def test_the_flight_recorder_has_a_ring_and_a_pipe_that_is_looked_at(ascend, library):
    assert presets.flight_recorder({}, "/logs/fr-", ascend) == {
        "TORCH_FR_BUFFER_SIZE": "2000",
        f"TORCH_{library}_TRACE_BUFFER_SIZE": "2000",
        f"TORCH_{library}_DUMP_ON_TIMEOUT": "1",
        "TORCH_FR_DUMP_TEMP_FILE": "/logs/fr-",
        f"TORCH_{library}_DEBUG_INFO_TEMP_FILE": "/logs/fr-",
        f"TORCH_{library}_DEBUG_INFO_PIPE_FILE": "/logs/fr-",
    }


def test_what_a_job_says_of_its_flight_recorder_stays():
    """Under either name: both names of one thing with two values would be a riddle."""
    own = {"TORCH_NCCL_TRACE_BUFFER_SIZE": "0", "TORCH_FR_DUMP_TEMP_FILE": "/mine/", "TORCH_NCCL_DUMP_ON_TIMEOUT": "0"}
    assert presets.flight_recorder(own, "/logs/fr-", False) == {"TORCH_NCCL_DEBUG_INFO_PIPE_FILE": "/logs/fr-"}


def test_folders_of_the_diagnosis():
    assert presets.folders("normal", "/log/j", {}) == presets.folders("", "/log/j", {"RANK_ID": "3"}) == {}
    mindspore = {"GLOG_log_dir": "/log/j/mindspore/log", "GLOG_logtostderr": "0", "MS_RDR_PATH": "/log/j/mindspore/log"}
    assert presets.folders("diagnosis", "/log/j", {}) == mindspore
    graphs = {"NPU_COLLECT_PATH": "/log/j/ascend/npu_collect/rank_3"}
    assert presets.folders("diagnosis", "/log/j", {"RANK_ID": "3"}) == mindspore | graphs
    mine = {"GLOG_log_dir": "/mine", "NPU_COLLECT_PATH": "/mine", "RANK_ID": "3"}
    assert presets.folders("diagnosis", "/log/j", mine) == {"MS_RDR_PATH": "/log/j/mindspore/log"}
