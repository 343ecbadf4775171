"""Environments that are set as a whole: MindSpore's training modes, and PyTorch's flight recorder."""

import os
from collections.abc import Mapping

from muster.probes.kernel.known_names import RANK_ID
from muster.supervisors.model.spec import TrainingMode

#: As the training guide's table of modes (5.1) says it: MindSpore's own log and its Running Data Recorder; in the fault
#: diagnosis CANN's log from INFO on too. Levels of glog and of CANN's log: 0 debug, 1 info, 2 warning, 3 error.
_PRESETS: dict[str, dict[str, str]] = {
    TrainingMode.NORMAL: {"GLOG_v": "1", "MS_RDR_ENABLE": "0"},
    TrainingMode.HIGH_PERFORMANCE: {
        "GLOG_v": "3",
        "ASCEND_GLOBAL_LOG_LEVEL": "3",
        "ASCEND_GLOBAL_EVENT_ENABLE": "0",
        "ASCEND_SLOG_PRINT_TO_STDOUT": "0",
        "MS_RDR_ENABLE": "0",
    },
    TrainingMode.DIAGNOSIS: {
        "GLOG_v": "1",
        "ASCEND_GLOBAL_LOG_LEVEL": "1",
        "ASCEND_GLOBAL_EVENT_ENABLE": "1",
        "MS_RDR_ENABLE": "1",
    },
}

#: The variables of the folders in the fault diagnosis: MindSpore's own log, what it records of its run, CANN's dumps.
_LOG, _RECORDER, _DUMPS = FOLDERS = ("GLOG_log_dir", "MS_RDR_PATH", "NPU_COLLECT_PATH")


def of(mode: str) -> dict[str, str]:
    """Variables of a training mode; none for the empty one."""
    return dict(_PRESETS.get(mode, {}))


def folders(mode: str, logs: str, env: Mapping[str, str]) -> dict[str, str]:
    """Variables of folders in the fault diagnosis, below a job's further `logs` as on the platform (5.1, its layout of
    logs): MindSpore's own log and what it records of its run; per rank what CANN dumps of TensorFlow's graphs.
    MindSpore writes files only where its log does not go to stderr. None that `env` has; `RANK_ID` in it: the rank."""
    if mode != TrainingMode.DIAGNOSIS:
        return {}
    mindspore = os.path.join(logs, "mindspore", "log")
    found = {_LOG: mindspore, "GLOG_logtostderr": "0", _RECORDER: mindspore}
    if rank := env.get(RANK_ID):
        found[_DUMPS] = os.path.join(logs, "ascend", "npu_collect", f"rank_{rank}")
    if _LOG in env or "GLOG_logtostderr" in env:  # the job names its own place for the log
        del found[_LOG], found["GLOG_logtostderr"]
    return {name: value for name, value in found.items() if name not in env}


#: Entries of the flight recorder's ring, PyTorch's own default where it has one (FlightRecorder.hpp).
_RING = "2000"


def flight_recorder(env: Mapping[str, str], prefix: str, ascend: bool) -> dict[str, str]:
    """Variables with which PyTorch's flight recorder records, and dumps within a second when its pipe is written to:
    without DUMP_ON_TIMEOUT it looks at the pipe once in 8 minutes (c10d/ProcessGroupNCCL.cpp). None is among them that
    `env` has, under its old name or its new one. `prefix`: path of the dumps, to which PyTorch appends the rank, and of
    the pipes (`.pipe`). `ascend`: torch_npu's names, which are HCCL's."""
    library = "HCCL" if ascend else "NCCL"
    found: dict[str, str] = {}
    for value, *names in (
        (_RING, "TORCH_FR_BUFFER_SIZE", f"TORCH_{library}_TRACE_BUFFER_SIZE"),
        ("1", f"TORCH_{library}_DUMP_ON_TIMEOUT"),
        (prefix, "TORCH_FR_DUMP_TEMP_FILE", f"TORCH_{library}_DEBUG_INFO_TEMP_FILE"),
        (prefix, f"TORCH_{library}_DEBUG_INFO_PIPE_FILE"),
    ):
        if not any(name in env for name in names):
            found |= dict.fromkeys(names, value)
    return found
